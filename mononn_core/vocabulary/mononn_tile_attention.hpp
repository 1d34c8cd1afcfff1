// Attention in tile registers in generated CPU code. See mononn_tiles.hpp, mononn_dot_attention.hpp.
#pragma once
#include "mononn_dot_attention.hpp"
#include "mononn_tiles.hpp"

namespace mn {

// Steps in which tiles multiply so many keys, of a type whose groups are of GROUP.
constexpr int tile_steps(int keys, int group) { return ((keys + group - 1) / group + 15) / 16; }

// As ``DotAttention``, the depth in steps of STEP groups.
template <class TA, class TB, int R, int T, int D, int E, int MOST, bool GUARD, int STEP>
struct TileAttention : DotAttention<TA, TB, R, T, D, E, MOST, GUARD, tile_steps(T, Dot<TA, TB>::GROUP)> {
  using Dots = DotAttention<TA, TB, R, T, D, E, MOST, GUARD, tile_steps(T, Dot<TA, TB>::GROUP)>;
  using typename Dots::Base, typename Dots::Places, typename Dots::Product;
  using Dots::EP, Dots::EXACT, Dots::GROUP, Dots::GROUPS, Dots::KEYS, Dots::PANEL, Dots::TP, Dots::VALUES;
  using Rows = TileRows<R, MOST>;
  using Sum = typename Product::Sum;
  static constexpr int RT = Rows::PAIR, BLOCK = RT * Rows::R, NV = PANEL / W;
  static constexpr int STEP_OF_KEYS = GROUPS / tile_steps(T, GROUP);
  static constexpr long FLOATS = KEYS + VALUES + (long)BLOCK * TP + (EXACT ? TP : 0);
  static_assert(GROUPS * GROUP * sizeof(TA) <= TP * sizeof(float));

  template <class TK, class TV, class Score, class Element, class Points = Rounded>
  static inline void run(Tiles &tiles, const TA *q, long ldq, const TK *k, long ldk, const TV *v, long ldv, float *local,
                         Score &&score, Element &&element, Points points = {}) {
    constexpr int K = Points::K - Dots::template shift<TK>, ZV = Points::V - Dots::template shift<TV>;
    const Places at = Dots::template pack<Points>(k, ldk, v, ldv, local, local + KEYS + VALUES + (long)BLOCK * TP);
    for (int b = 0; b < Rows::BLOCKS; ++b) rows<K, ZV>(tiles, b, q, ldq, at, score, element, points);
  }

  template <int K, int ZV, class Score, class Element, class Points>
  static inline void rows(Tiles &tiles, int b, const TA *q, long ldq, const Places &at, Score &score, Element &element,
                          const Points &points) {
    float *const s = at.scores;
    const TA *left[RT], *chances[RT];
    MN_UNROLL for (int i = 0; i < RT; ++i) {
      left[i] = q + Rows::start(b * RT + i) * ldq;
      chances[i] = (const TA *)(s + (long)i * Rows::R * TP);
    }
    tiles.hold<Rows::R, STEP>();
    Dots::panels([&]<int N>(int first) __attribute__((always_inline)) {
      multiply_tiles<RT, N, STEP, Rows::R, 0, D % (STEP * GROUP) != 0>(
          tiles, left, ldq * sizeof(TA), (const TB *)(at.keys + (long)first * (D / GROUP)), N * 64, s + first, TP * sizeof(float), false, nullptr,
          [](auto &&step) __attribute__((always_inline)) {
            MN_UNROLL for (int d = 0; d < D; d += STEP * GROUP) step(d, D - d);
          });
    });
    float scale[BLOCK];
    int32_t sums[BLOCK];
    each_row(b, [&](int i, long row) __attribute__((always_inline)) {
      float *const mine = s + (long)i * TP;
      if constexpr (EXACT) whole<K, Points::Q>(mine, q + row * ldq, at);
      scale[i] = Base::exponentials(mine, Base::most(mine, row, score));
      if constexpr (EXACT) sums[i] = ZV * Dots::steps(mine, scale[i] * points.steps, Points::HIGH);
      else for (int j = 0; j < TP; j += W) store<V>((TA *)mine + j, load<V>(mine + j));
      for (int j = TP; j < GROUPS * GROUP; ++j) ((TA *)mine)[j] = TA{};
    });
    tiles.hold<Rows::R, STEP_OF_KEYS>();
    alignas(64) Lane<Sum> results[BLOCK * PANEL];
    for (int p = 0; p < EP / PANEL; ++p) {
      multiply_tiles<RT, NV, STEP_OF_KEYS, Rows::R, 0, false>(
          tiles, chances, TP * sizeof(float), (const TB *)(at.values + (long)p * GROUPS * PANEL), NV * 64, results, NV * 64, false, nullptr,
          [](auto &&step) __attribute__((always_inline)) {
            MN_NOUNROLL for (int t = 0; t < GROUPS * GROUP; t += STEP_OF_KEYS * GROUP) step(t, GROUPS * GROUP);
          });
      each_row(b, [&](int i, long row) __attribute__((always_inline)) {
        MN_UNROLL for (int j = 0; j < NV; ++j) {
          auto o = load<Sum>(results + i * PANEL + j * W);
          if constexpr (!EXACT) o *= scale[i];
          else if constexpr (ZV != 0) o -= sums[i];
          if constexpr (EP == E) element(row, (long)p * PANEL + j * W, o);
          else ragged(row, (long)p * PANEL + j * W, E, o, element);
        }
      });
    }
  }

  // ``body(i, row)`` for each row of a block that the block before it has not.
  template <class Body> MN_INLINE void each_row(int b, Body &&body) {
    MN_UNROLL for (int i = 0; i < RT; ++i) {
      const long t = b * RT + i, start = Rows::start(t);
      MN_NOUNROLL for (long r = t * Rows::R - start; r < Rows::R; ++r) body((int)(i * Rows::R + r), start + r);
    }
  }

  // A row's sums of integers become floats, zero points considered.
  template <int K, int Q> static inline void whole(float *s, const TA *q, const Places &at) {
    int32_t sum = 0;
    if constexpr (K != 0)
      for (int d = 0; d < D; ++d) sum += q[d];
    for (int j = 0; j < TP; j += W) {
      Sum x = load<Sum>((const int32_t *)s + j);
      if constexpr (Q != 0) x += load<Sum>(at.columns + j);
      store<V>(s + j, to_float<V>(x - K * sum));
    }
  }
};

}  // namespace mn
