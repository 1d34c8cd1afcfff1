"""What figures show of records whose times are known."""

import xml.etree.ElementTree as ElementTree

import pytest
from bench_report.records import a_case, a_system, an_ablation, same_system_runs

from mononn_bench.analysis.table import make_table
from mononn_bench.report import figures
from mononn_bench.report.figures.style import LOOKS, looks
from mononn_bench.report.names import FIGURES, FORMATS

TRIO = {"mononn": 1e-3, "onnxruntime": 2e-3, "openvino": 1.5e-3}


def words_of(figure):
    texts = [t for axes in figure.axes for t in [*axes.texts, *axes.get_yticklabels(), *axes.get_xticklabels()]]
    return " ".join(t.get_text().replace("\n", " ") for t in texts)


@pytest.fixture
def drawn(whole_run):
    return figures.draw_figures(make_table(whole_run))


def test_a_bar_or_a_cross_with_its_reason_for_every_cell(drawn, whole_run):
    axes = drawn["speedup"].axes[0]
    table = make_table(whole_run)
    with_speed = sum(cell.speedup is not None for cell in table.cells)
    in_means = len(table.headlines[0].means) + 1
    crosses = [line for line in axes.lines if line.get_marker() == "x"]
    assert len(axes.patches) == with_speed + in_means
    assert len(crosses) == 4 * 8 - with_speed + 8 - in_means
    text = words_of(drawn["speedup"])
    for reason in ("unavailable: no NVIDIA GPU", "timeout: no answer for 120 s", "disputed: no independent"):
        assert reason in text
    assert "0.84 (undertuned)" in text
    assert "(1 of 4)" in text


def test_bars_have_the_height_of_the_speed_and_the_whiskers_of_the_interval():
    table = make_table([a_case("mlp", TRIO)])
    axes = figures.draw_figures(table)["speedup"].axes[0]
    cell = table.cell("mlp", "openvino")
    assert axes.patches[2].get_height() == pytest.approx(1 / cell.speedup)
    whisker = axes.collections[-1].get_segments()[0]
    assert sorted(y for _, y in whisker) == pytest.approx([1 / cell.speedup_high, 1 / cell.speedup_low])


def test_a_figure_of_nothing_but_failures_can_be_drawn():
    failed = {name: a_system(name, "failed", "no luck & $x$") for name in TRIO}
    drawn = figures.draw_figures(make_table([a_case("mlp", TRIO, failed)]))
    for name, figure in drawn.items():
        assert figures.figure_bytes(figure, "svg")
        if name in ("speedup", "latency"):
            assert sum("no luck" in t.get_text() for t in figure.axes[0].texts) == 3


def test_latency_shows_medians_of_samples_and_reasons(drawn):
    text = words_of(drawn["latency"])
    assert "incorrect: relative L2 error 3e-2" in text
    assert [axes.get_title(loc="left") for axes in drawn["latency"].axes] == [
        "bert-base", "resnet50", "vit-base", "t5-small",
    ]  # fmt: skip


def test_latency_shows_how_many_samples_and_no_quantile_beyond_them():
    many, few = (figures.draw_figures(make_table([a_case("mlp", TRIO, rounds=r)]))["latency"] for r in (12, 2))
    ticks, whiskers = ([_latency_marks(f) for f in (many, few)][i] for i in (0, 1))
    assert ticks == {"boxes": 3, "whiskers": 3, "far": 3} and whiskers == {"boxes": 3, "whiskers": 3, "far": 0}
    alone = _latency_marks(figures.draw_figures(make_table([a_case("mlp", TRIO, rounds=1)]))["latency"])
    assert alone == {"boxes": 3, "whiskers": 0, "far": 0}
    assert "mononn (72)" in words_of(few)


def _latency_marks(figure):
    axes = figure.axes[0]
    flat = [line for line in axes.lines if len(line.get_xdata()) == 2 and len(set(line.get_ydata())) == 1]
    return {
        "boxes": len(axes.patches), "whiskers": len(flat),
        "far": sum(line.get_marker() == "|" for line in axes.lines),
    }  # fmt: skip


def test_the_roofline_has_its_ceilings_and_each_share(drawn, whole_run):
    left, right = drawn["roofline"].axes
    assert "240 GFLOP/s" in words_of(drawn["roofline"]) and "memory, 45 GB/s" in words_of(drawn["roofline"])
    shares = sorted(
        line.get_xdata()[0] for line in right.lines if line.get_marker() != "x" and len(line.get_xdata()) == 1
    )
    expected = sorted(c.roofline_share * 100 for c in make_table(whole_run).cells if c.roofline_share is not None)
    assert shares == pytest.approx(expected)
    rates = [line.get_ydata()[0] for line in left.lines if len(line.get_xdata()) == 1]
    assert len(rates) == len(expected) and max(rates) < 240


def test_no_ceilings_no_roofline_but_a_figure():
    drawn = figures.draw_figures(make_table([a_case("mlp", TRIO, ceilings=False)]))
    assert "no ceilings" in words_of(drawn["roofline"])


def test_accuracy_shows_limits_and_what_is_over_them(drawn):
    axes = drawn["accuracy"].axes[0]
    highest = max(line.get_ydata()[0] for line in axes.lines if len(line.get_ydata()) == 1)
    assert highest == pytest.approx(3e-2)
    assert words_of(drawn["accuracy"]).count("limit") == 4


def test_ablation_and_same_system_are_drawn_where_they_were_measured():
    variants = figures.draw_figures(make_table([an_ablation("mlp", 1e-3)]))
    assert "launch=phases" in words_of(variants["ablation"]) and "1.3" in words_of(variants["ablation"])
    alone = figures.draw_figures(make_table(same_system_runs("mlp", 1e-3, 20)))
    assert list(alone) == ["aa"]
    assert "of 20 differ" in alone["aa"].axes[0].get_title(loc="left")
    assert set(figures.draw_figures(make_table([a_case("mlp", TRIO)]))) == set(FIGURES)


def test_systems_look_the_same_everywhere_and_differ_from_each_other():
    chosen = looks(["mononn", "mine", "tvm", "yours"])
    assert chosen["tvm"] == LOOKS["tvm"]
    assert len({(look.colour, look.hatch) for look in chosen.values()}) == 4
    assert len({look.mark for look in LOOKS.values()}) == len(LOOKS)
    greys = [_grey(look.colour) for look in LOOKS.values()]
    close = [
        (a, b)
        for i, (a, x) in enumerate(zip(LOOKS.values(), greys, strict=True))
        for b, y in list(zip(LOOKS.values(), greys, strict=True))[i + 1 :]
        if abs(x - y) < 0.06 and a.hatch == b.hatch
    ]
    assert close == []


def _grey(colour):
    """Luma of a colour, 0 to 1: what a black-and-white printer leaves of it."""
    red, green, blue = (int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5))
    return 0.299 * red + 0.587 * green + 0.114 * blue


def test_the_same_table_gives_the_same_bytes_in_every_format(tmp_path):
    for folder in ("a", "b"):
        drawn = figures.draw_figures(make_table([a_case("mlp", TRIO)]))
        figures.write_figures({"speedup": drawn["speedup"]}, tmp_path / folder)
    for suffix in FORMATS:
        one, other = ((tmp_path / folder / f"speedup.{suffix}").read_bytes() for folder in ("a", "b"))
        assert one == other and len(one) > 2000
    ElementTree.parse(tmp_path / "a" / "speedup.svg")
