/* ${name}: the network ${network}, compiled by mononn ${version} for ${target}.
 *
 * ${described}
 *
 *   const char *problem;
 *   ${name}_session *session = ${name}_create(NULL, &problem);
 *   if (!session) fprintf(stderr, "%s\n", problem);
 *   uint64_t error = ${name}_run(session, 0, inputs, outputs);
 *   if (error) fprintf(stderr, "%s\n", ${name}_problem(error));
 *   ${name}_destroy(session);
 *
 * Memory: inputs and outputs are the caller's, C-contiguous, in the order of the tables; no two may overlap. A session
 * owns its threads and ${memory} MB of working memory; the weights,
 * ${weights} MB, ${where}, and all
 * sessions and processes share them unless they ask for a copy.
 * Threads: every function may be called from any thread. Runs of one session take turns; sessions run side by side.
 * ${name}_destroy may not be called while another call uses that session. The calling thread is one of a session's
 * threads during a run. After fork() a child creates its own.
 */
#ifndef ${upper}_H
#define ${upper}_H
#include <stdint.h>
#ifdef __cplusplus
extern "C" {
#endif

#define ${name}_SHAPES ${shapes}u
#define ${name}_INPUTS ${inputs}u
#define ${name}_OUTPUTS ${outputs}u
${indices}
typedef struct ${name}_session ${name}_session;

typedef struct ${name}_tensor {
  const char *name, *dtype; /* dtype by NumPy's name: "float32", "int64", ... */
  uint32_t rank;
  const uint64_t *shape;
  uint64_t bytes;
} ${name}_tensor;

/* Of input or output `index` at shape `shape`, both from 0; null where there is none. */
const ${name}_tensor *${name}_input(uint32_t shape, uint32_t index);
const ${name}_tensor *${name}_output(uint32_t shape, uint32_t index);

enum {
  ${name}_PRIVATE = 1,    /* copy the weights into this process's own huge pages: a slower start, often faster runs */
  ${name}_UNVERIFIED = 2, /* do not compare a weights file's contents with its checksum */
};

typedef struct ${name}_options {
  uint32_t threads;    /* 0: ${threads}, as compiled for; any number gives the same answers */
  uint32_t flags;
  const char *weights; /* path of the weights file; of no meaning where they are inside */
} ${name}_options;

/* A session, or null with a sentence in `problem` that says why. Null options: the defaults. */
${name}_session *${name}_create(const ${name}_options *options, const char **problem);
/* One inference at a shape of the tables. 0, or an error for ${name}_problem. */
uint64_t ${name}_run(${name}_session *session, uint32_t shape, const void *const *inputs, void *const *outputs);
/* What an error of ${name}_run is, as a sentence; null for 0. */
const char *${name}_problem(uint64_t error);
void ${name}_destroy(${name}_session *session);

#ifdef __cplusplus
}
#endif
#endif
