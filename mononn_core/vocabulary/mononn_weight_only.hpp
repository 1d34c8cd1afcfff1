// Products of floats by weights of few bits in blocks, in generated CPU code.
//
// Weights lie in panels of [K][bytes], the digits of PANEL columns a row: of 8 bits a byte a column; of 4 bits W bytes
// hold two vectors of columns, the first one's digits in their lower halves. A digit d of a block of ``block`` rows
// stands for (d - middle) scale - shift, middle half the digits' range; ``S`` has a row of PANEL scales a block,
// followed where SHIFTED by one of shifts.
#pragma once
#include "mononn_dot.hpp"

namespace mn {

// W digits less their middle.
template <int BITS> MN_INLINE V centred(Lanes<W>::U digits) {
#if MONONN_VECTOR_BYTES == 64
  if constexpr (BITS == 4) {  // an index of 16 entries is four bits, whatever stands above them
    constexpr x86::F512 TABLE = {-8, -7, -6, -5, -4, -3, -2, -1, 0, 1, 2, 3, 4, 5, 6, 7};
    return (V)x86::look_up(TABLE, (x86::I512)digits);
  }
#endif
  constexpr int MIDDLE = 1 << (BITS - 1);
  const Lanes<W>::I whole = (Lanes<W>::I)(digits & (2 * MIDDLE - 1)) - MIDDLE;
  return to_float<V>(whole);
}

// A row of a panel.
template <int BITS, int NV> MN_INLINE void digits(const uint8_t *p, V (&row)[NV]) {
  using Bytes = Packed<uint8_t, W>::Type;
  static_assert(BITS == 8 || NV % 2 == 0);
  MN_UNROLL for (int j = 0; j < NV; j += 8 / BITS) {
    Bytes bytes;
    __builtin_memcpy(&bytes, p + j * W * BITS / 8, sizeof bytes);
    const auto wide = __builtin_convertvector(bytes, Lanes<W>::U);
    row[j] = centred<BITS>(wide);
    if constexpr (BITS == 4) row[j + 1] = centred<BITS>(wide >> 4);
  }
}

template <int PANEL, int BITS, bool SHIFTED> struct Blocks {
  static constexpr int NV = PANEL / W, BYTES = PANEL * BITS / 8;
  static constexpr long POINTS = SHIFTED ? 2 * PANEL : PANEL;  // numbers of a block

  // c = A B for MR rows: the digits of a block are added up first.
  template <int MR> MN_INLINE void few(const float *A, long lda, const uint8_t *B, const float *S, long K, long block, V (&total)[MR][NV]) {
    MN_UNROLL for (int i = 0; i < MR; ++i)
      MN_UNROLL for (int j = 0; j < NV; ++j) total[i][j] = V{};
    for (long k = 0; k < K; S += POINTS) {
      const long end = k + block < K ? k + block : K;
      V c[MR][NV] = {};
      float sum[MR] = {};
      MN_NOUNROLL for (; k < end; ++k) {
        V row[NV];
        digits<BITS>(B + k * BYTES, row);
        __builtin_prefetch(B + k * BYTES + 4096);
        MN_UNROLL for (int i = 0; i < MR; ++i) {
          const float a = A[i * lda + k];
          if constexpr (SHIFTED) sum[i] += a;
          MN_UNROLL for (int j = 0; j < NV; ++j) c[i][j] += splat<V>(a) * row[j];
        }
      }
      MN_UNROLL for (int j = 0; j < NV; ++j) {
        const V scale = load<V>(S + j * W);
        MN_UNROLL for (int i = 0; i < MR; ++i) {
          total[i][j] += c[i][j] * scale;
          if constexpr (SHIFTED) total[i][j] -= splat<V>(sum[i]) * load<V>(S + PANEL + j * W);
        }
      }
    }
  }

  // Rows [first, first + count) of the matrix that a panel stands for.
  MN_INLINE void expand(const uint8_t *B, const float *S, long first, long count, long block, float *out) {
    for (long k = first; k < first + count;) {
      const long end = (k / block + 1) * block < first + count ? (k / block + 1) * block : first + count;
      const float *points = S + k / block * POINTS;
      V scale[NV], shift[NV];
      MN_UNROLL for (int j = 0; j < NV; ++j) {
        scale[j] = load<V>(points + j * W);
        if constexpr (SHIFTED) shift[j] = load<V>(points + PANEL + j * W);
      }
      MN_NOUNROLL for (; k < end; ++k, out += PANEL) {
        V row[NV];
        digits<BITS>(B + k * BYTES, row);
        MN_UNROLL for (int j = 0; j < NV; ++j) {
          if constexpr (SHIFTED) store<V>(out + j * W, row[j] * scale[j] - shift[j]);
          else store<V>(out + j * W, row[j] * scale[j]);
        }
      }
    }
  }
};

// M x PANEL of a product. Up to FEW rows take the digits as they are; more share runs of rows that are made floats in
// the worker's memory first, between which their sums wait there.
template <int M, int PANEL, int MOST, int BITS, bool SHIFTED> struct WeightOnly {
  using B = Blocks<PANEL, BITS, SHIFTED>;
  using S = Shape<M, PANEL, MOST>;
  static constexpr int NV = PANEL / W, FEW = 4, TERMS = 256;
  static constexpr long FLOATS = M <= FEW ? 0 : (TERMS + M) * PANEL;

  template <bool CHEAP, class Element>
  static inline void run(const float *A, long lda, const uint8_t *digits, const float *points, long K, long block, float *local, Element &&element) {
    if constexpr (M <= FEW) {
      V c[M][NV];
      B::template few<M>(A, lda, digits, points, K, block, c);
      finish<CHEAP, M, NV>(c, 0, element);
    } else {
      float *sums = local + TERMS * PANEL;
      for (long k = 0; k < K; k += TERMS) {
        const long count = K - k < TERMS ? K - k : TERMS;
        B::expand(digits, points, k, count, block, local);
        long row = 0;
        if constexpr (S::LARGES > 0)
          for (int b = 0; b < S::LARGES; ++b, row += S::LARGE) rows<S::LARGE, CHEAP>(A + k, lda, count, k == 0, k + count == K, row, local, sums, element);
        if constexpr (S::BLOCKS > S::LARGES)
          for (int b = S::LARGES; b < S::BLOCKS; ++b, row += S::SMALL) rows<S::SMALL, CHEAP>(A + k, lda, count, k == 0, k + count == K, row, local, sums, element);
      }
    }
  }

  // A run's part of MR rows' sums.
  template <int MR, bool CHEAP, class Element>
  MN_INLINE void rows(const float *A, long lda, long count, bool first, bool last, long row, const float *panel, float *sums, Element &&element) {
    constexpr int KU = S::sums(MR);
    V c[KU][MR][NV];
    multiply<MR, NV, KU>(A + row * lda, lda, panel, PANEL, count, c, fetch_own<float>(PANEL));
    float *mine = sums + row * PANEL;
    if (!first)
      MN_UNROLL for (int i = 0; i < MR; ++i)
        MN_UNROLL for (int j = 0; j < NV; ++j) c[0][i][j] += load<V>(mine + i * PANEL + j * W);
    if (last) {
      finish<CHEAP, MR, NV>(c[0], row, element);
    } else {
      MN_UNROLL for (int i = 0; i < MR; ++i)
        MN_UNROLL for (int j = 0; j < NV; ++j) store<V>(mine + i * PANEL + j * W, c[0][i][j]);
    }
  }
};

// The same, of rows in whole numbers of 8 bits, or of 16 in two bytes with a sign each, the lower ones K behind the upper
// ones: an element of run r of row m of A stands for A X[m, r], and Y[m, b] is the sum of those of block b. Digits lie in
// groups of four terms, [K / 4][PANEL][4]; of 4 bits a byte holds those of two groups, [K / 8][PANEL][4], the first one's in
// its lower half.

// sums += four products a lane, of ``digits``' bytes without and ``row``'s with a sign.
MN_INLINE Lanes<W>::I dot_digits(Lanes<W>::I sums, Lanes<W>::U digits, int32_t row) {
  using I = Lanes<W>::I;
  const I four = I{} + row;
#if MN_VNNI
  return x86::dpbusd(sums, (I)digits, four);
#elif MN_PAIRS
  return sums + pairs((Words)(digits & 0x00ff00ff), (Words)four << 8 >> 8) + pairs((Words)(digits >> 8 & 0x00ff00ff), (Words)four >> 8);
#else
  MN_UNROLL for (int t = 0; t < 4; ++t) sums += (I)(digits >> 8 * t & 255) * (four << (24 - 8 * t) >> 24);
  return sums;
#endif
}

// M x PANEL of such a product, at most MOST rows at once, in runs of RUN terms; ONE: all of them are a block of weights, else
// a run is. Digits are taken as they are by up to FEW rows, and where they are bytes; more rows share runs of terms whose
// digits are made bytes in the worker's memory first, between which their sums wait there.
template <int M, int PANEL, int MOST, int BITS, int RUN, int PIECES, bool ONE, bool SHIFTED> struct WeightOnlyBytes {
  using S = Shape<M, PANEL, MOST>;
  using I = Lanes<W>::I;
  using U = Lanes<W>::U;
  static constexpr int NV = PANEL / W, FEW = 4, MIDDLE = 1 << (BITS - 1), TERMS = RUN > 256 ? RUN : 256 / RUN * RUN;
  static constexpr bool EXPANDS = M > FEW && BITS < 8;
  static constexpr long BYTES = TERMS / 4 * PANEL, FLOATS = EXPANDS ? BYTES + M * PANEL : 0;
  static constexpr long POINTS = ONE ? 0 : SHIFTED ? 2 * PANEL : PANEL;  // numbers of a run
  struct Rows {
    const int8_t *a;
    long lda, low;
    const float *x;
    long ldx;
    const float *y;
    long ldy;
  };
  MN_INLINE Rows from(Rows r, long row) { return {r.a + row * r.lda, r.lda, r.low, r.x + row * r.ldx, r.ldx, r.y + row * r.ldy, r.ldy}; }

  template <bool CHEAP, class Element>
  static inline void run(const int8_t *A, long lda, const uint8_t *digits, const float *points, const float *X, long ldx, const float *Y, long ldy, long K, float *local, Element &&element) {
    if constexpr (!EXPANDS) {
      const Rows all{A, lda, K, X, ldx, Y, ldy};
      each([&]<int MR>(long row) __attribute__((always_inline)) {
        V total[MR][NV] = {};
        runs<MR, BITS>(from(all, row), digits, points, K, total);
        end<CHEAP, MR>(from(all, row), points, total, row, element);
      });
    } else {
      float *sums = local + BYTES;
      for (long k = 0; k < K; k += TERMS) {
        const long count = K - k < TERMS ? K - k : TERMS;
        expand(digits + k / 2 * PANEL, count, (U *)local);
        const Rows all{A + k, lda, K, X + k / RUN, ldx, ONE ? Y : Y + k / RUN, ldy};
        each([&]<int MR>(long row) __attribute__((always_inline)) {
          V total[MR][NV] = {};
          float *mine = sums + row * PANEL;
          if (k > 0)
            MN_UNROLL for (int i = 0; i < MR; ++i)
              MN_UNROLL for (int j = 0; j < NV; ++j) total[i][j] = load<V>(mine + i * PANEL + j * W);
          runs<MR, 8>(from(all, row), (const uint8_t *)local, points + k / RUN * POINTS, count, total);
          if (k + count == K) {
            end<CHEAP, MR>(from(all, row), points, total, row, element);
          } else {
            MN_UNROLL for (int i = 0; i < MR; ++i)
              MN_UNROLL for (int j = 0; j < NV; ++j) store<V>(mine + i * PANEL + j * W, total[i][j]);
          }
        });
      }
    }
  }

  // ``tile`` of rows, for all rows.
  template <class Tile> MN_INLINE void each(Tile &&tile) {
    long row = 0;
    if constexpr (S::LARGES > 0)
      MN_NOUNROLL for (int b = 0; b < S::LARGES; ++b, row += S::LARGE) tile.template operator()<S::LARGE>(row);
    if constexpr (S::BLOCKS > S::LARGES)
      MN_NOUNROLL for (int b = S::LARGES; b < S::BLOCKS; ++b, row += S::SMALL) tile.template operator()<S::SMALL>(row);
  }

  // Digits of 4 bits as bytes.
  MN_INLINE void expand(const uint8_t *digits, long count, U *out) {
    MN_NOUNROLL for (long k = 0; k < count; k += 8, out += 2 * NV)
      MN_UNROLL for (int j = 0; j < NV; ++j, digits += 4 * W) {
        const U two = (U)load<I>((const int32_t *)digits);
        out[j] = two & 0x0f0f0f0f;
        out[NV + j] = two >> 4 & 0x0f0f0f0f;
      }
  }

  // ``total`` and ``count`` terms more, digits of STORED bits; not yet scaled by the weights' scales where there is one block.
  template <int MR, int STORED>
  MN_INLINE void runs(Rows r, const uint8_t *digits, const float *points, long count, V (&total)[MR][NV]) {
    constexpr int STEP = 32 / STORED;
    MN_NOUNROLL for (long k = 0; k < count; points += POINTS, ++r.x, ++r.y) {
      I c[PIECES][MR][NV] = {};
      MN_NOUNROLL for (const long end = k + RUN; k < end; k += STEP, digits += 4 * PANEL) {
        if constexpr (M > STREAMED && M <= FEW) __builtin_prefetch(digits + 4096);
        MN_UNROLL for (int j = 0; j < NV; ++j) {
          const U two = (U)load<I>((const int32_t *)digits + j * W);
          MN_UNROLL for (int i = 0; i < MR; ++i)
            MN_UNROLL for (int p = 0; p < PIECES; ++p) {
              int32_t group[2];
              __builtin_memcpy(group, r.a + p * r.low + i * r.lda + k, STEP);
              c[p][i][j] = dot_digits(c[p][i][j], STORED == 4 ? two & 0x0f0f0f0f : two, group[0]);
              if constexpr (STORED == 4) c[p][i][j] = dot_digits(c[p][i][j], two >> 4 & 0x0f0f0f0f, group[1]);
            }
        }
      }
      MN_UNROLL for (int i = 0; i < MR; ++i)
        MN_UNROLL for (int j = 0; j < NV; ++j) {
          V whole = __builtin_convertvector(c[0][i][j], V);
          if constexpr (PIECES == 2) whole = whole * 256.0f + __builtin_convertvector(c[1][i][j], V);
          whole *= splat<V>(r.x[i * r.ldx]);
          total[i][j] = ONE ? total[i][j] + whole : scaled(total[i][j], whole, r.y[i * r.ldy], points + j * W);
        }
    }
  }

  // ``total`` and a block more, the digits of which add up to ``part``.
  MN_INLINE V scaled(V total, V part, float y, const float *points) {
    const V scale = load<V>(points);
    if constexpr (!SHIFTED) return total + (part - splat<V>(y * MIDDLE)) * scale;
    return total + part * scale - splat<V>(y) * (scale * (float)MIDDLE + load<V>(points + PANEL));
  }

  template <bool CHEAP, int MR, class Element>
  MN_INLINE void end(Rows r, const float *points, V (&total)[MR][NV], long row, Element &&element) {
    if constexpr (ONE)
      MN_UNROLL for (int i = 0; i < MR; ++i)
        MN_UNROLL for (int j = 0; j < NV; ++j) total[i][j] = scaled(V{}, total[i][j], r.y[i * r.ldy], points + j * W);
    finish<CHEAP, MR, NV>(total, row, element);
  }
};

}  // namespace mn
