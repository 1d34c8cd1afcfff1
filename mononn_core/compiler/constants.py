"""The numbers that the cost model and the templates' choices rest on, so that measurements can stand beside them."""

from __future__ import annotations

from dataclasses import dataclass

from mononn_core.cost import analytic
from mononn_core.element import COMPUTE, HALF_WORD
from mononn_core.machine import MULTIPLIED, Machine
from mononn_core.templates import winograd, winograd_bytes


@dataclass(frozen=True)
class Constant:
    """A stated number: where it stands, its value and unit (B/s, op/s, s, or "" for a ratio), and what it means."""

    name: str
    value: float
    unit: str
    meaning: str


def cost_constants(machine: Machine | None = None) -> tuple[Constant, ...]:
    """Those for a CPU: of ``machine``, or of this one as the compiler sees it."""
    here = machine or Machine.probe()
    found = [
        Constant("machine.peak_flops_per_core", here.peak_flops_per_core, "op/s", "float32 multiply-adds of one core"),
        Constant("machine.bandwidth", here.bandwidth, "B/s", "all cores together read from memory"),
        Constant("machine.l2_bandwidth", here.l2_bandwidth, "B/s", "one core reads from its second-level cache"),
        Constant("machine.l3_bandwidth", here.l3_bandwidth, "B/s", "one core reads from the last-level cache"),
        Constant("machine.barrier_seconds", here.barrier_seconds, "s", "a barrier of all cores"),
        Constant(
            "cost.EXCHANGE_BYTES_PER_SECOND",
            analytic.EXCHANGE_BYTES_PER_SECOND,
            "B/s",
            "a core reads what another has just written",
        ),
        Constant(
            "cost.LINES_BEYOND", analytic.LINES_BEYOND, "", "lines fetched past the end of a worker's part of a row"
        ),
        Constant("cost.LINE_SECONDS", analytic.LINE_SECONDS, "s", "a line goes where its neighbour is written"),
        Constant("cost.HAND_OFF_SECONDS", analytic.HAND_OFF_SECONDS, "s", "workers never arrive together at a barrier"),
        Constant("cost.SLACK", analytic.SLACK, "", "of arithmetic's time that may be waited for without a delay"),
        Constant("cost.TASK_SECONDS", analytic.TASK_SECONDS, "s", "for a task to begin"),
        Constant("cost.LOOPS_REACH", analytic.LOOPS_REACH, "", "of the second-level cache's rate in generated loops"),
        Constant(
            "cost.FLOPS_AN_OPERATION", analytic.FLOPS_AN_OPERATION, "", "operations in another instruction's time"
        ),
    ]
    if any(map(here.tiles, MULTIPLIED)):
        meaning = "of the peak of tile registers that the second-level cache can feed"
        found.append(Constant("cost.TILES_REACH", analytic.TILES_REACH, "", meaning))
    if here.multiplies_words:
        words, direct = winograd.RATE[HALF_WORD], winograd_bytes.DIRECT
        found += [
            Constant(
                "winograd.RATE[words]", words / winograd.RATE[COMPUTE], "", "products of words in the time of one"
            ),
            Constant("winograd_bytes.DIRECT", direct, "", "exact products of bytes in the time of one of float32"),
            Constant("winograd_bytes.SEVEN_BITS", winograd_bytes.SEVEN_BITS, "", "and of bytes with seven bits"),
            Constant("winograd_bytes.WORDS", winograd_bytes.WORDS, "", "and of bytes that are stored as words"),
        ]
    return tuple(found)
