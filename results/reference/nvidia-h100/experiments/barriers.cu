#define MONONN_THREADS 256
#define MONONN_ERROR_INDEX 1
#include <cuda_runtime.h>
#include <cstdio>
#include <cstdlib>
#include <vector>
#include <algorithm>
#include "mononn_cuda.cuh"
#define CHECK(x) do { cudaError_t e_ = (x); if (e_ != cudaSuccess) { printf("error %s %s\n", #x, cudaGetErrorString(e_)); exit(1);} } while (0)
MN_DEVICE uint32_t ld_relaxed(const uint32_t *p) { uint32_t r; asm volatile("ld.relaxed.gpu.global.u32 %0, [%1];" : "=r"(r) : "l"(p) : "memory"); return r; }
MN_DEVICE void red_release(uint32_t *p, uint32_t v) { asm volatile("red.release.gpu.global.add.u32 [%0], %1;" : : "l"(p), "r"(v) : "memory"); }
MN_DEVICE void red_relaxed(uint32_t *p, uint32_t v) { asm volatile("red.relaxed.gpu.global.add.u32 [%0], %1;" : : "l"(p), "r"(v) : "memory"); }
MN_DEVICE uint32_t cluster_rank() { uint32_t r; asm volatile("mov.u32 %0, %cluster_ctarank;" : "=r"(r)); return r; }
MN_DEVICE void cluster_meet() { asm volatile("barrier.cluster.arrive.release.aligned;\nbarrier.cluster.wait.acquire.aligned;" : : : "memory"); }
constexpr int LINE = 32;
// sum of arrivals: monotone counters; epoch e done when counter >= e * arrivals
template <int SYNC> MN_DEVICE void meet(uint32_t *s, uint32_t epoch) {
  const uint32_t n = gridDim.x;
  if (SYNC == 1 || SYNC == 2 || SYNC == 8 || SYNC == 9) {
    __syncthreads();
    if (threadIdx.x == 0) {
      if (SYNC == 1) mn::atomic_add(s, 1); else red_release(s, 1);
      if (SYNC == 9) { while (ld_relaxed(s) < epoch * n) {} mn::load_acquire(s); }
      else while (mn::load_acquire(s) < epoch * n) { if (SYNC == 8) __nanosleep(40); }
    }
    __syncthreads();
  } else if (SYNC == 3) {
    __syncthreads();
    if (threadIdx.x == 0) red_release(s + blockIdx.x % 4 * LINE, 1);
    if (threadIdx.x < 4) while (mn::load_acquire(s + threadIdx.x * LINE) < epoch * (n / 4)) {}
    __syncthreads();
  } else if (SYNC == 4) {
    mn::fence_gpu();
    __syncthreads();
    if (threadIdx.x == 0) { red_relaxed(s, 1); while (mn::load_acquire(s) < epoch * n) {} }
    __syncthreads();
  } else if (SYNC == 5) {
    cluster_meet();
    if (cluster_rank() == 0 && threadIdx.x == 0) { red_release(s, 1); while (mn::load_acquire(s) < epoch * (n / 4)) {} }
    cluster_meet();
  } else if (SYNC == 6) {
    __syncthreads();
    if (threadIdx.x == 0) mn::store_release(s + blockIdx.x, epoch);
    if (threadIdx.x < 32) {
      for (uint32_t i = threadIdx.x; i < n; i += 32) while (ld_relaxed(s + i) < epoch) {}
      mn::load_acquire(s + threadIdx.x);
    }
    __syncthreads();
  } else if (SYNC == 7) {
    __syncthreads();
    if (threadIdx.x == 0) mn::store_release(s + blockIdx.x, epoch);
    if (blockIdx.x == 0) {
      if (threadIdx.x < n) while (mn::load_acquire(s + threadIdx.x) < epoch) {}
      __syncthreads();
      if (threadIdx.x == 0) mn::store_release(s + 512, epoch);
    } else if (threadIdx.x == 0) while (mn::load_acquire(s + 512) < epoch) {}
    __syncthreads();
  }
}
// LOAD KB by cp.async, then 12 KB stored in a style, then the barrier.
template <int SYNC, int STORE, int LOAD> __global__ void __launch_bounds__(256) work(uint32_t *s, const unsigned char *from, unsigned char *to, int rounds, int chunks, long long *out) {
  extern __shared__ __align__(128) unsigned char ring[];
  long long fence = 0;
  for (int r = 0; r < rounds; ++r) {
    if (LOAD) {
      const unsigned char *p = from + (size_t)((blockIdx.x + r * 132) % chunks) * 65536;
      for (int i = 0; i < LOAD * 1024 / 4096; ++i) mn::cp_async_16(ring + i * 4096 + threadIdx.x * 16, p + i * 4096 + threadIdx.x * 16);
      mn::cp_async_commit();
      mn::cp_async_wait<0>();
      __syncthreads();
    }
    unsigned char *q = to + (size_t)(r & 1) * 132 * 16384 + blockIdx.x * 16384;
    if (STORE == 1) {
      for (int i = 0; i < 3; ++i) asm volatile("st.global.v4.b32 [%0], {%1, %1, %1, %1};" : : "l"(q + i * 4096 + threadIdx.x * 16), "r"(r) : "memory");
    } else if (STORE == 2) {
      for (int i = 0; i < 3; ++i)
        for (int e = 0; e < 4; ++e) asm volatile("st.global.b32 [%0], %1;" : : "l"(q + i * 4096 + threadIdx.x * 16 + e * 4), "r"(r) : "memory");
    } else if (STORE == 3) {
      for (int i = 0; i < 3; ++i) *(mn::quad *)(ring + i * 4096 + threadIdx.x * 16) = mn::quad{(uint32_t)r, 1, 2, 3};
      asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
      __syncthreads();
      if (threadIdx.x == 0) {
        asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], 12288;\ncp.async.bulk.commit_group;\ncp.async.bulk.wait_group 0;" : : "l"(q), "r"(mn::shared_address(ring)) : "memory");
      }
    } else if (STORE == 4) {
      for (int i = 0; i < 12; ++i) asm volatile("st.global.b32 [%0], %1;" : : "l"(q + i * 1024 + threadIdx.x * 4), "r"(r) : "memory");
    }
    if (SYNC) meet<SYNC>(s, r + 1); else __syncthreads();
  }
}
float best(cudaEvent_t a, cudaEvent_t b, void (*launch)(void *), void *x) { return 0; }
uint32_t *S; unsigned char *F, *T; long long *O;
template <int SYNC, int STORE, int LOAD> float one(const char *) {
  CHECK(cudaFuncSetAttribute(work<SYNC, STORE, LOAD>, cudaFuncAttributeMaxDynamicSharedMemorySize, 65536));
  cudaEvent_t a, b; cudaEventCreate(&a); cudaEventCreate(&b);
  float least = 1e9;
  const int rounds = 300;
  for (int t = 0; t < 5; ++t) {
    CHECK(cudaMemset(S, 0, 8192));
    cudaEventRecord(a);
    cudaLaunchAttribute at{}; at.id = cudaLaunchAttributeClusterDimension; at.val.clusterDim.x = SYNC == 5 ? 4 : 1; at.val.clusterDim.y = at.val.clusterDim.z = 1;
    cudaLaunchConfig_t c{}; c.gridDim = dim3(SYNC == 5 ? 120 : 132); c.blockDim = dim3(256); c.dynamicSmemBytes = 65536; c.attrs = &at; c.numAttrs = 1;
    CHECK(cudaLaunchKernelEx(&c, work<SYNC, STORE, LOAD>, S, (const unsigned char *)F, T, rounds, 256, O));
    cudaEventRecord(b); CHECK(cudaEventSynchronize(b));
    float ms; cudaEventElapsedTime(&ms, a, b); least = std::min(least, ms);
  }
  return least * 1000 / rounds;
}
template <int STORE, int LOAD> void row(const char *name) {
  printf("%-34s none %.2f | atom %.2f | red %.2f | 4 words %.2f | all fence %.2f | cluster4 %.2f | flags %.2f | aggregator %.2f | sleep %.2f | relaxed polls %.2f us\n", name, one<0, STORE, LOAD>(""), one<1, STORE, LOAD>(""), one<2, STORE, LOAD>(""), one<3, STORE, LOAD>(""), one<4, STORE, LOAD>(""), one<5, STORE, LOAD>(""), one<6, STORE, LOAD>(""), one<7, STORE, LOAD>(""), one<8, STORE, LOAD>(""), one<9, STORE, LOAD>(""));
  fflush(stdout);
}
int main() {
  CHECK(cudaMalloc(&S, 8192)); CHECK(cudaMalloc(&F, 16 << 20)); CHECK(cudaMalloc(&T, 8 << 20)); CHECK(cudaMalloc(&O, 4096));
  CHECK(cudaMemset(F, 1, 16 << 20));
  row<0, 0>("nothing"); row<1, 0>("12 KB stored, 16 bytes a thread"); row<2, 0>("12 KB, in four strided words"); row<4, 0>("12 KB, neighbouring words"); row<3, 0>("12 KB, a bulk store");
  row<0, 64>("64 KB loaded"); row<1, 64>("64 KB loaded, 16 byte stores"); row<2, 64>("64 KB loaded, strided words"); row<3, 64>("64 KB loaded, a bulk store");
}
