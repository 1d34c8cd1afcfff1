// One convolution in groups by the schedule GSPC (Gibson et al., "Optimizing Grouped Convolutions on Edge Devices",
// ASAP 2020), whose layouts are one dimension G longer than those of TVM's NCHWc convolution:
//
//   data   [G, N, C/ic, H, ic, W]            zero padded
//   kernel [G, K/oc, C/ic, KH, KW, ic, oc]
//   output [G, N, K/oc, OH, OW, oc]
//
// C and K are channels of one group, oc the largest divisor of K up to the vector's lanes, ic the largest divisor of C
// up to oc. Workers share (G, N, oc chunk, row). The innermost loops hold a tile of a row's pixels times oc channels in
// registers. The paper takes the largest divisor of OW up to 31; here it is also at most what the registers hold beside
// one vector of weights and one broadcast number: 14 of AVX's 16 registers, 30 of AVX-512's or NEON's 32.
//
// Where oc is no power of two, its vectors have the lanes of the next one, and the lanes beyond are zero.
//
// Sizes come from the command line: GSPC_N, _G, _C, _K, _H, _W, _KH, _KW, _SH, _SW (strides), _TOP, _LEFT, _BOTTOM,
// _RIGHT (padding), _WORKERS.
#include <linux/futex.h>
#include <pthread.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <utility>

#define UNROLL _Pragma("clang loop unroll(full)")
#define INLINE static inline __attribute__((always_inline))
#define EXPORT extern "C" __attribute__((visibility("default")))

