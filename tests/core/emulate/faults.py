"""Faults planted in the kernels of kernels.py, one a line, and who catches each: the table of fault and catcher.

A fault is a change of text: it works on any source or header, generated or written by hand (see :func:`planted`).
"""

# ruff: noqa: E501 -- a table: one fault a line

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

NUMBERS = "numbers"
"""Caught by the comparison with the reference, not by the emulator itself."""


@dataclass(frozen=True)
class Fault:
    """One planted fault.

    Attributes:
        name: what is wrong, in words.
        where: key of ``kernels.CASES``, or what another table says.
        old, new: text that is replaced; ``old`` must occur exactly ``times`` times.
        catchers: kinds of ``Report.found`` of which each launch must show one, or NUMBERS.
        options: further arguments of the launch.
        times: how often ``old`` occurs.
        which: the occurrence that is replaced, from 0; -1 for all.
        scheduled: it shows in some schedules only, because in the others the threads happen to meet in order.
    """

    name: str
    where: str
    old: str
    new: str
    catchers: tuple[str, ...]
    options: tuple[tuple[str, object], ...] = ()
    times: int = 1
    scheduled: bool = False
    which: int = -1


def planted(text: str, fault: Fault) -> str:
    """``text`` with the fault.

    Raises:
        LookupError: the text to replace does not stand there as often as the fault says.
    """
    if text.count(fault.old) != fault.times:
        raise LookupError(f"{fault.name}: {fault.old!r} occurs {text.count(fault.old)} times, not {fault.times}")
    if fault.which < 0:
        return text.replace(fault.old, fault.new)
    parts = text.split(fault.old)
    here = fault.which + 1
    return fault.old.join(parts[:here]) + fault.new + fault.old.join(parts[here:])


def all_planted(text: str, faults: Sequence[Fault]) -> str:
    """One source with a copy of ``text`` for each fault, in a namespace of its own, kernels named NAME_0, NAME_1, ..."""
    include = '#include "mononn_ptx.cuh"\n'
    copies = [planted(text, fault).replace(include, "") for fault in faults]
    named = [re.sub(r"(__launch_bounds__\(\w+\) \w+)", rf"\1_{i}", copy) for i, copy in enumerate(copies)]
    return include + "".join(
        f"namespace fault_{i} {{{copy}}}\nusing namespace fault_{i};\n" for i, copy in enumerate(named)
    )


RELAXED = (("relaxed", ("atomic_add", "load_acquire", "store_release")),)

