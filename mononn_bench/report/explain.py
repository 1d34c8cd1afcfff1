"""Why one system is faster than another on a network: the places where most is won and lost, each with its reason."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from math import inf

from mononn_bench.analysis.cells import OURS
from mononn_bench.analysis.regions import Region, Side, alike, groups_of, named, operators, regions, sum_of
from mononn_bench.errors import BenchError
from mononn_bench.profiled import CaseProfile, ProfileRecord, Step
from mononn_bench.record import Ceilings
from mononn_bench.report.grids import Grid

PLACES = 10
"""Most places that a table lists of those that are won, and of those that are lost."""
NOTED = 0.05
"""Share of a place's time from which on a part of it is worth a word."""
KINDS = 4
"""Operators of a place, and kinds of steps in a reason, that are named."""
WITHIN = 0.03
"""Share of a run that its steps may miss or have too much."""


class NotNamedError(BenchError):
    """A system's profiler does not say which ONNX nodes its steps compute, or there is no profile."""


def rivals(profile: CaseProfile) -> list[str]:
    """The systems that ours can be explained beside, in the order of the profile."""
    rows = _rows(profile)
    own = OURS in rows and named(rows[OURS].steps)
    return [label for label, row in rows.items() if own and not label.startswith(OURS) and named(row.steps)]


def fastest_rival(profile: CaseProfile) -> str:
    """Of those the one whose run is the shortest without a profiler; empty where there is none."""
    rows = _rows(profile)
    return min(rivals(profile), key=lambda label: (rows[label].plain_s or inf, label), default="")


def places(profile: CaseProfile, rival: str) -> list[Region]:
    """Where ours gains and loses against a rival, the most gained first.

    Raises NotNamedError where a profile is missing or tells no nodes.
    """
    if rival not in rivals(profile):
        tried = [row for row in profile.profiles if row.system == rival]
        reason = "" if any(row.status == "ok" for row in tried) else next((row.reason for row in tried), "")
        why = reason or "its profiler does not say which ONNX nodes its steps compute"
        raise NotNamedError(f"{profile.case} cannot be explained beside {rival}: {why}.")
    rows = _rows(profile)
    return sorted(alike(regions(profile.nodes, rows[OURS].steps, rows[rival].steps)), key=lambda r: -r.gained_s)


def explain_grid(profile: CaseProfile, rival: str) -> Grid:
    """The places where most is won and lost against one rival. Raises NotNamedError as `places` does."""
    found, rows = places(profile, rival), _rows(profile)
    won = [place for place in found if place.gained_s > 0][:PLACES]
    lost = [place for place in found if place.gained_s < 0][-PLACES:]
    listed = [*won, *lost]
    other = [place for place in found if not any(place is one for one in listed)]
    lines = [_line(place, _where(place), _reason(place, rival, profile.ceilings)) for place in listed]
    if other:
        lines.append(_line(_all(other), f"{sum(place.count for place in other)} others", ""))
    ours, theirs = rows[OURS], rows[rival]
    return Grid(
        title=f"{profile.case}: {OURS} beside {rival}",
        caption=_caption(rival, ours, theirs),
        header=["gained, ms", "where", f"{OURS}, ms", f"{rival}, ms", "why"],
        rows=[*lines, _line(_all(found), "all steps", "")],
        notes=[*_levels(OURS, ours), *_levels(rival, theirs), *_peak(profile.ceilings)],
    )


