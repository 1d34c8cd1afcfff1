// What the machine can do at most: multiply-adds in registers, reads, barriers. Run by ceilings.py like a network.
// input: int64[3]: kind (0 multiply-adds, 1 reads, 2 barriers, 3 and 4 products of bfloat16 and of 8-bit integers as
// the vocabulary multiplies them), repetitions, bytes a worker reads.
// output: float32[workers at most 256]: keeps the work alive.
#include <sched.h>
#include <stdint.h>

#include "mononn.h"
#include "mononn_sync.hpp"
#include "mononn_tiles.hpp"

typedef float Vec __attribute__((vector_size(VECTOR_BYTES)));
constexpr int chains = 12;  // enough for two units of four cycles' latency, and fits 16 registers

static float multiply_adds(int64_t repetitions) {
  Vec sums[chains] = {}, a = {}, b = {};
  a += 0.999f;
  b += 0.001f;
  for (int64_t i = 0; i < repetitions; i++) {
#pragma GCC unroll 16
    for (int chain = 0; chain < chains; chain++) {
      Vec sum = sums[chain] * a + b;
      asm volatile("" : "+" VECTOR_REGISTER(sum));  // the chain may not be shortened
      sums[chain] = sum;
    }
  }
  for (int i = 1; i < chains; i++) sums[0] += sums[i];
  return sums[0][0];
}

template <class TA, class TB> static float dots(int64_t repetitions) {
  using D = mn::Dot<TA, TB>;
  typename D::Sum sums[chains] = {};
  alignas(64) TA a[mn::W * D::GROUP] = {};
  alignas(64) TB b[mn::W * D::GROUP] = {};
  asm volatile("" : : "r"(a), "r"(b) : "memory");  // nobody knows their values
  auto value = D::value(a);
  const auto row = D::row(b);
  for (int64_t i = 0; i < repetitions; i++) {
#pragma GCC unroll 16
    for (int chain = 0; chain < chains; chain++) {
      asm volatile("" : "+m"(value));  // or the products would be computed once for all chains
      D::add(sums[chain], value, row);
      asm volatile("" : "+" VECTOR_REGISTER(sums[chain]));
    }
  }
  for (int i = 1; i < chains; i++) sums[0] += sums[i];
  return float(sums[0][0]);
}

template <class TA, class TB> static float products(int64_t repetitions) {
#if defined(__AMX_TILE__)
  mn::Tiles tiles;
  float sums[16 * 16];
  tiles.hold<16, 16>();
  mn::each_of<8>([&]<int T>() { tiles.zero<T>(); });
  for (int64_t i = 0; i < repetitions; i++)
    mn::each_of<4>([&]<int C>() { tiles.multiply<TA, C, 4 + C / 2, 6 + C % 2>(); });
  tiles.store<0>(sums, 64);
  return sums[0];
#else
  return dots<TA, TB>(repetitions);
#endif
}

static float reads(const unsigned char *from, int64_t repetitions, int64_t bytes) {
  Vec sums[8] = {};
  for (int64_t i = 0; i < repetitions; i++) {
    const Vec *at = reinterpret_cast<const Vec *>(from);
    for (const Vec *end = at + bytes / VECTOR_BYTES; at < end; at += 8) {
      for (int j = 0; j < 8; j++) sums[j] += at[j];
    }
    asm volatile("" ::: "memory");
  }
  for (int i = 1; i < 8; i++) sums[0] += sums[i];
  return sums[0][0];
}

static void barriers(const mononn_call *call, int worker, int64_t repetitions) {
  const auto flag = [&](uint32_t w) { return reinterpret_cast<uint64_t *>(call->arena + w * uint64_t(MONONN_CACHE_LINE)); };
  const uint64_t start = *flag(static_cast<uint32_t>(worker));
  for (int64_t i = 1; i <= repetitions; i++) {
    const uint64_t target = start + static_cast<uint64_t>(i);
    __atomic_store_n(flag(static_cast<uint32_t>(worker)), target, __ATOMIC_RELEASE);
    for (uint32_t w = 0; w < call->workers; w++) {
      for (int spins = 0; __atomic_load_n(flag(w), __ATOMIC_ACQUIRE) < target; spins++) {
        if (spins > 4096) sched_yield();
      }
    }
  }
}

extern "C" __attribute__((visibility("default"))) int mononn_run(const mononn_call *call, int worker) {
  mn::TileRegisters registers{call};
  mn::Trace trace{call, 0};
  const uint32_t run = static_cast<uint32_t>(__atomic_load_n(&call->epoch, __ATOMIC_ACQUIRE));
  mn::finish(call, worker, run, trace, [&](int worker, mn::Trace &) {
    const int64_t *order = static_cast<const int64_t *>(call->inputs[0]);
    float value = 0;
    if (order[0] == 0) value = multiply_adds(order[1]);
    if (order[0] == 1) value = reads(call->arena + worker * order[2], order[1], order[2]);
    if (order[0] == 2) barriers(call, worker, order[1]);
    if (order[0] == 3) value = products<mn::bf16, mn::bf16>(order[1]);
    if (order[0] == 4) value = products<uint8_t, mn::SevenBits>(order[1]);
    static_cast<float *>(call->outputs[0])[worker] = value;
  });
  return 0;
}
