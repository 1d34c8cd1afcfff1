/* Persistent workers around generated functions; see mononn_host.h. C11 that is C++20 as well, pthreads and futexes. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "mononn_host.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/futex.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stddef.h>
#include <stdalign.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "mononn.h"

static_assert(sizeof(mononn_call) + sizeof(uint32_t) <= MONONN_CACHE_LINE, "the call and its `go` share two lines");

#define HUGE_PAGE ((uint64_t)2 << 20)
#define PAGE ((uint64_t)4096)
#ifndef MADV_WIPEONFORK
#define MADV_WIPEONFORK 18
#endif

/* `go` is what the workers wait for: twice the launch's number, plus one while some worker sleeps on it. A launch's
 * only message is one exchange of this word; the old value says whether anybody must be woken. A run is one launch, or
 * one for each phase that more than one worker has tasks in. */
#define SLEEPING 1u
#define SPINS_PER_LOOK 64       /* steps between two looks at the clock */
#define SPINS_BEFORE_YIELD 512  /* about 25 microseconds; a yield with nobody to yield to costs half a microsecond */
#define SPINS_BEFORE_SLEEP 1024 /* some tens of microseconds: longer than workers differ, shorter than a time slice */

typedef struct worker {
  alignas(MONONN_CACHE_LINE) uint32_t done; /* the last launch this worker has finished */
  uint32_t awaited;                          /* the caller sleeps until `done` changes */
  int index;
  mononn_host *host;
  pthread_t thread;
} worker;

/* A function with what it counts its own runs on. */
typedef struct counted {
  mononn_function function;
  uint64_t epoch;
  unsigned char *sync;
  uint64_t *counters;
} counted;

struct mononn_host {
  alignas(MONONN_CACHE_LINE) mononn_call call;
  uint32_t go; /* on the line of the call's tail, which every worker reads anyway */
  alignas(MONONN_CACHE_LINE) pthread_mutex_t turn;
  mononn_entry entry;    /* of the function that runs */
  const uint32_t *steps;
  counted *current;
  counted *functions;
  uint64_t function_count;
  uint64_t error;
  uint64_t spin_nanoseconds;
  uint64_t mapped_bytes;
  uint32_t announced; /* `go` of the last launch that the workers were told */
  worker *crew;
  const volatile uint32_t *alive; /* 1 here, 0 in a forked child */
  uint32_t workers;
  int crowded;     /* more workers than processors: let others run instead of spinning; nobody has a place */
  int home;        /* the caller's place */
  cpu_set_t taken; /* the persistent workers' places */
  int stop;
};

static inline void pause_cpu(void) {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  __asm__ volatile("yield");
#endif
}

