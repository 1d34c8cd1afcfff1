// Attention of elements narrower than float in generated CPU code. See mononn_dot.hpp.
#pragma once
#include "mononn_dot.hpp"

namespace mn {

// What bfloat16 needs beside its elements: nothing.
struct Rounded {
  static constexpr int Q = 0, K = 0, V = 0;
};

// Of integers: their zero points, and probabilities as multiples of a step, at most MOST.
template <int ZQ, int ZK, int ZV, int MOST> struct Whole {
  static constexpr int Q = ZQ, K = ZK, V = ZV;
  static constexpr float HIGH = MOST;
  float steps;  // in one
};

// As ``Attention``: both products take GROUPs of terms. Scores, their exponentials and sums are floats; probabilities
// are narrowed for the second product, whose sums of integers ``element`` takes as they are. Of integers q is unsigned,
// the others either; of a row of q whole groups are read. Keys are padded to whole groups, as many in each of STEPS.
template <class TA, class TB, int R, int T, int D, int E, int MOST, bool GUARD, int STEPS = 1>
struct DotAttention : Attention<R, T, D, E, MOST, GUARD> {
  using Base = Attention<R, T, D, E, MOST, GUARD>;
  using Base::PANEL, Base::ROWS, Base::TP;
  using Product = Dot<TA, TB>;
  static constexpr int GROUP = Product::GROUP, GROUPS = ((T + GROUP - 1) / GROUP + STEPS - 1) / STEPS * STEPS;
  static constexpr int EP = (E + PANEL - 1) / PANEL * PANEL;
  static constexpr bool EXACT = Product::EXACT;
  static constexpr long KEYS = (long)TP * (D / GROUP), VALUES = (long)GROUPS * EP, SCORES = (long)ROWS * TP;
  static constexpr long FLOATS = KEYS + VALUES + SCORES + (EXACT ? TP : 0);

  // Where a block of rows finds things: packed keys and values, scores, and what is added to a column of them.
  struct Places {
    float *keys, *values, *scores;
    int32_t *columns;
  };

  template <class TK, class TV, class Score, class Element, class Points = Rounded>
  static inline void run(const TA *q, long ldq, const TK *k, long ldk, const TV *v, long ldv, float *local,
                         Score &&score, Element &&element, Points points = {}) {
    static_assert(D % GROUP == 0);
    const Places at = pack<Points>(k, ldk, v, ldv, local, local + KEYS + VALUES + SCORES);
    auto block = [&]<int MR>(long row) __attribute__((always_inline)) {
      rows<MR, Points::K - shift<TK>, Points::V - shift<TV>>(q + row * ldq, ldq, at, row, score, element, points);
    };
    using S = Shape<R, PANEL, MOST>;
    long row = 0;
    for (int b = 0; b < S::LARGES; ++b, row += S::LARGE) block.template operator()<S::LARGE>(row);
    for (int b = S::LARGES; b < S::BLOCKS; ++b, row += S::SMALL)
      if constexpr (S::SMALL > 0) block.template operator()<S::SMALL>(row);
  }

  template <class Points, class TK, class TV>
  static inline Places pack(const TK *k, long ldk, const TV *v, long ldv, float *local, float *columns) {
    const Places at{local, local + KEYS, local + KEYS + VALUES, (int32_t *)columns};
    pack_transposed<D / GROUP, T, PANEL>(at.keys, k, ldk);  // groups of a row are words
    pack_groups(at.values, v, ldv);
    if constexpr (EXACT) {
      flip<TK>(at.keys);
      sum_columns<Points::Q, Points::K - shift<TK>>(at);
    }
    return at;
  }

  // Packed integers are signed: unsigned ones less 128.
  template <class I> static constexpr int shift = std::is_same_v<I, uint8_t> ? 128 : 0;

  template <class TK> MN_INLINE void flip(float *keys) {
    if constexpr (shift<TK>)
      for (long i = 0; i < KEYS; i += W)
        store<V>(keys + i, (V)((typename Lanes<W>::I)load<V>(keys + i) ^ (int32_t)0x80808080));
  }

  // (q - Q)(k - K) = q k - K sum(q) - Q sum(k) + D Q K: the last two.
  template <int Q, int K> static inline void sum_columns(const Places &at) {
    uint8_t ones[D];
    for (int d = 0; d < D; ++d) ones[d] = 1;
    panels([&]<int NV>(int first) __attribute__((always_inline)) {
      dot_tile<Product, 1, NV, 1>(ones, D, (const TB *)(at.keys + (long)first * (D / GROUP)), D,
                                  [&](auto &c) __attribute__((always_inline)) {
        MN_UNROLL for (int j = 0; j < NV; ++j) {
          const typename Product::Sum sum = D * Q * K - c[0][j] * Q;
          __builtin_memcpy(at.columns + first + j * W, &sum, sizeof sum);
        }
      });
    });
  }

  // ``body<NV>(first)`` for every panel of keys: NV vectors from key ``first`` on.
  template <class Body> MN_INLINE void panels(Body &&body) {
    constexpr int WHOLE = TP / PANEL * PANEL;
    for (int first = 0; first < WHOLE; first += PANEL) body.template operator()<PANEL / W>(first);
    if constexpr (TP > WHOLE) body.template operator()<1>(WHOLE);
  }

