"""report.html: the whole run on one page that needs no network. What comes from records is escaped by the template."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from mononn_bench.analysis.cells import OURS, CaseSummary, Cell, Table, is_variant
from mononn_bench.profiled import CaseProfile, ProfileRecord
from mononn_bench.record import CaseRecord, Round
from mononn_bench.report import words
from mononn_bench.report.explain import explain_grid, levels_grid, rivals
from mononn_bench.report.grids import Grid
from mononn_bench.report.layers import layer_grids
from mononn_bench.report.names import REPEATED
from mononn_bench.report.studies import Shown
from mononn_bench.report.tables import case_grid, same_grid, speed_grid

TEMPLATES = Path(__file__).with_name("page")
HOTTEST = 4
"""Kinds of operators that the page shows of a profile."""
CAPTIONS = {
    "speedup": "Speed over that of mononn, with 95 % intervals. A cross stands where a system has no speed.",
    "latency": "Latency of single runs: box 25 to 75 %, line at the median, whiskers 5 to 95 %, tick at 99 %, each "
    "where the samples (their number stands in brackets) are enough for it.",
    "roofline": "Left: each network under the machine's measured ceilings. Right: share of the attainable speed.",
    "accuracy": "Relative L2 error against the reference in double precision, of the output nearest its limit.",
    "ablation": "What each decision of the compiler is worth: time without it over time with it.",
    "bricks": "Networks rebuilt from bricks of so many layers: the share of them whose time comes as near as that to "
    "the measured one. Grey: 5 and 10 %. In brackets: how many could be rebuilt.",
    "aa": "A system measured against itself: a ratio whose interval excludes 1 is a false alarm.",
}


@dataclass(frozen=True)
class Entry:
    """One value of the sortable table: what is shown, and what it is sorted by."""

    text: str
    order: float | str


@dataclass(frozen=True)
class Section:
    """One case on the page: its table, its rounds and its record."""

    name: str
    case: CaseSummary
    grid: Grid
    record: CaseRecord
    rounds: Sequence[tuple[str, ...]]
    profiles: Sequence[tuple[str, ...]]
    layers: Sequence[Grid]
    explained: Sequence[Grid]


def page_html(
    table: Table,
    records: Sequence[CaseRecord],
    pictures: Mapping[str, str],
    profiles: Mapping[str, CaseProfile] | None = None,
    bricks: Sequence[Grid] = (),
    given: Sequence[Grid] = (),
    studies: Sequence[Shown] = (),
) -> str:
    """The page of a table, of the records it was made from, in the same order, of figures as SVG texts by name, of
    profiles by case, of what bricks say, of what the machine gives, and of further studies.
    """
    environment = Environment(
        loader=FileSystemLoader(TEMPLATES), autoescape=True, undefined=StrictUndefined, trim_blocks=True,
        lstrip_blocks=True,
    )  # fmt: skip
    profiles = profiles or {}
    sections = [_section(table, *each, profiles) for each in zip(table.cases, records, strict=True)]
    networks = dict.fromkeys(REPEATED.sub("", case.name) for case in table.cases)
    columns = words.model_columns(table.cells)
    content: dict[str, Any] = {
        "table": table,
        "ours": OURS,
        "speed": speed_grid(table),
        "sections": [section for section in sections if not REPEATED.search(section.name)],
        "same": [same_grid(table, name) for name in networks] if table.twins else [],
        "rows": [_sortable(cell, [column for _, column in columns]) for cell in table.cells],
        "columns": ["model", "system", "status", "ratio", "verdict", *(title for title, _ in columns)],
        "failures": [cell for cell in table.cells if cell.status != "ok"],
        "blind_spots": list(words.blind_spots(table)),
        "tuning": list(words.tuning(table)) or ["No system of this run tunes."],
        "pictures": {name: Markup(_inline(svg)) for name, svg in pictures.items()},
        "captions": {**CAPTIONS, **{shown.study.name: shown.study.caption for shown in studies}},
        "studies": studies,
        "machine": _machine(records),
        "levels": levels_grid(profiles),
        "bricks": bricks,
        "given": given,
        "records": records,
        "words": words,
        "is_variant": is_variant,
        "style": Markup((TEMPLATES / "page.css").read_text()),
        "script": Markup((TEMPLATES / "page.js").read_text()),
    }
    return environment.get_template("page.html.j2").render(content)


def _section(table: Table, case: CaseSummary, record: CaseRecord, profiles: Mapping[str, CaseProfile]) -> Section:
    profile = profiles.get(case.name)
    return Section(
        case.name,
        case,
        case_grid(table, case),
        record,
        [_round(r) for r in record.rounds],
        [_profile(p) for p in profile.profiles] if profile else [],
        layer_grids(case.name, profile) if profile else [],
        [explain_grid(profile, rival) for rival in rivals(profile)] if profile else [],
    )


def _sortable(cell: Cell, columns: Sequence[str]) -> list[Entry]:
    texts = [Entry(text, text) for text in (cell.case, cell.system, cell.status)]
    values = [(name, getattr(cell, name)) for name in columns]
    return [
        *texts,
        Entry(words.ratio(cell), _order(cell.speedup)),
        Entry(cell.verdict or "", cell.verdict or ""),
        *(Entry(words.number(name, value), _order(value)) for name, value in values),
    ]


def _order(value: float | None) -> float:
    """Nothing stands behind everything."""
    return float("inf") if value is None else value


def _round(one: Round) -> tuple[str, ...]:
    """A round for a reader: number, systems, drift, stolen time, repeated and disturbed blocks, flags."""
    blocks = [block for cycle in one.cycles for block in cycle.blocks]
    return (
        str(one.index + 1),
        ", ".join(one.systems),
        "" if one.drift is None else f"{one.drift:.1%}",
        "" if one.steal is None else f"{one.steal:.1%}",
        str(sum(not block.accepted for block in blocks)),
        str(sum(block.accepted and not block.undisturbed for block in blocks)),
        "; ".join(one.flags),
    )


def _profile(one: ProfileRecord) -> tuple[str, ...]:
    """A profile for a reader: system, tool, and its hottest operators, or why there are none; of counters how many this
    machine shows.
    """
    hottest = sorted(one.operators, key=lambda o: -o.seconds)[:HOTTEST]
    texts = [f"{o.kind} {o.seconds * 1e3:.3g} ms ({o.count})" for o in hottest]
    if one.counters:
        texts = [f"{sum(c.value is not None for c in one.counters)} of {len(one.counters)} counters are shown"]
    return one.system, one.tool, "; ".join(texts) if one.status == "ok" else f"{one.status}: {one.reason}"


def _machine(records: Sequence[CaseRecord]) -> dict[str, str]:
    """What the machine told of itself, and what the sentinel measured on it."""
    if not records:
        return {}
    machine = records[0].machine
    caches = ", ".join(f"{name} {size} KiB" for name, size in machine.caches_kib.items())
    facts = {
        "name": machine.name,
        "processor": f"{machine.cpu}, {machine.architecture}",
        "cores of a case": ", ".join(map(str, records[0].cores)),
        "caches": caches or "not exposed",
        "memory": f"{machine.memory_mb} MB",
        "kernel, C library": f"{machine.kernel}, {machine.libc}",
        "hypervisor": machine.hypervisor,
        "clock, governor": f"{machine.clock}, {machine.governor}",
    }
    ceilings = [record.ceilings for record in records if record.ceilings is not None]
    if ceilings:
        best = {name: max(getattr(c, name) for c in ceilings) / 1e9 for name in CEILINGS}
        facts["ceilings"] = ", ".join(f"{best[name]:.0f} {unit}" for name, unit in CEILINGS.items())
    return facts


CEILINGS = {"flops_per_s": "GFLOP/s", "cache_bytes_per_s": "GB/s near cache", "dram_bytes_per_s": "GB/s memory"}


def _inline(svg: str) -> str:
    """An SVG file as an element of the page: no prologue, and it scales with the page."""
    element = svg[svg.index("<svg") :]
    return re.sub(r'(<svg[^>]*?) width="[^"]+" height="[^"]+"|(<svg[^>]*?) height="[^"]+"', r"\1\2", element, count=1)
