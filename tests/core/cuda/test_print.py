"""What the CUDA printer writes: launches, shared memory, vector accesses, early copies, refusals."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mononn_core.codegen.cuda import Kernel
from mononn_core.codegen.cuda_expressions import CudaPointer, CudaPrinter, divisor, neighbours
from mononn_core.codegen.cuda_storage import CudaStorage
from mononn_core.errors import UnsupportedError
from mononn_core.program import abi
from mononn_core.program.expr import INDEX, Const, Expr, Var, evaluate_index, op
from mononn_core.program.ir import Assign, Buffer, Layout, Phase, Program, Table
from tests.core.cuda.cases import CASES
from tests.core.cuda.lowered import printed
from tests.core.cuda.programs import fetched_early


def program(name: str) -> Program:
    return CASES[name]().program


def with_phase(original: Program, name: str, **changes: object) -> Program:
    """The program with other fields in one phase's task (or in the phase itself: assign)."""

    def change(item: object) -> object:
        if not isinstance(item, Phase) or item.id != name:
            return item
        if "assign" in changes:
            return replace(item, assign=changes["assign"])
        return replace(item, task=replace(item.task, **changes))

    return replace(original, body=tuple(change(i) for i in original.body))


def test_the_same_program_gives_the_same_bytes() -> None:
    first, second = (printed(program("layers-f16"), 128, "graph", "by hand") for _ in range(2))
    assert first == second
    assert first.text.startswith("// layers: 8 phases, 7 barriers, 0 counters.\n// Arena 16384 bytes")
    assert "// by hand\n" in first.text


@pytest.mark.parametrize(
    ("offsets", "text"),
    [
        ((384,), "384"),
        ((128, 128, 128), "128"),
        ((0, 256), "(0ll + 256ll * (i + 1))"),
        ((512, 256, 0), "(512ll + -256ll * (i + 1))"),
        ((0, 512, 512), "((i + 1) == 0 ? 0ll : 512ll)"),
        ((0, 256, 0), "table_t[i + 1][0]"),
        ((0, 128, 512), "table_t[i + 1][0]"),
    ],
)
def test_offsets_that_can_be_computed_are_not_looked_up(offsets: tuple[int, ...], text: str) -> None:
    vector = Layout.row_major((4,))
    buffers = tuple(Buffer(f"b{n}", "float32", (4,), vector, "weight", at) for n, at in enumerate(offsets))
    table = Table("t", ("even", "b"), tuple((buffers[0].id, b.id) for b in buffers))
    storage = CudaStorage(replace(program("layers-f16"), buffers=buffers, tables=(table,)), 128)
    assert str(storage.offset(table, "even", "i + 1")) == str(offsets[0])
    assert str(storage.offset(table, "b", "i + 1")) == text


def test_a_graph_launches_intervals_in_order_and_loops_once_an_iteration() -> None:
    kernels = printed(program("layers-f16"), 128, "graph").kernels
    assert kernels[0] == Kernel("mononn_part_0", (0,), 0)
    assert [(k.name, k.iteration) for k in kernels[1:-1]] == [
        (f"mononn_part_{part}", iteration) for iteration in range(3) for part in (1, 2)
    ]
    assert [n for k in kernels for n in k.ordinals] == list(range(8))
    whole = printed(program("layers-f16"), 128).kernels
    assert whole == (Kernel("mononn_run", tuple(range(8)), 0),)


def test_phases_without_a_barrier_share_a_kernel() -> None:
    kernels = printed(program("attention-f16"), 256, "graph").kernels
    assert [k.ordinals for k in kernels] == [(0, 1, 2), (3,)]


def test_weights_are_fetched_before_the_barrier_only_where_one_kernel_runs_both() -> None:
    once, graph = (printed(program("layers-f16"), 128, launch).text for launch in ("once", "graph"))
    assert once.count("now_ = arrive_") == 3 and once.count("::fetch(") == 2, "two of the three are one function"
    assert "l + 1 < 3" in once, "the last iteration's last product has no next one"
    assert "::fetch(" not in graph
    assert graph.count("mn::hint(") == 3


def test_stages_are_fetched_early_but_across_another_phases() -> None:
    near, far = (printed(program(name), 256).text for name in ("staged-f16", "staged_early-f16"))
    assert ("::fetch(" in near, "mn::hint(" in near) == (True, False)
    assert ("::fetch(" in far, "mn::hint(" in far) == (False, True)
    assert "mn::open_stages();" in near and "mn::open_stages();" not in printed(program("mlp-f16"), 256).text


def test_what_lies_between_an_early_copy_and_its_use_has_its_own_memory() -> None:
    early, plain = (printed(p, 256) for p in (fetched_early().program, program("mlp-f16")))
    assert early.shared_bytes > plain.shared_bytes


@pytest.mark.parametrize("threads", [32, 96, 1024])
def test_shared_memory_is_what_the_vocabulary_asks_for(threads: int) -> None:
    """The source states it as a static_assert; here the numbers are checked against each other."""
    for name in ("mlp-f16", "mlp-tf32x3", "attention-bf16"):
        source = printed(with_warps(program(name)), threads)
        largest = max(
            int(line.split("<= ")[1].rstrip(");")) for line in source.text.splitlines() if "static_assert" in line
        )
        assert largest + 256 <= source.shared_bytes < largest + 256 + 256


def with_warps(original: Program) -> Program:
    """Products that one warp can do."""

    def change(item: object) -> object:
        if isinstance(item, Phase) and "tile" in item.task.params:
            task = item.task
            return replace(item, task=replace(task, params={**task.params, "warps": (1, 1)}))
        return item

    return replace(original, body=tuple(change(i) for i in original.body))


