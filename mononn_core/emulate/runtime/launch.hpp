// One launch: memory for stacks and shared memory, blocks, fibers; signals become events.
#pragma once
#include "primitives.hpp"

extern "C" __attribute__((visibility("hidden"))) const char __ehdr_start[];
extern "C" __attribute__((visibility("hidden"))) const char _end[];

extern "C" void mn_emu_fiber_main() {
  const mn_emu_request *r = E->request;
  reinterpret_cast<void (*)(const void *, uint32_t)>(r->entry)(reinterpret_cast<const void *>(r->words), r->iteration);
  Fiber *me = current;
  set_waiting(me, Wait::exited, Op::exit, 0);
  --E->live, --me->block->live, ++E->progress;
  if (!me->block->live) stages_end(me->block);
  me->warp->live &= ~(1u << me->lane);
  if (!me->warp->live) bank_meet(me->warp);
  // lanes that wait for this one, or a block barrier that it will never reach
  for (int lane = 0; lane < kLanes; ++lane) {
    Fiber *other = &me->warp->fibers[lane];
    if (other->wait == Wait::warp || other->wait == Wait::block)
      stop_with(MN_EMU_CONVERGENCE, 0, 0, 0, other->site, 0, other->op, actor(me, 0, 0, Op::exit));
  }
  give_way();
  __builtin_unreachable();
}

namespace emu {

static unsigned char *map(size_t bytes) {
  void *p = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  return p == MAP_FAILED ? nullptr : static_cast<unsigned char *>(p);
}

static size_t shared_stride(const mn_emu_request *r) { return ((r->shared_bytes + 4095u) & ~4095ull) + 4096; }

static bool prepare(Emulator *e, const mn_emu_request *r) {
  e->block_count = r->blocks, e->threads = r->threads;
  e->warps_per_block = r->threads / kLanes, e->warp_count = r->blocks * e->warps_per_block;
  e->fiber_count = e->live = r->blocks * r->threads;
  e->ready_words = (e->warp_count + 63) / 64;
  size_t stride = e->shared_stride = shared_stride(r);
  e->stacks = reinterpret_cast<unsigned char *>(r->stacks), e->stacks_bytes = r->stacks_bytes;
  e->shared_bytes = stride * r->blocks, e->shared = map(e->shared_bytes);
  e->fibers = static_cast<Fiber *>(calloc(e->fiber_count, sizeof(Fiber)));
  e->warps = static_cast<Warp *>(calloc(e->warp_count, sizeof(Warp)));
  e->blocks = static_cast<Block *>(calloc(e->block_count, sizeof(Block)));
  e->ready = static_cast<uint64_t *>(calloc(e->ready_words, 8));
  if (!e->shared || !e->fibers || !e->warps || !e->blocks || !e->ready) return false;
  if (e->stacks_bytes < e->fiber_count * kStackBytes) return false;
  memset(e->shared, 0xff, stride * r->blocks);  // NaN in every type
  for (uint32_t b = 0; b < e->block_count; ++b)
    e->blocks[b] = {e->warps + b * e->warps_per_block, static_cast<int>(b), e->shared + b * stride, 0, r->threads, {}, {}};
  for (uint32_t w = 0; w < e->warp_count; ++w) {
    Warp *warp = &e->warps[w];
    warp->fibers = e->fibers + w * kLanes, warp->block = &e->blocks[w / e->warps_per_block];
    warp->index = static_cast<int>(w), warp->ready = warp->live = ~0u;
    e->ready[w >> 6] |= 1ull << (w & 63);
  }
  for (uint32_t i = 0; i < e->fiber_count; ++i) {
    Fiber *f = &e->fibers[i];
    f->stack_pointer = fresh_stack(e->stacks + (i + 1) * kStackBytes);
    f->warp = &e->warps[i / kLanes], f->block = f->warp->block;
    f->block_index = f->block->index;
    f->thread = static_cast<int>(i % r->threads), f->lane = static_cast<int>(i % kLanes);
  }
  return true;
}

static void finish(Emulator *e) {
  if (e->fibers) clocks_end();
  for (uint32_t i = 0; e->fibers && i < e->fiber_count; ++i) {
    e->fibers[i].copies.release();
    e->fibers[i].bank_log.release();
  }
  for (uint32_t b = 0; e->blocks && b < e->block_count; ++b) {
    for (Stage &stage : e->blocks[b].stages) drop(stage.view), stage.copies.release();
    e->blocks[b].stages.release();
  }
  if (e->shared) munmap(e->shared, e->shared_bytes);
  e->shared = nullptr;
  free(e->fibers), free(e->warps), free(e->blocks), free(e->ready);
  e->fibers = nullptr, e->warps = nullptr, e->blocks = nullptr, e->ready = nullptr;
}

static pthread_t launching;

static void on_signal(int signal, siginfo_t *info, void *) {
  if (!pthread_equal(pthread_self(), launching)) {
    if (signal == SIGVTALRM) pthread_kill(launching, SIGVTALRM);
    else ::signal(signal, SIG_DFL);  // not ours: the access happens again
    return;
  }
  bool time = signal == SIGVTALRM;
  if (time && !E->expired) {  // the first time the runtime stops by itself, the second time it has not
    E->expired = true;
    return;
  }
  report(time ? MN_EMU_TIME : MN_EMU_CRASH, time ? 0 : reinterpret_cast<uint64_t>(info->si_addr), 0,
         static_cast<uint64_t>(signal), actor(current, 0, 0, current ? current->op : Op::none), nobody());
  longjmp(E->out, 1);
}

static Emulator state;

constexpr int kSignals[] = {SIGSEGV, SIGBUS, SIGILL, SIGFPE, SIGVTALRM};
constexpr int kSignalCount = sizeof kSignals / sizeof *kSignals;

}  // namespace emu

