/* Opens a .mono file from C, without Python: a header alone (link with -ldl -pthread). docs/artifact.md has the format.
 *
 *   mononn_file file;
 *   const char *problem = mononn_file_open(&file, "model.mono", 0);   // null: fine; 0: as many workers as compiled for
 *   mononn_binding binding = {file.host, inputs, outputs, NULL, 0};   // 0: the first of the shapes it was compiled for
 *   uint64_t error = file.run(&binding);
 *   mononn_file_close(&file);
 *
 * A file of several shapes has a function for each, in the order they were given to the compiler:
 * mononn_file_tensor_bytes says what each reads and writes, and mononn_file_function finds one by that.
 *
 * A .mono file holds machine code: open only what you would run as a program. Digests are not compared here; `mononn
 * inspect FILE` does that.
 */
#ifndef MONONN_FILE_H
#define MONONN_FILE_H
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <dlfcn.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "mononn_host.h"

#define MONONN_FILE_MAGIC "\x93MONONN\n"
#define MONONN_FILE_VERSION 2

typedef struct mononn_file_header {
  char magic[8];
  uint32_t version;
  uint32_t sections; /* entries of the table that follows */
  uint64_t bytes;    /* of the whole file */
  uint64_t reserved;
  unsigned char digest[32];
} mononn_file_header;

typedef struct mononn_file_section {
  char name[16]; /* zero-padded: manifest, plan, texts, code, perhaps code:1 and so on, host, weights */
  uint64_t offset, bytes;
  unsigned char digest[32];
} mononn_file_section;

typedef struct mononn_file_plan {
  uint32_t abi_version, threads;
  uint64_t arena_bytes, scratch_bytes; /* of the function that needs most */
  uint32_t functions, inputs, outputs, reserved;
  uint64_t words[]; /* of every function: counters, then bytes of every input and output in the order of the call */
} mononn_file_plan;

typedef struct mononn_file {
  const char *memory; /* the mapped file */
  uint64_t bytes;
  const mononn_file_plan *plan;
  mononn_host *host;
  uint64_t (*run)(const mononn_binding *binding);
  void (*destroy)(mononn_host *host);
  void *weights; /* a copy in huge pages, 64-byte aligned */
  uint64_t weight_bytes;
  void (*release)(void *memory, uint64_t bytes);
  void **code_libraries; /* of every function */
  void *host_library;
} mononn_file;

static const void *mononn_file_find(const mononn_file *file, const char *name, uint64_t *bytes) {
  const mononn_file_header *header = (const mononn_file_header *)file->memory;
  const mononn_file_section *section = (const mononn_file_section *)(header + 1);
  for (uint32_t i = 0; i < header->sections; i++, section++) {
    if (strncmp(section->name, name, sizeof section->name)) continue;
    if (bytes) *bytes = section->bytes;
    return file->memory + section->offset;
  }
  return NULL;
}

/* Loads a section as a shared object, through a file in memory. Its descriptor stays open: the loader knows an object
 * by its name. */
static void *mononn_file_library(const mononn_file *file, const char *name) {
  uint64_t bytes = 0;
  const char *code = (const char *)mononn_file_find(file, name, &bytes);
  const int descriptor = code ? memfd_create(name, MFD_CLOEXEC) : -1;
  if (descriptor < 0) return NULL;
  while (bytes) {
    const ssize_t written = write(descriptor, code, bytes);
    if (written <= 0) return NULL;
    code += written, bytes -= (uint64_t)written;
  }
  char path[64];
  snprintf(path, sizeof path, "/proc/self/fd/%d", descriptor);
  return dlopen(path, RTLD_NOW | RTLD_LOCAL);
}

static void mononn_file_close(mononn_file *file) {
  if (file->host) file->destroy(file->host);
  if (file->weights) file->release(file->weights, file->weight_bytes);
  for (uint32_t i = 0; file->code_libraries && i < file->plan->functions; i++)
    if (file->code_libraries[i]) dlclose(file->code_libraries[i]);
  free(file->code_libraries);
  if (file->host_library) dlclose(file->host_library);
  if (file->memory) munmap((void *)file->memory, file->bytes);
  memset(file, 0, sizeof *file);
}

/* What function `which` says of itself in the plan: its counters, then the bytes of its tensors. */
static const uint64_t *mononn_file_words(const mononn_file *file, uint64_t which) {
  return file->plan->words + which * (1 + file->plan->inputs + file->plan->outputs);
}

