"""How numbers and verdicts read, in every kind of table."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Sequence

from mononn_bench.analysis.cells import OURS, CaseSummary, Cell, Effect, Headline, Table, columns_of
from mononn_bench.analysis.stats import FEWEST_ROUNDS, Rate
from mononn_bench.errors import BenchError
from mononn_bench.models.zoo import get_model

NOTHING = ""
SMALLEST = 1e-3
MODEL_COLUMNS = (
    ("time, ms", "median_ms"),
    ("p90, ms", "p90_ms"),
    ("samples", "samples"),
    ("roofline", "roofline_share"),
    ("rel. L2 error", "rel_l2"),
    ("against the unquantised model", "unquantised_l2"),
    ("build, s", "build_s"),
    ("load, ms", "load_ms"),
    ("load from disk, ms", "load_cold_ms"),
    ("first run, ms", "first_run_ms"),
    ("first run from disk, ms", "first_run_cold_ms"),
    ("peak memory, MB", "peak_mb"),
    ("at rest, MB", "rest_mb"),
    ("in huge pages, MB", "huge_mb"),
    ("artifact, MB", "artifact_mb"),
    ("one call, µs", "identity_us"),
    ("batch/latency, 1/s", "batch_per_latency_s"),
    ("tuning, s", "tuning_s"),
)
"""What a model's table shows of each system, by the name of its column in cells.csv."""
HOLM = "Verdicts are adjusted over this table (Holm): a difference that does not survive reads unresolved."
AA_LIMIT = "at most 9 in 100 may"
HUGE_PAGES = {
    "always": "every system has them",
    "madvise": "every system's processes ask for them",
    "never": "no system has any",
}
"""What each mode of the kernel means for a comparison."""
FEW_CASES = 10
"""Flagged cases of a network whose flags are listed one by one; of more, their kinds."""
ROUND, NUMBER = re.compile(r"^(run \d+, )?(round \d+: )?"), re.compile(r"\d+(\.\d+)?")
REVISION_DIGITS = 12


def model_columns(cells: Sequence[Cell]) -> list[tuple[str, str]]:
    """The columns of `MODEL_COLUMNS` that a table of `cells` has, each with its title."""
    shown = columns_of(cells)
    return [(title, column) for title, column in MODEL_COLUMNS if column in shown]


def number(column: str, value: float | None) -> str:
    """A number for a reader: three significant digits, a share in per cent, an error as a power of ten."""
    if value is None:
        return NOTHING
    if column == "roofline_share":
        return f"{value * 100:.0f} %"
    if column.startswith("rel_l2") or column == "unquantised_l2":
        return f"{value:.1e}"
    if 0 < value < SMALLEST:
        return f"<{SMALLEST:g}"
    digits = f"{value:.3g}"
    return f"{value:.0f}" if "e" in digits else digits


def plain_ratio(ratio: float) -> str:
    """A ratio, three decimals where it is near 1."""
    return f"{ratio:.{_digits(ratio)}f}"


def ends(ratio: float, low: float | None, high: float | None) -> str:
    """The interval of a ratio, with as many decimals as the ratio has; empty where there is none."""
    digits = _digits(ratio)
    return "" if low is None or high is None else f"[{low:.{digits}f}, {high:.{digits}f}]"


def interval(ratio: float, low: float | None, high: float | None) -> str:
    """A ratio with its interval."""
    return f"{plain_ratio(ratio)} {ends(ratio, low, high)}".rstrip()


def _digits(ratio: float) -> int:
    return 3 if 0.9 < ratio < 1.1 else 2


def ratio(cell: Cell) -> str:
    """A cell's ratio to ours with its interval; empty where it has none."""
    return NOTHING if cell.speedup is None else interval(cell.speedup, cell.speedup_low, cell.speedup_high)


def time(cell: Cell) -> str:
    """A cell's median in milliseconds, or its status."""
    return number("median_ms", cell.median_ms) if cell.median_ms is not None else cell.status


