// Register-tiled products and direct convolutions of elements narrower than float in generated CPU code: uint8 by int8
// with exact int32 sums, and bfloat16 with float sums. See mononn_conv.hpp.
//
// GROUP neighbouring terms of a sum lie side by side in a lane of 4 bytes (4 of int8, 2 of bfloat16). Weights lie in
// panels of [groups][PANEL][GROUP]; terms past the end of the last group of a sum, or of a tap, are zero.
#pragma once
#include "mononn_conv.hpp"
#if defined(__ARM_FEATURE_DOTPROD)
#include <arm_neon.h>
#endif

namespace mn {

// Multiply-adds of one group in W columns: ``value`` is a group of A in all lanes (``first``: its first term alone),
// ``values`` one a lane, ``row`` a group of W columns of B. EXACT sums take any terms at all times weights of zero, and are not cut into runs.
// CHAINS independent sums hide the latency of ``add``.
template <class TA, class TB> struct Dot;

// Two words of 16 bits a lane, and the sums of their products.
typedef int16_t Words __attribute__((vector_size(W * 4)));
#if (MONONN_VECTOR_BYTES == 64 && defined(__AVX512BW__)) || (MONONN_VECTOR_BYTES == 32 && defined(__AVX2__)) || \
    (MONONN_VECTOR_BYTES == 16 && defined(__SSE2__))
#define MN_PAIRS 1  // vpmaddwd
#else
#define MN_PAIRS 0
#endif
#if (MONONN_VECTOR_BYTES == 64 && defined(__AVX512VNNI__)) || \
    (MONONN_VECTOR_BYTES == 32 && (defined(__AVXVNNI__) || (defined(__AVX512VNNI__) && defined(__AVX512VL__))))
#define MN_VNNI 1  // vpdpbusd
#else
#define MN_VNNI 0
#endif
MN_INLINE Lanes<W>::I pairs(Words a, Words b) {
  using Sum = Lanes<W>::I;
#if !MN_PAIRS
  return ((Sum)a << 16 >> 16) * ((Sum)b << 16 >> 16) + ((Sum)a >> 16) * ((Sum)b >> 16);
#else
  return x86::madd((Sum)a, (Sum)b);
#endif
}

// Of words on the left, which hold two terms a lane.
struct DotWords {
  static constexpr int GROUP = 2;
  static constexpr bool EXACT = true, OFFSET = false;
  using Sum = Lanes<W>::I;
  using Value = Words;
  using Row = Words;
  MN_INLINE Value value(const int16_t *p) {
    int32_t two;
    __builtin_memcpy(&two, p, 4);
    return (Words)(Sum{} + two);
  }
  MN_INLINE Value values(Sum words) { return (Words)words; }
};
template <> struct Dot<int16_t, int16_t> : DotWords {
  static constexpr int CHAINS = 8;
  MN_INLINE Row row(const int16_t *p) { return load<Words>((const float *)p); }
  MN_INLINE void add(Sum &c, Value a, Row b) { c += pairs(a, b); }
};
// Bytes that are stored as words already on one side, and widened by each load on the other.
template <> struct Dot<int16_t, int8_t> : DotWords {
  static constexpr int CHAINS = 2;
  MN_INLINE Row row(const int8_t *p) {
    return __builtin_convertvector(load<Packed<int8_t, 2 * W>::Type>((const float *)p), Words);
  }
  MN_INLINE void add(Sum &c, Value a, Row b) {
    c += pairs(a, b);
#if MN_PAIRS
    asm("" : "+v"(c));  // or compilers add several groups up apart, for which registers do not suffice
#endif
  }
};

template <> struct Dot<uint8_t, int8_t> {
  static constexpr int GROUP = 4;
  static constexpr bool EXACT = true;
  using Sum = Lanes<W>::I;
  MN_INLINE int32_t bytes(const uint8_t *p) {
    int32_t four;
    __builtin_memcpy(&four, p, 4);
    return four;
  }

#if MN_VNNI
  // vpdpbusd does all of it.
  static constexpr bool OFFSET = false;
  static constexpr int CHAINS = 8;
  using Value = Sum;
  using Row = Sum;
  MN_INLINE Value values(Sum words) { return words; }
  MN_INLINE Row row(const int8_t *p) { return load<Sum>((const int32_t *)p); }
  MN_INLINE void add(Sum &c, Value a, Row b) { c = x86::dpbusd(c, a, b); }

#elif MN_PAIRS
  // The even and the odd bytes of a lane as 16-bit words, whose products vpmaddwd adds in pairs (vpmaddubsw saturates).
  static constexpr bool OFFSET = false;
  static constexpr int CHAINS = 2;
  using Words = mn::Words;
  typedef uint16_t Unsigned __attribute__((vector_size(W * 4)));
  struct Value {
    Words even, odd;
  };
  using Row = Value;
  MN_INLINE Value values(Sum words) {
    const Unsigned four = (Unsigned)words;
    return {(Words)(four & 0xff), (Words)(four >> 8)};
  }
  MN_INLINE Row row(const int8_t *p) {
    const Words four = (Words)load<Sum>((const int32_t *)p);
    return {four << 8 >> 8, four >> 8};
  }
  MN_INLINE void add(Sum &c, Value a, Row b) {
    c += pairs(a.even, b.even) + pairs(a.odd, b.odd);
    asm("" : "+v"(c));  // or compilers add several groups up apart, for which registers do not suffice
  }

#elif MONONN_VECTOR_BYTES == 16 && defined(__ARM_FEATURE_DOTPROD)
  // sdot multiplies signed bytes: a - 128, and 128 times the weights' sum besides.
  static constexpr bool OFFSET = true;
  static constexpr int CHAINS = 8;
  using Value = int8x16_t;
  using Row = int8x16_t;
  MN_INLINE Value values(Sum words) { return (Value)(words ^ (int32_t)0x80808080); }
  MN_INLINE Row row(const int8_t *p) { return vld1q_s8(p); }
  MN_INLINE void add(Sum &c, Value a, Row b) { c = (Sum)vdotq_s32((int32x4_t)c, a, b); }
  MN_INLINE Value offset() { return vdupq_n_s8(-128); }

#else
  // Lane by lane in int32.
  static constexpr bool OFFSET = false;
  static constexpr int CHAINS = 8;
  struct Value {
    Sum term[4];
  };
  using Row = Value;
  MN_INLINE Value values(Sum words) {
    return {{words & 0xff, words >> 8 & 0xff, words >> 16 & 0xff, words >> 24 & 0xff}};
  }
  MN_INLINE Row row(const int8_t *p) {
    const Sum four = load<Sum>((const int32_t *)p);
    return {{four << 24 >> 24, four << 16 >> 24, four << 8 >> 24, four >> 24}};
  }
  MN_INLINE void add(Sum &c, Value a, Row b) {
    MN_UNROLL for (int t = 0; t < 4; ++t) c += a.term[t] * b.term[t];
  }
#endif
  MN_INLINE Value value(const uint8_t *p) { return values(Sum{} + bytes(p)); }
};

// Weights of seven bits, from -64 to 64: pairs of their products with bytes fit 16 bits.
struct SevenBits {
  int8_t value;
};
MN_INLINE const SevenBits *seven_bits(const int8_t *p) { return (const SevenBits *)p; }

#if MN_PAIRS && !MN_VNNI && defined(__SSSE3__)
template <> struct Dot<uint8_t, SevenBits> : Dot<uint8_t, int8_t> {
  using Value = Sum;
  using Row = Sum;
  MN_INLINE Value value(const uint8_t *p) { return Sum{} + bytes(p); }
  MN_INLINE Row row(const SevenBits *p) { return load<Sum>((const int32_t *)p); }
  MN_INLINE void add(Sum &c, Value a, Row b) {
    c += pairs((Words)x86::maddubs(a, b), Words{} + 1);
  }
};
#else
template <> struct Dot<uint8_t, SevenBits> : Dot<uint8_t, int8_t> {
  MN_INLINE Row row(const SevenBits *p) { return Dot<uint8_t, int8_t>::row(&p->value); }
};
#endif

template <> struct Dot<bf16, bf16> {
  static constexpr int GROUP = 2, CHAINS = 8;
  static constexpr bool EXACT = false, OFFSET = false;
  using Sum = V;
  using Pairs = Lanes<W>::I;
  MN_INLINE Pairs pair(const bf16 *p) {
    int32_t two;
    __builtin_memcpy(&two, p, 4);
    return Pairs{} + two;
  }
  MN_INLINE Pairs single(const bf16 *p) { return Pairs{} + (int32_t)p->bits; }

#if MONONN_VECTOR_BYTES == 64 && defined(__AVX512BF16__)
  using Value = Pairs;
  using Row = Pairs;
  MN_INLINE Value values(Pairs words) { return words; }
  MN_INLINE Row row(const bf16 *p) { return load<Pairs>((const int32_t *)p); }
  MN_INLINE void add(Sum &c, Value a, Row b) { c = x86::dpbf16(c, a, b); }
#else
  struct Value {
    V low, high;
  };
  using Row = Value;
  MN_INLINE Value values(Pairs words) { return {(V)(words << 16), (V)(words & (int32_t)0xffff0000)}; }
  MN_INLINE Row row(const bf16 *p) { return values(load<Pairs>((const int32_t *)p)); }
  MN_INLINE void add(Sum &c, Value a, Row b) {
    c += a.low * b.low;
    c += a.high * b.high;
  }
#endif
  MN_INLINE Value value(const bf16 *p) { return values(pair(p)); }
  MN_INLINE Value first(const bf16 *p) { return values(single(p)); }
};

// Accumulators that W columns of a row take. Tiles of MR rows and NV vectors fit the registers where these do:
//   MR NV + min(MR, NV) + 1        with one instruction for a group's products and sums,
//   MR NV + 2 min(MR, NV) + 5      where a group is taken apart into terms.
template <class TA> constexpr int sums_per_vector = 1;

// c += a group of terms of MR rows, which lie at ``at(i)``, times NV vectors of B. PARTIAL: the group's first term.
// Offsets (see Dot<>::OFFSET) are summed apart. The side that takes fewer registers waits in them.
template <class D, bool PARTIAL, int MR, int NV, class TB, class At>
MN_INLINE void add_group(typename D::Sum (&c)[MR][NV], typename D::Sum (&offset)[NV], const TB *B, At &&at) {
  auto value = [&](int i) __attribute__((always_inline)) {
    if constexpr (PARTIAL) return D::first(at(i));
    else return D::value(at(i));
  };
  typename D::Row row[NV];
  MN_UNROLL for (int j = 0; j < NV; ++j) row[j] = D::row(B + j * W * D::GROUP);
  if constexpr (NV <= MR) {
    MN_UNROLL for (int i = 0; i < MR; ++i) {
      const typename D::Value a = value(i);
      MN_UNROLL for (int j = 0; j < NV; ++j) D::add(c[i][j], a, row[j]);
    }
  } else {
    typename D::Value a[MR];
    MN_UNROLL for (int i = 0; i < MR; ++i) a[i] = value(i);
    MN_UNROLL for (int j = 0; j < NV; ++j)
      MN_UNROLL for (int i = 0; i < MR; ++i) D::add(c[i][j], a[i], row[j]);
  }
  if constexpr (D::OFFSET)
    MN_UNROLL for (int j = 0; j < NV; ++j) D::add(offset[j], D::offset(), row[j]);
}

// Weights of which most pairs of products fit 16 bits, whatever the bytes are: two of one sign that add up to 128 at most, and
// to -128 at least. Where MANY rows or more are multiplied by a panel, one weight of each other pair is first left out of it,
// and multiplied apart: the same sums, in as many instructions as those of seven bits, and a few.
struct InParts {
  int8_t value;
};
MN_INLINE const InParts *in_parts(const int8_t *p) { return (const InParts *)p; }
constexpr int MANY = 13;
// Rows of register tiles of NV vectors where each group is taken apart into words instead.
template <int NV> constexpr int APART = ((W == 16 ? 32 : 16) - 5 - 2 * NV) / NV > 1 ? ((W == 16 ? 32 : 16) - 5 - 2 * NV) / NV : 1;

// At most MOST groups of a panel of NV vectors: ``fits``, and what was left out of their pairs, vector by vector with the
// number of its group.
template <int NV> struct Parts {
  static constexpr int MOST = 256, EACH = 4 * W;
  alignas(64) int8_t fits[MOST * NV * EACH], rest[NV][MOST * EACH];
  uint16_t number[NV][MOST];
  int count[NV];
  void take(const int8_t *B, long groups) {
    MN_UNROLL for (int j = 0; j < NV; ++j) count[j] = 0;
    MN_NOUNROLL for (long g = 0; g < groups; ++g)
      MN_UNROLL for (int j = 0; j < NV; ++j) {
        const long at = (g * NV + j) * EACH;
        const Words two = load<Words>((const float *)(B + at)), even = two << 8 >> 8, odd = two >> 8;
        const Words above = (even & ~(even >> 15)) + (odd & ~(odd >> 15)), below = (even & even >> 15) + (odd & odd >> 15);
        const Words left = two & ((above > 128) | (below < -128)) & (int16_t)0xff00;
        store<Words>((float *)(fits + at), two ^ left);
        store<Words>((float *)(rest[j] + count[j] * EACH), left);
        number[j][count[j]] = (uint16_t)g;
        count[j] += any(left);
      }
  }
};

// As ``multiply_groups``, of bytes by the first ``groups`` of ``parts``.
template <int MR, int NV, class Fetching>
MN_INLINE void multiply_parts(const uint8_t *__restrict A, long lda, const Parts<NV> &parts, long groups,
                              Lanes<W>::I (&c)[MR][NV], Fetching fetch) {
  using D = Dot<uint8_t, SevenBits>;
  constexpr int EACH = 4 * W;
  typename D::Sum offset[NV];
  MN_UNROLL for (int i = 0; i < MR; ++i)
    MN_UNROLL for (int j = 0; j < NV; ++j) c[i][j] = typename D::Sum{};
  for (long g = 0; g < groups; ++g, fetch = fetch.from(1)) {
    const int8_t *row = parts.fits + g * NV * EACH;
    fetch.template row<NV * EACH>(row, 0);
    add_group<D, false>(c, offset, seven_bits(row), [&](int i) __attribute__((always_inline)) {
      return A + i * lda + 4 * g;
    });
  }
  MN_UNROLL for (int j = 0; j < NV; ++j)
    MN_NOUNROLL for (int n = 0; n < parts.count[j]; ++n) {
      const auto row = D::row(seven_bits(parts.rest[j] + n * EACH));
      MN_UNROLL for (int i = 0; i < MR; ++i) D::add(c[i][j], D::value(A + i * lda + 4 * parts.number[j][n]), row);
    }
}

// As ``multiply``: c = A B for MR rows and NV vectors of columns, in KU independent sums (of every KU-th group).
template <class D, int MR, int NV, int KU, class TA, class TB, class Fetching>
MN_INLINE void multiply_groups(const TA *__restrict A, long lda, const TB *__restrict B, long K,
                               typename D::Sum (&c)[KU][MR][NV], Fetching fetch) {
  constexpr int GROUP = D::GROUP, STEP = KU > 2 ? KU : 2;
  typename D::Sum offset[NV] = {};
  MN_UNROLL for (int u = 0; u < KU; ++u)
    MN_UNROLL for (int i = 0; i < MR; ++i)
      MN_UNROLL for (int j = 0; j < NV; ++j) c[u][i][j] = typename D::Sum{};
  const long end = D::EXACT ? (K + GROUP - 1) / GROUP * GROUP : K / GROUP * GROUP;
  long k = 0;
  auto step = [&](int u) __attribute__((always_inline)) {
    const long g = k + u * GROUP;
    if constexpr (MR > STREAMED) fetch.template row<NV * W * GROUP>(B + g * (NV * W), g / GROUP);
    add_group<D, false>(c[u % KU], offset, B + g * (NV * W), [&](int i) __attribute__((always_inline)) {
      return A + i * lda + g;
    });
  };
  for (; k + STEP * GROUP <= end; k += STEP * GROUP) {
    MN_UNROLL for (int u = 0; u < STEP; ++u) step(u);
  }
  for (; k < end; k += GROUP) step(0);
  if constexpr (!D::EXACT)
    if (k < K)
      add_group<D, true>(c[0], offset, B + k * (NV * W), [&](int i) __attribute__((always_inline)) { return A + i * lda + k; });
  MN_UNROLL for (int u = 1; u < KU; ++u)
    MN_UNROLL for (int i = 0; i < MR; ++i)
      MN_UNROLL for (int j = 0; j < NV; ++j) c[0][i][j] += c[u][i][j];
  if constexpr (D::OFFSET)
    MN_UNROLL for (int i = 0; i < MR; ++i)
      MN_UNROLL for (int j = 0; j < NV; ++j) c[0][i][j] -= offset[j];
}

// As ``tile``: MR x (NV vectors) of C = A B, handed to ``epilogue`` in registers; long sums of floats in runs.
template <class D, int MR, int NV, int KU, class TA, class TB, class Fetching, class Epilogue>
MN_INLINE void dot_tile(const TA *__restrict A, long lda, const TB *__restrict B, long K, Fetching fetch, Epilogue &&epilogue) {
  using Sum = typename D::Sum;
  Sum c[KU][MR][NV];
  multiply_groups<D, MR, NV, KU>(A, lda, B, D::EXACT || K < RUN ? K : RUN, c, fetch);
  if constexpr (!D::EXACT)
    if (K > RUN) {
      Sum total[MR][NV];
      __builtin_memcpy(total, c[0], sizeof total);
      for (long k = RUN; k < K; k += RUN) {
        asm volatile("" : : "r"(total) : "memory");  // the total waits in the cache, not in registers
        multiply_groups<D, MR, NV, KU>(A + k, lda, B + k * (NV * W), K - k < RUN ? K - k : RUN, c, fetch.from(k / D::GROUP));
        MN_UNROLL for (int i = 0; i < MR; ++i)
          MN_UNROLL for (int j = 0; j < NV; ++j) total[i][j] += c[0][i][j];
      }
      __builtin_memcpy(c[0], total, sizeof total);
    }
  epilogue(c[0]);
}
template <class D, int MR, int NV, int KU, class TA, class TB, class Epilogue>
MN_INLINE void dot_tile(const TA *__restrict A, long lda, const TB *__restrict B, long K, Epilogue &&epilogue) {
  dot_tile<D, MR, NV, KU>(A, lda, B, K, fetch_of<1, NV * W * D::GROUP>(0, B, 0), epilogue);
}

// M x PANEL of C = A B, at most MOST rows at once. Rows of A are lda elements apart, B is one panel of K terms, at most
// three bytes past a row's terms are read; ``element(m, n, v)`` takes W neighbouring sums of row m from column n on.
template <int M, int PANEL, int MOST, bool CHEAP, class TA, class TB, class Element>
MN_INLINE void dot(const TA *A, long lda, const TB *B, long K, Element &&element) {
  using D = Dot<TA, TB>;
  using S = Shape<M, PANEL, MOST, D::CHAINS>;
  in_runs<S, CHEAP, typename D::Sum>(K, D::EXACT ? K : RUN, [&]<int MR>(long row, long k, long terms, int number, auto &c) __attribute__((always_inline)) {
    const TB *b = B + k * PANEL;
    const auto fetch = fetch_of<S::BLOCKS, PANEL * D::GROUP>(number, b, (terms + D::GROUP - 1) / D::GROUP);
    multiply_groups<D, MR, S::NV, S::sums(MR)>(A + row * lda + k, lda, b, terms, c, fetch);
  }, element);
}

// The same, where most pairs of products fit 16 bits.
template <int M, int PANEL, int MOST, bool CHEAP, class Element>
MN_INLINE void dot(const uint8_t *A, long lda, const InParts *B, long K, Element &&element) {
  const int8_t *bytes = &B->value;
  if constexpr (M < MANY) {
    dot<M, PANEL, APART<PANEL / W> < MOST ? APART<PANEL / W> : MOST, CHEAP>(A, lda, bytes, K, element);
  } else {
    using S = Shape<M, PANEL, MOST, 1>;
    Parts<S::NV> parts;
    long taken = -1;
    in_runs<S, CHEAP, Lanes<W>::I>(K, 4 * parts.MOST, [&]<int MR>(long row, long k, long terms, int number, auto &c) __attribute__((always_inline)) {
      const int8_t *b = bytes + k * PANEL;
      const long groups = (terms + 3) / 4;
      if (taken != k) parts.take(b, groups);
      taken = k;
      multiply_parts(A + row * lda + k, lda, parts, groups, c[0], fetch_of<S::BLOCKS, PANEL * 4>(number, b, groups));
    }, element);
  }
}

// The COUNT runs of neighbouring terms in a kernel row: the GROUPS of each, of which WHOLE are computed alike.
template <class G, class D, bool JOINED> struct Runs {
  static constexpr bool ONE = JOINED || (G::DENSE && G::C % D::GROUP == 0);
  static constexpr int COUNT = ONE ? 1 : G::KW, TERMS = ONE ? G::KW * G::C : G::C;
  static constexpr int GROUPS = (TERMS + D::GROUP - 1) / D::GROUP, WHOLE = D::EXACT ? GROUPS : TERMS / D::GROUP;
};

// As ``add_windows``, from zero: RH x RW output pixels times NV vectors, handed to an epilogue. JOINED: groups span the taps of a kernel row.
template <class G, class D, int RH, int RW, int NV, bool JOINED, class TA, class TB, class Fetching, class Touched, class Epilogue>
MN_INLINE void dot_window_tile(const TA *__restrict A, const TB *__restrict B, Fetching fetch, Touched lines, Epilogue &&epilogue) {
  static_assert(!JOINED || G::DENSE);
  using R = Runs<G, D, JOINED>;
  constexpr int GROUP = D::GROUP, WHOLE = R::WHOLE;
  constexpr int STEP = WHOLE % 2 == 0 ? 2 : WHOLE % 3 == 0 ? 3 : 1;
  typename D::Sum c[RH * RW][NV], offset[NV] = {};
  MN_UNROLL for (int i = 0; i < RH * RW; ++i)
    MN_UNROLL for (int j = 0; j < NV; ++j) c[i][j] = typename D::Sum{};
  auto pixel = [](int i) __attribute__((always_inline)) { return G::at(i / RW * G::SH, i % RW * G::SW); };
  lines.template step<1>();
  MN_NOUNROLL for (int kh = 0; kh < G::KH; ++kh)
    MN_NOUNROLL for (int r = 0; r < R::COUNT; ++r) {
      const TA *a = A + G::at(kh * G::DH, r * G::DW);
      MN_NOUNROLL for (int k = 0; k < WHOLE; k += STEP) {
        MN_UNROLL for (int u = 0; u < STEP; ++u) {
          fetch.template row<NV * W * GROUP>(B + u * (NV * W * GROUP), u);
          add_group<D, false>(c, offset, B + u * (NV * W * GROUP), [&](int i) __attribute__((always_inline)) {
            return a + pixel(i) + u * GROUP;
          });
        }
        a += STEP * GROUP;
        B += STEP * NV * W * GROUP;
        fetch = fetch.from(STEP);
      }
      if constexpr (WHOLE < R::GROUPS) {
        add_group<D, true>(c, offset, B, [&](int i) __attribute__((always_inline)) { return a + pixel(i); });
        B += NV * W * GROUP;
        fetch = fetch.from(1);
      }
    }
  if constexpr (D::OFFSET)
    MN_UNROLL for (int i = 0; i < RH * RW; ++i)
      MN_UNROLL for (int j = 0; j < NV; ++j) c[i][j] -= offset[j];
  epilogue(c);
}

// As ``conv``: ROWS rows of output pixels by PANEL channels, at most MOST pixels at once. B is the panel, of
// [KH][KW][groups of C][PANEL][GROUP], or where JOINED, whose pixels lie side by side, of [KH][groups of KW * C][PANEL][GROUP];
// at most three bytes past a pixel's channels are read.
template <class Geometry, int ROWS, int PANEL, int MOST, bool CHEAP, bool JOINED, class TA, class TB, class Element,
          class Ahead = Nothing>
static inline void dot_conv(const TA *A, const TB *B, Element &&element, Ahead &&ahead = Nothing{}) {
  using G = Geometry;
  using D = Dot<TA, TB>;
  constexpr int NV = PANEL / W;
  auto tile = [&]<int RH, int RW>(long at, auto fetch, auto lines, auto &&epilogue) __attribute__((always_inline)) {
    dot_window_tile<G, D, RH, RW, NV, JOINED>(A + at, B, fetch, lines, epilogue);
  };
  auto fetches = [=]<int TILES>(int number) __attribute__((always_inline)) {
    using R = Runs<G, D, JOINED>;
    return fetch_of<TILES, NV * W * D::GROUP>(number, B, (long)G::KH * R::COUNT * R::GROUPS);
  };
  each_tile<G, ROWS, NV, MOST, CHEAP>(tile, fetches, element, ahead);
}

}  // namespace mn