// Returns 0 once the launch ran or was stopped (result->events says which), 1 where there is no memory for it.
// Stacks for so many threads, to be shared by all objects of a process; 0: no memory. A guard page lies below each, or
// where the kernel would not have so many pieces of memory below every second, third, ...: all threads run one code.
EXPORT uint64_t mn_emu_new_stacks(uint64_t threads, uint64_t *bytes) {
  *bytes = threads * kStackBytes;
  unsigned char *stacks = map(*bytes);
  const size_t apart = (threads + kMostGuards - 1) / kMostGuards * kStackBytes;
  for (size_t i = 0; stacks && i < *bytes; i += apart)
    if (mprotect(stacks + i, kGuardBytes, PROT_NONE)) {
      munmap(stacks, *bytes);
      stacks = nullptr;
    }
  return reinterpret_cast<uint64_t>(stacks);
}
EXPORT void mn_emu_free_stacks(uint64_t stacks, uint64_t bytes) { munmap(reinterpret_cast<void *>(stacks), bytes); }

// Forgets what earlier launches have written.
EXPORT void mn_emu_reset() { shadow_reset(); }

EXPORT int mn_emu_launch(const mn_emu_request *request, mn_emu_result *result) {
  E = &state;
  current = nullptr;
  memset(result, 0, sizeof *result);
  result->image = reinterpret_cast<uint64_t>(__ehdr_start);
  result->image_bytes = static_cast<uint64_t>(_end - __ehdr_start);
  E->request = request, E->result = result, E->stopped = false, E->expired = false;
  E->random = request->seed * 2654435769u + 88172645463325252ull;
  E->writes = E->progress = E->time = 0, E->parked = E->paused = 0;
  if (!prepare(E, request) || !shadow_begin()) {
    finish(E);
    return 1;
  }
  clocks_begin();
  result->shared = reinterpret_cast<uint64_t>(E->shared), result->shared_stride = E->shared_stride;

  static unsigned char alternative[64 << 10];
  stack_t stack{}, old_stack{};
  stack.ss_sp = alternative, stack.ss_size = sizeof alternative;
  struct sigaction action {}, old[kSignalCount];
  action.sa_sigaction = on_signal, action.sa_flags = SA_SIGINFO | SA_ONSTACK | SA_NODEFER;
  launching = pthread_self();
  sigaltstack(&stack, &old_stack);
  for (int i = 0; i < kSignalCount; ++i) sigaction(kSignals[i], &action, &old[i]);
  itimerval limit{}, none{};
  limit.it_interval.tv_usec = 250000;
  limit.it_value.tv_sec = static_cast<time_t>(request->milliseconds / 1000);
  limit.it_value.tv_usec = static_cast<suseconds_t>(request->milliseconds % 1000 * 1000);
  setitimer(ITIMER_VIRTUAL, &limit, nullptr);
  if (!setjmp(E->out)) run_all();
  setitimer(ITIMER_VIRTUAL, &none, nullptr);
  for (int i = 0; i < kSignalCount; ++i) sigaction(kSignals[i], &old[i], nullptr);
  if (old_stack.ss_flags != SS_DISABLE && !old_stack.ss_sp) old_stack.ss_flags = SS_DISABLE;
  sigaltstack(&old_stack, nullptr);
  current = nullptr;
  finish(E);
  return 0;
}