  // dst[panel][GROUPS][PANEL][GROUP] = rows of src in groups; what lies past T is zero, what lies past E anything.
  template <class TV> static inline void pack_groups(float *dst, const TV *src, long stride) {
    constexpr int WHOLE = E / W * W, BITS = 32 / GROUP;
    constexpr uint32_t FLIPPED = EXACT ? shift<TV> : 0;
    for (int t = 0; t < GROUPS * GROUP; t += GROUP) {
      auto at = [&](int e) { return dst + ((long)(e / PANEL) * GROUPS + t / GROUP) * PANEL + e % PANEL; };
      auto word = [&](auto zero, auto &&bits) __attribute__((always_inline)) {
        MN_UNROLL for (int g = 0; g < GROUP; ++g)
          if (t + g < T) zero |= (bits(src + (t + g) * stride) ^ FLIPPED) << (BITS * g);
        return zero;
      };
      for (int e = 0; e < WHOLE; e += W)
        store<V>(at(e), (V)word(typename Lanes<W>::U{}, [&](const TV *row) { return load_bits<W>(row + e); }));
      for (int e = WHOLE; e < EP; ++e) {
        const auto v = word(typename Lanes<1>::U{}, [&](const TV *row) {
          return e < E ? load_bits<1>(row + e) : typename Lanes<1>::U{};
        });
        __builtin_memcpy(at(e), &v, 4);
      }
    }
  }
  template <int N, class TV> MN_INLINE typename Lanes<N>::U load_bits(const TV *p) {
    typename Packed<std::conditional_t<EXACT, uint8_t, uint16_t>, N>::Type v;
    __builtin_memcpy(&v, p, sizeof v);
    return __builtin_convertvector(v, typename Lanes<N>::U);
  }

  template <int MR, int K, int ZV, class Score, class Element, class Points>
  static inline void rows(const TA *q, long ldq, const Places &at, long row, Score &score, Element &element,
                          const Points &points) {
    constexpr int NV = PANEL / W;
    float *const s = at.scores;
    int32_t sums[MR];
    if constexpr (K != 0)
      MN_NOUNROLL for (int i = 0; i < MR; ++i) {
        int32_t sum = 0;
        for (int d = 0; d < D; ++d) sum += q[i * ldq + d];
        sums[i] = -K * sum;
      }
    panels([&]<int N>(int first) __attribute__((always_inline)) {
      dot_tile<Product, MR, N, 1>(q, ldq, (const TB *)(at.keys + (long)first * (D / GROUP)), D,
                                  [&](auto &c) __attribute__((always_inline)) {
        MN_UNROLL for (int i = 0; i < MR; ++i)
          MN_UNROLL for (int j = 0; j < N; ++j) {
            auto sum = c[i][j];
            if constexpr (Points::Q != 0) sum += load<typename Product::Sum>(at.columns + first + j * W);
            if constexpr (K != 0) sum += sums[i];
            if constexpr (EXACT) store<V>(s + (long)i * TP + first + j * W, to_float<V>(sum));
            else store<V>(s + (long)i * TP + first + j * W, sum);
          }
      });
    });
    float scale[MR];
    MN_NOUNROLL for (int i = 0; i < MR; ++i) scale[i] = Base::most(s + (long)i * TP, row + i, score);
    MN_NOUNROLL for (int i = 0; i < MR; ++i) {
      float *mine = s + (long)i * TP;
      scale[i] = Base::exponentials(mine, scale[i]);
      if constexpr (EXACT) sums[i] = ZV * steps(mine, scale[i] * points.steps, Points::HIGH);
      else for (int j = 0; j < TP; j += W) store<V>((TA *)mine + j, load<V>(mine + j));
    }
    for (int p = 0; p < EP / PANEL; ++p)
      dot_tile<Product, MR, NV, 1>((const TA *)s, (long)sizeof(float) / sizeof(TA) * TP,
                                   (const TB *)(at.values + (long)p * GROUPS * PANEL), T,
                                   [&](auto &c) __attribute__((always_inline)) {
        MN_UNROLL for (int i = 0; i < MR; ++i)
          MN_UNROLL for (int j = 0; j < NV; ++j) {
            auto o = c[i][j];
            if constexpr (!EXACT) o *= scale[i];
            else if constexpr (ZV != 0) o -= sums[i];
            if constexpr (EP == E) element(row + i, (long)p * PANEL + j * W, o);
            else ragged(row + i, (long)p * PANEL + j * W, E, o, element);
          }
      });
  }

  // A row's exponentials as whole numbers of steps, in place; their sum.
  static inline int32_t steps(float *s, float scale, float high) {
    V total{};
    for (long j = 0; j < TP; j += W) {
      V x = mn::round<V>(load<V>(s + j) * scale);
      x = x < high ? x : splat<V>(high);
      total += x;
      store<V>((TA *)s + j, x);
    }
    return (int32_t)across<Add, V>(total);
  }
};

}  // namespace mn
