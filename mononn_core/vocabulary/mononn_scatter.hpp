// Updates at positions that are data, in generated CPU code: data as runs of SIZE elements, one after the other, of
// which update u meets number targets[u], if there is one. Updates of one run are combined in their own order, so the
// bits do not depend on who owns the run.
//
// Rows are copied to a worker's own memory, as many as fit there, all updates that meet them are made there, and the
// elements are handed on.
#pragma once
#include "mononn_vec.hpp"

namespace mn {

struct Set {
  template <class T> MN_INLINE T of(T, T update) { return update; }
};
struct Sum {
  template <class T> MN_INLINE T of(T data, T update) { return T(data + update); }
};
struct Product {
  template <class T> MN_INLINE T of(T data, T update) { return T(data * update); }
};
// A NaN on either side is the answer.
struct Most {
  template <class T> MN_INLINE T of(T data, T update) { return update > data || update != update ? update : data; }
};
struct Least {
  template <class T> MN_INLINE T of(T data, T update) { return update < data || update != update ? update : data; }
};

// T: element type. How: one of the above. A row has COLUMNS elements, ROWS of them are made at once.
template <class T, class How, long COLUMNS, long ROWS, long SIZE> struct Scatter {
  static constexpr long FLOATS = (ROWS * COLUMNS * sizeof(T) + 3) / 4, RUNS = COLUMNS / SIZE;
  static_assert(COLUMNS % SIZE == 0);

  // ``first``: number of the first of ``rows`` rows, ``stride`` elements apart; ``apart``: of neighbouring updates.
  // element(i, j, x): what stands in row i, counted from the first one, column j, of floats in a vector of columns.
  template <class Element>
  static void run(const T *data, long stride, long first, long rows, const int64_t *targets, long updates, const T *made,
                  long apart, float *scratch, Element &&element) {
    T *tile = (T *)scratch;
    for (long r = 0; r < rows; r += ROWS) {
      const long here = rows - r < ROWS ? rows - r : ROWS;
      for (long i = 0; i < here; ++i) __builtin_memcpy(tile + i * COLUMNS, data + (r + i) * stride, COLUMNS * sizeof(T));
      const long low = (first + r) * RUNS, many = here * RUNS;
      for (long u = 0; u < updates; ++u) {
        const uint64_t run = uint64_t(targets[u]) - uint64_t(low);
        if (run >= uint64_t(many)) continue;
        T *to = tile + run * SIZE;
        const T *from = made + u * apart;
        for (long j = 0; j < SIZE; ++j) to[j] = How::of(to[j], from[j]);
      }
      for (long i = 0; i < here; ++i)
        if constexpr (std::is_same_v<T, float>)
          each_lane<COLUMNS>([&](auto tag, long j) { element(r + i, j, load<decltype(tag)>(tile + i * COLUMNS + j)); });
        else
          for (long j = 0; j < COLUMNS; ++j) element(r + i, j, tile[i * COLUMNS + j]);
    }
  }
};

}  // namespace mn