GRID = (
    Fault("entry block barrier of the grid barrier dropped", "grid", "  sync_block();\n  if (thread() == 0) {", "  if (thread() == 0) {", ("race",)),
    Fault("exit block barrier of the grid barrier dropped", "grid", "  }\n  sync_block();\n}", "  }\n}", ("race", "poison")),
    Fault("entry fence dropped", "grid", "fence_gpu();  // entry", "", ("race",), RELAXED),
    Fault("exit fence dropped", "grid", "fence_gpu();  // exit", "", ("race",), RELAXED),
    Fault("both fences dropped", "grid", "fence_gpu();", "", ("race",), RELAXED, 2),
    Fault("arrival releases nothing", "grid", "fence_gpu();  // entry", "", ("race",), (("relaxed", ("atomic_add",)),)),
    Fault("poll acquires nothing", "grid", "fence_gpu();  // exit", "", ("race",), (("relaxed", ("load_acquire", "atomic_add")),)),
    Fault("poll by a plain load", "grid", "load_acquire(sync)", "*(volatile uint32_t *)sync", ("race",)),
    Fault("grid barrier one arrival short", "grid", "(blocks() - 1)", "blocks()", ("deadlock",)),
    Fault("grid barrier lets go one early", "grid", "(blocks() - 1)", "(blocks() - 2)", ("race", "poison", "deadlock"), scheduled=True),
    Fault("a block leaves out the grid barrier", "grid", "grid_sync(call.sync);  // rows are full", "if (block() != 1) grid_sync(call.sync);", ("deadlock", "race", "poison")),
    Fault("barrier between phases dropped (read after write)", "grid", "grid_sync(call.sync);  // rows are full", "", ("race", "poison")),
    Fault("barrier between rounds dropped (write after read)", "grid", "grid_sync(call.sync);  // rows are read", "", ("race",)),
    Fault("block barrier dropped", "grid", "sync_block();  // slots are full", "", ("race", "poison")),
    Fault("shuffle in a branch", "grid", "v += shuffle_xor(v, m)", "if (lane < 31) v += shuffle_xor(v, m)", ("convergence",)),
    Fault("block barrier in a branch", "grid", "sync_block();  // slots are full", "if (t != 77) sync_block();", ("convergence", "race", "poison")),
    Fault("a thread leaves before a block barrier", "grid", "float v = call.in", "if (t == 5) return;\n    float v = call.in", ("convergence",)),
    Fault("a lane shuffles elsewhere", "grid", "v += shuffle_xor(v, m)", "if (lane == 3) v += shuffle_xor(v + 1, m); else v += shuffle_xor(v, m)", ("convergence",)),
    Fault("shuffles stop a step early", "grid", "for (int m = 16; m; m >>= 1)", "for (int m = 16; m > 1; m >>= 1)", (NUMBERS,)),
    Fault("off-by-one loop over rows", "grid", "b < blocks()", "b <= blocks()", ("poison",)),
    Fault("slots one too few", "grid", "slots[3]", "slots[4]", ("bounds",)),
    Fault("result beyond the buffer", "grid", "* 128 + t] = sum", "* 128 + t + 1] = sum", ("bounds",)),
    Fault("write to an input", "grid", "rows[block()] =", "((float *)call.in)[block()] =", ("bounds",)),
    Fault("all threads write the row's sum", "grid", "if (t == 0) rows", "rows", ("race",)),
    Fault("overlapping slots of two warps", "grid", "slots[t / 32] = v", "slots[t / 64] = v", ("race",)),
)  # fmt: skip

COUNTER = (
    Fault("counter waits for nothing", "counter", "< 1u", "< 0u", ("race", "poison"), scheduled=True),
    Fault("counter waits for one too many", "counter", "< 1u", "< 2u", ("deadlock",)),
    Fault("counter told before the row is full", "counter", "sync_block();  // the row is full", "", ("race", "poison")),
    Fault("only one thread knows that the wait is over", "counter", "sync_block();  // the wait is over", "", ("race", "poison")),
    Fault("counter told by a plain store", "counter", "atomic_add(call.sync, 1u)", "*call.sync = 1u", ("race", "deadlock")),
    Fault("counter never told", "counter", "atomic_add(call.sync, 1u)", "(void)0", ("deadlock",)),
    Fault("row read one beyond", "counter", "row[127 - t]", "row[128 - t]", ("race", "poison")),
    Fault("counter's wait acquires nothing", "counter", "sync_block();  // the wait is over", "sync_block();", ("race",), (("relaxed", ("load_acquire",)),)),
)  # fmt: skip

