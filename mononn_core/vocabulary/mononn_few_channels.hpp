// Convolutions of few output channels in generated CPU code: vectors hold input channels, whose products are added up at last,
// and what is stored are neighbouring pixels. See mononn_conv.hpp.
#pragma once
#include "mononn_conv.hpp"

namespace mn {

// Of every run of 2 HALF lanes of a, then of b, the sums of its two halves.
template <int HALF, int... L> MN_INLINE V halves_added(V a, V b, Sequence<int, L...>) {
  return __builtin_shufflevector(a, b, (L / HALF * 2 * HALF + L % HALF)...) + __builtin_shufflevector(a, b, (L / HALF * 2 * HALF + L % HALF + HALF)...);
}
// The sums of the lanes of each of N <= W vectors, a power of two, become the N floats at p: pairs of vectors are joined until
// there is one, the runs of which are then added up.
template <int N, int RUN = W> MN_INLINE void store_sums(float *p, const V (&c)[N]) {
  if constexpr (N > 1) {
    V joined[N / 2];
    MN_UNROLL for (int i = 0; i < N / 2; ++i) joined[i] = halves_added<RUN / 2>(c[2 * i], c[2 * i + 1], Counted<W>());
    store_sums<N / 2, RUN / 2>(p, joined);
  } else if constexpr (RUN > 1) {
    const V more[1] = {halves_added<RUN / 2>(c[0], c[0], Counted<W>())};
    store_sums<1, RUN / 2>(p, more);
  } else {
    store<V>(p, c[0]);
  }
}

// ROWS rows of G::OW output pixels of M channels, PIXELS at once; weights B[channel][tap][input channel], as many of them as
// fill whole LINES of floats, channels ``ldb`` apart. ``element(y, channel, x, v)`` takes neighbouring pixels from x on, or the
// first ``count`` of them.
template <class G, int ROWS, int M, int PIXELS, int LINE, class TA, class Element>
MN_INLINE void few_channels(const TA *A, const float *B, long ldb, Element &&element) {
  constexpr int TAP = (G::C + LINE - 1) / LINE * LINE, WHOLE = G::C / W * W;
  alignas(64) float sums[M][(G::OW / W + 2) * W];
  MN_NOUNROLL for (long y = 0; y < ROWS; ++y) {
    auto tile = [&]<int N>(long x) __attribute__((always_inline)) {
      V c[M][N] = {};
      auto add = [&](auto &&read, const float *b) __attribute__((always_inline)) {
        V w[M];
        MN_UNROLL for (int m = 0; m < M; ++m) w[m] = load<V>(b + m * ldb);
        MN_UNROLL for (int i = 0; i < N; ++i) {
          const V v = read(i);
          MN_UNROLL for (int m = 0; m < M; ++m) c[m][i] += v * w[m];
        }
      };
      MN_NOUNROLL for (int kh = 0; kh < G::KH; ++kh)
        MN_NOUNROLL for (int kw = 0; kw < G::KW; ++kw) {
          const TA *a = A + G::at(y * G::SH + kh * G::DH, x * G::SW + kw * G::DW);
          const float *b = B + (long)(kh * G::KW + kw) * TAP;
          MN_NOUNROLL for (int k = 0; k < WHOLE; k += W)
            add([&](int i) __attribute__((always_inline)) { return load<V>(a + G::at(0, i * G::SW) + k); }, b + k);
          if constexpr (WHOLE < G::C)
            add([&](int i) __attribute__((always_inline)) {
              return load_between<V>(a + G::at(0, i * G::SW) + WHOLE, 0, 0, G::C - WHOLE);
            }, b + WHOLE);
        }
      MN_UNROLL for (int m = 0; m < M; ++m) store_sums(sums[m] + x, c[m]);
    };
    long x = 0;
    MN_NOUNROLL for (; x + PIXELS <= G::OW; x += PIXELS) tile.template operator()<PIXELS>(x);
    MN_NOUNROLL for (; x < G::OW; ++x) tile.template operator()<1>(x);
    MN_NOUNROLL for (int m = 0; m < M; ++m)
      for (long at = 0; at < G::OW; at += W) {
        auto in_row = [&](long, long n, auto v, auto... count) __attribute__((always_inline)) -> decltype(element(y, m, n, v, count...)) {
          return element(y, m, n, v, count...);
        };
        ragged(y, at, G::OW, load<V>(sums[m] + at), in_row);
      }
  }
}
}  // namespace mn
