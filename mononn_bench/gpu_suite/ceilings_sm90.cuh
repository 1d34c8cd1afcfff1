// What sm_90 has and earlier architectures have not: clusters of blocks, bulk copies that land on an mbarrier (alone, and
// multicast to a cluster), products of warp groups. PTX ISA: "cp.async.bulk", "mbarrier", "barrier.cluster",
// "wgmma.mma_async" and "Shared Memory Matrix Layout". Included by ceilings.cu.
constexpr int CHUNK = 16384, RING = 4;

MN_DEVICE void cluster_meet() {
  asm volatile("barrier.cluster.arrive.release.aligned;\nbarrier.cluster.wait.acquire.aligned;" : : : "memory");
}
MN_DEVICE uint32_t cluster_rank() {
  uint32_t r;
  asm volatile("mov.u32 %0, %cluster_ctarank;" : "=r"(r));
  return r;
}
MN_DEVICE uint32_t cluster_size() {
  uint32_t r;
  asm volatile("mov.u32 %0, %cluster_nctarank;" : "=r"(r));
  return r;
}
MN_DEVICE void mbarrier_init(uint64_t *m) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" : : "r"(mn::shared_address(m)) : "memory");
}
MN_DEVICE void mbarrier_expect(uint64_t *m, uint32_t bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" : : "r"(mn::shared_address(m)), "r"(bytes) : "memory");
}
MN_DEVICE void mbarrier_wait(uint64_t *m, uint32_t parity) {
  uint32_t done = 0;
  while (!done)
    asm volatile("{\n.reg .pred p;\nmbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\nselp.u32 %0, 1, 0, p;\n}"
                 : "=r"(done) : "r"(mn::shared_address(m)), "r"(parity) : "memory");
}

__global__ void __launch_bounds__(THREADS) cluster_barriers(int count) {
  for (int i = 0; i < count; ++i) cluster_meet();
}

// Bulk copies of CHUNK bytes into a ring of RING, filled and waited for as a whole, ``rounds`` times; blocks of a cluster
// bring each other's parts (``multicast``) or each the whole for itself.
__global__ void __launch_bounds__(THREADS) bulk_copies(const unsigned char *from, size_t bytes, int rounds, int multicast) {
  extern __shared__ __align__(128) unsigned char ring[];
  __shared__ __align__(8) uint64_t landed[RING];
  const uint32_t rank = cluster_rank(), size = cluster_size(), part = CHUNK / size;
  if (threadIdx.x == 0) {
    for (int s = 0; s < RING; ++s) mbarrier_init(&landed[s]);
    asm volatile("fence.mbarrier_init.release.cluster;" : : : "memory");
  }
  cluster_meet();
  const size_t chunks = bytes / CHUNK;
  for (int r = 0; r < rounds; ++r) {
    if (threadIdx.x == 0) {
      for (int s = 0; s < RING; ++s) mbarrier_expect(&landed[s], CHUNK);
    }
    if (multicast) cluster_meet();  // nobody writes into a ring that is not expected to be written, or is not yet read
    if (threadIdx.x == 0) {
      for (int s = 0; s < RING; ++s) {
        const size_t group = multicast ? blockIdx.x / size : blockIdx.x;
        const unsigned char *chunk = from + (group * 977 + (size_t)r * RING + s) % chunks * CHUNK;
        const uint32_t to = mn::shared_address(ring + s * CHUNK), bar = mn::shared_address(&landed[s]);
        if (multicast) {
          asm volatile(
              "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster [%0], [%1], %2, [%3], %4;"
              : : "r"(to + rank * part), "l"(chunk + rank * part), "r"(part), "r"(bar), "h"((uint16_t)((1u << size) - 1))
              : "memory");
        } else {
          asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];"
                       : : "r"(to), "l"(chunk), "r"((uint32_t)CHUNK), "r"(bar) : "memory");
        }
      }
    }
    for (int s = 0; s < RING; ++s) mbarrier_wait(&landed[s], r & 1);
    __syncthreads();
  }
  cluster_meet();  // a block's shared memory stands until the last copy into it has landed
}

