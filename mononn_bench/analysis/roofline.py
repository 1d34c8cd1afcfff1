"""How near a time comes to what the machine could do: direct-algorithm arithmetic and compulsory bytes."""

from __future__ import annotations

from mononn_bench.record import Ceilings, ModelRecord


def floor_seconds(model: ModelRecord, ceilings: Ceilings) -> float:
    """The least seconds an inference can take with the direct algorithm, weights as warm as they can be.

    The largest of three: arithmetic at the multiply-add rate from registers; every compulsory byte at the rate of the
    cache next to the cores; and what of them the last-level cache cannot hold at the rate of memory.
    """
    beyond_cache = max(0, model.compulsory_bytes - ceilings.last_level_cache_bytes)
    return max(
        model.flops / ceilings.flops_per_s,
        model.compulsory_bytes / ceilings.cache_bytes_per_s,
        beyond_cache / ceilings.dram_bytes_per_s,
    )


def roofline_share(seconds: float, model: ModelRecord, ceilings: Ceilings | None) -> float | None:
    """The floor over the measured time; None without compiled ceilings (the NumPy sentinel's are lower bounds)."""
    if ceilings is None or ceilings.method != "c":
        return None
    return floor_seconds(model, ceilings) / seconds
