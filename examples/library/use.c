/* Runs an emitted network from C, once at each of its shapes, on inputs of ones; prints the first values of every output.
 *   mononn compile model.onnx --emit static -o libnetwork.a
 *   cc use.c libnetwork.a -pthread -o use && ./use
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "network.h"

/* Memory for a tensor; the float32 and int64 ones filled with ones. */
static void *reserve(const network_tensor *tensor) {
  void *memory = calloc(1, tensor->bytes + 1);
  if (memory && !strcmp(tensor->dtype, "float32"))
    for (uint64_t i = 0; i < tensor->bytes / sizeof(float); i++) ((float *)memory)[i] = 1;
  if (memory && !strcmp(tensor->dtype, "int64"))
    for (uint64_t i = 0; i < tensor->bytes / sizeof(int64_t); i++) ((int64_t *)memory)[i] = 1;
  return memory;
}

static int run(network_session *session, uint32_t shape) {
  void *inputs[network_INPUTS + 1], *outputs[network_OUTPUTS + 1];
  for (uint32_t i = 0; i < network_INPUTS; i++) inputs[i] = reserve(network_input(shape, i));
  for (uint32_t i = 0; i < network_OUTPUTS; i++) outputs[i] = reserve(network_output(shape, i));
  const uint64_t error = network_run(session, shape, (const void *const *)inputs, outputs);
  if (error) fprintf(stderr, "%s\n", network_problem(error));
  for (uint32_t i = 0; !error && i < network_OUTPUTS; i++) {
    const network_tensor *tensor = network_output(shape, i);
    printf("shape %u %s:", shape, tensor->name);
    for (uint64_t j = 0; j < 4 && !strcmp(tensor->dtype, "float32") && j < tensor->bytes / sizeof(float); j++)
      printf(" %.9g", ((float *)outputs[i])[j]);
    printf("\n");
  }
  for (uint32_t i = 0; i < network_INPUTS; i++) free(inputs[i]);
  for (uint32_t i = 0; i < network_OUTPUTS; i++) free(outputs[i]);
  return error != 0;
}

int main(int count, char **arguments) {
  const char *problem;
  const network_options options = {0, 0, count > 1 ? arguments[1] : NULL}; /* the weights file, of weights beside */
  network_session *session = network_create(&options, &problem);
  if (!session) return fprintf(stderr, "%s\n", problem), 2;
  int failed = 0;
  for (uint32_t shape = 0; shape < network_SHAPES; shape++) failed |= run(session, shape);
  network_destroy(session);
  return failed;
}
