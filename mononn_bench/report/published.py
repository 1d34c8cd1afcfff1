"""Published results: several full runs in a row on one machine, shown as their median and range."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from matplotlib.figure import Figure

from mononn_bench.analysis.cells import OURS, Cell, Table, is_variant
from mononn_bench.analysis.stats import GeometricMean
from mononn_bench.analysis.table import make_table
from mononn_bench.analysis.twins import same_system_rate
from mononn_bench.record import CaseRecord, read_record
from mononn_bench.report import words
from mononn_bench.report.figures.speed import Bar, Group, draw_groups
from mononn_bench.report.figures.style import time_text
from mononn_bench.report.grids import Grid


@dataclass(frozen=True)
class Published:
    """The runs of one machine, in the order in which they were made."""

    machine: str
    runs: Sequence[Table]

    @property
    def systems(self) -> list[str]:
        """Every system of any run, in the first run's order."""
        return list(dict.fromkeys(system for run in self.runs for system in run.systems))

    @property
    def rivals(self) -> list[str]:
        """Every system but ours."""
        return [system for system in self.systems if system != OURS]

    @property
    def cases(self) -> list[str]:
        """Every case of any run, in the first run's order."""
        return list(dict.fromkeys(case.name for run in self.runs for case in run.cases))

    def cells(self, case: str, system: str) -> list[Cell]:
        """The cells of a case and a system, one a run that has it."""
        return [cell for run in self.runs if (cell := run.cell(case, system)) is not None]


def read_published(reference: Path) -> list[Published]:
    """What stands under `reference`/<machine>/<run>/raw; models from the largest to the smallest."""
    found: dict[str, list[Table]] = {}
    for folder in sorted(path for path in reference.glob("*/*/raw") if path.is_dir()):
        found.setdefault(folder.parents[1].name, []).append(_read_table(folder))
    return [Published(machine, runs) for machine, runs in found.items()]


def read_suites(reference: Path) -> dict[str, Table]:
    """What stands under `reference`/<machine>/suites/<name>/raw of the first machine, by name."""
    machines = sorted(reference.glob("*/suites"))
    folders = sorted(machines[0].glob("*/raw")) if machines else []
    return {folder.parent.name: _read_table(folder) for folder in folders}


def _read_table(folder: Path) -> Table:
    records = [read_record(CaseRecord, path) for path in folder.glob("*.json")]
    return make_table(sorted(records, key=lambda r: (-r.model.flops, r.model.name, r.model.batch, r.settings.seed)))


def published_grid(published: Published) -> Grid:
    """The table of speed over all runs: medians, and the range from the smallest to the largest."""
    runs = len(published.runs)
    rows = []
    for case in published.cases:
        ours = [c.median_ms for c in published.cells(case, OURS) if c.median_ms is not None]
        row = [case, words.number("median_ms", median(ours)) if ours else "no time"]
        row += [_ratio_cell(published.cells(case, rival), runs) for rival in published.rivals]
        rows.append([*row, _best(published, case)])
    what = f"{runs} full runs in a row: median ratio, and its range in brackets" if runs > 1 else "One full run"
    return Grid(
        title=f"Speed on {published.machine}",
        caption=f"{what}. Each rival's time over that of {OURS}: over 1 means that {OURS} is faster.",
        header=["model", f"{OURS}, ms", *published.rivals, "best rival"],
        rows=rows,
        notes=list(_notes(published)),
    )


def published_figure(published: Published) -> Figure:
    """As the figure of one run, each bar a median over runs and its whiskers their range."""
    groups = []
    for case in published.cases:
        bars = [_bar(system, published.cells(case, system)) for system in published.systems]
        ours = [c.median_ms for c in published.cells(case, OURS) if c.median_ms is not None]
        groups.append(Group(f"{case}\n({time_text(median(ours))})" if ours else case, [b for b in bars if b]))
    return draw_groups(groups, published.systems)