static uint64_t now(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static void futex(uint32_t *word, int operation, uint32_t value) {
  syscall(SYS_futex, word, operation | FUTEX_PRIVATE_FLAG, value, NULL, NULL, 0);
}

static inline uint64_t round_up(uint64_t value, uint64_t unit) { return (value + unit - 1) / unit * unit; }

static inline uint32_t run_number(uint32_t go) { return go & ~SLEEPING; }

/* One step of a wait: a pause at first, then a yield, so that a worker on the same processor gets its turn. */
static inline void relax(const mononn_host *host, uint32_t spins) {
  if (host->crowded || spins > SPINS_BEFORE_YIELD) sched_yield();
  else pause_cpu();
}

/* The next `go` after `seen`: spins a while, then sleeps. */
static uint32_t await_run(mononn_host *host, uint32_t seen) {
  uint32_t spins = 0;
  for (uint64_t deadline = UINT64_MAX, time = 0; time < deadline;) {
    for (int i = 0; i < SPINS_PER_LOOK; i++) {
      const uint32_t go = __atomic_load_n(&host->go, __ATOMIC_ACQUIRE);
      if (run_number(go) != seen) return run_number(go);
      relax(host, spins++);
    }
    time = now();
    if (deadline == UINT64_MAX) deadline = time + host->spin_nanoseconds;
  }
  for (;;) {
    uint32_t go = seen;
    __atomic_compare_exchange_n(&host->go, &go, seen | SLEEPING, 0, __ATOMIC_ACQUIRE, __ATOMIC_ACQUIRE);
    if (run_number(go) != seen) return run_number(go);
    futex(&host->go, FUTEX_WAIT, seen | SLEEPING);
    go = __atomic_load_n(&host->go, __ATOMIC_ACQUIRE);
    if (run_number(go) != seen) return run_number(go);
  }
}

static void *worker_main(void *argument) {
  worker *self = (worker *)argument;
  mononn_host *host = self->host;
  for (uint32_t seen = 0;;) {
    seen = await_run(host, seen);
    if (__atomic_load_n(&host->stop, __ATOMIC_RELAXED)) return NULL;
    host->entry(&host->call, self->index);
    __atomic_store_n(&self->done, seen, __ATOMIC_SEQ_CST);
    if (__atomic_load_n(&self->awaited, __ATOMIC_SEQ_CST)) futex(&self->done, FUTEX_WAKE, 1);
  }
}

/* Until every worker has left the function. One that was put off its core gets the caller's: the caller sleeps after a
 * while. */
static void await_crew(mononn_host *host) {
  const uint32_t go = host->announced;
  for (uint32_t i = 1; i < host->workers; i++) {
    worker *member = &host->crew[i];
    uint32_t spins = host->crowded ? SPINS_BEFORE_SLEEP : 0;
    while (__atomic_load_n(&member->done, __ATOMIC_ACQUIRE) != go && spins++ < SPINS_BEFORE_SLEEP) pause_cpu();
    if (spins < SPINS_BEFORE_SLEEP) continue;
    __atomic_store_n(&member->awaited, 1, __ATOMIC_SEQ_CST);
    for (uint32_t done; (done = __atomic_load_n(&member->done, __ATOMIC_SEQ_CST)) != go;) futex(&member->done, FUTEX_WAIT, done);
    __atomic_store_n(&member->awaited, 0, __ATOMIC_SEQ_CST);
  }
}

static void announce(mononn_host *host) {
  host->announced += 2;
  const uint32_t before = __atomic_exchange_n(&host->go, host->announced, __ATOMIC_ACQ_REL);
  if (before & SLEEPING) futex(&host->go, FUTEX_WAKE, INT_MAX);
}

/* Whether a processor is the first of its core's hardware threads (yes where the machine does not say). */
static int leads_core(int processor) {
  char path[96];
  snprintf(path, sizeof path, "/sys/devices/system/cpu/cpu%d/topology/thread_siblings_list", processor);
  const int file = open(path, O_RDONLY | O_CLOEXEC);
  char list[16]; /* "0,64\n" or "0-1\n" */
  const ssize_t length = file < 0 ? -1 : read(file, list, sizeof list);
  if (file >= 0) close(file);
  int first = 0, digits = 0;
  while (digits < length && list[digits] >= '0' && list[digits] <= '9') first = first * 10 + (list[digits++] - '0');
  return digits == 0 || first == processor;
}

/* A place for every worker: whole cores first, and the next session's after this one's. Left to itself the scheduler
 * may keep two workers on one processor for good, as they take turns sleeping, with another idle beside it. */
static void find_places(mononn_host *host, const cpu_set_t *allowed, int *places) {
  static uint32_t next;
  int order[CPU_SETSIZE], count = 0;
  for (int others = 0; others < 2; others++)
    for (int p = 0; p < CPU_SETSIZE; p++)
      if (CPU_ISSET(p, allowed) && leads_core(p) != others) order[count++] = p;
  const uint32_t first = __atomic_fetch_add(&next, host->workers, __ATOMIC_SEQ_CST);
  CPU_ZERO(&host->taken);
  for (uint32_t i = 0; i < host->workers; i++) {
    places[i] = order[(first + i) % (uint32_t)count];
    if (i) CPU_SET(places[i], &host->taken);
  }
  host->home = places[0];
}

/* The caller moves out of a persistent worker's place; it stays free to go anywhere else. */
static void make_room(const mononn_host *host) {
  const int here = sched_getcpu();
  cpu_set_t home, free;
  if (here < 0 || !CPU_ISSET(here, &host->taken) || sched_getaffinity(0, sizeof free, &free)) return;
  CPU_ZERO(&home);
  CPU_SET(host->home, &home);
  if (!sched_setaffinity(0, sizeof home, &home)) sched_setaffinity(0, sizeof free, &free);
}

/* Every worker enters the function once, or the caller alone. */
static void launch(mononn_host *host, int together) {
  if (together && host->workers > 1) announce(host);
  host->entry(&host->call, 0);
}

/* Makes a function the one that the workers enter next. One that comes late may still be in the last. */
static void choose(mononn_host *host, counted *chosen) {
  if (host->current == chosen) return;
  await_crew(host);
  host->current = chosen;
  host->entry = chosen->function.entry;
  host->steps = chosen->function.steps;
  host->call.sync = chosen->sync;
  host->call.counters = chosen->counters;
}

MONONN_HOST_API uint64_t mononn_host_run(const mononn_binding *binding) {
  mononn_host *host = binding->host;
  if (!*host->alive) return MONONN_HOST_FORKED;
  if (binding->function >= host->function_count) return MONONN_HOST_UNKNOWN;
  pthread_mutex_lock(&host->turn);
  uint64_t error = MONONN_HOST_STOPPED;
  if (!host->stop) {
    mononn_call *call = &host->call;
    choose(host, &host->functions[binding->function]);
    /* Unchanged fields stay unwritten: the workers are polling their cache line. A worker that is late for the last run
     * takes a share of this one as soon as it finds the epoch; of what changes it reads no more before than whether
     * there is a trace. */
    if (call->inputs != binding->inputs) call->inputs = binding->inputs;
    if (call->outputs != binding->outputs) call->outputs = binding->outputs;
    if (call->trace != binding->trace) __atomic_store_n(&call->trace, binding->trace, __ATOMIC_RELAXED);
    __atomic_store_n(&call->epoch, ++host->current->epoch, __ATOMIC_RELEASE);
    if (host->workers > 1 && !host->crowded) make_room(host);
    if (!host->steps) launch(host, 1);
    for (uint32_t i = 1; host->steps && i <= host->steps[0]; i++) {
      call->step = i;
      launch(host, host->steps[i] != 0);
      await_crew(host);
    }
    error = host->error;
    if (error) __atomic_store_n(&host->error, 0, __ATOMIC_RELAXED);
  }
  pthread_mutex_unlock(&host->turn);
  return error;
}

MONONN_HOST_API void mononn_host_stop(mononn_host *host) {
  if (!*host->alive) return;
  pthread_mutex_lock(&host->turn);
  if (!host->stop) {
    __atomic_store_n(&host->stop, 1, __ATOMIC_RELAXED); /* one that comes late may look already */
    announce(host);
    for (uint32_t i = 1; i < host->workers; i++) pthread_join(host->crew[i].thread, NULL);
  }
  pthread_mutex_unlock(&host->turn);
}

MONONN_HOST_API void mononn_host_destroy(mononn_host *host) {
  mononn_host_stop(host);
  munmap((void *)host->alive, PAGE);
  mononn_memory_destroy(host, host->mapped_bytes);
}

MONONN_HOST_API void *mononn_memory_create(uint64_t bytes) {
  const uint64_t size = round_up(bytes, HUGE_PAGE);
  char *raw = (char *)mmap(NULL, size + HUGE_PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (raw == MAP_FAILED) return NULL;
  char *start = (char *)round_up((uintptr_t)raw, HUGE_PAGE);
  if (start != raw) munmap(raw, (size_t)(start - raw));
  munmap(start + size, (size_t)(raw + HUGE_PAGE - start));
  madvise(start, size, MADV_HUGEPAGE); /* a wish: small pages work as well */
  memset(start, 0, bytes);             /* pages are there before the first run */
  return start;
}

MONONN_HOST_API void mononn_memory_destroy(void *memory, uint64_t bytes) { munmap(memory, round_up(bytes, HUGE_PAGE)); }

static const uint32_t *alive_page(void) {
  uint32_t *page = (uint32_t *)mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (page == MAP_FAILED) return NULL;
  madvise(page, PAGE, MADV_WIPEONFORK); /* Linux 4.14; without it a fork goes unnoticed */
  *page = 1;
  return page;
}

static int start_crew(mononn_host *host, const int *places) {
  sigset_t all, old;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &old); /* signals stay the caller's */
  int failure = 0;
  const uint32_t wanted = host->workers;
  for (host->workers = 1; host->workers < wanted;) {
    worker *w = &host->crew[host->workers];
    w->index = (int)host->workers;
    w->host = host;
    failure = pthread_create(&w->thread, NULL, worker_main, w);
    if (failure) break;
    pthread_setname_np(w->thread, "mononn-worker");
    if (!host->crowded) {
      cpu_set_t place;
      CPU_ZERO(&place);
      CPU_SET(places[host->workers], &place);
      pthread_setaffinity_np(w->thread, sizeof place, &place);
    }
    host->workers++;
  }
  pthread_sigmask(SIG_SETMASK, &old, NULL);
  return failure;
}

static uint64_t lines_of(const mononn_plan *plan, const mononn_function *function) {
  return 2 * (uint64_t)plan->workers + function->counters;
}

MONONN_HOST_API mononn_host *mononn_host_create(const mononn_plan *plan, const mononn_function *functions, const void *weights) {
  if (plan->abi_version != MONONN_ABI_VERSION || !plan->workers || !plan->functions) {
    errno = EINVAL;
    return NULL;
  }
  const uint64_t workers = plan->workers;
  const uint64_t crew = round_up(sizeof(mononn_host), PAGE);
  const uint64_t table = crew + workers * sizeof(worker);
  const uint64_t sync = round_up(table + plan->functions * sizeof(counted), MONONN_CACHE_LINE);
  uint64_t lines = 0;
  for (uint64_t i = 0; i < plan->functions; i++) lines += lines_of(plan, &functions[i]);
  const uint64_t arena = round_up(sync + lines * MONONN_CACHE_LINE, PAGE);
  const uint64_t scratch = arena + round_up(plan->arena_bytes, PAGE);
  const uint64_t bytes = scratch + workers * plan->scratch_bytes;
  const uint32_t *alive = alive_page();
  unsigned char *memory = alive ? (unsigned char *)mononn_memory_create(bytes) : NULL;
  if (!memory) {
    if (alive) munmap((void *)alive, PAGE);
    errno = ENOMEM;
    return NULL;
  }

  mononn_host *host = (mononn_host *)memory;
  host->call.abi_version = MONONN_ABI_VERSION;
  host->call.workers = plan->workers;
  host->call.arena = memory + arena;
  host->call.scratch = memory + scratch;
  host->call.weights = (const unsigned char *)weights;
  host->call.error = &host->error;
  pthread_mutex_init(&host->turn, NULL);
  host->functions = (counted *)(memory + table);
  host->function_count = plan->functions;
  unsigned char *line = memory + sync;
  for (uint64_t i = 0; i < plan->functions; i++) {
    uint64_t *counters = (uint64_t *)(line + 2 * workers * MONONN_CACHE_LINE);
    counted *one = &host->functions[i];
    one->function = functions[i];
    one->sync = line;
    one->counters = counters;
    line += lines_of(plan, &functions[i]) * MONONN_CACHE_LINE;
  }
  host->spin_nanoseconds = plan->spin_nanoseconds;
  host->mapped_bytes = bytes;
  host->crew = (worker *)(memory + crew);
  host->alive = alive;
  host->workers = plan->workers;
  cpu_set_t allowed;
  int places[CPU_SETSIZE] = {0};
  host->crowded = sched_getaffinity(0, sizeof allowed, &allowed) || CPU_COUNT(&allowed) < (int)workers;
  if (!host->crowded) find_places(host, &allowed, places);
  const int failure = start_crew(host, places);
  if (!failure) return host;
  mononn_host_destroy(host);
  errno = failure;
  return NULL;
}
