// What the emulator's mononn_ptx.cuh declares.
#pragma once
#include "stages.hpp"

using namespace emu;

struct Words4 { uint32_t r[4]; };
struct Floats4 { float r[4]; };

EXPORT float mn_emu_f16_to_float(uint16_t bits) { return f16_to_float(bits); }
EXPORT uint16_t mn_emu_float_to_f16(float v) { return float_to_f16(v); }
EXPORT uint16_t mn_emu_float_to_bf16(float v) { return float_to_bf16(v); }
EXPORT uint32_t mn_emu_float_to_tf32(float v) { return float_to_tf32(v); }
EXPORT unsigned char *mn_emu_shared_memory() { return current->block->shared; }
EXPORT int mn_emu_thread() { return current->thread; }
EXPORT int mn_emu_block() { return current->block_index; }
EXPORT int mn_emu_blocks() { return static_cast<int>(E->block_count); }
EXPORT void mn_emu_sync_block() { sync_block(CALLER); }
EXPORT void mn_emu_sync_warp() { meet(Op::sync_warp, 0, CALLER); }
EXPORT void mn_emu_sync_some(int id, int count) { sync_some(id, count, CALLER); }
EXPORT uint64_t mn_emu_shuffle(uint64_t bits, int lane, int exclusive) { return shuffle(bits, lane, exclusive, CALLER); }
EXPORT uint32_t mn_emu_shared_address(const void *p) {
  return static_cast<uint32_t>(static_cast<const unsigned char *>(p) - current->block->shared);
}
EXPORT void mn_emu_copy(void *to, const void *from, int size, int bytes) {
  copy_issue(to, from, static_cast<uint32_t>(size), static_cast<uint32_t>(bytes), CALLER);
}
EXPORT void mn_emu_copy_commit() { ++current->group; }
EXPORT void mn_emu_copy_wait(int groups) { copy_wait(static_cast<uint32_t>(groups)); }
EXPORT void mn_emu_stage_open(uint64_t *landed, int copiers) { stage_open(landed, static_cast<uint32_t>(copiers), CALLER); }
EXPORT void mn_emu_stage_copy(void *to, const void *from, int bytes, uint64_t *landed, int own, int copiers) {
  stage_copy(static_cast<unsigned char *>(to), static_cast<const unsigned char *>(from), static_cast<uint32_t>(bytes),
             landed, static_cast<uint32_t>(own), static_cast<uint32_t>(copiers), CALLER);
}
EXPORT void mn_emu_stage_wait(const uint64_t *landed, uint32_t parity) { stage_wait(landed, parity, CALLER); }
EXPORT void mn_emu_stage_fence() { stage_fence(); }
EXPORT void mn_emu_fence() { clocks_fence(); }
EXPORT uint32_t mn_emu_atomic_add(uint32_t *p, uint32_t v) { return atomic_add(p, v, asked(MN_EMU_RELAXED_ADD), CALLER); }
EXPORT uint32_t mn_emu_atomic_add_relaxed(uint32_t *p, uint32_t v) { return atomic_add(p, v, true, CALLER); }
EXPORT uint32_t mn_emu_load_acquire(const uint32_t *p) { return load_acquire(p, CALLER); }
EXPORT void mn_emu_store_release(uint32_t *p, uint32_t v) { store_release(p, v, CALLER); }
EXPORT void mn_emu_set_once(uint64_t *p, uint64_t word) { set_once(p, word, CALLER); }
EXPORT void mn_emu_prefetch(const void *) {}
// Time goes on when nanoseconds are asked for; every block counts cycles from a start of its own, as multiprocessors do.
EXPORT uint64_t mn_emu_global_time() { return E->time += 32; }
EXPORT uint64_t mn_emu_cycles() { return 2 * E->time + 1000003ull * static_cast<uint64_t>(current->block_index); }
EXPORT void mn_emu_pause() { pause_fiber(CALLER); }

EXPORT Words4 mn_emu_ldmatrix(const void *row, int count, int transposed) {
  Fiber *me = current;
  me->warp->in[me->lane] = reinterpret_cast<uint64_t>(row);
  meet(transposed ? Op::ldmatrix_trans : Op::ldmatrix, count, CALLER);
  const uint32_t *r = me->warp->registers[me->lane];
  return {{r[0], r[1], r[2], r[3]}};
}

#define MN_EMU_MMA(name)                                                                                            \
  EXPORT Floats4 mn_emu_##name(float d0, float d1, float d2, float d3, uint32_t a0, uint32_t a1, uint32_t a2,       \
                               uint32_t a3, uint32_t b0, uint32_t b1) {                                             \
    Fiber *me = current;                                                                                            \
    float *sums = me->warp->sums[me->lane];                                                                         \
    uint32_t *r = me->warp->registers[me->lane];                                                                    \
    sums[0] = d0, sums[1] = d1, sums[2] = d2, sums[3] = d3;                                                         \
    r[0] = a0, r[1] = a1, r[2] = a2, r[3] = a3, r[4] = b0, r[5] = b1;                                               \
    meet(Op::name, 0, CALLER);                                                                                      \
    return {{sums[0], sums[1], sums[2], sums[3]}};                                                                  \
  }
MN_EMU_MMA(mma_f16)
MN_EMU_MMA(mma_bf16)
MN_EMU_MMA(mma_tf32)
