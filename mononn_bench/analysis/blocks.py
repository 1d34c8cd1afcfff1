"""From the blocks of a case record to paired arrays and plain times."""

from __future__ import annotations

import numpy as np

from mononn_bench.analysis.cells import QUANTILES
from mononn_bench.analysis.stats import round_values, supports
from mononn_bench.record import Block, CaseRecord, Round


def accepted_blocks(record: CaseRecord, label: str) -> list[Block]:
    """Every block of a system that counts, in order of time."""
    return [b for r in record.rounds for c in r.cycles for b in c.blocks if b.accepted and b.system == label]


def paired_rounds(record: CaseRecord, ours: str, rival: str) -> np.ndarray:
    """`round_values` of the rounds in which both systems took part, shape (rounds,)."""
    ours_s, rival_s = paired_blocks(record, ours, rival)
    return round_values(ours_s, rival_s)


def paired_blocks(record: CaseRecord, ours: str, rival: str) -> np.ndarray:
    """Seconds of the blocks of two systems, shape (2, rounds, cycles): of the rounds in which both took part, NaN where
    a block is missing. In pairs mode those are the rounds of the rival's group.
    """
    rounds = [r for r in record.rounds if ours in r.systems and rival in r.systems]
    cycles = max((len(r.cycles) for r in rounds), default=0)
    return np.stack([_values(rounds, label, cycles) for label in (ours, rival)])


def median_and_p90(record: CaseRecord, label: str) -> tuple[float, float | None] | None:
    """Seconds: the median of the block values, and the 90th percentile of all kept samples, None where they are too
    few for one; None without a block.
    """
    blocks = accepted_blocks(record, label)
    if not blocks:
        return None
    samples = _samples(blocks)
    p90 = float(np.quantile(samples, 0.9)) if supports(0.9, len(samples)) else None
    return float(np.median([b.value_s for b in blocks])), p90


def sample_count(record: CaseRecord, label: str) -> int:
    """How many single runs the record keeps of a system: up to 200 a block, evenly taken."""
    return sum(len(block.samples_ns) for block in accepted_blocks(record, label))


def latency_quantiles(record: CaseRecord, label: str) -> tuple[float, ...]:
    """Seconds: the raw samples of a system at `QUANTILES`; empty without a block."""
    blocks = accepted_blocks(record, label)
    return tuple(np.quantile(_samples(blocks), QUANTILES).tolist()) if blocks else ()


def _samples(blocks: list[Block]) -> np.ndarray:
    return np.concatenate([np.asarray(b.samples_ns, dtype=np.float64) for b in blocks]) / 1e9


def _values(rounds: list[Round], label: str, cycles: int) -> np.ndarray:
    values = np.full((len(rounds), cycles), np.nan)
    for i, one in enumerate(rounds):
        for j, cycle in enumerate(one.cycles):
            for block in cycle.blocks:
                if block.accepted and block.system == label:
                    values[i, j] = block.value_s
    return values
