// Convolutions of bytes in groups of one channel, or of a few that fill a vector, by words. See mononn_dot.hpp.
#pragma once
#include "mononn_dot.hpp"

namespace mn {

// One word of a group of GROUP neighbouring channels in each of its lanes: its CHUNK-th, or the word that it lies in.
template <int GROUP, int CHUNK, class TA, int... L>
MN_INLINE Lanes<W>::I spread_words(const TA *p, Sequence<int, L...>) {
  constexpr int N = sizeof...(L), EACH = 4 / sizeof(TA);
  static_assert(N % EACH == 0 && N % GROUP == 0);
  typename Lanes<N / EACH>::I words;
  __builtin_memcpy(&words, p, sizeof words);
  if constexpr (N == EACH) return Lanes<W>::I{} + words[0];
  else return __builtin_shufflevector(words, words, (L / GROUP * GROUP / EACH + CHUNK)...);
}

// As ``depthwise_tile``, by words of EACH channels: B is [KH * KW * chunks of a group][ldb][EACH], zero where a lane's
// word holds another group's channels.
template <class D, class G, int RH, int RW, int KR, int GROUP, class TA, class TB, class Epilogue>
MN_INLINE void dot_depthwise_tile(const TA *__restrict A, const TB *__restrict B, long ldb, Epilogue &&epilogue) {
  constexpr int EACH = D::GROUP, CHUNKS = (GROUP + EACH - 1) / EACH;
  typename D::Sum c[RH][RW], offset{};
  MN_UNROLL for (int y = 0; y < RH; ++y)
    MN_UNROLL for (int x = 0; x < RW; ++x) c[y][x] = typename D::Sum{};
  auto add = [&]<int CHUNK>(const TA *a, const TB *w) __attribute__((always_inline)) {
    typename D::Row b[KR][G::KW];
    MN_UNROLL for (int kh = 0; kh < KR; ++kh)
      MN_UNROLL for (int kw = 0; kw < G::KW; ++kw) {
        b[kh][kw] = D::row(w + ((kh * G::KW + kw) * CHUNKS + CHUNK) * ldb * EACH);
        if constexpr (D::OFFSET) D::add(offset, D::offset(), b[kh][kw]);
      }
    each_tap<G, RH, RW, KR>(
        [&](int row, int column) __attribute__((always_inline)) {
          return D::values(spread_words<GROUP, CHUNK>(a + G::at(row, column), Counted<W>()));
        },
        [&](int y, int x, int kh, int kw, typename D::Value v) __attribute__((always_inline)) {
          D::add(c[y][x], v, b[kh][kw]);
        });
  };
  MN_NOUNROLL for (int kh = 0; kh < G::KH; kh += KR)
    [&]<int... CHUNK>(Sequence<int, CHUNK...>) __attribute__((always_inline)) {
      (add.template operator()<CHUNK>(A + G::at(kh * G::DH, 0), B + kh * G::KW * CHUNKS * ldb * EACH), ...);
    }(Counted<CHUNKS>());
  if constexpr (D::OFFSET)
    MN_UNROLL for (int i = 0; i < RH * RW; ++i) c[i / RW][i % RW] -= offset;
  epilogue(c);
}

// Words of what lies one below the other in ``low`` and, behind it, ``high``, rows of PITCH elements: lane l has those of
// column FIRST + l.
template <int PITCH, int FIRST, class Rows, int... L> MN_INLINE Lanes<W>::I stacked(Rows low, Rows high, Sequence<int, L...>) {
  constexpr int EACH = sizeof...(L) / W;
  return (Lanes<W>::I)__builtin_shufflevector(low, high, (L % EACH * PITCH + FIRST + L / EACH)...);
}

// As ``depthwise_tile`` for groups of one channel, NV vectors of them, by words of EACH kernel rows: B is [words][KW][ldb][EACH],
// zero behind the last row. Two output rows multiply the same words, the lower one weights that are moved on in theirs.
template <class D, class G, int RH, int RW, int NV, class TA, class TB, class Epilogue>
MN_INLINE void dot_columns_tile(const TA *__restrict A, const TB *__restrict B, long ldb, Epilogue &&epilogue) {
  constexpr int EACH = D::GROUP, WORDS = (G::KH + EACH - 1) / EACH, LAST = (RH - 1) * G::SH + G::KH - 1;
  constexpr int COLUMNS = (RW - 1) * G::SW + (G::KW - 1) * G::DW + 1, DOWN = G::SH % EACH * 32 / EACH;
  static_assert(RH == 1 || (RH == 2 && G::DH == 1 && G::SH < EACH && LAST < WORDS * EACH));
  using Word = typename Lanes<W>::U;
  using Rows = typename Packed<TA, EACH / 2 * NV * W>::Type;
  Word b[RH][WORDS][G::KW][NV];
  typename D::Sum c[RH][RW][NV], offset[NV] = {};
  auto weights = [&](int y, int w, int kw, int j) __attribute__((always_inline)) { return D::row((const TB *)&b[y][w][kw][j]); };
  MN_UNROLL for (int w = 0; w < WORDS; ++w)
    MN_UNROLL for (int kw = 0; kw < G::KW; ++kw)
      MN_UNROLL for (int j = 0; j < NV; ++j) {
        __builtin_memcpy(&b[0][w][kw][j], B + ((w * G::KW + kw) * ldb + j * W) * EACH, sizeof(Word));
        if constexpr (D::OFFSET) D::add(offset[j], D::offset(), weights(0, w, kw, j));
        if constexpr (RH == 2) b[1][w][kw][j] = b[0][w][kw][j] << DOWN | (w ? b[0][w - (w > 0)][kw][j] >> (32 - DOWN) : Word{});
      }
  MN_UNROLL for (int y = 0; y < RH; ++y)
    MN_UNROLL for (int x = 0; x < RW; ++x)
      MN_UNROLL for (int j = 0; j < NV; ++j) c[y][x][j] = typename D::Sum{};
  MN_UNROLL for (int column = 0; column < COLUMNS; ++column)
    MN_UNROLL for (int w = 0; w < WORDS; ++w) {
      Rows rows[2];
      MN_UNROLL for (int r = 0; r < EACH; ++r) {
        const int row = w * EACH + r < LAST ? w * EACH + r : LAST;
        __builtin_memcpy((char *)rows + r * (NV * W * sizeof(TA)), A + G::at(row * G::DH, column), NV * W * sizeof(TA));
      }
      typename D::Value v[NV];
      v[0] = D::values(stacked<NV * W, 0>(rows[0], rows[1], Counted<W * EACH>()));
      if constexpr (NV == 2) v[1] = D::values(stacked<NV * W, W>(rows[0], rows[1], Counted<W * EACH>()));
      MN_UNROLL for (int kw = 0; kw < G::KW; ++kw) {
        const int x = column - kw * G::DW;
        if (x >= 0 && x % G::SW == 0 && x / G::SW < RW)
          MN_UNROLL for (int y = 0; y < RH; ++y)
            if (y * G::SH < (w + 1) * EACH && y * G::SH + G::KH > w * EACH)
              MN_UNROLL for (int j = 0; j < NV; ++j) D::add(c[y][x / G::SW][j], v[j], weights(y, w, kw, j));
      }
    }
  if constexpr (D::OFFSET)
    MN_UNROLL for (int i = 0; i < RH * RW; ++i)
      MN_UNROLL for (int j = 0; j < NV; ++j) c[i / RW][i % RW][j] -= offset[j];
  epilogue(c);
}

// As ``depthwise`` for groups of one channel: two vectors of channels at a time, the last alone where they are odd.
template <class G, int ROWS, int MOST, class TA, class TB, class Element>
MN_INLINE void dot_columns(const TA *A, const TB *B, long ldb, Element &&element) {
  using D = Dot<TA, TB>;
  constexpr int EACH = D::GROUP, LEFT = (G::KH + EACH - 1) / EACH * EACH - G::KH, NV = MOST > 1 ? 2 : 1, PIXELS = MOST / NV;
  constexpr int HEIGHT = G::DH == 1 && G::SH < EACH && G::SH <= LEFT && PIXELS > 1 ? 2 : 1;
  constexpr int PAIRED = NV == 1 ? 0 : (G::C + W - 1) / W / 2 * (2 * W);
  Cut<ROWS, G::OW, PIXELS / HEIGHT, HEIGHT>::each([&]<int RH, int RW>(long y, long x) __attribute__((always_inline)) {
    auto vectors = [&]<int N>(long n) __attribute__((always_inline)) {
      auto each = [&](auto &c) __attribute__((always_inline)) {
        MN_UNROLL for (int i = 0; i < RH * RW; ++i)
          if constexpr (N == 2 && is_paired<std::remove_cvref_t<Element>>) {
            const auto &two = c[i / RW][i % RW];
            element(y + i / RW, x + i % RW, n, joined(two[0], two[1], Counted<2 * W>()));
          } else {
            MN_UNROLL for (int j = 0; j < N; ++j) element(y + i / RW, x + i % RW, n + j * W, c[i / RW][i % RW][j]);
          }
      };
      dot_columns_tile<D, G, RH, RW, N>(A + G::at(y * G::SH, x * G::SW) + n, B + n * EACH, ldb, each);
    };
    MN_NOUNROLL for (long n = 0; n < PAIRED; n += NV * W) vectors.template operator()<NV>(n);
    if constexpr (PAIRED < G::C)
      MN_NOUNROLL for (long n = PAIRED; n < G::C; n += W) vectors.template operator()<1>(n);
  });
}

// As ``depthwise``.
template <class G, int ROWS, int MOST, int GROUP, class TA, class TB, class Element>
static inline void dot_depthwise(const TA *A, const TB *B, long ldb, Element &&element) {
  using D = Dot<TA, TB>;
  if constexpr (GROUP == 1) {
    dot_columns<G, ROWS, MOST>(A, B, ldb, element);
  } else {
    each_depthwise<G, ROWS, MOST, GROUP <= D::GROUP>(
        A, [&]<int RH, int RW, int KR>(const TA *a, long y, long x, long n) __attribute__((always_inline)) {
          dot_depthwise_tile<D, G, RH, RW, KR, GROUP>(a, B + n * D::GROUP, ldb, [&](auto &c) __attribute__((always_inline)) {
            MN_UNROLL for (int i = 0; i < RH * RW; ++i) element(y + i / RW, x + i % RW, n, c[i / RW][i % RW]);
          });
        });
  }
}

}  // namespace mn
