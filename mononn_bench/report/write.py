"""Records in, report out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from mononn_bench.analysis.bricks import brick_rows
from mononn_bench.analysis.layers import kernels, kinds, layers
from mononn_bench.analysis.table import make_table
from mononn_bench.bricked import BrickedModel
from mononn_bench.codec import write_text
from mononn_bench.profiled import CaseProfile, Primitives
from mononn_bench.record import CaseRecord, read_record
from mononn_bench.report.bricks import brick_grids, read_bricks
from mononn_bench.report.explain import explain_grid, levels_grid, rivals
from mononn_bench.report.figures import draw_figures, write_figures
from mononn_bench.report.grids import latex, markdown
from mononn_bench.report.layers import layer_grids
from mononn_bench.report.machine import machine_grids
from mononn_bench.report.names import PAGE
from mononn_bench.report.page import page_html
from mononn_bench.report.studies import STUDIES, Shown, draw_studies, read_studies
from mononn_bench.report.tables import rows_csv, speed_grid, write_tables


def write_report(records: Sequence[Path], folder: Path, primitives: Path | None = None) -> str:
    """Read case records, in the order of the table's rows, and write `folder`/tables, figures and report.html;
    `primitives` is the record of what the machine gives.

    Returns the text of speedup.md. Without records the report is of bricks and studies alone. Raises RecordError for a
    file that is no case record.
    """
    read = [read_record(CaseRecord, path) for path in records]
    cut, studied = read_bricks(folder / "bricks"), read_studies(folder)
    table = make_table(read)
    if read:
        write_tables(table, folder / "tables")
    else:
        table = replace(table, machine=_machine(cut, studied))
    pictures = write_figures({**draw_figures(table, cut), **draw_studies(studied)}, folder / "figures")
    profiles = {
        c.name: read_record(CaseProfile, path) for c in table.cases if (path := _profile(folder, c.name)).exists()
    }
    write_profiles(profiles, folder / "tables")
    given = read_record(Primitives, primitives) if primitives else None
    write_bricks(cut, given, folder / "tables")
    machine = machine_grids(given) if given else []
    if given:
        write_text(folder / "tables" / "machine.md", "\n".join(map(markdown, machine)))
    shown = write_studies(studied, folder / "tables")
    write_text(folder / PAGE, page_html(table, read, pictures, profiles, brick_grids(cut, given), machine, shown))
    return markdown(speed_grid(table))


def write_profiles(profiles: Mapping[str, CaseProfile], folder: Path) -> None:
    """Write what profiles say into `folder`: every step (layers.csv) and every kind of step (kinds.csv) of all systems,
    GPU kernels where there are any (kernels.csv), what each profiler costs (levels.md), each case's tables of layers,
    and ours beside each rival whose steps say what they compute.
    """
    found, on_gpu = layers(profiles), kernels(profiles)
    for case, profile in profiles.items():
        if grids := layer_grids(case, profile):
            write_text(folder / f"{case}.layers.md", "\n".join(map(markdown, grids)))
    if on_gpu:
        write_text(folder / "kernels.csv", rows_csv(on_gpu))
    if not found:
        return
    write_text(folder / "layers.csv", rows_csv(found))
    write_text(folder / "kinds.csv", rows_csv(kinds(found)))
    write_text(folder / "levels.md", markdown(levels_grid(profiles)))
    for case, profile in profiles.items():
        for rival in rivals(profile):
            write_text(folder / f"{case}.beside.{rival}.md", markdown(explain_grid(profile, rival)))


def write_bricks(models: Sequence[BrickedModel], primitives: Primitives | None, folder: Path) -> None:
    """Write what bricks say into `folder`: the tables as text (bricks.md), and every brick of every cut with its time
    with each system (bricks.csv).
    """
    if models:
        write_text(folder / "bricks.md", "\n".join(markdown(grid) for grid in brick_grids(models, primitives)))
        write_text(folder / "bricks.csv", rows_csv(brick_rows(models)))


def write_studies(records: Mapping[str, Sequence[Any]], folder: Path) -> list[Shown]:
    """Write the tables of every study with records into `folder`, as text, LaTeX and CSV; what the page shows."""
    shown = [Shown(study, study.grids(records[study.name])) for study in STUDIES if study.name in records]
    for one in shown:
        name = one.study.name
        write_text(folder / f"{name}.md", "\n".join(map(markdown, one.grids)))
        write_text(folder / f"{name}.tex", "\n".join(latex(grid, f"{name}-{i}") for i, grid in enumerate(one.grids)))
        write_text(folder / f"{name}.csv", rows_csv(one.study.rows(records[name])))
    return shown


def _machine(cut: Sequence[BrickedModel], studied: Mapping[str, Sequence[Any]]) -> str:
    """The machine's name where there are no cases."""
    return next(iter([*(m.machine for m in cut), *(r.machine.name for found in studied.values() for r in found)]), "")


def _profile(folder: Path, case: str) -> Path:
    return folder / "profiles" / f"{case}.json"
