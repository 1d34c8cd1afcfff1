"""What an option changes, the two views, and starts with warm and cold files, as tables show them."""

from dataclasses import replace

import pytest
from bench_report.records import MACHINE, a_case, a_system

from mononn_bench.analysis.table import make_table
from mononn_bench.errors import RecordError
from mononn_bench.record import Start
from mononn_bench.report.tables import case_grid, leads_grid, options_grid, speed_grid, write_tables

TIMES = {"mononn": 1e-3, "onnxruntime": 2e-3, "openvino": 1.5e-3}
PINNED, SMALL = "onnxruntime[affinity=on]", "onnxruntime[pages=small]"


@pytest.fixture
def varied():
    return a_case("mlp", {**TIMES, PINNED: 1.6e-3, SMALL: 2.6e-3, "xla[pages=small]": 1e-3}, rounds=6)


def test_an_option_is_held_against_its_own_system(varied):
    grid = options_grid(make_table([varied]))
    assert grid.header == ["system [option]", "mlp"]
    shown = {row[0]: row[1] for row in grid.rows}
    assert list(shown) == [PINNED, SMALL], "a variant without its system has no effect"
    assert shown[PINNED].startswith("0.8") and shown[PINNED].endswith("] faster")
    assert shown[SMALL].startswith("1.3") and shown[SMALL].endswith("] slower")


def test_a_rival_with_an_option_changed_is_never_the_best_rival(varied):
    (case,) = make_table([varied]).cases
    assert case.best is not None and case.best[0] == "openvino"


def test_the_table_of_options_is_written_where_a_rival_was_varied(varied, tmp_path):
    write_tables(make_table([varied]), tmp_path / "varied")
    write_tables(make_table([a_case("mlp", {**TIMES, "mononn[fuse=off]": 2e-3})]), tmp_path / "ours")
    assert (tmp_path / "varied" / "options.md").exists()
    assert not (tmp_path / "ours" / "options.md").exists()


def test_what_options_change_against_the_best_rival():
    """Ours 1 ms, or 1.1 ms without; the best rival 1.5 ms without the options, and 1.2 ms, another one, with them."""
    times = {
        "mononn": 1e-3, "mononn[pages=small]": 1.1e-3, "onnxruntime": 1.2e-3, SMALL: 1.8e-3,
        "openvino": 1.4e-3, "openvino[pages=small]": 1.5e-3, "openvino[pinning=on]": 0.5e-3,
    }  # fmt: skip
    table = make_table([a_case(name, times, rounds=6) for name in ("mlp", "bert-tiny")])
    for one in table.leads:
        assert (one.best, one.varied_best) == ("onnxruntime", "openvino[pages=small]")
        assert one.measured.ratio == pytest.approx(1.2, rel=0.02)
        assert one.varied.ratio == pytest.approx(1.5 / 1.1, rel=0.02)
        assert one.change and one.change.ratio == pytest.approx(1.2 / 1.5 * 1.1, rel=0.02)
    rows = leads_grid(table).rows
    assert [row[0] for row in rows] == ["mlp", "bert-tiny", "geometric mean"]
    assert rows[-1][5].startswith("0.88") and "[" in rows[-1][5]


def test_a_rival_without_a_variant_leads_only_as_it_is_measured():
    times = {"mononn": 1e-3, "mononn[pages=small]": 1e-3, "onnxruntime": 2e-3, SMALL: 2e-3, "zentorch": 1.5e-3}
    (one,) = make_table([a_case("mlp", times, rounds=6)]).leads
    assert (one.best, one.varied_best) == ("zentorch", SMALL)
    del times["mononn[pages=small]"]
    assert not make_table([a_case("mlp", times)]).leads


def test_experts_settings_and_defaults_are_never_in_one_table():
    expert = a_case("mlp", TIMES)
    defaults = replace(a_case("bert-tiny", TIMES), view="defaults")
    with pytest.raises(RecordError, match="two views"):
        make_table([expert, defaults])
    assert "own defaults" in speed_grid(make_table([defaults])).title
    assert "defaults" not in speed_grid(make_table([expert])).title


def test_a_row_says_which_precision_a_system_chose():
    half = replace(a_system("openvino"), computes="bf16")
    table = make_table(
        [a_case("mlp", TIMES, {"openvino": half, "mononn": replace(a_system("mononn"), computes="fp32")})]
    )
    (row,) = speed_grid(table).rows
    assert row[table.rivals.index("openvino") + 2].endswith("in bf16")
    assert "in fp" not in " ".join(row)


@pytest.mark.parametrize(("mode", "words"), [("madvise", "ask for them"), ("never", "no system has any")])
def test_the_mode_of_huge_pages_stands_under_the_table(mode, words):
    record = replace(a_case("mlp", TIMES), machine=replace(MACHINE, huge_pages=mode))
    assert any(mode in note and words in note for note in speed_grid(make_table([record])).notes)
    assert not any("Huge pages" in note for note in speed_grid(make_table([a_case("mlp", TIMES)])).notes)


def test_starts_are_shown_by_the_state_of_the_files():
    starts = [Start("warm", 10.0, 2.0, 50.0, 40.0, 30.0)] * 2 + [Start("cold", 90.0, 5.0, 70.0, 40.0, 30.0)] * 3
    result = replace(a_system("onnxruntime"), starts=tuple(starts))
    table = make_table([a_case("mlp", TIMES, {"onnxruntime": result})])
    grid = case_grid(table, table.cases[0])
    row = dict(zip(grid.header, next(row for row in grid.rows if row[0] == "onnxruntime"), strict=True))
    assert (row["load from disk, ms"], row["first run from disk, ms"]) == ("90", "5")
    assert (row["at rest, MB"], row["in huge pages, MB"]) == ("40", "30")
    cell = table.cell("mlp", "openvino")
    assert cell is not None and cell.load_cold_ms is None
