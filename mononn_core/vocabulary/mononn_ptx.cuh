// The primitives of generated CUDA code: types, asynchronous copies, tensor-core fragments, memory order. All inline PTX
// of the project stands here (PTX ISA 8.x; sm_80 and later). The emulator has a file of the same name and functions for
// a host compiler; everything above these functions is the same source in both.
#pragma once
#define MN_DEVICE __device__ __forceinline__
#define MN_UNROLL _Pragma("unroll")
#define MN_NOUNROLL _Pragma("unroll 1")
#define MN_PRAGMA(text) _Pragma(#text)
#define MN_UNROLL_BY(n) MN_PRAGMA(unroll n)
// A phase is a function of its own: what it computes from the thread's number is not kept in registers from one to the next.
#define MN_PHASE static __device__ __noinline__
// ``p`` points to global memory.
#define MN_GLOBAL(p) __builtin_assume(__isGlobal(p))
#define MN_CONSTANT static __constant__ const
#ifdef __CUDACC_RTC__
typedef signed char int8_t;
typedef short int16_t;
typedef int int32_t;
typedef long long int64_t;
typedef unsigned char uint8_t;
typedef unsigned short uint16_t;
typedef unsigned int uint32_t;
typedef unsigned long long uint64_t;
#ifndef INFINITY
#define INFINITY __int_as_float(0x7f800000)
#define NAN __int_as_float(0x7fffffff)
#define INT64_MIN (-9223372036854775807ll - 1)
#endif
#else
#include <math.h>
#include <stdint.h>
#endif

namespace mn {

// ---- storage types: 16-bit floats are only stored; arithmetic is float32 --------------------------------------------
struct f16 { uint16_t bits; };
struct bf16 { uint16_t bits; };
struct alignas(16) quad { uint32_t x, y, z, w; };  // what one thread moves at most at once
struct alignas(8) pair { uint32_t x, y; };

MN_DEVICE float to_float(float v) { return v; }
MN_DEVICE float to_float(f16 v) {
  float r;
  asm("cvt.f32.f16 %0, %1;" : "=f"(r) : "h"(v.bits));
  return r;
}
MN_DEVICE float to_float(bf16 v) { return __uint_as_float((uint32_t)v.bits << 16); }
template <class T> MN_DEVICE T from_float(float v);  // rounds to nearest, ties to even
template <> MN_DEVICE float from_float<float>(float v) { return v; }
template <> MN_DEVICE f16 from_float<f16>(float v) {
  f16 r;
  asm("cvt.rn.f16.f32 %0, %1;" : "=h"(r.bits) : "f"(v));
  return r;
}
template <> MN_DEVICE bf16 from_float<bf16>(float v) {
  bf16 r;
  asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(r.bits) : "f"(v));
  return r;
}
// Two neighbours in one register, ``low`` at the lower address.
template <class T> MN_DEVICE uint32_t pack2(float low, float high);
template <> MN_DEVICE uint32_t pack2<f16>(float low, float high) {
  uint32_t r;
  asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(high), "f"(low));
  return r;
}
template <> MN_DEVICE uint32_t pack2<bf16>(float low, float high) {
  uint32_t r;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(high), "f"(low));
  return r;
}
// The nearest tf32 (10 bits of mantissa), as a float32 whose low bits are zero.
MN_DEVICE float to_tf32(float v) {
  uint32_t r;
  asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(r) : "f"(v));
  return __uint_as_float(r & 0xffffe000u);  // the ISA leaves the low bits open
}
// Of the processor's special function unit: relative errors below 2^-22.
MN_DEVICE float reciprocal_near(float v) {
  float r;
  asm("rcp.approx.f32 %0, %1;" : "=f"(r) : "f"(v));
  return r;
}
MN_DEVICE float rsqrt_near(float v) {
  float r;
  asm("rsqrt.approx.f32 %0, %1;" : "=f"(r) : "f"(v));
  return r;
}
MN_DEVICE float exp2_near(float v) {
  float r;
  asm("ex2.approx.f32 %0, %1;" : "=f"(r) : "f"(v));
  return r;
}
MN_DEVICE uint32_t float_bits(float v) { return __float_as_uint(v); }
MN_DEVICE float bits_float(uint32_t v) { return __uint_as_float(v); }

