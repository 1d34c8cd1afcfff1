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

// The same, of rows in whole numbers of 8 bits: an element of block b of row m of A stands for A X[m, b], and Y[m, b] is
// the sum of those. Digits lie in groups of four terms, [K / 4][PANEL][4]; of 4 bits a byte holds those of two groups,
// [K / 8][PANEL][4], the first one's in its lower half.

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

// M x PANEL of such a product, at most MOST rows at once. Up to FEW rows take the digits as they are; more share runs of
// terms whose digits are made bytes in the worker's memory first, between which their sums wait there.
template <int M, int PANEL, int MOST, int BITS, int BLOCK, bool SHIFTED> struct WeightOnlyBytes {
  using S = Shape<M, PANEL, MOST>;
  using U = Lanes<W>::U;
  static constexpr int NV = PANEL / W, FEW = 4, TERMS = BLOCK > 256 ? BLOCK : 256, MIDDLE = 1 << (BITS - 1);
  static constexpr long FLOATS = M <= FEW ? 0 : (TERMS / 4 + M) * PANEL, POINTS = SHIFTED ? 2 * PANEL : PANEL;
  struct Rows {
    const int8_t *a;
    long lda;
    const float *x;
    long ldx;
    const float *y;
    long ldy;
  };

  template <bool CHEAP, class Element>
  static inline void run(const int8_t *A, long lda, const uint8_t *digits, const float *points, const float *X, long ldx, const float *Y, long ldy, long K, float *local, Element &&element) {
    if constexpr (M <= FEW) {
      V total[M][NV] = {};
      blocks<M, BITS>({A, lda, X, ldx, Y, ldy}, digits, points, K, total);
      finish<CHEAP, M, NV>(total, 0, element);
    } else {
      float *sums = local + TERMS / 4 * PANEL;
      for (long k = 0; k < K; k += TERMS) {
        const long count = K - k < TERMS ? K - k : TERMS;
        const auto *panel = digits + k * BITS / 8 * PANEL;
        if constexpr (BITS == 4) {
          expand(panel, count, (U *)local);
          panel = (const uint8_t *)local;
        }
        const Rows all{A + k, lda, X + k / BLOCK, ldx, Y + k / BLOCK, ldy};
        long row = 0;
        if constexpr (S::LARGES > 0)
          for (int b = 0; b < S::LARGES; ++b, row += S::LARGE) rows<S::LARGE, CHEAP>(all, row, panel, points + k / BLOCK * POINTS, count, k == 0, k + count == K, sums, element);
        if constexpr (S::BLOCKS > S::LARGES)
          for (int b = S::LARGES; b < S::BLOCKS; ++b, row += S::SMALL) rows<S::SMALL, CHEAP>(all, row, panel, points + k / BLOCK * POINTS, count, k == 0, k + count == K, sums, element);
      }
    }
  }

  // Digits of 4 bits as bytes.
  MN_INLINE void expand(const uint8_t *digits, long count, U *out) {
    MN_NOUNROLL for (long k = 0; k < count; k += 8, out += 2 * NV)
      MN_UNROLL for (int j = 0; j < NV; ++j, digits += 4 * W) {
        const U two = (U)load<Lanes<W>::I>((const int32_t *)digits);
        out[j] = two & 0x0f0f0f0f;
        out[NV + j] = two >> 4 & 0x0f0f0f0f;
      }
  }

  // A run's part of MR rows' sums.
  template <int MR, bool CHEAP, class Element>
  MN_INLINE void rows(Rows all, long row, const uint8_t *panel, const float *points, long count, bool first, bool last, float *sums, Element &&element) {
    V total[MR][NV] = {};
    float *mine = sums + row * PANEL;
    if (!first)
      MN_UNROLL for (int i = 0; i < MR; ++i)
        MN_UNROLL for (int j = 0; j < NV; ++j) total[i][j] = load<V>(mine + i * PANEL + j * W);
    blocks<MR, 8>({all.a + row * all.lda, all.lda, all.x + row * all.ldx, all.ldx, all.y + row * all.ldy, all.ldy}, panel, points, count, total);
    if (last) {
      finish<CHEAP, MR, NV>(total, row, element);
    } else {
      MN_UNROLL for (int i = 0; i < MR; ++i)
        MN_UNROLL for (int j = 0; j < NV; ++j) store<V>(mine + i * PANEL + j * W, total[i][j]);
    }
  }

  // ``total`` and ``count`` terms more, digits of STORED bits.
  template <int MR, int STORED>
  MN_INLINE void blocks(Rows r, const uint8_t *digits, const float *points, long count, V (&total)[MR][NV]) {
    constexpr int STEP = 32 / STORED;
    MN_NOUNROLL for (long k = 0; k < count; points += POINTS, ++r.x, ++r.y) {
      Lanes<W>::I c[MR][NV] = {};
      MN_NOUNROLL for (const long end = k + BLOCK; k < end; k += STEP, digits += 4 * PANEL) {
        if constexpr (STORED == 4) __builtin_prefetch(digits + 4096);
        MN_UNROLL for (int j = 0; j < NV; ++j) {
          const U two = (U)load<Lanes<W>::I>((const int32_t *)digits + j * W);
          MN_UNROLL for (int i = 0; i < MR; ++i) {
            int32_t group[2];
            __builtin_memcpy(group, r.a + i * r.lda + k, STEP);
            c[i][j] = dot_digits(c[i][j], STORED == 4 ? two & 0x0f0f0f0f : two, group[0]);
            if constexpr (STORED == 4) c[i][j] = dot_digits(c[i][j], two >> 4 & 0x0f0f0f0f, group[1]);
          }
        }
      }
      MN_UNROLL for (int i = 0; i < MR; ++i) {
        const float x = r.x[i * r.ldx], y = r.y[i * r.ldy];
        MN_UNROLL for (int j = 0; j < NV; ++j) {
          const V part = __builtin_convertvector(c[i][j], V) * splat<V>(x) - splat<V>(y * MIDDLE);
          total[i][j] += part * load<V>(points + j * W);
          if constexpr (SHIFTED) total[i][j] -= splat<V>(y) * load<V>(points + PANEL + j * W);
        }
      }
    }
  }
};

}  // namespace mn
