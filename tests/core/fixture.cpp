// A hand-made network of two phases with a barrier between them, in the form that generated code has.
// inputs: a float32[64], k int32[1]; outputs: y float32[64], s float32[1].
// phase 0: arena[i] = a[i] * w[i]          phase 1: y[i] = arena[63 - i] + k; s = sum of arena in index order
#include <stdint.h>

#include "mononn_sync.hpp"

extern "C" __attribute__((visibility("default"))) int mononn_run(const mononn_call *call, int worker) {
  const int workers = static_cast<int>(call->workers);
  uint32_t target = static_cast<uint32_t>(__atomic_load_n(&call->epoch, __ATOMIC_ACQUIRE) - 1) * 2u;
  mn::Trace trace{call, 2};
  mn::together(call, worker, ++target, trace, [&](int worker, mn::Trace &trace) {
    const float *a = static_cast<const float *>(call->inputs[0]);
    const float *w = reinterpret_cast<const float *>(call->weights);
    const int k = *static_cast<const int32_t *>(call->inputs[1]);
    float *product = reinterpret_cast<float *>(call->arena);
    trace.begin(worker, 0);
    if ((k < 0 || k > 9) && worker == 0) {
      uint64_t none = 0, word = MONONN_ERROR_INDEX | 1u << 8 | static_cast<uint64_t>(static_cast<uint32_t>(k)) << 32;
      __atomic_compare_exchange_n(call->error, &none, word, false, __ATOMIC_RELEASE, __ATOMIC_RELAXED);
    }
    for (int i = worker; i < 64; i += workers) product[i] = a[i] * w[i];
    trace.end(worker, 0);
  });
  mn::finish(call, worker, ++target, trace, [&](int worker, mn::Trace &trace) {
    const int k = *static_cast<const int32_t *>(call->inputs[1]);
    float *y = static_cast<float *>(call->outputs[0]), *s = static_cast<float *>(call->outputs[1]);
    const float *product = reinterpret_cast<const float *>(call->arena);
    trace.begin(worker, 1);
    for (int i = worker; i < 64; i += workers) y[i] = product[63 - i] + static_cast<float>(k);
    if (worker == workers - 1) {
      float sum = 0;
      for (int i = 0; i < 64; i++) sum += product[i];
      s[0] = sum;
    }
    trace.end(worker, 1);
  });
  return 0;
}
