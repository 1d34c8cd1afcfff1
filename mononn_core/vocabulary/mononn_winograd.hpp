// Winograd's F(2x2, 3x3) and F(4x4, 3x3) convolutions of generated CPU code: 16 multiplications where a direct one needs
// 36, or 36 where it needs 144 (Lavin and Gray, "Fast Algorithms for Convolutional Neural Networks", 2016). See
// mononn_conv.hpp.
#pragma once
#include "mononn_conv.hpp"

namespace mn {

// One dimension of F(STEP, 3): the transformed input, B^T d, and the output, A^T m, of STEP + 2 elements.
template <int STEP> struct Toom;

// Of the points 0, 1, -1 and infinity.
template <> struct Toom<2> {
  MN_INLINE void into(V (&t)[4], const V (&d)[4]) { t[0] = d[2] - d[0], t[1] = d[1] + d[2], t[2] = d[2] - d[1], t[3] = d[3] - d[1]; }
  MN_INLINE void out_of(V (&y)[2], const V (&m)[4]) { y[0] = m[0] + m[1] + m[2], y[1] = m[1] - m[2] + m[3]; }
};

// Of the points 0, P, -P, Q, -Q and infinity.
template <> struct Toom<4> {
  static constexpr float P = 0.625f, Q = 1.5f;
  MN_INLINE void into(V (&t)[6], const V (&d)[6]) {
    const V even_p = d[4] - (Q * Q) * d[2], odd_p = P * (d[3] - (Q * Q) * d[1]);
    const V even_q = d[4] - (P * P) * d[2], odd_q = Q * (d[3] - (P * P) * d[1]);
    t[0] = (P * P * Q * Q) * d[0] - (P * P + Q * Q) * d[2] + d[4];
    t[1] = even_p + odd_p, t[2] = even_p - odd_p, t[3] = even_q + odd_q, t[4] = even_q - odd_q;
    t[5] = (P * P * Q * Q) * d[1] - (P * P + Q * Q) * d[3] + d[5];
  }
  MN_INLINE void out_of(V (&y)[4], const V (&m)[6]) {
    const V even_p = m[1] + m[2], odd_p = m[1] - m[2], even_q = m[3] + m[4], odd_q = m[3] - m[4];
    y[0] = m[0] + even_p + even_q, y[1] = P * odd_p + Q * odd_q;
    y[2] = (P * P) * even_p + (Q * Q) * even_q, y[3] = (P * P * P) * odd_p + (Q * Q * Q) * odd_q + m[5];
  }
};

constexpr long NEAR = 1 << 17;  // bytes of products that wait for their transform

// ROWS rows of G::OW output pixels of a 3x3 convolution of stride 1, in tiles of STEP x STEP pixels (the last ones may be
// partly empty). Weights are transformed, G g G^T, and packed as those of a kernel of T x T: [T][T][C][PANEL] a panel.
template <class G, int ROWS, int PANEL, int MOST, int STEP> struct Winograd {
  static constexpr int T = STEP + 2, TALL = (ROWS + STEP - 1) / STEP, WIDE = (G::OW + STEP - 1) / STEP, TILES = TALL * WIDE;
  static constexpr int NV = PANEL / W;
  static constexpr long LDV = G::C % 256 ? G::C : G::C + 16;
  using S = Shape<TILES, PANEL, MOST>;
  // Register tiles whose products lie beside one another until they are transformed.
  static constexpr int MOST_TILES = S::LARGES ? S::LARGE : S::SMALL, TOGETHER = 1 + (NEAR - 1) / (T * T * PANEL * 4 * MOST_TILES);
  static constexpr int WAITING = TOGETHER < S::BLOCKS ? TOGETHER * MOST_TILES : TILES;
  static constexpr long PLANE = TILES * LDV + (TILES * LDV / 16 % 2 ? 0 : 16);  // an odd number of cache lines
  static constexpr long FLOATS = T * T * (PLANE + WAITING * PANEL);  // worker-local memory it needs

  // PANEL output channels of the windows at A; ``transformed`` says whose windows lie in ``local`` already. B, ``element``
  // and ``ahead`` as in ``conv``.
  template <class Element, class Ahead = Nothing>
  static inline void run(const float *A, const float *B, float *local, const float *&transformed, Element &&element,
                         Ahead &&ahead = Nothing{}) {
    if (transformed != A) transform(A, local);
    transformed = A;
    MN_NOUNROLL for (int block = 0; block < S::BLOCKS; block += TOGETHER) blocks(block, B, local, element, ahead);
  }

  // The windows' pixels become local[T][T][TILES][LDV]. A is the first pixel of the first window, border included.
  static inline void transform(const float *A, float *local) {
    static_assert(G::KH == 3 && G::KW == 3 && G::SH == 1 && G::SW == 1 && G::DH == 1 && G::DW == 1 && G::C % W == 0);
    MN_NOUNROLL for (int y = 0; y < TALL; ++y) {
      const float *row[T];  // the last rows and pixels of partly empty tiles count for pixels that are not stored
      for (int i = 0; i < T; ++i) row[i] = A + G::at(STEP * y + i < ROWS + 2 ? STEP * y + i : ROWS + 1, 0);
      MN_NOUNROLL for (int k = 0; k < G::C; k += W) {
        V columns[T][T];
        auto column = [&](int j, int x) __attribute__((always_inline)) {
          const long at = G::at(0, x < G::OW + 2 ? x : G::OW + 1) + k;
          V d[T];
          MN_UNROLL for (int i = 0; i < T; ++i) d[i] = load<V>(row[i] + at);
          Toom<STEP>::into(columns[j], d);
        };
        MN_UNROLL for (int j = 0; j < T - STEP; ++j) column(j, j);
        float *to = local + (long)y * WIDE * LDV + k;
        MN_NOUNROLL for (int x = 0; x < WIDE; ++x, to += LDV) {
          MN_UNROLL for (int j = T - STEP; j < T; ++j) column(j, STEP * x + j);
          MN_UNROLL for (int i = 0; i < T; ++i) {
            V d[T], t[T];
            MN_UNROLL for (int j = 0; j < T; ++j) d[j] = columns[j][i];
            Toom<STEP>::into(t, d);
            MN_UNROLL for (int j = 0; j < T; ++j) store<V>(to + (i * T + j) * PLANE, t[j]);
            MN_UNROLL for (int j = 0; j < T - STEP; ++j) columns[j][i] = columns[j + STEP][i];
          }
        }
      }
    }
  }

  // TOGETHER register tiles from the one of number ``block`` on: T * T products, for each of which a part of the panel
  // stays in the first-level cache, then the output's transform.
  template <class Element, class Ahead>
  static inline void blocks(int block, const float *B, float *local, Element &element, Ahead &ahead) {
    float *products = local + T * T * PLANE;
    const int end = block + TOGETHER < S::BLOCKS ? block + TOGETHER : S::BLOCKS, larges = end < S::LARGES ? end : S::LARGES;
    const auto first_of = [](int number) { return number * S::SMALL + (number < S::LARGES ? number : S::LARGES); };
    const int first = first_of(block), last = first_of(end);
    MN_NOUNROLL for (int i = 0; i < T * T; ++i, B += (long)G::C * PANEL) {
      auto multiply = [&]<int MR>(int at) __attribute__((always_inline)) {
        tile<MR, NV, 1>(local + i * PLANE + at * LDV, LDV, B, PANEL, G::C, [&](auto &c) __attribute__((always_inline)) {
          float *to = products + ((at - first) * (T * T) + i) * PANEL;
          MN_UNROLL for (int m = 0; m < MR; ++m)
            MN_UNROLL for (int n = 0; n < NV; ++n) store<V>(to + m * (T * T * PANEL) + n * W, c[m][n]);
        }, (long)G::C * PANEL);
      };
      int at = first;
      if constexpr (S::LARGES > 0)
        MN_NOUNROLL for (int b = block; b < larges; ++b, at += S::LARGE) multiply.template operator()<S::LARGE>(at);
      MN_NOUNROLL for (; at < last; at += S::SMALL) multiply.template operator()<S::SMALL>(at);
    }
    MN_NOUNROLL for (int tile = first; tile < last; ++tile, products += T * T * PANEL) {
      const long y = tile / WIDE * STEP, x = tile % WIDE * STEP;
      MN_NOUNROLL for (int n = 0; n < PANEL; n += W) {
        V rows[STEP][T];
        MN_UNROLL for (int j = 0; j < T; ++j) {
          V p[T], t[STEP];
          MN_UNROLL for (int i = 0; i < T; ++i) p[i] = load<V>(products + (i * T + j) * PANEL + n);
          Toom<STEP>::out_of(t, p);
          MN_UNROLL for (int i = 0; i < STEP; ++i) rows[i][j] = t[i];
        }
        MN_UNROLL for (int i = 0; i < STEP; ++i) {
          V t[STEP];
          Toom<STEP>::out_of(t, rows[i]);
          MN_UNROLL for (int j = 0; j < STEP; ++j)
            if ((ROWS % STEP == 0 || y + i < ROWS) && (G::OW % STEP == 0 || x + j < G::OW)) element(y + i, x + j, (long)n, t[j]);
        }
      }
    }
  }
};

// Windows of pixels D apart: the pixels that are so far apart are D x D images, each with plain windows. Parameters as of
// Winograd.
template <class G, int ROWS, int PANEL, int MOST, int STEP> struct DilatedWinograd {
  static constexpr int D = G::DH, TALL = (ROWS + D - 1) / D, WIDE = (G::OW + D - 1) / D;
  static constexpr int TALLS = ROWS - (TALL - 1) * D, WIDES = G::OW - (WIDE - 1) * D;  // images that are as tall, as wide
  static_assert(G::DW == D);
  template <int R, int C>
  using Part = Winograd<Windows<G::C, G::LDA * D, G::PITCH, C, G::KH, G::KW, G::SH, G::SW, 1, 1>, R, PANEL, MOST, STEP>;
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
