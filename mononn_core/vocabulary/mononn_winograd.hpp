// Winograd's F(2x2, 3x3) convolution of generated CPU code: 16 multiplications where a direct one needs 36 (Lavin and
// Gray, "Fast Algorithms for Convolutional Neural Networks", 2016). See mononn_conv.hpp.
#pragma once
#include "mononn_conv.hpp"

namespace mn {

// ROWS rows of G::OW output pixels of a 3x3 convolution of stride 1, in tiles of 2 x 2 pixels (the last ones may be
// half empty). Weights are transformed, G g G^T, and packed as those of a 4x4 kernel: [4][4][C][PANEL] a panel.
template <class G, int ROWS, int PANEL, int MOST> struct Winograd {
  static constexpr int TALL = (ROWS + 1) / 2, WIDE = (G::OW + 1) / 2, TILES = TALL * WIDE, NV = PANEL / W;
  static constexpr long LDV = G::C % 256 ? G::C : G::C + 16;
  using S = Shape<TILES, PANEL, MOST>;
  static constexpr int MOST_TILES = S::LARGES ? S::LARGE : S::SMALL;
  static constexpr long FLOATS = 16 * (TILES * LDV + MOST_TILES * PANEL);  // worker-local memory it needs

  // PANEL output channels of the windows at A; ``transformed`` says whose windows lie in ``local`` already. B, ``element``
  // and ``ahead`` as in ``conv``.
  template <class Element, class Ahead = Nothing>
  static inline void run(const float *A, const float *B, float *local, const float *&transformed, Element &&element,
                         Ahead &&ahead = Nothing{}) {
    if (transformed != A) transform(A, local);
    transformed = A;
    int first = 0;
    if constexpr (S::LARGES > 0)
      MN_NOUNROLL for (; first < S::LARGES * S::LARGE; first += S::LARGE) tiles<S::LARGE>(first, B, local, element, ahead);
    MN_NOUNROLL for (; first < TILES; first += S::SMALL) tiles<S::SMALL>(first, B, local, element, ahead);
  }

  // One dimension of the transformed input, B^T d, and of the output, A^T m.
  MN_INLINE void into(V (&t)[4], V a, V b, V c, V d) { t[0] = a - c, t[1] = b + c, t[2] = c - b, t[3] = b - d; }
  MN_INLINE void out_of(V (&t)[2], V a, V b, V c, V d) { t[0] = a + b + c, t[1] = b - c - d; }

  // The windows' pixels become local[4][4][TILES][LDV]. A is the first pixel of the first window, border included.
  static inline void transform(const float *A, float *local) {
    static_assert(G::KH == 3 && G::KW == 3 && G::SH == 1 && G::SW == 1 && G::DH == 1 && G::DW == 1 && G::C % W == 0);
    MN_NOUNROLL for (int y = 0; y < TALL; ++y) {
      const float *row[4];  // the last row or pixel of half a tile counts for pixels that are not stored
      for (int i = 0; i < 4; ++i) row[i] = A + G::at(2 * y + i < ROWS + 2 ? 2 * y + i : ROWS + 1, 0);
      MN_NOUNROLL for (int k = 0; k < G::C; k += W) {
        auto column = [&](V (&t)[4], int x) __attribute__((always_inline)) {
          const long at = G::at(0, x < G::OW + 2 ? x : G::OW + 1) + k;
          into(t, load<V>(row[0] + at), load<V>(row[1] + at), load<V>(row[2] + at), load<V>(row[3] + at));
        };
        V a[4], b[4], c[4], d[4];
        column(a, 0), column(b, 1);
        float *to = local + (long)y * WIDE * LDV + k;
        MN_NOUNROLL for (int x = 0; x < WIDE; ++x, to += LDV) {
          column(c, 2 * x + 2), column(d, 2 * x + 3);
          MN_UNROLL for (int i = 0; i < 4; ++i) {
            V t[4];
            into(t, a[i], b[i], c[i], d[i]);
            MN_UNROLL for (int j = 0; j < 4; ++j) store<V>(to + (i * 4 + j) * (TILES * LDV), t[j]);
            a[i] = c[i], b[i] = d[i];
          }
        }
      }
    }
  }

  // MR tiles from tile ``first`` on: 16 products, then the output's transform.
  template <int MR, class Element, class Ahead>
  MN_INLINE void tiles(int first, const float *B, float *local, Element &element, Ahead &ahead) {
    float *products = local + 16 * TILES * LDV;
    MN_NOUNROLL for (int i = 0; i < 16; ++i)
      tile<MR, NV, 1>(local + (i * TILES + first) * LDV, LDV, B + (long)i * G::C * PANEL, PANEL, G::C,
                      [&](auto &c) __attribute__((always_inline)) {
                        float *to = products + i * (MR * PANEL);
                        MN_UNROLL for (int m = 0; m < MR; ++m)
                          MN_UNROLL for (int n = 0; n < NV; ++n) store<V>(to + m * PANEL + n * W, c[m][n]);
                      });
    MN_NOUNROLL for (int m = 0; m < MR; ++m) {
      const long y = (first + m) / WIDE * 2, x = (first + m) % WIDE * 2;
      MN_NOUNROLL for (int n = 0; n < PANEL; n += W) {
        V rows[2][4];
        MN_UNROLL for (int j = 0; j < 4; ++j) {
          const float *p = products + j * (MR * PANEL) + m * PANEL + n;
          V t[2];
          out_of(t, load<V>(p), load<V>(p + 4 * MR * PANEL), load<V>(p + 8 * MR * PANEL), load<V>(p + 12 * MR * PANEL));
          rows[0][j] = t[0], rows[1][j] = t[1];
        }
        MN_UNROLL for (int i = 0; i < 2; ++i) {
          V t[2];
          out_of(t, rows[i][0], rows[i][1], rows[i][2], rows[i][3]);
          MN_UNROLL for (int j = 0; j < 2; ++j)
            if ((ROWS % 2 == 0 || y + i < ROWS) && (G::OW % 2 == 0 || x + j < G::OW)) element(y + i, x + j, (long)n, t[j]);
        }
      }
    }
  }
};

// Windows of pixels D apart: the pixels that are so far apart are D x D images, each with plain windows. Parameters as of
// Winograd.
template <class G, int ROWS, int PANEL, int MOST> struct DilatedWinograd {
  static constexpr int D = G::DH, TALL = (ROWS + D - 1) / D, WIDE = (G::OW + D - 1) / D;
  static constexpr int TALLS = ROWS - (TALL - 1) * D, WIDES = G::OW - (WIDE - 1) * D;  // images that are as tall, as wide
  static_assert(G::DW == D);
  template <int R, int C>
  using Part = Winograd<Windows<G::C, G::LDA * D, G::PITCH, C, G::KH, G::KW, G::SH, G::SW, 1, 1>, R, PANEL, MOST>;
  template <int R, int C> static constexpr long floats() {
    if constexpr (R > 0 && C > 0) return Part<R, C>::FLOATS;
    return 0;
  }
  template <int R> static constexpr long row_floats() { return WIDES * floats<R, WIDE>() + (D - WIDES) * floats<R, WIDE - 1>(); }
  static constexpr long FLOATS = TALLS * row_floats<TALL>() + (D - TALLS) * row_floats<TALL - 1>();

  template <class Element, class Ahead = Nothing>
  static inline void run(const float *A, const float *B, float *local, const float *&transformed, Element &&element,
                         Ahead && = Nothing{}) {
    const bool done = transformed == A;
    transformed = A;
    auto part = [&]<int R, int C>(long y, long x) __attribute__((always_inline)) {
      if constexpr (R > 0 && C > 0) {
        const float *from = A + G::at(y, x), *known = done ? from : nullptr;
        Part<R, C>::run(from, B, local, known, [&](long i, long j, long n, auto v) __attribute__((always_inline)) {
          element(y + i * D, x + j * D, n, v);
        });
        local += Part<R, C>::FLOATS;
      }
    };
    MN_NOUNROLL for (long y = 0; y < D; ++y)
      MN_NOUNROLL for (long x = 0; x < D; ++x) {
        if (y < TALLS) {
          if (x < WIDES) part.template operator()<TALL, WIDE>(y, x);
          else part.template operator()<TALL, WIDE - 1>(y, x);
        } else {
          if (x < WIDES) part.template operator()<TALL - 1, WIDE>(y, x);
          else part.template operator()<TALL - 1, WIDE - 1>(y, x);
        }
      }
  }
};

}  // namespace mn
