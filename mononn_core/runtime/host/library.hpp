/* The C interface of an emitted network, behind its functions and the host runner in one C++ file. What is different in
 * every network stands before it (mononn_core/emit/library.py): what begins with MONONN_, and the tables functions_ and
 * tensors_.
 */
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#define MONONN_PASTE(a, b) a##_##b
#define MONONN_JOIN(a, b) MONONN_PASTE(a, b)
#define NAMED(what) MONONN_JOIN(MONONN_NAME, what)
#if defined(__x86_64__) && defined(__GNUC__)
/* Callers enter here: no instruction that an old processor lacks. */
#define MONONN_BASELINE __attribute__((noinline, target("no-sse3,no-avx,no-bmi,no-bmi2,no-lzcnt,no-movbe,no-popcnt")))
#else
#define MONONN_BASELINE __attribute__((noinline))
#endif

struct NAMED(session) {
  mononn_host *host;
  void *copy;   /* of the weights, in huge pages */
  void *mapped; /* their file */
};

namespace {

constexpr uint64_t SPIN_NANOSECONDS = 100000;
constexpr uint64_t FILE_HEADER = 64; /* of a weights file: magic, bytes, two checksums; then zeros */

#if !MONONN_WEIGHTS_INSIDE
/* Two sums of the 64-bit words w[0], w[1], ...: of w[i] and of (i + 1) w[i], modulo 2^64; the last word is filled up with
 * zeros. Any one altered word changes the first. */
struct Checksum {
  uint64_t plain, weighted;
};
Checksum checksum(const unsigned char *bytes, uint64_t count) {
  Checksum sum = {0, 0};
  for (uint64_t i = 0; i < count / 8; i++) {
    uint64_t word;
    memcpy(&word, bytes + i * 8, 8);
    sum.plain += word;
    sum.weighted += (i + 1) * word;
  }
  if (count % 8) {
    uint64_t word = 0;
    memcpy(&word, bytes + count / 8 * 8, count % 8);
    sum.plain += word;
    sum.weighted += (count / 8 + 1) * word;
  }
  return sum;
}

/* Maps the weights' file; null, with the reason in `problem`, where it is not this network's. */
const unsigned char *map_weights(NAMED(session) * session, const char *path, bool verify, const char **problem) {
  *problem = "there is no weights file; give the path of the one that was written beside the library";
  const int file = path ? open(path, O_RDONLY | O_CLOEXEC) : -1;
  if (file < 0) return nullptr;
  const off_t length = lseek(file, 0, SEEK_END);
  const uint64_t wanted = FILE_HEADER + MONONN_WEIGHT_BYTES;
  void *memory = MAP_FAILED;
  if ((uint64_t)length == wanted) memory = mmap(nullptr, wanted, PROT_READ, MAP_SHARED, file, 0);
  close(file);
  *problem = "the weights file has another length than this network's; copy it again";
  if (memory == MAP_FAILED) return nullptr;
  session->mapped = memory;
  uint64_t header[4];
  memcpy(header, memory, sizeof header);
  const uint64_t expected[4] = {MONONN_WEIGHTS_MAGIC, MONONN_WEIGHT_BYTES, MONONN_CHECKSUM, MONONN_WEIGHTED_CHECKSUM};
  *problem = "the weights file belongs to another network; give the one that was written beside the library";
  if (memcmp(header, expected, sizeof header)) return nullptr;
  const unsigned char *weights = (const unsigned char *)memory + FILE_HEADER;
  *problem = "the weights file was altered after it was written; copy it again";
  if (verify) {
    const Checksum found = checksum(weights, MONONN_WEIGHT_BYTES);
    if (found.plain != expected[2] || found.weighted != expected[3]) return nullptr;
  }
  *problem = nullptr;
  return weights;
}
#endif

void release(NAMED(session) * session) {
  if (session->host) mononn_host_destroy(session->host);
  if (session->copy) mononn_memory_destroy(session->copy, MONONN_WEIGHT_BYTES);
  if (session->mapped) munmap(session->mapped, FILE_HEADER + MONONN_WEIGHT_BYTES);
  free(session);
}

__attribute__((noinline)) NAMED(session) * start(const NAMED(options) * options, const char **problem) {
  NAMED(session) *session = (NAMED(session) *)calloc(1, sizeof *session);
  *problem = "there is no memory for a session";
  if (!session) return nullptr;
  const uint64_t flags = options ? options->flags : 0;
#if MONONN_WEIGHTS_INSIDE
  const unsigned char *weights = MONONN_WEIGHTS;
  *problem = nullptr;
#else
  const char *path = options ? options->weights : nullptr;
  const unsigned char *weights = map_weights(session, path, !(flags & NAMED(UNVERIFIED)), problem);
#endif
  if (weights && (flags & NAMED(PRIVATE))) {
    session->copy = mononn_memory_create(MONONN_WEIGHT_BYTES);
    if (session->copy) memcpy(session->copy, weights, MONONN_WEIGHT_BYTES);
    else *problem = "there is no memory for a copy of the weights";
    weights = (const unsigned char *)session->copy;
  }
  if (weights) {
    const uint32_t threads = options && options->threads ? options->threads : MONONN_THREADS;
    const mononn_plan plan = {MONONN_ABI_VERSION, threads,          MONONN_ARENA_BYTES, MONONN_SCRATCH_BYTES,
                              SPIN_NANOSECONDS,   NAMED(SHAPES)};
    session->host = mononn_host_create(&plan, functions_, weights);
    if (!session->host) *problem = "there is no memory, or there are no threads, for a session";
  }
  if (session->host) return session;
  release(session);
  return nullptr;
}

#if defined(__x86_64__)
struct Feature {
  uint32_t leaf, subleaf, reg, bit;
};
const struct {
  Feature feature;
  const char *sentence; /* where it is lacking; null ends the table */
} required_[] = {MONONN_REQUIRED{{0, 0, 0, 0}, nullptr}};

MONONN_BASELINE bool has(const Feature &feature) {
  uint32_t found[4], most, ignored[3];
  const uint32_t group = feature.leaf & 0x80000000u;
  asm volatile("cpuid" : "=a"(most), "=b"(ignored[0]), "=c"(ignored[1]), "=d"(ignored[2]) : "a"(group), "c"(0));
  if (most < feature.leaf) return false;
  asm volatile("cpuid"
               : "=a"(found[0]), "=b"(found[1]), "=c"(found[2]), "=d"(found[3])
               : "a"(feature.leaf), "c"(feature.subleaf));
  return found[feature.reg] >> feature.bit & 1;
}

/* Whether the system saves the vector registers that the code uses. */
MONONN_BASELINE bool keeps_registers() {
  if (!MONONN_REGISTERS) return true;
  if (!has({1, 0, 2, 27})) return false; /* OSXSAVE */
  uint32_t low, high;
  asm volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
  return (low & MONONN_REGISTERS) == MONONN_REGISTERS;
}

MONONN_BASELINE const char *lacking() {
  for (unsigned i = 0; required_[i].sentence; i++)
    if (!has(required_[i].feature)) return required_[i].sentence;
  return keeps_registers() ? nullptr : "the system does not save the vector registers that this library uses";
}
#else
const char *lacking() { return nullptr; }
#endif

}  // namespace

