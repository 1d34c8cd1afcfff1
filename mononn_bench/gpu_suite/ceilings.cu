// What this GPU can do at most, and what each way to hand work on costs. Prints one JSON object a line.
// nvcc -std=c++17 -O3 -gencode=arch=compute_90a,code=sm_90a -DMONONN_SM90 -I mononn_core/vocabulary ceilings.cu -o ceilings
// What only sm_90 has stands in ceilings_sm90.cuh and is left out for other architectures.
#define MONONN_THREADS 256
#define MONONN_ERROR_INDEX 1
#include <cuda_runtime.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <vector>

#include "mononn_cuda.cuh"

#define CHECK(call)                                                                                      \
  do {                                                                                                   \
    const cudaError_t status_ = (call);                                                                  \
    if (status_ != cudaSuccess) {                                                                        \
      std::printf("{\"name\": \"error\", \"call\": \"%s\", \"status\": \"%s\"}\n", #call,               \
                  cudaGetErrorString(status_));                                                          \
      std::fflush(stdout);                                                                               \
      std::exit(1);                                                                                      \
    }                                                                                                    \
  } while (0)

namespace {

constexpr int THREADS = MONONN_THREADS, UNROLL = 8;

__global__ void empty() {}

__global__ void __launch_bounds__(THREADS) copy(const mn::quad *from, mn::quad *to, size_t count) {
  const size_t step = (size_t)gridDim.x * THREADS;
  for (size_t i = blockIdx.x * (size_t)THREADS + threadIdx.x; i < count; i += step) to[i] = from[i];
}

// Every block reads the same ``count`` quads ``rounds`` times; beyond the first round they come from the second-level
// cache (loads that do not allocate in the first-level one).
__global__ void __launch_bounds__(THREADS) read_l2(const mn::quad *from, size_t count, int rounds, uint32_t *sink) {
  uint32_t sum = 0;
  for (int r = 0; r < rounds; ++r) {
    const size_t shift = ((size_t)blockIdx.x * 977 + r * 131) * THREADS % count;
    for (size_t i = threadIdx.x; i + (UNROLL - 1) * THREADS < count; i += UNROLL * THREADS) {
      mn::quad q[UNROLL];
#pragma unroll
      for (int u = 0; u < UNROLL; ++u) {
        size_t at = i + u * THREADS + shift;
        at = at >= count ? at - count : at;
        asm volatile("ld.global.cg.v4.u32 {%0,%1,%2,%3}, [%4];"
                     : "=r"(q[u].x), "=r"(q[u].y), "=r"(q[u].z), "=r"(q[u].w) : "l"(from + at));
      }
#pragma unroll
      for (int u = 0; u < UNROLL; ++u) sum += q[u].x ^ q[u].w;
    }
  }
  if (sum == 0x12345678u) *sink = sum;
}

enum Kind { F16, BF16, TF32, FMA };

// Products from registers alone: 8 independent accumulators a warp, so that only the arithmetic units limit it.
template <Kind KIND> __global__ void __launch_bounds__(THREADS) products(int rounds, float *sink) {
  constexpr int N = 8;
  float d[N][4];
  uint32_t a[4], b[2];
  for (int i = 0; i < 4; ++i) a[i] = 0x3c003c00u + threadIdx.x * 7 + i;
  for (int i = 0; i < 2; ++i) b[i] = 0x3c003c00u + threadIdx.x * 5 + i;
  for (int n = 0; n < N; ++n)
    for (int i = 0; i < 4; ++i) d[n][i] = 0.f;
  for (int r = 0; r < rounds; ++r) {
#pragma unroll
    for (int n = 0; n < N; ++n) {
      if constexpr (KIND == F16) mn::mma_16<mn::f16>(d[n], a, b);
      if constexpr (KIND == BF16) mn::mma_16<mn::bf16>(d[n], a, b);
      if constexpr (KIND == TF32) mn::mma_tf32(d[n], a, b);
      if constexpr (KIND == FMA) {
#pragma unroll
        for (int i = 0; i < 4; ++i) d[n][i] = fmaf(d[n][i], __uint_as_float(a[i]), __uint_as_float(b[i & 1]));
      }
    }
  }
  float sum = 0;
  for (int n = 0; n < N; ++n)
    for (int i = 0; i < 4; ++i) sum += d[n][i];
  if (sum == 1.2345f) *sink = sum;
}

__global__ void __launch_bounds__(THREADS) barriers(uint32_t *sync, int count) {
  for (int i = 0; i < count; ++i) mn::barrier(sync);
}

// Blocks 2p and 2p + 1 hand a counter to each other; the values stand a line apart.
__global__ void __launch_bounds__(THREADS) hand_off(uint32_t *sync, int count) {
  const int me = blockIdx.x & 1, pair = blockIdx.x >> 1;
  for (int i = 0; i < count; ++i) {
    if (me == (i & 1)) mn::signal(sync, 2 * pair + me, 1);
    else mn::wait(sync, 2 * pair + 1 - me, (uint32_t)(i / 2 + 1));
  }
}

// Barriers with work before each: every block reads ``count`` quads that others have read, so that blocks do not arrive
// together. ``rounds`` of them; without ``meet`` the work alone.
__global__ void __launch_bounds__(THREADS) loaded(uint32_t *sync, const mn::quad *from, size_t total, size_t count,
                                                  int rounds, int meet, uint32_t *sink) {
  uint32_t sum = 0;
  for (int r = 0; r < rounds; ++r) {
    const size_t start = ((size_t)blockIdx.x * 1031 + r * 127) * THREADS % (total - count);
    for (size_t i = threadIdx.x; i < count; i += THREADS) {
      mn::quad q;
      asm volatile("ld.global.cg.v4.u32 {%0,%1,%2,%3}, [%4];" : "=r"(q.x), "=r"(q.y), "=r"(q.z), "=r"(q.w)
                   : "l"(from + start + i));
      sum += q.x ^ q.w;
    }
    if (meet) mn::barrier(sync);
  }
  if (sum == 0x12345678u) *sink = sum;
}

// cp.async into a ring of STAGES stages of shared memory, each a quad for every thread; nobody reads them.
template <int STAGES> __global__ void __launch_bounds__(THREADS) copy_async(const mn::quad *from, size_t count, int rounds) {
  constexpr int EACH = 2;
  __shared__ __align__(128) mn::quad ring[STAGES][EACH][THREADS];
  const size_t steps = count / (EACH * THREADS);
  for (int r = 0; r < rounds; ++r) {
    const size_t shift = (size_t)blockIdx.x * 977 + r * 131;
    for (size_t s = 0; s < steps; ++s) {
      const mn::quad *at = from + (s + shift) % steps * (EACH * THREADS) + threadIdx.x;
      mn::cp_async_wait<STAGES - 1>();
#pragma unroll
      for (int e = 0; e < EACH; ++e) mn::cp_async_16(&ring[s % STAGES][e][threadIdx.x], at + e * THREADS);
      mn::cp_async_commit();
    }
  }
  mn::cp_async_wait<0>();
}

// What a barrier waits for: ``copied`` quads a thread that are under way by cp.async, ``stored`` quads a thread that were
// stored before it, each by one instruction or (SPLIT) by four, a word each. ``meet``: the barrier, else only the block's.
template <bool SPLIT>
__global__ void __launch_bounds__(THREADS) busy_barriers(uint32_t *sync, const mn::quad *from, size_t total, mn::quad *to,
                                                         int copied, int stored, int rounds, int meet) {
  extern __shared__ __align__(128) unsigned char room[];
  for (int r = 0; r < rounds; ++r) {
    const size_t start = ((size_t)blockIdx.x * 1031 + r * 127) * THREADS % (total - (size_t)copied * THREADS);
    for (int i = 0; i < stored; ++i) {
      mn::quad *at = to + ((size_t)blockIdx.x * 2 + r % 2) * stored * THREADS + i * THREADS + threadIdx.x;
      if (!SPLIT) mn::store_16(at, mn::quad{1u, 2u, 3u, (uint32_t)r});
      for (int e = 0; SPLIT && e < 4; ++e)
        asm volatile("st.global.b32 [%0], %1;" : : "l"((uint32_t *)at + e), "r"(r) : "memory");
    }
    if (meet) mn::publish();
    for (int at = threadIdx.x; at < copied * THREADS; at += THREADS) mn::cp_async_16((mn::quad *)room + at, from + start + at);
    if (meet) mn::depart(sync, mn::announce(sync));
    mn::cp_async_commit();
    mn::cp_async_wait<0>();
    __syncthreads();
  }
}

// N instructions in a row, ``rounds`` times: how fast code comes that is not at hand. ``cycles``: of the first block.
template <int N> __global__ void __launch_bounds__(THREADS) straight(int rounds, float *sink, long long *cycles) {
  float a = threadIdx.x, b = 1.0001f, c = 2.f, d = 3.f, e = 5.f;
  long long start = 0;
  for (int r = 0; r <= rounds; ++r) {
    if (r == 1) start = clock64();
#pragma unroll
    for (int i = 0; i < N / 4; ++i)
      asm volatile("fma.rn.f32 %0, %0, %4, %4;\nfma.rn.f32 %1, %1, %4, %4;\n"
                   "fma.rn.f32 %2, %2, %4, %4;\nfma.rn.f32 %3, %3, %4, %4;"
                   : "+f"(a), "+f"(c), "+f"(d), "+f"(e) : "f"(b));
  }
  if (blockIdx.x == 0 && threadIdx.x == 0) *cycles = clock64() - start;
  if (a + c + d + e == 1.2345f) *sink = a;
}

struct Clock {
  cudaEvent_t start, end;
  Clock() {
    CHECK(cudaEventCreate(&start));
    CHECK(cudaEventCreate(&end));
  }
  // Median seconds of ``runs`` of what ``work`` enqueues, after two more.
  double median(cudaStream_t stream, int runs, const std::function<void()> &work) {
    std::vector<double> seconds;
    for (int i = -2; i < runs; ++i) {
      CHECK(cudaEventRecord(start, stream));
      work();
      CHECK(cudaEventRecord(end, stream));
      CHECK(cudaEventSynchronize(end));
      float ms = 0;
      CHECK(cudaEventElapsedTime(&ms, start, end));
      if (i >= 0) seconds.push_back(ms * 1e-3);
    }
    std::sort(seconds.begin(), seconds.end());
    return seconds[seconds.size() / 2];
  }
};

void say(const char *name, const char *key, double size, const char *unit, double value) {
  std::printf("{\"name\": \"%s\", \"%s\": %.0f, \"unit\": \"%s\", \"value\": %.6g}\n", name, key, size, unit, value);
  std::fflush(stdout);
}

template <Kind KIND> void measure_products(Clock &clock, cudaStream_t stream, int sms, const char *name, double flops) {
  float *sink;
  CHECK(cudaMalloc(&sink, 4));
  const int rounds = 4096, blocks = sms * 4;
  const double s = clock.median(stream, 10, [&] { products<KIND><<<blocks, THREADS, 0, stream>>>(rounds, sink); });
  CHECK(cudaGetLastError());
  say(name, "blocks", blocks, "flop/s", flops * 8 * rounds * (double)blocks * (THREADS / 32) / s);
  CHECK(cudaFree(sink));
}

void measure_memory(Clock &clock, cudaStream_t stream, int sms, size_t l2) {
  for (size_t bytes : {size_t(1) << 22, size_t(1) << 24, size_t(1) << 30}) {
    mn::quad *from, *to;
    CHECK(cudaMalloc(&from, bytes));
    CHECK(cudaMalloc(&to, bytes));
    CHECK(cudaMemset(from, 1, bytes));
    const double s = clock.median(stream, 10, [&] { copy<<<sms * 8, THREADS, 0, stream>>>(from, to, bytes / 16); });
    CHECK(cudaGetLastError());
    say("copy", "bytes", (double)bytes, "byte/s read and written", 2.0 * bytes / s);
    CHECK(cudaFree(from));
    CHECK(cudaFree(to));
  }
  const size_t bytes = std::max(size_t(1) << 20, l2 / 4 / (UNROLL * THREADS * 16) * (UNROLL * THREADS * 16));
  mn::quad *from;
  uint32_t *sink;
  CHECK(cudaMalloc(&from, bytes));
  CHECK(cudaMalloc(&sink, 4));
  CHECK(cudaMemset(from, 1, bytes));
  for (int per_sm : {1, 2, 4}) {
    for (int used : {1, sms}) {
      const int rounds = 8, blocks = per_sm * used;
      const double s = clock.median(stream, 10, [&] {
        read_l2<<<blocks, THREADS, 0, stream>>>(from, bytes / 16, rounds, sink);
      });
      CHECK(cudaGetLastError());
      const double rate = (double)rounds * bytes * blocks / s / std::min(used, sms);
      say(used == 1 ? "L2 to one SM" : "L2 to each of all SMs", "blocks", blocks, "byte/s an SM", rate);
    }
  }
  CHECK(cudaFree(from));
  CHECK(cudaFree(sink));
}

// Copies into shared memory by cp.async, from the second-level cache and from memory.
void measure_copies_async(Clock &clock, cudaStream_t stream, int sms, size_t l2) {
  for (size_t bytes : {std::max(size_t(1) << 20, l2 / 4), size_t(1) << 30}) {
    mn::quad *from;
    CHECK(cudaMalloc(&from, bytes));
    CHECK(cudaMemset(from, 1, bytes));
    const bool cached = bytes <= l2;
    for (int per_sm : {1, 2}) {
      const int rounds = cached ? 8 : 1, blocks = per_sm * sms;
      const size_t each = cached ? bytes / 16 : bytes / 16 / blocks;  // of memory each block reads a part
      const double s = clock.median(stream, 10, [&] { copy_async<4><<<blocks, THREADS, 0, stream>>>(from, each, rounds); });
      CHECK(cudaGetLastError());
      const double rate = (double)rounds * (each / (2 * THREADS) * (2 * THREADS) * 16) * blocks / s / sms;
      say(cached ? "cp.async from L2" : "cp.async, all from one part", "blocks", blocks, "byte/s an SM", rate);
    }
    CHECK(cudaFree(from));
  }
}

void measure_loaded_barriers(Clock &clock, cudaStream_t stream, int sms, size_t l2) {
  const size_t total = std::max(size_t(1) << 20, l2 / 4) / 16, sync_bytes = 256;
  mn::quad *from;
  uint32_t *sync, *sink;
  CHECK(cudaMalloc(&from, total * 16));
  CHECK(cudaMalloc(&sync, sync_bytes));
  CHECK(cudaMalloc(&sink, 4));
  CHECK(cudaMemset(from, 1, total * 16));
  for (int kib : {16, 64, 160}) {
    size_t count = (size_t)kib * 64;
    int rounds = 200;
    double seconds[2];
    for (int meet : {0, 1}) {
      size_t all = total;
      void *arguments[] = {&sync, &from, &all, &count, &rounds, &meet, &sink};
      seconds[meet] = clock.median(stream, 20, [&] {
        CHECK(cudaMemsetAsync(sync, 0, sync_bytes, stream));
        CHECK(cudaLaunchCooperativeKernel((void *)loaded, dim3(sms), dim3(THREADS), arguments, 0, stream));
      });
    }
    say("grid barrier under load", "KiB read before it", kib, "s", (seconds[1] - seconds[0]) / rounds);
  }
  CHECK(cudaFree(from));
  CHECK(cudaFree(sync));
  CHECK(cudaFree(sink));
}

void measure_busy_barriers(Clock &clock, cudaStream_t stream, int sms, size_t l2) {
  constexpr int MOST = 12;
  const size_t all = std::max(size_t(1) << 20, l2 / 4) / 16, sync_bytes = 256;
  mn::quad *from, *to;
  uint32_t *sync;
  CHECK(cudaMalloc(&from, all * 16));
  CHECK(cudaMalloc(&to, (size_t)sms * 2 * MOST * THREADS * 16));
  CHECK(cudaMalloc(&sync, sync_bytes));
  CHECK(cudaMemset(from, 1, all * 16));
  auto measure = [&](auto kernel, const char *name, const char *key, int copied, int stored) {
    const int room = MOST * THREADS * 16;
    CHECK(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, room));
    double seconds[2];
    for (int meet : {0, 1}) {
      size_t total = all;
      int rounds = 200;
      void *arguments[] = {&sync, &from, &total, &to, &copied, &stored, &rounds, &meet};
      seconds[meet] = clock.median(stream, 20, [&] {
        CHECK(cudaMemsetAsync(sync, 0, sync_bytes, stream));
        CHECK(cudaLaunchCooperativeKernel((void *)kernel, dim3(sms), dim3(THREADS), arguments, room, stream));
      }) / rounds;
    }
    say(name, key, (copied + stored) * THREADS / 64, "s", seconds[1] - seconds[0]);
  };
  for (int quads : {1, 3, 6}) {
    measure(busy_barriers<false>, "grid barrier behind 16-byte stores", "KiB stored before it", 0, quads);
    measure(busy_barriers<true>, "grid barrier behind split stores", "KiB stored before it", 0, quads);
  }
  for (int quads : {4, 8, 12}) measure(busy_barriers<false>, "grid barrier beside copies", "KiB copied beside it", quads, 0);
  CHECK(cudaFree(from));
  CHECK(cudaFree(to));
  CHECK(cudaFree(sync));
}

