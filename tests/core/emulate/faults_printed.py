"""Faults planted in the shipped vocabulary and in printed Programs, and who catches each: the table's second half.

``where`` is "CASE/FILE": a case of tests.core.cuda.cases and the header that is changed, or "CASE/source".
"""

# ruff: noqa: E501 -- a table: one fault a line

from __future__ import annotations

from tests.core.emulate.faults import NUMBERS, Fault

CUDA, MATMUL, ATTENTION = "mononn_cuda.cuh", "mononn_matmul.cuh", "mononn_attention.cuh"
SLIDE, STEPS, PAIRS = "depthwise-f16", "strided_windows-f16", "groups_of_two-f16"
DEPTHWISE = "mononn_depthwise.cuh"
MLP, TF32, KEYS, EARLY = "mlp-f16", "mlp-tf32x3", "attention-f16", "fetched_early-f16"
STAGED = "staged-f16"
COUNTED, ROW, SPLIT = "hand_off-f16", "long_row-f16", "split_sum-f16"

BARRIERS = (
    Fault("grid barrier without its entry block barrier", f"{MLP}/{CUDA}", "  sync_block();\n  if (thread() == 0) fence_gpu();", "  if (thread() == 0) fence_gpu();", ("race", "poison")),
    Fault("grid barrier without its exit block barrier", f"{SPLIT}/{CUDA}", "    }\n  }\n  sync_block();\n}\nMN_DEVICE void barrier", "    }\n  }\n}\nMN_DEVICE void barrier", ("race", "poison")),
    Fault("grid barrier's arrival releases nothing (entry fence)", f"{MLP}/{CUDA}", "if (thread() == 0) fence_gpu();", "", ("race",)),
    Fault("grid barrier's poll acquires nothing (exit fence)", f"{MLP}/source", "mn::", "mn::", ("race",), (("relaxed", ("load_acquire",)),), 0),
    Fault("grid barrier polls by a plain load", f"{MLP}/{CUDA}", "before ^ load_acquire(sync)", "before ^ *(volatile uint32_t *)sync", ("race",)),
    Fault("grid barrier expects one block too many", f"{MLP}/{CUDA}", "(uint32_t)(blocks() - 1) : 1u", "(uint32_t)blocks() : 1u", ("deadlock",)),
    Fault("grid barrier expects one block too few", f"{MLP}/{CUDA}", "(uint32_t)(blocks() - 1) : 1u", "(uint32_t)(blocks() - 2) : 1u", ("race", "poison", "deadlock"), scheduled=True),
    Fault("first barrier between phases dropped", f"{MLP}/source", "now_.barrier(call.sync);", "", ("race", "poison"), times=2, which=0),
    Fault("second barrier between phases dropped", f"{MLP}/source", "now_.barrier(call.sync);", "", ("race", "poison"), times=2, which=1),
    Fault("barrier between attention's phases dropped", f"{KEYS}/source", "now_.barrier(call.sync);", "", ("race", "poison")),
    Fault("a block that has arrived arrives again", f"{MLP}/{CUDA}", "if (arrived) depart", "if (false) depart", ("race", "poison", "deadlock"), scheduled=True),
)  # fmt: skip

