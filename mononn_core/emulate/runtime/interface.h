// Between Python (launch.py) and the runtime: requests, events, counters. Every field is fixed in size.
#pragma once
#include <stdint.h>

enum mn_emu_flag {
  MN_EMU_SANITIZED = 1,       // the kernel calls the access hooks
  MN_EMU_EARLY_COPIES = 2,    // cp.async reads its source at issue (else a seeded coin decides; LATE: when waited for)
  MN_EMU_LATE_COPIES = 4,
  MN_EMU_RELAXED_ADD = 8,     // atomic_add orders nothing
  MN_EMU_RELAXED_LOAD = 16,   // load_acquire orders nothing
  MN_EMU_RELAXED_STORE = 32,  // store_release orders nothing
  MN_EMU_BANKS = 64,          // count bank conflicts of plain shared accesses
};

enum mn_emu_schedule { MN_EMU_RANDOM, MN_EMU_BLOCK_FIRST, MN_EMU_REVERSED, MN_EMU_STARVE_BLOCK, MN_EMU_STARVE_WARP };

enum mn_emu_range_flag { MN_EMU_READ_ONLY = 1, MN_EMU_UNWRITTEN = 2 };

struct mn_emu_range {
  uint64_t address, bytes;
  uint32_t flags, index;
};

enum mn_emu_kind {
  MN_EMU_RACE = 1,
  MN_EMU_DEADLOCK,
  MN_EMU_MISALIGNED,
  MN_EMU_BOUNDS,
  MN_EMU_POISON,       // read of memory that nobody has written
  MN_EMU_PENDING,      // access to the destination of a copy that nobody has waited for
  MN_EMU_CONVERGENCE,
  MN_EMU_CRASH,        // a signal
  MN_EMU_TIME,         // out of time
  MN_EMU_USAGE,        // a primitive was given something it does not take
  MN_EMU_SOURCE,       // the source of a copy under way was written
  MN_EMU_UNFENCED,     // a stage lands where a thread has stored without a stage_fence since
};

struct mn_emu_actor {
  uint64_t pc;  // 0 where unknown
  int32_t block, thread;
  uint32_t access, op;  // access: bits of mn_emu_access; op: the primitive, 0 for a plain access
};

enum mn_emu_access { MN_EMU_READ = 0, MN_EMU_WRITE = 1, MN_EMU_ATOMIC = 2, MN_EMU_COPY = 4 };

struct mn_emu_event {
  uint32_t kind, size;
  uint64_t address;  // 0 where none
  uint64_t value;    // deadlock: the value spun on; usage and convergence: a detail
  struct mn_emu_actor first, second;  // second: who is in conflict; its thread is -1 where nobody
};

#define MN_EMU_EVENTS 64
#define MN_EMU_BANK_PLACES 64

// Accesses to shared memory from one place: passes that they take without conflicts, and further ones.
struct mn_emu_bank {
  uint64_t pc, passes, extra;
};

struct mn_emu_result {
  uint64_t image, image_bytes;  // where the kernel's object is loaded: pc - image is an address in the file
  uint64_t shared, shared_stride;
  uint64_t barriers, warp_operations, copies, matrix_products, switches, accesses;
  uint64_t ldmatrix_passes, ldmatrix_conflicts, shared_accesses, shared_conflicts;
  uint32_t events, lost_events, banks, unused;
  struct mn_emu_bank bank[MN_EMU_BANK_PLACES];
  struct mn_emu_event event[MN_EMU_EVENTS];
};

struct mn_emu_request {
  uint64_t stacks, stacks_bytes;  // of mn_emu_new_stacks
  uint64_t entry;  // of the kernel
  uint64_t words, word_bytes;
  uint32_t iteration, blocks, threads, shared_bytes;
  uint32_t schedule, starved;
  uint64_t seed, milliseconds;
  uint32_t flags, ranges;
  uint64_t range;  // array of mn_emu_range
};
