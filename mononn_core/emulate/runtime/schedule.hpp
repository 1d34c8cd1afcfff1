// Who runs next. A warp runs until none of its lanes can; which warp is next, and which lane, the schedule decides.
#pragma once
#include "fibers.hpp"

namespace emu {

inline int lane_of(uint32_t mask, Warp *warp) {
  switch (E->request->schedule) {
    case MN_EMU_REVERSED: return 31 - __builtin_clz(mask);
    case MN_EMU_RANDOM: {
      uint32_t r = warp->rotation, turned = mask >> r | mask << ((32 - r) & 31);
      return (__builtin_ctz(turned) + r) & 31;
    }
    default: return __builtin_ctz(mask);
  }
}

inline void set_ready(Fiber *fiber) {
  fiber->wait = Wait::ready;
  fiber->warp->ready |= 1u << fiber->lane;
  E->ready[fiber->warp->index >> 6] |= 1ull << (fiber->warp->index & 63);
}

inline void set_waiting(Fiber *fiber, Wait wait, Op op, uintptr_t site) {
  fiber->wait = wait, fiber->op = op, fiber->site = site;
  fiber->warp->ready &= ~(1u << fiber->lane);
  if (!fiber->warp->ready) E->ready[fiber->warp->index >> 6] &= ~(1ull << (fiber->warp->index & 63));
}

// The current fiber cannot go on: another lane of its warp runs, else whatever the scheduler picks.
inline void give_way() {
  Warp *warp = current->warp;
  if (warp->ready && !E->stopped) switch_to(&warp->fibers[lane_of(warp->ready, warp)]);
  else switch_to_scheduler();
}

inline bool starved(uint32_t warp) {
  const mn_emu_request *r = E->request;
  if (r->schedule == MN_EMU_STARVE_BLOCK) return warp / E->warps_per_block == r->starved % E->block_count;
  return r->schedule == MN_EMU_STARVE_WARP && warp == r->starved % E->warp_count;
}

// First set bit at or after ``from``, around the end; -1 if none.
inline int ready_from(uint32_t from) {
  uint32_t word = from >> 6, words = E->ready_words;
  uint64_t bits = E->ready[word] & (~0ull << (from & 63));
  for (uint32_t i = 0; i <= words; ++i) {
    if (bits) return static_cast<int>(word * 64 + __builtin_ctzll(bits));
    word = word + 1 == words ? 0 : word + 1;
    bits = E->ready[word];
  }
  return -1;
}

inline int ready_last() {
  for (uint32_t word = E->ready_words; word-- > 0;)
    if (E->ready[word]) return static_cast<int>(word * 64 + 63 - __builtin_clzll(E->ready[word]));
  return -1;
}

inline int pick() {
  switch (E->request->schedule) {
    case MN_EMU_BLOCK_FIRST: return ready_from(0);
    case MN_EMU_REVERSED: return ready_last();
    case MN_EMU_RANDOM: return ready_from(static_cast<uint32_t>(next_random() >> 33) % E->warp_count);
    default: break;
  }
  uint32_t from = static_cast<uint32_t>(next_random() >> 33) % E->warp_count;
  int first = ready_from(from);
  for (int at = first; at >= 0;) {
    if (!starved(at)) return at;
    at = ready_from((at + 1) % E->warp_count);
    if (at == first) break;
  }
  return first;
}

inline void wake(Wait kind) {
  for (uint32_t i = 0; i < E->fiber_count; ++i)
    if (E->fibers[i].wait == kind) set_ready(&E->fibers[i]);
  (kind == Wait::parked ? E->parked : E->paused) = 0;
}

// An atomic wrote: whoever spins looks again.
inline void wrote() {
  ++E->writes, ++E->progress;
  if (E->parked) wake(Wait::parked);
  if (E->paused) wake(Wait::paused);
}

void report_deadlock();
void report_time();

constexpr uint32_t kIdle = 200;  // looks of all who spin, with nothing else done, before it is a deadlock

// Runs fibers until all have left, nothing can run, or the launch is stopped.
inline void run_all() {
  uint64_t seen = ~0ull;
  uint32_t idle = 0;
  while (E->live && !E->stopped) {
    if (E->expired) {
      report_time();
      return;
    }
    int at = pick();
    if (at < 0 && (E->paused || E->parked)) {
      idle = seen == E->progress ? idle + 1 : 0;
      seen = E->progress;
      if (idle < kIdle) {
        wake(Wait::paused), wake(Wait::parked);
        continue;
      }
    }
    if (at < 0) {
      report_deadlock();
      return;
    }
    Warp *warp = &E->warps[at];
    warp->rotation = static_cast<uint32_t>(next_random() >> 59);
    Fiber *next = &warp->fibers[lane_of(warp->ready, warp)];
    current = next;
    ++E->result->switches;
    mn_emu_switch(&E->scheduler, next->stack_pointer);
  }
}

}  // namespace emu
