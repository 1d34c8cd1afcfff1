/* Runs a .mono file from C. Inputs are raw values in files, in manifest order; of a file of several shapes the bytes of
 * the inputs say which. Every output's first floats are printed.
 *   cc -O2 run_mono.c -I"$(python -c 'from mononn_core.runtime.toolchain import HOST; print(HOST)')" -ldl -pthread -o run_mono
 *   ./run_mono model.mono input_ids.raw attention_mask.raw
 */
#include "mononn_file.h" /* first: it asks for GNU functions */

#include <stdlib.h>

/* A file's bytes, or null. */
static void *contents(const char *path, uint64_t *bytes) {
  FILE *values = fopen(path, "rb");
  if (!values) return NULL;
  fseek(values, 0, SEEK_END);
  *bytes = (uint64_t)ftell(values);
  rewind(values);
  void *found = malloc(*bytes + 1);
  if (found && fread(found, 1, *bytes, values) != *bytes) *bytes = 0;
  fclose(values);
  return found;
}

int main(int count, char **arguments) {
  mononn_file file;
  const char *problem = count > 1 ? mononn_file_open(&file, arguments[1], 0) : "give a .mono file";
  if (problem) return fprintf(stderr, "%s: %s\n", count > 1 ? arguments[1] : arguments[0], problem), 2;

  const uint32_t inputs = file.plan->inputs, outputs = file.plan->outputs;
  if ((uint32_t)count != inputs + 2) return fprintf(stderr, "%s: give %u inputs\n", arguments[1], inputs), 2;
  void **tensors = calloc(inputs + outputs, sizeof *tensors);
  uint64_t *given = calloc(inputs + 1, sizeof *given);
  for (uint32_t i = 0; i < inputs; i++)
    if (!(tensors[i] = contents(arguments[i + 2], &given[i])))
      return fprintf(stderr, "%s: cannot be read\n", arguments[i + 2]), 2;
  const uint64_t function = mononn_file_function(&file, given);
  if (function == file.plan->functions) return fprintf(stderr, "%s: compiled for no inputs of these sizes\n", arguments[1]), 2;

  const uint64_t *bytes = mononn_file_tensor_bytes(&file, function);
  for (uint32_t i = inputs; i < inputs + outputs; i++) tensors[i] = calloc(1, bytes[i] + 1);
  const mononn_binding binding = {file.host, (const void *const *)tensors, tensors + inputs, NULL, function};
  const uint64_t error = file.run(&binding);
  if (error) return fprintf(stderr, "error %llx\n", (unsigned long long)error), 1;
  for (uint32_t i = inputs; i < inputs + outputs; i++) {
    printf("output %u:", i - inputs);
    for (uint64_t j = 0; j < 6 && (j + 1) * sizeof(float) <= bytes[i]; j++) printf(" %.9g", ((float *)tensors[i])[j]);
    printf("\n");
  }
  for (uint32_t i = 0; i < inputs + outputs; i++) free(tensors[i]);
  free(tensors);
  free(given);
  mononn_file_close(&file);
  return 0;
}
