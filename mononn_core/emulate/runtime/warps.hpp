// Warp primitives: a rendezvous of all 32 lanes; the last to come does the work. None but sync_warp orders memory.
#pragma once
#include "copies.hpp"
#include "fragments.hpp"
#include "numeric.hpp"

namespace emu {

// The float32 next to ``x`` on the side of zero.
inline float toward_zero(double x) {
  float nearest = static_cast<float>(x);
  bool beyond = __builtin_isfinite(nearest) && __builtin_fabs(static_cast<double>(nearest)) > __builtin_fabs(x);
  return beyond ? bits_float(float_bits(nearest) - 1) : nearest;
}

inline void multiply(Warp *warp, Op op) {
  constexpr int M = 16, N = 8;
  static float a[M][16], b[16][N];
  static double d[M][N];
  bool narrow = op == Op::mma_tf32;
  int depth = narrow ? 8 : 16;
  for (int lane = 0; lane < kLanes; ++lane) {
    const uint32_t *r = warp->registers[lane];
    for (int e = 0; e < 4; ++e) d[mma_c[lane][e].row][mma_c[lane][e].column] = warp->sums[lane][e];
    if (narrow) {
      for (int e = 0; e < 4; ++e) a[mma_tf32_a[lane][e].row][mma_tf32_a[lane][e].column] = bits_float(r[e] & 0xffffe000);
      for (int e = 0; e < 2; ++e)
        b[mma_tf32_b[lane][e].row][mma_tf32_b[lane][e].column] = bits_float(r[4 + e] & 0xffffe000);
      continue;
    }
    auto value = [&](int e) {
      uint16_t half = static_cast<uint16_t>(r[e / 2] >> (e % 2 * 16));
      return op == Op::mma_f16 ? f16_to_float(half) : bits_float(static_cast<uint32_t>(half) << 16);
    };
    for (int e = 0; e < 8; ++e) a[mma_16_a[lane][e].row][mma_16_a[lane][e].column] = value(e);
    for (int e = 0; e < 4; ++e) b[mma_16_b[lane][e].row][mma_16_b[lane][e].column] = value(8 + e);
  }
  // The ISA leaves open how sums are rounded. What an H200 answers is nearest to an exact sum cut off toward zero (see
  // tests/core/emulate/test_conformance.py), so long sums that stay in the unit come out too small.
  for (int m = 0; m < M; ++m)
    for (int k = 0; k < depth; ++k)
      for (int n = 0; n < N; ++n) d[m][n] += static_cast<double>(a[m][k]) * b[k][n];
  for (int lane = 0; lane < kLanes; ++lane)
    for (int e = 0; e < 4; ++e) warp->sums[lane][e] = toward_zero(d[mma_c[lane][e].row][mma_c[lane][e].column]);
  ++E->result->matrix_products;
}

// The 8 rows of one matrix are read together: 16 bytes each of 32 banks of 4 bytes.
inline void count_row_conflicts(const uint64_t *rows, uintptr_t pc) {
  uint32_t most = 0;
  for (int i = 0; i < 8; ++i) {
    uint32_t same = 0;
    for (int k = 0; k < 8; ++k) same += rows[k] / 16 % 8 == rows[i] / 16 % 8 && rows[k] != rows[i];
    if (same > most) most = same;
  }
  count_banks(pc, 1, most, &E->result->ldmatrix_passes, &E->result->ldmatrix_conflicts);
}

inline void load_matrices(Warp *warp, int count, bool transposed, uintptr_t pc) {
  uintptr_t base = reinterpret_cast<uintptr_t>(warp->block->shared);
  Fiber *last = current;
  for (int i = 0; i < count * 8; ++i) {
    uint64_t row = warp->in[i];
    current = &warp->fibers[i];  // whose address it is
    uint32_t problem = row % 16 ? MN_EMU_MISALIGNED
                       : row < base || row + 16 > base + E->request->shared_bytes ? MN_EMU_BOUNDS : 0;
    if (problem) {
      report(problem, row, 16, 16, actor(current, pc, MN_EMU_READ, warp->op), nobody());
      current = last;
      stop();
    }
  }
  current = last;
  for (int matrix = 0; matrix < count; ++matrix) {
    const uint64_t *rows = &warp->in[matrix * 8];
    count_row_conflicts(rows, pc);
    for (int lane = 0; lane < kLanes; ++lane) {
      uint32_t halves[2];
      for (int e = 0; e < 2; ++e) {
        Place at = transposed ? ldmatrix_trans[lane][e] : ldmatrix[lane][e];
        uintptr_t from = rows[at.row] + at.column * 2u;
        uint16_t half;
        memcpy(&half, reinterpret_cast<const void *>(from), 2);
        halves[e] = half;
      }
      warp->registers[lane][matrix] = halves[0] | halves[1] << 16;
    }
  }
  // Lane i reads the row that it names; each lane must be ordered after who wrote what it gets.
  for (int i = 0; i < count * 8; ++i) {
    current = &warp->fibers[i];
    access(warp->in[i], 16, MN_EMU_READ, pc, warp->op);
  }
  for (int matrix = 0; matrix < count; ++matrix)
    for (int lane = 0; lane < kLanes; ++lane)
      for (int e = 0; e < (transposed ? 2 : 1); ++e) {
        Place at = transposed ? ldmatrix_trans[lane][e] : ldmatrix[lane][e];
        uintptr_t from = warp->in[matrix * 8 + at.row] + at.column * 2u;
        check_read(&warp->fibers[lane], from, transposed ? 2 : 4, pc, warp->op);
      }
  current = last;
}

inline void complete(Warp *warp, uintptr_t pc) {
  switch (warp->op) {
    case Op::sync_warp: clocks_warp(warp); break;
    case Op::shuffle:
      for (int i = 0; i < kLanes; ++i) warp->out[i][0] = warp->in[warp->registers[i][0] & 31];
      break;
    case Op::shuffle_xor:
      for (int i = 0; i < kLanes; ++i) warp->out[i][0] = warp->in[(i ^ warp->registers[i][0]) & 31];
      break;
    case Op::ldmatrix: load_matrices(warp, warp->argument, false, pc); break;
    case Op::ldmatrix_trans: load_matrices(warp, warp->argument, true, pc); break;
    default: multiply(warp, warp->op); break;
  }
}

// All lanes meet: same primitive, same call, same immediate argument.
inline void meet(Op op, int argument, uintptr_t pc) {
  Warp *warp = current->warp;
  uint32_t bit = 1u << current->lane;
  if (warp->arrived) {
    if (warp->op != op || warp->site != pc || warp->argument != argument) {
      Fiber *other = &warp->fibers[__builtin_ctz(warp->arrived)];
      stop_with(MN_EMU_CONVERGENCE, 0, 0, 0, pc, 0, op, actor(other, other->site, 0, other->op));
    }
  } else {
    warp->op = op, warp->site = pc, warp->argument = argument;
  }
  warp->arrived |= bit;
  if (warp->arrived != ~0u) {
    set_waiting(current, Wait::warp, op, pc);
    // nobody of this warp can still come: those who are missing wait elsewhere or have left
    for (int lane = 0; !warp->ready && lane < kLanes; ++lane) {
      Fiber *other = &warp->fibers[lane];
      if (other->wait == Wait::exited || other->wait == Wait::block || other->wait == Wait::some)
        stop_with(MN_EMU_CONVERGENCE, 0, 0, 0, pc, 0, op, actor(other, other->site, 0, other->op));
    }
    give_way();
    return;
  }
  complete(warp, pc);
  bank_meet(warp);
  warp->arrived = 0;
  ++E->result->warp_operations, ++E->progress;
  for (int lane = 0; lane < kLanes; ++lane) warp->fibers[lane].wait = Wait::ready;
  warp->ready = ~0u;
  E->ready[warp->index >> 6] |= 1ull << (warp->index & 63);
}

inline uint64_t shuffle(uint64_t value, int lane, bool exclusive, uintptr_t pc) {
  Fiber *me = current;
  me->warp->in[me->lane] = value, me->warp->registers[me->lane][0] = static_cast<uint32_t>(lane);
  meet(exclusive ? Op::shuffle_xor : Op::shuffle, 0, pc);
  return me->warp->out[me->lane][0];
}

}  // namespace emu
