#define MONONN_THREADS 256
#define MONONN_ERROR_INDEX 1
#include <cuda_runtime.h>
#include <cstdio>
#include <cstdlib>
#include <vector>
#include <algorithm>
#include "mononn_cuda.cuh"
#define CHECK(x) do { cudaError_t e_ = (x); if (e_ != cudaSuccess) { printf("error %s %s\n", #x, cudaGetErrorString(e_)); exit(1);} } while (0)
template <int N> __global__ void straight(int rounds, float *sink, long long *cycles) {
  float a = threadIdx.x, b = 1.0001f, c = 2.f, d = 3.f, e = 5.f;
  long long t0 = 0;
  for (int r = 0; r < rounds + 1; ++r) {
    if (r == 1) t0 = clock64();
#pragma unroll
    for (int i = 0; i < N / 4; ++i) {
      asm volatile("fma.rn.f32 %0, %0, %1, %1;" : "+f"(a) : "f"(b));
      asm volatile("fma.rn.f32 %0, %0, %1, %1;" : "+f"(c) : "f"(b));
      asm volatile("fma.rn.f32 %0, %0, %1, %1;" : "+f"(d) : "f"(b));
      asm volatile("fma.rn.f32 %0, %0, %1, %1;" : "+f"(e) : "f"(b));
    }
  }
  const long long t1 = clock64();
  if (a + c + d + e == 1.23f) *sink = a;
  if (threadIdx.x == 0) cycles[blockIdx.x] = t1 - t0;
}
template <int N> void run_straight(float *sink, long long *cyc) {
  for (int threads : {128, 256}) {
    const int rounds = 16;
    straight<N><<<132, threads>>>(rounds, sink, cyc);
    CHECK(cudaDeviceSynchronize());
    std::vector<long long> h(132);
    CHECK(cudaMemcpy(h.data(), cyc, 132 * 8, cudaMemcpyDeviceToHost));
    std::sort(h.begin(), h.end());
    printf("straight %6d instr %5.1f KB threads %d: %.2f cycles an instruction\n", N, N * 16 / 1024., threads, double(h[66]) / rounds / N);
  }
}
__constant__ unsigned long long table[8000];
__global__ void constants(int stride, int n, long long *cycles, unsigned long long *sink) {
  unsigned long long sum = 0;
  for (int pass = 0; pass < 2; ++pass) {
    long long t0 = clock64();
    int at = 0;
    for (int i = 0; i < n; ++i) { sum += table[at]; at += stride + (int)(sum >> 40); }
    long long t1 = clock64();
    if (threadIdx.x == 0) cycles[blockIdx.x * 2 + pass] = t1 - t0;
  }
  *sink = sum;
}
constexpr int CH = 8192;
template <int S> __global__ void __launch_bounds__(256) ring_cp(const unsigned char *from, int chunks, int count) {
  extern __shared__ __align__(128) unsigned char ring[];
  auto issue = [&](int i) {
    const unsigned char *s = from + (size_t)((blockIdx.x + i * 132) % chunks) * CH;
    for (int u = 0; u < CH / 4096; ++u) mn::cp_async_16(ring + i % S * CH + u * 4096 + threadIdx.x * 16, s + u * 4096 + threadIdx.x * 16);
  };
  for (int i = 0; i < S - 1; ++i) { issue(i); mn::cp_async_commit(); }
  for (int i = 0; i < count; ++i) {
    mn::cp_async_wait<S - 2>();
    __syncthreads();
    if (i + S - 1 < count) issue(i + S - 1);
    mn::cp_async_commit();
  }
}
MN_DEVICE void mb_init(uint64_t *m) { asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" : : "r"(mn::shared_address(m)) : "memory"); }
MN_DEVICE void mb_expect(uint64_t *m, uint32_t bytes) { asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" : : "r"(mn::shared_address(m)), "r"(bytes) : "memory"); }
MN_DEVICE void mb_wait(uint64_t *m, uint32_t parity) {
  uint32_t done = 0;
  while (!done) asm volatile("{\n.reg .pred p;\nmbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\nselp.u32 %0, 1, 0, p;\n}" : "=r"(done) : "r"(mn::shared_address(m)), "r"(parity) : "memory");
}
template <int S, int PIECE> __global__ void __launch_bounds__(256) ring_bulk(const unsigned char *from, int chunks, int count) {
  extern __shared__ __align__(128) unsigned char ring[];
  __shared__ __align__(8) uint64_t landed[S];
  if (threadIdx.x == 0) { for (int s = 0; s < S; ++s) mb_init(&landed[s]); asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory"); }
  __syncthreads();
  auto issue = [&](int i) {
    if (PIECE == CH ? threadIdx.x == 0 : threadIdx.x < 32) {
      if (threadIdx.x == 0) mb_expect(&landed[i % S], CH);
      if (PIECE != CH) __syncwarp();
      for (int p = threadIdx.x; p < CH / PIECE; p += 32) {
        const unsigned char *s = from + (size_t)((blockIdx.x + i * 132) % chunks) * CH + p * PIECE;
        asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" : : "r"(mn::shared_address(ring + i % S * CH + p * PIECE)), "l"(s), "r"(PIECE), "r"(mn::shared_address(&landed[i % S])) : "memory");
      }
    }
  };
  for (int i = 0; i < S - 1; ++i) issue(i);
  for (int i = 0; i < count; ++i) {
    mb_wait(&landed[i % S], i / S & 1);
    __syncthreads();
    if (i + S - 1 < count) issue(i + S - 1);
  }
}
template <class K> void rate(const char *name, int s, K kernel, const unsigned char *from, int mb) {
  CHECK(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, s * CH));
  cudaEvent_t a, b; cudaEventCreate(&a); cudaEventCreate(&b);
  const int count = 2000;
  float best = 1e9;
  for (int t = 0; t < 6; ++t) {
    cudaEventRecord(a);
    kernel<<<132, 256, s * CH>>>(from, mb * 128, count);
    cudaEventRecord(b); CHECK(cudaEventSynchronize(b));
    float ms; cudaEventElapsedTime(&ms, a, b); best = std::min(best, ms);
  }
  printf("%-22s source %3d MB, %3d KB in flight: %.1f GB/s an SM, %.2f us a step\n", name, mb, (s - 1) * CH / 1024, count * double(CH) / best / 1e6, best * 1e3 / count);
}
int main() {
  float *sink; long long *cyc;
  CHECK(cudaMalloc(&sink, 8)); CHECK(cudaMalloc(&cyc, 132 * 16));
  run_straight<256>(sink, cyc); run_straight<512>(sink, cyc); run_straight<1024>(sink, cyc); run_straight<2048>(sink, cyc);
  run_straight<4096>(sink, cyc); run_straight<6144>(sink, cyc); run_straight<8192>(sink, cyc); run_straight<16384>(sink, cyc);
  for (int stride : {8, 32}) {
    const int n = 8000 / stride;
    constants<<<132, 32>>>(stride, n, cyc, (unsigned long long *)sink);
    std::vector<long long> h(264);
    CHECK(cudaMemcpy(h.data(), cyc, 264 * 8, cudaMemcpyDeviceToHost));
    printf("constants every %d bytes: first pass %.0f cycles a load, second %.0f\n", stride * 8, double(h[20]) / n, double(h[21]) / n);
  }
  unsigned char *from; CHECK(cudaMalloc(&from, 256 << 20)); CHECK(cudaMemset(from, 1, 256 << 20));
  for (int mb : {4, 16, 192}) {
    rate("cp.async", 3, ring_cp<3>, from, mb); rate("cp.async", 5, ring_cp<5>, from, mb); rate("cp.async", 9, ring_cp<9>, from, mb); rate("cp.async", 17, ring_cp<17>, from, mb); rate("cp.async", 24, ring_cp<24>, from, mb);
    rate("bulk 8 KB", 3, ring_bulk<3, 8192>, from, mb); rate("bulk 8 KB", 5, ring_bulk<5, 8192>, from, mb); rate("bulk 8 KB", 9, ring_bulk<9, 8192>, from, mb); rate("bulk 8 KB", 17, ring_bulk<17, 8192>, from, mb); rate("bulk 8 KB", 24, ring_bulk<24, 8192>, from, mb);
    rate("bulk 128 B", 9, ring_bulk<9, 128>, from, mb); rate("bulk 128 B", 17, ring_bulk<17, 128>, from, mb); rate("bulk 1 KB", 17, ring_bulk<17, 1024>, from, mb);
  }
}