@pytest.mark.parametrize(
    ("name", "phase", "changes", "message"),
    [
        (
            "mlp-f16",
            "up",
            {"params": {"tile": (64, 36), "warps": (4, 1), "kind": "f16"}},
            "does not fit 4 x 1 of 8 warps",
        ),
        ("mlp-f16", "up", {"params": {"tile": (64, 40), "warps": (4, 5), "kind": "f16"}}, "does not fit"),
        ("mlp-f16", "up", {"params": {"tile": (64, 40), "warps": (4, 1), "kind": "tf32x3"}}, "cannot read float16"),
        ("mlp-f16", "up", {"template": "winograd"}, "'winograd' has no CUDA form"),
        ("mlp-f16", "up", {"assign": Assign("owned", "g", Const(0), 1)}, "dealt to owners"),
        ("attention-f16", "attend", {"params": {"kind": "bf16"}}, "cannot read float16"),
    ],
)
def test_what_has_no_form_is_refused_with_the_phase_named(name: str, phase: str, changes: dict, message: str) -> None:  # type: ignore[type-arg]
    with pytest.raises(UnsupportedError, match=message) as caught:
        printed(with_phase(program(name), phase, **changes), 256)
    assert repr(phase) in str(caught.value)


def test_a_buffer_beyond_32_bit_indices_is_refused() -> None:
    original = program("mlp-f16")
    huge = Buffer("huge", "float32", (1 << 31,), Layout.row_major((1 << 31,)), "arena")
    with pytest.raises(UnsupportedError, match=r"'huge'.*smaller batch"):
        printed(replace(original, buffers=(*original.buffers, huge)), 256)


def test_the_call_is_packed_as_it_is_declared() -> None:
    header = abi.gpu_header(2, 1)
    fields = [line for line in header.splitlines() if line.startswith("  ")]
    assert len(fields) == len(abi.GPU_FIELDS) + 2
    assert "inputs[2];" in header
    assert "outputs[" not in abi.gpu_header(1, 0)
    words = np.frombuffer(abi.pack_gpu_call(16, 32, 48, 0, 64, [80, 96], [112]), np.uint64)
    assert words.tolist() == [16, 32, 48, 0, 64, 80, 96, 112]
    assert abi.gpu_sync_bytes(3) == 5 * abi.CACHE_LINE


# -- neighbours: what a thread may move at once, against all offsets one by one

EXTENTS = {"x": 48, "m": 3, "p": 4}


@st.composite
def positions(draw: st.DrawFn) -> Expr:
    """An index expression of x, m and p: sums, with divisions and remainders of sums inside."""
    total: Expr = Const(draw(st.sampled_from([0, 4, 8, 16, 3])))
    for name in EXTENTS:
        total = total + Var(name) * draw(st.sampled_from([0, 1, 8, 48, 40] if name != "x" else [1, 1, 2]))
    wrap = draw(st.sampled_from(["", "div", "mod", "both"]))
    c = draw(st.sampled_from([8, 16, 20, 64]))
    if wrap == "div":
        return total // c
    if wrap == "mod":
        return total % c
    return (total // c) * 200 + total % c if wrap == "both" else total


@settings(max_examples=150, deadline=None)
@given(positions(), st.sampled_from([2, 4, 8]), st.sampled_from(["float16", "float32"]), st.sampled_from([2, 8, 128]))
def test_neighbours_really_lie_side_by_side_and_aligned(e: Expr, width: int, dtype: str, align: int) -> None:
    buffer = Buffer("b", dtype, (1 << 20,), Layout.row_major((1 << 20,)), "arena", 0)
    ranges = {name: (0, extent - 1) for name, extent in EXTENTS.items()}
    if not neighbours(CudaPointer("p", buffer, align=align), (e,), "x", width, ranges):
        return
    step = min(width * buffer.itemsize, 16)
    assert align % step == 0
    for m in range(EXTENTS["m"]):
        for p in range(EXTENTS["p"]):
            at = [evaluate_index(e, {"x": x, "m": m, "p": p}) for x in range(EXTENTS["x"])]
            for x in range(0, EXTENTS["x"], width):
                assert [at[x + u] - at[x] for u in range(width)] == list(range(width))
                assert at[x] * buffer.itemsize % step == 0


def test_heads_of_a_tensor_are_neighbours() -> None:
    """Columns of a product that are split into heads are stored in vectors, where a head's width allows it."""
    buffer = Buffer("b", "float16", (12, 128, 64), Layout.row_major((12, 128, 64)), "arena", 0)
    ranges = {"x": (0, 39), "p": (0, 15), "m": (0, 63)}
    for tile, expected in ((40, (8, 4, 2)), (36, (4, 2)), (33, ())):
        column = Var("p") * tile + Var("x")
        index = (column // 64, Var("m"), column % 64)
        found = [w for w in (8, 4, 2) if neighbours(CudaPointer("p", buffer), index, "x", w, ranges)]
        assert tuple(found) == expected


@settings(max_examples=100, deadline=None)
@given(positions())
def test_a_divisor_divides(e: Expr) -> None:
    d = divisor(e)
    for m in range(3):
        for x in range(48):
            value = evaluate_index(e, {"x": x, "m": m, "p": m + 1})
            assert value == 0 if d == 0 else value % d == 0


def test_positions_are_32_bit_and_data_is_64_bit() -> None:
    printer = CudaPrinter({}, {"i": (0, 9)})
    least = op("min", Var("i"), Const(4), dtype=INDEX)
    assert printer.scalar(least) == "mn::min(i, 4)"
    assert (
        printer.scalar(op("min", Var("ids", INDEX), Const(4), dtype=INDEX))
        == "(int64_t)mn::min((int64_t)ids, (int64_t)4)"
    )
