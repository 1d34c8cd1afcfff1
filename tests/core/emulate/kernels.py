"""Small kernels written by hand above the primitives, correct, to be run as they are and with one fault planted."""

from __future__ import annotations

import struct
from typing import Any

import numpy as np

from mononn_core.emulate import Emulated, Report, Watch

SCHEDULES = ("random:1", "random:2", "block-first", "reversed", "starve:0", "starve:1", "starve-warp:1")

GRID = r"""
#include "mononn_ptx.cuh"
using namespace mn;
struct Call { float *out; const float *in; uint32_t *sync; uint64_t *error; };

// All blocks; the highest bit of the word flips when the last one has come.
MN_DEVICE void grid_sync(uint32_t *sync) {
  sync_block();
  if (thread() == 0) {
    fence_gpu();  // entry
    uint32_t share = block() == 0 ? 0x80000000u - (blocks() - 1) : 1u;
    uint32_t old = atomic_add(sync, share);
    while (!((load_acquire(sync) ^ old) & 0x80000000u)) pause(32);
    fence_gpu();  // exit
  }
  sync_block();
}

// Row sums of in[blocks][128], a grid barrier, everybody adds all rows; twice.
extern "C" __global__ void __launch_bounds__(128) grid(const __grid_constant__ Call call) {
  float *slots = (float *)shared_memory();
  float *rows = call.out, *totals = call.out + 64;
  int t = thread(), lane = t % 32;
  for (int round = 0; round < 2; ++round) {
    float v = call.in[block() * 128 + t] + round;
    MN_UNROLL
    for (int m = 16; m; m >>= 1) v += shuffle_xor(v, m);
    if (lane == 0) slots[t / 32] = v;
    sync_block();  // slots are full
    if (t == 0) rows[block()] = slots[0] + slots[1] + slots[2] + slots[3];
    grid_sync(call.sync);  // rows are full
    float sum = 0;
    for (int b = 0; b < blocks(); ++b) sum += rows[b];
    totals[(round * blocks() + block()) * 128 + t] = sum;
    grid_sync(call.sync);  // rows are read
  }
}

// Block 0 makes a row, tells a counter; the others wait for the counter and copy the row.
extern "C" __global__ void __launch_bounds__(128) counter(const __grid_constant__ Call call) {
  float *row = call.out, *copies = call.out + 128;
  int t = thread();
  if (block() == 0) {
    row[t] = call.in[t] * 2;
    sync_block();  // the row is full
    if (t == 0) atomic_add(call.sync, 1u);
    return;
  }
  if (t == 0)
    while (load_acquire(call.sync) < 1u) pause(32);
  sync_block();  // the wait is over
  copies[(block() - 1) * 128 + t] = row[127 - t];
}
"""

# c[32][16 * warps] = a[32][64] b[64][16 * warps], f16 in, f32 out: cp.async with two stages, ldmatrix, mma.
PRODUCT = r"""
#include "mononn_ptx.cuh"
using namespace mn;
struct Call { float *c; const f16 *a; const f16 *b; uint64_t depth; };
constexpr int M = 32, N = 64, K = 16, STAGES = 2, THREADS = 128;
constexpr int A_ROW = K + 8, B_ROW = N + 8;  // padded: no bank conflicts
constexpr int STAGE = M * A_ROW + K * B_ROW;

MN_DEVICE void request(f16 *stage, const Call &call, int step) {
  int t = thread();
  if (t < M * K / 8) cp_async_16(stage + t / 2 * A_ROW + t % 2 * 8, call.a + t / 2 * call.depth + step * K + t % 2 * 8);
  f16 *b = stage + M * A_ROW;
  cp_async_16(b + t / 8 * B_ROW + t % 8 * 8, call.b + (step * K + t / 8) * N + t % 8 * 8);
}

extern "C" __global__ void __launch_bounds__(THREADS) product(const __grid_constant__ Call call) {
  f16 *shared = (f16 *)shared_memory();
  int steps = (int)call.depth / K, t = thread(), lane = t % 32, column = t / 32 * 16;
  float d[2][2][4] = {};
  request(shared, call, 0);
  cp_async_commit();  // the first stage
  for (int step = 0; step < steps; ++step) {
    if (step + 1 < steps) request(shared + (step + 1) % STAGES * STAGE, call, step + 1);
    cp_async_commit();  // the next stage
    cp_async_wait<1>();
    sync_block();  // the stage is there
    const f16 *a = shared + step % STAGES * STAGE, *b = a + M * A_ROW;
    uint32_t rb[4];
    ldmatrix_x4_trans(rb, b + lane % 16 * B_ROW + column + lane / 16 * 8);
    MN_UNROLL
    for (int m = 0; m < 2; ++m) {
      uint32_t ra[4];
      ldmatrix_x4(ra, a + (m * 16 + lane % 16) * A_ROW + lane / 16 * 8);
      MN_UNROLL
      for (int n = 0; n < 2; ++n) {
        uint32_t pair_b[2] = {rb[2 * n], rb[2 * n + 1]};
        mma_16<f16>(d[m][n], ra, pair_b);
      }
    }
    sync_block();  // the stage is read
  }
  MN_UNROLL
  for (int m = 0; m < 2; ++m)
    MN_UNROLL
    for (int n = 0; n < 2; ++n)
      MN_UNROLL
      for (int e = 0; e < 4; ++e)
        call.c[(m * 16 + lane / 4 + e / 2 * 8) * N + column + n * 8 + lane % 4 * 2 + e % 2] = d[m][n][e];
}
"""

