// The primitives of generated CUDA code for a host compiler: the names and signatures of vocabulary/mononn_ptx.cuh.
// Every CUDA thread is a fiber of the emulator's runtime; what touches memory or other threads is a call into it, with
// operands in registers, so that the compiler instruments nothing but the program's own loads and stores.
#pragma once
#include <math.h>
#include <stdint.h>

#define __global__ __attribute__((visibility("default")))
#define __device__
#define __host__
#define __constant__ static const
#define __forceinline__ inline __attribute__((always_inline))
#define __noinline__ __attribute__((noinline))
#define __launch_bounds__(...)
#define __grid_constant__
#define __align__(n) __attribute__((aligned(n)))

#define MN_DEVICE inline __attribute__((always_inline))
#define MN_PHASE static __attribute__((noinline))
#define MN_GLOBAL(p) ((void)(p))
#define MN_PRAGMA(text) _Pragma(#text)
#define MN_CONSTANT static const
#ifdef __clang__
#define MN_UNROLL_BY(n) MN_PRAGMA(unroll n)
#define MN_UNROLL _Pragma("unroll")
#define MN_NOUNROLL _Pragma("unroll 1")
#define MN_EMU_CONVERGENT __attribute__((convergent))
#else
#define MN_UNROLL_BY(n) MN_PRAGMA(GCC unroll n)
#define MN_UNROLL _Pragma("GCC unroll 64")
#define MN_NOUNROLL _Pragma("GCC unroll 1")
#define MN_EMU_CONVERGENT
#endif
#define MN_EMU_PURE __attribute__((const))

extern "C" {
struct mn_emu_words4 { uint32_t r[4]; };   // returned in registers
struct mn_emu_floats4 { float r[4]; };
float mn_emu_f16_to_float(uint16_t bits) MN_EMU_PURE;
uint16_t mn_emu_float_to_f16(float v) MN_EMU_PURE;
uint16_t mn_emu_float_to_bf16(float v) MN_EMU_PURE;
uint32_t mn_emu_float_to_tf32(float v) MN_EMU_PURE;
unsigned char *mn_emu_shared_memory(void) MN_EMU_PURE;  // constant within one thread's run
int mn_emu_thread(void) MN_EMU_PURE;
int mn_emu_block(void) MN_EMU_PURE;
int mn_emu_blocks(void) MN_EMU_PURE;
void mn_emu_sync_block(void) MN_EMU_CONVERGENT;
void mn_emu_sync_warp(void) MN_EMU_CONVERGENT;
void mn_emu_sync_some(int id, int count) MN_EMU_CONVERGENT;
uint64_t mn_emu_shuffle(uint64_t bits, int lane, int exclusive) MN_EMU_CONVERGENT;
uint32_t mn_emu_shared_address(const void *p);
void mn_emu_copy(void *to, const void *from, int size, int bytes);  // size bytes, zeros after the first ``bytes``
void mn_emu_copy_commit(void);
void mn_emu_copy_wait(int groups);
void mn_emu_stage_open(uint64_t *landed, int copiers);
void mn_emu_stage_copy(void *to, const void *from, int bytes, uint64_t *landed, int own, int copiers);
void mn_emu_stage_wait(const uint64_t *landed, uint32_t parity) MN_EMU_CONVERGENT;
void mn_emu_stage_fence(void);
mn_emu_words4 mn_emu_ldmatrix(const void *row, int count, int transposed) MN_EMU_CONVERGENT;
mn_emu_floats4 mn_emu_mma_f16(float, float, float, float, uint32_t, uint32_t, uint32_t, uint32_t, uint32_t,
                              uint32_t) MN_EMU_CONVERGENT;
mn_emu_floats4 mn_emu_mma_bf16(float, float, float, float, uint32_t, uint32_t, uint32_t, uint32_t, uint32_t,
                               uint32_t) MN_EMU_CONVERGENT;
mn_emu_floats4 mn_emu_mma_tf32(float, float, float, float, uint32_t, uint32_t, uint32_t, uint32_t, uint32_t,
                               uint32_t) MN_EMU_CONVERGENT;
void mn_emu_fence(void);
uint32_t mn_emu_atomic_add(uint32_t *p, uint32_t v);
uint32_t mn_emu_atomic_add_relaxed(uint32_t *p, uint32_t v);
uint32_t mn_emu_load_acquire(const uint32_t *p);
void mn_emu_store_release(uint32_t *p, uint32_t v);
void mn_emu_set_once(uint64_t *p, uint64_t word);
void mn_emu_prefetch(const void *p);
uint64_t mn_emu_global_time(void);
uint64_t mn_emu_cycles(void);
void mn_emu_pause(void);
}

