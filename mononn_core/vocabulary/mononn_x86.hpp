// The instructions of x86 that the vocabulary names, as functions of vectors. <immintrin.h> declares thousands, and takes
// clang longer to read than all of the vocabulary: where it is the version of the ziglang wheel, the operations built
// into it that stand behind the intrinsics are named themselves, and nothing need be read.
#pragma once
#include <stdint.h>

#if defined(__x86_64__)
#if defined(__clang__) && __clang_major__ == 22
#define MN_X86(builtin, intrinsic) builtin
#else
#include <immintrin.h>
#define MN_X86(builtin, intrinsic) intrinsic
#endif
#define MN_OPERATION static inline __attribute__((always_inline))

namespace mn::x86 {

template <class E, int BYTES> struct Whole {
  typedef E Type __attribute__((vector_size(BYTES)));
};
template <class E, int BYTES> using Vector = typename Whole<E, BYTES>::Type;
using F128 = Vector<float, 16>;
using F256 = Vector<float, 32>;
using F512 = Vector<float, 64>;
using I128 = Vector<int32_t, 16>;
using I256 = Vector<int32_t, 32>;
using I512 = Vector<int32_t, 64>;
using H128 = Vector<int16_t, 16>;
using H256 = Vector<int16_t, 32>;
using H512 = Vector<int16_t, 64>;
using B128 = Vector<char, 16>;
using B256 = Vector<char, 32>;
using B512 = Vector<char, 64>;
using Q256 = Vector<long long, 32>;
using U256 = Vector<unsigned char, 32>;
using U512 = Vector<unsigned char, 64>;
constexpr int NEAREST = 8, AS_SET = 4;  // roundings: to nearest and ties to even; as the control word says

// madd: sums of two neighbouring products of 16 bits. maddubs: of a's unsigned and b's signed bytes, saturated to 16.
#if defined(__SSE2__)
MN_OPERATION I128 madd(I128 a, I128 b) {
  return (I128)MN_X86(__builtin_ia32_pmaddwd128((H128)a, (H128)b), _mm_madd_epi16((__m128i)a, (__m128i)b));
}
#endif
#if defined(__SSSE3__)
MN_OPERATION I128 maddubs(I128 a, I128 b) {
  return (I128)MN_X86(__builtin_ia32_pmaddubsw128((B128)a, (B128)b), _mm_maddubs_epi16((__m128i)a, (__m128i)b));
}
#endif
#if defined(__AVX2__)
MN_OPERATION I256 madd(I256 a, I256 b) {
  return (I256)MN_X86(__builtin_ia32_pmaddwd256((H256)a, (H256)b), _mm256_madd_epi16((__m256i)a, (__m256i)b));
}
MN_OPERATION I256 maddubs(I256 a, I256 b) {
  return (I256)MN_X86(__builtin_ia32_pmaddubsw256((B256)a, (B256)b), _mm256_maddubs_epi16((__m256i)a, (__m256i)b));
}
#endif
#if defined(__AVX512BW__)
MN_OPERATION I512 madd(I512 a, I512 b) {
  return (I512)MN_X86(__builtin_ia32_pmaddwd512((H512)a, (H512)b), _mm512_madd_epi16((__m512i)a, (__m512i)b));
}
MN_OPERATION I512 maddubs(I512 a, I512 b) {
  return (I512)MN_X86(__builtin_ia32_pmaddubsw512((B512)a, (B512)b), _mm512_maddubs_epi16((__m512i)a, (__m512i)b));
}
#endif

// x - floor(x), and x 2^floor(n).
#if defined(__AVX512DQ__)
MN_OPERATION F512 fraction(F512 x) {
  return MN_X86(__builtin_ia32_reduceps512_mask(x, 9, F512{}, 0xffff, AS_SET), _mm512_reduce_ps(x, 9));
}
MN_OPERATION F512 times_power(F512 x, F512 n) {
  return MN_X86(__builtin_ia32_scalefps512_mask(x, n, F512{}, 0xffff, AS_SET), _mm512_scalef_ps(x, n));
}
#endif

// Sums, and four products a lane more of a's unsigned and b's signed bytes.
#if defined(__AVXVNNI__)
#define MN_DPBUSD _mm256_dpbusd_avx_epi32
#else
#define MN_DPBUSD _mm256_dpbusd_epi32
#endif
#if defined(__AVXVNNI__) || (defined(__AVX512VNNI__) && defined(__AVX512VL__))
MN_OPERATION I256 dpbusd(I256 sums, I256 a, I256 b) {
  return (I256)MN_X86(__builtin_ia32_vpdpbusd256(sums, (U256)a, (B256)b), MN_DPBUSD((__m256i)sums, (__m256i)a, (__m256i)b));
}
#endif
#if defined(__AVX512VNNI__)
MN_OPERATION I512 dpbusd(I512 sums, I512 a, I512 b) {
  return (I512)MN_X86(__builtin_ia32_vpdpbusd512(sums, (U512)a, (B512)b),
                      _mm512_dpbusd_epi32((__m512i)sums, (__m512i)a, (__m512i)b));
}
#endif

// binary16 to float and back, to nearest and ties to even.
#if defined(__F16C__)
MN_OPERATION F256 from_f16(I128 v) {
  return (F256)MN_X86(__builtin_convertvector((Vector<__fp16, 16>)v, F256), _mm256_cvtph_ps((__m128i)v));
}
MN_OPERATION I128 to_f16(F256 v) {
  return (I128)MN_X86(__builtin_ia32_vcvtps2ph256(v, NEAREST), _mm256_cvtps_ph((__m256)v, NEAREST));
}
#endif
#if defined(__AVX512F__)
MN_OPERATION F512 from_f16(I256 v) {
  return (F512)MN_X86(__builtin_ia32_vcvtph2ps512_mask((H256)v, F512{}, -1, AS_SET), _mm512_cvtph_ps((__m256i)v));
}
MN_OPERATION I256 to_f16(F512 v) {
  return (I256)MN_X86(__builtin_ia32_vcvtps2ph512_mask(v, NEAREST, H256{}, -1), _mm512_cvtps_ph((__m512)v, NEAREST));
}
#endif

// Floats to bfloat16, to nearest and ties to even, denormals to zero. Sums, and two products a lane more.
#if defined(__AVX512BF16__) && defined(__AVX512VL__)
MN_OPERATION int64_t to_bf16(F128 v) {
  return Vector<int64_t, 16>(MN_X86(__builtin_ia32_vcvtneps2bf16128(v), _mm_cvtneps_pbh((__m128)v)))[0];
}
MN_OPERATION I128 to_bf16(F256 v) {
  return (I128)MN_X86(__builtin_ia32_vcvtneps2bf16256(v), _mm256_cvtneps_pbh((__m256)v));
}
MN_OPERATION I256 to_bf16(F512 v) {
  return (I256)MN_X86(__builtin_ia32_cvtneps2bf16_512_mask(v, Vector<__bf16, 32>{}, -1), _mm512_cvtneps_pbh((__m512)v));
}
MN_OPERATION F512 dpbf16(F512 sums, I512 a, I512 b) {
  return (F512)MN_X86(__builtin_ia32_dpbf16ps_512(sums, (Vector<__bf16, 64>)a, (Vector<__bf16, 64>)b),
                      _mm512_dpbf16_ps((__m512)sums, (__m512bh)a, (__m512bh)b));
}
#endif

// Whole numbers of two vectors, and ``more``, as bytes: those of other numbers are the nearest there are.
#if defined(__AVX2__)
template <bool SIGNED> MN_OPERATION B128 to_bytes(I256 a, I256 b, int16_t more) {
  const H256 words = (H256)MN_X86(__builtin_ia32_packssdw256(a, b), _mm256_packs_epi32((__m256i)a, (__m256i)b));
  const H256 sums = (H256)MN_X86(__builtin_elementwise_add_sat(words, H256{} + more),
                                 _mm256_adds_epi16((__m256i)words, (__m256i)(H256{} + more)));
  I256 found;
  if constexpr (SIGNED) found = (I256)MN_X86(__builtin_ia32_packsswb256(sums, sums), _mm256_packs_epi16((__m256i)sums, (__m256i)sums));
  else found = (I256)MN_X86(__builtin_ia32_packuswb256(sums, sums), _mm256_packus_epi16((__m256i)sums, (__m256i)sums));
  return (B128)__builtin_shufflevector(found, found, 0, 4, 1, 5);
}
#endif
#if defined(__AVX512BW__)
template <bool SIGNED> MN_OPERATION B256 to_bytes(I512 a, I512 b, int16_t more) {
  const H512 words = (H512)MN_X86(__builtin_ia32_packssdw512(a, b), _mm512_packs_epi32((__m512i)a, (__m512i)b));
  const H512 sums = (H512)MN_X86(__builtin_elementwise_add_sat(words, H512{} + more),
                                 _mm512_adds_epi16((__m512i)words, (__m512i)(H512{} + more)));
  I512 found;
  if constexpr (SIGNED) found = (I512)MN_X86(__builtin_ia32_packsswb512(sums, sums), _mm512_packs_epi16((__m512i)sums, (__m512i)sums));
  else found = (I512)MN_X86(__builtin_ia32_packuswb512(sums, sums), _mm512_packus_epi16((__m512i)sums, (__m512i)sums));
  return (B256)__builtin_shufflevector(found, found, 0, 4, 8, 12, 1, 5, 9, 13);
}
#endif

// The elements at p whose bit is set; others are zero and touch no memory.
#if defined(__AVX512F__)
MN_OPERATION F512 load_floats(const void *p, uint16_t mask) {
  return (F512)MN_X86(__builtin_ia32_loadups512_mask((const float *)p, F512{}, mask), _mm512_maskz_loadu_ps(mask, p));
}
#endif
#if defined(__AVX512BW__) && defined(__AVX512VL__)
MN_OPERATION I256 load_words(const void *p, uint16_t mask) {
  return (I256)MN_X86(__builtin_ia32_loaddquhi256_mask((const H256 *)p, H256{}, mask), _mm256_maskz_loadu_epi16(mask, p));
}
MN_OPERATION I128 load_bytes(const void *p, uint16_t mask) {
  return (I128)MN_X86(__builtin_ia32_loaddquqi128_mask((const B128 *)p, B128{}, mask), _mm_maskz_loadu_epi8(mask, p));
}
MN_OPERATION I512 load_line(const void *p, uint64_t mask) {
  return (I512)MN_X86(__builtin_ia32_loaddquqi512_mask((const B512 *)p, B512{}, mask), _mm512_maskz_loadu_epi8(mask, p));
}
#endif

// Stores the elements whose bit is set.
#if defined(__AVX512F__)
MN_OPERATION void store_floats(void *p, uint16_t mask, F512 v) {
  MN_X86(__builtin_ia32_storeups512_mask((float *)p, v, mask), _mm512_mask_storeu_ps(p, mask, (__m512)v));
}
#endif
#if defined(__AVX512BW__) && defined(__AVX512VL__)
MN_OPERATION void store_words(void *p, uint16_t mask, I256 v) {
  MN_X86(__builtin_ia32_storedquhi256_mask((H256 *)p, (H256)v, mask), _mm256_mask_storeu_epi16(p, mask, (__m256i)v));
}
MN_OPERATION void store_bytes(void *p, uint16_t mask, I128 v) {
  MN_X86(__builtin_ia32_storedquqi128_mask((B128 *)p, (B128)v, mask), _mm_mask_storeu_epi8(p, mask, (__m128i)v));
}
#endif

// Whether any lane is not zero.
#if defined(__AVX__)
MN_OPERATION bool any(I256 v) {
  return !MN_X86(__builtin_ia32_ptestz256((Q256)v, (Q256)v), _mm256_testz_si256((__m256i)v, (__m256i)v));
}
MN_OPERATION F256 round(F256 v) {
  return (F256)MN_X86(__builtin_ia32_roundps256(v, NEAREST), _mm256_round_ps((__m256)v, NEAREST));
}
MN_OPERATION I256 nearest(F256 v) { return (I256)MN_X86(__builtin_ia32_cvtps2dq256(v), _mm256_cvtps_epi32((__m256)v)); }
#endif
#if defined(__AVX512F__)
MN_OPERATION bool any(I512 v) {
  return MN_X86((uint16_t)__builtin_ia32_cmpd512_mask(v, I512{}, 4, -1), _mm512_test_epi32_mask((__m512i)v, (__m512i)v)) != 0;
}
MN_OPERATION F512 round(F512 v) {
  return (F512)MN_X86(__builtin_ia32_rndscaleps_mask(v, NEAREST, v, -1, AS_SET), _mm512_roundscale_ps((__m512)v, NEAREST));
}
MN_OPERATION I512 nearest(F512 v) {
  return (I512)MN_X86(__builtin_ia32_cvtps2dq512_mask(v, I512{}, -1, NEAREST), _mm512_cvt_roundps_epi32((__m512)v, NEAREST));
}
MN_OPERATION F512 sqrt(F512 v) {
  return (F512)MN_X86(__builtin_elementwise_sqrt(v), _mm512_sqrt_ps((__m512)v));
}
// Of a table's entries those that the lowest four bits of each lane name.
MN_OPERATION F512 look_up(F512 table, I512 lanes) {
  return (F512)MN_X86(__builtin_ia32_permvarsf512(table, lanes), _mm512_permutexvar_ps((__m512i)lanes, (__m512)table));
}
#endif
#if defined(__AVX512VBMI__)
// Of a table of 256 bytes those that each byte names.
MN_OPERATION B512 look_up(const void *table, B512 at) {
  B512 part[4];
  __builtin_memcpy(part, table, sizeof part);
  const B512 low = (B512)MN_X86(__builtin_ia32_vpermi2varqi512(part[0], at, part[1]),
                                _mm512_permutex2var_epi8((__m512i)part[0], (__m512i)at, (__m512i)part[1]));
  const B512 high = (B512)MN_X86(__builtin_ia32_vpermi2varqi512(part[2], at, part[3]),
                                 _mm512_permutex2var_epi8((__m512i)part[2], (__m512i)at, (__m512i)part[3]));
  return (Vector<int8_t, 64>)at < 0 ? high : low;
}
#endif

}  // namespace mn::x86
#endif