# Each warp turns a row around through shared memory; pairs of warps then swap rows by a named barrier.
WARPS = r"""
#include "mononn_ptx.cuh"
using namespace mn;
struct Call { float *out; const float *in; uint64_t a, b; };
extern "C" __global__ void __launch_bounds__(128) warps(const __grid_constant__ Call call) {
  quad *mine = (quad *)shared_memory() + thread() / 32 * 32;
  int t = thread(), lane = t % 32, warp = t / 32;
  const float *row = call.in + warp * 128;
  for (int i = 0; i < 2; ++i) {
    mine[lane] = *(const quad *)(row + lane * 4);
    sync_warp();  // the row is there
    quad turned = mine[31 - lane];
    sync_warp();  // the row is read
    turned.x = float_bits(bits_float(turned.x) + i);
    mine[lane] = turned;
    sync_some(1 + warp / 2, 64);  // both rows are there
    quad other = ((quad *)shared_memory())[(warp ^ 1) * 32 + lane];
    *(quad *)(call.out + (i * 4 + warp) * 128 + lane * 4) = other;
    float first = shuffle(bits_float(other.x), 5);
    if (first < 0) call.out[0] = first;
    sync_some(1 + warp / 2, 64);  // both rows are read
  }
}
"""


def _aligned(shape: tuple[int, ...], dtype: type) -> np.ndarray:
    """Zeros at an address that is a multiple of 128."""
    size = int(np.prod(shape)) * np.dtype(dtype).itemsize
    raw = np.zeros(size + 128, np.uint8)
    start = -raw.ctypes.data % 128
    return raw[start : start + size].view(dtype).reshape(shape)


def watch(name: str, array: np.ndarray, **flags: bool) -> Watch:
    return Watch(array.ctypes.data, array.nbytes, name, **flags)


class Case:
    """A kernel with its buffers: ``run`` launches it and says whether the numbers are right."""

    def __init__(self, source: str, kernel: str) -> None:
        self.source, self.kernel = source, kernel

    def run(self, emulated: Emulated, schedule: str, *, suffix: str = "", **options: object) -> tuple[Report, bool]:
        """Launches the kernel, or its copy with a suffix: what was found, and whether the numbers are right."""
        emulated.reset()
        return getattr(self, f"_run_{self.kernel}")(emulated, self.kernel + suffix, schedule=schedule, **options)

    def _run_grid(self, emulated: Emulated, kernel: str, **options: Any) -> tuple[Report, bool]:
        blocks = 4
        given, out, sync = (
            _aligned(s, t) for s, t in (((blocks, 128), np.float32), ((64 + 8 * 128,), np.float32), ((32,), np.uint32))
        )
        given[:] = np.arange(blocks * 128).reshape(blocks, 128)
        words = struct.pack("<4Q", out.ctypes.data, given.ctypes.data, sync.ctypes.data, 0)
        watched = [watch("out", out, unwritten=True), watch("in", given, read_only=True), watch("sync", sync)]
        report = emulated.launch(kernel, words, blocks, 128, 16, watch=watched, **options)
        expected = np.repeat([given.sum(), given.sum() + blocks * 128], blocks * 128)
        return report, bool((out[64:] == expected).all())

    def _run_counter(self, emulated: Emulated, kernel: str, **options: Any) -> tuple[Report, bool]:
        blocks = 4
        given, out, sync = (_aligned(s, t) for s, t in (((128,), np.float32), ((512,), np.float32), ((32,), np.uint32)))
        given[:] = np.arange(128)
        words = struct.pack("<4Q", out.ctypes.data, given.ctypes.data, sync.ctypes.data, 0)
        watched = [watch("out", out, unwritten=True), watch("in", given, read_only=True), watch("sync", sync)]
        report = emulated.launch(kernel, words, blocks, 128, 0, watch=watched, **options)
        return report, bool((out[128:].reshape(3, 128) == given[::-1] * 2).all())

    def _run_product(self, emulated: Emulated, kernel: str, **options: Any) -> tuple[Report, bool]:
        depth = 64
        random = np.random.default_rng(0)
        a, b, c = _aligned((32, depth), np.float16), _aligned((depth, 64), np.float16), _aligned((32, 64), np.float32)
        a[:], b[:] = random.standard_normal(a.shape), random.standard_normal(b.shape)
        words = struct.pack("<4Q", c.ctypes.data, a.ctypes.data, b.ctypes.data, depth)
        watched = [watch("c", c, unwritten=True), watch("a", a, read_only=True), watch("b", b, read_only=True)]
        shared = 2 * (32 * 24 + 16 * 72) * 2
        report = emulated.launch(kernel, words, 1, 128, shared, watch=watched, **options)
        return report, bool(np.allclose(c, a.astype(np.float64) @ b.astype(np.float64), atol=1e-4))

    def _run_warps(self, emulated: Emulated, kernel: str, **options: Any) -> tuple[Report, bool]:
        given, out = _aligned((4, 32, 4), np.float32), _aligned((2, 4, 32, 4), np.float32)
        given[:] = np.arange(512).reshape(4, 32, 4)
        words = struct.pack("<4Q", out.ctypes.data, given.ctypes.data, 0, 0)
        watched = [watch("out", out, unwritten=True), watch("in", given, read_only=True)]
        report = emulated.launch(kernel, words, 1, 128, 2048, watch=watched, **options)
        expected = np.stack([given[[1, 0, 3, 2], ::-1]] * 2)
        expected[1, :, :, 0] += 1
        return report, bool((out == expected).all())


CASES = {
    "grid": Case(GRID, "grid"),
    "counter": Case(GRID, "counter"),
    "product": Case(PRODUCT, "product"),
    "warps": Case(WARPS, "warps"),
}
