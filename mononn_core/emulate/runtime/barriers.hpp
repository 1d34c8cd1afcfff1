// sync_block and sync_some: threads of a block wait for each other. Lanes of one warp must come by the same call.
#pragma once
#include "shadow.hpp"

namespace emu {

// A lane that comes by another call than one of its warp that already waits at this barrier has diverged.
inline void same_call(Wait wait, Op op, uintptr_t pc) {
  Warp *warp = current->warp;
  if (warp->arrived) {  // lanes of this warp wait in a warp primitive that this lane does not come to
    Fiber *other = &warp->fibers[__builtin_ctz(warp->arrived)];
    stop_with(MN_EMU_CONVERGENCE, 0, 0, 0, pc, 0, op, actor(other, other->site, 0, other->op));
  }
  for (int lane = 0; lane < kLanes; ++lane) {
    Fiber *other = &warp->fibers[lane];
    if (other->wait != wait || other->site == pc) continue;
    stop_with(MN_EMU_CONVERGENCE, 0, 0, 0, pc, 0, op, actor(other, other->site, 0, other->op));
  }
}

inline void sync_block(uintptr_t pc) {
  Block *block = current->block;
  same_call(Wait::block, Op::sync_block, pc);
  if (block->live != E->threads) {
    for (uint32_t i = 0; i < E->threads; ++i) {
      Fiber *other = &block->warps[0].fibers[i];
      if (other->wait == Wait::exited)
        stop_with(MN_EMU_CONVERGENCE, 0, 0, 0, pc, 0, Op::sync_block, actor(other, 0, 0, Op::exit));
    }
  }
  if (++block->arrived < E->threads) {
    set_waiting(current, Wait::block, Op::sync_block, pc);
    give_way();
    return;
  }
  block->arrived = 0;
  for (uint32_t w = 0; w < E->warps_per_block; ++w) bank_meet(&block->warps[w]);
  clocks_block(block);
  ++E->result->barriers, ++E->progress;
  for (uint32_t i = 0; i < E->threads; ++i) {
    Fiber *other = &block->warps[0].fibers[i];
    if (other != current) set_ready(other);
  }
}

inline void sync_some(int id, int count, uintptr_t pc) {
  Block *block = current->block;
  bool fits = id >= 1 && id < kNamedBarriers && count > 0 && count % kLanes == 0 &&
              static_cast<uint32_t>(count) <= E->threads;
  uint64_t given = static_cast<uint64_t>(id) << 32 | static_cast<uint32_t>(count);
  if (!fits) stop_with(MN_EMU_USAGE, 0, 0, given, pc, 0, Op::sync_some);
  same_call(Wait::some, Op::sync_some, pc);
  Some *some = &block->some[id];
  if (some->arrived && some->count != static_cast<uint32_t>(count))
    stop_with(MN_EMU_USAGE, 0, 0, given, pc, 0, Op::sync_some);
  some->count = static_cast<uint32_t>(count);
  current->some_id = static_cast<uint32_t>(id);
  if (++some->arrived < some->count) {
    set_waiting(current, Wait::some, Op::sync_some, pc);
    give_way();
    return;
  }
  some->arrived = 0;
  clocks_some(block, static_cast<uint32_t>(id));
  ++E->result->barriers, ++E->progress;
  for (uint32_t i = 0; i < E->threads; ++i) {
    Fiber *other = &block->warps[0].fibers[i];
    if (other->wait == Wait::some && other->some_id == current->some_id) set_ready(other);
  }
}

}  // namespace emu
