// Winograd's F(2x2, 3x3) and F(4x4, 3x3) convolutions of generated CPU code: 16 multiplications where a direct one needs
// 36, or 36 where it needs 144 (Lavin and Gray, "Fast Algorithms for Convolutional Neural Networks", 2016). See
// mononn_conv.hpp. Of floats; F(2x2, 3x3) of bytes too, in words of 16 bits.
#pragma once
#include "mononn_dot.hpp"

namespace mn {

// One dimension of F(STEP, 3): the transformed input, B^T d, and the output, A^T m, of STEP + 2 elements.
template <int STEP> struct Toom;

// Of the points 0, 1, -1 and infinity.
template <> struct Toom<2> {
  template <class T> MN_INLINE void into(T (&t)[4], const T (&d)[4]) { t[0] = d[2] - d[0], t[1] = d[1] + d[2], t[2] = d[2] - d[1], t[3] = d[3] - d[1]; }
  template <class T> MN_INLINE void out_of(T (&y)[2], const T (&m)[4]) { y[0] = m[0] + m[1] + m[2], y[1] = m[1] - m[2] + m[3]; }
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

// What a window's pixels are as they are transformed, and the products' sums.
template <class TA> struct Transformed;

template <> struct Transformed<float> {
  static constexpr int GROUP = 1;  // terms side by side
  using Element = float;
  using Vector = V;
  using Sum = V;
  MN_INLINE Vector pixels(const float *p) { return load<V>(p); }
  template <int MR, int NV, class Fetching, class Epilogue>
  MN_INLINE void multiply(const float *A, long lda, const float *B, long K, Fetching fetch, Epilogue &&epilogue) {
    tile<MR, NV, 1>(A, lda, B, NV * W, K, epilogue, fetch);
  }
  MN_INLINE Sum result(Sum v) { return v; }
};

// Exact: of bytes, the elements of B^T d B are within 510 of 0. Weights are four times G g G^T, which is whole, and so the sums
// are four times the results.
template <> struct Transformed<uint8_t> {
  static constexpr int GROUP = 2;
  using Element = int16_t;
  using Vector = Words;
  using Sum = Lanes<W>::U;  // parts of a result may wrap where the whole does not
  MN_INLINE Vector pixels(const uint8_t *p) {
    return __builtin_convertvector(load<Packed<uint8_t, 2 * W>::Type>((const float *)p), Vector);
  }
  template <int MR, int NV, class Fetching, class Epilogue>
  MN_INLINE void multiply(const int16_t *A, long lda, const int16_t *B, long K, Fetching fetch, Epilogue &&epilogue) {
    dot_tile<Dot<int16_t, int16_t>, MR, NV, 1>(A, lda, B, K, fetch, epilogue);
  }
  MN_INLINE Lanes<W>::I result(Sum v) { return (Lanes<W>::I)v >> 2; }
};
template <> struct Transformed<int16_t> : Transformed<uint8_t> {  // bytes that are stored as words
  MN_INLINE Vector pixels(const int16_t *p) { return load<Vector>((const float *)p); }
};

// ROWS rows of G::OW output pixels, of TA, of a 3x3 convolution of stride 1, in tiles of STEP x STEP pixels (the last ones
// may be partly empty). Weights are transformed, G g G^T, and packed as those of a kernel of T x T: [T][T][C][PANEL] a panel.
template <class TA, class G, int ROWS, int PANEL, int MOST, int STEP> struct Winograd {
  using Form = Transformed<TA>;
  using E = Form::Element;
  using X = Form::Vector;
  using Sum = Form::Sum;
  static constexpr int LINE = 64 / sizeof(E), EACH = sizeof(X) / sizeof(E);
  static constexpr int T = STEP + 2, TALL = (ROWS + STEP - 1) / STEP, WIDE = (G::OW + STEP - 1) / STEP, TILES = TALL * WIDE;
  static constexpr int NV = PANEL / W;
  static constexpr long LINES = (G::C + LINE - 1) / LINE * LINE, LDV = LINES % (16 * LINE) ? LINES : LINES + LINE;
  using S = Shape<TILES, PANEL, MOST>;
  // Register tiles whose products lie beside one another until they are transformed.
  static constexpr int MOST_TILES = S::LARGES ? S::LARGE : S::SMALL, TOGETHER = 1 + (NEAR - 1) / (T * T * PANEL * 4 * MOST_TILES);
  static constexpr int PASSES = TOGETHER < S::BLOCKS ? TOGETHER : S::BLOCKS;  // over each product's part of the panel
  static constexpr int WAITING = TOGETHER < S::BLOCKS ? TOGETHER * MOST_TILES : TILES;
  static constexpr long PLANE = TILES * LDV + (TILES * LDV / LINE % 2 ? 0 : LINE);  // an odd number of cache lines
  static constexpr long WINDOWS = T * T * PLANE * sizeof(E) / sizeof(float);
  static constexpr long FLOATS = WINDOWS + T * T * WAITING * PANEL;  // worker-local memory it needs

  // PANEL output channels of the windows at A; ``transformed`` says whose windows lie in ``local`` already. B, ``element``
  // and ``ahead`` as in ``conv``.
  template <class Element, class Ahead = Nothing>
  static inline void run(const TA *A, const E *B, float *local, const TA *&transformed, Element &&element,
                         Ahead &&ahead = Nothing{}) {
    if (transformed != A) transform(A, (E *)local);
    transformed = A;
    MN_NOUNROLL for (int block = 0; block < S::BLOCKS; block += TOGETHER) blocks(block, B, local, element, ahead);
  }

  // The windows' pixels become local[T][T][TILES][LDV]. A is the first pixel of the first window, border included. Of
  // channels that do not fill vectors the last vector holds some that the one before it holds too.
  static inline void transform(const TA *A, E *local) {
    static_assert(G::KH == 3 && G::KW == 3 && G::SH == 1 && G::SW == 1 && G::DH == 1 && G::DW == 1 && G::C >= EACH);
    MN_NOUNROLL for (int y = 0; y < TALL; ++y) {
      const TA *row[T];  // the last rows and pixels of partly empty tiles count for pixels that are not stored
      for (int i = 0; i < T; ++i) row[i] = A + G::at(STEP * y + i < ROWS + 2 ? STEP * y + i : ROWS + 1, 0);
      MN_NOUNROLL for (int from = 0; from < G::C; from += EACH) {
        const int k = from + EACH <= G::C ? from : G::C - EACH;
        X columns[T][T];
        auto column = [&](int j, int x) __attribute__((always_inline)) {
          const long at = G::at(0, x < G::OW + 2 ? x : G::OW + 1) + k;
          X d[T];
          MN_UNROLL for (int i = 0; i < T; ++i) d[i] = Form::pixels(row[i] + at);
          Toom<STEP>::into(columns[j], d);
        };
        MN_UNROLL for (int j = 0; j < T - STEP; ++j) column(j, j);
        E *to = local + (long)y * WIDE * LDV + k;
        MN_NOUNROLL for (int x = 0; x < WIDE; ++x, to += LDV) {
          MN_UNROLL for (int j = T - STEP; j < T; ++j) column(j, STEP * x + j);
          MN_UNROLL for (int i = 0; i < T; ++i) {
            X d[T], t[T];
            MN_UNROLL for (int j = 0; j < T; ++j) d[j] = columns[j][i];
            Toom<STEP>::into(t, d);
            MN_UNROLL for (int j = 0; j < T; ++j) store<X>((float *)(to + (i * T + j) * PLANE), t[j]);
            MN_UNROLL for (int j = 0; j < T - STEP; ++j) columns[j][i] = columns[j + STEP][i];
          }
        }
      }
    }
  }

  // TOGETHER register tiles from the one of number ``block`` on: T * T products, for each of which a part of the panel
  // stays in the first-level cache, then the output's transform.
  template <class Element, class Ahead>
  static inline void blocks(int block, const E *B, float *local, Element &element, Ahead &ahead) {
    const E *windows = (const E *)local;
    float *products = local + WINDOWS;
    const int end = block + TOGETHER < S::BLOCKS ? block + TOGETHER : S::BLOCKS, larges = end < S::LARGES ? end : S::LARGES;
    const auto first_of = [](int number) { return number * S::SMALL + (number < S::LARGES ? number : S::LARGES); };
    const int first = first_of(block), last = first_of(end);
    MN_NOUNROLL for (int i = 0; i < T * T; ++i, B += (long)G::C * PANEL) {
      int number = 0;
      auto multiply = [&]<int MR>(int at) __attribute__((always_inline)) {
        const auto fetch = fetch_of<PASSES, PANEL * Form::GROUP, true>(number++, B, (G::C + Form::GROUP - 1) / Form::GROUP);
        Form::template multiply<MR, NV>(windows + i * PLANE + at * LDV, LDV, B, G::C, fetch, [&](auto &c) __attribute__((always_inline)) {
          float *to = products + ((at - first) * (T * T) + i) * PANEL;
          MN_UNROLL for (int m = 0; m < MR; ++m)
            MN_UNROLL for (int n = 0; n < NV; ++n) store<V>(to + m * (T * T * PANEL) + n * W, (V)c[m][n]);
        });
      };
      int at = first;
      if constexpr (S::LARGES > 0)
        MN_NOUNROLL for (int b = block; b < larges; ++b, at += S::LARGE) multiply.template operator()<S::LARGE>(at);
      MN_NOUNROLL for (; at < last; at += S::SMALL) multiply.template operator()<S::SMALL>(at);
    }
    MN_NOUNROLL for (int tile = first; tile < last; ++tile, products += T * T * PANEL) {
      const long y = tile / WIDE * STEP, x = tile % WIDE * STEP;
      MN_NOUNROLL for (int n = 0; n < PANEL; n += W) {
        Sum rows[STEP][T];
        MN_UNROLL for (int j = 0; j < T; ++j) {
          Sum p[T], t[STEP];
          MN_UNROLL for (int i = 0; i < T; ++i) p[i] = (Sum)load<V>(products + (i * T + j) * PANEL + n);
          Toom<STEP>::out_of(t, p);
          MN_UNROLL for (int i = 0; i < STEP; ++i) rows[i][j] = t[i];
        }
        MN_UNROLL for (int i = 0; i < STEP; ++i) {
          Sum t[STEP];
          Toom<STEP>::out_of(t, rows[i]);
          MN_UNROLL for (int j = 0; j < STEP; ++j)
            if ((ROWS % STEP == 0 || y + i < ROWS) && (G::OW % STEP == 0 || x + j < G::OW)) element(y + i, x + j, (long)n, Form::result(t[j]));
        }
      }
    }
  }
};

// Windows of pixels D apart: the pixels that are so far apart are D x D images, each with plain windows. Parameters as of
// Winograd.
template <class TA, class G, int ROWS, int PANEL, int MOST, int STEP> struct DilatedWinograd {
  static constexpr int D = G::DH, TALL = (ROWS + D - 1) / D, WIDE = (G::OW + D - 1) / D;
  static constexpr int TALLS = ROWS - (TALL - 1) * D, WIDES = G::OW - (WIDE - 1) * D;  // images that are as tall, as wide
  static_assert(G::DW == D);
  template <int R, int C>
  using Part = Winograd<TA, Windows<G::C, G::LDA * D, G::PITCH, C, G::KH, G::KW, G::SH, G::SW, 1, 1>, R, PANEL, MOST, STEP>;
  template <int R, int C> static constexpr long floats() {
    if constexpr (R > 0 && C > 0) return Part<R, C>::FLOATS;
    return 0;
  }
  template <int R> static constexpr long row_floats() { return WIDES * floats<R, WIDE>() + (D - WIDES) * floats<R, WIDE - 1>(); }
  static constexpr long FLOATS = TALLS * row_floats<TALL>() + (D - TALLS) * row_floats<TALL - 1>();

  template <class Element, class Ahead = Nothing>
  static inline void run(const TA *A, const Transformed<TA>::Element *B, float *local, const TA *&transformed,
                         Element &&element, Ahead && = Nothing{}) {
    const bool done = transformed == A;
    transformed = A;
    auto part = [&]<int R, int C>(long y, long x) __attribute__((always_inline)) {
      if constexpr (R > 0 && C > 0) {
        const TA *from = A + G::at(y, x), *known = done ? from : nullptr;
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
