"""Records in, report out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from mononn_bench.analysis.bricks import brick_rows
from mononn_bench.analysis.layers import kernels, kinds, layers
from mononn_bench.analysis.lengths import length_rows
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
from mononn_bench.report.lengths import length_grids, read_served
from mononn_bench.report.machine import machine_grids
from mononn_bench.report.names import PAGE
from mononn_bench.report.page import page_html
from mononn_bench.report.tables import rows_csv, speed_grid, write_tables
from mononn_bench.served import ServedModel


def write_report(records: Sequence[Path], folder: Path, primitives: Path | None = None) -> str:
    """Read case records, in the order of the table's rows, and write `folder`/tables, figures and report.html;
    `primitives` is the record of what the machine gives.

    Returns the text of speedup.md. Without records the report is of bricks and requests alone. Raises RecordError for a
    file that is no case record.
    """
    read = [read_record(CaseRecord, path) for path in records]
    cut, served = read_bricks(folder / "bricks"), read_served(folder / "lengths")
    table = make_table(read)
    if read:
        write_tables(table, folder / "tables")
    else:
        names = [*(one.machine for one in cut), *(one.machine.name for one in served)]
        table = replace(table, machine=names[0] if names else "")
    pictures = write_figures(draw_figures(table, cut, served), folder / "figures")
    profiles = {
        c.name: read_record(CaseProfile, path) for c in table.cases if (path := _profile(folder, c.name)).exists()
    }
    write_profiles(profiles, folder / "tables")
    given = read_record(Primitives, primitives) if primitives else None
    write_bricks(cut, given, folder / "tables")
    write_lengths(served, folder / "tables")
    machine = machine_grids(given) if given else []
    if given:
        write_text(folder / "tables" / "machine.md", "\n".join(map(markdown, machine)))
    grids = {"bricks": brick_grids(cut, given), "given": machine, "lengths": length_grids(served)}
    write_text(folder / PAGE, page_html(table, read, pictures, profiles, **grids))
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


def write_lengths(models: Sequence[ServedModel], folder: Path) -> None:
    """Write how requests of many lengths were answered into `folder`: the tables as text (lengths.md, lengths.tex), and
    a row a contestant with everything (lengths.csv).
    """
    if grids := length_grids(models):
        write_text(folder / "lengths.md", "\n".join(map(markdown, grids)))
        write_text(folder / "lengths.tex", "\n".join(latex(grid, f"lengths-{i}") for i, grid in enumerate(grids)))
        write_text(folder / "lengths.csv", rows_csv(length_rows(models)))


def _profile(folder: Path, case: str) -> Path:
    return folder / "profiles" / f"{case}.json"
