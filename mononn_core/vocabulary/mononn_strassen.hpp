// Products by Strassen's algorithm ("Gaussian elimination is not optimal", 1969) in the form of Winograd ("On
// multiplication of 2 x 2 matrices", 1971): rows, terms and columns in halves, seven products of halves in place of
// eight.
#pragma once
#include "mononn_cpu.hpp"

namespace mn {

// Whose left sides lie in a worker's memory, and whether they are plain: quadrants of A, not sums of them.
struct LeftSides {
  const float *of = nullptr;
  bool plain = false;
};

// One product of a register tile: its left side ``left`` by what lies in quadrant ``right`` of B (0: upper left, 1: upper
// right, 2, 3), with that of quadrant 3 added where it is ``summed``. To the product is added what waits in ``from``; the
// sum then waits in ``to``, or is quadrant ``out`` of C. The product alone is added to what waits in ``also``. -1: none.
struct ProductStep {
  int8_t left, right, summed, from, to, also, out;
};
// With T1 = B12 - B11, T2 = B22 - T1 and T3 = B22 - B12, what lies in B's quadrants is T3, -T1, B21 and -T2, so that -B11,
// -B22 and B21 - T2 are sums with the last one. With S1 = A21 + A22, S2 = S1 - A11, S3 = A11 - A21 and S4 = A12 - S2, left
// sides are -A11, A12, -S2, S3, -S1, -S4 and A22.
constexpr ProductStep SEVEN[] = {{0, 0, 1, -1, 0, -1, -1}, {1, 2, 0, 0, -1, -1, 0}, {2, 3, 0, 0, 0, -1, -1},
                                 {3, 0, 0, 0, 1, -1, -1},  {4, 1, 0, 1, -1, 0, 3},  {5, 1, 1, 0, -1, -1, 1},
                                 {6, 2, 1, 1, -1, -1, 2}};
// Of plain left sides, -A11, A12, -A12, -A21, A22 and -A22: B12 = B11 + T1.
constexpr ProductStep EIGHT[] = {{0, 0, 1, -1, 0, -1, -1}, {1, 2, 0, 0, -1, -1, 0},  {0, 1, 0, 0, 0, -1, -1},
                                 {2, 1, 1, 0, -1, -1, 1},  {3, 0, 1, -1, 0, -1, -1}, {4, 2, 0, 0, -1, -1, 2},
                                 {3, 1, 0, 0, 0, -1, -1},  {5, 1, 1, 0, -1, -1, 3}};

// Fetches as F does, and the left side of the next product: a line of it with each row of the panel.
template <class F> struct WithLeft {
  F fetch;
  const float *left;
  __attribute__((always_inline)) WithLeft from(long row) const { return {fetch.from(row), left + row * 16}; }
  template <int ROW> __attribute__((always_inline)) void row(const float *b, long k) const {
    fetch.template row<ROW>(b, k);
    __builtin_prefetch(left + k * 16, 0, 2);
  }
};

// The bits of 2^80. Left sides up to it, by right ones up to 2^20, have sums of a million terms that do not overflow.
constexpr int32_t MOST_LEFT = (127 + 80) << 23;

// M x PANEL of C = A B, K terms, in register tiles of at most MOST rows by half a panel. Sums over terms are cut into
// runs, each with halves of its own. Where sums of A's quadrants are no numbers, or very large, all rows are multiplied
// plainly, so that what is no number spoils its own row alone.
template <int M, long K, int PANEL, int MOST> struct Strassen {
  static_assert(K % 32 == 0 && PANEL % (2 * W) == 0);
  static constexpr int ROWS = (M + 1) / 2, WIDE = PANEL / 2;  // of a quadrant of C
  using S = Shape<ROWS, WIDE, MOST>;
  static constexpr int NV = S::NV, TALL = S::LARGES ? S::LARGE : S::SMALL;
  static constexpr long RUNS = (K + RUN - 1) / RUN, TERMS = (K / 32 + RUNS - 1) / RUNS * 32;  // of a run, at most
  static constexpr long LDA = TERMS / 2 % 256 ? TERMS / 2 : TERMS / 2 + 16;
  static constexpr long LEFT = 7 * ROWS * LDA;                  // of a run's left sides
  static constexpr long SUMS = RUNS > 1 ? 4 * ROWS * WIDE : 0;  // of the runs before
  static constexpr long FLOATS = RUNS * LEFT + SUMS;            // worker-local memory it needs

  // ``at(m)``: row m of A; ``of`` says whose rows they are. ``element(m, n, v)`` as of ``matmul``.
  template <bool CHEAP, class At, class Element>
  static inline void run(const float *of, At &&at, const float *B, float *local, LeftSides &left, Element &&element) {
    if (left.of != of) {
      left = {of, !pack<false>(at, local)};
      if (left.plain) pack<true>(at, local);
    }
    MN_NOUNROLL for (long run = 0; run < RUNS; ++run) products<CHEAP>(run, left.plain, B, local, element);
  }

  static constexpr long half_of(long run) { return (run + 1 < RUNS ? TERMS : K - run * TERMS) / 2; }

  // The left sides of every register tile of every run, one behind the other, rows LDA apart. A last row that has none
  // below it is above zeros. False: some are no numbers, or too large.
  template <bool PLAIN, class At> static inline bool pack(At &&at, float *local) {
    Int<V> most{};  // the bits of a sum of magnitudes: those of what is no number come last
    auto magnitude = [](V v) __attribute__((always_inline)) { return (V)((Int<V>)v & 0x7fffffff); };
    MN_NOUNROLL for (long run = 0; run < RUNS; ++run) {
      const long half = half_of(run);
      MN_NOUNROLL for (long number = 0, row = 0; number < S::BLOCKS; ++number) {
        const long rows = number < S::LARGES ? S::LARGE : S::SMALL;
        float *to = local + run * LEFT + 7 * row * LDA;
        MN_NOUNROLL for (const long end = row + rows; row < end; ++row, to += LDA) {
          const bool both = M % 2 == 0 || row + ROWS < M;
          const float *above = at(row) + run * TERMS, *below = both ? at(row + ROWS) + run * TERMS : above;
          MN_NOUNROLL for (long k = 0; k < half; k += W) {
            const V a11 = load<V>(above + k), a12 = load<V>(above + half + k);
            const V a21 = both ? load<V>(below + k) : V{}, a22 = both ? load<V>(below + half + k) : V{};
            const V s1 = a21 + a22, s2 = s1 - a11, s3 = a11 - a21, s4 = a12 - s2;
            auto put = [&](auto... sides) __attribute__((always_inline)) {
              float *p = to + k;
              ((store<V>(p, sides), p += rows * LDA), ...);
            };
            if constexpr (PLAIN) put(-a11, a12, -a12, -a21, a22, -a22);
            else put(-a11, a12, -s2, s3, -s1, -s4, a22);
            const auto all = (Int<V>)((magnitude(s1) + magnitude(s2)) + (magnitude(s3) + magnitude(s4)));
            most = all > most ? all : most;
          }
        }
      }
    }
    bool small = true;
    for (int i = 0; i < W; ++i) small &= most[i] <= MOST_LEFT;
    return small;
  }

  template <bool CHEAP, class Element>
  static inline void products(long run, bool plain, const float *B, float *local, Element &element) {
    alignas(64) float waiting[2][TALL * WIDE];
    const long half = half_of(run), far = half * PANEL;
    const float *b = B + run * TERMS * PANEL, *left = local + run * LEFT;
    float *const sums = local + RUNS * LEFT;
    const ProductStep *const steps = plain ? EIGHT : SEVEN;
    const int count = plain ? 8 : 7;
    int part = 0;
    auto tile = [&]<int MR>(long row) __attribute__((always_inline)) {
      MN_NOUNROLL for (int i = 0; i < count; ++i, ++part) {
        const ProductStep step = steps[i];
        const float *a = left + step.left * MR * LDA, *right = b + step.right / 2 * far + step.right % 2 * WIDE;
        V c[S::sums(MR)][MR][NV];
        auto fetch = fetch_of<7 * S::BLOCKS, 2 * PANEL>(part, b, half);
        fetch.ahead = 16 * PANEL;
        const auto times = [&](auto &&row_of) __attribute__((always_inline)) {
          multiply<MR, NV, S::sums(MR)>(a, LDA, right, PANEL, half, c, WithLeft<decltype(fetch)>{fetch, a + MR * LDA}, row_of);
        };
        const long last = b + far + WIDE - right;
        if (step.summed) times([=](const float *p) __attribute__((always_inline)) { return row_now(p) + row_now(p + last); });
        else times(AsTheyAre());
        auto each = [&](float *sum, auto &&f) __attribute__((always_inline)) {
          MN_UNROLL for (int m = 0; m < MR; ++m)
            MN_UNROLL for (int n = 0; n < NV; ++n) f(c[0][m][n], sum + (m * NV + n) * W);
        };
        const auto add = [](V &v, float *p) __attribute__((always_inline)) { v += load<V>(p); };
        const auto keep = [](V v, float *p) __attribute__((always_inline)) { store<V>(p, v); };
        if (step.also >= 0) each(waiting[step.also], [](V v, float *p) __attribute__((always_inline)) { store<V>(p, load<V>(p) + v); });
        if (step.from >= 0) each(waiting[step.from], add);
        if (step.to >= 0) each(waiting[step.to], keep);
        if (step.out < 0) continue;
        const long below = step.out / 2 * ROWS, beside = step.out % 2 * WIDE;
        float *const before = sums + (step.out * ROWS + row) * WIDE;
        if (RUNS > 1 && run > 0) each(before, add);
        if (RUNS > 1 && run + 1 < RUNS) {
          each(before, keep);
        } else {
          finish<CHEAP, MR, NV, is_paired<std::remove_cvref_t<Element>>>(
              c[0], row + below, [&](long m, long n, auto v) __attribute__((always_inline)) {
                if (M % 2 == 0 || m < M) element(m, n + beside, v);
              });
        }
      }
      left += 7 * MR * LDA;
    };
    long row = 0;
    if constexpr (S::LARGES > 0)
      MN_NOUNROLL for (; row < S::LARGES * S::LARGE; row += S::LARGE) tile.template operator()<S::LARGE>(row);
    if constexpr (S::BLOCKS > S::LARGES) MN_NOUNROLL for (; row < ROWS; row += S::SMALL) tile.template operator()<S::SMALL>(row);
  }
};

}  // namespace mn