PRODUCTS = (
    Fault("a task starts before the last one's tiles are read", f"{MLP}/{MATMUL}", "sync_block();  // what lay here has been read; a local A has been written", "", ("race",)),
    Fault("the ring's wait lets one stage too many run on", f"{MLP}/{MATMUL}", "cp_async_wait<STAGES - 2>();", "cp_async_wait<STAGES - 1>();", ("pending",)),
    Fault("the ring's first wait lets one stage too many run on", f"{MLP}/{MATMUL}", "cp_async_wait<STAGES - 1>();", "cp_async_wait<STAGES>();", ("pending",)),
    Fault("the ring's first wait dropped", f"{TF32}/{MATMUL}", "if (step == 0) cp_async_wait<STAGES - 1>();\n      else cp_async_wait", "if (step > 0) cp_async_wait", ("pending",)),
    Fault("the ring's barrier dropped", f"{MLP}/{MATMUL}", "if (!STAGED || LOCAL_A == 0 || more) sync_block();", "", ("race", "pending")),
    Fault("the ring's commit dropped", f"{MLP}/{MATMUL}", "      if (step > 0) cp_async_commit();\n", "", ("pending",)),
    Fault("the ring refills the stage that is read", f"{MLP}/{MATMUL}", "last = slot, slot =", "slot =", ("pending", "race")),
    Fault("the ring reads the wrong stage", f"{MLP}/{MATMUL}", "int slot = 0", "int slot = 1", ("pending", "poison", NUMBERS)),
    Fault("the ring never turns", f"{MLP}/{MATMUL}", "last = slot, slot = slot + 1 == STAGES ? 0 : slot + 1;", "last = slot;", (NUMBERS,)),
    Fault("a stage fetched early is fetched again", f"{MLP}/{MATMUL}", "if (!fetched || s >= EARLY) load_b", "load_b", ("pending",)),
    Fault("stages behind those fetched early left out", f"{EARLY}/{MATMUL}", "if (!fetched || s >= EARLY) load_b", "if (!fetched) load_b", ("poison", "pending")),
    Fault("early fetch by the barrier's warp alone", f"{MLP}/{MATMUL}", "if (thread() < FIRST_COPIER) return;", "if (thread() >= FIRST_COPIER) return;", ("bounds", "poison", NUMBERS)),
    Fault("early fetch overwrites tiles that are read", f"{MLP}/source", "now_.arrive(sync_);", "", ("race",)),
    Fault("early fetch of the next task's neighbour", f"{MLP}/source", "f_b + p * 1600", "f_b + r * 1600", (NUMBERS,)),
    Fault("an early fetch taken up twice", f"{MLP}/source", "    early_ = false;\n", "", (NUMBERS, "pending", "poison"), (("blocks", 2),), 2),
    Fault("sums stored over tiles that are read", f"{MLP}/{MATMUL}", "cp_async_wait<0>();\n    sync_block();\n    float *own", "float *own", ("race",)),
    Fault("sums read before all are stored", f"{MLP}/{MATMUL}", "    }\n    sync_block();\n  }\n};", "    }\n  }\n};", ("race", "poison")),
    Fault("one part of the sums left out", f"{MLP}/{MATMUL}", "part < PARTS; ++part", "part < PARTS - 1; ++part", (NUMBERS,)),
    Fault("fragment of the result in the wrong lane", f"{MLP}/{MATMUL}", "warp_row() + lane() / 4)", "warp_row() + (lane() / 4 + 1) % 8)", (NUMBERS,)),
    Fault("fragments of A from the wrong lane", f"{MLP}/{MATMUL}", "i * 16 + lane() % 16)", "i * 16 + (lane() + 1) % 16)", (NUMBERS,)),
    Fault("fragments of B swapped", f"{MLP}/{MATMUL}", "bf[j][0] = r[0], bf[j][1] = r[1]", "bf[j][0] = r[1], bf[j][1] = r[0]", (NUMBERS,)),
    Fault("a tf32 fragment of B from the wrong lane", f"{TF32}/{MATMUL}", "(k0 + lane() % 4 + h * 4)", "(k0 + lane() / 4 + h * 4)", (NUMBERS, "bounds", "poison", "race")),
    Fault("a tf32 product left out", f"{TF32}/{CUDA}", "  mma_tf32(sum, al, bh);\n", "", (NUMBERS,)),
    Fault("a warp group takes another's step", f"{MLP}/{MATMUL}", "(part * WK + warp_group()) * KSTEP", "(part * WK + warp_group() + 1) * KSTEP", (NUMBERS, "bounds", "poison")),
    Fault("the result's ragged columns stored whole", f"{MLP}/{MATMUL}", "if (n + u < cols) {", "if (true) {", ("race", "poison", "bounds", NUMBERS)),
    Fault("the result's ragged rows stored whole", f"{MLP}/{MATMUL}", "if (m >= rows) return;", "", ("bounds", "race")),
)  # fmt: skip

