// How workers go through a network together: shares, counters, time stamps.
//
// Between two barriers every worker has a share of the work. A share belongs to whoever takes it first. Its own worker
// does so at once, unless the system has put that worker off its processor, or it has not woken up yet; then one that
// waits for it takes the share in its place, and the late one finds everything taken and hurries after the others. What
// a share computes hangs on its number alone, so the answers are the same.
#pragma once
#include "mononn.h"
#include <linux/futex.h>
#include <sched.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

namespace mn {

static inline void relax() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

// A worker's lines in the sync block. The first: how many of its shares are done since the block was made, and how many
// workers sleep until there are more. The second, which nobody polls: how many are taken.
struct Flag {
  uint32_t reached, sleepers;
};
static inline Flag *flag(const mononn_call *c, int w) { return (Flag *)(c->sync + (long)w * MONONN_CACHE_LINE); }
static inline uint32_t *taken(const mononn_call *c, int w) {
  return (uint32_t *)(c->sync + ((long)c->workers + w) * MONONN_CACHE_LINE);
}
static inline bool has_reached(const Flag *f, uint32_t target) {
  return (int32_t)(__atomic_load_n(&f->reached, __ATOMIC_ACQUIRE) - target) >= 0;
}
static inline void futex(uint32_t *word, int operation, uint32_t value) {
  syscall(SYS_futex, word, operation | FUTEX_PRIVATE_FLAG, value, nullptr, nullptr, 0);
}
constexpr long PROMPT = 200;  // looks, a fraction of a microsecond: one that runs has taken its share by then
constexpr long SPINS = 3000;  // some tens of microseconds: longer than workers differ, shorter than a time slice

// Time stamps of shares: a phase begins before the barrier in front of it, if there is one and its own worker waited.
struct Trace {
  const mononn_call *c;
  long phases;
  uint64_t since = 0;  // when this worker began to wait, where stamps are wanted
  static uint64_t now() {
    timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return uint64_t(t.tv_sec) * 1000000000u + uint64_t(t.tv_nsec);
  }
  // A worker that comes late may look while the caller prepares another run.
  bool wanted() const { return __builtin_expect(__atomic_load_n(&c->trace, __ATOMIC_RELAXED) != nullptr, 0); }
  void stamp(int w, long phase, int point, uint64_t time) {
    if (phase < phases) c->trace[(w * phases + phase) * 3 + point] = time;
  }
  void wait() { since = wanted() ? now() : 0; }
  void begin(int w, long phase) {
    if (wanted()) begun(w, phase);
  }
  void end(int w, long phase) {
    if (wanted()) ended(w, phase);
  }
  __attribute__((noinline, cold)) void begun(int w, long phase) {
    const uint64_t time = now();
    stamp(w, phase, 0, since ? since : time);
    stamp(w, phase, 1, time);
    since = 0;
  }
  __attribute__((noinline, cold)) void ended(int w, long phase) { stamp(w, phase, 2, now()); }
};

// What a worker does between two barriers. It and what follows are called, not inlined: a network has hundreds.
struct Share {
  const void *known;
  void (*of)(const void *known, int w, Trace &trace);
  template <class Does> explicit Share(const Does &does)
      : known(&does), of([](const void *f, int w, Trace &trace) { (*(const Does *)f)(w, trace); }) {}
};

// The ``target``-th share of worker w, done by whoever takes it.
static __attribute__((noinline, unused)) void take(const mononn_call *c, int w, uint32_t target, Trace &trace, const Share &share) {
  uint32_t before = target - 1;
  if (!__atomic_compare_exchange_n(taken(c, w), &before, target, false, __ATOMIC_ACQ_REL, __ATOMIC_RELAXED)) return;
  share.of(share.known, w, trace);
  Flag *f = flag(c, w);
  __atomic_store_n(&f->reached, target, __ATOMIC_SEQ_CST);
  if (__atomic_load_n(&f->sleepers, __ATOMIC_SEQ_CST)) futex(&f->reached, FUTEX_WAKE, INT32_MAX);
}
// A worker that was put off its core leaves the others spinning in its way: they sleep, so that it gets one of theirs.
static __attribute__((noinline, unused)) void sleep_until(Flag *f, uint32_t target) {
  __atomic_fetch_add(&f->sleepers, 1, __ATOMIC_SEQ_CST);
  for (uint32_t now; (int32_t)((now = __atomic_load_n(&f->reached, __ATOMIC_SEQ_CST)) - target) < 0;)
    futex(&f->reached, FUTEX_WAIT, now);
  __atomic_fetch_sub(&f->sleepers, 1, __ATOMIC_SEQ_CST);
}
// Until every worker's ``target``-th share is done.
static __attribute__((noinline, unused)) void await(const mononn_call *c, int w, uint32_t target, const Trace &trace, const Share &share) {
  for (int other = 0; other < (int)c->workers; ++other) {
    Flag *f = flag(c, other);
    for (long n = 0; !has_reached(f, target); ++n) {
      if (n == PROMPT && other != w) {
        Trace fresh{c, trace.phases};
        take(c, other, target, fresh, share);
      }
      if (n > SPINS) sleep_until(f, target);
      else if (n > PROMPT) relax();
    }
  }
}
// Everybody's ``target``-th shares, and a barrier behind them.
template <class Does> static inline void together(const mononn_call *c, int w, uint32_t target, Trace &trace, const Does &does) {
  const Share share(does);
  take(c, w, target, trace, share);
  trace.wait();
  await(c, w, target, trace, share);
}
// The last ones of a run: the caller, worker 0, stays until all are done.
template <class Does> static inline void finish(const mononn_call *c, int w, uint32_t target, Trace &trace, const Does &does) {
  const Share share(does);
  take(c, w, target, trace, share);
  if (w == 0) await(c, w, target, trace, share);
}

static inline uint64_t *counter(const mononn_call *c, long i) {
  return (uint64_t *)((unsigned char *)c->counters + i * MONONN_CACHE_LINE);
}
static inline void signal(const mononn_call *c, long i, uint64_t add) {
  __atomic_fetch_add(counter(c, i), add, __ATOMIC_RELEASE);
}
static inline void wait(const mononn_call *c, long i, uint64_t at_least) {
  for (long n = 0; __atomic_load_n(counter(c, i), __ATOMIC_ACQUIRE) < at_least; ++n) {
    if (n > SPINS) sched_yield();
    else if (n > PROMPT) relax();
  }
}

}  // namespace mn