def ratio_cell(cell: Cell | None) -> str:
    """What the table of speed shows of a rival: ratio, interval and verdict; raw time; or status."""
    if cell is None:
        return "not measured"
    if cell.speedup is None:
        return f"{time(cell)} ms" if cell.median_ms is not None else cell.status
    status = f" {cell.status}" if cell.status != "ok" else ""
    computes = f" in {cell.computes}" if cell.computes not in ("", cell.precision) else ""
    return f"{ratio(cell)} {cell.verdict or ''}".rstrip() + computes + status


def case(one: CaseSummary) -> str:
    """A case's name, and the state of its caches where they are not simply warm."""
    return one.name if one.state == "warm" else f"{one.name} ({one.state})"


def best(case: CaseSummary) -> str:
    """The best rival's ratio and name, or why there is no such ratio."""
    if case.best is None:
        return f"none: {case.no_best}"
    name, e = case.best
    return f"{interval(e.ratio, e.low, e.high)} {name}"


def headline(one: Headline) -> str:
    """One sentence: a geometric mean for each rival."""
    if one.missing:
        return f"Geometric mean over {one.name}: {one.missing}."
    means = [
        f"{label} {interval(m.value, m.low, m.high)}" + (f" ({m.count} of {m.total})" if m.count < m.total else "")
        for label, m in one.means.items()
    ]
    total = next((m.total for m in one.means.values()), 0)
    return f"Geometric mean over {one.name} ({total}): {', '.join(means) or 'no rival has a speed'}."


def same_system(rate: Rate) -> str:
    """One sentence: how often a system differed from itself."""
    return (
        f"A system against itself: {rate.count} of {rate.total} comparisons differed "
        f"(rate's 95 % interval {rate.low * 100:.1f} to {rate.high * 100:.1f} %; {AA_LIMIT})."
    )


def detectable(table: Table) -> str:
    """What a comparison of the table finds, of the test that its verdicts come from."""
    assert table.detectable is not None
    hardest = f", as the hardest of {table.comparisons} comparisons (Holm)" if table.comparisons > 1 else ""
    return f"smallest difference found four times in five{hardest}: {(table.detectable - 1) * 100:.1f} %"


def provenance(table: Table) -> str:
    """When the records of a table were made, and from which sources."""
    days = sorted({created[:10] for case in table.cases for created in case.created})
    return f"measured {' to '.join(dict.fromkeys([days[0], days[-1]]))}, source {revisions(table.cases)}"


def revisions(cases: Iterable[CaseSummary]) -> str:
    """The source revisions of some cases, in short; a plus sign says that the checkout differed from its commit."""
    found = dict.fromkeys(revision for case in cases for revision in case.revisions)
    return " and ".join(r[:REVISION_DIGITS] + ("+" if r.endswith("+") else "") for r in found)


def blind_spots(table: Table) -> Iterable[str]:
    """What a table could miss, or could show that is not there: it stands under each."""
    few = sorted({c.model for c in table.cases if c.rounds < FEWEST_ROUNDS})
    if few:
        yield f"No intervals and no verdicts for {', '.join(few)}: fewer than {FEWEST_ROUNDS} rounds."
    if table.detectable is not None:
        text = detectable(table)
        yield f"{text[0].upper()}{text[1:]}."
    yield same_system(table.same_system) if table.same_system else "No system was measured against itself."
    if table.rivals:
        yield HOLM


def tuning(table: Table) -> Iterable[str]:
    """What each system that tunes has spent, ours first: seconds, cores, trials over all cases."""
    for system in table.systems:
        cells = [c for c in table.cells if c.system == system and c.tuning_s is not None]
        if cells:
            seconds = sum(c.tuning_s or 0.0 for c in cells)
            trials = sum(c.tuning_trials or 0 for c in cells)
            cores = "/".join(sorted({str(c.tuning_cores) for c in cells}))
            yield f"{system} tuned for {seconds:.0f} s on {cores} cores, {trials} trials, over {len(cells)} cases."
        elif system == OURS and any(c.tuning_s is not None for c in table.cells):
            yield f"{OURS} does not tune."


