// Switching between fibers: callee-saved registers go to the old stack, the new ones come from the new stack.
#pragma once
#include "state.hpp"

extern "C" void mn_emu_switch(void **save, void *load);
extern "C" void mn_emu_fiber_main(void);

#if defined(__x86_64__)
asm(R"(
.text
.globl mn_emu_switch
.hidden mn_emu_switch
.type mn_emu_switch,@function
mn_emu_switch:
  pushq %rbp
  pushq %rbx
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
  movq %rsp, (%rdi)
  movq %rsi, %rsp
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %rbx
  popq %rbp
  ret
.size mn_emu_switch,.-mn_emu_switch
)");
#elif defined(__aarch64__)
asm(R"(
.text
.globl mn_emu_switch
.hidden mn_emu_switch
.type mn_emu_switch,%function
mn_emu_switch:
  sub sp, sp, #160
  stp x19, x20, [sp, #0]
  stp x21, x22, [sp, #16]
  stp x23, x24, [sp, #32]
  stp x25, x26, [sp, #48]
  stp x27, x28, [sp, #64]
  stp x29, x30, [sp, #80]
  stp d8, d9, [sp, #96]
  stp d10, d11, [sp, #112]
  stp d12, d13, [sp, #128]
  stp d14, d15, [sp, #144]
  mov x9, sp
  str x9, [x0]
  mov sp, x1
  ldp x19, x20, [sp, #0]
  ldp x21, x22, [sp, #16]
  ldp x23, x24, [sp, #32]
  ldp x25, x26, [sp, #48]
  ldp x27, x28, [sp, #64]
  ldp x29, x30, [sp, #80]
  ldp d8, d9, [sp, #96]
  ldp d10, d11, [sp, #112]
  ldp d12, d13, [sp, #128]
  ldp d14, d15, [sp, #144]
  add sp, sp, #160
  ret
.size mn_emu_switch,.-mn_emu_switch
)");
#else
#error "the emulator switches stacks on x86_64 and aarch64 only"
#endif

namespace emu {

// A stack from which mn_emu_switch returns into mn_emu_fiber_main.
inline void *fresh_stack(unsigned char *top) {
  uint64_t *p = reinterpret_cast<uint64_t *>(top);
#if defined(__x86_64__)
  *--p = 0;  // alignment as after a call
  *--p = reinterpret_cast<uint64_t>(&mn_emu_fiber_main);
  for (int i = 0; i < 6; ++i) *--p = 0;
#else
  p -= 20;
  memset(p, 0, 160);
  p[11] = reinterpret_cast<uint64_t>(&mn_emu_fiber_main);
#endif
  return p;
}

inline void switch_to(Fiber *fiber) {
  Fiber *old = current;
  ++E->result->switches;
  current = fiber;
  mn_emu_switch(&old->stack_pointer, fiber->stack_pointer);
}

inline void switch_to_scheduler() {
  Fiber *old = current;
  current = nullptr;
  mn_emu_switch(&old->stack_pointer, E->scheduler);
}

}  // namespace emu
