// Every primitive of mononn_ptx.cuh once, results as 32-bit words: what a GPU answers, the emulator must answer. Two
// blocks of 128 threads, launched cooperatively; conformance.py knows the sections of ``out`` and what is fed in.
#include "mononn_ptx.cuh"
using namespace mn;

struct mononn_conformance_call {
  uint32_t *out;
  const uint32_t *in;  // 4096 words
  uint32_t *sync;      // 64 words of zeros
  uint64_t *once;      // a zero
};

constexpr int WORDS = 4096, THREADS = 128;

// A small integer that tells lanes and elements apart.
MN_DEVICE float code(int lane, int element, int salt) {
  return (float)((lane * 5 + element * 3 + lane * element + salt) % 7 - 3);
}

template <class T> MN_DEVICE void matrix_product(uint32_t *out, int lane, const uint32_t *fed) {
  uint32_t a[4], b[2];
  MN_UNROLL
  for (int i = 0; i < 4; ++i) a[i] = pack2<T>(code(lane, 2 * i, 0), code(lane, 2 * i + 1, 0));
  MN_UNROLL
  for (int i = 0; i < 2; ++i) b[i] = pack2<T>(code(lane, 2 * i, 1), code(lane, 2 * i + 1, 1));
  float d[4] = {code(lane, 0, 2), code(lane, 1, 2), code(lane, 2, 2), code(lane, 3, 2)};
  mma_16<T>(d, a, b);
  MN_UNROLL
  for (int i = 0; i < 4; ++i) out[lane * 4 + i] = float_bits(d[i]);
  // sums that are rounded
  MN_UNROLL
  for (int i = 0; i < 4; ++i) a[i] = pack2<T>(bits_float(fed[lane * 4 + i]), bits_float(fed[128 + lane * 4 + i]));
  MN_UNROLL
  for (int i = 0; i < 2; ++i) b[i] = pack2<T>(bits_float(fed[256 + lane * 2 + i]), bits_float(fed[320 + lane * 2 + i]));
  MN_UNROLL
  for (int i = 0; i < 4; ++i) d[i] = bits_float(fed[384 + lane * 4 + i]);
  mma_16<T>(d, a, b);
  MN_UNROLL
  for (int i = 0; i < 4; ++i) out[128 + lane * 4 + i] = float_bits(d[i]);
}

MN_DEVICE void matrix_product_tf32(uint32_t *out, int lane, const uint32_t *fed) {
  uint32_t a[4], b[2];
  float d[4];
  MN_UNROLL
  for (int i = 0; i < 4; ++i) a[i] = float_bits(to_tf32(code(lane, i, 0))), d[i] = code(lane, i, 2);
  MN_UNROLL
  for (int i = 0; i < 2; ++i) b[i] = float_bits(to_tf32(code(lane, i, 1)));
  mma_tf32(d, a, b);
  MN_UNROLL
  for (int i = 0; i < 4; ++i) out[lane * 4 + i] = float_bits(d[i]);
  MN_UNROLL
  for (int i = 0; i < 4; ++i)
    a[i] = float_bits(to_tf32(bits_float(fed[lane * 4 + i]))), d[i] = bits_float(fed[384 + lane * 4 + i]);
  MN_UNROLL
  for (int i = 0; i < 2; ++i) b[i] = float_bits(to_tf32(bits_float(fed[256 + lane * 2 + i])));
  mma_tf32(d, a, b);
  MN_UNROLL
  for (int i = 0; i < 4; ++i) out[128 + lane * 4 + i] = float_bits(d[i]);
}

MN_DEVICE void conversions(uint32_t *out, const uint32_t *in, int t) {
  for (int i = t; i < 65536; i += THREADS) out[i] = float_bits(to_float(f16{(uint16_t)i}));
  out += 65536;
  for (int i = t; i < WORDS; i += THREADS) {
    float v = bits_float(in[i]);
    out[i] = from_float<f16>(v).bits;
    out[WORDS + i] = from_float<bf16>(v).bits;
    out[2 * WORDS + i] = float_bits(to_tf32(v));
    out[3 * WORDS + i] = float_bits(to_float(from_float<bf16>(v)));
    float other = bits_float(in[WORDS - 1 - i]);
    out[4 * WORDS + i] = pack2<f16>(v, other);
    out[5 * WORDS + i] = pack2<bf16>(v, other);
  }
}

