// A step of a recurrence whose states are rounded to whole numbers and multiplied by weights of 8 bits, in generated CPU code.
#pragma once
#include "mononn_recurrence.hpp"
#include "mononn_weight_only.hpp"

namespace mn {

// ROWS rows of K states by units of B, digits of 8 bits whose middle stands for zero, in blocks of BLOCK units, their GATES side
// by side, in groups of four terms. A row's states are multiples of its scale, the largest of them STEPS of it: in a byte with a
// sign, or as 256 times one and another.
template <int GATES, int BLOCK, int ROWS, int MOST, int PIECES, long K> struct RecurrenceBytes {
  static constexpr int PANEL = GATES * BLOCK, NV = PANEL / W, MIDDLE = 128;
  static constexpr long TERMS = (K + 3) / 4 * 4, FLOATS = ROWS * (1 + PIECES + PIECES * TERMS / 4);
  static constexpr float STEPS = PIECES == 2 ? 127 * 256 : 127, LEAST = 1e-30f;
  using S = Shape<ROWS, PANEL, MOST>;
  using I = Lanes<W>::I;
  using U = Lanes<W>::U;
  struct Rows {
    float scale[ROWS];
    int32_t first[ROWS][PIECES];  // what a sum begins with, because digits are no numbers yet
    int8_t terms[ROWS][PIECES][TERMS];
  };
  static_assert(sizeof(Rows) <= FLOATS * sizeof(float));

  template <class Element, class Tail>
  static inline void run(const float *A, long lda, const uint8_t *B, long units, bool backwards, float *local, Element &&element, Tail &&tail) {
    Rows &rows = *(Rows *)local;
    MN_NOUNROLL for (int i = 0; i < ROWS; ++i) rounded(A + i * lda, rows, i);
    const long blocks = (units + BLOCK - 1) / BLOCK;
    for (long i = 0; i < blocks; ++i) {
      const long block = backwards ? blocks - 1 - i : i;
      const uint8_t *panel = B + block * TERMS * PANEL;
      long row = 0;
      if constexpr (S::LARGES > 0)
        for (int b = 0; b < S::LARGES; ++b, row += S::LARGE) tile<S::LARGE>(rows, row, panel, block * BLOCK, units, element, tail);
      if constexpr (S::BLOCKS > S::LARGES)
        for (int b = S::LARGES; b < S::BLOCKS; ++b, row += S::SMALL) tile<S::SMALL>(rows, row, panel, block * BLOCK, units, element, tail);
    }
  }

  // Row i. Its largest magnitude is found in its bits, among which those of infinity and NaN come last.
  MN_INLINE void rounded(const float *a, Rows &rows, int i) {
    constexpr long WHOLE = K / W * W;
    I most = {};
    MN_NOUNROLL for (long k = 0; k < WHOLE; k += W) {
      const I bits = (I)load<V>(a + k) & 0x7fffffff;
      most = bits > most ? bits : most;
    }
    int32_t last = __builtin_bit_cast(int32_t, LEAST);
    MN_UNROLL for (int j = 0; j < W; ++j) last = most[j] > last ? most[j] : last;
    for (long k = WHOLE; k < K; ++k) {
      const int32_t bits = __builtin_bit_cast(int32_t, a[k]) & 0x7fffffff;
      last = bits > last ? bits : last;
    }
    const float largest = __builtin_bit_cast(float, last), factor = STEPS / largest;
    rows.scale[i] = largest / STEPS + (largest - largest);  // NaN where one is or not all are finite
    int8_t(&terms)[PIECES][TERMS] = rows.terms[i];
    I sums[PIECES] = {};
    MN_NOUNROLL for (long k = 0; k < WHOLE; k += W) {
      I part[PIECES];
      split<V>(load<V>(a + k) * splat<V>(factor), part);
      MN_UNROLL for (int p = 0; p < PIECES; ++p) {
        const auto bytes = narrow<int8_t, I>(part[p]);
        __builtin_memcpy(terms[p] + k, &bytes, sizeof bytes);
        sums[p] += part[p];
      }
    }
    Int<V1> rest[PIECES] = {};
    for (long k = WHOLE; k < TERMS; ++k) {
      Int<V1> part[PIECES];
      split<V1>(V1{k < K ? a[k] * factor : 0.0f}, part);
      MN_UNROLL for (int p = 0; p < PIECES; ++p) terms[p][k] = (int8_t)part[p][0], rest[p] += part[p];
    }
    MN_UNROLL for (int p = 0; p < PIECES; ++p) {
      MN_UNROLL for (int j = 0; j < W; ++j) rest[p][0] += sums[p][j];
      rows.first[i][p] = -MIDDLE * rest[p][0];
    }
  }

  // The nearest whole numbers, as 256 times one and another where they take two bytes.
  template <class T> MN_INLINE void split(T value, Int<T> (&part)[PIECES]) {
    const Int<T> whole = nearest<T>(value);
    part[0] = whole;
    if constexpr (PIECES == 2) {
      part[0] = (whole + 128) >> 8;
      part[1] = whole - (part[0] << 8);
    }
  }

  template <int MR, class Element, class Tail>
  MN_INLINE void tile(const Rows &rows, long row, const uint8_t *panel, long n, long end, Element &&element, Tail &&tail) {
    I c[PIECES][MR][NV];
    MN_UNROLL for (int p = 0; p < PIECES; ++p)
      MN_UNROLL for (int i = 0; i < MR; ++i)
        MN_UNROLL for (int j = 0; j < NV; ++j) c[p][i][j] = I{} + rows.first[row + i][p];
    MN_NOUNROLL for (long k = 0; k < TERMS; k += 4, panel += 4 * PANEL) {
      U digits[NV];
      MN_UNROLL for (int j = 0; j < NV; ++j) digits[j] = (U)load<I>((const int32_t *)panel + j * W);
      MN_UNROLL for (int i = 0; i < MR; ++i)
        MN_UNROLL for (int p = 0; p < PIECES; ++p) {
          int32_t group;
          __builtin_memcpy(&group, rows.terms[row + i][p] + k, 4);
          MN_UNROLL for (int j = 0; j < NV; ++j) c[p][i][j] = dot_digits(c[p][i][j], digits[j], group);
        }
    }
    V sums[MR][NV];
    MN_UNROLL for (int i = 0; i < MR; ++i)
      MN_UNROLL for (int j = 0; j < NV; ++j) {
        sums[i][j] = to_float<V>(c[0][i][j]);
        if constexpr (PIECES == 2) sums[i][j] = sums[i][j] * 256.0f + to_float<V>(c[1][i][j]);
        sums[i][j] *= splat<V>(rows.scale[row + i]);
      }
    each_gate<GATES>(sums, row, n, end, element, tail, Counted<GATES>{});
  }
};

}  // namespace mn