TILES = (
    Fault("a tile's ragged rows read from memory", f"{MLP}/{CUDA}", "(ZERO_ROWS || all ? r : min(r, rows - 1))", "r", ("bounds", "poison", NUMBERS)),
    Fault("a tile's ragged columns read from memory", f"{MLP}/{CUDA}", "cols >= COLS ? CHUNK : cols - c;", "CHUNK;", ("bounds", "poison", NUMBERS)),
    Fault("a tile's last chunks left out", f"{MLP}/{CUDA}", "if (TOTAL % COUNT != 0 && at >= TOTAL) break;", "if (at >= TOTAL - 1) break;", ("poison",)),
    Fault("a tile's rows too narrow for their alignment", f"{MLP}/{CUDA}", "? 0 : 16 / (int)sizeof(T))", "? 0 : 4 / (int)sizeof(T)) + 2", ("misaligned",)),
    Fault("a tile's rows overlap", f"{MLP}/{CUDA}", "(LD == COLS ? at * CHUNK : r * LD + c)", "r * (LD - CHUNK) + c", (NUMBERS, "pending", "poison")),
    Fault("a tile one row beyond shared memory", f"{KEYS}/{CUDA}", "(LD == COLS ? at * CHUNK : r * LD + c)", "(r + 4 * ROWS) * LD + c", ("bounds", "pending", "poison", NUMBERS)),
    Fault("one task of a phase left out", f"{MLP}/source", " < 6; ", " < 5; ", ("poison",)),
    Fault("one task of a phase too many", f"{MLP}/source", " < 12; ", " < 13; ", ("bounds", "race", NUMBERS)),
    Fault("an off-by-one tile", f"{MLP}/source", "p_a + r * 6144", "p_a + r * 6144 + 96", (NUMBERS, "poison")),
    Fault("two buffers of the arena overlap", f"{MLP}/source", "arena_ + 65536", "arena_ + 0", ("race", NUMBERS), (), 2),
    Fault("an operand shifted in the arena", f"{MLP}/source", "mn::f16 *const p_out = (mn::f16 *)(arena_ + 65536)", "mn::f16 *const p_out = (mn::f16 *)(arena_ + 65552)", ("poison",)),
    Fault("an operand shifted off its alignment", f"{MLP}/source", "(const mn::f16 *)(arena_ + 65536)", "(const mn::f16 *)(arena_ + 65540)", ("misaligned",)),
    Fault("overlapping slots in shared memory", f"{KEYS}/{ATTENTION}", "slot * STEP * LDV;", "slot * LDV;", ("race", "pending", NUMBERS)),
    Fault("two blocks take one task", f"{MLP}/source", " += mn::blocks())", " += mn::blocks() - 1)", ("race", NUMBERS), times=3, which=2),
)  # fmt: skip

LANDED = (
    Fault("a stage not waited for", f"{STAGED}/{MATMUL}", "if constexpr (STAGED) await_stage(stage + step);", "", ("pending",)),
    Fault("a stage waited for by the parity of the one before", f"{STAGED}/{CUDA}", "n / LANDINGS % 2)", "n / LANDINGS % 2 ^ 1)", ("pending",)),
    Fault("stages that are not counted", f"{STAGED}/{MATMUL}", "if constexpr (STAGED) stage += steps;", "", ("usage", "pending", "deadlock")),
    Fault("a warp of copiers that leaves a stage out", f"{STAGED}/{CUDA}", "thread() >= FIRST_COPIER) stage_copy", "thread() >= FIRST_COPIER + 32) stage_copy", ("deadlock",)),
    Fault("stores not fenced from a task's first stages", f"{STAGED}/{MATMUL}", "if constexpr (STAGED) stage_fence();", "", ("race",), (("blocks", 2),)),
    Fault("stores not fenced from stages fetched early", f"{STAGED}/{CUDA}", "    stage_fence();\n    publish();", "    publish();", ("race",)),
    Fault("a stage refilled before all have read it", f"{STAGED}/{MATMUL}", "if (!STAGED || LOCAL_A == 0 || more) sync_block();", "", ("race", "pending")),
    Fault("terms beyond the last multiplied", f"{STAGED}/{MATMUL}", "if (STAGED && !WHOLE && k0 >= terms) break;", "", ("poison", "pending", "race", NUMBERS)),
    Fault("a stage's last rows left out", f"{STAGED}/{MATMUL}", "TK : round_up(k - k0, KSTEP)", "TK : (k - k0) / KSTEP * KSTEP", ("poison", "usage", NUMBERS)),
    Fault("fragments eight columns off", f"{STAGED}/{MATMUL}", "ldmatrix_x4_trans(r, row + (j + lane() / 16) * NEXT);", "ldmatrix_x4_trans(r, row + (j + lane() / 16 * 2) * NEXT);", (NUMBERS, "poison", "pending", "race")),
)  # fmt: skip

