/* Runs a .mono file from C. Inputs are raw values in files, in manifest order; every output's first floats are printed.
 *   cc -O2 run_mono.c -I"$(python -c 'from mononn_core.runtime.toolchain import HOST; print(HOST)')" -ldl -pthread -o run_mono
 *   ./run_mono model.mono input_ids.raw attention_mask.raw
 */
#include "mononn_file.h" /* first: it asks for GNU functions */

#include <stdlib.h>

int main(int count, char **arguments) {
  mononn_file file;
  const char *problem = count > 1 ? mononn_file_open(&file, arguments[1], 0) : "give a .mono file";
  if (problem) return fprintf(stderr, "%s: %s\n", count > 1 ? arguments[1] : arguments[0], problem), 2;

  const uint32_t inputs = file.plan->inputs, outputs = file.plan->outputs;
  void **tensors = calloc(inputs + outputs, sizeof *tensors);
  for (uint32_t i = 0; i < inputs + outputs; i++) tensors[i] = calloc(1, file.plan->tensor_bytes[i]);
  for (uint32_t i = 0; i < inputs && i + 2 < (uint32_t)count; i++) {
    FILE *values = fopen(arguments[i + 2], "rb");
    if (!values || fread(tensors[i], 1, file.plan->tensor_bytes[i], values) != file.plan->tensor_bytes[i])
      return fprintf(stderr, "%s: not %llu bytes\n", arguments[i + 2], (unsigned long long)file.plan->tensor_bytes[i]), 2;
    fclose(values);
  }

  const mononn_binding binding = {file.host, (const void *const *)tensors, tensors + inputs, NULL};
  const uint64_t error = file.run(&binding);
  if (error) return fprintf(stderr, "error %llx\n", (unsigned long long)error), 1;
  for (uint32_t i = inputs; i < inputs + outputs; i++) {
    printf("output %u:", i - inputs);
    for (uint64_t j = 0; j < 6 && (j + 1) * sizeof(float) <= file.plan->tensor_bytes[i]; j++) printf(" %.9g", ((float *)tensors[i])[j]);
    printf("\n");
  }
  for (uint32_t i = 0; i < inputs + outputs; i++) free(tensors[i]);
  free(tensors);
  mononn_file_close(&file);
  return 0;
}
