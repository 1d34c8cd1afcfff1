/* ONNX Runtime by its C API, the file optimised ahead of time: cc onnxruntime.c libonnxruntime.so. Its wheel has the
 * library and no header: OrtApi is a table of functions that only grows, and these are places in its first version.
 */
#include "first_answer.h"

typedef struct opaque opaque;
typedef struct {
  const void *const *(*table)(uint32_t version);
  const char *(*version)(void);
} OrtApiBase;
const OrtApiBase *OrtGetApiBase(void);

enum {
  ERROR_MESSAGE = 2, CREATE_ENV = 3, CREATE_SESSION = 7, RUN = 9, CREATE_OPTIONS = 10, LOG_SEVERITY = 22,
  OPTIMIZATION_LEVEL = 23, INTRA_OP_THREADS = 24, CREATE_TENSOR = 49, CPU_MEMORY = 69,
  ONLY_ERRORS = 3, NOT_AGAIN = 0, ARENA = 1, DEFAULT_MEMORY = 0, FIRST_VERSION = 1
};
typedef const char *(*error_message)(const opaque *);
typedef opaque *(*create_env)(int, const char *, opaque **);
typedef opaque *(*create_session)(const opaque *, const char *, const opaque *, opaque **);
typedef opaque *(*run)(opaque *, const opaque *, const char *const *, const opaque *const *, size_t,
                       const char *const *, size_t, opaque **);
typedef opaque *(*create_options)(opaque **);
typedef opaque *(*set_number)(opaque *, int);
typedef opaque *(*create_tensor)(const opaque *, void *, size_t, const int64_t *, size_t, int, opaque **);
typedef opaque *(*cpu_memory)(int, int, opaque **);

static const void *const *api;

static void check(opaque *status) {
  if (status) fail("ONNX Runtime", ((error_message)api[ERROR_MESSAGE])(status));
}

static void bind(const opaque *memory, struct tensor *tensors, int count, const char **names, opaque **values) {
  for (int i = 0; i < count; i++) {
    struct tensor *one = &tensors[i];
    names[i] = one->name;
    check(((create_tensor)api[CREATE_TENSOR])(
        memory, one->data, one->bytes, one->shape, one->rank, find_dtype(one->dtype)->onnx, &values[i]));
  }
}

int main(int count, char **arguments) {
  struct task task = read_task(count, arguments);
  opaque *environment, *options, *session, *memory, *inputs[MOST_TENSORS], *outputs[MOST_TENSORS];
  const char *asked[MOST_TENSORS], *answered[MOST_TENSORS];
  api = OrtGetApiBase()->table(FIRST_VERSION);
  check(((create_env)api[CREATE_ENV])(ONLY_ERRORS, "first answer", &environment));
  check(((create_options)api[CREATE_OPTIONS])(&options));
  check(((set_number)api[LOG_SEVERITY])(options, ONLY_ERRORS));
  check(((set_number)api[OPTIMIZATION_LEVEL])(options, NOT_AGAIN));
  check(((set_number)api[INTRA_OP_THREADS])(options, task.threads));
  check(((create_session)api[CREATE_SESSION])(environment, task.model, options, &session));
  check(((cpu_memory)api[CPU_MEMORY])(ARENA, DEFAULT_MEMORY, &memory));
  bind(memory, task.input, task.inputs, asked, inputs);
  bind(memory, task.output, task.outputs, answered, outputs);
  const int64_t stood = nanoseconds();
  check(((run)api[RUN])(session, NULL, asked, (const opaque *const *)inputs, (size_t)task.inputs, answered,
                        (size_t)task.outputs, outputs));
  tell_and_wait(&task, stood, nanoseconds());
  return 0;
}