template <int N> void measure_code(cudaStream_t stream, int sms) {
  float *sink;
  long long *cycles, read = 0;
  const int rounds = 16;
  CHECK(cudaMalloc(&sink, 4));
  CHECK(cudaMalloc(&cycles, 8));
  for (int i = 0; i < 2; ++i) straight<N><<<sms, THREADS, 0, stream>>>(rounds, sink, cycles);
  CHECK(cudaMemcpyAsync(&read, cycles, 8, cudaMemcpyDeviceToHost, stream));
  CHECK(cudaStreamSynchronize(stream));
  say("code in a loop", "KiB of it", N * 16 / 1024, "cycles an instruction of all warps", (double)read / rounds / N);
  CHECK(cudaFree(sink));
  CHECK(cudaFree(cycles));
}

void measure_launches(Clock &clock, cudaStream_t stream) {
  const int count = 200;
  double s = clock.median(stream, 10, [&] { for (int i = 0; i < count; ++i) empty<<<1, 32, 0, stream>>>(); });
  say("launches in a row", "count", count, "s each", s / count);
  s = clock.median(stream, 50, [&] { empty<<<1, 32, 0, stream>>>(); });
  say("one launch between events", "count", 1, "s", s);
  for (int nodes : {1, 20, 200}) {
    cudaGraph_t graph;
    cudaGraphExec_t executable;
    CHECK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
    for (int i = 0; i < nodes; ++i) empty<<<1, 32, 0, stream>>>();
    CHECK(cudaStreamEndCapture(stream, &graph));
    CHECK(cudaGraphInstantiate(&executable, graph, 0));
    s = clock.median(stream, 50, [&] { CHECK(cudaGraphLaunch(executable, stream)); });
    say("graph of empty kernels", "count", nodes, "s a graph", s);
    CHECK(cudaGraphExecDestroy(executable));
    CHECK(cudaGraphDestroy(graph));
  }
}