namespace {

constexpr long N = GSPC_N, G = GSPC_G, C = GSPC_C, K = GSPC_K, H = GSPC_H, W = GSPC_W, KH = GSPC_KH, KW = GSPC_KW,
               SH = GSPC_SH, SW = GSPC_SW, WORKERS = GSPC_WORKERS;

constexpr long largest_divisor(long number, long most) {
  for (long d = most; d > 1; --d)
    if (number % d == 0) return d;
  return 1;
}
constexpr long power_of_two(long least) {
  long p = 1;
  while (p < least) p *= 2;
  return p;
}

#if defined(__AVX512F__)
constexpr long VECTOR = 16, REGISTERS = 32;
#elif defined(__AVX__)
constexpr long VECTOR = 8, REGISTERS = 16;
#elif defined(__aarch64__)
constexpr long VECTOR = 4, REGISTERS = 32;
#else
constexpr long VECTOR = 4, REGISTERS = 16;
#endif
constexpr long PAPER_TILE = 31;

constexpr long least(long a, long b) { return a < b ? a : b; }
constexpr long OC = largest_divisor(K, VECTOR), IC = largest_divisor(C, OC), LANES = power_of_two(OC);
constexpr long PH = H + GSPC_TOP + GSPC_BOTTOM, PW = W + GSPC_LEFT + GSPC_RIGHT;
constexpr long OH = (PH - KH) / SH + 1, OW = (PW - KW) / SW + 1;
constexpr long TILE = largest_divisor(OW, least(PAPER_TILE, REGISTERS - 2));
constexpr long IN_CHUNKS = C / IC, OUT_CHUNKS = K / OC;
constexpr long IMAGE = IN_CHUNKS * PH * IC * PW;            // of the data, of one group of one image
constexpr long WEIGHTS = IN_CHUNKS * KH * KW * IC * LANES;  // of the kernel, of one chunk of oc
constexpr long ROWS = G * N * OUT_CHUNKS * OH, ROW = OW * LANES;
constexpr long PLANES = G * N * IN_CHUNKS * IC;

typedef float V __attribute__((vector_size(LANES * 4)));
typedef float Unaligned __attribute__((vector_size(LANES * 4), aligned(4)));

struct Layer;
struct Worker {
  alignas(64) unsigned done;
  long index;
  Layer *layer;
  pthread_t thread;
};
// CONVOLVE is from packed to packed, NCHW from packed data to y.
enum Task : unsigned { PACK, CONVOLVE, NCHW, UNPACK, STOP };
struct Layer {
  alignas(64) unsigned go;  // launches so far
  unsigned sleepers;
  Task task;
  alignas(64) const float *x;
  float *y, *data, *kernel, *bias, *output;
  Worker crew[WORKERS];
  cpu_set_t taken, home;
  bool crowded, packed;
};

// A worker's share of `count`: whole numbers, as even as can be.
INLINE long share(long count, long worker) { return count * worker / WORKERS; }

// Rows of one channel into their places; the zeros around them were written once.
void pack(const Layer *layer, long worker) {
  for (long plane = share(PLANES, worker), end = share(PLANES, worker + 1); plane < end; ++plane) {
    const long g = plane / (N * C), n = plane / C % N, c = plane % C;
    const float *from = layer->x + ((n * G + g) * C + c) * H * W;
    float *to = layer->data + (g * N + n) * IMAGE + c / IC * (PH * IC * PW) + c % IC * PW;
    for (long h = 0; h < H; ++h) memcpy(to + (h + GSPC_TOP) * IC * PW + GSPC_LEFT, from + h * W, W * sizeof(float));
  }
}

INLINE V load(const float *p) {
  V v;
  memcpy(&v, p, sizeof v);
  return v;
}

// Holds a vector's place in the order of instructions: else the compiler reads numbers ahead, and spills sums for them.
// AVX-512 and NEON read the number within the multiplication.
template <class T> INLINE void keep(T &vector) {
#if defined(__AVX__) && !defined(__AVX512F__)
  if constexpr (sizeof(T) >= 16) __asm__ volatile("" : "+x"(vector));
#else
  (void)vector;
#endif
}

// `TILE` pixels of one row: data at the window of the first of them, kernel [C/ic, KH, KW, ic, oc].
INLINE void tile(const float *data, const float *kernel, V bias, float *out) {
  V sum[TILE];
  UNROLL for (long t = 0; t < TILE; ++t) sum[t] = bias;
  for (long chunk = 0; chunk < IN_CHUNKS; ++chunk, data += PH * IC * PW)
    for (long kh = 0; kh < KH; ++kh)
      for (long kw = 0; kw < KW; ++kw)
        for (long ic = 0; ic < IC; ++ic, kernel += LANES) {
          const V weights = load(kernel);
          const float *pixels = data + (kh * IC + ic) * PW + kw;
          UNROLL for (long t = 0; t < TILE; ++t) {
            V pixel = pixels[t * SW] - V{};
            keep(pixel);
            sum[t] += weights * pixel;
            keep(sum[t]);
          }
        }
  UNROLL for (long t = 0; t < TILE; ++t) memcpy(out + t * LANES, &sum[t], sizeof(V));
}

// A packed row [OW, oc] into oc rows of NCHW, in squares of LANES x LANES where they fit.
template <long HALF, int... L> INLINE void exchange(V &a, V &b, std::integer_sequence<int, L...>) {
  const V x = a, y = b;
  a = __builtin_shufflevector(x, y, (L & HALF ? LANES + L - HALF : L)...);
  b = __builtin_shufflevector(x, y, (L & HALF ? LANES + L : L + HALF)...);
}
template <long HALF> INLINE void transpose(V (&v)[LANES]) {
  UNROLL for (long i = 0; i < LANES; ++i)
    if (!(i & HALF)) exchange<HALF>(v[i], v[i + HALF], std::make_integer_sequence<int, LANES>());
  if constexpr (HALF > 1) transpose<HALF / 2>(v);
}
INLINE void square(const float *from, float *to) {
  V v[LANES];
  UNROLL for (long i = 0; i < LANES; ++i) v[i] = load(from + i * LANES);
  transpose<LANES / 2>(v);
  UNROLL for (long i = 0; i < LANES; ++i) memcpy(to + i * OH * OW, &v[i], sizeof(V));
}
void unpack_row(const float *from, float *to) {
  long w = 0;
  if constexpr (OC == LANES && LANES > 1)
    for (; w + LANES <= OW; w += LANES) square(from + w * LANES, to + w);
  for (long c = 0; c < OC; ++c)
    for (long rest = w; rest < OW; ++rest) to[c * OH * OW + rest] = from[rest * LANES + c];
}

// Rows of the output, each [OW, oc]. One that is to be NCHW is unpacked while it is in the nearest cache.
void convolve(const Layer *layer, long worker, Task task) {
  for (long row = share(ROWS, worker), end = share(ROWS, worker + 1); row < end; ++row) {
    const long oh = row % OH, chunk = row / OH % OUT_CHUNKS, n = row / (OH * OUT_CHUNKS) % N,
               g = row / (OH * OUT_CHUNKS * N);
    alignas(64) float kept[ROW];
    float *out = task == NCHW ? kept : layer->output + row * ROW;
    if (task != UNPACK) {
      const float *data = layer->data + (g * N + n) * IMAGE + oh * SH * IC * PW;
      const float *kernel = layer->kernel + (g * OUT_CHUNKS + chunk) * WEIGHTS;
      const V bias = load(layer->bias + (g * OUT_CHUNKS + chunk) * LANES);
      for (long w = 0; w < OW; w += TILE) tile(data + w * SW, kernel, bias, out + w * LANES);
    }
    if (task != CONVOLVE) unpack_row(out, layer->y + (((n * G + g) * K + chunk * OC) * OH + oh) * OW);
  }
}

void work(const Layer *layer, long worker) {
  if (layer->task == PACK) pack(layer, worker);
  else convolve(layer, worker, layer->task);
}

// Persistent workers: they spin a while for the next launch, then sleep.

constexpr int PAUSES_BEFORE_YIELD = 512;
constexpr long SPIN_NANOSECONDS = 100000;

INLINE void relax(const Layer *layer, int spins) {
  if (layer->crowded || spins > PAUSES_BEFORE_YIELD) sched_yield();
#if defined(__x86_64__)
  else __builtin_ia32_pause();
#endif
}

long now() {
  timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return t.tv_sec * 1000000000L + t.tv_nsec;
}

unsigned await_launch(Layer *layer, unsigned seen) {
  const long deadline = now() + SPIN_NANOSECONDS;
  unsigned go;
  for (int spins = 0; (go = __atomic_load_n(&layer->go, __ATOMIC_ACQUIRE)) == seen; ++spins) {
    relax(layer, spins);
    if (spins % 64 == 0 && now() > deadline) break;
  }
  while ((go = __atomic_load_n(&layer->go, __ATOMIC_ACQUIRE)) == seen) {
    __atomic_add_fetch(&layer->sleepers, 1, __ATOMIC_SEQ_CST);
    syscall(SYS_futex, &layer->go, FUTEX_WAIT | FUTEX_PRIVATE_FLAG, seen, nullptr, nullptr, 0);
    __atomic_sub_fetch(&layer->sleepers, 1, __ATOMIC_SEQ_CST);
  }
  return go;
}

void *worker_main(void *argument) {
  Worker *self = static_cast<Worker *>(argument);
  for (unsigned seen = 0;;) {
    seen = await_launch(self->layer, seen);
    if (self->layer->task == STOP) return nullptr;
    work(self->layer, self->index);
    __atomic_store_n(&self->done, seen, __ATOMIC_RELEASE);
  }
}

void launch(Layer *layer, Task task) {
  layer->task = task;
  const unsigned go = __atomic_add_fetch(&layer->go, 1, __ATOMIC_SEQ_CST);
  if (WORKERS > 1 && __atomic_load_n(&layer->sleepers, __ATOMIC_SEQ_CST))
    syscall(SYS_futex, &layer->go, FUTEX_WAKE | FUTEX_PRIVATE_FLAG, WORKERS, nullptr, nullptr, 0);
  if (task == STOP) return;
  work(layer, 0);
  for (long i = 1; i < WORKERS; ++i)
    for (int spins = 0; __atomic_load_n(&layer->crew[i].done, __ATOMIC_ACQUIRE) != go; ++spins) relax(layer, spins);
}

// Worker i has the i-th processor of those allowed to itself; the caller leaves it when it finds itself there.
void make_room(const Layer *layer) {
  const int here = sched_getcpu();
  cpu_set_t allowed;
  if (layer->crowded || here < 0 || !CPU_ISSET(here, &layer->taken) || sched_getaffinity(0, sizeof allowed, &allowed))
    return;
  if (!sched_setaffinity(0, sizeof layer->home, &layer->home)) sched_setaffinity(0, sizeof allowed, &allowed);
}

void hire(Layer *layer) {
  cpu_set_t allowed;
  int places[WORKERS] = {}, found = 0;
  if (!sched_getaffinity(0, sizeof allowed, &allowed))
    for (int p = 0; p < CPU_SETSIZE && found < WORKERS; ++p)
      if (CPU_ISSET(p, &allowed)) places[found++] = p;
  layer->crowded = found < WORKERS;
  CPU_ZERO(&layer->taken);
  CPU_ZERO(&layer->home);
  CPU_SET(places[0], &layer->home);
  for (long i = 1; i < WORKERS; ++i) {
    Worker *worker = &layer->crew[i];
    worker->index = i;
    worker->layer = layer;
    if (pthread_create(&worker->thread, nullptr, worker_main, worker)) abort();
    if (layer->crowded) continue;
    cpu_set_t place;
    CPU_ZERO(&place);
    CPU_SET(places[i], &place);
    CPU_SET(places[i], &layer->taken);
    pthread_setaffinity_np(worker->thread, sizeof place, &place);
  }
}

// Zeros, in huge pages where the kernel gives them on request.
void *zeros(size_t bytes) {
  constexpr size_t HUGE_PAGE = size_t(2) << 20;
  bytes = (bytes + HUGE_PAGE - 1) / HUGE_PAGE * HUGE_PAGE;
  void *memory = aligned_alloc(HUGE_PAGE, bytes);
  if (!memory) abort();
  madvise(memory, bytes, MADV_HUGEPAGE);
  memset(memory, 0, bytes);
  return memory;
}
float *floats(long count) { return static_cast<float *>(zeros(size_t(count) * sizeof(float))); }

}  // namespace