KEYED = (
    Fault("keys not waited for", f"{KEYS}/{ATTENTION}", "cp_async_wait<0>();", "", ("pending",)),
    Fault("keys waited for by their own thread only", f"{KEYS}/{ATTENTION}", "cp_async_wait<0>();\n        sync_block();", "cp_async_wait<0>();", ("race", "pending")),
    Fault("the next keys overwrite those that are read", f"{KEYS}/{ATTENTION}", "load(shared, (step + 1) % STAGES", "load(shared, step % STAGES", ("pending", "race")),
    Fault("rows beyond the keys take part", f"{KEYS}/{ATTENTION}", "i < rows && j < keys ?", "i < rows ?", (NUMBERS, "bounds", "poison")),
    Fault("maxima read before all are stored", f"{KEYS}/{ATTENTION}", "    sync_block();\n    MN_UNROLL for (int h = 0; h < 2; ++h) {\n      float top", "    MN_UNROLL for (int h = 0; h < 2; ++h) {\n      float top", ("race", "poison")),
    Fault("results read before all are stored", f"{KEYS}/{ATTENTION}", "    sync_block();\n    auto below", "    auto below", ("race", "poison")),
    Fault("a row's maximum over half of its lanes", f"{KEYS}/{ATTENTION}", "most[h] = fmaxf(most[h], shuffle_xor(most[h], 2));", "", (NUMBERS,)),
    Fault("a row's sum over half of its lanes", f"{KEYS}/{ATTENTION}", "state.sum[h] += shuffle_xor(state.sum[h], 2);", "", (NUMBERS,)),
    Fault("an old maximum kept", f"{KEYS}/{ATTENTION}", "state.sum[h] *= scale;", "", (NUMBERS,)),
    Fault("shuffle in a branch of the attention", f"{KEYS}/{ATTENTION}", "state.sum[h] += shuffle_xor(state.sum[h], 1);", "if (lane() < 30) state.sum[h] += shuffle_xor(state.sum[h], 1);", ("convergence",)),
    Fault("keys of another lane in the first product", f"{KEYS}/{ATTENTION}", "(n * 8 + lane() % 8 + lane() / 16 * 8) * LDK + d + lane() / 8 % 2 * 8", "(n * 8 + lane() % 8 + lane() / 8 % 2 * 8) * LDK + d + lane() / 16 * 8", (NUMBERS,)),
    Fault("values not transposed", f"{KEYS}/{ATTENTION}", "ldmatrix_x4_trans(r, v", "ldmatrix_x4(r, v", (NUMBERS,)),
)  # fmt: skip

