// Vectors and elementary functions for generated CPU code: GCC and clang vector extensions only, so that one text
// serves AVX-512, AVX2, NEON and scalar machines. MONONN_VECTOR_BYTES (64, 32, 16 or 4) comes from the command line.
#pragma once
#include <stdint.h>
#include <type_traits>
#include "mononn_x86.hpp"

#ifndef INFINITY  // <cmath> and <utility> take clang longer to read than all of the vocabulary
#define INFINITY __builtin_inff()
#define NAN __builtin_nanf("")
#endif

#define MN_INLINE static inline __attribute__((always_inline))
// A large network's phases are compiled in parts, side by side: phase n in part n % MONONN_PARTS.
#ifdef MONONN_PARTS
#define MN_HERE(n) ((n) % MONONN_PARTS == MONONN_PART)
#define MN_PHASE __attribute__((noinline, visibility("hidden")))
#else
#define MN_HERE(n) 1
#define MN_PHASE static __attribute__((noinline))
#endif
#if defined(__clang__)
#define MN_UNROLL _Pragma("clang loop unroll(full)")
#define MN_NOUNROLL _Pragma("clang loop unroll(disable)")
#else
#define MN_UNROLL _Pragma("GCC unroll 64")
#define MN_NOUNROLL _Pragma("GCC unroll 1")
#endif

