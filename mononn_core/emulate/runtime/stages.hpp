// Stages: the shares of all copiers land at the first look of whoever waits, not before. Each copier has to come, as where
// each brings a share by cp.async; where one thread asks for a bulk copy the others need not, so what holds here holds there.
#pragma once
#include "atomics.hpp"
#include "copies.hpp"

namespace emu {

[[noreturn]] inline void stage_misused(const uint64_t *landed, uint64_t detail, uintptr_t pc, Op op) {
  stop_with(MN_EMU_USAGE, reinterpret_cast<uintptr_t>(landed), 8, detail, pc, 0, op);
}

inline Stage *stage_at(const uint64_t *landed, uintptr_t pc, Op op) {
  for (Stage &stage : current->block->stages)
    if (stage.landed == landed) {
      access(reinterpret_cast<uintptr_t>(landed), 8, MN_EMU_READ, pc, op);  // behind the opening
      return &stage;
    }
  stage_misused(landed, 0, pc, op);
}

inline void stage_open(uint64_t *landed, uint32_t copiers, uintptr_t pc) {
  if (copiers < 1 || copiers > E->threads || reinterpret_cast<uintptr_t>(landed) % 8)
    stage_misused(landed, copiers, pc, Op::stage_copy);
  for (Stage &stage : current->block->stages)
    if (stage.landed == landed) stage_misused(landed, copiers, pc, Op::stage_copy);
  access(reinterpret_cast<uintptr_t>(landed), 8, MN_EMU_WRITE, pc, Op::stage_copy);
  current->block->stages.push({landed, copiers, 0, {}, 0, nullptr, {}});
}

inline void stage_copy(unsigned char *to, const unsigned char *from, uint32_t bytes, uint64_t *landed, uint32_t own,
                       uint32_t copiers, uintptr_t pc) {
  Stage *stage = stage_at(landed, pc, Op::stage_copy);
  bool fits = copiers == stage->copiers && own < copiers && bytes % 16 == 0 && bytes > 0;
  // A full stage that nobody has waited for: another one may not begin.
  if (!fits || stage->arrived == copiers || stage->owns[own / 32] >> own % 32 & 1)
    stage_misused(landed, own, pc, Op::stage_copy);
  stage->owns[own / 32] |= 1u << own % 32, ++stage->arrived;
  for (uint32_t at = own * 16; at < bytes; at += copiers * 16) {
    uintptr_t target = reinterpret_cast<uintptr_t>(to + at), source = reinterpret_cast<uintptr_t>(from + at);
    uintptr_t base = reinterpret_cast<uintptr_t>(current->block->shared);
    if (target % 16) stop_with(MN_EMU_MISALIGNED, target, 16, 16, pc, MN_EMU_COPY | MN_EMU_WRITE, Op::stage_copy);
    if (source % 16) stop_with(MN_EMU_MISALIGNED, source, 16, 16, pc, MN_EMU_COPY, Op::stage_copy);
    if (target < base || target + 16 > base + E->request->shared_bytes)
      stop_with(MN_EMU_BOUNDS, target, 16, 0, pc, MN_EMU_COPY | MN_EMU_WRITE, Op::stage_copy);
    check_fenced(target, 16, pc);
    Copy copy{to + at, from + at, 16, 16, 0, false, 0, 0, pc, {}};
    copy_begin(&copy);
    stage->copies.push(copy);
    ++E->result->copies;
  }
  if (clocks()) {
    take(stage->view, joined(stage->view, current->view, current));
    tick(current);
  }
  wrote();
}

inline void stage_wait(const uint64_t *landed, uint32_t parity, uintptr_t pc) {
  maybe_preempt();
  Stage *stage = stage_at(landed, pc, Op::stage_wait);
  while ((stage->done & 1) == parity && stage->arrived < stage->copiers) {
    set_waiting(current, Wait::paused, Op::stage_wait, pc);
    ++E->paused;
    give_way();
    stage = stage_at(landed, pc, Op::stage_wait);  // the list may have grown
  }
  if ((stage->done & 1) == parity) {
    for (Copy &copy : stage->copies) copy_land(&copy, true);
    stage->copies.clear(), memset(stage->owns, 0, sizeof stage->owns), stage->arrived = 0, ++stage->done;
  }
  if (clocks() && stage->view) take(current->view, joined(current->view, stage->view, nullptr));
}

inline void stage_fence() {
  current->fenced = current->clock;
  if (clocks()) tick(current);
}

// What is still under way when a block's last thread leaves would land in what is no longer the block's.
inline void stages_end(Block *block) {
  for (Stage &stage : block->stages)
    if (stage.copies.count) stage_misused(stage.landed, stage.arrived, stage.copies[0].pc, Op::stage_copy);
}

}  // namespace emu
