// Where the neighbours of one loop are those of another in memory: squares of a vector's width are transposed in registers,
// and what few rows have is stored element by element in turn. See mononn_vec.hpp.
#pragma once
#include "mononn_vec.hpp"

namespace mn {

// s[i], lane j: what is at p[j * stride + i], as a float. Blocks of 1, 2, 4, ... lanes change places.
template <int STEP = 1, int... L> MN_INLINE void transpose_square(V (&s)[W], Sequence<int, L...> lanes) {
  if constexpr (STEP < W) {
    MN_UNROLL for (int i = 0; i < W; ++i)
      if (!(i & STEP)) {
        const V a = s[i], b = s[i + STEP];
        s[i] = __builtin_shufflevector(a, b, (L & STEP ? W + L - STEP : L)...);
        s[i + STEP] = __builtin_shufflevector(a, b, (L & STEP ? W + L : L + STEP)...);
      }
    transpose_square<2 * STEP>(s, lanes);
  }
}
MN_INLINE void transpose_square(V (&s)[W]) { transpose_square(s, Counted<W>()); }
template <class E> MN_INLINE void load_square(V (&s)[W], const E *p, long stride) {
  MN_UNROLL for (int j = 0; j < W; ++j) s[j] = load<V>(p + j * stride);
  transpose_square(s);
}

// [0, rows) x [0, columns): squares of W x W elements, where rows are ``whole``: all of those between two that are. A cache
// line's rows at a time, or one square's. lane(tag, y, x) elsewhere, as of ``each_lane``.
template <class Whole, class Square, class Lane>
MN_INLINE void each_square(long rows, long columns, Whole &&whole, Square &&square, Lane &&lane) {
  const long full = columns / W * W;
  auto fits = [&](long y, long count) { return y + count <= rows && whole(y) && whole(y + count - 1); };
  for (long y = 0; y < rows;) {
    const long count = fits(y, 16) ? 16 : fits(y, W) ? W : 0;
    if (count == 0) {
      each_lane(columns, [&](auto tag, long x) { lane(tag, y, x); });
      ++y;
      continue;
    }
    MN_NOUNROLL for (long x = 0; x < full; x += W)
      MN_NOUNROLL for (long h = 0; h < count; h += W) square(y + h, x);
    for (long x = full; x < columns; ++x)
      for (long h = 0; h < count; ++h) lane(V1{}, y + h, x);
    y += count;
  }
}

// As ``each_square``, of squares whose columns are computed one after the other, ``square(y, x, count)`` so many of them: the
// last rows may be fewer than W, and the square looks to that itself.
template <class Whole, class Square, class Lane>
MN_INLINE void each_column(long rows, long columns, Whole &&whole, Square &&square, Lane &&lane) {
  for (long y = 0; y < rows;) {
    const long left = rows - y, count = left < W ? left : W;
    if (!whole(y) || !whole(y + count - 1)) {
      each_lane(columns, [&](auto tag, long x) { lane(tag, y, x); });
      ++y;
      continue;
    }
    MN_NOUNROLL for (long x = 0; x < columns; x += W) square(y, x, columns - x < W ? columns - x : W);
    y += count;
  }
}

// p[x * stride + y] = rows[y * apart + x] of C columns x and ``count`` rows y, W at most; the last columns are followed by a
// vector's lanes of anything.
template <int C, class E> MN_INLINE void store_turned(E *p, long stride, const float *rows, long apart, long count) {
  MN_NOUNROLL for (long x = 0; x < C; x += W) {
    V s[W];
    MN_UNROLL for (int y = 0; y < W; ++y) s[y] = y < count ? load<V>(rows + y * apart + x) : V{};
    transpose_square(s);
    MN_UNROLL for (int i = 0; i < W; ++i)
      if (x + i < C) store_first<V>(p + (x + i) * stride, s[i], count);
  }
}

// The N vectors of L lanes ``rows`` as N vectors of neighbours, every element of the first row before those of the others:
// vector ``j`` of them. Row after row is put in.
template <int N, int J, class P, int... L> MN_INLINE P in_turn(const P (&rows)[N], Sequence<int, L...>) {
  constexpr int WIDTH = sizeof...(L);
  P found = rows[0];
  [&]<int... ROW>(Sequence<int, ROW...>) __attribute__((always_inline)) {
    ((found = [&]<int R>(std::integral_constant<int, R>) __attribute__((always_inline)) {
       constexpr auto lane = [](int l) {
         const int at = J * WIDTH + l, row = at % N;
         return row == R ? WIDTH + at / N : R == 1 ? at / N : l;
       };
       return __builtin_shufflevector(found, rows[R], lane(L)...);
     }(std::integral_constant<int, ROW + 1>{})),
     ...);
  }(Counted<N - 1>());
  return found;
}
// p[N * i + row] = lane i of ``value(row)``, a vector of float or int32.
template <class T, int N, class E, class Value> MN_INLINE void store_in_turn(E *p, Value &&value) {
  using P = typename Packed<E, lanes<T>>::Type;
  P rows[N];
  MN_UNROLL for (int row = 0; row < N; ++row) rows[row] = narrow<E, T>(value(row));
  if constexpr (lanes<T> == 1) {
    __builtin_memcpy(p, rows, sizeof rows);
  } else {
    [&]<int... J>(Sequence<int, J...>) __attribute__((always_inline)) {
      const P found[] = {in_turn<N, J>(rows, Counted<lanes<T>>())...};
      __builtin_memcpy(p, found, sizeof found);
    }(Counted<N>());
  }
}

}  // namespace mn
