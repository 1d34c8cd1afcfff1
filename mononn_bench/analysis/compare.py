"""From round values to what a table concludes: ratios, verdicts, best rivals, geometric means, blind spots."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

import numpy as np

from mononn_bench.analysis.cells import OURS, CaseSummary, Cell, Headline, Table, Twin, is_variant
from mononn_bench.analysis.stats import Estimate, best_rival, geometric_mean, pooled_estimate, smallest_detectable
from mononn_bench.analysis.stats import verdicts as verdicts_of
from mononn_bench.analysis.twins import same_system_rate

FP32 = "fp32"
Key = tuple[str, str]
"""A case and a system."""


def concluded(
    machine: str,
    cells: Sequence[Cell],
    cases: Sequence[CaseSummary],
    twins: Sequence[Twin],
    runs_of: Mapping[Key, Sequence[np.ndarray]],
    counted: Collection[Key],
) -> Table:
    """The table of cells and cases that lack ratios, from the round values of each run of each comparison.

    Only `counted` ones may be a best rival or take part in a mean.
    """
    estimates = {key: pooled_estimate(values) for key, values in runs_of.items()}
    verdict_of = dict(zip(estimates, verdicts_of(list(estimates.values())), strict=True))
    compared = []
    for cell in cells:
        key = cell.case, cell.system
        if key in estimates:
            e = estimates[key]
            cell = replace(cell, speedup=e.ratio, speedup_low=e.low, speedup_high=e.high, verdict=verdict_of[key])
        compared.append(cell)
    taking_part = {key: e for key, e in estimates.items() if key in counted}
    known = [*estimates.values(), *(twin.estimate for twin in twins)]
    return Table(
        machine=machine,
        systems=list(dict.fromkeys(cell.system for cell in cells)),
        cells=compared,
        cases=[_with_best(case, taking_part, compared) for case in cases],
        headlines=_headlines(cases, taking_part, compared),
        twins=twins,
        same_system=same_system_rate(twins),
        detectable=smallest_detectable(known, sum(v is not None for v in verdict_of.values())),
        values={key: np.concatenate(values) for key, values in runs_of.items()},
        runs=max(map(len, runs_of.values()), default=1),
    )


def _with_best(case: CaseSummary, taking_part: Mapping[Key, Estimate], cells: Sequence[Cell]) -> CaseSummary:
    rivals = {label: e for (name, label), e in taking_part.items() if name == case.name and not is_variant(label)}
    ours = next((c for c in cells if (c.case, c.system) == (case.name, OURS)), None)
    if ours is None or ours.speedup is None:
        return replace(case, no_best=f"{OURS} has no speed here")
    missing = [needed for needed in case.needed if needed not in rivals]
    if missing:
        return replace(case, no_best=f"{' and '.join(missing)} not ok")
    return replace(case, best=best_rival(rivals))


def _headlines(
    cases: Sequence[CaseSummary], taking_part: Mapping[Key, Estimate], cells: Sequence[Cell]
) -> list[Headline]:
    """Geometric means for full-size and for small networks of one precision and one target, never mixed."""
    found = []
    for precision, target in dict.fromkeys((case.precision, case.target) for case in cases):
        for words, full_size in (("full-size networks", True), ("small networks", False)):
            alike = [case for case in cases if (case.precision, case.target) == (precision, target)]
            chosen = [case for case in alike if case.full_size is full_size]
            if chosen:
                name = words if precision == FP32 else f"{words} in {precision}"
                name = name if target == "cpu" else f"{name} on {target}"
                found.append(_headline(name, chosen, taking_part, cells))
    return found


def _headline(
    name: str, cases: Sequence[CaseSummary], taking_part: Mapping[Key, Estimate], cells: Sequence[Cell]
) -> Headline:
    network_of = {case.name: case.network for case in cases}
    networks = list(dict.fromkeys(network_of.values()))
    ours = {cell.case for cell in cells if cell.system == OURS and cell.status == "ok"}
    without = sorted({network for case, network in network_of.items() if case not in ours})
    if without:
        return Headline(name, cases[0].precision, {}, f"none, since {OURS} is not ok on {', '.join(without)}")
    means = {}
    for label in dict.fromkeys(label for case, label in taking_part if case in network_of):
        estimates: dict[str, list[Estimate]] = {network: [] for network in networks}
        for (case, system), e in taking_part.items():
            if system == label and case in network_of:
                estimates[network_of[case]].append(e)
        mean = geometric_mean(estimates, networks)
        if mean is not None:
            means[label] = mean
    return Headline(name, cases[0].precision, means, "")
