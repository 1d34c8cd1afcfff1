// Atomics and fences at gpu scope. Fibers are sequentially consistent: what order they give is in the clocks alone.
#pragma once
#include "warps.hpp"

namespace emu {

// In the random schedule others may run between any two atomics.
inline void maybe_preempt() {
  if (E->request->schedule == MN_EMU_RANDOM && !(next_random() >> 61)) {
    switch_to_scheduler();
  }
}

inline void check_atomic(uintptr_t p, uint32_t size, uint32_t how, uintptr_t pc) {
  if (p % size) stop_with(MN_EMU_MISALIGNED, p, size, size, pc, how | MN_EMU_ATOMIC);
  access(p, size, how | MN_EMU_ATOMIC, pc);
}

inline uint32_t atomic_add(uint32_t *p, uint32_t v, bool relaxed, uintptr_t pc) {
  maybe_preempt();
  check_atomic(reinterpret_cast<uintptr_t>(p), 4, MN_EMU_WRITE, pc);
  clocks_acquire(p, relaxed);
  clocks_release(p, relaxed, true);
  uint32_t old = *p;
  *p = old + v;
  wrote();
  return old;
}

// A second look at a word that nobody has written since waits until somebody writes, or until nobody else can run.
inline uint32_t load_acquire(const uint32_t *p, uintptr_t pc) {
  maybe_preempt();
  Fiber *me = current;
  check_atomic(reinterpret_cast<uintptr_t>(p), 4, MN_EMU_READ, pc);
  if (me->spun == p && me->spun_value == *p && me->writes_seen == E->writes) {
    set_waiting(me, Wait::parked, Op::load_acquire, pc);
    ++E->parked;
    give_way();
    check_atomic(reinterpret_cast<uintptr_t>(p), 4, MN_EMU_READ, pc);
  }
  clocks_acquire(p, asked(MN_EMU_RELAXED_LOAD));
  me->spun = p, me->spun_value = *p, me->writes_seen = E->writes;
  return me->spun_value;
}

inline void store_release(uint32_t *p, uint32_t v, uintptr_t pc) {
  maybe_preempt();
  check_atomic(reinterpret_cast<uintptr_t>(p), 4, MN_EMU_WRITE, pc);
  clocks_release(p, asked(MN_EMU_RELAXED_STORE), false);
  *p = v;
  wrote();
}

inline void set_once(uint64_t *p, uint64_t word, uintptr_t pc) {
  check_atomic(reinterpret_cast<uintptr_t>(p), 8, MN_EMU_WRITE, pc);
  if (!*p) *p = word;
  wrote();
}

inline void pause_fiber(uintptr_t pc) {
  set_waiting(current, Wait::paused, Op::pause, pc);
  ++E->paused;
  give_way();
}

}  // namespace emu