template <class Kernel> double cooperative(Clock &clock, cudaStream_t stream, Kernel kernel, int blocks, uint32_t *sync,
                                           size_t sync_bytes, int count) {
  void *arguments[] = {&sync, &count};
  return clock.median(stream, 20, [&] {
    CHECK(cudaMemsetAsync(sync, 0, sync_bytes, stream));
    CHECK(cudaLaunchCooperativeKernel((void *)kernel, dim3(blocks), dim3(THREADS), arguments, 0, stream));
  });
}

void measure_hand_offs(Clock &clock, cudaStream_t stream, int sms) {
  uint32_t *sync;
  const size_t bytes = (size_t)(2 + 2 * sms * 2) * 128;
  CHECK(cudaMalloc(&sync, bytes));
  for (int blocks : {1, 2, sms / 4, sms / 2, sms, 2 * sms}) {
    if (blocks < 1) continue;
    const double none = cooperative(clock, stream, barriers, blocks, sync, bytes, 0);
    const double many = cooperative(clock, stream, barriers, blocks, sync, bytes, 1000);
    say("grid barrier", "blocks", blocks, "s", (many - none) / 1000);
    say("cooperative launch", "blocks", blocks, "s", none);
  }
  for (int pairs : {1, sms / 2}) {
    const double none = cooperative(clock, stream, hand_off, 2 * pairs, sync, bytes, 0);
    const double many = cooperative(clock, stream, hand_off, 2 * pairs, sync, bytes, 1000);
    say("counter hand-off", "pairs", pairs, "s", (many - none) / 1000);
  }
  CHECK(cudaFree(sync));
}