// ---- the block --------------------------------------------------------------------------------------------------
// This block's dynamic shared memory, 128-byte aligned.
MN_DEVICE unsigned char *shared_memory() {
  extern __shared__ __align__(128) unsigned char shared_[];
  return shared_;
}
MN_DEVICE int thread() { return threadIdx.x; }
MN_DEVICE int block() { return blockIdx.x; }
MN_DEVICE int blocks() { return gridDim.x; }
MN_DEVICE void sync_block() { __syncthreads(); }
MN_DEVICE void sync_warp() { __syncwarp(); }
// Among ``count`` threads (whole warps) of the block; ``id`` 1 to 15.
MN_DEVICE void sync_some(int id, int count) { asm volatile("bar.sync %0, %1;" : : "r"(id), "r"(count) : "memory"); }
// All 32 lanes take part.
MN_DEVICE float shuffle_xor(float v, int mask) { return __shfl_xor_sync(0xffffffffu, v, mask); }
MN_DEVICE float shuffle(float v, int lane) { return __shfl_sync(0xffffffffu, v, lane); }
MN_DEVICE int64_t shuffle_xor(int64_t v, int mask) { return __shfl_xor_sync(0xffffffffu, (long long)v, mask); }

// 16 bytes to global memory at once: nvcc writes the words of a ``quad`` that are computed one by one also one by one.
MN_DEVICE void store_16(void *p, quad q) {
  asm volatile("st.global.v4.b32 [%0], {%1, %2, %3, %4};" : : "l"(p), "r"(q.x), "r"(q.y), "r"(q.z), "r"(q.w) : "memory");
}

// ---- copies from global to shared memory that run beside the thread (cp.async) ---------------------------------------
MN_DEVICE uint32_t shared_address(const void *p) { return (uint32_t)__cvta_generic_to_shared(p); }
// 16 bytes, both sides 16-byte aligned; zeros where not ``valid`` (the source is then not read).
MN_DEVICE void cp_async_16(void *to, const void *from, bool valid = true) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" : : "r"(shared_address(to)), "l"(from), "r"(valid ? 16 : 0)
               : "memory");
}
// The first ``bytes`` (0 to 16) of 16, zeros after them; both sides 16-byte aligned.
MN_DEVICE void cp_async_16_some(void *to, const void *from, int bytes) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" : : "r"(shared_address(to)), "l"(from), "r"(bytes) : "memory");
}
// 4 bytes, both sides 4-byte aligned.
MN_DEVICE void cp_async_4(void *to, const void *from, bool valid = true) {
  asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" : : "r"(shared_address(to)), "l"(from), "r"(valid ? 4 : 0)
               : "memory");
}
// This thread's copies since the last commit become a group; wait until at most N of its groups are under way. What a
// group brought is then seen by this thread; a barrier shows it to others.
MN_DEVICE void cp_async_commit() { asm volatile("cp.async.commit_group;" : : : "memory"); }
template <int N> MN_DEVICE void cp_async_wait() { asm volatile("cp.async.wait_group %0;" : : "n"(N) : "memory"); }
// Ask for the line of ``p`` in the second-level cache.
MN_DEVICE void prefetch_l2(const void *p) { asm volatile("prefetch.global.L2 [%0];" : : "l"(p)); }

// ---- stages: copies from global to shared memory that land all at once, and are waited for by whoever reads them -------
// ``landed``, 8 bytes of shared memory, counts what has landed (PTX ISA, "mbarrier"): 0, 1, 2, ... stages, one at a time.
// sm_90 and later have bulk copies, which one thread asks for; before them every copier brings its share by cp.async.
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
#define MN_BULK_COPIES
constexpr bool BULK = true;
#else
constexpr bool BULK = false;
#endif
// Before the first stage, by one thread; a barrier shows it to others. ``copiers``: threads that copy each stage.
MN_DEVICE void stage_open(uint64_t *landed, int copiers) {
  asm volatile("mbarrier.init.shared.b64 [%0], %1;" : : "r"(shared_address(landed)), "r"(BULK ? 1 : copiers) : "memory");
#ifdef MN_BULK_COPIES
  asm volatile("fence.mbarrier_init.release.cluster;\nfence.proxy.async.shared::cta;" : : : "memory");
#endif
}
// The next stage: ``bytes`` (a multiple of 16, both sides 16-byte aligned) by the ``copiers`` threads whose ``own`` are 0, 1,
// 2, ... What other threads have stored where it lands must lie behind their ``stage_fence`` and a barrier.
MN_DEVICE void stage_copy(void *to, const void *from, int bytes, uint64_t *landed, int own, int copiers) {
#ifdef MN_BULK_COPIES
  if (own != 0) return;
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" : : "r"(shared_address(landed)), "r"(bytes) : "memory");
  asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];"
               : : "r"(shared_address(to)), "l"(from), "r"(bytes), "r"(shared_address(landed)) : "memory");
#else
  for (int at = own * 16; at < bytes; at += copiers * 16) cp_async_16((unsigned char *)to + at, (const unsigned char *)from + at);
  asm volatile("cp.async.mbarrier.arrive.noinc.shared.b64 [%0];" : : "r"(shared_address(landed)) : "memory");