COUNTERS = (
    Fault("a counter told before all have stored", f"{COUNTED}/{CUDA}", "  sync_block();\n  if (thread() == 0) atomic_add(counter", "  if (thread() == 0) atomic_add(counter", ("race", "poison")),
    Fault("only one thread waits for the counter", f"{COUNTED}/{CUDA}", "< at_least) {\n    }\n  }\n  sync_block();", "< at_least) {\n    }\n  }", ("race", "poison")),
    Fault("a counter one arrival short", f"{COUNTED}/source", "mn::wait(sync_, b, 4)", "mn::wait(sync_, b, 3)", ("race", "poison"), scheduled=True),
    Fault("a counter waited for once too often", f"{COUNTED}/source", "mn::wait(sync_, b, 4)", "mn::wait(sync_, b, 5)", ("deadlock",)),
    Fault("the counter of another row", f"{COUNTED}/source", "mn::signal(sync_, r / 4, 1)", "mn::signal(sync_, r / 5, 1)", ("race", "poison", "deadlock")),
    Fault("a counter told by a plain store", f"{COUNTED}/{CUDA}", "atomic_add(counter(sync, i), add)", "*counter(sync, i) += add", ("race",)),
    Fault("a counter not waited for", f"{COUNTED}/source", "mn::wait(sync_, b, 4);", "", ("race", "poison")),
    Fault("local slots read before they are filled", f"{COUNTED}/source", "    }\n    mn::sync_block();\n", "    }\n", ("race", "poison")),
    Fault("overlapping local slots", f"{COUNTED}/source", "mn::store<1, false>(p_keep + x, out0_)", "mn::store<1, false>(p_keep + x / 2, out0_)", ("race",)),
    Fault("block reduction's slots filled before they are read", f"{ROW}/{CUDA}", "  v = warp_reduce<R>(v);\n  sync_block();", "  v = warp_reduce<R>(v);", ("race",)),
    Fault("block reduction's slots read before they are filled", f"{ROW}/{CUDA}", "partial[warp()] = v;\n  sync_block();", "partial[warp()] = v;", ("race", "poison")),
    Fault("block reduction over half of the warps", f"{ROW}/{CUDA}", "lane() < WARPS ?", "lane() < WARPS / 2 ?", (NUMBERS,)),
    Fault("warp reduction a step short", f"{ROW}/{CUDA}", "int mask = 16; mask > 0; mask /= 2", "int mask = 16; mask > 1; mask /= 2", (NUMBERS,)),
    Fault("warp reduction in a branch", f"{ROW}/{CUDA}", "v[row] = R::apply(", "if (lane() != 31) v[row] = R::apply(", ("convergence",)),
)  # fmt: skip

SLIDING = (
    Fault("a tap takes its neighbour's pixel", f"{SLIDE}/{DEPTHWISE}", "j * G::DW == column", "j * G::DW + 1 == column", (NUMBERS,)),
    Fault("a kernel's row of weights taken twice", f"{SLIDE}/{DEPTHWISE}", "(i * G::KW + j) * GROUP", "(i / 2 * 2 * G::KW + j) * GROUP", (NUMBERS,)),
    Fault("strips that forget their strides", f"{STEPS}/{DEPTHWISE}", "first * G::SW", "first", (NUMBERS,)),
    Fault("image rows that forget their strides", f"{STEPS}/{DEPTHWISE}", "G::at(y * G::SH,", "G::at(y,", (NUMBERS,)),
    Fault("windows that forget their dilations", f"{PAIRS}/{DEPTHWISE}", "+ j * G::DW == column", "+ j == column", (NUMBERS,)),
    Fault("a group's second channel left out", f"{PAIRS}/{DEPTHWISE}", "u / GROUP * GROUP + c]", "u / GROUP * GROUP]", (NUMBERS,)),
    Fault("a row's last strip beyond its end", f"{SLIDE}/{DEPTHWISE}", "G::OW % PX ? min(x, G::OW - PX) : x;", "x;", ("race", "bounds", "poison", NUMBERS)),
    Fault("pixels of two strips stored twice", f"{SLIDE}/{DEPTHWISE}", "first + p >= x", "true", ("race",)),
    Fault("ragged channels taken whole", f"{SLIDE}/{DEPTHWISE}", "if (WHOLE || n + V <= columns) {", "if (true) {", ("race", "bounds", "poison")),
    Fault("image rows beyond the last", f"{STEPS}/{DEPTHWISE}", "min(ROWS, (pixels - LAST) / (SH * PITCH) + 1)", "ROWS", ("race", "bounds", "poison")),
    Fault("an image without its border", f"{SLIDE}/source", "for (; now_.task < 2;", "for (; now_.task < 0;", ("poison",)),
)  # fmt: skip

FAULTS = (*BARRIERS, *PRODUCTS, *LANDED, *TILES, *KEYED, *COUNTERS, *SLIDING)
