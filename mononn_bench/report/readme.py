"""What README.md, and published.md, why.md, limits.md, suites.md, bricks.md, gpu.md and measuring.md in docs/, show of
records under results/reference.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from mononn_bench.analysis.cells import Table
from mononn_bench.codec import read_record, write_text
from mononn_bench.errors import BenchError
from mononn_bench.profiled import CaseProfile, Primitives
from mononn_bench.report.bricks import brick_grids, read_bricks
from mononn_bench.report.design import simulation
from mononn_bench.report.explain import explain_grid, fastest_rival, layer_grid
from mononn_bench.report.figures import figure_bytes, write_bytes
from mononn_bench.report.figures.ablation import ablation_figure
from mononn_bench.report.figures.speed import speed_figure
from mononn_bench.report.figures.style import styled
from mononn_bench.report.gpu import gpu_blocks, read_calls
from mononn_bench.report.grids import markdown
from mononn_bench.report.limits import behind_grid
from mononn_bench.report.machine import machine_grids
from mononn_bench.report.published import Published, read_published, read_suites, runs_grid
from mononn_bench.report.studies import STUDIES, read_studies
from mononn_bench.report.tables import leads_grid, options_grid, speed_grid
from mononn_bench.report.words import provenance

BEGIN, END = "<!-- table:begin -->", "<!-- table:end -->"

PICTURE = "![Speed of each system, mononn = 1](docs/speedup.png)\n"
PRECISION = "precision"
"""The suite whose cases in other precisions stand in the picture."""
FAIRNESS = "fairness"
WITH_OPTIONS = ("options", FAIRNESS)
"""Suites that hold systems against themselves with an option changed."""
ABLATION, ABLATION_PICTURE = "ablation", "![Time without each decision over time with it](ablation.png)\n"


class DocumentError(BenchError):
    """A document lacks the marks between which a generated block belongs."""


def with_tables(text: str, published: list[Published], suites: Mapping[str, Table]) -> str:
    """`text` with the block between its marks replaced; raises DocumentError where a mark is missing."""
    blocks = [PICTURE] if published else []
    if published and (others := further_precisions(published[0].pooled, suites)):
        precisions = " and ".join(dict.fromkeys(case.precision for case in others.cases))
        source = f"the suite `{PRECISION}` ([docs/suites.md](docs/suites.md)), {provenance(others)}"
        blocks.append(f"In {precisions}, of the systems that have it: {source}.\n")
    for one in published:
        blocks.append(markdown(speed_grid(one.pooled), level=3))
    return _filled(text, blocks)


def with_runs(text: str, published: list[Published]) -> str:
    """As `with_tables`, each run beside the others."""
    return _filled(text, [markdown(runs_grid(one), level=2) for one in published])


def read_profiles(reference: Path) -> list[CaseProfile]:
    """The profiles that stand beside published records."""
    return [read_record(CaseProfile, path) for path in sorted(reference.rglob("profiles/*.json"))]


def with_reasons(text: str, profiles: Sequence[CaseProfile]) -> str:
    """As `with_tables`, of each profile what `mononn-bench explain` says beside the fastest rival that can be
    explained, and one layer of both.
    """
    blocks = []
    for profile in profiles:
        if rival := fastest_rival(profile):
            about = f"{profile.machine}, {revisions_of([profile])}"
            grids = [explain_grid(profile, rival), layer_grid(profile, rival)]
            blocks.append(f"## {profile.case} beside {rival}\n\nOn {about}.\n")
            blocks += [markdown(grid, level=3) for grid in grids if grid]
    return _filled(text, blocks)


def with_limits(text: str, published: Sequence[Published], suites: Mapping[str, Table]) -> str:
    """As `with_tables`, the comparisons of all records that ours does not win."""
    tables = {"published": published[0].pooled} if published else {}
    return _filled(text, [markdown(behind_grid({**tables, **suites}), level=2)])


def with_suites(text: str, suites: Mapping[str, Table]) -> str:
    """As `with_tables`, of suites by name: the table of each, and the picture of the ablation."""
    blocks = []
    for name, table in suites.items():
        if name == ABLATION:
            blocks.append(ABLATION_PICTURE)
        grid = options_grid(table) if name in WITH_OPTIONS else speed_grid(table)
        blocks.append(markdown(replace(grid, title=f"{name} on {table.machine}"), level=2))
        if name == FAIRNESS and table.leads:
            blocks.append(markdown(leads_grid(table), level=3))
    return _filled(text, blocks)


def brick_folders(reference: Path) -> list[Path]:
    """The folders under `reference` that hold records of bricks, by machine and suite."""
    return sorted(reference.glob("*/suites/*/bricks"))


def with_bricks(text: str, bricks: Sequence[Path]) -> str:
    """As `with_tables`, of the machines in whose folders networks were measured as bricks; what such a machine gives
    stands there too.
    """
    blocks = []
    for folder in bricks:
        models, given = read_bricks(folder), folder.parents[2] / "primitives.json"
        primitives = read_record(Primitives, given) if given.exists() else None
        grids = [*brick_grids(models, primitives), *(machine_grids(primitives) if primitives else [])]
        blocks += [f"## {models[0].machine}\n", *(markdown(grid, level=3) for grid in grids)]
    return _filled(text, blocks)


def study_folders(reference: Path, name: str) -> list[Path]:
    """The folders under `reference` that hold a study's records, by machine and suite."""
    return sorted(reference.glob(f"*/suites/*/{name}"))