def troubles(table: Table) -> Iterable[str]:
    """What was flagged, a sentence a network, and each system that is not ok, a sentence a reason."""
    for model in dict.fromkeys(c.model for c in table.cases):
        cases = [c for c in table.cases if c.model == model]
        flagged = [c for c in cases if c.flags]
        if flagged and table.runs > 1:
            yield f"Flagged: {model} ({'; '.join(flag_kinds(flag for c in flagged for flag in c.flags))})."
        elif len(flagged) > FEW_CASES:
            kinds = "; ".join(flag_kinds(flag for c in flagged for flag in c.flags))
            yield f"Flagged: {len(flagged)} of {len(cases)} cases of {model} ({kinds}); the records name each."
        elif flagged:
            yield f"Flagged: {'; '.join(f'{c.name}, {flag}' for c in flagged for flag in c.flags)}."
    lacking: dict[tuple[str, str, str], list[str]] = {}
    for cell in table.cells:
        if cell.status != "ok":
            lacking.setdefault((cell.system, cell.status, cell.reason), []).append(cell.case)
    for (system, status, reason), names in lacking.items():
        yield f"{_named(table, names)}, {system}: {status}, {reason}."


def _named(table: Table, names: Collection[str]) -> str:
    """Some cases by name, or those of a precision together where there are several and all are among them."""
    texts: dict[str, None] = {}
    for case in table.cases:
        alike = [one.name for one in table.cases if one.precision == case.precision]
        together = len(alike) > 1 and all(name in names for name in alike)
        if case.name in names:
            texts[f"All {len(alike)} cases in {case.precision}" if together else case.name] = None
    return ", ".join(texts)


def flag_kinds(flags: Iterable[str]) -> Iterable[str]:
    """Every kind of flag once, the frequent first: its largest number, and how many there are."""
    found: dict[tuple[str, str], list[str]] = {}
    for flag in flags:
        before, number, after = ROUND.sub("", flag, count=1), "", ""
        if (match := NUMBER.search(before)) is not None:
            before, number, after = before[: match.start()], match[0], before[match.end() :]
        found.setdefault((before, after), []).append(number)
    for (before, after), numbers in sorted(found.items(), key=lambda kind: -len(kind[1])):
        most = max(numbers, key=lambda n: float(n or 0))
        many = len(numbers) > 1
        yield f"{f'{len(numbers)} times ' if many else ''}{before}{'up to ' if most and many else ''}{most}{after}"


def network(one: CaseSummary) -> str:
    """What the network of a case is; a model that the catalogue does not know is named by its source."""
    try:
        return f"{get_model(one.model).summary} ({one.source})"
    except BenchError:
        return one.source


def effect(one: Effect | None) -> str:
    """What an option changes in one case; empty where it was not measured."""
    if one is None:
        return NOTHING
    said = {"faster": "slower", "slower": "faster"}.get(one.verdict or "", one.verdict or "")
    return f"{interval(one.estimate.ratio, one.estimate.low, one.estimate.high)} {said}".rstrip()


def huge_pages(table: Table) -> Iterable[str]:
    """What the kernel does about huge pages, where the records say it."""
    for mode in dict.fromkeys(case.huge_pages for case in table.cases):
        if mode in HUGE_PAGES:
            yield f"Huge pages: {mode}, so that {HUGE_PAGES[mode]}."


def networks(cases: Iterable[CaseSummary]) -> Iterable[str]:
    """A sentence for each network, whatever its batches and repetitions."""
    return dict.fromkeys(f"{one.model}: {network(one)}." for one in cases)


def records(table: Table) -> Iterable[str]:
    """Where the table's records come from."""
    if table.cases:
        yield f"Records: {provenance(table)}."


def beneath(table: Table) -> Iterable[str]:
    """Everything that stands under the table of speed."""
    yield from (headline(one) for one in table.headlines if table.rivals)
    yield from networks(table.cases)
    yield from huge_pages(table)
    yield from blind_spots(table)
    yield from records(table)
    yield from tuning(table)
    yield from troubles(table)
