/* The network as an emitted library that is linked in: cc mononn.c libnetwork.a -pthread. SETTING is shared or private. */
#include "first_answer.h"
#include "network.h"

static const struct tensor *of_name(const struct tensor *tensors, int count, const char *name) {
  for (int i = 0; i < count; i++)
    if (!strcmp(tensors[i].name, name)) return &tensors[i];
  fail(name, "not among the arguments");
  return NULL;
}

int main(int count, char **arguments) {
  const struct task task = read_task(count, arguments);
  const void *inputs[MOST_TENSORS];
  void *outputs[MOST_TENSORS];
  for (uint32_t i = 0; i < network_INPUTS; i++)
    inputs[i] = of_name(task.input, task.inputs, network_input(0, i)->name)->data;
  for (uint32_t i = 0; i < network_OUTPUTS; i++)
    outputs[i] = of_name(task.output, task.outputs, network_output(0, i)->name)->data;
  const network_options options = {(uint32_t)task.threads, strcmp(task.setting, "private") ? 0 : network_PRIVATE, NULL};
  const char *problem;
  network_session *session = network_create(&options, &problem);
  if (!session) fail("network_create", problem);
  const int64_t stood = nanoseconds();
  const uint64_t error = network_run(session, 0, inputs, outputs);
  if (error) fail("network_run", network_problem(error));
  tell_and_wait(&task, stood, nanoseconds());
  network_destroy(session);
  return 0;
}
