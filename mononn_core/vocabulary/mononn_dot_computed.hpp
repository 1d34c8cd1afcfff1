// Products of bytes whose right side is computed in the same run: packed panel by panel. See mononn_dot.hpp.
#pragma once
#include "mononn_dot.hpp"

namespace mn {

// c += the products of the bytes in each lane.
template <class D> MN_INLINE void add_bytes(typename D::Sum &c, typename D::Sum a, const int8_t *b) {
  const auto row = D::row(b);
  D::add(c, D::values(a), row);
  if constexpr (D::OFFSET) {
    typename D::Sum offset{};
    D::add(offset, D::offset(), row);
    c -= offset;
  }
}

// M x PANEL of (A - ZERO_A) (B - ZERO_B), K terms each, at most MOST rows at once. B is [K][ldb], or where TURNED a row a
// column, of which there are ``count``, and nothing past them is read. What is packed is signed, POINT its zero point.
template <class TB, int M, int K, int PANEL, int MOST, int ZERO_A, int ZERO_B, bool TURNED> struct ComputedBytes {
  using D = Dot<uint8_t, int8_t>;
  using Sum = D::Sum;
  static constexpr int GROUPS = (K + 3) / 4, REST = K % 4, POINT = ZERO_B - (std::is_signed_v<TB> ? 0 : 128);
  static constexpr int32_t SIGN = std::is_signed_v<TB> ? 0 : (int32_t)0x80808080;
  static constexpr int32_t KNOWN = REST ? (1 << 8 * REST) - 1 : -1;  // bytes of the last group
  static constexpr int FLOATS = (GROUPS + 1) * PANEL + M;

  // One vector of columns from ``n`` on, ``count`` of which are there.
  static void pack(const TB *B, long ldb, long count, int32_t *words) {
    if constexpr (TURNED) {
      for (int g = 0; g < K / 4; g += W) {
        const int some = K / 4 - g < W ? K / 4 - g : W;
        V s[W];
        MN_UNROLL for (int j = 0; j < W; ++j)
          s[j] = j < count ? load_between<V>((const float *)(B + j * ldb) + g, 0, 0, some) : V{};
        transpose_square(s);
        MN_UNROLL for (int i = 0; i < W; ++i)
          if (i < some) store<Sum>(words + (g + i) * PANEL, (Sum)s[i] ^ SIGN);
      }
      if constexpr (REST > 0)
        for (int j = 0; j < W; ++j) {
          int32_t word = 0;
          if (j < count) __builtin_memcpy(&word, B + j * ldb + K / 4 * 4, REST);
          words[(GROUPS - 1) * PANEL + j] = (word ^ SIGN) & KNOWN;
        }
    } else {
      auto row = [&](int k) __attribute__((always_inline)) {
        Packed<uint8_t, W>::Type v{};
        if (k >= K) return Sum{};
        if (count >= W) __builtin_memcpy(&v, B + k * ldb, W);
        else for (int j = 0; j < count; ++j) v[j] = (uint8_t)B[k * ldb + j];
        return __builtin_convertvector(v, Sum);
      };
      for (int g = 0; g < GROUPS; ++g) {
        const Sum word = (row(4 * g) | row(4 * g + 1) << 8 | row(4 * g + 2) << 16 | row(4 * g + 3) << 24) ^ SIGN;
        store<Sum>(words + g * PANEL, g == GROUPS - 1 ? word & KNOWN : word);
      }
    }
  }
  // The sum of a column's K bytes, as they are packed.
  MN_INLINE Sum of_columns(const int32_t *words) {
    Sum c{};
    for (int g = 0; g < GROUPS; ++g) add_bytes<D>(c, Sum{} + 0x01010101, (const int8_t *)(words + g * PANEL));
    return c;
  }
  MN_INLINE int32_t of_row(const uint8_t *a) {
    constexpr int WHOLE = K / (4 * W) * (4 * W);
    const Sum ones = Sum{} + 0x01010101;
    int32_t total = 0;
    if constexpr (WHOLE > 0) {
      Sum c{};
      for (int k = 0; k < WHOLE; k += 4 * W) add_bytes<D>(c, load<Sum>((const int32_t *)(a + k)), (const int8_t *)&ones);
      for (int i = 0; i < W; ++i) total += c[i];
    }
    for (int k = WHOLE; k < K; ++k) total += a[k];
    return total;
  }

  template <bool CHEAP, class Element>
  static inline void run(const uint8_t *A, long lda, const TB *B, long ldb, long count, float *local, Element &&element) {
    int32_t *words = (int32_t *)local, *columns = words + GROUPS * PANEL, *rows = columns + PANEL;
    for (int n = 0; n < PANEL; n += W) {
      pack(B + (TURNED ? n * ldb : n), ldb, count - n, words + n);
      if constexpr (ZERO_A != 0) store<Sum>(columns + n, (K * POINT - of_columns(words + n)) * ZERO_A);
    }
    if constexpr (POINT != 0)
      for (int m = 0; m < M; ++m) rows[m] = -POINT * of_row(A + m * lda);
    auto moved = [&](long m, long n, auto v) __attribute__((always_inline)) {
      using T = decltype(v);
      if constexpr (ZERO_A != 0) v += load<T>(columns + n);
      if constexpr (POINT != 0) v += rows[m];
      element(m, n, v);
    };
    if constexpr (is_paired<std::remove_cvref_t<Element>>)
      dot<M, PANEL, MOST, CHEAP>(A, lda, (const int8_t *)words, K, in_pairs(moved));
    else
      dot<M, PANEL, MOST, CHEAP>(A, lda, (const int8_t *)words, K, moved);
  }
};

}  // namespace mn
