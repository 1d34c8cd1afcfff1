// Convolutions of few output channels in generated CPU code: vectors hold terms of a window, whose products are added up at
// last, and what is stored are neighbouring pixels. See mononn_conv.hpp and mononn_dot.hpp.
#pragma once
#include "mononn_dot.hpp"

namespace mn {

// Multiply-adds of floats, as of a Dot.
template <class TA> struct DotFloats {
  static constexpr int GROUP = 1;
  static constexpr bool OFFSET = false;
  using Sum = V;
  using Value = V;
  using Row = V;
  MN_INLINE Row row(const float *p) { return load<V>(p); }
  MN_INLINE void add(Sum &c, Value a, Row b) { c += a * b; }
};
template <class TA, class TB> struct Terms {
  using D = Dot<TA, TB>;
  MN_INLINE D::Value all(const TA *p) { return D::values(load<Lanes<W>::I>((const int32_t *)p)); }
  // The first COUNT, zeros behind them.
  template <int COUNT> MN_INLINE D::Value some(const TA *p) {
    Lanes<W>::I words{};
    if constexpr (COUNT * sizeof(TA) % 4 == 0) words = (Lanes<W>::I)load_between<V>((const float *)p, 0, 0, COUNT * sizeof(TA) / 4);
    else __builtin_memcpy(&words, p, COUNT * sizeof(TA));
    return D::values(words);
  }
};
template <class TA> struct Terms<TA, float> {
  using D = DotFloats<TA>;
  MN_INLINE V all(const TA *p) { return load<V>(p); }
  template <int COUNT> MN_INLINE V some(const TA *p) { return load_between<V>(p, 0, 0, COUNT); }
};

// Of every run of 2 HALF lanes of a, then of b, the sums of its two halves.
template <int HALF, class T, int... L> MN_INLINE T halves_added(T a, T b, Sequence<int, L...>) {
  return __builtin_shufflevector(a, b, (L / HALF * 2 * HALF + L % HALF)...) +
         __builtin_shufflevector(a, b, (L / HALF * 2 * HALF + L % HALF + HALF)...);
}
// The sums of the lanes of each of N <= W vectors, a power of two, begin the vector at p: pairs of vectors are joined until
// there is one, the runs of which are then added up.
template <int RUN = W, int N, class T> MN_INLINE void store_sums(Lane<T> *p, const T (&c)[N]) {
  if constexpr (RUN == 1) {
    store<T>(p, c[0]);
  } else {
    T joined[(N + 1) / 2];
    MN_UNROLL for (int i = 0; i < N; i += 2) joined[i / 2] = halves_added<RUN / 2>(c[i], c[N > 1 ? i + 1 : i], Counted<W>());
    store_sums<RUN / 2>(p, joined);
  }
}

// ROWS rows of G::OW output pixels of M channels, PIXELS at once; weights B[channel][run][term], ``ldb`` from channel to channel:
// the terms of a run, a tap or where JOINED a kernel row, fill lines of LINE. ``element(y, channel, x, v)`` takes neighbouring
// pixels from x on, or the first ``count`` of them.
template <class G, int ROWS, int M, int PIXELS, int LINE, bool JOINED, class TA, class TB, class Element>
MN_INLINE void few_channels(const TA *A, const TB *B, long ldb, Element &&element) {
  static_assert(!JOINED || G::DENSE);
  using D = Terms<TA, TB>::D;
  using Sum = D::Sum;
  constexpr int STEP = W * D::GROUP, RUNS = JOINED ? 1 : G::KW, RUN = JOINED ? G::KW * G::C : G::C;
  constexpr int PADDED = (RUN + LINE - 1) / LINE * LINE, WHOLE = RUN / STEP * STEP;
  alignas(64) Lane<Sum> sums[M][(G::OW / W + 2) * W];
  MN_NOUNROLL for (long y = 0; y < ROWS; ++y) {
    auto tile = [&]<int N>(long x) __attribute__((always_inline)) {
      Sum c[M][N] = {}, offset[M] = {};
      auto add = [&](auto &&value, const TB *b) __attribute__((always_inline)) {
        typename D::Row w[M];
        MN_UNROLL for (int m = 0; m < M; ++m) w[m] = D::row(b + m * ldb);
        MN_UNROLL for (int i = 0; i < N; ++i) {
          const typename D::Value v = value(i);
          MN_UNROLL for (int m = 0; m < M; ++m) D::add(c[m][i], v, w[m]);
        }
        if constexpr (D::OFFSET)
          MN_UNROLL for (int m = 0; m < M; ++m) D::add(offset[m], D::offset(), w[m]);
      };
      MN_NOUNROLL for (int kh = 0; kh < G::KH; ++kh)
        MN_NOUNROLL for (int r = 0; r < RUNS; ++r) {
          const TA *a = A + G::at(y * G::SH + kh * G::DH, x * G::SW + r * G::DW);
          const TB *b = B + (long)(kh * RUNS + r) * PADDED;
          MN_NOUNROLL for (int k = 0; k < WHOLE; k += STEP)
            add([&](int i) __attribute__((always_inline)) { return Terms<TA, TB>::all(a + G::at(0, i * G::SW) + k); }, b + k);
          if constexpr (WHOLE < RUN)
            add([&](int i) __attribute__((always_inline)) {
              return Terms<TA, TB>::template some<RUN - WHOLE>(a + G::at(0, i * G::SW) + WHOLE);
            }, b + WHOLE);
        }
      MN_UNROLL for (int m = 0; m < M; ++m) {
        if constexpr (D::OFFSET)
          MN_UNROLL for (int i = 0; i < N; ++i) c[m][i] -= offset[m];
        store_sums(sums[m] + x, c[m]);
      }
    };
    long x = 0;
    MN_NOUNROLL for (; x + PIXELS <= G::OW; x += PIXELS) tile.template operator()<PIXELS>(x);
    MN_NOUNROLL for (; x < G::OW; ++x) tile.template operator()<1>(x);
    MN_NOUNROLL for (int m = 0; m < M; ++m)
      for (long at = 0; at < G::OW; at += W) {
        auto in_row = [&](long, long n, auto v, auto... count) __attribute__((always_inline)) -> decltype(element(y, m, n, v, count...)) {
          return element(y, m, n, v, count...);
        };
        ragged(y, at, G::OW, load<Sum>(sums[m] + at), in_row);
      }
  }
}
}  // namespace mn
