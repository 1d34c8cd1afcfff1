/* What every program here has in common: its arguments, its inputs, and the two moments that it tells.
 *
 *   program DESCRIPTOR THREADS MODEL SETTING INPUTS [NAME DTYPE SHAPE FILE]... OUTPUTS [NAME DTYPE SHAPE FILE]...
 *
 * Once it has answered it writes to DESCRIPTOR when its session stood and when it had the first answer (nanoseconds of
 * CLOCK_MONOTONIC), then the outputs into their files, then a line to DESCRIPTOR, and holds what it has until its
 * standard input ends. An error is a line on standard error and exit status 1. SHAPE is 1x128, or a dash for a scalar.
 */
#ifndef FIRST_ANSWER_H
#define FIRST_ANSWER_H
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { MOST_TENSORS = 32, MOST_DIMENSIONS = 8 };

struct tensor {
  const char *name, *dtype, *file;
  int64_t shape[MOST_DIMENSIONS];
  size_t rank, bytes;
  void *data;
};

struct task {
  int descriptor, threads, inputs, outputs;
  const char *model, *setting;
  struct tensor input[MOST_TENSORS], output[MOST_TENSORS];
};

static void fail(const char *what, const char *why) {
  fprintf(stderr, "%s: %s\n", what, why);
  exit(1);
}

/* NumPy's name, bytes, and the number of ONNX's TensorProto.DataType. */
static const struct dtype {
  const char *name;
  size_t bytes;
  int onnx;
} DTYPES[] = {{"float32", 4, 1}, {"uint8", 1, 2},    {"int8", 1, 3},    {"int32", 4, 6},
              {"int64", 8, 7},   {"bool", 1, 9},     {"float16", 2, 10}, {"float64", 8, 11}};

static const struct dtype *find_dtype(const char *name) {
  for (size_t i = 0; i < sizeof DTYPES / sizeof *DTYPES; i++)
    if (!strcmp(DTYPES[i].name, name)) return &DTYPES[i];
  fail(name, "no type that these programs know");
  return NULL;
}

static void read_tensors(char ***next, struct tensor *tensors, int *count, int filled) {
  *count = atoi(*(*next)++);
  if (*count > MOST_TENSORS) fail("arguments", "too many tensors");
  for (int i = 0; i < *count; i++) {
    struct tensor *one = &tensors[i];
    one->name = *(*next)++, one->dtype = *(*next)++;
    const char *at = *(*next)++;
    one->file = *(*next)++;
    one->bytes = find_dtype(one->dtype)->bytes;
    for (char *end; *at && *at != '-' && one->rank < MOST_DIMENSIONS; at = *end ? end + 1 : end) {
      one->shape[one->rank] = strtoll(at, &end, 10);
      one->bytes *= (size_t)one->shape[one->rank++];
    }
    if (posix_memalign(&one->data, 64, one->bytes + 64)) fail(one->name, "no memory");
    if (!filled) continue;
    FILE *file = fopen(one->file, "rb");
    if (!file || fread(one->data, 1, one->bytes, file) != one->bytes) fail(one->file, "cannot be read");
    fclose(file);
  }
}

static struct task read_task(int count, char **arguments) {
  struct task task = {0};
  if (count < 7) fail("arguments", "too few");
  char **next = arguments + 1;
  task.descriptor = atoi(*next++), task.threads = atoi(*next++), task.model = *next++, task.setting = *next++;
  read_tensors(&next, task.input, &task.inputs, 1);
  read_tensors(&next, task.output, &task.outputs, 0);
  return task;
}

static int64_t nanoseconds(void) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

/* Tells when the session stood and that the answer, which lies in `output[i].data`, is there now; ends with the input. */
static void tell_and_wait(const struct task *task, int64_t stood, int64_t answered) {
  dprintf(task->descriptor, "%lld %lld\n", (long long)stood, (long long)answered);
  for (int i = 0; i < task->outputs; i++) {
    FILE *file = fopen(task->output[i].file, "wb");
    if (!file || fwrite(task->output[i].data, 1, task->output[i].bytes, file) != task->output[i].bytes)
      fail(task->output[i].file, "cannot be written");
    if (fclose(file)) fail(task->output[i].file, "cannot be written");
  }
  dprintf(task->descriptor, "written\n");
  char nothing;
  while (read(STDIN_FILENO, &nothing, 1) > 0) continue;
}
#endif