#endif
}
// Until stage ``n`` has landed, of which ``parity`` is n % 2; the stage before it must have been waited for. This thread then
// sees what it brought.
MN_DEVICE void stage_wait(uint64_t *landed, uint32_t parity) {
#ifdef MN_BULK_COPIES
  asm volatile("{\n.reg .pred p;\nagain: mbarrier.try_wait.parity.shared::cta.b64 p, [%0], %1;\n@!p bra again;\n}"
               : : "r"(shared_address(landed)), "r"(parity) : "memory");
#else
  asm volatile("{\n.reg .pred p;\nagain: mbarrier.test_wait.parity.shared.b64 p, [%0], %1;\n@!p bra again;\n}"
               : : "r"(shared_address(landed)), "r"(parity) : "memory");
#endif
}
// This thread's stores to shared memory come before stages that land in their place; a barrier comes in between.
MN_DEVICE void stage_fence() {
#ifdef MN_BULK_COPIES
  asm volatile("fence.proxy.async.shared::cta;" : : : "memory");
#endif
}

// ---- tensor cores (PTX ISA, "Matrix Fragments for mma.m16n8k16 / m16n8k8" and "ldmatrix") -----------------------------
// Matrices of 8 rows of 16 bytes: lane l gives the address of row l % 8 of matrix l / 8, 16-byte aligned.
MN_DEVICE void ldmatrix_x4(uint32_t (&r)[4], const void *row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(shared_address(row)) : "memory");
}
MN_DEVICE void ldmatrix_x4_trans(uint32_t (&r)[4], const void *row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(shared_address(row)) : "memory");
}
MN_DEVICE void ldmatrix_x2(uint32_t (&r)[2], const void *row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x2.shared.b16 {%0,%1}, [%2];"
               : "=r"(r[0]), "=r"(r[1]) : "r"(shared_address(row)) : "memory");
}
MN_DEVICE void ldmatrix_x2_trans(uint32_t (&r)[2], const void *row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x2.trans.shared.b16 {%0,%1}, [%2];"
               : "=r"(r[0]), "=r"(r[1]) : "r"(shared_address(row)) : "memory");
}
// d[16][8] += a[16][16] b[16][8]; T is f16 or bf16, sums are float32. All lanes of the warp take part.
template <class T> MN_DEVICE void mma_16(float (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]);
template <> MN_DEVICE void mma_16<f16>(float (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]) {
  asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
               : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}
template <> MN_DEVICE void mma_16<bf16>(float (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]) {
  asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
               : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}
// d[16][8] += a[16][8] b[8][8] in tf32: a and b are bits of to_tf32.
MN_DEVICE void mma_tf32(float (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]) {
  asm volatile("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
               : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

// ---- memory order across the grid (PTX memory consistency model) --------------------------------------------------------
MN_DEVICE void fence_gpu() { asm volatile("fence.acq_rel.gpu;" : : : "memory"); }
// Adds and returns what was there before; release and acquire at gpu scope.
MN_DEVICE uint32_t atomic_add(uint32_t *p, uint32_t v) {
  uint32_t r;
  asm volatile("atom.add.acq_rel.gpu.global.u32 %0, [%1], %2;" : "=r"(r) : "l"(p), "r"(v) : "memory");
  return r;
}
// The same, but orders nothing by itself: a fence before it does.
MN_DEVICE uint32_t atomic_add_relaxed(uint32_t *p, uint32_t v) {
  uint32_t r;
  asm volatile("atom.add.relaxed.gpu.global.u32 %0, [%1], %2;" : "=r"(r) : "l"(p), "r"(v) : "memory");
  return r;
}
MN_DEVICE uint32_t load_acquire(const uint32_t *p) {
  uint32_t r;
  asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(r) : "l"(p) : "memory");
  return r;
}
MN_DEVICE void store_release(uint32_t *p, uint32_t v) {
  asm volatile("st.release.gpu.global.u32 [%0], %1;" : : "l"(p), "r"(v) : "memory");
}
// Writes ``word`` where 0 stood.
MN_DEVICE void set_once(uint64_t *p, uint64_t word) { atomicCAS((unsigned long long *)p, 0ull, (unsigned long long)word); }
// Nanoseconds of a clock all blocks share.
MN_DEVICE uint64_t global_time() {
  uint64_t t;
  asm volatile("mov.u64 %0, %globaltimer;" : "=l"(t));
  return t;
}
// Clock cycles of this block's multiprocessor, and its number.
MN_DEVICE uint64_t cycles() {
  uint64_t t;
  asm volatile("mov.u64 %0, %clock64;" : "=l"(t));
  return t;
}
MN_DEVICE uint32_t multiprocessor() {
  uint32_t n;
  asm volatile("mov.u32 %0, %smid;" : "=r"(n));
  return n;
}
MN_DEVICE void pause(unsigned nanoseconds) { asm volatile("nanosleep.u32 %0;" : : "r"(nanoseconds)); }

}  // namespace mn
