// The emulator's data: a launch is blocks of warps of fibers; each fiber is one CUDA thread on its own small stack.
#pragma once
#include <setjmp.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "interface.h"

namespace emu {

constexpr int kLanes = 32;
constexpr int kNamedBarriers = 16;
constexpr size_t kStackBytes = 64 << 10, kGuardBytes = 4 << 10;
constexpr size_t kMostGuards = 24576;  // of 65530 mappings that Linux lets a process have, two each

enum class Wait : uint8_t { ready, warp, block, some, parked, paused, exited };
enum class Op : uint8_t { none, sync_warp, shuffle, shuffle_xor, ldmatrix, ldmatrix_trans, mma_f16, mma_bf16, mma_tf32,
                          sync_block, sync_some, load_acquire, pause, stage_copy, stage_wait, load, exit };

// A vector that needs no C++ library; holds plain data only.
template <class T> struct List {
  T *data = nullptr;
  uint32_t count = 0, capacity = 0;
  T &operator[](uint32_t i) { return data[i]; }
  T *begin() { return data; }
  T *end() { return data + count; }
  T &push(const T &item) {
    if (count == capacity) {
      capacity = capacity ? 2 * capacity : 8;
      data = static_cast<T *>(realloc(static_cast<void *>(data), capacity * sizeof(T)));
      if (!data) abort();
    }
    return data[count++] = item;
  }
  void clear() { count = 0; }
  void release() {
    free(data);
    data = nullptr;
    count = capacity = 0;
  }
};

struct View;
struct Block;
struct Warp;

// A cp.async under way, or a copier's share of a stage.
struct Copy {
  unsigned char *to;
  const unsigned char *from;
  uint32_t size, bytes;    // size at the destination, of which ``bytes`` come from the source and zeros follow
  uint32_t group;
  bool early;              // the source is read at issue
  uint64_t source_version; // what the shadow of the source was at issue
  uint64_t issued;         // the epoch
  uintptr_t pc;
  unsigned char data[16];
};

// An access to shared memory, for the count of bank conflicts.
struct BankAccess {
  uintptr_t pc;
  uint32_t offset, size;
};

struct Fiber {
  void *stack_pointer;
  Warp *warp;
  Block *block;
  int block_index, thread, lane;
  Wait wait;
  Op op;
  uintptr_t site;  // where the primitive it waits in was called
  // the last acquire load, to know a spin
  const uint32_t *spun;
  uint32_t spun_value, some_id;
  uint64_t writes_seen;
  // happens-before
  uint64_t clock, fenced;  // fenced: of the last stage_fence
  View *view, *fence_release, *fence_acquire;
  // copies: [head, count) are under way
  List<Copy> copies;
  uint32_t copies_head, group;
  List<BankAccess> bank_log;  // since the warp last met
};

struct Warp {
  Fiber *fibers;
  Block *block;
  int index;       // in the grid
  uint32_t ready;  // lanes that can run
  uint32_t live;   // lanes that have not left the kernel
  // the rendezvous under way
  uint32_t arrived;
  Op op;
  uintptr_t site;
  int argument;
  uint64_t in[kLanes], out[kLanes][2];
  float sums[kLanes][4];
  uint32_t registers[kLanes][6];
  uint32_t rotation;
};

struct Some {
  uint32_t arrived, count;
};

// What lands on one word of shared memory, and how often it has.
struct Stage {
  uint64_t *landed;
  uint32_t copiers, arrived;
  uint32_t owns[32];  // bit set of the copiers that have arrived
  uint64_t done;
  View *view;  // what they knew
  List<Copy> copies;
};

struct Block {
  Warp *warps;
  int index;
  unsigned char *shared;
  uint32_t arrived, live;
  Some some[kNamedBarriers];
  List<Stage> stages;
};

struct Emulator {
  unsigned char *stacks = nullptr, *shared = nullptr;
  size_t stacks_bytes = 0, shared_bytes = 0, shared_stride = 0;
  // this launch
  const mn_emu_request *request = nullptr;
  mn_emu_result *result = nullptr;
  Fiber *fibers = nullptr;
  Warp *warps = nullptr;
  Block *blocks = nullptr;
  uint32_t block_count = 0, threads = 0, warp_count = 0, warps_per_block = 0, fiber_count = 0, live = 0;
  uint64_t *ready = nullptr;  // bit set of warps with a lane that can run
  uint32_t ready_words = 0;
  uint64_t random = 1;
  uint64_t writes = 0;    // of atomics and releases: what may end a spin
  uint64_t progress = 0;  // of anything but a spin
  uint64_t time = 0;      // nanoseconds, invented
  uint32_t parked = 0, paused = 0;
  uintptr_t last_read = 0, last_pc = 0;  // of a plain load, to know a spin
  uint32_t same_reads = 0;
  void *scheduler = nullptr;  // its stack pointer
  bool stopped = false;
  volatile bool expired = false;  // set by a signal
  jmp_buf out;
};

inline Emulator *E = nullptr;      // the launch under way
inline Fiber *current = nullptr;   // the fiber that runs

inline bool asked(uint32_t flag) { return E->request->flags & flag; }

inline uint64_t next_random() {  // xorshift64*
  uint64_t x = E->random;
  x ^= x >> 12, x ^= x << 25, x ^= x >> 27;
  E->random = x;
  return x * 2685821657736338717ull;
}

#define CALLER reinterpret_cast<uintptr_t>(__builtin_return_address(0))
#define EXPORT extern "C" __attribute__((visibility("default"), noinline))

}  // namespace emu
