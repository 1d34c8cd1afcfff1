// A hand-made network of two phases with a flag barrier between them, in the form that generated code has.
// inputs: a float32[64], k int32[1]; outputs: y float32[64], s float32[1].
// phase 0: arena[i] = a[i] * w[i]          phase 1: y[i] = arena[63 - i] + k; s = sum of arena in index order
#include <sched.h>
#include <stdint.h>
#include <time.h>

#include "mononn.h"

static uint64_t *flag(const mononn_call *call, int worker) {
  return reinterpret_cast<uint64_t *>(call->sync + static_cast<uint64_t>(worker) * MONONN_CACHE_LINE);
}

// Every worker raises its own flag and waits for the others'; `target` only grows.
static void barrier(const mononn_call *call, int worker, uint64_t target) {
  __atomic_store_n(flag(call, worker), target, __ATOMIC_RELEASE);
  for (uint32_t other = 0; other < call->workers; other++) {
    for (int spins = 0; __atomic_load_n(flag(call, static_cast<int>(other)), __ATOMIC_ACQUIRE) < target; spins++) {
      if (spins > 1000) sched_yield();
    }
  }
}

static void stamp(const mononn_call *call, int worker, int phase, int point) {
  if (!call->trace) return;
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  call->trace[(worker * 2 + phase) * 3 + point] = t.tv_sec * 1000000000ull + t.tv_nsec;
}

extern "C" __attribute__((visibility("default"))) int mononn_run(const mononn_call *call, int worker) {
  const int workers = static_cast<int>(call->workers);
  const float *a = static_cast<const float *>(call->inputs[0]);
  const int k = *static_cast<const int32_t *>(call->inputs[1]);
  const float *w = reinterpret_cast<const float *>(call->weights);
  float *y = static_cast<float *>(call->outputs[0]), *s = static_cast<float *>(call->outputs[1]);
  float *product = reinterpret_cast<float *>(call->arena);

  stamp(call, worker, 0, 0);
  stamp(call, worker, 0, 1);
  if ((k < 0 || k > 9) && worker == 0) {
    uint64_t none = 0, word = MONONN_ERROR_INDEX | 1u << 8 | static_cast<uint64_t>(static_cast<uint32_t>(k)) << 32;
    __atomic_compare_exchange_n(call->error, &none, word, false, __ATOMIC_RELEASE, __ATOMIC_RELAXED);
  }
  for (int i = worker; i < 64; i += workers) product[i] = a[i] * w[i];
  stamp(call, worker, 0, 2);

  stamp(call, worker, 1, 0);
  barrier(call, worker, call->epoch);
  stamp(call, worker, 1, 1);
  for (int i = worker; i < 64; i += workers) y[i] = product[63 - i] + static_cast<float>(k);
  if (worker == workers - 1) {
    float sum = 0;
    for (int i = 0; i < 64; i++) sum += product[i];
    s[0] = sum;
  }
  stamp(call, worker, 1, 2);
  return 0;
}