// Of numbers from 1 on, and of negative ones: all results lie in (0, 1].
MN_DEVICE void functions(uint32_t *out, const uint32_t *in, int t) {
  for (int i = t; i < 1024; i += THREADS) {
    const float v = bits_float(in[1024 + i] & 0x7fffffffu);
    out[i] = float_bits(reciprocal_near(v + 1.f));
    out[1024 + i] = float_bits(rsqrt_near(v + 1.f));
    out[2048 + i] = float_bits(exp2_near(-v));
  }
}

MN_DEVICE void shuffles(uint32_t *out, const uint32_t *in, int lane) {
  float v = bits_float(in[lane]);
  MN_UNROLL
  for (int i = 0; i < 5; ++i) out[i * 32 + lane] = float_bits(shuffle_xor(v, 1 << i));
  out[160 + lane] = float_bits(shuffle(v, (lane * 7 + 3) % 32));
  int64_t wide = shuffle_xor((int64_t)((uint64_t)in[lane] << 32 | in[32 + lane]), 5);
  out[192 + lane] = (uint32_t)((uint64_t)wide >> 32);
  out[224 + lane] = (uint32_t)wide;
}

MN_DEVICE void fragments(uint32_t *out, unsigned char *shared, int lane) {
  uint16_t *halves = (uint16_t *)shared;
  for (int i = lane; i < 256; i += 32) halves[i] = (uint16_t)(i * 257 + 1);
  sync_warp();
  uint32_t four[4], two[2];
  ldmatrix_x4(four, shared + lane * 16);
  MN_UNROLL
  for (int i = 0; i < 4; ++i) out[lane * 4 + i] = four[i];
  ldmatrix_x4_trans(four, shared + (lane ^ 9) * 16);
  MN_UNROLL
  for (int i = 0; i < 4; ++i) out[128 + lane * 4 + i] = four[i];
  ldmatrix_x2(two, shared + (31 - lane) * 16);
  MN_UNROLL
  for (int i = 0; i < 2; ++i) out[256 + lane * 2 + i] = two[i];
  ldmatrix_x2_trans(two, shared + lane * 16);
  MN_UNROLL
  for (int i = 0; i < 2; ++i) out[320 + lane * 2 + i] = two[i];
}

// 16 bytes whole, absent, in part; 4 bytes whole and absent.
MN_DEVICE void copies(uint32_t *out, unsigned char *shared, const uint32_t *in, int lane) {
  cp_async_16(shared + lane * 16, in + lane * 4);
  cp_async_commit();
  cp_async_16(shared + 512 + lane * 16, in + 128 + lane * 4, lane % 3 != 0);
  cp_async_16_some(shared + 1024 + lane * 16, in + 256 + lane * 4, lane % 17);
  cp_async_commit();
  cp_async_4(shared + 1536 + lane * 4, in + 384 + lane);
  cp_async_4(shared + 1664 + lane * 4, in + 416 + lane, lane % 2 != 0);
  cp_async_commit();
  cp_async_wait<2>();
  uint32_t first = ((uint32_t *)shared)[lane * 4];
  cp_async_wait<0>();
  sync_warp();
  for (int i = lane; i < 448; i += 32) out[i] = ((uint32_t *)shared)[i ^ 31];
  out[448 + lane] = first;
}

MN_DEVICE void barriers(uint32_t *out, unsigned char *shared, int t) {
  uint32_t *words = (uint32_t *)shared;
  words[t] = t * 3 + 1;
  sync_warp();
  out[t] = words[t ^ 17];
  sync_block();
  words[t] = t * 5 + 2;
  sync_some(1 + t / 64, 64);
  out[128 + t] = words[t ^ 33];
  sync_block();
  words[t] = t * 7 + 3;
  sync_block();
  out[256 + t] = words[127 - t];
  if (t == 0) out[384] = shared_address(shared + 48) - shared_address(shared);
}