namespace mn {

// 0, 1, ..., N - 1 as arguments of a template.
template <class T, T...> struct Sequence {};
#if defined(__clang__)
template <int N> using Counted = __make_integer_seq<Sequence, int, N>;
#else
template <int N> using Counted = Sequence<int, __integer_pack(N)...>;
#endif

// N lanes of float; one-lane vectors serve the ends of rows, so each expression is written once.
template <int N> struct Lanes {
  typedef float F __attribute__((vector_size(N * 4)));
  typedef int32_t I __attribute__((vector_size(N * 4)));
  typedef uint32_t U __attribute__((vector_size(N * 4)));
};
constexpr int W = MONONN_VECTOR_BYTES / 4;
using V = Lanes<W>::F;
using V1 = Lanes<1>::F;
template <class T> constexpr int lanes = sizeof(T) / 4;
// Whether floats become bytes in fewer steps two vectors at a time.
#if (MONONN_VECTOR_BYTES == 64 && defined(__AVX512BW__)) || (MONONN_VECTOR_BYTES == 32 && defined(__AVX2__))
#define MN_TWICE 1
#else
#define MN_TWICE 0
#endif
constexpr bool TWICE = MN_TWICE;
template <class T> using Int = typename Lanes<lanes<T>>::I;
template <class T> using Float = typename Lanes<lanes<T>>::F;
template <class T> using Lane = std::remove_cvref_t<decltype(T{}[0])>;  // float or int32_t

// bfloat16: the upper half of a float's bits. f16: IEEE 754's binary16.
struct bf16 {
  uint16_t bits;
};
struct f16 {
  uint16_t bits;
};
// N elements as they lie in memory.
template <class E, int N> struct Packed {
  typedef E Type __attribute__((vector_size(N * sizeof(E))));
};
template <int N> struct Packed<bf16, N> : Packed<uint16_t, N> {};
template <int N> struct Packed<f16, N> : Packed<uint16_t, N> {};

// binary16 to float, exact also where denormal floats are taken for zero: the smallest are steps of 2^-24.
template <class T> MN_INLINE T widen_f16(typename Packed<f16, lanes<T>>::Type v) {
#if defined(__AVX512F__)
  if constexpr (lanes<T> == 16) return (T)x86::from_f16((x86::I256)v);
#endif
#if defined(__F16C__)
  if constexpr (lanes<T> == 8) return (T)x86::from_f16((x86::I128)v);
#endif
  using U = typename Lanes<lanes<T>>::U;
  const U wide = __builtin_convertvector(v, U), sign = (wide & 0x8000) << 16, rest = wide & 0x7fff;
  const U small = (U)(__builtin_convertvector(rest, T) * 0x1p-24f), normal = (rest << 13) + (112u << 23);
  return (T)((rest < 0x0400 ? small : rest < 0x7c00 ? normal : rest << 13 | 0x7f800000) | sign);
}
// Floats to binary16, to nearest and ties to even; a NaN stays one.
template <class T> MN_INLINE typename Packed<f16, lanes<T>>::Type round_f16(T v) {
  using H = typename Packed<f16, lanes<T>>::Type;
#if defined(__AVX512F__)
  if constexpr (lanes<T> == 16) return (H)x86::to_f16((x86::F512)v);
#endif
#if defined(__F16C__)
  if constexpr (lanes<T> == 8) return (H)x86::to_f16((x86::F256)v);
#endif
  using U = typename Lanes<lanes<T>>::U;
  const U bits = (U)v, sign = bits >> 16 & 0x8000, x = bits & 0x7fffffff;
  const U normal = (x - 0x38000000 + 0xfff + (x >> 13 & 1)) >> 13;  // beyond the largest it is infinity's
  const U denormal = (U)((T)x + 0.5f) - 0x3f000000;
  const U finite = x < 0x38800000 ? denormal : x < 0x47800000 ? normal : U{} + 0x7c00;
  return __builtin_convertvector((x > 0x7f800000 ? U{} + 0x7e00 : finite) | sign, H);
}

// Lanes of elements: exact, but for int32 as float.
template <class T, class E> MN_INLINE T widen(typename Packed<E, lanes<T>>::Type v) {
  using I = Int<T>;
  if constexpr (std::is_same_v<E, float>) return (T)v;
  else if constexpr (std::is_same_v<E, bf16>) return (T)(__builtin_convertvector(v, I) << 16);
  else if constexpr (std::is_same_v<E, f16>) return widen_f16<T>(v);
  else return __builtin_convertvector(__builtin_convertvector(v, I), T);
}
// Floats to bfloat16, to nearest and ties to even; a NaN stays one. The instruction makes denormals zero.
template <class T> MN_INLINE typename Packed<bf16, lanes<T>>::Type round_bf16(T v) {
  using H = typename Packed<bf16, lanes<T>>::Type;
#if defined(__AVX512BF16__) && defined(__AVX512VL__)
  if constexpr (lanes<T> == 16) return (H)x86::to_bf16((x86::F512)v);
  if constexpr (lanes<T> == 8) return (H)x86::to_bf16((x86::F256)v);
  if constexpr (lanes<T> == 4) return (H)x86::to_bf16((x86::F128)v);
  if constexpr (lanes<T> == 1) return H{(uint16_t)x86::to_bf16(x86::F128{v[0]})};
#endif
  using U = typename Lanes<lanes<T>>::U;
  const U bits = (U)v, nearest = bits + 0x7fff + (bits >> 16 & 1), quiet = bits | 0x400000;
  return __builtin_convertvector((v == v ? nearest : quiet) >> 16, H);
}
// Lanes as elements: floats that are whole numbers in E's range, int32 modulo its range, any float as bf16 or f16.
template <class E, class T> MN_INLINE typename Packed<E, lanes<T>>::Type narrow(T v) {
  using P = typename Packed<E, lanes<T>>::Type;
  if constexpr (std::is_same_v<E, float>) return (P)v;
  else if constexpr (std::is_same_v<E, bf16>) return round_bf16<T>(v);
  else if constexpr (std::is_same_v<E, f16>) return round_f16<T>(v);
  else return __builtin_convertvector(__builtin_convertvector(v, Int<T>), P);
}

template <class T> MN_INLINE T to_float(Int<T> v) { return __builtin_convertvector(v, T); }
template <class T> MN_INLINE Int<T> to_word(T v) { return __builtin_convertvector(v, Int<T>); }

// One element.
MN_INLINE float to_float(float x) { return x; }
MN_INLINE float to_float(uint8_t x) { return x; }
MN_INLINE float to_float(int8_t x) { return x; }
MN_INLINE float to_float(int32_t x) { return float(x); }
MN_INLINE float to_float(bf16 x) { return widen<V1, bf16>(Packed<bf16, 1>::Type{x.bits})[0]; }
MN_INLINE float to_float(f16 x) { return widen<V1, f16>(Packed<f16, 1>::Type{x.bits})[0]; }
template <class E> MN_INLINE E from_float(float x) {
  if constexpr (std::is_same_v<E, float>) return x;
  else if constexpr (std::is_same_v<E, bf16>) return bf16{round_bf16<V1>(V1{x})[0]};
  else if constexpr (std::is_same_v<E, f16>) return f16{round_f16<V1>(V1{x})[0]};
  else return E(int32_t(x));
}

template <class T> MN_INLINE T load(const float *p) {
  T v;
  __builtin_memcpy(&v, p, sizeof v);
  return v;
}
template <class T> MN_INLINE void store(float *p, T v) { __builtin_memcpy(p, &v, sizeof v); }
// The same from and to other elements (see ``widen`` and ``narrow``); T is a vector of float or of int32.
template <class T, class E> MN_INLINE T load(const E *p) {
  typename Packed<E, lanes<T>>::Type v;
  __builtin_memcpy(&v, p, sizeof v);
  return widen<T, E>(v);
}
template <class T, class E> MN_INLINE void store(E *p, T v) {
  const auto packed = narrow<E, T>(v);
  __builtin_memcpy(p, &packed, sizeof packed);
}
// The first ``count`` lanes; all of them if it is more.
template <class T, class E> MN_INLINE void store_first(E *p, T v, int count) {
  const auto packed = narrow<E, T>(v);
  if (count >= lanes<T>) {
    __builtin_memcpy(p, &packed, sizeof packed);
  } else if (__builtin_constant_p(count)) {
    __builtin_memcpy(p, &packed, count * sizeof(E));
  } else {
#if defined(__AVX512F__)
    if constexpr (lanes<T> == 16 && sizeof(E) == 4) return x86::store_floats(p, (1u << count) - 1, (x86::F512)packed);
#endif
#if defined(__AVX512BW__) && defined(__AVX512VL__)
    if constexpr (lanes<T> == 16 && sizeof(E) == 2) return x86::store_words(p, (1u << count) - 1, (x86::I256)packed);
    if constexpr (lanes<T> == 16 && sizeof(E) == 1) return x86::store_bytes(p, (1u << count) - 1, (x86::I128)packed);
#endif
    for (int i = 0; i < count; ++i) __builtin_memcpy(p + i, (const char *)&packed + i * sizeof(E), sizeof(E));
  }
}
template <class I, class E> MN_INLINE I load_int(const E *p) {
  static_assert(std::is_integral_v<E> && std::is_same_v<Lane<I>, int32_t>);
  return load<I>(p);
}
template <class T> MN_INLINE T splat(Lane<T> x) { return x - T{}; }

// What a step of a register tile is made of: a vector, one element in all lanes, and sum += a b. With sixteen registers, all
// in use, they stay in the order in which they are written: compilers that load earlier, to hide what loads wait for, find no
// register, and sums go to memory and back in every step. Addresses stay what they are, distances from one pointer, held from
// step to step: else compilers make each of them a pointer of its own.
#if defined(__FMA__) && MONONN_VECTOR_BYTES == 32
MN_INLINE V load_now(const float *p) {
  V v;
  asm volatile("vmovups %1, %0" : "=x"(v) : "m"(*(const float(*)[W])p));
  return v;
}
MN_INLINE V splat_now(const float &x) {
  V v;
  asm volatile("vbroadcastss %1, %0" : "=x"(v) : "m"(x));
  return v;
}
template <class E> MN_INLINE V splat_now(const E &x) { return splat<V>(to_float(x)); }
MN_INLINE void add_now(V &sum, V a, V b) { asm volatile("vfmadd231ps %2, %1, %0" : "+x"(sum) : "x"(a), "x"(b)); }
template <class E> MN_INLINE const E *held(const E *p) {
  asm volatile("" : "+r"(p));
  return p;
}
constexpr int STEPS = 4;  // that stand one after the other in the loop over them
#else
MN_INLINE V load_now(const float *p) { return load<V>(p); }
template <class E> MN_INLINE V splat_now(const E &x) { return splat<V>(to_float(x)); }
MN_INLINE void add_now(V &sum, V a, V b) { sum += a * b; }
template <class E> MN_INLINE const E *held(const E *p) { return p; }
constexpr int STEPS = 2;
#endif
// Whether any bit of a vector of whole numbers is set.
template <class T> MN_INLINE bool any(T v) {
#if defined(__AVX512F__)
  if constexpr (sizeof(T) == 64) return x86::any((x86::I512)v);
#endif
#if defined(__AVX__)
  if constexpr (sizeof(T) == 32) return x86::any((x86::I256)v);
#endif
  Lane<T> found = 0;
  MN_UNROLL for (int i = 0; i < (int)(sizeof(T) / sizeof found); ++i) found |= v[i];
  return found != 0;
}
template <class T, class E> MN_INLINE T gather(const E *p, long stride) {
  T v;
  for (int i = 0; i < lanes<T>; ++i) v[i] = to_float(p[i * stride]);
  return v;
}
template <class T, class E> MN_INLINE void scatter(E *p, long stride, T v, int count = lanes<T>) {
  const auto packed = narrow<E, T>(v);
  for (int i = 0; i < count; ++i) {
    const auto lane = packed[i];
    __builtin_memcpy(p + i * stride, &lane, sizeof(E));
  }
}
// Elements at positions that are not evenly spaced: ``at(x)`` is the offset for position x. RUN of them lie side by side from
// each multiple of RUN on, and x is a multiple of T's lanes.
template <class T, int RUN = 1, class E, class At> MN_INLINE T gather_at(const E *p, long x, At &&at) {
  constexpr int EACH = RUN < lanes<T> ? RUN : lanes<T>;
  if constexpr (EACH > 1) {
    typename Packed<E, lanes<T>>::Type v;
    MN_UNROLL for (int i = 0; i < lanes<T>; i += EACH) __builtin_memcpy((char *)&v + i * sizeof(E), p + at(x + i), EACH * sizeof(E));
    return widen<T, E>(v);
  } else {
    T v;
    for (int i = 0; i < lanes<T>; ++i) v[i] = to_float(p[at(x + i)]);
    return v;
  }
}
template <class T, int RUN = 1, class E, class At> MN_INLINE void scatter_at(E *p, long x, T v, At &&at) {
  constexpr int EACH = RUN < lanes<T> ? RUN : lanes<T>;
  if constexpr (EACH > 1) {
    const auto packed = narrow<E, T>(v);
    MN_UNROLL for (int i = 0; i < lanes<T>; i += EACH) __builtin_memcpy(p + at(x + i), (const char *)&packed + i * sizeof(E), EACH * sizeof(E));
  } else {
    for (int i = 0; i < lanes<T>; ++i) p[at(x + i)] = from_float<E>(v[i]);
  }
}

// Lanes of positions x, x + 1, ...; those in [low, high) are read, the others are zero and touch no memory.
template <class T, class E> MN_INLINE T load_between(const E *p, long x, long low, long high) {
  if (x >= low && x + lanes<T> <= high) return load<T>(p);
  const long first = low > x ? low - x : 0, last = high - x < lanes<T> ? high - x : lanes<T>;
#if defined(__AVX512F__)
  if constexpr (lanes<T> == 16 && std::is_same_v<E, float>)
    return first < last ? (T)x86::load_floats(p, (1u << last) - (1u << first)) : T{};
#endif
#if defined(__AVX512BW__) && defined(__AVX512VL__)
  if constexpr (lanes<T> == 16 && sizeof(E) < 4) {
    using P = typename Packed<E, 16>::Type;
    if (first >= last) return T{};
    const uint16_t mask = (1u << last) - (1u << first);
    if constexpr (sizeof(E) == 2) return widen<T, E>((P)x86::load_words(p, mask));
    else return widen<T, E>((P)x86::load_bytes(p, mask));
  }
#endif
  T v{};
  for (long i = first; i < last; ++i) v[i] = to_float(p[i]);
  return v;
}
template <class T, class E, class At> MN_INLINE T gather_at(const E *p, long x, long low, long high, At &&at) {
  T v{};
  for (int i = 0; i < lanes<T>; ++i)
    if (x + i >= low && x + i < high) v[i] = to_float(p[at(x + i)]);
  return v;
}
// ``then`` for the positions in [low, high), ``otherwise`` for the others.
template <class T> MN_INLINE T between(long x, long low, long high, T then, T otherwise) {
  if (x >= low && x + lanes<T> <= high) return then;
  for (int i = 0; i < lanes<T>; ++i)
    if (x + i >= low && x + i < high) otherwise[i] = then[i];
  return otherwise;
}

// ONNX's max and min: a NaN on either side is the answer. One instruction where ``a`` is a constant, three elsewhere.
template <class T> MN_INLINE T max(T a, T b) {
  T most = a > b ? a : b;  // b where one of them is a NaN
  return a == a ? most : a;
}
template <class T> MN_INLINE T min(T a, T b) {
  T least = a < b ? a : b;
  return a == a ? least : a;
}

struct Add {
  static constexpr float identity = 0;
  template <class T> static T apply(T a, T b) { return a + b; }
};
struct Mul {
  static constexpr float identity = 1;
  template <class T> static T apply(T a, T b) { return a * b; }
};
struct Max {
  static constexpr float identity = -INFINITY;
  template <class T> static T apply(T a, T b) { return mn::max<T>(a, b); }
};
struct Min {
  static constexpr float identity = INFINITY;
  template <class T> static T apply(T a, T b) { return mn::min<T>(a, b); }
};
// Fold the lanes of a vector pairwise, halves first: the order does not depend on the machine's instructions.
template <class R, class T> MN_INLINE float across(T v) {
  if constexpr (lanes<T> == 1) {
    return v[0];
  } else {
    using H = typename Lanes<lanes<T> / 2>::F;
    H a, b;
    __builtin_memcpy(&a, &v, sizeof a);
    __builtin_memcpy(&b, (const char *)&v + sizeof a, sizeof b);
    return across<R, H>(R::template apply<H>(a, b));
  }
}

// Horner's rule; coefficients from the highest power down.
template <class T, class... C> MN_INLINE T horner_step(T x, T sum, C... rest);
template <class T> MN_INLINE T horner_step(T, T sum) { return sum; }
template <class T, class... C> MN_INLINE T horner_step(T x, T sum, float c, C... rest) {
  return horner_step<T>(x, sum * x + splat<T>(c), rest...);
}
template <class T, class... C> MN_INLINE T polynomial(T x, float first, C... rest) {
  return horner_step<T>(x, splat<T>(first), rest...);
}

// exp: x = n ln 2 + r, 2 exp r by a degree-6 polynomial fitted to 4e-9, times 2^(n - 1), so that the upper end rounds to
// infinity; n + 126 stands in the last bits of the rounded quotient. Below 2^-126 it is zero. NaN passes through.
template <class T> MN_INLINE T exp(T x) {
  const T high = splat<T>(89.f), low = splat<T>(-87.33f);
  T c = x > high ? high : x;
  c = c < low ? low : c;
  const T magic = splat<T>(12582912.f + 126.f);
  union { T f; Int<T> i; } n, scale;
  n.f = c * 1.44269504f + magic;
  scale.i = n.i << 23;
  n.f -= magic;
  T r = c - n.f * 0.693359375f;
  r = r + n.f * 2.12194440e-4f;
  return scale.f * polynomial<T>(r, 2.76291976e-3f, 1.67374332e-2f, 8.3336778e-2f, 0.333330422f, 0.99999988f, 2.f, 2.f);
}

// exp where its own size matters, not its last bits; of infinities too, NaN passes through. With instructions that take powers of
// two apart and put them together: 2^n, n = x / ln 2, as 2^floor(n) times 2^f by a degree-5 polynomial fitted to 8e-8. n is
// rounded, so the relative error grows by 2^-24 for each unit of |x|.
template <class T> MN_INLINE T exp_near(T x) {
#if defined(__AVX512DQ__)
  if constexpr (lanes<T> % 16 == 0) {
    MN_UNROLL for (int i = 0; i < lanes<T> / 16; ++i) {
      x86::F512 part;
      __builtin_memcpy(&part, (const char *)&x + i * sizeof part, sizeof part);
      const x86::F512 n = part * 1.44269504f;
      part = polynomial<x86::F512>(x86::fraction(n), 1.87757669e-3f, 8.98934063e-3f, 5.58263175e-2f, 0.240153611f, 0.693153083f,
                                   0.99999994f);
      part = x86::times_power(part, n);
      __builtin_memcpy((char *)&x + i * sizeof part, &part, sizeof part);
    }
    return x;
  }
#endif
  return exp<T>(x);
}

// log: m in [sqrt 1/2, sqrt 2), log m = 2 artanh((m - 1) / (m + 1)) by its series.
template <class T> MN_INLINE T log(T x) {
  using I = Int<T>;
  union { T f; I i; } u, m;
  u.f = x;
  I e = (u.i - 0x3f3504f3) >> 23;
  m.i = u.i - (e << 23);
  T s = (m.f - 1.f) / (m.f + 1.f), t = s * s;
  T series = polynomial<T>(t, 0.181818182f, 0.222222222f, 0.285714286f, 0.4f, 0.666666667f, 2.f);
  T r = s * series + __builtin_convertvector(e, T) * 0.693147181f;
  r = x == splat<T>(0.f) ? splat<T>(-INFINITY) : r;
  r = x < splat<T>(0.f) ? splat<T>(NAN) : r;
  r = x == splat<T>(INFINITY) ? x : r;
  return x == x ? r : x;
}

template <class T> MN_INLINE T clamp(T x, float bound) {
  const T high = splat<T>(bound), low = splat<T>(-bound);
  x = x > high ? high : x;
  return x < low ? low : x;
}

// erf and tanh: x P(x^2) / Q(x^2), rational fits with a relative error of 2e-8, so 4e-7 in float32.
template <class T> MN_INLINE T erf(T x) {
  x = clamp<T>(x, 3.95f);
  T t = x * x;
  T p = polynomial<T>(t, 2.02591104e-6f, 2.84687296e-4f, 3.80814378e-3f, 5.28753959e-2f, 0.191549897f, 1.12837911f);
  T q = polynomial<T>(t, 3.78318073e-5f, 1.17072125e-3f, 1.50550557e-2f, 0.114559457f, 0.503089368f, 1.f);
  return x * p / q;
}
template <class T> MN_INLINE T tanh(T x) {
  x = clamp<T>(x, 9.f);
  T t = x * x;
  T p = polynomial<T>(t, 1.33547262e-8f, 2.06091354e-5f, 3.49559169e-3f, 0.133810282f, 1.f);
  T q = polynomial<T>(t, 7.7765867e-7f, 3.28564027e-4f, 2.58769966e-2f, 0.467143446f, 1.f);
  return x * p / q;
}
template <class T> MN_INLINE T sigmoid(T x) { return 1.f / (1.f + mn::exp<T>(-x)); }
// x sigmoid(x): above zero to a relative 2.5e-7, below it to an absolute 1e-7.
template <class T> MN_INLINE T silu(T x) { return x / (1.f + exp_near<T>(-x)); }
template <class T> MN_INLINE T abs(T x) {
  union { T f; Int<T> i; } u;
  u.f = x;
  u.i &= 0x7fffffff;
  return u.f;
}
template <class T> MN_INLINE T cube(T x) { return x * x * x; }
template <class T> MN_INLINE T sqrt(T x) {
#if defined(__AVX512F__)
  if constexpr (lanes<T> == 16) return (T)x86::sqrt((x86::F512)x);
#endif
  T r;
  for (int i = 0; i < lanes<T>; ++i) r[i] = __builtin_sqrtf(x[i]);
  return r;
}
// To the nearest whole number, ties to even.
template <class T> MN_INLINE T round(T x) {
#if defined(__AVX512F__)
  if constexpr (lanes<T> == 16) return (T)x86::round((x86::F512)x);
#endif
#if defined(__AVX__)
  if constexpr (lanes<T> == 8) return (T)x86::round((x86::F256)x);
#endif
  T r;
  for (int i = 0; i < lanes<T>; ++i) r[i] = __builtin_rintf(x[i]);
  return r;
}
// Floats in int32's range to the nearest whole number, ties to the even one.
template <class T> MN_INLINE Int<T> nearest(T x) {
#if defined(__AVX512F__)
  if constexpr (lanes<T> == 16) return (Int<T>)x86::nearest((x86::F512)x);
#endif
#if defined(__AVX__)
  if constexpr (lanes<T> == 8) return (Int<T>)x86::nearest((x86::F256)x);
#endif
  return to_word<T>(round<T>(x));
}
// The same, and ``more`` each, as bytes: no sum is more than these hold, and of a smaller one it is the least that they do.
template <class E, class T> MN_INLINE typename Packed<E, lanes<T>>::Type to_bytes(T x, int more) {
  using P = typename Packed<E, lanes<T>>::Type;
  constexpr bool SIGNED = std::is_signed_v<E>;
#if MN_TWICE
  if constexpr (lanes<T> == 2 * W) {
    using I = x86::Vector<int32_t, MONONN_VECTOR_BYTES>;
    V part[2];
    __builtin_memcpy(part, &x, sizeof x);
    return (P)x86::to_bytes<SIGNED>((I)nearest<V>(part[0]), (I)nearest<V>(part[1]), more);
  }
#endif
  const Int<T> least = Int<T>{} + ((SIGNED ? -128 : 0) - more), found = nearest<T>(x);
  return narrow<E, Int<T>>((found > least ? found : least) + more);
}
template <int MORE, class AT, class E, class T> MN_INLINE void store_nearest(E *p, T x) {
  const auto packed = to_bytes<AT, T>(x, MORE);
  __builtin_memcpy(p, &packed, sizeof packed);
}
// Entries of a table of 256 bytes, those that the lowest 8 bits of words name.
template <class T, class E> MN_INLINE Int<T> lookup(const E *table, Int<T> at) {
#if defined(__AVX512VBMI__)
  if constexpr (lanes<T> == 16) {
    const Int<T> found = (Int<T>)x86::look_up(table, (x86::B512)at);
    return std::is_same_v<E, int8_t> ? found << 24 >> 24 : found & 255;
  }
#endif
  Int<T> r;
  for (int i = 0; i < lanes<T>; ++i) r[i] = table[(uint8_t)at[i]];
  return r;
}
// Those that bytes name, and that whole numbers nearest to floats, and MORE each, do as bytes of type AT.
template <class P, int... L> MN_INLINE P look_up(const void *table, P at, Sequence<int, L...>) {
  constexpr int N = sizeof...(L);
#if defined(__AVX512VBMI__)
  if constexpr (N >= 16 && N <= 32) {
    using Line = typename Packed<char, 64>::Type;
    const auto wide = [&]<int... B>(Sequence<int, B...>) __attribute__((always_inline)) {
      return (Line)__builtin_shufflevector(at, at, (B < N ? B : -1)...);
    }(Counted<64>());
    const Line found = x86::look_up(table, wide);
    return (P)__builtin_shufflevector(found, found, L...);
  }
#endif
  P found;
  for (int i = 0; i < N; ++i) found[i] = ((const Lane<P> *)table)[(uint8_t)at[i]];
  return found;
}
template <int MORE, class AT, class E, class T> MN_INLINE void store_looked_up(E *p, T x, const void *table) {
  const auto packed = look_up(table, (typename Packed<E, lanes<T>>::Type)to_bytes<AT, T>(x, MORE), Counted<lanes<T>>());
  __builtin_memcpy(p, &packed, sizeof packed);
}
template <class E> MN_INLINE float lookup(const E *table, float x) { return table[(uint8_t)(int)x]; }
// x to the power 0.75, local response normalisation's usual exponent.
template <class T> MN_INLINE T pow_three_quarters(T x) {
  const T root = mn::sqrt<T>(x), r = root * mn::sqrt<T>(root);
  return x == splat<T>(-INFINITY) ? -x : r;
}
template <class T, class F> MN_INLINE T each(T x, F f) {
  T r;
  for (int i = 0; i < lanes<T>; ++i) r[i] = f(x[i]);
  return r;
}
// sin and cos: x less n pi in three parts (Cody and Waite), an odd polynomial fitted to 6e-9, and the sign that n says, of
// cosines a number and a half. Beyond FAR the C library computes them.
constexpr float FAR = 8192;
template <class T> MN_INLINE T sine(T x, T n, Int<T> odd) {
  const T r = x - n * 3.140625f - n * 9.67502593994140625e-4f - n * 1.509957990978376432e-7f, t = r * r;
  const T s = r + r * t * polynomial<T>(t, 2.60539969e-6f, -1.98094393e-4f, 8.33306462e-3f, -0.166666597f);
  return (T)((Int<T>)s ^ (odd << 31));
}
template <class T> MN_INLINE T sin(T x) {
  if (!(across<Max, T>(mn::abs<T>(x)) <= FAR)) return each<T>(x, [](float a) { return __builtin_sinf(a); });
  const T n = x * 0.318309886f + 12582912.f;
  return sine<T>(x, n - 12582912.f, (Int<T>)n);
}
template <class T> MN_INLINE T cos(T x) {
  if (!(across<Max, T>(mn::abs<T>(x)) <= FAR)) return each<T>(x, [](float a) { return __builtin_cosf(a); });
  const T n = x * 0.318309886f - 0.5f + 12582912.f;
  return sine<T>(x, n - 12582912.f + 0.5f, (Int<T>)n + 1);
}
template <class T, class F> MN_INLINE T each(T x, T y, F f) {
  T r;
  for (int i = 0; i < lanes<T>; ++i) r[i] = f(x[i], y[i]);
  return r;
}
template <class T> MN_INLINE T sign(T x) {
  const T one = splat<T>(1.f), zero = splat<T>(0.f);
  return x > zero ? one : (x < zero ? -one : x);
}
// max(x, 0) + log(1 + u), u = exp(-|x|), by 2 atanh(u / (2 + u)): its series cut off behind t^6 is off by 1.4e-8.
template <class T> MN_INLINE T softplus(T x) {
  const T zero = splat<T>(0.f), size = x < zero ? -x : x;
  const T u = size > splat<T>(87.f) ? zero : exp<T>(-size);
  const T s = u / (u + 2.f), t = s * s;
  const T series = polynomial<T>(t, 2.f / 13, 2.f / 11, 2.f / 9, 2.f / 7, 0.4f, 2.f / 3, 2.f);
  return (x > zero ? x : zero) + s * series;
}

// The same functions on one float, for loops that are not vectors.
#define MN_SCALAR(name) MN_INLINE float name(float x) { return mn::name<V1>(V1{x})[0]; }
MN_SCALAR(exp) MN_SCALAR(log) MN_SCALAR(erf) MN_SCALAR(tanh) MN_SCALAR(sigmoid) MN_SCALAR(sqrt) MN_SCALAR(softplus)
MN_SCALAR(sin) MN_SCALAR(cos)
#undef MN_SCALAR
// Doubles are rare (a cast in the middle of a network): the C library's functions serve them.
#define MN_DOUBLE(name) MN_INLINE double name(double x) { return __builtin_##name(x); }
MN_DOUBLE(exp) MN_DOUBLE(log) MN_DOUBLE(erf) MN_DOUBLE(tanh) MN_DOUBLE(sqrt) MN_DOUBLE(sin) MN_DOUBLE(cos)
#undef MN_DOUBLE
MN_INLINE double sigmoid(double x) { return 1 / (1 + __builtin_exp(-x)); }
MN_INLINE double softplus(double x) { return x > 40 ? x : __builtin_log1p(__builtin_exp(x)); }
MN_INLINE double abs(double x) { return __builtin_fabs(x); }
MN_INLINE double sign(double x) { return x > 0 ? 1 : (x < 0 ? -1 : x); }
MN_INLINE double max(double a, double b) { return a > b ? a : (b >= a ? b : a + b); }
MN_INLINE double min(double a, double b) { return a < b ? a : (b <= a ? b : a + b); }
MN_INLINE double mod(double a, double b) { double r = __builtin_fmod(a, b); return r != 0 && ((r < 0) != (b < 0)) ? r + b : r; }
MN_INLINE float abs(float x) { return __builtin_fabsf(x); }
MN_INLINE int64_t abs(int64_t x) { return x < 0 ? int64_t(-uint64_t(x)) : x; }
MN_INLINE uint64_t abs(uint64_t x) { return x; }
MN_INLINE uint64_t sign(uint64_t x) { return x > 0; }
MN_INLINE int64_t sign(int64_t x) { return x > 0 ? 1 : x < 0 ? -1 : 0; }
MN_INLINE float sign(float x) { return x > 0 ? 1.f : (x < 0 ? -1.f : x); }
MN_INLINE float max(float a, float b) { return a > b ? a : (b >= a ? b : a + b); }
MN_INLINE float min(float a, float b) { return a < b ? a : (b <= a ? b : a + b); }
MN_INLINE int64_t max(int64_t a, int64_t b) { return a > b ? a : b; }
MN_INLINE int64_t min(int64_t a, int64_t b) { return a < b ? a : b; }
MN_INLINE uint64_t max(uint64_t a, uint64_t b) { return a > b ? a : b; }
MN_INLINE uint64_t min(uint64_t a, uint64_t b) { return a < b ? a : b; }
// Floor division and the remainder with the divisor's sign.
MN_INLINE int64_t floordiv(int64_t a, int64_t b) { int64_t q = a / b; return q - ((a % b != 0) && ((a < 0) != (b < 0))); }
MN_INLINE int64_t mod(int64_t a, int64_t b) { int64_t r = a % b; return r != 0 && ((r < 0) != (b < 0)) ? r + b : r; }
MN_INLINE float mod(float a, float b) { float r = __builtin_fmodf(a, b); return r != 0 && ((r < 0) != (b < 0)) ? r + b : r; }
// Integers that are data: the quotient towards zero and what is left of it, the remainder with the divisor's sign, powers
// of exponents that are not negative. Divided by zero, the quotient is the dividend and the rest is 0: nothing may stop
// the process.
template <class I> MN_INLINE I quotient(I a, I b) { return b == 0 ? a : b == I(-1) && I(-1) < 0 ? I(-uint64_t(a)) : a / b; }
template <class I> MN_INLINE I rest(I a, I b) { return b == 0 || (b == I(-1) && I(-1) < 0) ? 0 : a % b; }
template <class I> MN_INLINE I modulo(I a, I b) {
  const I r = rest(a, b);
  return r != 0 && ((r < 0) != (b < 0)) ? r + b : r;
}
template <class I> MN_INLINE I power(I base, I exponent) {
  uint64_t x = uint64_t(base), y = 1;
  for (uint64_t e = uint64_t(exponent); e; e >>= 1, x *= x) y *= e & 1 ? x : 1;
  return I(y);
}

// body(tag, x) for x in [0, n): whole vectors, then single lanes; decltype(tag) says which.
template <class Body> MN_INLINE void each_lane(long n, Body &&body) {
  long x = 0;
  for (; x + W <= n; x += W) body(V{}, x);
  for (; x < n; ++x) body(V1{}, x);
}
// body(tag, x) for what is left of [0, N) from AT on: a vector of L lanes, of half of them, and so on.
template <long N, long AT, int L, class Body> MN_INLINE void each_left(Body &&body) {
  if constexpr (AT + L <= N) {
    body(typename Lanes<L>::F{}, AT);
    each_left<N, AT + L, L>(body);
  } else if constexpr (AT < N) {
    each_left<N, AT, L / 2>(body);
  }
}
// The same for a number that is known: what is no whole vector are shorter ones.
template <long N, class Body> MN_INLINE void each_lane(Body &&body) {
  constexpr long WHOLE = N / W * W;
  for (long x = 0; x < WHOLE; x += W) body(V{}, x);
  each_left<N, WHOLE, W>(body);
}

// Fold vectors term(z) of results side by side over z in [0, N): four interleaved folds, then pairwise.
template <class R, class T, long N, class Term> MN_INLINE T fold(Term &&term) {
  constexpr long FOURS = N / 4 * 4;
  T s[4];
  MN_UNROLL for (int u = 0; u < 4; ++u) s[u] = splat<T>(R::identity);
  for (long z = 0; z < FOURS; z += 4)
    MN_UNROLL for (int u = 0; u < 4; ++u) s[u] = R::template apply<T>(s[u], term(z + u));
  MN_UNROLL for (long z = FOURS; z < N; ++z) s[z - FOURS] = R::template apply<T>(s[z - FOURS], term(z));
  return R::template apply<T>(R::template apply<T>(s[0], s[1]), R::template apply<T>(s[2], s[3]));
}

// Fold term(tag, z) over z in [0, N): four interleaved vectors, then pairwise, then what is left in shorter vectors.
template <class R, long N, class Term> MN_INLINE float reduce(Term &&term) {
  constexpr long FOURS = N / (4 * W) * (4 * W), WHOLE = N / W * W;
  float total = R::identity;
  if constexpr (WHOLE > 0) {
    V s[4];
    MN_UNROLL for (int u = 0; u < 4; ++u) s[u] = splat<V>(R::identity);
    for (long z = 0; z < FOURS; z += 4 * W)
      MN_UNROLL for (int u = 0; u < 4; ++u) s[u] = R::template apply<V>(s[u], term(V{}, z + u * W));
    MN_UNROLL for (long z = FOURS; z < WHOLE; z += W) s[(z - FOURS) / W] = R::template apply<V>(s[(z - FOURS) / W], term(V{}, z));
    total = across<R, V>(R::template apply<V>(R::template apply<V>(s[0], s[1]), R::template apply<V>(s[2], s[3])));
  }
  each_left<N, WHOLE, W>([&](auto tag, long z) __attribute__((always_inline)) {
    using T = decltype(tag);
    total = R::template apply<V1>(V1{total}, V1{across<R, T>(term(tag, z))})[0];
  });
  return total;
}

}  // namespace mn