def layer_grid(profile: CaseProfile, rival: str) -> Grid | None:
    """The steps of both systems in one layer: in the middle one of the parts of a network that are alike, of those that
    come equally often and take most time together; None where no part comes twice. Raises NotNamedError as `places`
    does.
    """
    places(profile, rival)
    rows, often = _rows(profile), defaultdict[int, list[Region]](list)
    found = regions(profile.nodes, rows[OURS].steps, rows[rival].steps)
    for group in groups_of(found):
        often[len(group)].append(group[len(group) // 2])
    often.pop(1, None)
    if not often:
        return None
    count = max(often, key=lambda n: n * sum(place.theirs.seconds for place in often[n]))
    layer = sorted(often[count], key=found.index)
    return Grid(
        title=f"{profile.case}: one of {count} layers",
        caption=f"What {OURS} and {rival} do in it, in order: each step with its microseconds.",
        header=["where", OURS, "µs", rival, "µs", "why"],
        rows=[
            *(_both(place, _where(place), _reason(place, rival, profile.ceilings)) for place in layer),
            _both(_all(layer), "the layer", "", listed=False),
        ],
        notes=[],
    )


def _both(place: Region, where: str, reason: str, listed: bool = True) -> tuple[str, ...]:
    """A place's steps on both sides, each with its microseconds where they are listed, and their sums."""
    sides = ((_steps(side) if listed else f"steps: {side.steps}", side) for side in (place.ours, place.theirs))
    texts = (text for steps, side in sides for text in (steps, f"{side.seconds * 1e6:.0f}"))
    return (where, *texts, reason)


def _steps(side: Side) -> str:
    return ", ".join(f"{step.kind} {step.seconds * 1e6:.0f}" for step in (*side.products, *side.rest))


def levels_grid(profiles: Mapping[str, CaseProfile]) -> Grid:
    """What each profiler costs, and how much of a run its steps account for; a row a case and system."""
    rows = [
        (case, row.system, row.tool, *_level_texts(row))
        for case, profile in profiles.items()
        for row in profile.profiles
        if row.plain_s and row.profiled_s
    ]
    return Grid(
        title="Levels of profiling",
        caption="Medians of a run without a profiler and of one under it, and the sum of its steps; each system alone.",
        header=["model", "system", "profiler", "run, ms", "profiled, ms", "cost", "steps, ms", "of a profiled run"],
        rows=rows,
        notes=["A level's time is that of the runs in which it is the deepest: a whole run's is the unprofiled one."],
    )


def _level_texts(row: ProfileRecord) -> tuple[str, ...]:
    plain, profiled, steps = row.plain_s or 0.0, row.profiled_s or 0.0, sum(step.seconds for step in row.steps)
    texts = (f"{plain * 1e3:.4g}", f"{profiled * 1e3:.4g}", f"{profiled / plain - 1:+.1%}")
    return (*texts, f"{steps * 1e3:.4g}", f"{steps / profiled:.1%}") if row.steps else (*texts, "", "")


def _rows(profile: CaseProfile) -> dict[str, ProfileRecord]:
    """Each system's own profile that has steps, by label."""
    return {row.system: row for row in profile.profiles if row.steps}


def _caption(rival: str, ours: ProfileRecord, theirs: ProfileRecord) -> str:
    if not ours.plain_s or not theirs.plain_s:
        return ""
    return (
        f"Without a profiler a run of {OURS} takes {ours.plain_s * 1e3:.4g} ms and one of {rival} "
        f"{theirs.plain_s * 1e3:.4g} ms, {theirs.plain_s / ours.plain_s:.2f} times as long. Below are means of the "
        f"middle half of {ours.runs} and {theirs.runs} profiled runs."
    )


def _levels(label: str, row: ProfileRecord) -> Iterator[str]:
    """What the profiler costs, and whether the steps make up the run."""
    if row.plain_s and row.profiled_s:
        share = sum(step.seconds for step in row.steps) / row.plain_s
        off = "" if abs(share - 1) <= WITHIN else f", which is not within {WITHIN:.0%} of it"
        yield (
            f"{label}: {row.tool} changes a run by {row.profiled_s / row.plain_s - 1:+.1%}; the steps add up to "
            f"{share:.1%} of an unprofiled run{off}."
        )


def _peak(ceilings: Ceilings | None) -> Iterator[str]:
    if ceilings:
        yield (
            f"Peak: {ceilings.flops_per_s / 1e9:.0f} GFLOP/s, the sentinel's multiply-adds in float32. Arithmetic is "
            "that of the direct algorithm: over 100 % means fewer products (Winograd, Strassen), narrower types, or a "
            "slower spell of the machine while its peak was read."
        )


def _line(place: Region, where: str, reason: str) -> tuple[str, ...]:
    times = (place.ours.seconds, place.theirs.seconds)
    return (f"{place.gained_s * 1e3:+.3f}", where, *(f"{seconds * 1e3:.3f}" for seconds in times), reason)


def _all(found: Iterable[Region]) -> Region:
    """All of some regions as one."""
    parts = list(found)
    return Region((), sum_of(part.ours for part in parts), sum_of(part.theirs for part in parts))


def _where(place: Region) -> str:
    """The first node with products or else the first, the operators, and the arithmetic of one."""
    if not place.nodes:
        return "steps whose nodes no name tells"
    first = next((node for node in place.nodes if node.flops), place.nodes[0])
    kinds = [f"{count} {op}" if count > 1 else op for op, count in operators(place.nodes).items()]
    shown = kinds[:KINDS] + ([".."] if len(kinds) > KINDS else [])
    work = f"; {place.flops / place.count / 1e6:.3g} MFLOP" if place.flops else ""
    times = f"{place.count} x " if place.count > 1 else ""
    return f"{times}{first.name} ({', '.join(shown)}{work})"


def _reason(place: Region, rival: str, ceilings: Ceilings | None) -> str:
    """Where the difference comes from: the products themselves, the steps beside them, and what is stored between."""
    ours, theirs = place.ours, place.theirs
    noted = NOTED * max(ours.seconds, theirs.seconds)
    parts = []
    if not theirs.steps:
        parts.append((0.0, f"inside another step of {rival}"))
    if ours.products and theirs.products:
        parts.append((theirs.products_s - ours.products_s, _products(place, ceilings)))
    if max(ours.rest_s, theirs.rest_s) > noted and theirs.steps:
        parts.append((theirs.rest_s - ours.rest_s, _rest(ours, theirs, place.count)))
    parts.sort(key=lambda part: -abs(part[0]))
    return "; ".join([*(text for _, text in parts), *_stored(place)])


def _products(place: Region, ceilings: Ceilings | None) -> str:
    rates = [place.flops / side.products_s if side.products_s else 0.0 for side in (place.ours, place.theirs)]
    if ceilings:
        mine, other = (f"{rate / ceilings.flops_per_s:.0%}" for rate in rates)
        return f"products at {mine} of peak against {other}"
    return f"products at {rates[0] / 1e9:.3g} GFLOP/s against {rates[1] / 1e9:.3g}"


def _rest(ours: Side, theirs: Side, count: int) -> str:
    """The steps beside the products, of one of `count` regions."""
    mine, other = (f"{side.rest_s / count * 1e6:.0f} us{_kinds(side.rest)}" for side in (ours, theirs))
    return f"other steps {mine} against {other}"


def _kinds(steps: Sequence[Step]) -> str:
    seconds: dict[str, float] = defaultdict(float)
    for step in steps:
        seconds[step.kind] += step.seconds
    hottest = sorted(seconds, key=lambda kind: -seconds[kind])[:KINDS]
    return f" ({', '.join(hottest)})" if hottest else ""


def _stored(place: Region) -> Iterator[str]:
    """Tensors that only one of the systems writes to memory and reads again."""
    fewer = (place.theirs.stored - place.ours.stored) / place.count
    size = (place.theirs.stored_bytes - place.ours.stored_bytes) / place.count / 1e6
    if abs(fewer) >= 1 and abs(size) >= 0.01 and place.theirs.steps:
        what = f"{abs(fewer):.0f} tensor{'s' if abs(fewer) > 1 else ''} ({abs(size):.2g} MB)"
        yield f"{what} {'fewer' if fewer > 0 else 'more'} go{'' if abs(fewer) > 1 else 'es'} through memory"