// Two stages under way at once, by all threads and by three warps; then another where the first has landed and stores were.
MN_DEVICE void stages(uint32_t *out, unsigned char *shared, const uint32_t *in, int t) {
  uint32_t *words = (uint32_t *)shared;
  uint64_t *landed = (uint64_t *)(shared + 2032);
  if (t == 0) stage_open(landed, 128), stage_open(landed + 1, 96);
  stage_fence();
  sync_block();
  stage_copy(shared, in, 1024, landed, t, 128);
  if (t >= 32) stage_copy(shared + 1024, in + 300, 480, landed + 1, t - 32, 96);
  stage_wait(landed, 0);
  out[t] = words[t ^ 31], out[128 + t] = words[128 + (t ^ 31)];
  stage_wait(landed + 1, 0);
  out[256 + t] = t < 120 ? words[256 + t] : 0;
  sync_block();
  words[t] = 7;
  stage_fence();
  sync_block();
  stage_copy(shared, in + 1024, 512, landed, t, 128);
  stage_wait(landed, 1);
  out[384 + t] = words[127 - t];
}

// 16 bytes a lane to global memory; two additions to one word.
MN_DEVICE void stores(uint32_t *out, uint32_t *counter, int lane) {
  store_16(out + 4 * lane, quad{lane * 4u, lane * 4u + 1, lane * 4u + 2, lane * 4u + 3});
  if (lane == 0) out[128] = atomic_add_relaxed(counter, 7), out[129] = atomic_add_relaxed(counter, 5);
}

// Both blocks: a self-resetting barrier, a counter, the first to set a word.
MN_DEVICE void grid(const mononn_conformance_call &call, uint32_t *out) {
  int t = thread();
  if (t < 32) call.out[t + block() * 32] = 1000u * (block() + 1) + t;
  sync_block();
  if (t == 0) {
    fence_gpu();
    uint32_t old = atomic_add(call.sync, block() == 0 ? 0x7fffffffu : 1u);
    while (!((load_acquire(call.sync) ^ old) & 0x80000000u)) pause(64);
    fence_gpu();
    set_once(call.once, 77);
    store_release(call.sync + 32 + block(), 5u + block());
  }
  sync_block();
  if (block() == 0) {
    if (t < 64) out[t] = call.out[t];
    if (t == 0) {
      while (load_acquire(call.sync + 33) != 6u) pause(64);
      out[64] = load_acquire(call.sync), out[65] = load_acquire(call.sync + 33);
      uint64_t before = global_time();
      prefetch_l2(call.in);
      pause(1000);
      uint64_t earlier = cycles();
      pause(1000);
      out[66] = global_time() >= before && cycles() > earlier, out[67] = (uint32_t)blocks();
      out[68] = multiprocessor() < 4096;
    }
  }
}

extern "C" __global__ void __launch_bounds__(128) mononn_conformance(const __grid_constant__ mononn_conformance_call call) {
  unsigned char *shared = shared_memory();
  int t = thread(), lane = t % 32;
  uint32_t *out = call.out + 64;
  grid(call, out);
  if (block() != 0) return;
  out += 128;
  conversions(out, call.in, t);
  out += 65536 + 6 * WORDS;
  functions(out, call.in, t);
  out += 3072;
  barriers(out, shared, t);
  out += 512;
  sync_block();
  stages(out + 2020, shared, call.in, t);
  sync_block();
  if (t >= 32) return;
  shuffles(out, call.in, lane);
  fragments(out + 256, shared, lane);
  matrix_product<f16>(out + 640, lane, call.in + 1024);
  matrix_product<bf16>(out + 896, lane, call.in + 1024);
  matrix_product_tf32(out + 1152, lane, call.in + 1024);
  sync_warp();
  copies(out + 1408, shared, call.in, lane);
  stores(out + 1888, call.sync + 40, lane);
}