extern "C" {

MONONN_API const NAMED(tensor) * NAMED(input)(uint32_t shape, uint32_t index) {
  return shape < NAMED(SHAPES) && index < NAMED(INPUTS) ? &tensors_[shape][index] : nullptr;
}

MONONN_API const NAMED(tensor) * NAMED(output)(uint32_t shape, uint32_t index) {
  return shape < NAMED(SHAPES) && index < NAMED(OUTPUTS) ? &tensors_[shape][NAMED(INPUTS) + index] : nullptr;
}

MONONN_API MONONN_BASELINE NAMED(session) * NAMED(create)(const NAMED(options) * options, const char **problem) {
  const char *ignored;
  if (!problem) problem = &ignored;
  *problem = lacking();
  return *problem ? nullptr : start(options, problem);
}

MONONN_API uint64_t NAMED(run)(NAMED(session) * session, uint32_t shape, const void *const *inputs, void *const *outputs) {
  const mononn_binding binding = {session->host, inputs, outputs, nullptr, shape};
  return mononn_host_run(&binding);
}

MONONN_API const char *NAMED(problem)(uint64_t error) {
  switch (error & 0xff) {
    case 0: return nullptr;
    case MONONN_ERROR_INDEX: return "an index taken from the inputs is out of range";
    case MONONN_ERROR_TILES: return "the system lets this process use no tile registers (AMX)";
    case MONONN_HOST_UNKNOWN: return "there is no shape of that number";
    case MONONN_HOST_FORKED: return "this session belongs to the process that this one was forked from; create one here";
    case MONONN_HOST_STOPPED: return "this session is destroyed";
    default: return "the compiled function reported an error that it should not have";
  }
}

MONONN_API void NAMED(destroy)(NAMED(session) * session) {
  if (session) release(session);
}
}
