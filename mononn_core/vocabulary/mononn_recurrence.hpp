// A step of a recurrence in generated CPU code: products of states by the weights of several gates, and the cell made of
// them while the sums are at hand.
#pragma once
#include "mononn_cpu.hpp"

namespace mn {

// Units [n, n + W) of row m, gate by gate; those before ``end`` where they are not whole.
template <class Element, class Tail, class... Sums>
MN_INLINE void each_unit(long m, long n, long end, Element &&element, Tail &&tail, Sums... v) {
  if (n + W <= end) element(m, n, v...);
  else if (n < end) tail(m, n, v...);
}

// A tile's sums: GATES times the vectors of a block, a row each.
template <int GATES, int MR, int NV, class Element, class Tail, int... G>
MN_INLINE void each_gate(V (&c)[MR][NV], long row, long n, long end, Element &&element, Tail &&tail, Sequence<int, G...>) {
  constexpr int EACH = NV / GATES;
  alignas(64) float sums[MR][NV * W];
  MN_UNROLL for (int i = 0; i < MR; ++i)
    MN_UNROLL for (int j = 0; j < NV; ++j) store<V>(sums[i] + j * W, c[i][j]);
  asm volatile("" : : "r"(sums) : "memory");
  MN_NOUNROLL for (int i = 0; i < MR; ++i)
    MN_NOUNROLL for (int u = 0; u < EACH; ++u)
      each_unit(row + i, n + u * W, end, element, tail, load<V>(sums[i] + (G * EACH + u) * W)...);
}

// ROWS rows of A (the state) [ROWS, K] by ``units`` units of B, floats or whole numbers of 8 bits, packed in blocks of BLOCK
// units, their GATES side by side; element(m, n, v...) takes the sums of W neighbouring units of row m from unit n on, ``tail``
// those of the last, fewer ones.
template <int GATES, int BLOCK, int ROWS, int MOST, class TB, class Element, class Tail>
static inline void recurrence(const float *A, long lda, const TB *B, long K, long units, bool backwards, Element &&element, Tail &&tail) {
  constexpr int PANEL = GATES * BLOCK;
  using S = Shape<ROWS, PANEL, MOST>;
  const long blocks = (units + BLOCK - 1) / BLOCK;
  for (long i = 0; i < blocks; ++i) {
    const long block = backwards ? blocks - 1 - i : i;
    const TB *panel = B + block * K * PANEL;
    auto finish_tile = [&](auto &c, long row) __attribute__((always_inline)) {
      each_gate<GATES>(c, row, block * BLOCK, units, element, tail, Counted<GATES>{});
    };
    long row = 0;
    if constexpr (S::LARGES > 0)
      for (int b = 0; b < S::LARGES; ++b, row += S::LARGE)
        tile<S::LARGE, S::NV, S::sums(S::LARGE)>(A + row * lda, lda, panel, PANEL, K, [&](auto &c) __attribute__((always_inline)) { finish_tile(c, row); });
    if constexpr (S::BLOCKS > S::LARGES)
      for (int b = S::LARGES; b < S::BLOCKS; ++b, row += S::SMALL)
        tile<S::SMALL, S::NV, S::sums(S::SMALL)>(A + row * lda, lda, panel, PANEL, K, [&](auto &c) __attribute__((always_inline)) { finish_tile(c, row); });
  }
}

}  // namespace mn
