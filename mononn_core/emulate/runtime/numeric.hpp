// Conversions between float32 and the storage types, in integers: the host's compiler needs no support for them.
#pragma once
#include <stdint.h>

namespace emu {

inline float bits_float(uint32_t v) { return __builtin_bit_cast(float, v); }
inline uint32_t float_bits(float v) { return __builtin_bit_cast(uint32_t, v); }

inline float f16_to_float(uint16_t h) {
  uint32_t sign = static_cast<uint32_t>(h & 0x8000) << 16, rest = h & 0x7fff;
  if (rest >= 0x7c00) return bits_float(sign | 0x7f800000 | (rest & 0x3ff) << 13);
  if (rest >= 0x400) return bits_float(sign | ((rest << 13) + (112u << 23)));
  float tiny = static_cast<float>(rest) * 5.9604644775390625e-08f;  // 2^-24: exact
  return bits_float(sign | float_bits(tiny));
}

// To nearest, ties to even; NaN is 0x7fff as cvt.rn.f16.f32 gives it.
inline uint16_t float_to_f16(float v) {
  uint32_t bits = float_bits(v), sign = bits >> 16 & 0x8000, rest = bits & 0x7fffffff;
  if (rest > 0x7f800000) return 0x7fff;
  if (rest >= 0x477ff000) return static_cast<uint16_t>(sign | 0x7c00);  // 65520 and more round to infinity
  if (rest < 0x38800000) {  // subnormal: a sum with 0.5 puts the last kept bit at the end of the mantissa
    float shifted = bits_float(rest) + 0.5f;
    return static_cast<uint16_t>(sign | (float_bits(shifted) - 0x3f000000));
  }
  rest += 0xfff + (rest >> 13 & 1);
  return static_cast<uint16_t>(sign | (rest - (112u << 23)) >> 13);
}

inline uint16_t float_to_bf16(float v) {
  uint32_t bits = float_bits(v);
  if ((bits & 0x7fffffff) > 0x7f800000) return 0x7fff;
  return static_cast<uint16_t>((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

// cvt.rna.tf32.f32: to nearest, ties away from zero; the low 13 bits are cleared.
inline uint32_t float_to_tf32(float v) {
  uint32_t bits = float_bits(v);
  if ((bits & 0x7fffffff) >= 0x7f800000) return (bits & 0x7fffffff) > 0x7f800000 ? 0x7fffe000 : bits;
  return (bits + 0x1000) & 0xffffe000;
}

}  // namespace emu