// Products of a warp group, 64 x 128 x 16 in f16, operands from shared memory (128-byte swizzle, rows of 128 bytes).
__global__ void __launch_bounds__(THREADS) warp_group_products(int rounds, float *sink) {
  __shared__ __align__(1024) unsigned char a[64 * 128], b[128 * 128];
  for (int i = threadIdx.x; i < 64 * 128 / 4; i += THREADS) ((uint32_t *)a)[i] = 0x3c003c00u;
  for (int i = threadIdx.x; i < 128 * 128 / 4; i += THREADS) ((uint32_t *)b)[i] = 0x3c003c00u;
  asm volatile("fence.proxy.async.shared::cta;" : : : "memory");
  __syncthreads();
  // Start address, leading (unused with a swizzle) and stride offsets in 16 bytes; 1 in the top bits is the swizzle.
  auto describe = [](const void *p) {
    return (uint64_t)((mn::shared_address(p) & 0x3ffff) >> 4) | (1ull << 16) | (64ull << 32) | (1ull << 62);
  };
  const uint64_t of_a = describe(a), of_b = describe(b);
  float d[64];
  for (int i = 0; i < 64; ++i) d[i] = 0.f;
  for (int r = 0; r < rounds; ++r) {
    asm volatile("wgmma.fence.sync.aligned;" : : : "memory");
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      asm volatile(
          "{\n.reg .pred p;\nsetp.ne.b32 p, %66, 0;\nwgmma.mma_async.sync.aligned.m64n128k16.f32.f16.f16 {%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, %48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63}, %64, %65, p, 1, 1, 0, 0;\n}"
          : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7]),
            "+f"(d[8]), "+f"(d[9]), "+f"(d[10]), "+f"(d[11]), "+f"(d[12]), "+f"(d[13]), "+f"(d[14]), "+f"(d[15]),
            "+f"(d[16]), "+f"(d[17]), "+f"(d[18]), "+f"(d[19]), "+f"(d[20]), "+f"(d[21]), "+f"(d[22]), "+f"(d[23]),
            "+f"(d[24]), "+f"(d[25]), "+f"(d[26]), "+f"(d[27]), "+f"(d[28]), "+f"(d[29]), "+f"(d[30]), "+f"(d[31]),
            "+f"(d[32]), "+f"(d[33]), "+f"(d[34]), "+f"(d[35]), "+f"(d[36]), "+f"(d[37]), "+f"(d[38]), "+f"(d[39]),
            "+f"(d[40]), "+f"(d[41]), "+f"(d[42]), "+f"(d[43]), "+f"(d[44]), "+f"(d[45]), "+f"(d[46]), "+f"(d[47]),
            "+f"(d[48]), "+f"(d[49]), "+f"(d[50]), "+f"(d[51]), "+f"(d[52]), "+f"(d[53]), "+f"(d[54]), "+f"(d[55]),
            "+f"(d[56]), "+f"(d[57]), "+f"(d[58]), "+f"(d[59]), "+f"(d[60]), "+f"(d[61]), "+f"(d[62]), "+f"(d[63])
          : "l"(of_a + 2 * k), "l"(of_b + 2 * k), "r"(1));
    }
    asm volatile("wgmma.commit_group.sync.aligned;\nwgmma.wait_group.sync.aligned 0;" : : : "memory");
  }
  float sum = 0;
  for (int i = 0; i < 64; ++i) sum += d[i];
  if (sum == 1.2345f) *sink = sum;
}

// Launch over clusters of ``size`` blocks.
template <class... Parameters>
void launch_clusters(void (*kernel)(Parameters...), int blocks, int size, int shared, cudaStream_t stream, Parameters... given) {
  cudaLaunchAttribute attribute{};
  attribute.id = cudaLaunchAttributeClusterDimension;
  attribute.val.clusterDim.x = size, attribute.val.clusterDim.y = attribute.val.clusterDim.z = 1;
  cudaLaunchConfig_t settings{};
  settings.gridDim = dim3(blocks), settings.blockDim = dim3(THREADS), settings.dynamicSmemBytes = shared;
  settings.stream = stream, settings.attrs = &attribute, settings.numAttrs = 1;
  CHECK(cudaLaunchKernelEx(&settings, kernel, given...));
}

void measure_clusters(Clock &clock, cudaStream_t stream, int sms) {
  for (int size : {2, 4, 8}) {
    const int blocks = sms / size * size / 2;  // not every SM belongs to a cluster of every size
    double seconds[2];
    for (int many : {0, 1})
      seconds[many] = clock.median(stream, 20, [&] { launch_clusters(cluster_barriers, blocks / size * size, size, 0, stream, many * 1000); });
    say("cluster barrier", "blocks of a cluster", size, "s", (seconds[1] - seconds[0]) / 1000);
  }
}

void measure_bulk_copies(Clock &clock, cudaStream_t stream, int sms, size_t l2) {
  const size_t bytes = std::max(size_t(1) << 20, l2 / 4) / CHUNK * CHUNK;
  unsigned char *from;
  CHECK(cudaMalloc(&from, bytes));
  CHECK(cudaMemset(from, 1, bytes));
  CHECK(cudaFuncSetAttribute(bulk_copies, cudaFuncAttributeMaxDynamicSharedMemorySize, RING * CHUNK));
  const int rounds = 200, blocks = sms / 4 * 4;
  for (int size : {1, 2, 4}) {
    const int multicast = size > 1;
    const double s = clock.median(stream, 10, [&] {
      launch_clusters(bulk_copies, blocks, size, RING * CHUNK, stream, (const unsigned char *)from, bytes, rounds, multicast);
    });
    say(multicast ? "multicast bulk copy from L2" : "bulk copy from L2", "blocks of a cluster", size,
        "byte/s landed an SM", (double)rounds * RING * CHUNK / s);
  }
  CHECK(cudaFree(from));
}

void measure_wgmma(Clock &clock, cudaStream_t stream, int sms) {
  float *sink;
  CHECK(cudaMalloc(&sink, 4));
  for (int per_sm : {1, 2}) {
    const int rounds = 2048, blocks = sms * per_sm;
    const double s = clock.median(stream, 10, [&] { warp_group_products<<<blocks, THREADS, 0, stream>>>(rounds, sink); });
    CHECK(cudaGetLastError());
    say("wgmma f16", "blocks", blocks, "flop/s", 2.0 * 64 * 128 * 16 * 4 * rounds * (double)blocks * (THREADS / 128) / s);
  }
  CHECK(cudaFree(sink));
}