PRODUCT = (
    Fault("copies not waited for", "product", "cp_async_wait<1>();", "", ("pending",)),
    Fault("wait lets one group too many run on", "product", "cp_async_wait<1>();", "cp_async_wait<2>();", ("pending",)),
    Fault("first stage not committed", "product", "cp_async_commit();  // the first stage", "", ("pending",)),
    Fault("next stage not committed", "product", "cp_async_commit();  // the next stage", "", ("pending",)),
    Fault("barrier after the wait dropped", "product", "sync_block();  // the stage is there", "", ("race", "pending", "poison")),
    Fault("barrier before the stage is refilled dropped", "product", "sync_block();  // the stage is read", "", ("race",)),
    Fault("wrong stage read", "product", "shared + step % STAGES * STAGE", "shared + (step + 1) % STAGES * STAGE", ("pending",)),
    Fault("wrong stage filled", "product", "shared + (step + 1) % STAGES * STAGE", "shared + step % STAGES * STAGE", ("pending", "race")),
    Fault("one stage only", "product", "STAGES = 2", "STAGES = 1", ("pending", "race")),
    Fault("misaligned copy", "product", "cp_async_16(b + t / 8 * B_ROW", "cp_async_16(b + 4 + t / 8 * B_ROW", ("misaligned",)),
    Fault("misaligned rows for ldmatrix", "product", "(m * 16 + lane % 16) * A_ROW", "(m * 16 + lane % 16) * (A_ROW + 4)", ("misaligned",)),
    Fault("copy beyond shared memory", "product", "cp_async_16(b + t / 8 * B_ROW", "cp_async_16(b + t / 8 * (B_ROW + 64)", ("bounds",)),
    Fault("off-by-one tile", "product", "request(shared + (step + 1) % STAGES * STAGE, call, step + 1)", "request(shared + (step + 1) % STAGES * STAGE, call, step + 2)", ("bounds", NUMBERS)),
    Fault("a part of the stage never filled", "product", "if (t < M * K / 8)", "if (t < M * K / 16)", ("poison",)),
    Fault("fragment rows and columns of the result swapped", "product", "lane / 4 + e / 2 * 8", "lane % 4 + e / 2 * 8", ("race", NUMBERS)),
    Fault("fragment lanes swapped", "product", "lane / 4 + e / 2 * 8", "(lane ^ 4) / 4 + e / 2 * 8", (NUMBERS,)),
    Fault("registers of B swapped", "product", "{rb[2 * n], rb[2 * n + 1]}", "{rb[2 * n + 1], rb[2 * n]}", (NUMBERS,)),
    Fault("B not transposed", "product", "ldmatrix_x4_trans(rb", "ldmatrix_x4(rb", (NUMBERS,)),
    Fault("ldmatrix addresses of another lane", "product", "lane % 16 * B_ROW", "(lane ^ 1) % 16 * B_ROW", (NUMBERS,)),
    Fault("mma in a branch", "product", "mma_16<f16>(d[m][n], ra, pair_b)", "if (lane != 9) mma_16<f16>(d[m][n], ra, pair_b)", ("convergence",)),
    Fault("ldmatrix in a branch", "product", "ldmatrix_x4(ra", "if (lane < 16) ldmatrix_x4(ra", ("convergence",)),
)  # fmt: skip

WARPS = (
    Fault("missing sync_warp (read after write)", "warps", "sync_warp();  // the row is there", "", ("race", "poison")),
    Fault("missing sync_warp (write after read)", "warps", "sync_warp();  // the row is read", "", ("race",)),
    Fault("named barrier dropped (read after write)", "warps", "sync_some(1 + warp / 2, 64);  // both rows are there", "", ("race", "poison")),
    Fault("named barrier dropped (write after read)", "warps", "sync_some(1 + warp / 2, 64);  // both rows are read", "", ("race",)),
    Fault("named barrier of the wrong pair", "warps", "sync_some(1 + warp / 2, 64)", "sync_some(1 + warp % 2, 64)", ("race", "poison"), (), 2),
    Fault("named barrier of one warp", "warps", "sync_some(1 + warp / 2, 64);  // both rows are there", "sync_some(1 + warp / 2, 32);", ("race", "poison")),
    Fault("named barrier of too many", "warps", "sync_some(1 + warp / 2, 64);  // both rows are there", "sync_some(1 + warp / 2, 128);", ("deadlock",)),
    Fault("named barrier that does not exist", "warps", "sync_some(1 + warp / 2, 64);  // both rows are there", "sync_some(16 + warp / 2, 64);", ("usage",)),
    Fault("misaligned vector load", "warps", "row + lane * 4)", "row + 1 + lane * 4)", ("misaligned",)),
    Fault("misaligned vector store", "warps", "(i * 4 + warp) * 128 + lane * 4)", "(i * 4 + warp) * 128 + 2 + lane * 4)", ("misaligned",)),
    Fault("a shuffle for a barrier", "warps", "sync_warp();  // the row is there", "shuffle(0.0f, 0);", ("race", "poison")),
)  # fmt: skip

FAULTS = (*GRID, *COUNTER, *PRODUCT, *WARPS)
