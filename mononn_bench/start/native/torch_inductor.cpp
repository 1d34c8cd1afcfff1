// A package of AOTInductor, unpacked into a folder (MODEL), by PyTorch's C++ loader.
#include <c10/core/InferenceMode.h>
#include <ATen/Parallel.h>
#include <ATen/ops/from_blob.h>
#include <torch/csrc/inductor/aoti_package/model_package_loader.h>

#include "first_answer.h"

static at::ScalarType type_of(const tensor& one) {
  const struct { const char* name; at::ScalarType type; } known[] = {
      {"float32", at::kFloat}, {"uint8", at::kByte}, {"int8", at::kChar},    {"int32", at::kInt},
      {"int64", at::kLong},    {"bool", at::kBool},  {"float16", at::kHalf}, {"float64", at::kDouble}};
  for (const auto& entry : known)
    if (!strcmp(entry.name, one.dtype)) return entry.type;
  fail(one.name, "no type of PyTorch's");
  return at::kFloat;
}

int main(int count, char** arguments) try {
  task task = read_task(count, arguments);
  c10::InferenceMode guard;
  at::set_num_threads(task.threads);
  torch::inductor::AOTIModelPackageLoader loader(task.model);
  std::vector<at::Tensor> inputs;
  for (int i = 0; i < task.inputs; i++) {
    const tensor& one = task.input[i];
    inputs.push_back(at::from_blob(one.data, at::IntArrayRef(one.shape, one.rank), at::TensorOptions(type_of(one))));
  }
  const int64_t stood = nanoseconds();
  const std::vector<at::Tensor> outputs = loader.run(inputs);
  const int64_t answered = nanoseconds();
  for (int i = 0; i < task.outputs; i++) {
    const at::Tensor found = outputs.at(i).contiguous();
    if (found.nbytes() != task.output[i].bytes) fail(task.output[i].name, "PyTorch has it in another size");
    memcpy(task.output[i].data, found.data_ptr(), found.nbytes());
  }
  tell_and_wait(&task, stood, answered);
  return 0;
} catch (const std::exception& error) {
  fail("PyTorch", error.what());
}
