// Runs an emitted network from C++, on inputs of ones at its first shape.
//   mononn compile model.onnx --emit shared -o libnetwork.so
//   c++ -std=c++17 use.cpp -L. -lnetwork -Wl,-rpath,'$ORIGIN' -pthread -o use && ./use
#include <algorithm>
#include <cstdio>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include "network.h"

class Network {
 public:
  explicit Network(uint32_t threads = 0) : session_(nullptr, network_destroy) {
    const network_options options = {threads, 0, nullptr};
    const char *problem = nullptr;
    session_.reset(network_create(&options, &problem));
    if (!session_) throw std::runtime_error(problem);
  }

  void run(uint32_t shape, const std::vector<const void *> &inputs, const std::vector<void *> &outputs) {
    if (const uint64_t error = network_run(session_.get(), shape, inputs.data(), outputs.data()))
      throw std::runtime_error(network_problem(error));
  }

 private:
  std::unique_ptr<network_session, void (*)(network_session *)> session_;
};

int main() try {
  Network network;
  std::vector<std::vector<char>> memory;
  std::vector<const void *> inputs;
  std::vector<void *> outputs;
  for (uint32_t i = 0; i < network_INPUTS; i++) {
    const network_tensor *tensor = network_input(0, i);
    memory.emplace_back(tensor->bytes);
    if (tensor->dtype == std::string("float32")) {
      float *values = reinterpret_cast<float *>(memory.back().data());
      std::fill(values, values + tensor->bytes / sizeof(float), 1.0f);
    }
    if (tensor->dtype == std::string("int64")) {
      int64_t *values = reinterpret_cast<int64_t *>(memory.back().data());
      std::fill(values, values + tensor->bytes / sizeof(int64_t), 1);
    }
    inputs.push_back(memory.back().data());
  }
  for (uint32_t i = 0; i < network_OUTPUTS; i++) {
    memory.emplace_back(network_output(0, i)->bytes);
    outputs.push_back(memory.back().data());
  }
  network.run(0, inputs, outputs);
  const float *first = static_cast<const float *>(outputs[0]);
  std::printf("shape 0 %s: %.9g %.9g %.9g %.9g\n", network_output(0, 0)->name, first[0], first[1], first[2], first[3]);
} catch (const std::exception &error) {
  std::fprintf(stderr, "%s\n", error.what());
  return 2;
}
