/* The host of a compiled network: persistent workers that enter a generated function together. A network compiled for
 * several shapes has a function for each; they share the workers, the arena and the weights.
 *
 * One host runs one inference at a time; concurrent mononn_host_run calls take turns. The calling thread is worker 0;
 * the other workers inherit its processor affinity. Nothing here allocates or makes a system call in a run, except to
 * wake workers that sleep. A run is over when all its work is done: a worker that came late may still be on its way
 * through the function, and touches neither inputs nor outputs.
 */
#ifndef MONONN_HOST_H
#define MONONN_HOST_H
#include <stdint.h>
#ifdef __cplusplus
extern "C" {
#endif

#ifndef MONONN_HOST_API
#define MONONN_HOST_API __attribute__((visibility("default")))
#endif

struct mononn_call;
typedef struct mononn_host mononn_host;
typedef int (*mononn_entry)(const struct mononn_call *call, int worker);

/* One compiled function. */
typedef struct mononn_function {
  mononn_entry entry;
  const uint32_t *steps;        /* its code's mononn_steps: a launch for every phase; null: one for the whole run */
  uint64_t counters;            /* elements, each on its own MONONN_CACHE_LINE */
} mononn_function;

/* What a host is made for. Bytes unless a name says otherwise; of several functions the largest. */
typedef struct mononn_plan {
  uint32_t abi_version;
  uint32_t workers;
  uint64_t arena_bytes;
  uint64_t scratch_bytes;       /* of one worker: the stride of worker-local memory, a multiple of 64 */
  uint64_t spin_nanoseconds;    /* an idle worker spins this long before it sleeps */
  uint64_t functions;           /* how many, at least one */
} mononn_plan;

/* One set of buffers to run with; the caller keeps it, and everything it points to, alive. */
typedef struct mononn_binding {
  mononn_host *host;
  const void *const *inputs;    /* in manifest order, C-contiguous */
  void *const *outputs;
  uint64_t *trace;              /* [workers][executed phases][3] nanoseconds, or null */
  uint64_t function;            /* which of the host's, from 0 */
} mononn_binding;

/* Results of mononn_host_run beside 0 and the function's own error words (code | phase << 8 | value << 32). */
#define MONONN_HOST_FORKED 0xFEu  /* this process is a fork of the one that made the host: its workers are not here */
#define MONONN_HOST_STOPPED 0xFFu /* mononn_host_stop was called */
#define MONONN_HOST_UNKNOWN 0xFDu /* the host has no function of that number */

/* Null with errno set: no memory, no threads, or another ABI version or no function (EINVAL). functions are copied;
 * their code and the weights must outlive the host. */
MONONN_HOST_API mononn_host *mononn_host_create(const mononn_plan *plan, const mononn_function *functions, const void *weights);
MONONN_HOST_API uint64_t mononn_host_run(const mononn_binding *binding);
/* Waits for the run in progress and ends the workers; later runs are refused. */
MONONN_HOST_API void mononn_host_stop(mononn_host *host);
/* Stops and frees; nothing may use the host any more. */
MONONN_HOST_API void mononn_host_destroy(mononn_host *host);

/* Zeroed memory that starts on a huge page and asks for more of them; null if there is none. */
MONONN_HOST_API void *mononn_memory_create(uint64_t bytes);
MONONN_HOST_API void mononn_memory_destroy(void *memory, uint64_t bytes);

#ifdef __cplusplus
}
#endif
#endif