#ifdef MONONN_SM90
#include "ceilings_sm90.cuh"
#endif

}  // namespace

int main() {
  cudaDeviceProp p;
  CHECK(cudaGetDeviceProperties(&p, 0));
  std::printf("{\"name\": \"device\", \"device\": \"%s\", \"sms\": %d, \"l2_bytes\": %d, \"shared_per_block\": %zu, "
              "\"shared_per_sm\": %zu, \"registers_per_sm\": %d, \"threads_per_sm\": %d}\n",
              p.name, p.multiProcessorCount, p.l2CacheSize, p.sharedMemPerBlockOptin, p.sharedMemPerMultiprocessor,
              p.regsPerMultiprocessor, p.maxThreadsPerMultiProcessor);
  cudaStream_t stream;
  CHECK(cudaStreamCreate(&stream));
  Clock clock;
  const int sms = p.multiProcessorCount;
  measure_hand_offs(clock, stream, sms);
  measure_launches(clock, stream);
  measure_loaded_barriers(clock, stream, sms, (size_t)p.l2CacheSize);
  measure_busy_barriers(clock, stream, sms, (size_t)p.l2CacheSize);
  measure_code<1024>(stream, sms);
  measure_code<6144>(stream, sms);
  measure_code<16384>(stream, sms);
  measure_memory(clock, stream, sms, (size_t)p.l2CacheSize);
  measure_copies_async(clock, stream, sms, (size_t)p.l2CacheSize);
  measure_products<F16>(clock, stream, sms, "mma.sync f16", 2.0 * 16 * 8 * 16);
  measure_products<BF16>(clock, stream, sms, "mma.sync bf16", 2.0 * 16 * 8 * 16);
  measure_products<TF32>(clock, stream, sms, "mma.sync tf32", 2.0 * 16 * 8 * 8);
  measure_products<FMA>(clock, stream, sms, "fma f32", 2.0 * 4 * 32);
#ifdef MONONN_SM90
  measure_clusters(clock, stream, sms);
  measure_bulk_copies(clock, stream, sms, (size_t)p.l2CacheSize);
  measure_wgmma(clock, stream, sms);
#endif
  return 0;
}