/* Bytes of every input, then of every output of a function, in the order of the call. */
static inline const uint64_t *mononn_file_tensor_bytes(const mononn_file *file, uint64_t which) {
  return mononn_file_words(file, which) + 1;
}

/* The first function whose inputs have these bytes, in the order of the call; the number of functions where none has. */
static inline uint64_t mononn_file_function(const mononn_file *file, const uint64_t *input_bytes) {
  uint64_t which = 0;
  const uint64_t size = file->plan->inputs * sizeof *input_bytes;
  while (which < file->plan->functions && memcmp(mononn_file_tensor_bytes(file, which), input_bytes, size)) which++;
  return which;
}

/* What is wrong, or null. Fills the functions, which the host copies. */
static const char *mononn_file_functions(mononn_file *file, mononn_function *functions) {
  for (uint32_t i = 0; i < file->plan->functions; i++) {
    char name[16];
    snprintf(name, sizeof name, i ? "code:%u" : "code", i);
    void *library = file->code_libraries[i] = mononn_file_library(file, name);
    if (!library) return "its code cannot be loaded here";
    *(void **)&functions[i].entry = dlsym(library, "mononn_run");
    functions[i].steps = (const uint32_t *)dlsym(library, "mononn_steps");
    functions[i].counters = *mononn_file_words(file, i);
    if (!functions[i].entry) return "its code lacks a function";
  }
  return NULL;
}

/* What is wrong, or null. */
static const char *mononn_file_start(mononn_file *file, uint32_t workers) {
  const mononn_file_header *header = (const mononn_file_header *)file->memory;
  if (file->bytes < sizeof *header || memcmp(header->magic, MONONN_FILE_MAGIC, 8)) return "no .mono file";
  if (header->version != MONONN_FILE_VERSION) return "another format version";
  if (header->bytes != file->bytes) return "truncated";
  file->plan = (const mononn_file_plan *)mononn_file_find(file, "plan", NULL);
  file->host_library = mononn_file_library(file, "host");
  if (!file->plan || !file->host_library) return "its code cannot be loaded here";

  mononn_host *(*create)(const mononn_plan *, const mononn_function *, const void *);
  void *(*reserve)(uint64_t bytes);
  *(void **)&create = dlsym(file->host_library, "mononn_host_create");
  *(void **)&file->run = dlsym(file->host_library, "mononn_host_run");
  *(void **)&file->destroy = dlsym(file->host_library, "mononn_host_destroy");
  *(void **)&reserve = dlsym(file->host_library, "mononn_memory_create");
  *(void **)&file->release = dlsym(file->host_library, "mononn_memory_destroy");
  if (!create || !file->run || !file->destroy || !reserve || !file->release) return "its code lacks a function";

  const void *weights = mononn_file_find(file, "weights", &file->weight_bytes);
  file->weights = reserve(file->weight_bytes);
  if (!weights || !file->weights) return "no memory for its weights";
  memcpy(file->weights, weights, file->weight_bytes);

  const mononn_file_plan *plan = file->plan;
  const mononn_plan wanted = {plan->abi_version,   workers ? workers : plan->threads, plan->arena_bytes,
                              plan->scratch_bytes, 100000,                            plan->functions};
  mononn_function *functions = (mononn_function *)calloc(plan->functions, sizeof *functions);
  file->code_libraries = (void **)calloc(plan->functions, sizeof *file->code_libraries);
  const char *problem = functions && file->code_libraries ? mononn_file_functions(file, functions) : "no memory for it";
  if (!problem && !(file->host = create(&wanted, functions, file->weights))) problem = "no memory or threads for it";
  free(functions);
  return problem;
}

/* What is wrong, or null. workers 0: as many as the file was compiled for. */
static const char *mononn_file_open(mononn_file *file, const char *path, uint32_t workers) {
  memset(file, 0, sizeof *file);
  const int descriptor = open(path, O_RDONLY | O_CLOEXEC);
  struct stat about;
  if (descriptor < 0 || fstat(descriptor, &about)) return "cannot be read";
  file->bytes = (uint64_t)about.st_size;
  void *memory = mmap(NULL, file->bytes, PROT_READ, MAP_PRIVATE, descriptor, 0);
  close(descriptor);
  if (memory == MAP_FAILED) return "cannot be mapped";
  file->memory = (const char *)memory;
  const char *problem = mononn_file_start(file, workers);
  if (problem) mononn_file_close(file);
  return problem;
}

#endif
