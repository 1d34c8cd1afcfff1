/* Drives host.c and fixture.cpp with several workers and two calling threads; built with ThreadSanitizer. */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "mononn_host.h"

#include "mononn.h"

static mononn_host *host;

static void *caller(void *argument) {
  const int seed = *(int *)argument;
  float a[64], w_sum = 0, y[64], s[1];
  int k[1] = {seed};
  const void *inputs[2] = {a, k};
  void *outputs[2] = {y, s};
  mononn_binding binding = {host, inputs, outputs, NULL, 0};
  for (int run = 0; run < 300; run++) {
    w_sum = 0;
    binding.function = (uint64_t)(run + seed) / 3 % 2;
    for (int i = 0; i < 64; i++) {
      a[i] = (float)((i * 7 + run + seed) % 11);
      w_sum += a[i] * 2.0f;
    }
    if (mononn_host_run(&binding) || s[0] != w_sum || y[0] != a[63] * 2.0f + (float)seed) {
      fprintf(stderr, "wrong answer in run %d\n", run);
      exit(3);
    }
    if (run % 100 == 99) usleep(2000); /* long enough for the workers to fall asleep */
  }
  return NULL;
}

int main(void) {
  static float weights[64];
  for (int i = 0; i < 64; i++) weights[i] = 2.0f;
  const mononn_plan plan = {MONONN_ABI_VERSION, 3, 256, 64, 100000, 2};
  const mononn_function functions[2] = {{mononn_run, NULL, 1}, {mononn_run, NULL, 1}};
  host = mononn_host_create(&plan, functions, weights);
  if (!host) return 2;
  pthread_t other;
  int seeds[2] = {3, 5};
  pthread_create(&other, NULL, caller, &seeds[0]);
  caller(&seeds[1]);
  pthread_join(other, NULL);
  mononn_host_destroy(host);
  return 0;
}
