// Sums and products of the elements up to each position, in generated CPU code.
#pragma once
#include "mononn_cpu.hpp"

namespace mn {

// R of all elements up to each, or before each (EXCLUSIVE), or from its position on (REVERSE), as lanes of a vector T of float
// or of int32, or one by one as a T of eight bytes.
template <class T, class R, bool EXCLUSIVE, bool REVERSE> struct Cumulative {
  template <class U> static constexpr bool ALONE = std::is_arithmetic_v<U>;
  template <class U> static constexpr int WIDTH = sizeof(U) / (ALONE<U> ? sizeof(U) : 4);
  using Single = decltype([] {
    if constexpr (ALONE<T>) return T{};
    else return Lane<T>{};
  }());
  static constexpr int TOGETHER = ALONE<T> ? 8 : 4;  // columns, or vectors of them

  template <class U, class E> MN_INLINE U take(const E *p) {
    if constexpr (ALONE<U>) return *p;
    else return load<U>(p);
  }
  template <class U, class S> MN_INLINE U all(S x) {
    if constexpr (ALONE<U>) return x;
    else return splat<U>(x);
  }
  // The lanes of v moved on by STEP, behind the last ones of ``before``.
  template <int STEP, class U, int... L> MN_INLINE U moved(U v, U before, Sequence<int, L...>) {
    if constexpr (sizeof...(L) == 1) return before;
    else if constexpr (REVERSE) return __builtin_shufflevector(v, before, (L + STEP)...);
    else return __builtin_shufflevector(before, v, ((int)sizeof...(L) + L - STEP)...);
  }
  // R of the lanes up to each, in as many steps as their number has digits (Hillis, Steele, "Data parallel algorithms", 1986).
  template <int STEP = 1, class U> MN_INLINE U running(U v) {
    if constexpr (STEP >= WIDTH<U>) return v;
    else return running<2 * STEP>(R::template apply<U>(v, moved<STEP>(v, all<U>((Single)R::identity), Counted<WIDTH<U>>())));
  }

  // Vectors U of the row x of n elements from its ``done``-th on, before which their R is ``before``; how many are done then.
  template <class U, class E, class S, class Element>
  MN_INLINE long vectors(const E *x, long row, long n, long done, S &before, Element &&element) {
    for (; done + WIDTH<U> <= n; done += WIDTH<U>) {
      const long at = REVERSE ? n - WIDTH<U> - done : done;
      const U mine = running(take<U>(x + at)), first = all<U>(before), up = R::template apply<U>(first, mine);
      element(row, at, EXCLUSIVE ? moved<1>(up, first, Counted<WIDTH<U>>()) : up);
      if constexpr (ALONE<U>) before = up;
      else before = R::template apply<S>(before, mine[REVERSE ? 0 : WIDTH<U> - 1]);
    }
    return done;
  }
  // Along ``rows`` of n neighbours, which begin ``stride`` apart: element(row, position, value).
  template <class E, class Element> MN_INLINE void along(const E *x, long stride, long rows, long n, Element &&element) {
    MN_NOUNROLL for (long row = 0; row < rows; ++row, x += stride) {
      Single before = R::identity;
      const long done = vectors<T>(x, row, n, 0, before, element);
      if constexpr (WIDTH<T> > 1) {
        typedef Single One __attribute__((vector_size(4)));
        vectors<One>(x, row, n, done, before, element);
      }
    }
  }

  // Down n rows of x, of K vectors of columns from the c-th on, which ``read`` reads.
  template <int K, class E, class Read, class Element>
  MN_INLINE void strip(const E *x, long stride, long row, long n, long c, Read &&read, Element &&element) {
    T up[K];
    MN_UNROLL for (int k = 0; k < K; ++k) up[k] = all<T>((Single)R::identity);
    MN_NOUNROLL for (long i = 0; i < n; ++i) {
      const long at = REVERSE ? n - 1 - i : i;
      MN_UNROLL for (int k = 0; k < K; ++k) {
        const T before = up[k];
        up[k] = R::template apply<T>(before, read(x + at * stride + c + k * WIDTH<T>));
        element(row + at, c + k * WIDTH<T>, EXCLUSIVE ? before : up[k]);
      }
    }
  }
  // Down the ``columns`` of ``many`` matrices of n rows, which lie ``stride`` apart, one below the other:
  // element(row of all, column, value).
  template <class E, class Element>
  MN_INLINE void down(const E *x, long stride, long many, long n, long columns, Element &&element) {
    constexpr auto read = [](const E *p) __attribute__((always_inline)) { return take<T>(p); };
    MN_NOUNROLL for (long row = 0; row < many * n; row += n, x += n * stride) {
      long c = 0;
      for (; c + TOGETHER * WIDTH<T> <= columns; c += TOGETHER * WIDTH<T>) strip<TOGETHER>(x, stride, row, n, c, read, element);
      for (; c + WIDTH<T> <= columns; c += WIDTH<T>) strip<1>(x, stride, row, n, c, read, element);
      if constexpr (WIDTH<T> > 1) {
        auto some = [=](const E *p) __attribute__((always_inline)) {
          if constexpr (std::is_same_v<Single, float>) return load_between<T>(p, 0, 0, columns - c);
          T v{};
          for (long i = 0; i < columns - c; ++i) v[i] = p[i];
          return v;
        };
        auto first = [&](long m, long at, T v) __attribute__((always_inline)) { ragged(m, at, columns, v, element); };
        if (c < columns) strip<1>(x, stride, row, n, c, some, first);
      }
    }
  }
};
}  // namespace mn
