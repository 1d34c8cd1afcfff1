"""What threads load before they need it, in which order points are dealt to them, and how attention is cut."""

from __future__ import annotations

import re

import pytest
from onnx import TensorProto

from mononn_core.codegen import cuda_nests
from mononn_core.codegen.cuda_ahead import loads_ahead, ready
from mononn_core.codegen.cuda_expressions import CudaPointer, CudaPrinter, guarded_loads
from mononn_core.cost.fit import observations
from mononn_core.decide.cuda import CudaScheduler
from mononn_core.program.expr import INDEX, Const, Expr, Load, Select, Var, op
from mononn_core.program.ir import Buffer, For, Layout, Let, Store
from tests.core.cuda.networks import patches
from tests.core.cuda.test_windows import LIMIT, lowered, on_the_emulator
from tests.core.networks import Builder


def windows(channels: int, size: int = 6) -> bytes:
    """Two 3x3 convolutions with borders: the second reads its windows out of what the first has stored."""
    b = Builder("windows")
    x = b.add("Relu", b.add("Conv", "x", b.weight(16, channels, 3, 3), b.weight(16), pads=[1] * 4))
    b.add("Conv", x, b.weight(8, 16, 3, 3), b.weight(8), pads=[1] * 4, output="y")
    return b.model({"x": (TensorProto.FLOAT, (1, channels, size, size))}, {"y": (1, 8, size, size)})


def test_windows_are_copied_by_neighbouring_channels() -> None:
    """Eight channels of a window lie side by side and inside the image or outside it together: one access."""
    stages = lowered(windows(3))
    assert "= mn::load_if<8>(where0_[g_], p_in0" in stages.source
    assert on_the_emulator(stages) < LIMIT["fp16"]


def test_neighbouring_threads_read_neighbouring_pixels() -> None:
    """Three channels of an image lie far apart, the rows of the product read pixels side by side: these are dealt
    first."""
    stages = lowered(windows(3))
    first = stages.source[stages.source.index("phase_000") :]
    fill = first[: first.index("using Product")]
    assert re.search(r"const int y = \(at_ \+ g_ \* 256\) % \d+;", fill)
    assert "mn::load_if<1>(" in fill


@pytest.mark.parametrize("precision", ["fp16", "fp32"])
def test_rows_of_a_norm_are_loaded_before_the_first_is_reduced(precision: str) -> None:
    stages = lowered(patches(layers=1, width=64), precision)
    assert on_the_emulator(stages) < LIMIT[precision]
    at = stages.source.index("rows0_[row_][pass_] = mn::load<")
    reduced = stages.source.index("mn::warp_reduce_rows<mn::Add>", at)
    assert stages.source.rindex("ahead_[g_] = mn::load<", 0, at) < at < reduced, "its weights, too"


@pytest.mark.parametrize(("precision", "registers"), [("fp16", 2), ("fp32", 4)])
def test_of_rows_that_registers_do_not_hold_two_at_a_time_are_loaded(
    precision: str, registers: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(CudaScheduler.decide, "__defaults__", (((128, 1),),))  # four warps, so four rows each
    network = patches(layers=1, width=64)
    whole = lowered(network, precision)
    assert "group_ < 1;" in whole.source and "float row0_[4][1]" in whole.source
    monkeypatch.setattr(cuda_nests, "ROWS_AHEAD", registers)
    stages = lowered(network, precision)
    assert "group_ < 2;" in stages.source and "float row0_[2][1]" in stages.source
    assert on_the_emulator(stages) < LIMIT[precision]


SPACE = {"x": (0, 63), "y": (0, 7)}


def printer() -> CudaPrinter:
    buffer = Buffer("b", "float16", (8, 64), Layout.row_major((8, 64)), "arena")
    positions = Buffer("i", "int64", (8,), Layout.row_major((8,)), "arena")
    return CudaPrinter({"a": CudaPointer("p_a", buffer), "i": CudaPointer("p_i", positions)}, SPACE)


ZERO, ROW, X = Const(0.0, "float16"), Var("y"), Var("x")


def chosen(condition: Expr, otherwise: Expr = ZERO, row: Expr = ROW) -> Select:
    return Select(condition, Load("a", (row, X), "float16"), otherwise)


SAME, OTHER = op("lt", X // 8, Const(4)), op("lt", X // 16, Const(2))


@pytest.mark.parametrize(
    ("value", "loads"),
    [
        (chosen(SAME), 1),
        (chosen(op("lt", X, Const(12))), 0),  # neighbours differ
        (Select(OTHER, chosen(SAME), ZERO), 0),  # under two conditions
        (op("add", chosen(SAME), chosen(OTHER)), 0),  # under one here and under another there
        (op("add", chosen(SAME), Load("a", (ROW, X), "float16")), 0),  # loaded in any case
        (chosen(SAME, Load("a", (ROW, X), "float16")), 0),  # on both sides
        (chosen(SAME, row=Load("i", (ROW,), INDEX)), 0),  # an address that is loaded itself
    ],
)
def test_what_one_condition_guards_is_loaded_at_once(value: Expr, loads: int) -> None:
    assert len(guarded_loads(value, "x", 8, printer())) == loads


def test_what_a_body_binds_is_not_needed_ahead() -> None:
    body = For("x", 64, (Store("a", (ROW, X), chosen(op("lt", X // 8, Var("n")))),), "vector")
    assert loads_ahead(body, frozenset(), 8, printer())
    assert not loads_ahead(body, frozenset({"n"}), 8, printer())


def test_what_a_body_stores_or_binds_is_not_loaded_before_it() -> None:
    """What is stored may be loaded under another role of the same buffer."""
    pointers = printer().pointers
    scope = CudaPrinter({**pointers, "also": pointers["a"]}, SPACE)
    stored = For("x", 64, (Store("also", (ROW, X), ZERO),), "vector")
    of_a, of_i = Load("a", (ROW, X), "float16"), Load("i", (Var("n"),), INDEX)
    assert ready((Let("n", Const(1, INDEX)),), (of_a, of_i), scope) == [of_a]
    assert ready((stored,), (of_a, of_i), scope) == [of_i]


@pytest.mark.parametrize(("size", "rows", "keys"), [(44, 16, 256), (56, 32, 256)])
def test_attention_s_tasks_fit_one_wave(size: int, rows: int, keys: int) -> None:
    """12 heads of 122 tokens are 96 tasks of 16 rows; of 197 they would be 156, more than there are blocks."""
    stages = lowered(patches(layers=1, size=size, width=96, heads=12))
    (group,) = (g for g in stages.lowered.schedule.groups if g.template == "attention")
    assert (group.rows, group.keys) == (rows, keys)


def test_an_emulated_attention_of_many_keys_is_right() -> None:
    assert on_the_emulator(lowered(patches(layers=1, size=28, width=32, heads=2))) < LIMIT["fp16"]


def test_traces_of_rounds_belong_to_their_phases() -> None:
    """A trace's rows name the round of a loop; the cost model takes them one by one."""
    stages = lowered(patches(layers=4))
    rows = [{"id": phase["id"], "seconds": 1e-6} for phase in stages.manifest["phases"]]
    assert any("[2]" in row["id"] for row in rows)
    launch = stages.lowered.schedule
    found = observations(stages.program, stages.gpu, launch.threads, launch.blocks_per_sm, rows)
    assert len(found) == len(rows)
    with pytest.raises(ValueError, match=re.escape(rows[-1]["id"])):
        observations(stages.program, stages.gpu, launch.threads, launch.blocks_per_sm, rows[:-1])
