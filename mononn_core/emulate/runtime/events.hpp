// What went wrong: written down once per place; some end the launch.
#pragma once
#include "schedule.hpp"

namespace emu {

inline mn_emu_actor actor(const Fiber *fiber, uintptr_t pc, uint32_t access, Op op) {
  return {pc, fiber ? fiber->block_index : -1, fiber ? fiber->thread : -1, access, static_cast<uint32_t>(op)};
}
inline mn_emu_actor nobody() { return {0, -1, -1, 0, 0}; }

inline void report(uint32_t kind, uint64_t address, uint32_t size, uint64_t value, mn_emu_actor first,
                   mn_emu_actor second) {
  mn_emu_result *r = E->result;
  if (kind != MN_EMU_DEADLOCK)
    for (uint32_t i = 0; i < r->events; ++i)
      if (r->event[i].kind == kind && r->event[i].first.pc == first.pc && r->event[i].second.pc == second.pc) return;
  if (r->events == MN_EMU_EVENTS) {
    ++r->lost_events;
    return;
  }
  r->event[r->events++] = {kind, size, address, value, first, second};
}

// The current fiber never goes on.
[[noreturn]] inline void stop() {
  E->stopped = true;
  switch_to_scheduler();
  __builtin_unreachable();
}

[[noreturn]] inline void stop_with(uint32_t kind, uint64_t address, uint32_t size, uint64_t value, uintptr_t pc,
                                   uint32_t access, Op op = Op::none, mn_emu_actor second = nobody()) {
  report(kind, address, size, value, actor(current, pc, access, op), second);
  stop();
}

inline void report_time() { report(MN_EMU_TIME, 0, 0, 0, actor(current, 0, 0, Op::none), nobody()); }

// Nothing can run: who waits where. One event for each warp and place.
inline void report_deadlock() {
  for (uint32_t i = 0; i < E->fiber_count; ++i) {
    Fiber *f = &E->fibers[i];
    if (f->wait == Wait::exited) continue;
    bool told = false;
    for (uint32_t k = i - f->lane; k < i && !told; ++k)
      told = E->fibers[k].wait == f->wait && E->fibers[k].site == f->site;
    if (told) continue;
    bool spins = f->wait == Wait::parked || (f->op == Op::pause && f->spun);  // a pause between two looks
    report(MN_EMU_DEADLOCK, spins ? reinterpret_cast<uint64_t>(f->spun) : 0, 4, spins ? f->spun_value : f->some_id,
           actor(f, f->site, 0, spins ? Op::load_acquire : f->op), nobody());
  }
}

}  // namespace emu
