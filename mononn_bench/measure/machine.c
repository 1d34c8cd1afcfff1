/* What a machine gives: streams, caches by size, peaks by instruction set, barriers, hand-offs, wake-ups, system calls,
 * page faults, threads. After Comm|Scope's idea (C. Pearson et al., "Evaluating Characteristics of CUDA Communication
 * Primitives on High-Bandwidth Interconnects", ICPE 2019) of measuring a machine's primitives by themselves, on a CPU.
 *
 * machine TRIALS LAST_LEVEL_BYTES FEATURES CORE...   FEATURES: the kernel's flags with a comma before and after each
 * One line a reading: what, variant, workers, unit and its trials, separated by tabs.
 */
#define _GNU_SOURCE
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>
#include <linux/futex.h>
#if defined(__x86_64__)
#include <emmintrin.h>
#endif

enum { LINE = 64, MOST = 1024, SMALL = 4096, HUGE_PAGE = 2 << 20, ROUNDS = 20000 };
static const double ENOUGH = 4e-3; /* seconds of one trial */

static int cores[MOST], core_count, trials;
static size_t last_level;
static const char *features;

static double now(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static int has(const char *name) {
  char text[64];
  snprintf(text, sizeof text, ",%s,", name);
  return strstr(features, text) != NULL;
}

static void pause_(void) {
#if defined(__x86_64__)
  _mm_pause();
#elif defined(__aarch64__)
  __asm__ volatile("yield");
#endif
}

static void pin(int worker) {
  cpu_set_t set;
  CPU_ZERO(&set);
  CPU_SET(cores[worker], &set);
  sched_setaffinity(0, sizeof set, &set);
}

static void begin(const char *what, const char *variant, int workers, const char *unit) {
  printf("%s\t%s\t%d\t%s\t", what, variant, workers, unit);
}

static void value(int trial, double v) { printf("%s%.6e", trial ? " " : "", v); }

static void end(void) {
  printf("\n");
  fflush(stdout);
}

/* ---- work that some workers do side by side */

typedef void (*Work)(long n, int worker, void *argument);

typedef struct {
  Work work;
  void *argument;
  long n;
  int worker;
  double start, stop;
  atomic_int *ready;
  int workers;
} Job;

static void *do_job(void *pointer) {
  Job *job = pointer;
  pin(job->worker);
  job->work(1, job->worker, job->argument); /* touches its memory, wakes its units */
  atomic_fetch_add(job->ready, 1);
  while (atomic_load(job->ready) < job->workers) pause_();
  job->start = now();
  job->work(job->n, job->worker, job->argument);
  job->stop = now();
  return NULL;
}

/* Seconds from the first start to the last end. */
static double together(Work work, void *argument, long n, int workers) {
  static Job jobs[MOST];
  pthread_t threads[MOST];
  atomic_int ready = 0;
  for (int w = 0; w < workers; w++) {
    jobs[w] = (Job){work, argument, n, w, 0, 0, &ready, workers};
    if (pthread_create(&threads[w], NULL, do_job, &jobs[w])) exit(3);
  }
  double start = 1e300, stop = 0;
  for (int w = 0; w < workers; w++) {
    pthread_join(threads[w], NULL);
    if (jobs[w].start < start) start = jobs[w].start;
    if (jobs[w].stop > stop) stop = jobs[w].stop;
  }
  return stop - start;
}

/* Seconds of the shortest of three: a worker that had to wait for a core has filled no trial. */
static double shortest(Work work, void *argument, long n, int workers) {
  double least = together(work, argument, n, workers);
  for (int again = 0; again < 2; again++) {
    double taken = together(work, argument, n, workers);
    if (taken < least) least = taken;
  }
  return least;
}

/* How often `work` fills a trial. */
static long enough(Work work, void *argument, int workers) {
  long n = 1;
  while (shortest(work, argument, n, workers) < ENOUGH && n < (1L << 40)) n *= 2;
  return n;
}

/* Amount of all workers a second. */
static void rate(const char *what, const char *variant, const char *unit, Work work, void *argument, double amount,
                 int workers) {
  long n = enough(work, argument, workers);
  begin(what, variant, workers, unit);
  for (int t = 0; t < trials; t++)
    value(t, amount * (double)n * workers / together(work, argument, n, workers));
  end();
}

/* Seconds of one of `each` things that a call of `work` does. */
static void cost(const char *what, const char *variant, Work work, void *argument, double each, int workers) {
  long n = enough(work, argument, workers);
  begin(what, variant, workers, "s");
  for (int t = 0; t < trials; t++) value(t, together(work, argument, n, workers) / ((double)n * each));
  end();
}

/* ---- memory */

typedef struct {
  char *part[MOST], *other[MOST];
  size_t bytes;
} Memory;

static char *pages(size_t bytes, int huge) {
  size_t room = bytes + HUGE_PAGE;
  char *p = mmap(NULL, room, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (p == MAP_FAILED) exit(4);
  madvise(p, room, huge ? MADV_HUGEPAGE : MADV_NOHUGEPAGE);
  return (char *)(((uintptr_t)p + HUGE_PAGE - 1) / HUGE_PAGE * HUGE_PAGE);
}

static volatile uint64_t sink;

typedef uint64_t Vector __attribute__((vector_size(32)));

/* Four sums, so that additions do not wait for each other. */
static uint64_t read_once(const char *part, size_t bytes) {
  const Vector *p = (const Vector *)part;
  Vector a = {0}, b = {0}, c = {0}, d = {0};
  for (size_t k = 0; k < bytes / sizeof *p; k += 4) a += p[k], b += p[k + 1], c += p[k + 2], d += p[k + 3];
  a += b + c + d;
  return a[0] + a[3];
}

static void read_all(long n, int worker, void *argument) {
  Memory *m = argument;
  uint64_t sum = 0;
  for (long i = 0; i < n; i++) {
    sum += read_once(m->part[worker], m->bytes);
    __asm__ volatile("" : "+r"(sum)::"memory");
  }
  sink = sum;
}

static void write_all(long n, int worker, void *argument) {
  Memory *m = argument;
  for (long i = 0; i < n; i++) {
    uint64_t *p = (uint64_t *)m->part[worker], one = (uint64_t)i;
    for (size_t k = 0; k < m->bytes / 8; k++) p[k] = one;
    __asm__ volatile("" ::: "memory");
  }
}

static void copy_all(long n, int worker, void *argument) {
  Memory *m = argument;
  for (long i = 0; i < n; i++) {
    memcpy(m->other[worker], m->part[worker], m->bytes);
    __asm__ volatile("" ::: "memory");
  }
}

#if defined(__x86_64__)
static void write_past(long n, int worker, void *argument) {
  Memory *m = argument;
  for (long i = 0; i < n; i++) {
    __m128i *p = (__m128i *)m->part[worker], one = _mm_set1_epi32((int)i);
    for (size_t k = 0; k < m->bytes / 16; k++) _mm_stream_si128(p + k, one);
    _mm_sfence();
  }
}
#endif

static void streams(int workers, int huge) {
  static Memory m;
  const char *variant = huge ? "huge pages" : "small pages";
  m.bytes = last_level * 4 / (size_t)workers;
  if (m.bytes * (size_t)workers > (512u << 20)) m.bytes = (512u << 20) / (size_t)workers;
  m.bytes &= ~(size_t)4095;
  for (int w = 0; w < workers; w++) m.part[w] = pages(m.bytes, huge), m.other[w] = pages(m.bytes, huge);
  together(write_all, &m, 1, workers);
  rate("memory read", variant, "B/s", read_all, &m, (double)m.bytes, workers);
  rate("memory write", variant, "B/s", write_all, &m, (double)m.bytes, workers);
#if defined(__x86_64__)
  rate("memory write past caches", variant, "B/s", write_past, &m, (double)m.bytes, workers);
#endif
  rate("memory copy", variant, "B/s", copy_all, &m, (double)m.bytes, workers);
  for (int w = 0; w < workers; w++) munmap(m.part[w], m.bytes), munmap(m.other[w], m.bytes);
}

static void chase(long n, int worker, void *argument) {
  Memory *m = argument;
  void **p = (void **)m->part[worker];
  for (long i = 0; i < n * 1000; i++) p = *p;
  sink = (uint64_t)(uintptr_t)p;
}

/* One cycle through all lines in an order that no prefetcher guesses (Sattolo's algorithm). */
static void shuffle(char *base, size_t bytes) {
  size_t count = bytes / LINE;
  uint32_t *order = malloc(count * sizeof *order);
  uint64_t seed = 88172645463325252u;
  for (size_t i = 0; i < count; i++) order[i] = (uint32_t)i;
  for (size_t i = count - 1; i > 0; i--) {
    seed ^= seed << 13, seed ^= seed >> 7, seed ^= seed << 17;
    size_t k = seed % i;
    uint32_t kept = order[i];
    order[i] = order[k], order[k] = kept;
  }
  for (size_t i = 0; i < count; i++)
    *(void **)(base + (size_t)order[i] * LINE) = base + (size_t)order[(i + 1) % count] * LINE;
  free(order);
}

static void caches(void) {
  static Memory m;
  char *room = pages(last_level * 4, 1);
  m.part[0] = room;
  for (m.bytes = 16 << 10; m.bytes <= last_level * 4; m.bytes *= 2) {
    char variant[32];
    snprintf(variant, sizeof variant, "%zu KiB", m.bytes >> 10);
    memset(room, 1, m.bytes);
    rate("cache read", variant, "B/s", read_all, &m, (double)m.bytes, 1);
    shuffle(room, m.bytes);
    together(chase, &m, (long)(m.bytes / LINE / 1000 + 1), 1); /* once through all of it, as the core has it then */
    cost("load latency", variant, chase, &m, 1000, 1);
  }
  munmap(room, last_level * 4);
}

/* ---- peaks: each loop adds to twelve registers, so that neither latency nor the compiler stands in the way */

#define TWELVE(step) step(0) step(1) step(2) step(3) step(4) step(5) step(6) step(7) step(8) step(9) step(10) step(11)
#define PEAK(name, features, bytes, step)                                                   \
  typedef float name##_t __attribute__((vector_size(bytes)));                               \
  __attribute__((target(features))) static void name(long n, int worker, void *argument) {  \
    name##_t c[12] = {{0}}, a = {0}, b = {0}, t;                                            \
    (void)worker, (void)argument, (void)t;                                                  \
    name##_t c0 = c[0], c1 = c[1], c2 = c[2], c3 = c[3], c4 = c[4], c5 = c[5], c6 = c[6],    \
             c7 = c[7], c8 = c[8], c9 = c[9], c10 = c[10], c11 = c[11];                     \
    for (long i = 0; i < n * 1000; i++) { TWELVE(step) }                                    \
    c0 += c1 + c2 + c3 + c4 + c5 + c6 + c7 + c8 + c9 + c10 + c11;                           \
    sink = (uint64_t)c0[0];                                                                 \
  }

#if defined(__x86_64__)
#define ONE(text, k) __asm__ volatile(text : "+x"(c##k) : "x"(a), "x"(b));
#define TWO(text, k) __asm__ volatile(text : "+x"(c##k), "=&x"(t) : "x"(a), "x"(b));
#define ONE_Z(text, k) __asm__ volatile(text : "+v"(c##k) : "v"(a), "v"(b));
#define SSE(k) TWO("movaps %2, %1\n\tmulps %3, %1\n\taddps %1, %0", k)
#define FMA(k) ONE("vfmadd231ps %1, %2, %0", k)
#define WORDS(k) TWO("vpmaddwd %2, %3, %1\n\tvpaddd %1, %0, %0", k)
#define BYTES(k) TWO("vpmaddubsw %2, %3, %1\n\tvpmaddwd %1, %3, %1\n\tvpaddd %1, %0, %0", k)
#define SEVEN(k) TWO("vpmaddubsw %2, %3, %1\n\tvpaddw %1, %0, %0", k)
#define FMA_Z(k) ONE_Z("vfmadd231ps %1, %2, %0", k)
#define BF16_Z(k) ONE_Z("vdpbf16ps %1, %2, %0", k)
#define DOT_Z(k) ONE_Z("vpdpbusd %1, %2, %0", k)
#define DOT_Y(k) ONE("%{vex%} vpdpbusd %1, %2, %0", k)
PEAK(sse_floats, "sse2", 16, SSE)
PEAK(avx_floats, "avx2,fma", 32, FMA)
PEAK(avx_words, "avx2", 32, WORDS)
PEAK(avx_bytes, "avx2", 32, BYTES)
PEAK(avx_seven, "avx2", 32, SEVEN)
PEAK(avx512_floats, "avx512f", 64, FMA_Z)
PEAK(avx512_bf16, "avx512f,avx512bf16", 64, BF16_Z)
PEAK(avx512_bytes, "avx512f,avx512vnni", 64, DOT_Z)
PEAK(avx_vnni_bytes, "avx2,avxvnni", 32, DOT_Y)
#if defined(__clang__) || __GNUC__ >= 11
/* Tiles of 16 rows of 64 bytes, four of sums in turn (Intel SDM, volume 1, chapter 18). */
#define TILES(name, features, product)                                                            \
  __attribute__((target(features))) static void name(long n, int worker, void *argument) {        \
    (void)worker, (void)argument;                                                                 \
    unsigned char shapes[64] = {1};                                                               \
    for (int t = 0; t < 8; t++) shapes[16 + 2 * t] = 64, shapes[48 + t] = 16;                     \
    __asm__ volatile("ldtilecfg %0" : : "m"(shapes));                                             \
    for (long i = 0; i < n * 3000; i++)                                                           \
      __asm__ volatile(product " %%tmm6, %%tmm4, %%tmm0\n\t" product " %%tmm7, %%tmm4, %%tmm1\n\t"      \
                       product " %%tmm6, %%tmm5, %%tmm2\n\t" product " %%tmm7, %%tmm5, %%tmm3" :);      \
    __asm__ volatile("tilerelease" :);                                                            \
  }
TILES(amx_bf16, "amx-tile,amx-bf16", "tdpbf16ps")
TILES(amx_bytes, "amx-tile,amx-int8", "tdpbusd")
#define TILE_PEAKS \
  {"bf16, tdpbf16ps (AMX)", "amx_bf16", amx_bf16, 16 * 16 * 64}, {"int8, tdpbusd (AMX)", "amx_int8", amx_bytes, 16 * 16 * 128},
#else
#define TILE_PEAKS
#endif
#elif defined(__aarch64__)
#define NEON_FMA(k) __asm__ volatile("fmla %0.4s, %1.4s, %2.4s" : "+w"(c##k) : "w"(a), "w"(b));
#define NEON_DOT(k) __asm__ volatile(".arch_extension dotprod\n\tsdot %0.4s, %1.16b, %2.16b" : "+w"(c##k) : "w"(a), "w"(b));
PEAK(neon_floats, "+simd", 16, NEON_FMA)
PEAK(neon_bytes, "+simd", 16, NEON_DOT)
#endif

typedef struct {
  const char *variant, *needs;
  Work work;
  double operations; /* of one instruction sequence, a multiply-add counted as two */
} Peak;

/* Whether Linux gives this process the registers: of tiles it must be asked (arch_prctl(2), ARCH_REQ_XCOMP_PERM). */
static int may_use(const char *feature) {
#if defined(__x86_64__)
  if (!strncmp(feature, "amx", 3)) return syscall(SYS_arch_prctl, 0x1023, 18) == 0;
#endif
  (void)feature;
  return 1;
}

static void peaks(int workers) {
  static const Peak all[] = {
#if defined(__x86_64__)
      {"float32, mulps addps (SSE2)", "sse2", sse_floats, 8},
      {"float32, vfmadd231ps ymm (AVX2)", "fma", avx_floats, 16},
      {"float32, vfmadd231ps zmm (AVX-512)", "avx512f", avx512_floats, 32},
      {"bf16, vdpbf16ps zmm (AVX-512)", "avx512_bf16", avx512_bf16, 64},
      {"int16, vpmaddwd vpaddd ymm (AVX2)", "avx2", avx_words, 32},
      {"int8, vpmaddubsw vpmaddwd vpaddd ymm (AVX2, saturates)", "avx2", avx_bytes, 64},
      {"int8, vpmaddubsw vpaddw ymm (AVX2, sums of 16 bits)", "avx2", avx_seven, 64},
      {"int8, vpdpbusd ymm (AVX-VNNI)", "avx_vnni", avx_vnni_bytes, 64},
      {"int8, vpdpbusd zmm (AVX-512)", "avx512_vnni", avx512_bytes, 128},
      TILE_PEAKS
#elif defined(__aarch64__)
      {"float32, fmla (NEON)", "asimd", neon_floats, 8},
      {"int8, sdot (NEON)", "asimddp", neon_bytes, 32},
#endif
      {NULL, NULL, NULL, 0},
  };
  enum { KINDS = sizeof all / sizeof *all - 1 };
  long n[KINDS] = {0};
  double *seconds = calloc((size_t)KINDS * (size_t)trials, sizeof *seconds);
  if (!seconds) exit(4);
  for (int k = 0; k < KINDS; k++)
    if (has(all[k].needs) && may_use(all[k].needs)) n[k] = enough(all[k].work, NULL, workers);
  for (int t = 0; t < trials; t++) /* in turns: peaks are compared with each other */
    for (int k = 0; k < KINDS; k++)
      if (n[k]) seconds[t * KINDS + k] = together(all[k].work, NULL, n[k], workers);
  for (int k = 0; k < KINDS; k++) {
    if (!n[k]) continue;
    begin("peak", all[k].variant, workers, "op/s");
    for (int t = 0; t < trials; t++)
      value(t, all[k].operations * 12000 * (double)n[k] * workers / seconds[t * KINDS + k]);
    end();
  }
  free(seconds);
}

/* ---- workers that wait for each other */

typedef struct {
  _Alignas(LINE) atomic_uint count;
  _Alignas(LINE) atomic_uint generation;
  struct {
    _Alignas(LINE) atomic_uint at;
  } flag[MOST];
  pthread_barrier_t system;
  int workers;
} Meeting;

static Meeting meeting;

static void by_counter(void) {
  unsigned generation = atomic_load_explicit(&meeting.generation, memory_order_relaxed);
  if (atomic_fetch_add(&meeting.count, 1) + 1 == (unsigned)meeting.workers) {
    atomic_store_explicit(&meeting.count, 0, memory_order_relaxed);
    atomic_store_explicit(&meeting.generation, generation + 1, memory_order_release);
    return;
  }
  while (atomic_load_explicit(&meeting.generation, memory_order_acquire) == generation) pause_();
}

/* Everybody raises a flag of its own, which counts rounds, and looks at all the others'. */
static void by_flags(int worker, unsigned round) {
  atomic_store_explicit(&meeting.flag[worker].at, round, memory_order_release);
  for (int w = 0; w < meeting.workers; w++)
    while ((int)(atomic_load_explicit(&meeting.flag[w].at, memory_order_acquire) - round) < 0) pause_();
}

static void counted(long n, int worker, void *argument) {
  (void)worker, (void)argument;
  for (long i = 0; i < n * 100; i++) by_counter();
}

static void flagged(long n, int worker, void *argument) {
  (void)argument;
  unsigned round = atomic_load_explicit(&meeting.flag[worker].at, memory_order_relaxed);
  for (long i = 0; i < n * 100; i++) by_flags(worker, ++round);
}

static void slept(long n, int worker, void *argument) {
  (void)worker, (void)argument;
  for (long i = 0; i < n * 100; i++) pthread_barrier_wait(&meeting.system);
}

static void barriers(int workers) {
  memset(&meeting, 0, sizeof meeting);
  meeting.workers = workers;
  pthread_barrier_init(&meeting.system, NULL, (unsigned)workers);
  cost("barrier", "one counter, spinning", counted, NULL, 100, workers);
  cost("barrier", "a flag a worker, spinning", flagged, NULL, 100, workers);
  cost("barrier", "pthread_barrier", slept, NULL, 100, workers);
  pthread_barrier_destroy(&meeting.system);
}

static struct {
  _Alignas(LINE) atomic_long turn;
} table_tennis;

static void ping(long n, int worker, void *argument) {
  (void)argument;
  for (long i = 0; i < n * 100; i++) {
    while ((atomic_load_explicit(&table_tennis.turn, memory_order_acquire) & 1) != worker) pause_();
    atomic_fetch_add_explicit(&table_tennis.turn, 1, memory_order_release);
  }
}

static void hand_offs(void) {
  int first = cores[1];
  for (int other = 1; other < core_count; other++) {
    char variant[64];
    snprintf(variant, sizeof variant, "core %d to %d", cores[0], cores[other]);
    cores[1] = cores[other];
    atomic_store(&table_tennis.turn, 0);
    cost("hand-off of a line", variant, ping, NULL, 200, 2);
    cores[1] = first;
    if (other == 8) break; /* the nearest eight tell the kinds of distance */
  }
}

/* What one core reads of what another has just written. */
typedef struct {
  char *part;
  double seconds;
} Letter;

enum { LETTER = 64 << 10 };

static void post(long n, int worker, void *argument) {
  Letter *letter = argument;
  letter->seconds = worker ? 0 : letter->seconds;
  for (long i = 0; i < n; i++) {
    while ((atomic_load_explicit(&table_tennis.turn, memory_order_acquire) & 1) != worker) pause_();
    double start = now();
    if (worker) {
      sink = read_once(letter->part, LETTER);
      letter->seconds += now() - start;
    } else {
      for (size_t k = 0; k < LETTER / 8; k++) ((volatile uint64_t *)letter->part)[k] = (uint64_t)i;
    }
    atomic_fetch_add_explicit(&table_tennis.turn, 1, memory_order_release);
  }
}

static void exchange(void) {
  enum { TIMES = 300 };
  Letter letter = {pages(LETTER, 1), 0};
  begin("exchange", "64 KiB read that another core has just written", 2, "B/s");
  for (int t = 0; t < trials; t++) {
    atomic_store(&table_tennis.turn, 0);
    together(post, &letter, TIMES, 2);
    value(t, (double)LETTER * TIMES / letter.seconds);
  }
  end();
}

/* ---- the system */

static struct {
  atomic_int word;
  double asked, woke;
} bed;

static void *sleeper(void *argument) {
  (void)argument;
  pin(1);
  syscall(SYS_futex, &bed.word, FUTEX_WAIT_PRIVATE, 0, NULL, NULL, 0);
  bed.woke = now();
  return NULL;
}

static int by_size(const void *a, const void *b) {
  double x = *(const double *)a, y = *(const double *)b;
  return (x > y) - (x < y);
}

static void wake_ups(void) {
  enum { TIMES = 60 };
  struct timespec rest = {0, 500000};
  begin("wake-up from sleep", "futex, on another core", 2, "s");
  for (int t = 0; t < trials; t++) {
    double found[TIMES];
    for (int i = 0; i < TIMES; i++) {
      pthread_t thread;
      atomic_store(&bed.word, 0);
      if (pthread_create(&thread, NULL, sleeper, NULL)) exit(3);
      nanosleep(&rest, NULL); /* it sleeps by now */
      bed.asked = now();
      atomic_store(&bed.word, 1);
      syscall(SYS_futex, &bed.word, FUTEX_WAKE_PRIVATE, 1, NULL, NULL, 0);
      pthread_join(thread, NULL);
      found[i] = bed.woke - bed.asked;
    }
    qsort(found, TIMES, sizeof *found, by_size);
    value(t, found[TIMES / 2]);
  }
  end();
}

static void ask_parent(long n, int worker, void *argument) {
  (void)worker, (void)argument;
  for (long i = 0; i < n * 100; i++) syscall(SYS_getppid);
}

static void ask_clock(long n, int worker, void *argument) {
  (void)worker, (void)argument;
  double sum = 0;
  for (long i = 0; i < n * 100; i++) sum += now();
  sink = (uint64_t)sum;
}

static void *nothing(void *argument) { return argument; }

static void make_threads(long n, int worker, void *argument) {
  (void)worker, (void)argument;
  for (long i = 0; i < n; i++) {
    pthread_t thread;
    if (pthread_create(&thread, NULL, nothing, NULL)) exit(3);
    pthread_join(thread, NULL);
  }
}

static void faults(int huge) {
  size_t step = huge ? HUGE_PAGE : SMALL, bytes = (size_t)64 << 20;
  begin("page fault", huge ? "2 MiB" : "4 KiB", 1, "s");
  for (int t = 0; t < trials; t++) {
    char *p = pages(bytes, huge);
    double start = now();
    for (size_t i = 0; i < bytes; i += step) ((volatile char *)p)[i] = 1;
    value(t, (now() - start) / (double)(bytes / step));
    munmap(p, bytes);
  }
  end();
}

int main(int count, char **words) {
  if (count < 5) return 2;
  trials = atoi(words[1]);
  last_level = strtoull(words[2], NULL, 10);
  features = words[3];
  core_count = count - 4 < MOST ? count - 4 : MOST;
  for (int i = 0; i < core_count; i++) cores[i] = atoi(words[4 + i]);
  int alone_and_all[] = {1, core_count};
  for (int k = 0; k < (core_count > 1 ? 2 : 1); k++) {
    peaks(alone_and_all[k]);
    for (int huge = 1; huge >= 0; huge--) streams(alone_and_all[k], huge);
  }
  caches();
  if (core_count > 1) {
    barriers(2);
    if (core_count > 2) barriers(core_count);
    hand_offs();
    exchange();
    wake_ups();
  }
  cost("system call", "getppid", ask_parent, NULL, 100, 1);
  cost("clock", "clock_gettime", ask_clock, NULL, 100, 1);
  cost("thread", "made and joined", make_threads, NULL, 1, 1);
  faults(0);
  faults(1);
  return 0;
}