def with_study(text: str, name: str, folders: Sequence[Path]) -> str:
    """As `with_tables`, of the machines on which a study's records were made."""
    blocks = []
    for folder in folders:
        shown = next(study for study in STUDIES if study.name == name)
        records = read_studies(folder.parent)[name]
        grids = (markdown(grid, level=3) for grid in shown.grids(records))
        blocks += [f"## {records[0].machine.name}, {revisions_of(records)}\n", *grids]
    return _filled(text, blocks)


def revisions_of(records: Sequence[Any]) -> str:
    """Where records of a study come from: the day and the source's revision, each once."""
    return "; ".join(dict.fromkeys(f"{one.created[:10]}, source {one.source_revision[:12]}" for one in records))


def with_simulation(text: str, tables: str) -> str:
    """As `with_tables`, what `mononn-bench simulate` prints."""
    return _filled(text, [tables])


def further_precisions(table: Table, suites: Mapping[str, Table]) -> Table | None:
    """The cases of the networks and systems of `table` in other precisions, as PRECISION among `suites` has them of
    the same machine, without systems that lack the precision.
    """
    suite = suites.get(PRECISION)
    if suite is None or suite.machine != table.machine:
        return None
    here, known = {case.network for case in table.cases}, {case.precision for case in table.cases}
    cases = [case for case in suite.cases if case.network in here and case.precision not in known]
    names = {case.name for case in cases}
    taking_part = (cell for cell in suite.cells if cell.status != "unavailable" and cell.system in table.systems)
    cells = [cell for cell in taking_part if cell.case in names]
    return replace(suite, cases=cases, cells=cells) if cases else None


def pictures(published: list[Published], suites: Mapping[str, Table]) -> dict[str, Figure]:
    """The figures of the documents by the name of their file: speed on the first machine, and the ablation."""
    with styled():
        drawn: dict[str, Figure] = {}
        if published:
            table = published[0].pooled
            others = further_precisions(table, suites) or replace(table, cases=(), cells=())
            cases, cells = (*table.cases, *others.cases), (*table.cells, *others.cells)
            drawn["speedup.png"] = speed_figure(replace(table, cases=cases, cells=cells))
        return drawn | ({"ablation.png": ablation_figure(suites[ABLATION])} if ABLATION in suites else {})


def main(root: Path) -> None:
    """Fill README.md and the documents in docs/ under `root` that show records, and draw their pictures."""
    reference = root / "results" / "reference"
    published, suites = read_published(reference), read_suites(reference)
    _fill(root / "README.md", lambda text: with_tables(text, published, suites))
    if published:
        _fill(root / "docs" / "published.md", lambda text: with_runs(text, published))
    if profiles := read_profiles(reference):
        _fill(root / "docs" / "why.md", lambda text: with_reasons(text, profiles))
    if published and suites:
        _fill(root / "docs" / "limits.md", lambda text: with_limits(text, published, suites))
    if suites:
        _fill(root / "docs" / "suites.md", lambda text: with_suites(text, suites))
    if bricks := brick_folders(reference):
        _fill(root / "docs" / "bricks.md", lambda text: with_bricks(text, bricks))
    if calls := read_calls(reference):
        _fill(root / "docs" / "gpu.md", lambda text: _filled(text, gpu_blocks(calls)))
    for study in STUDIES:
        if folders := study_folders(reference, study.name):
            name = study.name
            _fill(root / "docs" / f"{name}.md", lambda text, n=name, f=folders: with_study(text, n, f))  # type: ignore[misc]
    if published and "aa" in suites:
        _fill(root / "docs" / "measuring.md", lambda text: with_simulation(text, simulation(reference)))
    for name, figure in pictures(published, suites).items():
        write_bytes(root / "docs" / name, figure_bytes(figure, "png"))


def _fill(path: Path, filled: Callable[[str], str]) -> None:
    write_text(path, filled(path.read_text()))


def _filled(text: str, blocks: Sequence[str]) -> str:
    head, begin, rest = text.partition(BEGIN)
    _, end, tail = rest.partition(END)
    if not begin or not end:
        raise DocumentError(f"The document has no {BEGIN} … {END}: put both marks where the table belongs.")
    return "".join([head, BEGIN, "\n", "\n".join(blocks), END, tail])


if __name__ == "__main__":
    main(Path(sys.argv[1]))