namespace mn {

// ---- storage types: 16-bit floats are only stored; arithmetic is float32 --------------------------------------------
struct f16 { uint16_t bits; };
struct bf16 { uint16_t bits; };
// Copied as one access of an aligned vector, so that the instrumentation sees its size and checks its alignment.
typedef uint32_t words4 __attribute__((vector_size(16), may_alias));
typedef uint32_t words2 __attribute__((vector_size(8), may_alias));
struct alignas(16) quad {  // what one thread moves at most at once
  uint32_t x, y, z, w;
  quad() = default;
  MN_DEVICE quad(uint32_t x, uint32_t y, uint32_t z, uint32_t w) : x(x), y(y), z(z), w(w) {}
  MN_DEVICE quad(const quad &q) { *(words4 *)this = *(const words4 *)&q; }
  MN_DEVICE quad &operator=(const quad &q) { return *(words4 *)this = *(const words4 *)&q, *this; }
};
struct alignas(8) pair {
  uint32_t x, y;
  pair() = default;
  MN_DEVICE pair(uint32_t x, uint32_t y) : x(x), y(y) {}
  MN_DEVICE pair(const pair &q) { *(words2 *)this = *(const words2 *)&q; }
  MN_DEVICE pair &operator=(const pair &q) { return *(words2 *)this = *(const words2 *)&q, *this; }
};

MN_DEVICE uint32_t float_bits(float v) { return __builtin_bit_cast(uint32_t, v); }
MN_DEVICE float bits_float(uint32_t v) { return __builtin_bit_cast(float, v); }
MN_DEVICE float to_float(float v) { return v; }
MN_DEVICE float to_float(f16 v) { return mn_emu_f16_to_float(v.bits); }
MN_DEVICE float to_float(bf16 v) { return bits_float((uint32_t)v.bits << 16); }
template <class T> MN_DEVICE T from_float(float v);  // rounds to nearest, ties to even
template <> MN_DEVICE float from_float<float>(float v) { return v; }
template <> MN_DEVICE f16 from_float<f16>(float v) { return f16{mn_emu_float_to_f16(v)}; }
template <> MN_DEVICE bf16 from_float<bf16>(float v) { return bf16{mn_emu_float_to_bf16(v)}; }
// Two neighbours in one register, ``low`` at the lower address.
template <class T> MN_DEVICE uint32_t pack2(float low, float high) {
  return (uint32_t)from_float<T>(high).bits << 16 | from_float<T>(low).bits;
}
// The nearest tf32 (10 bits of mantissa, ties away from zero), as a float32 whose low bits are zero.
MN_DEVICE float to_tf32(float v) { return bits_float(mn_emu_float_to_tf32(v)); }
// A GPU's have relative errors below 2^-22.
MN_DEVICE float reciprocal_near(float v) { return 1.f / v; }
MN_DEVICE float rsqrt_near(float v) { return 1.f / sqrtf(v); }
MN_DEVICE float exp2_near(float v) { return exp2f(v); }

// ---- the block --------------------------------------------------------------------------------------------------
MN_DEVICE unsigned char *shared_memory() { return mn_emu_shared_memory(); }
MN_DEVICE int thread() { return mn_emu_thread(); }
MN_DEVICE int block() { return mn_emu_block(); }
MN_DEVICE int blocks() { return mn_emu_blocks(); }
MN_DEVICE void sync_block() { mn_emu_sync_block(); }
MN_DEVICE void sync_warp() { mn_emu_sync_warp(); }
// Among ``count`` threads (whole warps) of the block; ``id`` 1 to 15.
MN_DEVICE void sync_some(int id, int count) { mn_emu_sync_some(id, count); }
// All 32 lanes take part.
MN_DEVICE float shuffle_xor(float v, int mask) { return bits_float((uint32_t)mn_emu_shuffle(float_bits(v), mask, 1)); }
MN_DEVICE float shuffle(float v, int lane) { return bits_float((uint32_t)mn_emu_shuffle(float_bits(v), lane, 0)); }
MN_DEVICE int64_t shuffle_xor(int64_t v, int mask) { return (int64_t)mn_emu_shuffle((uint64_t)v, mask, 1); }

// 16 bytes to global memory at once.
MN_DEVICE void store_16(void *p, quad q) { *(quad *)p = q; }

// ---- copies from global to shared memory that run beside the thread (cp.async) ---------------------------------------
MN_DEVICE uint32_t shared_address(const void *p) { return mn_emu_shared_address(p); }
// 16 bytes, both sides 16-byte aligned; zeros where not ``valid`` (the source is then not read).
MN_DEVICE void cp_async_16(void *to, const void *from, bool valid = true) { mn_emu_copy(to, from, 16, valid ? 16 : 0); }
// The first ``bytes`` (0 to 16) of 16, zeros after them; both sides 16-byte aligned.
MN_DEVICE void cp_async_16_some(void *to, const void *from, int bytes) { mn_emu_copy(to, from, 16, bytes); }
// 4 bytes, both sides 4-byte aligned.
MN_DEVICE void cp_async_4(void *to, const void *from, bool valid = true) { mn_emu_copy(to, from, 4, valid ? 4 : 0); }
MN_DEVICE void cp_async_commit() { mn_emu_copy_commit(); }
template <int N> MN_DEVICE void cp_async_wait() { mn_emu_copy_wait(N); }
MN_DEVICE void prefetch_l2(const void *p) { mn_emu_prefetch(p); }

// ---- stages: copies from global to shared memory that land all at once, and are waited for by whoever reads them -------
MN_DEVICE void stage_open(uint64_t *landed, int copiers) { mn_emu_stage_open(landed, copiers); }
MN_DEVICE void stage_copy(void *to, const void *from, int bytes, uint64_t *landed, int own, int copiers) {
  mn_emu_stage_copy(to, from, bytes, landed, own, copiers);
}
MN_DEVICE void stage_wait(uint64_t *landed, uint32_t parity) { mn_emu_stage_wait(landed, parity); }
MN_DEVICE void stage_fence() { mn_emu_stage_fence(); }

// ---- tensor cores (PTX ISA, "Matrix Fragments for mma.m16n8k16 / m16n8k8" and "ldmatrix") -----------------------------
MN_DEVICE void ldmatrix_x4(uint32_t (&r)[4], const void *row) {
  mn_emu_words4 got = mn_emu_ldmatrix(row, 4, 0);
  r[0] = got.r[0], r[1] = got.r[1], r[2] = got.r[2], r[3] = got.r[3];
}
MN_DEVICE void ldmatrix_x4_trans(uint32_t (&r)[4], const void *row) {
  mn_emu_words4 got = mn_emu_ldmatrix(row, 4, 1);
  r[0] = got.r[0], r[1] = got.r[1], r[2] = got.r[2], r[3] = got.r[3];
}
MN_DEVICE void ldmatrix_x2(uint32_t (&r)[2], const void *row) {
  mn_emu_words4 got = mn_emu_ldmatrix(row, 2, 0);
  r[0] = got.r[0], r[1] = got.r[1];
}
MN_DEVICE void ldmatrix_x2_trans(uint32_t (&r)[2], const void *row) {
  mn_emu_words4 got = mn_emu_ldmatrix(row, 2, 1);
  r[0] = got.r[0], r[1] = got.r[1];
}
// d[16][8] += a[16][16] b[16][8]; T is f16 or bf16, sums are float32. All lanes of the warp take part.
template <class T> MN_DEVICE void mma_16(float (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]);
template <> MN_DEVICE void mma_16<f16>(float (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]) {
  mn_emu_floats4 got = mn_emu_mma_f16(d[0], d[1], d[2], d[3], a[0], a[1], a[2], a[3], b[0], b[1]);
  d[0] = got.r[0], d[1] = got.r[1], d[2] = got.r[2], d[3] = got.r[3];
}
template <> MN_DEVICE void mma_16<bf16>(float (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]) {
  mn_emu_floats4 got = mn_emu_mma_bf16(d[0], d[1], d[2], d[3], a[0], a[1], a[2], a[3], b[0], b[1]);
  d[0] = got.r[0], d[1] = got.r[1], d[2] = got.r[2], d[3] = got.r[3];
}
// d[16][8] += a[16][8] b[8][8] in tf32: a and b are bits of to_tf32.
MN_DEVICE void mma_tf32(float (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]) {
  mn_emu_floats4 got = mn_emu_mma_tf32(d[0], d[1], d[2], d[3], a[0], a[1], a[2], a[3], b[0], b[1]);
  d[0] = got.r[0], d[1] = got.r[1], d[2] = got.r[2], d[3] = got.r[3];
}

// ---- memory order across the grid (PTX memory consistency model) --------------------------------------------------------
MN_DEVICE void fence_gpu() { mn_emu_fence(); }
MN_DEVICE uint32_t atomic_add(uint32_t *p, uint32_t v) { return mn_emu_atomic_add(p, v); }
MN_DEVICE uint32_t atomic_add_relaxed(uint32_t *p, uint32_t v) { return mn_emu_atomic_add_relaxed(p, v); }
MN_DEVICE uint32_t load_acquire(const uint32_t *p) { return mn_emu_load_acquire(p); }
MN_DEVICE void store_release(uint32_t *p, uint32_t v) { mn_emu_store_release(p, v); }
MN_DEVICE void set_once(uint64_t *p, uint64_t word) { mn_emu_set_once(p, word); }
MN_DEVICE uint64_t global_time() { return mn_emu_global_time(); }
MN_DEVICE uint64_t cycles() { return mn_emu_cycles(); }
MN_DEVICE uint32_t multiprocessor() { return (uint32_t)mn_emu_block(); }
MN_DEVICE void pause(unsigned) { mn_emu_pause(); }

}  // namespace mn

// What build() appends for each kernel: an entry that the runtime can call whatever the kernel's parameters are.
namespace mn_emu {
template <class Call> void invoke(void (*kernel)(Call), const void *words, uint32_t) {
  kernel(*static_cast<const Call *>(words));
}
template <class Call> void invoke(void (*kernel)(Call, uint32_t), const void *words, uint32_t iteration) {
  kernel(*static_cast<const Call *>(words), iteration);
}
template <class Call> constexpr uint64_t call_bytes(void (*)(Call)) { return sizeof(Call); }
template <class Call> constexpr uint64_t call_bytes(void (*)(Call, uint32_t)) { return sizeof(Call); }
}  // namespace mn_emu
#define MN_EMU_ENTRY(name)                                                                       \
  extern "C" __global__ void mn_emu_entry_##name(const void *words, uint32_t iteration) {        \
    mn_emu::invoke(name, words, iteration);                                                      \
  }                                                                                              \
  extern "C" __global__ const uint64_t mn_emu_call_bytes_##name;                                 \
  const uint64_t mn_emu_call_bytes_##name = mn_emu::call_bytes(name);
