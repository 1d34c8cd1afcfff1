// Shadow memory: for each 4 bytes of a watched range or of shared memory (2 or 1 where accesses are as small) the last
// write, and the reads since it that are not ordered among themselves.
#pragma once
#include <sys/mman.h>

#include "banks.hpp"
#include "clocks.hpp"

namespace emu {

constexpr uint64_t kSet = kAtomic;  // Cell::read is a ReadSet
constexpr uint32_t kStaged = 1u << 31;  // in Cell::write_pc: a stage brought it

struct ReadEntry {  // lanes of one warp that read at one time
  uint64_t clock;
  uint32_t block, warp, lanes, pc;  // warp: in the block
};
struct ReadSet {
  uint32_t count, capacity;
  ReadEntry entry[1];
};
struct Cell {
  uint64_t write, read;  // epochs; 0: none
  uint32_t write_pc, read_pc;
};
struct Region {
  uintptr_t low, high;
  uint32_t flags;
  int32_t block;  // whose shared memory it is, or -1
  uint32_t shift;
  Cell *cells;
  size_t count;
  uintptr_t base() const { return low & ~3ull; }  // of the first cell
};

inline List<Region> regions, kept;  // this launch's global ranges, sorted; those of the last one
inline List<Region> shared_regions;
inline Region *last_region = nullptr;
inline uintptr_t image_low = 0, image_high = 0;

inline uint64_t tag(ReadSet *set) { return reinterpret_cast<uint64_t>(set) | kSet; }
inline ReadSet *set_of(uint64_t read) { return reinterpret_cast<ReadSet *>(read & ~kSet); }

inline Cell *new_cells(size_t count) {
  void *p = mmap(nullptr, count * sizeof(Cell) + 1, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE,
                 -1, 0);
  return p == MAP_FAILED ? nullptr : static_cast<Cell *>(p);
}

inline void free_cells(Region *r) {
  if (!r->cells) return;
  for (size_t i = 0; i < r->count; ++i)
    if (r->cells[i].read & kSet) free(set_of(r->cells[i].read));
  munmap(r->cells, r->count * sizeof(Cell) + 1);
  r->cells = nullptr;
}

inline ReadSet *new_set(uint32_t capacity) {
  ReadSet *set = static_cast<ReadSet *>(malloc(sizeof(ReadSet) + (capacity - 1) * sizeof(ReadEntry)));
  if (!set) abort();
  set->count = 0, set->capacity = capacity;
  return set;
}

// Cells for half as many bytes each, until an access of ``size`` bytes at ``address`` covers whole ones.
inline void refine(Region *r, uintptr_t bits) {
  uint32_t shift = r->shift;
  while (shift && (bits & ((1u << shift) - 1))) --shift;
  size_t copies = 1ull << (r->shift - shift);
  Cell *fresh = new_cells(r->count * copies);
  if (!fresh) abort();
  for (size_t i = 0; i < r->count; ++i) {
    Cell *c = &r->cells[i];
    if (!c->write && !c->read) continue;
    for (size_t k = 0; k < copies; ++k) {
      Cell *to = &fresh[i * copies + k];
      *to = *c;
      if (!(c->read & kSet)) continue;
      ReadSet *old = set_of(c->read), *set = new_set(old->capacity);
      memcpy(set, old, sizeof(ReadSet) + (old->count - 1) * sizeof(ReadEntry));
      set->capacity = old->capacity;
      to->read = tag(set);
    }
  }
  free_cells(r);
  r->cells = fresh, r->count *= copies, r->shift = shift;
}

struct Access {
  uintptr_t address, pc;
  uint32_t size, how;
  Op op;
  Fiber *fiber;
  uint64_t me;
};

inline void race(const Access &a, uintptr_t address, uint64_t other, uint32_t other_how, uint32_t other_pc) {
  Fiber *f = a.fiber;
  mn_emu_actor second{image_low + (other_pc & ~kStaged), static_cast<int32_t>(block_of(other)), static_cast<int32_t>(thread_of(other)),
                      other_how | (other & kAtomic ? static_cast<uint32_t>(MN_EMU_ATOMIC) : 0u), 0};
  report(MN_EMU_RACE, address, a.size, 0, actor(f, a.pc, a.how, a.op), second);
}

inline bool before(const Access &a, uint64_t epoch) { return !((epoch ^ a.me) & kWho) || known(a.fiber->view, epoch); }

// Ordered before all that one who knows ``v`` does, without a look at exact times.
inline bool past(const ReadEntry *e, const View *v) {
  uint64_t generation = e->clock >> kCountBits;
  return generation < first_generation || generation < v->generations[e->block];
}

inline void check_reads(const Access &a, Cell *c, uintptr_t address) {
  if (!(c->read & kSet)) {
    if (!before(a, c->read)) race(a, address, c->read, MN_EMU_READ, c->read_pc);
    return;
  }
  ReadSet *set = set_of(c->read);
  for (uint32_t i = 0; i < set->count; ++i) {
    ReadEntry *e = &set->entry[i];
    if (past(e, a.fiber->view)) continue;
    for (uint32_t lanes = e->lanes; lanes; lanes &= lanes - 1) {
      uint64_t thread = e->warp * kLanes + static_cast<uint32_t>(__builtin_ctz(lanes));
      uint64_t epoch = static_cast<uint64_t>(e->block) << kBlockShift | thread << kThreadShift | e->clock;
      if (before(a, epoch)) continue;
      race(a, address, epoch, MN_EMU_READ, e->pc);
      return;
    }
  }
}

inline void add_read(ReadSet *&set, const Access &a, uint64_t epoch, uint32_t pc) {
  uint32_t block = block_of(epoch), warp = thread_of(epoch) / kLanes, bit = 1u << thread_of(epoch) % kLanes;
  uint64_t clock = epoch & kClock;
  uint32_t kept = 0;
  bool added = false;
  for (uint32_t i = set->count; i-- > 0;) {
    ReadEntry *e = &set->entry[i];
    if (e->block != block || e->warp != warp) continue;
    if (e->clock == clock) e->lanes |= bit, added = true;
    else e->lanes &= ~bit;  // this lane's earlier read
  }
  if (added) return;
  if (set->count == set->capacity) {  // forget what is ordered before this read
    for (uint32_t i = 0; i < set->count; ++i) {
      ReadEntry *e = &set->entry[i];
      if (e->lanes && !past(e, a.fiber->view)) set->entry[kept++] = *e;
    }
    set->count = kept;
  }
  if (set->count == set->capacity) {
    set->capacity *= 2;
    set = static_cast<ReadSet *>(realloc(static_cast<void *>(set), sizeof(ReadSet) + (set->capacity - 1) * sizeof(ReadEntry)));
    if (!set) abort();
  }
  set->entry[set->count++] = {clock, block, warp, bit, pc};
}

inline void record_read(const Access &a, Cell *c) {
  uint32_t pc = static_cast<uint32_t>(a.pc - image_low);
  if (!c->read || (!(c->read & kSet) && before(a, c->read))) {
    c->read = a.me, c->read_pc = pc;
    return;
  }
  ReadSet *set;
  if (c->read & kSet) {
    set = set_of(c->read);
  } else {
    set = new_set(4);
    add_read(set, a, c->read, c->read_pc);
  }
  add_read(set, a, a.me, pc);
  c->read = tag(set);
}

inline void pending(const Access &a, uintptr_t address, Cell *c) {
  report(MN_EMU_PENDING, address, a.size, 0, actor(a.fiber, a.pc, a.how, a.op),
         {image_low + (c->write_pc & ~kStaged), static_cast<int32_t>(block_of(c->write)), static_cast<int32_t>(thread_of(c->write)),
          MN_EMU_COPY | MN_EMU_WRITE, 0});
}

inline void read_cell(const Access &a, const Region *r, Cell *c, uintptr_t address) {
  if (c->read == a.me) return;
  uint64_t w = c->write;
  if (w & kPending) pending(a, address, c);
  else if (!w) {
    if (r->flags & MN_EMU_UNWRITTEN)
      report(MN_EMU_POISON, address, a.size, 0, actor(a.fiber, a.pc, a.how, a.op), nobody());
  } else if (!(w & kAtomic && a.how & MN_EMU_ATOMIC) && !before(a, w)) {
    race(a, address, w, MN_EMU_WRITE, c->write_pc);
  }
  if (!(a.how & MN_EMU_ATOMIC)) record_read(a, c);
}

inline void write_cell(const Access &a, Cell *c, uintptr_t address) {
  uint64_t w = c->write;
  if (w == a.me && !c->read) return;
  if (w & kPending) pending(a, address, c);
  else if (w && !(w & kAtomic && a.how & MN_EMU_ATOMIC) && !before(a, w)) race(a, address, w, MN_EMU_WRITE, c->write_pc);
  if (c->read) {
    check_reads(a, c, address);
    if (c->read & kSet) free(set_of(c->read));
    c->read = 0;
  }
  c->write = a.me | (a.how & MN_EMU_ATOMIC ? kAtomic : 0), c->write_pc = static_cast<uint32_t>(a.pc - image_low);
}

inline Region *find_region(uintptr_t address) {
  size_t stride = E->shared_stride;
  uintptr_t offset = address - reinterpret_cast<uintptr_t>(E->shared);
  if (offset < stride * E->block_count) return &shared_regions[static_cast<uint32_t>(offset / stride)];
  if (last_region && address >= last_region->low && address < last_region->high) return last_region;
  uint32_t low = 0, high = regions.count;
  while (low < high) {
    uint32_t middle = (low + high) / 2;
    if (regions[middle].high <= address) low = middle + 1;
    else high = middle;
  }
  if (low == regions.count || address < regions[low].low) return nullptr;
  return last_region = &regions[low];
}

constexpr uint32_t kSpins = 256;

// A plain load of one word, again and again: a spin that yields to nobody; let the others run.
inline void notice_spin(uintptr_t address, uintptr_t pc) {
  bool same = address == E->last_read && pc == E->last_pc;
  E->same_reads = same ? E->same_reads + 1 : 0;
  E->last_read = address, E->last_pc = pc;
  if (E->same_reads < kSpins) return;
  E->same_reads = 0;
  set_waiting(current, Wait::paused, Op::load, pc);
  ++E->paused;
  give_way();
}

// The region that holds the access, or null where nothing is to be done (stacks, constants in the image).
inline Region *checked_region(uintptr_t address, uint32_t size, uint32_t how, uintptr_t pc, Op op) {
  if (address - reinterpret_cast<uintptr_t>(E->stacks) < E->stacks_bytes) return nullptr;
  Region *r = find_region(address);
  if (!r && !(how & MN_EMU_WRITE)) {  // constants of the source, the kernel's parameters
    if (address >= image_low && address + size <= image_high) return nullptr;
    if (address - E->request->words < E->request->word_bytes) return nullptr;
  }
  bool inside = r && address >= r->low && address + size <= r->high;
  bool allowed = inside && !(how & MN_EMU_WRITE && r->flags & MN_EMU_READ_ONLY) &&
                 (r->block < 0 || r->block == current->block_index);
  if (!allowed) stop_with(MN_EMU_BOUNDS, address, size, inside, pc, how, op);
  return r;
}

template <class Visit> inline void each_cell(Region *r, uintptr_t address, uint32_t size, Visit visit) {
  if ((address | size) & ((1u << r->shift) - 1)) refine(r, address | size);
  uintptr_t step = 1ull << r->shift;
  Cell *c = &r->cells[(address - r->base()) >> r->shift];
  for (uintptr_t at = address; at < address + size; at += step) visit(c++, at);
}

inline void access(uintptr_t address, uint32_t size, uint32_t how, uintptr_t pc, Op op = Op::none) {
  Region *r = checked_region(address, size, how, pc, op);
  if (!r || !r->cells) return;
  ++E->result->accesses;
  if (r->block < 0 && !how) notice_spin(address, pc);
  if (r->block >= 0 && op == Op::none && asked(MN_EMU_BANKS)) bank_note(current, address, size, pc);
  Access a{address, pc, size, how, op, current, epoch_of(current)};
  if (how & MN_EMU_WRITE) each_cell(r, address, size, [&](Cell *c, uintptr_t at) { write_cell(a, c, at); });
  else each_cell(r, address, size, [&](Cell *c, uintptr_t at) { read_cell(a, r, c, at); });
}

// A read that is only looked at, by ``fiber``: another access records it.
inline void check_read(Fiber *fiber, uintptr_t address, uint32_t size, uintptr_t pc, Op op) {
  Region *r = find_region(address);
  if (!r || !r->cells) return;
  Access a{address, pc, size, MN_EMU_READ, op, fiber, epoch_of(fiber)};
  each_cell(r, address, size, [&](Cell *c, uintptr_t at) {
    if (c->write && !(c->write & kPending) && !before(a, c->write)) race(a, at, c->write, MN_EMU_WRITE, c->write_pc);
  });
}

// ---- copies under way ------------------------------------------------------------------------------------------------
inline void shadow_issue(Copy *copy) {
  copy->issued = epoch_of(current);
  uintptr_t to = reinterpret_cast<uintptr_t>(copy->to), from = reinterpret_cast<uintptr_t>(copy->from);
  access(to, copy->size, MN_EMU_WRITE | MN_EMU_COPY, copy->pc);
  if (Region *r = find_region(to); r && r->cells)
    each_cell(r, to, copy->size, [](Cell *c, uintptr_t) { c->write |= kPending; });
  if (!copy->bytes) return;
  access(from, copy->bytes, MN_EMU_READ | MN_EMU_COPY, copy->pc);
  if (Region *r = find_region(from); r && r->cells)
    each_cell(r, from, copy->bytes, [&](Cell *c, uintptr_t) { copy->source_version += c->write << r->shift; });
}

// ``staged``: whoever lands it, it is a write of who issued it; else of the current fiber, which is the same.
inline void shadow_land(Copy *copy, bool staged) {
  uintptr_t to = reinterpret_cast<uintptr_t>(copy->to), from = reinterpret_cast<uintptr_t>(copy->from);
  uint64_t me = staged ? copy->issued : epoch_of(current), version = 0;
  if (Region *r = find_region(to); r && r->cells)
    each_cell(r, to, copy->size, [&](Cell *c, uintptr_t) {
      if (!(c->write & kPending) || (c->write ^ me) & kWho) return;
      c->write = me;
      if (staged) c->write_pc |= kStaged;
    });
  if (!copy->bytes) return;
  Region *r = find_region(from);
  if (!r || !r->cells) return;
  access(from, copy->bytes, MN_EMU_READ | MN_EMU_COPY, copy->pc);
  each_cell(r, from, copy->bytes, [&](Cell *c, uintptr_t) { version += c->write << r->shift; });  // cells may be finer by now
  if (version != copy->source_version)
    report(MN_EMU_SOURCE, from, copy->bytes, 0, actor(current, copy->pc, MN_EMU_COPY, Op::none), nobody());
}

// Stores of this launch to where a stage lands must lie behind their threads' stage_fence.
inline void check_fenced(uintptr_t to, uint32_t size, uintptr_t pc) {
  Region *r = find_region(to);
  if (!r || !r->cells) return;
  each_cell(r, to, size, [&](Cell *c, uintptr_t at) {
    if (!c->write || c->write & kPending || c->write_pc & kStaged) return;
    const Fiber *writer = &current->block->warps[0].fibers[thread_of(c->write)];
    if ((c->write & kClock) > writer->fenced)
      report(MN_EMU_UNFENCED, at, size, 0, actor(current, pc, MN_EMU_COPY | MN_EMU_WRITE, Op::stage_copy),
             actor(writer, image_low + c->write_pc, MN_EMU_WRITE, Op::none));
  });
}

// ---- a launch --------------------------------------------------------------------------------------------------------
inline bool give_cells(Region *r, bool fresh) {
  for (Region &old : kept)
    if (!fresh && old.cells && old.low == r->low && old.high == r->high && old.flags == r->flags) {
      *r = old;
      old.cells = nullptr;
      return true;
    }
  r->shift = 2, r->count = (r->high - r->base() + 3) >> 2;
  r->cells = new_cells(r->count);
  return r->cells;
}

inline void shadow_reset() {
  List<Region> *lists[] = {&regions, &kept, &shared_regions};
  for (List<Region> *list : lists) {
    for (Region &r : *list) free_cells(&r);
    list->clear();
  }
  last_region = nullptr;
}

// Generations begin anew: what earlier launches wrote is all of one generation.
inline void shadow_age() {
  for (Region &r : regions)
    for (size_t i = 0; r.cells && i < r.count; ++i) {
      Cell *c = &r.cells[i];
      if (c->read & kSet) free(set_of(c->read));
      c->read = 0;
      if (c->write) c->write = 1ull << kCountBits;
    }
  last_generation = 1;
}

inline bool shadow_begin() {
  const mn_emu_request *q = E->request;
  if (last_generation >> (kGenerationBits - 1)) shadow_age();
  for (Region &r : kept) free_cells(&r);
  kept.clear();
  for (Region &r : regions) kept.push(r);
  for (Region &r : shared_regions) free_cells(&r);
  regions.clear(), shared_regions.clear(), last_region = nullptr;
  image_low = E->result->image, image_high = image_low + E->result->image_bytes;
  bool fine = true, cells = asked(MN_EMU_SANITIZED);
  const mn_emu_range *ranges = reinterpret_cast<const mn_emu_range *>(q->range);
  for (uint32_t i = 0; i < q->ranges; ++i) {
    Region &r = regions.push({ranges[i].address, ranges[i].address + ranges[i].bytes, ranges[i].flags, -1, 2, nullptr, 0});
    if (cells && !(r.flags & MN_EMU_READ_ONLY)) fine = give_cells(&r, false) && fine;
  }
  for (uint32_t b = 0; b < E->block_count; ++b) {
    uintptr_t low = reinterpret_cast<uintptr_t>(E->blocks[b].shared);
    Region &r = shared_regions.push({low, low + q->shared_bytes, MN_EMU_UNWRITTEN, static_cast<int32_t>(b), 2, nullptr, 0});
    if (cells) fine = give_cells(&r, true) && fine;
  }
  return fine;
}

}  // namespace emu
