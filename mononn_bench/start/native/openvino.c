/* OpenVINO by its C API: cc openvino.c libopenvino_c.so, whose wheel has no header. SETTING is the precision hint and,
 * after a comma, the folder of the compiled model (CACHE_DIR), under the settings that it was compiled with.
 */
#include "first_answer.h"

typedef struct opaque opaque;
int ov_core_create(opaque **core);
int ov_core_compile_model_from_file(const opaque *core, const char *path, const char *device, size_t count,
                                    opaque **compiled, ...);
int ov_compiled_model_create_infer_request(const opaque *compiled, opaque **request);
int ov_infer_request_get_input_tensor_by_index(const opaque *request, size_t index, opaque **tensor);
int ov_infer_request_get_output_tensor_by_index(const opaque *request, size_t index, opaque **tensor);
int ov_infer_request_infer(opaque *request);
int ov_tensor_data(const opaque *tensor, void **data);
int ov_tensor_get_byte_size(const opaque *tensor, size_t *bytes);
const char *ov_get_last_err_msg(void);

static void check(int status) {
  if (status) fail("OpenVINO", ov_get_last_err_msg());
}

static void *data_of(const opaque *tensor, const struct tensor *wanted) {
  void *data;
  size_t bytes;
  check(ov_tensor_get_byte_size(tensor, &bytes));
  if (bytes != wanted->bytes) fail(wanted->name, "OpenVINO has it in another size");
  check(ov_tensor_data(tensor, &data));
  return data;
}

int main(int count, char **arguments) {
  struct task task = read_task(count, arguments);
  char threads[16], hint[16];
  const char *folder = strchr(task.setting, ',');
  if (!folder || folder - task.setting >= (long)sizeof hint) fail("arguments", "no precision, folder");
  snprintf(hint, sizeof hint, "%.*s", (int)(folder - task.setting), task.setting);
  snprintf(threads, sizeof threads, "%d", task.threads);
  opaque *core, *compiled, *request, *tensor;
  check(ov_core_create(&core));
  check(ov_core_compile_model_from_file(core, task.model, "CPU", 8, &compiled, "PERFORMANCE_HINT", "LATENCY",
                                        "INFERENCE_NUM_THREADS", threads, "INFERENCE_PRECISION_HINT", hint, "CACHE_DIR",
                                        folder + 1));
  check(ov_compiled_model_create_infer_request(compiled, &request));
  const int64_t stood = nanoseconds();
  for (int i = 0; i < task.inputs; i++) {
    check(ov_infer_request_get_input_tensor_by_index(request, (size_t)i, &tensor));
    memcpy(data_of(tensor, &task.input[i]), task.input[i].data, task.input[i].bytes);
  }
  check(ov_infer_request_infer(request));
  const int64_t answered = nanoseconds();
  for (int i = 0; i < task.outputs; i++) {
    check(ov_infer_request_get_output_tensor_by_index(request, (size_t)i, &tensor));
    memcpy(task.output[i].data, data_of(tensor, &task.output[i]), task.output[i].bytes);
  }
  tell_and_wait(&task, stood, answered);
  return 0;
}
