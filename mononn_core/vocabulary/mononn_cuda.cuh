// The vocabulary of generated CUDA code: grid synchronisation, vectors, elementary functions and reductions, on the
// primitives of mononn_ptx.cuh alone. MONONN_THREADS (threads of a block) comes from the generated source.
#pragma once
#include "mononn_ptx.cuh"

namespace mn {

constexpr int THREADS = MONONN_THREADS, WARPS = THREADS / 32;
constexpr int REDUCE_BYTES = 256;  // the first bytes of shared memory: one partial result a warp
static_assert(THREADS % 32 == 0 && THREADS <= 1024, "whole warps");
// Behind them lie the words that stages land on, taken in turns; at most so many stages are under way.
constexpr int LANDINGS = 16;
// Who copies stages: not the first warp, where there are others: its first thread may have a barrier to wait at.
constexpr int FIRST_COPIER = WARPS > 1 ? 32 : 0, COPIERS = THREADS - FIRST_COPIER;

MN_DEVICE int lane() { return thread() & 31; }
MN_DEVICE int warp() { return thread() >> 5; }
MN_DEVICE constexpr int larger(int a, int b) { return a > b ? a : b; }
MN_DEVICE constexpr int round_up(int n, int step) { return (n + step - 1) / step * step; }

// ---- stages -----------------------------------------------------------------------------------------------------------
// Of the block's stage ``n``.
MN_DEVICE uint64_t *landing(uint32_t n) { return (uint64_t *)(shared_memory() + REDUCE_BYTES) + n % LANDINGS; }
// Before a kernel's first stage.
MN_DEVICE void open_stages() {
  if (thread() == 0) {
    for (int i = 0; i < LANDINGS; ++i) stage_open(landing(i), COPIERS);
  }
  sync_block();
}
// Starts stage ``n``; all threads come.
MN_DEVICE void start_stage(void *to, const void *from, int bytes, uint32_t n) {
  if (thread() >= FIRST_COPIER) stage_copy(to, from, bytes, landing(n), thread() - FIRST_COPIER, COPIERS);
}
MN_DEVICE void await_stage(uint32_t n) { stage_wait(landing(n), n / LANDINGS % 2); }

// ---- synchronisation of the grid ------------------------------------------------------------------------------------
// Words of ``sync`` are a cache line apart: the barrier, the blocks that have left, then the Program's counters. All
// are zero before the first run and have come back to a usable state after each.
constexpr int LINE = 32;

// All blocks have arrived before any leaves. Each adds 1 and the first 0x80000000 - (blocks - 1): together they flip the
// top bit, which is all that anybody waits for, so the word need never be reset.
MN_DEVICE uint32_t announce(uint32_t *sync) {
  return thread() == 0 ? atomic_add_relaxed(sync, block() == 0 ? 0x80000000u - (uint32_t)(blocks() - 1) : 1u) : 0;
}
// What the block has stored is seen by all whom ``announce`` reaches afterwards.
MN_DEVICE void publish() {
  sync_block();
  if (thread() == 0) fence_gpu();
}
// Waits for all others; ``before`` is what ``announce`` returned.
MN_DEVICE void depart(uint32_t *sync, uint32_t before) {
  if (thread() == 0) {
    while (((before ^ load_acquire(sync)) & 0x80000000u) == 0) {
    }
  }
  sync_block();
}
MN_DEVICE void barrier(uint32_t *sync) {
  publish();
  depart(sync, announce(sync));
}
MN_DEVICE uint32_t *counter(uint32_t *sync, int i) { return sync + (2 + i) * LINE; }
MN_DEVICE void signal(uint32_t *sync, int i, uint32_t add) {
  sync_block();
  if (thread() == 0) atomic_add(counter(sync, i), add);
}
MN_DEVICE void wait(uint32_t *sync, int i, uint32_t at_least) {
  if (thread() == 0) {
    while (load_acquire(counter(sync, i)) < at_least) {
    }
  }
  sync_block();
}
// The last block to leave a run sets its counters back.
MN_DEVICE void leave(uint32_t *sync, int counters) {
  sync_block();
  if (thread() == 0 && atomic_add(sync + LINE, 1) == (uint32_t)blocks() - 1) {
    for (int i = 0; i < counters; ++i) store_release(counter(sync, i), 0);
    store_release(sync + LINE, 0);
  }
}
// Where a block is: its next task in the phase at hand, the executed phase whose first weights are under way, stages that
// it has waited for, and whether it has arrived at the next barrier.
struct Turn {
  int task, fetched;
  uint32_t stage = 0;
  bool arrived = false;
  uint32_t before = 0;
  // What follows until ``barrier`` touches nothing that other blocks read or write. Copies from memory that are under
  // way would hold the fence up, so none begins before its end.
  MN_DEVICE void arrive(uint32_t *sync) {
    stage_fence();
    publish();
    sync_block();
    before = announce(sync), arrived = true;
  }
  MN_DEVICE void barrier(uint32_t *sync) {
    if (arrived) depart(sync, before);
    else mn::barrier(sync);
    arrived = false, task = block();
  }
};
// This block's first task after a phase of ``tasks``, when its first in that phase was ``turn``.
MN_DEVICE int after(int turn, int tasks) {
  return turn >= tasks ? turn - tasks : turn + (tasks - turn + blocks() - 1) / blocks() * blocks() - tasks;
}
// Time stamps of this block, [blocks][phases][3][3]: a phase begins before the barrier in front of it, if there is one.
// A stamp is nanoseconds, which tick coarsely but everywhere alike, and a multiprocessor's cycles with its number.
struct Trace {
  uint64_t *stamps;
  int phases;
  bool waited = false;
  MN_DEVICE void stamp(int ordinal, int point) {
    if (!stamps || thread() != 0) return;
    uint64_t *at = stamps + (((int64_t)block() * phases + ordinal) * 3 + point) * 3;
    at[0] = global_time(), at[1] = cycles(), at[2] = multiprocessor();
  }
  MN_DEVICE void barrier(int ordinal) {
    if (ordinal < phases) stamp(ordinal, 0);
    waited = true;
  }
  MN_DEVICE void begin(int ordinal) {
    if (!waited) stamp(ordinal, 0);
    waited = false;
    stamp(ordinal, 1);
  }
  MN_DEVICE void end(int ordinal) { stamp(ordinal, 2); }
};
// Ask for ``bytes`` in the second-level cache.
MN_DEVICE void hint(const void *p, int bytes) {
  for (int i = thread() * 128; i < bytes; i += THREADS * 128) prefetch_l2((const unsigned char *)p + i);
}
// An index taken from data: negative ones count from the end; outside the extent the run fails and 0 is used.
template <class Call> MN_DEVICE int checked_index(const Call &call, int phase, int64_t i, int64_t n) {
  const int64_t j = i < 0 ? i + n : i;
  if (j >= 0 && j < n) return (int)j;
  set_once(call.error, MONONN_ERROR_INDEX | (uint64_t)phase << 8 | (uint64_t)(uint32_t)i << 32);
  return 0;
}

// ---- neighbours in memory -------------------------------------------------------------------------------------------
// N neighbouring elements in registers, as the 32-bit words they are moved in.
template <class S, int N> struct Lanes {
  S v[N];
  MN_DEVICE S operator[](int u) const { return v[u]; }
};
template <int WORDS> MN_DEVICE void load_words(uint32_t (&w)[WORDS], const void *p) {
  if constexpr (WORDS % 4 == 0) {
    MN_UNROLL for (int i = 0; i < WORDS / 4; ++i) {
      const quad q = ((const quad *)p)[i];
      w[4 * i] = q.x, w[4 * i + 1] = q.y, w[4 * i + 2] = q.z, w[4 * i + 3] = q.w;
    }
  } else if constexpr (WORDS == 2) {
    const pair q = *(const pair *)p;
    w[0] = q.x, w[1] = q.y;
  } else {
    w[0] = *(const uint32_t *)p;
  }
}
template <bool GLOBAL, int WORDS> MN_DEVICE void store_words(void *p, const uint32_t (&w)[WORDS]) {
  if constexpr (WORDS % 4 == 0) {
    MN_UNROLL for (int i = 0; i < WORDS / 4; ++i) {
      const quad q{w[4 * i], w[4 * i + 1], w[4 * i + 2], w[4 * i + 3]};
      if constexpr (GLOBAL) store_16((quad *)p + i, q);
      else ((quad *)p)[i] = q;
    }
  } else if constexpr (WORDS == 2) {
    *(pair *)p = pair{w[0], w[1]};
  } else {
    *(uint32_t *)p = w[0];
  }
}
template <int N> struct Lanes<float, N> {
  uint32_t w[N];
  MN_DEVICE float operator[](int u) const { return bits_float(w[u]); }
};
template <int N> struct HalfLanes {
  uint32_t w[(N + 1) / 2];
  MN_DEVICE uint16_t bits(int u) const { return (uint16_t)(w[u / 2] >> (u % 2 * 16)); }
};
template <int N> struct Lanes<f16, N> : HalfLanes<N> {
  MN_DEVICE f16 operator[](int u) const { return f16{this->bits(u)}; }
};
template <int N> struct Lanes<bf16, N> : HalfLanes<N> {
  MN_DEVICE bf16 operator[](int u) const { return bf16{this->bits(u)}; }
};
template <class T, class U> constexpr bool same = false;
template <class T> constexpr bool same<T, T> = true;
template <class S> constexpr bool is_half = same<S, f16> || same<S, bf16>;

// N elements from ``p`` on; aligned to all of them, or to 16 bytes where they are more.
template <int N, class S> MN_DEVICE Lanes<S, N> load(const S *p) {
  Lanes<S, N> r;
  if constexpr (is_half<S> && N == 1) r.w[0] = p->bits;
  else if constexpr (is_half<S> || same<S, float>) load_words(r.w, p);
  else MN_UNROLL for (int u = 0; u < N; ++u) r.v[u] = p[u];
  return r;
}
// The same where ``valid``, else zeros and no access.
template <int N, class S> MN_DEVICE Lanes<S, N> load_if(bool valid, const S *p) {
  Lanes<S, N> r = {};
  if (valid) r = load<N>(p);
  return r;
}
// Stores N values, rounding floats to S; GLOBAL: ``p`` points to global memory.
template <int N, bool GLOBAL, class S, class V> MN_DEVICE void store(S *p, const V (&v)[N]) {
  if constexpr (is_half<S> && N == 1) {
    *p = from_float<S>(v[0]);
  } else if constexpr (is_half<S>) {
    uint32_t w[N / 2];
    MN_UNROLL for (int u = 0; u < N / 2; ++u) w[u] = pack2<S>(v[2 * u], v[2 * u + 1]);
    store_words<GLOBAL>(p, w);
  } else if constexpr (same<S, float>) {
    uint32_t w[N];
    MN_UNROLL for (int u = 0; u < N; ++u) w[u] = float_bits(v[u]);
    store_words<GLOBAL>(p, w);
  } else {
    MN_UNROLL for (int u = 0; u < N; ++u) p[u] = v[u];
  }
}

// ---- elementary functions: NaN and infinity as ONNX says --------------------------------------------------------------
MN_DEVICE float exp(float x) { return expf(x); }
MN_DEVICE float log(float x) { return logf(x); }
MN_DEVICE float sqrt(float x) { return sqrtf(x); }
MN_DEVICE float tanh(float x) { return tanhf(x); }
MN_DEVICE float rsqrt(float x) { return rsqrt_near(x); }
MN_DEVICE float sin(float x) { return sinf(x); }
MN_DEVICE float cos(float x) { return cosf(x); }
MN_DEVICE float cube(float x) { return x * x * x; }
#ifdef MONONN_ROUNDED  // results are stored in 16 bits
// Within 6e-7, of which 1.5e-7 are the formula (Abramowitz and Stegun, "Handbook of Mathematical Functions", 7.1.26).
MN_DEVICE float erf(float x) {
  const float a = fabsf(x), t = reciprocal_near(a * 0.3275911f + 1.f);
  const float y = ((((1.061405429f * t - 1.453152027f) * t + 1.421413741f) * t - 0.284496736f) * t + 0.254829592f) * t;
  return copysignf(1.f - y * exp2_near(a * a * -1.442695041f), x);
}
MN_DEVICE float sigmoid(float x) { return reciprocal_near(1.f + exp2_near(x * -1.442695041f)); }
#else
MN_DEVICE float erf(float x) { return erff(x); }
MN_DEVICE float sigmoid(float x) { return 1.f / (1.f + expf(-x)); }
#endif
MN_DEVICE float softplus(float x) { return x > 20.f ? x : log1pf(expf(x)); }
MN_DEVICE float abs(float x) { return fabsf(x); }
MN_DEVICE float sign(float x) { return x > 0 ? 1.f : (x < 0 ? -1.f : x); }
MN_DEVICE float max(float a, float b) { return a > b ? a : (b >= a ? b : a + b); }
MN_DEVICE float min(float a, float b) { return a < b ? a : (b <= a ? b : a + b); }
MN_DEVICE float mod(float a, float b) { const float r = fmodf(a, b); return r != 0 && ((r < 0) != (b < 0)) ? r + b : r; }
MN_DEVICE bool isinf(float x) { return fabsf(x) == INFINITY; }
MN_DEVICE double exp(double x) { return ::exp(x); }
MN_DEVICE double log(double x) { return ::log(x); }
MN_DEVICE double sqrt(double x) { return ::sqrt(x); }
MN_DEVICE double tanh(double x) { return ::tanh(x); }
MN_DEVICE double rsqrt(double x) { return 1 / ::sqrt(x); }
MN_DEVICE double erf(double x) { return ::erf(x); }
MN_DEVICE double sin(double x) { return ::sin(x); }
MN_DEVICE double cos(double x) { return ::cos(x); }
MN_DEVICE double sigmoid(double x) { return 1 / (1 + ::exp(-x)); }
MN_DEVICE double softplus(double x) { return x > 40 ? x : ::log1p(::exp(x)); }
MN_DEVICE double abs(double x) { return ::fabs(x); }
MN_DEVICE double sign(double x) { return x > 0 ? 1 : (x < 0 ? -1 : x); }
MN_DEVICE double max(double a, double b) { return a > b ? a : (b >= a ? b : a + b); }
MN_DEVICE double min(double a, double b) { return a < b ? a : (b <= a ? b : a + b); }
MN_DEVICE double mod(double a, double b) { const double r = ::fmod(a, b); return r != 0 && ((r < 0) != (b < 0)) ? r + b : r; }
MN_DEVICE bool isinf(double x) { return ::fabs(x) == INFINITY; }
MN_DEVICE int64_t abs(int64_t x) { return x < 0 ? int64_t(-uint64_t(x)) : x; }
MN_DEVICE uint64_t abs(uint64_t x) { return x; }
MN_DEVICE uint64_t sign(uint64_t x) { return x > 0; }
MN_DEVICE int64_t sign(int64_t x) { return x > 0 ? 1 : x < 0 ? -1 : 0; }
MN_DEVICE int64_t max(int64_t a, int64_t b) { return a > b ? a : b; }
MN_DEVICE int64_t min(int64_t a, int64_t b) { return a < b ? a : b; }
MN_DEVICE uint64_t max(uint64_t a, uint64_t b) { return a > b ? a : b; }
MN_DEVICE uint64_t min(uint64_t a, uint64_t b) { return a < b ? a : b; }
MN_DEVICE int max(int a, int b) { return a > b ? a : b; }
MN_DEVICE int min(int a, int b) { return a < b ? a : b; }
// Floor division and the remainder with the divisor's sign.
template <class I> MN_DEVICE I floor_division(I a, I b) { const I q = a / b; return q - ((a % b != 0) && ((a < 0) != (b < 0))); }
template <class I> MN_DEVICE I remainder(I a, I b) { const I r = a % b; return r != 0 && ((r < 0) != (b < 0)) ? r + b : r; }
MN_DEVICE int floordiv(int a, int b) { return floor_division(a, b); }
MN_DEVICE int64_t floordiv(int64_t a, int64_t b) { return floor_division(a, b); }
MN_DEVICE int mod(int a, int b) { return remainder(a, b); }
MN_DEVICE int64_t mod(int64_t a, int64_t b) { return remainder(a, b); }
// Integers that are data: the quotient towards zero and what is left of it, the remainder with the divisor's sign, powers
// of exponents that are not negative. Divided by zero, the quotient is the dividend and the rest is 0: nothing may stop
// the process.
template <class I> MN_DEVICE I quotient(I a, I b) { return b == 0 ? a : b == I(-1) && I(-1) < 0 ? I(-uint64_t(a)) : a / b; }
template <class I> MN_DEVICE I rest(I a, I b) { return b == 0 || (b == I(-1) && I(-1) < 0) ? 0 : a % b; }
template <class I> MN_DEVICE I modulo(I a, I b) {
  const I r = rest(a, b);
  return r != 0 && ((r < 0) != (b < 0)) ? r + b : r;
}
template <class I> MN_DEVICE I power(I base, I exponent) {
  uint64_t x = uint64_t(base), y = 1;
  for (uint64_t e = uint64_t(exponent); e; e >>= 1, x *= x) y *= e & 1 ? x : 1;
  return I(y);
}

// ---- reductions -----------------------------------------------------------------------------------------------------
struct Add {
  template <class T> MN_DEVICE static T identity() { return 0; }
  template <class T> MN_DEVICE static T apply(T a, T b) { return a + b; }
};
struct Mul {
  template <class T> MN_DEVICE static T identity() { return 1; }
  template <class T> MN_DEVICE static T apply(T a, T b) { return a * b; }
};
struct Max {
  template <class T> MN_DEVICE static T identity() {
    if constexpr (same<T, int64_t>) return INT64_MIN;
    else return -INFINITY;
  }
  template <class T> MN_DEVICE static T apply(T a, T b) { return mn::max(a, b); }
};
struct Min {
  template <class T> MN_DEVICE static T identity() {
    if constexpr (same<T, int64_t>) return -(INT64_MIN + 1);
    else return INFINITY;
  }
  template <class T> MN_DEVICE static T apply(T a, T b) { return mn::min(a, b); }
};
MN_DEVICE double shuffle_xor(double v, int mask) {
  union { double d; int64_t i; } u;
  u.d = v;
  u.i = shuffle_xor(u.i, mask);
  return u.d;
}
// Of all lanes' values, each of ROWS by itself; every lane gets the same bits.
template <class R, class T, int ROWS> MN_DEVICE void warp_reduce_rows(T (&v)[ROWS]) {
  MN_UNROLL for (int mask = 16; mask > 0; mask /= 2)
    MN_UNROLL for (int row = 0; row < ROWS; ++row) v[row] = R::apply(v[row], shuffle_xor(v[row], mask));
}
template <class R, class T> MN_DEVICE T warp_reduce(T v) {
  T one[1] = {v};
  warp_reduce_rows<R>(one);
  return one[0];
}
// Of all threads' values; every thread gets the same bits.
template <class R, class T> MN_DEVICE T block_reduce(T v) {
  T *partial = (T *)shared_memory();
  v = warp_reduce<R>(v);
  sync_block();
  if (lane() == 0) partial[warp()] = v;
  sync_block();
  v = lane() < WARPS ? partial[lane()] : R::template identity<T>();
  return warp_reduce<R>(v);
}

// ---- tiles in shared memory -----------------------------------------------------------------------------------------
// ROWS x COLS elements (COLS a multiple of 16 bytes) into rows of LD. Elements at or past column ``cols`` become zero; rows
// past ``rows`` (at least 1) become zero where ZERO_ROWS, else they repeat the last one, which costs nothing: they are
// for results that nobody stores. ALIGN: bytes that ``from`` and its rows are aligned to; by 16 or 4 the copy runs beside
// the thread. The block's threads from FIRST on take part.
template <class T, int ROWS, int COLS, int LD, int ALIGN, bool ZERO_ROWS, int FIRST = 0>
MN_DEVICE void copy_tile(T *to, const T *from, int stride, int rows, int cols) {
  constexpr int CHUNK = 16 / (int)sizeof(T), WIDE = COLS / CHUNK, TOTAL = ROWS * WIDE, COUNT = THREADS - FIRST;
  // Steps between a thread's chunks are spelled out as constants: of sums of unsigned numbers a compiler knows none.
  constexpr bool EVEN = COUNT % WIDE == 0;
  const int own = thread() - FIRST;
  const bool all = rows >= ROWS, packed = stride == COLS && (all || ZERO_ROWS);
  MN_UNROLL for (int i = 0; i < (TOTAL + COUNT - 1) / COUNT; ++i) {
    const int at = i * COUNT + own;
    if (TOTAL % COUNT != 0 && at >= TOTAL) break;
    const int r = EVEN ? own / WIDE + i * (COUNT / WIDE) : (int)((uint32_t)at / WIDE);
    const int c = (EVEN ? own % WIDE : (int)((uint32_t)at % WIDE)) * CHUNK;
    const int left = ZERO_ROWS && !all && r >= rows ? 0 : cols >= COLS ? CHUNK : cols - c;  // a constant where all is whole
    const int count = left < 0 ? 0 : left > CHUNK ? CHUNK : left;
    T *d = to + (LD == COLS ? at * CHUNK : r * LD + c);
    const T *s = from + (count == 0 ? 0 : packed ? at * CHUNK : (ZERO_ROWS || all ? r : min(r, rows - 1)) * stride + c);
    if constexpr (ALIGN >= 16) {
      if ((!ZERO_ROWS || all) && cols >= COLS) cp_async_16(d, s);
      else cp_async_16_some(d, s, count * (int)sizeof(T));
    } else if constexpr (ALIGN >= 4 && sizeof(T) == 4) {
      MN_UNROLL for (int e = 0; e < CHUNK; ++e) cp_async_4(d + e, e < count ? s + e : from, e < count);
    } else {
      MN_UNROLL for (int e = 0; e < CHUNK; ++e) d[e] = e < count ? s[e] : T{};
    }
  }
}
// Row strides of tiles, in elements, such that eight rows of 16 bytes lie in different banks.
template <class T> MN_DEVICE constexpr int row_stride(int cols) { return cols + (cols * (int)sizeof(T) / 16 % 2 ? 0 : 16 / (int)sizeof(T)); }
// Row stride of floats that lanes take as (row lane % 4, column lane / 4): 8 or 24 modulo 32.
MN_DEVICE constexpr int column_stride(int cols) { return round_up(cols, 8) % 16 == 8 ? round_up(cols, 8) : round_up(cols, 8) + 8; }

// v = hi + lo, both in tf32.
MN_DEVICE void split_tf32(float v, uint32_t &hi, uint32_t &lo) {
  const float high = to_tf32(v);
  hi = float_bits(high);
  lo = float_bits(to_tf32(v - high));
}
// d += a b in three products, the small ones first: float32's accuracy for finite operands below 2^127. Where one is
// infinite the sum is NaN. Tensor cores cut sums off toward zero, so theirs are short and added outside, to nearest
// (Ootomo and Yokota, "Recovering single precision accuracy from Tensor Cores while surpassing the FP32 theoretical peak
// performance", IJHPCA 36, 2022).
MN_DEVICE void mma_tf32x3(float (&d)[4], const uint32_t (&ah)[4], const uint32_t (&al)[4], const uint32_t (&bh)[2],
                          const uint32_t (&bl)[2]) {
  float sum[4] = {};
  mma_tf32(sum, al, bh);
  mma_tf32(sum, ah, bl);
  mma_tf32(sum, ah, bh);
  MN_UNROLL for (int e = 0; e < 4; ++e) d[e] += sum[e];
}

}  // namespace mn
