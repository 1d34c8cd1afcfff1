// Happens-before, after FastTrack (Flanagan and Freund, PLDI 2009). A thread's time is (generation of its block, count):
// a block barrier starts a new generation, every other release counts up. What a thread knows of others, its View, is one
// generation for each block (all that the block did in earlier ones is ordered before), and exact times of some warps.
#pragma once
#include "events.hpp"

namespace emu {

// epoch: 1 atomic | 1 pending | 10 block | 10 thread | 22 generation | 20 count
constexpr int kCountBits = 20, kGenerationBits = 22, kThreadShift = kCountBits + kGenerationBits, kBlockShift = 52;
constexpr uint64_t kAtomic = 1ull << 63, kPending = 1ull << 62, kWho = ((1ull << 20) - 1) << kThreadShift;
constexpr uint64_t kClock = (1ull << kThreadShift) - 1;

inline uint32_t block_of(uint64_t epoch) { return epoch >> kBlockShift & 1023; }
inline uint32_t thread_of(uint64_t epoch) { return epoch >> kThreadShift & 1023; }
inline uint32_t generation_of(uint64_t epoch) { return static_cast<uint32_t>((epoch & kClock) >> kCountBits); }
inline uint64_t who(const Fiber *f) {
  return static_cast<uint64_t>(f->block_index) << kBlockShift | static_cast<uint64_t>(f->thread) << kThreadShift;
}
inline uint64_t epoch_of(const Fiber *f) { return who(f) | f->clock; }

struct Exact {
  uint64_t clock[kLanes];
  uint32_t warp;
};
struct View {
  uint32_t references, count;
  uint32_t *generations;  // of each block: what came before it is known
  Exact *exact;
};
// What a word that atomics touch hands on.
struct Handed {
  uintptr_t address;
  View *view;
};

inline List<Handed> handed;
inline uint32_t first_generation = 1, last_generation = 1;  // of this launch; what earlier launches did is ordered before

inline View *keep(View *v) {
  if (v) ++v->references;
  return v;
}
inline void drop(View *v) {
  if (v && !--v->references) free(v);
}
inline void take(View *&slot, View *v) {
  View *old = slot;
  slot = keep(v);
  drop(old);
}

// Is what happened at ``epoch`` ordered before one who knows ``v``?
inline bool known(const View *v, uint64_t epoch) {
  uint32_t generation = generation_of(epoch);
  if (generation < first_generation) return true;
  uint32_t block = block_of(epoch), thread = thread_of(epoch);
  if (generation < v->generations[block]) return true;
  uint32_t warp = block * E->warps_per_block + thread / kLanes;
  for (uint32_t i = 0; i < v->count; ++i)
    if (v->exact[i].warp == warp) return v->exact[i].clock[thread % kLanes] >= (epoch & kClock);
  return false;
}

// A join under construction.
struct Join {
  uint32_t generations[1024];
  List<Exact> exact;
  View *last;
  void begin() {
    memset(generations, 0, E->block_count * sizeof *generations);
    exact.clear(), last = nullptr;
  }
  Exact &of(uint32_t warp) {
    for (Exact &e : exact)
      if (e.warp == warp) return e;
    Exact fresh{};
    fresh.warp = warp;
    return exact.push(fresh);
  }
  void add(View *v) {
    if (!v || v == last) return;
    last = v;
    for (uint32_t b = 0; b < E->block_count; ++b)
      if (v->generations[b] > generations[b]) generations[b] = v->generations[b];
    for (uint32_t i = 0; i < v->count; ++i) {
      Exact &mine = of(v->exact[i].warp);
      for (int lane = 0; lane < kLanes; ++lane)
        if (v->exact[i].clock[lane] > mine.clock[lane]) mine.clock[lane] = v->exact[i].clock[lane];
    }
  }
  void add_self(const Fiber *f) {
    uint64_t &clock = of(static_cast<uint32_t>(f->warp->index)).clock[f->lane];
    if (f->clock > clock) clock = f->clock;
  }
  // Without exact times that the generations tell as well.
  View *end() {
    uint32_t kept = 0;
    for (Exact &e : exact) {
      uint64_t newest = 0;
      for (uint64_t clock : e.clock) newest = clock > newest ? clock : newest;
      if (newest >> kCountBits >= generations[e.warp / E->warps_per_block]) exact[kept++] = e;
    }
    exact.count = kept;
    size_t head = (sizeof(View) + E->block_count * sizeof *generations + 7) & ~7ull;
    View *v = static_cast<View *>(malloc(head + kept * sizeof(Exact)));
    if (!v) abort();
    *v = {0, kept, reinterpret_cast<uint32_t *>(v + 1), reinterpret_cast<Exact *>(reinterpret_cast<char *>(v) + head)};
    memcpy(v->generations, generations, E->block_count * sizeof *generations);
    if (kept) memcpy(v->exact, exact.data, kept * sizeof(Exact));
    return v;
  }
};
inline Join join;

inline bool clocks() { return asked(MN_EMU_SANITIZED); }

inline void tick(Fiber *f) {
  ++f->clock;
  // a million releases between two block barriers
  if (!(f->clock & ((1ull << kCountBits) - 1))) stop_with(MN_EMU_USAGE, 0, 0, 0, f->site, 0, f->op);
}

inline void clocks_block(Block *block) {
  if (!clocks()) return;
  Fiber *fibers = block->warps[0].fibers;
  join.begin();
  for (uint32_t i = 0; i < E->threads; ++i) join.add(fibers[i].view);
  uint32_t generation = generation_of(fibers[0].clock) + 1;
  if (generation > last_generation) last_generation = generation;
  join.generations[block->index] = generation;
  View *v = join.end();
  for (uint32_t i = 0; i < E->threads; ++i) {
    take(fibers[i].view, v);
    fibers[i].clock = static_cast<uint64_t>(generation) << kCountBits;
  }
}

// All of ``fibers`` for which ``in`` holds know each other's past.
template <class In> inline void clocks_group(Fiber *fibers, uint32_t count, In in) {
  if (!clocks()) return;
  join.begin();
  uint64_t latest = 0;
  for (uint32_t i = 0; i < count; ++i) {
    if (!in(fibers[i])) continue;
    join.add(fibers[i].view);
    join.add_self(&fibers[i]);
    if (fibers[i].clock > latest) latest = fibers[i].clock;
  }
  View *v = join.end();
  for (uint32_t i = 0; i < count; ++i) {
    if (!in(fibers[i])) continue;
    take(fibers[i].view, v);
    fibers[i].clock = latest;
    tick(&fibers[i]);
  }
}

inline void clocks_warp(Warp *warp) {
  clocks_group(warp->fibers, kLanes, [](const Fiber &) { return true; });
}

inline void clocks_some(Block *block, uint32_t id) {
  Fiber *last = current;
  clocks_group(block->warps[0].fibers, E->threads,
               [=](const Fiber &f) { return &f == last || (f.wait == Wait::some && f.some_id == id); });
}

inline View *joined(View *a, View *b, const Fiber *self) {
  join.begin();
  join.add(a), join.add(b);
  if (self) join.add_self(self);
  return join.end();
}

inline View *&handed_at(const void *p) {
  uintptr_t address = reinterpret_cast<uintptr_t>(p);
  for (Handed &h : handed)
    if (h.address == address) return h.view;
  return handed.push({address, nullptr}).view;
}

inline void clocks_acquire(const void *p, bool relaxed) {
  if (!clocks()) return;
  View *from = handed_at(p);
  if (!from) return;
  if (relaxed) take(current->fence_acquire, current->fence_acquire ? joined(current->fence_acquire, from, nullptr) : from);
  else take(current->view, joined(current->view, from, nullptr));
}

// ``adds``: a read-modify-write continues what earlier releases began; a store replaces it.
inline void clocks_release(const void *p, bool relaxed, bool adds) {
  if (!clocks()) return;
  View *&to = handed_at(p);
  View *given = relaxed ? keep(current->fence_release) : keep(joined(current->view, nullptr, current));
  if (adds && to && given) take(to, joined(to, given, nullptr));
  else if (!adds || given) take(to, given);
  drop(given);
  if (!relaxed) tick(current);
}

inline void clocks_fence() {
  if (!clocks()) return;
  if (current->fence_acquire) {
    take(current->view, joined(current->view, current->fence_acquire, nullptr));
    take(current->fence_acquire, nullptr);
  }
  take(current->fence_release, joined(current->view, nullptr, current));
  tick(current);
}

inline void clocks_begin() {
  if (!clocks()) return;
  first_generation = ++last_generation;
  join.begin();
  for (uint32_t b = 0; b < E->block_count; ++b) join.generations[b] = first_generation;
  View *v = join.end();
  for (uint32_t i = 0; i < E->fiber_count; ++i) {
    take(E->fibers[i].view, v);
    E->fibers[i].clock = static_cast<uint64_t>(first_generation) << kCountBits;
  }
}

inline void clocks_end() {
  for (Handed &h : handed) drop(h.view);
  handed.clear();
  for (uint32_t i = 0; i < E->fiber_count; ++i)
    drop(E->fibers[i].view), drop(E->fibers[i].fence_release), drop(E->fibers[i].fence_acquire);
}

}  // namespace emu