// What was decided: ic, oc, pixels of a tile, lanes of a vector.
EXPORT void gspc_layout(long *four) {
  four[0] = IC, four[1] = OC, four[2] = TILE, four[3] = VECTOR;
}

// x [N, G C, H, W] and y [N, G K, OH, OW] stay the caller's; weights [G K, C, KH, KW] and bias [G K] are packed here.
EXPORT Layer *gspc_create(const float *x, float *y, const float *weights, const float *bias,
                          bool packed) {
  Layer *layer = static_cast<Layer *>(zeros(sizeof(Layer)));
  layer->x = x;
  layer->y = y;
  layer->data = floats(G * N * IMAGE);
  layer->kernel = floats(G * OUT_CHUNKS * WEIGHTS);
  layer->bias = floats(G * OUT_CHUNKS * LANES);
  layer->packed = packed;
  if (packed) layer->output = floats(ROWS * ROW);
  for (long k = 0; k < G * K; ++k) {
    const long chunk = k / OC, lane = k % OC;  // of all groups: OC divides K
    layer->bias[chunk * LANES + lane] = bias[k];
    for (long c = 0; c < C; ++c)
      for (long at = 0; at < KH * KW; ++at)
        layer->kernel[chunk * WEIGHTS + ((c / IC * KH * KW + at) * IC + c % IC) * LANES + lane] =
            weights[(k * C + c) * KH * KW + at];
  }
  hire(layer);
  return layer;
}

// From x to y; from packed data to packed output where neighbours are to keep these layouts.
EXPORT void gspc_run(Layer *layer) {
  make_room(layer);
  if (!layer->packed) launch(layer, PACK);
  launch(layer, layer->packed ? CONVOLVE : NCHW);
}
// What is left beside such a run.
EXPORT void gspc_pack(Layer *layer) { launch(layer, PACK); }
EXPORT void gspc_unpack(Layer *layer) { launch(layer, UNPACK); }

EXPORT void gspc_destroy(Layer *layer) {
  launch(layer, STOP);
  for (long i = 1; i < WORKERS; ++i) pthread_join(layer->crew[i].thread, nullptr);
  for (float *memory : {layer->data, layer->kernel, layer->bias, layer->output}) free(memory);
  free(layer);
}