def _bar(system: str, cells: Sequence[Cell]) -> Bar | None:
    if not cells:
        return None
    speeds = [1 / c.speedup for c in cells if c.speedup is not None]
    if not speeds:
        last = cells[-1]
        return Bar(system, None, reason=f"{last.status}: {last.reason}" if last.reason else last.status)
    note = "" if len(speeds) == len(cells) else f"{len(speeds)} of {len(cells)} runs"
    return Bar(system, median(speeds), min(speeds), max(speeds), note=note)


def _ratio_cell(cells: Sequence[Cell], runs: int) -> str:
    ratios = [c.speedup for c in cells if c.speedup is not None]
    if not ratios:
        return " / ".join(dict.fromkeys(words.ratio_cell(c) for c in cells)) or "not measured"
    status = " ".join(dict.fromkeys(c.status for c in cells if c.status != "ok"))
    count = f"{len(ratios)} of {runs} runs" if len(ratios) < runs else ""
    verdicts = " / ".join(dict.fromkeys(c.verdict or "" for c in cells if c.speedup is not None))
    return " ".join(part for part in (_spread(ratios), verdicts, count, status) if part)


def _best(published: Published, case: str) -> str:
    summaries = [c for run in published.runs for c in run.cases if c.name == case]
    found = [c.best for c in summaries if c.best is not None]
    if not found:
        return f"none: {summaries[-1].no_best}"
    names = " / ".join(dict.fromkeys(name for name, _ in found))
    return f"{_spread([e.ratio for _, e in found])} {names}"


def _notes(published: Published) -> Iterable[str]:
    yield from _means(published)
    yield from words.networks(case for run in published.runs for case in run.cases)
    twins = [twin for run in published.runs for twin in run.twins]
    rate = same_system_rate(twins)
    yield words.same_system(rate) if rate else "No system was measured against itself."
    blind = [run.detectable for run in published.runs if run.detectable is not None]
    if blind:
        yield f"Smallest difference found four times in five: {_spread_of(blind, lambda r: f'{(r - 1) * 100:.1f} %')}."
    yield "Verdicts are adjusted over each run's table (Holm): a difference that does not survive reads unresolved."
    yield from (line for line in words.tuning(published.runs[-1]))
    yield from _troubles(published)


def _means(published: Published) -> Iterable[str]:
    """Geometric means, median and range over the runs that have them."""
    for name in dict.fromkeys(h.name for run in published.runs for h in run.headlines):
        lines = [h for run in published.runs for h in run.headlines if h.name == name]
        whole = [h for h in lines if not h.missing]
        if not whole:
            yield words.headline(lines[-1])
            continue
        texts = []
        for rival in published.rivals:
            means = [h.means[rival] for h in whole if rival in h.means]
            if means and not is_variant(rival):
                texts.append(f"{rival} {_spread([m.value for m in means])}{_of(means)}")
        total = max((m.total for h in whole for m in h.means.values()), default=0)
        yield f"Geometric mean over {name} ({total}): {', '.join(texts) or 'no rival has a speed'}."


def _of(means: Sequence[GeometricMean]) -> str:
    fewest = min(means, key=lambda m: m.count)
    return f" ({fewest.count} of {fewest.total})" if fewest.count < fewest.total else ""


def _troubles(published: Published) -> Iterable[str]:
    for case in published.cases:
        flags = [flag for run in published.runs for c in run.cases if c.name == case for flag in c.flags]
        if flags:
            yield f"{case}, flagged: {'; '.join(flags)}."
    reasons = (
        f"{c.case}, {c.system}: {c.status}, {c.reason}."
        for run in published.runs
        for c in run.cells
        if c.status != "ok"
    )
    yield from dict.fromkeys(reasons)


def _spread(ratios: Sequence[float]) -> str:
    digits = 3 if 0.9 < median(ratios) < 1.1 else 2
    return _spread_of(ratios, lambda ratio: f"{ratio:.{digits}f}")


def _spread_of(values: Sequence[float], shown: Callable[[float], str]) -> str:
    """The median, and the range where there are several values."""
    middle = shown(median(values))
    return middle if len(values) == 1 else f"{middle} [{shown(min(values))}, {shown(max(values))}]"
