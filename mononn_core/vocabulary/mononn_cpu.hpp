// The vocabulary of generated CPU code: register-tiled products and attention. See mononn_vec.hpp, mononn_sync.hpp.
#pragma once
#include "mononn.h"
#include "mononn_sync.hpp"
#include "mononn_transpose.hpp"
#include "mononn_vec.hpp"

namespace mn {

// Denormals are flushed inside the function; the caller's control word comes back at the end.
struct FlushDenormals {
#if defined(__x86_64__)
  unsigned saved = __builtin_ia32_stmxcsr();
  FlushDenormals() { __builtin_ia32_ldmxcsr(saved | 0x8040); }
  ~FlushDenormals() { __builtin_ia32_ldmxcsr(saved); }
#endif
};

// The first error of a run, at an executed phase.
static inline void fail(const mononn_call *c, uint64_t code, long phase, int32_t value) {
  uint64_t none = 0, word = code | (uint64_t)phase << 8 | (uint64_t)(uint32_t)value << 32;
  __atomic_compare_exchange_n(c->error, &none, word, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED);
}
// An index taken from data: negative ones count from the end; outside the extent the run fails and 0 is used.
static inline int64_t checked_index(const mononn_call *c, long phase, int64_t i, int64_t n) {
  int64_t j = i < 0 ? i + n : i;
  if (__builtin_expect(j >= 0 && j < n, 1)) return j;
  fail(c, MONONN_ERROR_INDEX, phase, (int32_t)i);
  return 0;
}
// Tasks [first, last) of ``count`` for worker ``w``.
MN_INLINE long first_of(long count, long w, long workers) { return count * w / workers; }
// The worker that has task ``i`` of ``count``.
MN_INLINE long owner_of(long i, long count, long workers) { return ((i + 1) * workers - 1) / count; }

// The cache line of ``p`` will be written.
MN_INLINE void prefetch_write(const void *p) {
#if defined(__x86_64__)
  asm volatile("prefetchw %0" : : "m"(*(const char *)p));
#else
  __builtin_prefetch(p, 1);
#endif
}
MN_INLINE void touch(const void *p, long bytes) {
  for (long i = 0; i < bytes; i += 64) __builtin_prefetch((const char *)p + i, 0, 2);
}

// Up to so many rows of A a panel is read as fast as it comes, and is not asked for where the processor follows such a stream
// faster alone (on Zen 4 prefetches hold up the caches' own by a quarter).
#if MONONN_STREAMS
constexpr int STREAMED = 4;
#else
constexpr int STREAMED = 0;
#endif
// Into which cache rows of panels are fetched (3: the first level, 2: the second). A panel of vectors of 64 bytes is larger
// than the first one, so each tile reads it from the second again; of shorter vectors much of it stays in the first.
constexpr int CACHE_OF_PANELS = W * sizeof(float) >= 64 ? 3 : 2;
// What a loop over the rows of a panel brings into the caches meanwhile: LINES lines of what is multiplied next, ``hop``
// elements further on each row, and of the panel itself the row that is ``ahead`` elements further on, unless it was fetched
// into the second level before and is wanted no nearer. Of hops shorter than a line only every EVERY-th row asks for one.
template <class T, int LINES, int EVERY = 1> struct Fetch {
  long ahead;
  const T *next;
  long hop;
  __attribute__((always_inline)) Fetch from(long row) const { return {ahead, next + row * hop, hop}; }
  // With the row at b, the k-th, of ROW elements.
  template <int ROW> __attribute__((always_inline)) void row(const T *b, long k) const {
    constexpr int LINE = 64 / sizeof(T);
    if constexpr (CACHE_OF_PANELS == 3 || LINES == 0)
      MN_UNROLL for (int j = 0; j < ROW; j += LINE) __builtin_prefetch(b + ahead + j, 0, CACHE_OF_PANELS);
    if (k % EVERY == 0)
      MN_UNROLL for (int j = 0; j < LINES; ++j) __builtin_prefetch(next + k * hop + j * LINE, 0, 2);
  }
};
// Of the panel itself alone, whose rows lie so far apart.
template <class T> MN_INLINE Fetch<T, 0> fetch_own(long row) { return {16 * row, nullptr, 0}; }
// For the ``tile``-th of TILES that pass over the panel B of so many rows of ROW elements: an equal part of what lies behind
// it, so that memory is read at one rate all the time. A tile that is alone reads memory as fast as it comes; it does so too
// where panels are SHORT.
template <int TILES, long ROW, bool SHORT = false, class T> MN_INLINE auto fetch_of(int tile, const T *B, long rows) {
  constexpr long HOP = (ROW + TILES - 1) / TILES;
  constexpr int LINE = 64 / sizeof(T), LINES = TILES > 1 || SHORT ? (HOP + LINE - 1) / LINE : 0;
  constexpr int EVERY = CACHE_OF_PANELS == 3 || sizeof(T) < 4 ? 1 : 4 * HOP <= LINE ? 4 : 2 * HOP <= LINE ? 2 : 1;
  return Fetch<T, LINES, EVERY>{16 * ROW, B + rows * ROW + tile * (rows * ROW / TILES), HOP};
}

// W neighbouring numbers of a panel.
template <class E> MN_INLINE V row_now(const E *p) {
  if constexpr (std::is_same_v<E, float>) return load_now(p);
  typename Packed<E, W>::Type numbers;
  __builtin_memcpy(&numbers, p, sizeof numbers);
  return widen<V, E>(numbers);
}

// What a product takes W neighbours of a panel's row for.
struct AsTheyAre {
  template <class E> __attribute__((always_inline)) V operator()(const E *p) const { return row_now(p); }
};

// c = A B for MR rows and NV vectors of columns, A rows lda apart, B rows ldb apart and read once each: the sums stay in
// registers. KU independent sums (of every KU-th k) hide the multiply-add latency of small tiles.
template <int MR, int NV, int KU, class TB, class Fetching, class Row = AsTheyAre>
MN_INLINE void multiply(const float *__restrict A, long lda, const TB *__restrict B, long ldb, long K, V (&c)[KU][MR][NV],
                        Fetching fetch, Row row_of = {}) {
  MN_UNROLL for (int u = 0; u < KU; ++u)
    MN_UNROLL for (int i = 0; i < MR; ++i)
      MN_UNROLL for (int j = 0; j < NV; ++j) c[u][i][j] = V{};
  auto step = [&](int u) __attribute__((always_inline)) {
    const TB *b = B + u * ldb;
    V row[NV];
    MN_UNROLL for (int j = 0; j < NV; ++j) row[j] = row_of(b + j * W);
    if constexpr (MR > STREAMED) fetch.template row<NV * W>(b, u);
    MN_UNROLL for (int i = 0; i < MR; ++i) {
      const V a = splat_now(A[i * lda + u]);
      MN_UNROLL for (int j = 0; j < NV; ++j) add_now(c[u % KU][i][j], a, row[j]);
    }
  };
  constexpr int STEP = KU > 2 ? KU : STEPS;
  long k = 0;
  for (; k + STEP <= K; k += STEP, A += STEP, B += STEP * ldb, fetch = fetch.from(STEP)) {
    A = held(A), B = held(B);
    MN_UNROLL for (int u = 0; u < STEP; ++u) step(u);
  }
  MN_NOUNROLL for (; k < K; ++k, ++A, B += ldb, fetch = fetch.from(1)) step(0);
  MN_UNROLL for (int u = 1; u < KU; ++u)
    MN_UNROLL for (int i = 0; i < MR; ++i)
      MN_UNROLL for (int j = 0; j < NV; ++j) c[0][i][j] += c[u][i][j];
}

// Long sums are cut into runs of so many terms, whose results are added in order: the rounding error of one chain of
// float32 additions grows with its length.
constexpr long RUN = 1024;

// MR x (NV vectors) of C = A B, handed to ``epilogue`` in registers.
template <int MR, int NV, int KU, class TB, class Epilogue, class Fetching>
MN_INLINE void tile(const float *__restrict A, long lda, const TB *__restrict B, long ldb, long K, Epilogue &&epilogue,
                    Fetching fetch) {
  V c[KU][MR][NV];
  multiply<MR, NV, KU>(A, lda, B, ldb, K < RUN ? K : RUN, c, fetch);
  if (K > RUN) {
    V total[MR][NV];
    __builtin_memcpy(total, c[0], sizeof total);
    for (long k = RUN; k < K; k += RUN) {
      asm volatile("" : : "r"(total) : "memory");  // the total waits in the cache, not in registers
      multiply<MR, NV, KU>(A + k, lda, B + k * ldb, ldb, K - k < RUN ? K - k : RUN, c, fetch.from(k));
      MN_UNROLL for (int i = 0; i < MR; ++i)
        MN_UNROLL for (int j = 0; j < NV; ++j) total[i][j] += c[0][i][j];
    }
    __builtin_memcpy(c[0], total, sizeof total);
  }
  epilogue(c[0]);
}
template <int MR, int NV, int KU, class TB, class Epilogue>
MN_INLINE void tile(const float *__restrict A, long lda, const TB *__restrict B, long ldb, long K, Epilogue &&epilogue) {
  tile<MR, NV, KU>(A, lda, B, ldb, K, epilogue, fetch_own<TB>(ldb));
}

// M rows and a panel of columns in register tiles of at most MOST rows, cut evenly. CHAINS independent sums hide the
// latency of a multiply-add.
template <int M, int PANEL, int MOST, int CHAINS = 8> struct Shape {
  static constexpr int NV = PANEL / W;
  static constexpr int BLOCKS = (M + MOST - 1) / MOST;
  static constexpr int SMALL = M / BLOCKS, LARGE = SMALL + 1, LARGES = M % BLOCKS;
  static constexpr int sums(int mr) { return mr * NV >= CHAINS ? 1 : (CHAINS + mr * NV - 1) / (mr * NV); }
};

// An epilogue that takes two vectors of neighbours as one as well.
template <class F> struct InPairs : F {
  using F::operator();
};
template <class F> MN_INLINE InPairs<F> in_pairs(F f) { return {f}; }
template <class F> constexpr bool is_paired = false;
template <class F> constexpr bool is_paired<InPairs<F>> = TWICE;

template <class T, int... L> MN_INLINE auto joined(T a, T b, Sequence<int, L...>) { return __builtin_shufflevector(a, b, L...); }

// Run an epilogue over a finished tile. Cheap ones, and those of pairs, are unrolled on registers; others loop over a copy in the
// cache.
// T: a vector of float or of int32.
template <bool CHEAP, int MR, int NV, bool PAIRED = false, class T, class Element>
MN_INLINE void finish(T (&c)[MR][NV], long row, Element &&element) {
  constexpr int TOGETHER = PAIRED && NV % 2 == 0 ? 2 : 1;
  if constexpr (CHEAP || TOGETHER == 2) {
    MN_UNROLL for (int i = 0; i < MR; ++i)
      MN_UNROLL for (int j = 0; j < NV; j += TOGETHER)
        if constexpr (TOGETHER == 1) element(row + i, (long)j * W, c[i][j]);
        else element(row + i, (long)j * W, joined(c[i][j], c[i][j + 1], Counted<2 * W>()));
  } else {
    alignas(64) Lane<T> copy[MR * NV * W];
    MN_UNROLL for (int i = 0; i < MR; ++i)
      MN_UNROLL for (int j = 0; j < NV; ++j) store<T>(copy + (i * NV + j) * W, c[i][j]);
    asm volatile("" : : "r"(copy) : "memory");
    MN_NOUNROLL for (int i = 0; i < MR; ++i)
      MN_UNROLL for (int j = 0; j < NV; ++j) element(row + i, (long)j * W, load<T>(copy + (i * NV + j) * W));
  }
}

// Sums that wait in the near cache between two runs of terms.
constexpr long WAITING = 1 << 13;

// A product's rows in register tiles of Shape S, its sums over K terms in runs of at most ``run``: all tiles pass over the
// part of the panel that a run reads, which stays in the second-level cache, before the next. Runs are added in order.
// ``multiply.operator()<MR>(row, k, terms, number, c)``: the sums over some terms from the k-th on of MR rows, the
// ``number``-th tile of S::BLOCKS.
template <class S, bool CHEAP, class Sum, class Multiply, class Element>
MN_INLINE void in_runs(long K, long run, Multiply &&multiply, Element &&element) {
  constexpr int MOST = S::LARGES ? S::LARGE : S::SMALL, TOGETHER = 1 + (WAITING - 1) / (MOST * S::NV * W);
  constexpr int BLOCKS = TOGETHER < S::BLOCKS ? TOGETHER : S::BLOCKS;
  alignas(64) Lane<Sum> waiting[BLOCKS * MOST * S::NV * W];
  long first = 0;
  MN_NOUNROLL for (int block = 0; block < S::BLOCKS; block += BLOCKS) {
    const int end = block + BLOCKS < S::BLOCKS ? block + BLOCKS : S::BLOCKS, larges = end < S::LARGES ? end : S::LARGES;
    long row = first, k = 0;
    do {
      int number = block;
      row = first;
      auto tile = [&]<int MR>() __attribute__((always_inline)) {
        Sum c[S::sums(MR)][MR][S::NV];
        multiply.template operator()<MR>(row, k, K - k < run ? K - k : run, number, c);
        Lane<Sum> *sums = waiting + (row - first) * S::NV * W;
        if (k > 0)
          MN_UNROLL for (int i = 0; i < MR; ++i)
            MN_UNROLL for (int j = 0; j < S::NV; ++j) c[0][i][j] = load<Sum>(sums + (i * S::NV + j) * W) + c[0][i][j];
        if (k + run < K) {
          MN_UNROLL for (int i = 0; i < MR; ++i)
            MN_UNROLL for (int j = 0; j < S::NV; ++j) store<Sum>(sums + (i * S::NV + j) * W, c[0][i][j]);
        } else {
          finish<CHEAP, MR, S::NV, is_paired<std::remove_cvref_t<Element>>>(c[0], row, element);
        }
        row += MR, ++number;
      };
      if constexpr (S::LARGES > 0) MN_NOUNROLL while (number < larges) tile.template operator()<S::LARGE>();
      if constexpr (S::BLOCKS > S::LARGES) MN_NOUNROLL while (number < end) tile.template operator()<S::SMALL>();
      k += run;
    } while (k < K);
    first = row;
  }
}

// M x PANEL of C = A B, at most MOST rows at once; ``element(m, n, v)`` takes W neighbours of row m from column n on.
template <int M, int PANEL, int MOST, bool CHEAP, class TB, class Element>
MN_INLINE void matmul(const float *A, long lda, const TB *B, long ldb, long K, Element &&element) {
  using S = Shape<M, PANEL, MOST>;
  in_runs<S, CHEAP, V>(K, RUN, [&]<int MR>(long row, long k, long terms, int number, auto &c) __attribute__((always_inline)) {
    const float *a = A + row * lda + k;
    const TB *b = B + k * ldb;
    if (ldb == PANEL) multiply<MR, S::NV, S::sums(MR)>(a, lda, b, ldb, terms, c, fetch_of<S::BLOCKS, PANEL>(number, b, terms));
    else multiply<MR, S::NV, S::sums(MR)>(a, lda, b, ldb, terms, c, fetch_own<TB>(ldb));
  }, element);
}

// Columns of a vector from n on, those before ``end``: all of them at once by an element that takes their number as well,
// else lane by lane.
template <class T, class Element> MN_INLINE void ragged(long m, long n, long end, T v, Element &&element) {
  if (n + W <= end) {
    element(m, n, v);
  } else if constexpr (std::is_invocable_v<Element, long, long, T, int>) {
    if (n < end) element(m, n, v, (int)(end - n));
  } else {
    typedef Lane<T> One __attribute__((vector_size(4)));
    for (int i = 0; i < W && n + i < end; ++i) element(m, n + i, One{v[i]});
  }
}

// M x N of C = A B where no register tile fits: of B nothing past its N columns is read.
template <class Element>
static inline void product(long M, long N, long K, const float *A, long lda, const float *B, long ldb, Element &&element) {
  auto rows = [&]<int MR>(long m, long n) __attribute__((always_inline)) {
    V sums[MR] = {};
    for (long k = 0; k < K; ++k) {
      const V row = load_between<V>(B + k * ldb + n, 0, 0, N - n);
      MN_UNROLL for (int i = 0; i < MR; ++i) sums[i] += A[(m + i) * lda + k] * row;
    }
    MN_UNROLL for (int i = 0; i < MR; ++i) ragged(m + i, n, N, sums[i], element);
  };
  for (long n = 0; n < N; n += W) {
    long m = 0;
    for (; m + 8 <= M; m += 8) rows.template operator()<8>(m, n);
    for (; m + 2 <= M; m += 2) rows.template operator()<2>(m, n);
    if (m < M) rows.template operator()<1>(m, n);
  }
}

// Words of a row of narrower elements, bit by bit, or floats.
template <class Bits, class T> MN_INLINE Bits words(const T *p) {
  Bits v;
  __builtin_memcpy(&v, p, sizeof v);
  return v;
}
// ROWS (at most W) rows of src, stride apart, become columns of dst, rows of ``ldd`` words; columns up to W are zero.
template <int ROWS, class T> MN_INLINE void transpose_block(float *dst, long ldd, const T *src, long stride) {
  V r[W];
  MN_UNROLL for (int i = 0; i < W; ++i) r[i] = i < ROWS ? words<V>(src + i * stride) : V{};
  transpose_square(r);
  MN_UNROLL for (int i = 0; i < W; ++i) store<V>(dst + i * ldd, r[i]);
}
// ROWS rows of D words become W columns.
template <int D, int ROWS, class T> static inline void transpose_rows(float *dst, long ldd, const T *src, long stride) {
  constexpr int WHOLE = D / W * W, EACH = sizeof(float) / sizeof(T);
  for (int d = 0; d < WHOLE; d += W) transpose_block<ROWS>(dst + d * ldd, ldd, src + d * EACH, stride);
  if constexpr (W > 1 && D - WHOLE > 1 && std::is_same_v<T, float>) {
    V r[W];
    MN_UNROLL for (int i = 0; i < W; ++i) r[i] = i < ROWS ? load_between<V>(src + i * stride + WHOLE, 0, 0, D - WHOLE) : V{};
    transpose_square(r);
    MN_UNROLL for (int d = WHOLE; d < D; ++d) store<V>(dst + d * ldd, r[d - WHOLE]);
    return;
  }
  for (int d = WHOLE; d < D; ++d)
    for (int i = 0; i < W; ++i) {
      const float word = i < ROWS ? words<float>(src + i * stride + d * EACH) : 0.f;
      __builtin_memcpy(dst + d * ldd + i, &word, sizeof word);
    }
}
// dst = src[T] of D words transposed, in panels [D][PANEL] (the last may be [D][W]): row t of src becomes column t;
// columns past T are zero.
template <int D, int T, int PANEL, class S> static inline void pack_transposed(float *dst, const S *src, long stride) {
  constexpr int WHOLE = T / W * W, TP = (T + W - 1) / W * W;
  auto column = [&](int t) { return dst + (long)(t / PANEL) * D * PANEL + t % PANEL; };
  auto width = [](int t) { return (long)(t / PANEL * PANEL + PANEL <= TP ? PANEL : W); };
  for (int t = 0; t < WHOLE; t += W) transpose_rows<D, W>(column(t), width(t), src + (long)t * stride, stride);
  if constexpr (T > WHOLE) transpose_rows<D, T - WHOLE>(column(WHOLE), width(WHOLE), src + (long)WHOLE * stride, stride);
}
// dst[panel][T][PANEL] = src's columns in panels (the last may be [T][W]); columns past E are zero.
template <int T, int E, int PANEL> static inline void pack_columns(float *dst, const float *src, long stride) {
  constexpr int WHOLE = E / W * W, EP = (E + W - 1) / W * W, WIDE = EP / PANEL * PANEL;
  for (int t = 0; t < T; ++t, src += stride) {
    auto at = [=](int e) { return dst + (long)(e / PANEL) * T * PANEL + t * (e < WIDE ? PANEL : W) + e % PANEL; };
    for (int e = 0; e < WHOLE; e += W) store<V>(at(e), load<V>(src + e));
    if constexpr (E > WHOLE) store<V>(at(WHOLE), load_between<V>(src + WHOLE, 0, 0, E - WHOLE));
  }
}

// The larger one in one instruction; ``b`` where one of them is a NaN.
struct Larger {
  template <class T> static T apply(T a, T b) { return a > b ? a : b; }
};

template <int R, int T, int D, int E, int MOST, bool GUARD> struct Attention {
  static constexpr int PANEL = 2 * W;
  static constexpr int TP = (T + W - 1) / W * W, EP = (E + W - 1) / W * W;
  static constexpr int ROWS = R < MOST ? R : MOST;
  // Between rows of scores: lines of all of them must find room in the first-level cache.
  static constexpr int ld(int keys) { return (keys + W - 1) / W * W + (keys % (16 * W) == 0 ? W : 0); }
  static constexpr long FLOATS = (long)TP * D + (long)T * EP + (long)ROWS * ld(T);  // worker-local memory it needs
  // Of so many keys that K and V would not stay in the second-level cache PART are taken at a time, and by all rows.
  static constexpr int NEAR = (1 << 16) / (D + EP), PART = NEAR < 16 * W ? 16 * W : NEAR / (16 * W) * (16 * W);
  static constexpr bool PARTED = T > 2 * PART && (long)PART * (D + EP) + ROWS * ld(PART) + R * (EP + 2l) <= FLOATS;

  // What lies behind the rows of a head: the next one's, where heads lie side by side. Fetched a line a step of the products
  // while this head is computed, since another core may have written it, and rows lie too far apart for prefetchers.
  struct Behind {
    const float *q, *k, *v;
    long ldq, ldk, ldv;
    // For the ``number``-th tile of scores, of D steps: a line of so many rows of k, then of v, then of q.
    Fetch<float, 1> fetch(int number, long ahead) const {
      constexpr auto tiles = [](int lines, int rows) { return lines * ((rows + D - 1) / D); };
      constexpr int LINES = (D + 15) / 16, WIDE = (E + 15) / 16, KEYS = tiles(LINES, T), VALUES = tiles(WIDE, T);
      auto line = [&](const float *rows, long ld, int lines, int at) __attribute__((always_inline)) {
        return Fetch<float, 1>{ahead, rows + at / lines * D * ld + at % lines * 16, ld};
      };
      if (number < KEYS) return line(k + D, ldk, LINES, number);
      if (number < KEYS + VALUES) return line(v + E, ldv, WIDE, number - KEYS);
      if (number < KEYS + VALUES + tiles(LINES, R)) return line(q + D, ldq, LINES, number - KEYS - VALUES);
      return {ahead, q, 0};
    }
  };

  // softmax(score(q k^T)) v for R query rows. ``score(i, j, s)`` is the epilogue of the first product (scale, mask),
  // ``element(i, e, o)`` stores the result. K and V are packed once; scores of a row block stay in the cache.
  template <class Score, class Element>
  static inline void run(const float *q, long ldq, const float *k, long ldk, const float *v, long ldv, float *local,
                         Score &&score, Element &&element) {
    const Behind behind{q, k, v, ldq, ldk, ldv};
    int number = 0;
    auto result = [&](long row, long e, V o) __attribute__((always_inline)) {
      if constexpr (EP == E) element(row, e, o);
      else ragged(row, e, E, o, element);
    };
    if constexpr (!PARTED) {
      float *kt = local, *vp = kt + (long)TP * D, *s = vp + (long)T * EP;
      pack_transposed<D, T, PANEL>(kt, k, ldk);
      pack_columns<T, E, PANEL>(vp, v, ldv);
      each_block([&]<int MR>(long row) __attribute__((always_inline)) {
        float scale[MR];
        block<MR, T>(q + row * ldq, ldq, kt, vp, s, behind, number, [&]() __attribute__((always_inline)) {
          MN_NOUNROLL for (int i = 0; i < MR; ++i) scale[i] = most(s + (long)i * ld(T), row + i, score);
          MN_NOUNROLL for (int i = 0; i < MR; ++i) scale[i] = exponentials(s + (long)i * ld(T), scale[i]);
        }, [&](int i, long e, V o) __attribute__((always_inline)) { result(row + i, e, o * scale[i]); });
      });
    } else {
      run_parts(q, ldq, k, ldk, v, ldv, local, score, result, behind, number);
    }
  }

  // What came of the keys before is scaled as a row's largest score grows (Milakov and Gimelshein, "Online normalizer
  // calculation for softmax", 2018).
  template <class Score, class Result>
  static inline void run_parts(const float *q, long ldq, const float *k, long ldk, const float *v, long ldv, float *local,
                               Score &score, Result &&result, const Behind &behind, int &number) {
    float *kt = local, *vp = kt + PART * D, *s = vp + PART * EP, *sums = s + ROWS * ld(PART), *tops = sums + R * EP;
    float *totals = tops + R;
    for (long i = 0; i < R * EP; ++i) sums[i] = 0;
    for (long i = 0; i < R; ++i) tops[i] = -INFINITY, totals[i] = 0;
    auto part = [&]<int N>(long from) __attribute__((always_inline)) {
      pack_transposed<D, N, PANEL>(kt, k + from * ldk, ldk);
      pack_columns<N, E, PANEL>(vp, v + from * ldv, ldv);
      each_block([&]<int MR>(long row) __attribute__((always_inline)) {
        float scale[MR];
        block<MR, N>(q + row * ldq, ldq, kt, vp, s, behind, number, [&]() __attribute__((always_inline)) {
          MN_NOUNROLL for (int i = 0; i < MR; ++i) {
            float &top = tops[row + i], &total = totals[row + i], *mine = s + i * ld(N);
            const float before = top;
            top = Larger::apply<float>(most_of<N>(mine, row + i, from, score), before);
            const float base = top == -INFINITY ? 0.f : top;
            scale[i] = mn::exp<V1>(V1{before - base})[0];
            total = total * scale[i] + sum_of<N>(mine, base);
          }
        }, [&](int i, long e, V o) __attribute__((always_inline)) {
          float *sum = sums + (row + i) * EP + e;
          store<V>(sum, load<V>(sum) * scale[i] + o);
        });
      });
    };
    MN_NOUNROLL for (long from = 0; from + PART <= T; from += PART) part.template operator()<PART>(from);
    if constexpr (T % PART > 0) part.template operator()<T % PART>(T / PART * PART);
    MN_NOUNROLL for (long row = 0; row < R; ++row) {
      const float share = reciprocal(totals[row]);
      MN_NOUNROLL for (long e = 0; e < EP; e += W) result(row, e, load<V>(sums + row * EP + e) * share);
    }
  }

  // body.operator()<MR>(row) for blocks of rows of much the same height.
  template <class Body> MN_INLINE void each_block(Body &&body) {
    using S = Shape<R, PANEL, MOST>;
    long row = 0;
    if constexpr (S::LARGES > 0)
      MN_NOUNROLL for (int b = 0; b < S::LARGES; ++b, row += S::LARGE) body.template operator()<S::LARGE>(row);
    if constexpr (S::BLOCKS > S::LARGES)
      MN_NOUNROLL for (int b = S::LARGES; b < S::BLOCKS; ++b, row += S::SMALL) body.template operator()<S::SMALL>(row);
  }

  // The scores of MR rows and N keys, what ``softmax()`` makes of them in place, and its product with their values, for
  // ``take(i, e, sum)``.
  template <int MR, int N, class Softmax, class Take>
  static inline void block(const float *q, long ldq, const float *kt, const float *vp, float *s, const Behind &behind,
                           int &number, Softmax &&softmax, Take &&take) {
    constexpr int NV = PANEL / W, NP = (N + W - 1) / W * W, WIDE = EP / PANEL * PANEL;
    auto scores = [&]<int VECTORS>(long first) __attribute__((always_inline)) {
      tile<MR, VECTORS, 1>(q, ldq, kt + first * D, VECTORS * W, D, [&](auto &c) __attribute__((always_inline)) {
        MN_UNROLL for (int i = 0; i < MR; ++i)
          MN_UNROLL for (int j = 0; j < VECTORS; ++j) store<V>(s + i * ld(N) + first + j * W, c[i][j]);
      }, behind.fetch(number++, 16 * VECTORS * W));
    };
    for (long first = 0; first + PANEL <= NP; first += PANEL) scores.template operator()<NV>(first);
    if constexpr (NP % PANEL > 0) scores.template operator()<1>(NP / PANEL * PANEL);
    softmax();
    auto values = [&]<int VECTORS>(long first) __attribute__((always_inline)) {
      tile<MR, VECTORS, 1>(s, ld(N), vp + first * N, VECTORS * W, N, [&](auto &c) __attribute__((always_inline)) {
        MN_UNROLL for (int i = 0; i < MR; ++i)
          MN_UNROLL for (int j = 0; j < VECTORS; ++j) take(i, first + j * W, c[i][j]);
      });
    };
    for (long first = 0; first < WIDE; first += PANEL) values.template operator()<NV>(first);
    if constexpr (EP > WIDE) values.template operator()<1>(WIDE);
  }

  // A row's scores in place and the largest of them (a NaN shows in the sum); scores past T become -infinity.
  template <class Score> static inline float most(float *s, long i, Score &score) {
    const float top = most_of<T>(s, i, 0, score);
    return GUARD && top == -INFINITY ? 0.f : top;
  }
  // As ``most``, of N keys from ``from`` on.
  template <int N, class Score> static inline float most_of(float *s, long i, long from, Score &score) {
    constexpr int WHOLE = N / W * W, NP = (N + W - 1) / W * W;
    V high = splat<V>(-INFINITY);
    for (long j = 0; j < WHOLE; j += W) {
      V x = score(i, from + j, load<V>(s + j));
      store<V>(s + j, x);
      high = Larger::apply<V>(x, high);
    }
    float top = across<Larger, V>(high);
    for (long j = WHOLE; j < N; ++j) {
      s[j] = score(i, from + j, V1{s[j]})[0];
      top = Larger::apply<float>(s[j], top);
    }
    for (long j = N; j < NP; ++j) s[j] = -INFINITY;
    return top;
  }

  // exp(s - top) in place; the reciprocal of the sum.
  static inline float exponentials(float *s, float top) { return reciprocal(sum_of<T>(s, top)); }
  static inline float reciprocal(float total) { return GUARD && total == 0 ? 0.f : 1.f / total; }
  // exp(s - top) of N scores in place, and their sum. Some vectors at once: one alone is a long chain of operations.
  template <int N> static inline float sum_of(float *s, float top) {
    using Some = typename Lanes<(W < 16 ? 2 : 4) * W>::F;
    constexpr int SOME = lanes<Some>, NP = (N + W - 1) / W * W;
    Some sums{};
    V sum{};
    auto exponential = [&](auto &to, long j) __attribute__((always_inline)) {
      using X = std::remove_cvref_t<decltype(to)>;
      const X x = exp_near<X>(load<X>(s + j) - top);
      store<X>(s + j, x);
      to += x;
    };
    long j = 0;
    for (; j + SOME <= NP; j += SOME) exponential(sums, j);
    for (; j < NP; j += W) exponential(sum, j);
    return across<Add, Some>(sums) + across<Add, V>(sum);
  }
};

}  // namespace mn
