"""Where tensors lie in the arena: never on one that lives, on the bytes of their owners, and in little memory."""

from __future__ import annotations

from dataclasses import replace
from itertools import combinations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import TensorProto

from mononn_core import compiler
from mononn_core.lower.memory import OVERREAD_BYTES, Life, plan_arena
from mononn_core.machine import Machine
from mononn_core.ops.evaluate import run as evaluate
from mononn_core.program.interpret import run
from mononn_core.program.ir import Barrier, Buffer, Layout, Loop, Program
from mononn_core.program.verify import verify
from tests.core.networks import Builder

OWNERS, ALIGN, PHASES = 3, 4, 6


@st.composite
def tensors(draw: st.DrawFn) -> Life:
    """Some bytes that live for some phases, two of which make an interval."""
    nbytes = draw(st.integers(1, 24))
    first, last = sorted(draw(st.tuples(*[st.integers(0, PHASES - 1)] * 2)))
    cuts = sorted(draw(st.lists(st.integers(0, nbytes), min_size=OWNERS - 1, max_size=OWNERS - 1)))
    parts = (0, *cuts) if draw(st.booleans()) else ()
    buffer = Buffer("", "uint8", (nbytes,), Layout.row_major((nbytes,)), "arena")
    return Life(buffer, (first, last), (first // 2, last // 2), parts, bool(parts) and draw(st.booleans()))


def owners_of(life: Life) -> list[int]:
    """Of each byte."""
    return [sum(part <= at for part in life.parts) - 1 for at in range(life.buffer.nbytes)]


@settings(max_examples=300, deadline=None)
@given(st.lists(tensors(), max_size=8))
def test_who_lives_at_once_shares_no_bytes_but_with_its_owner(lives: list[Life]) -> None:
    lives = [replace(life, buffer=replace(life.buffer, id=str(n))) for n, life in enumerate(lives)]
    placed, nbytes = plan_arena(lives, ALIGN)
    assert [b.id for b in placed] == [life.buffer.id for life in lives]
    at = {
        life.buffer.id: {b.offset + i: o for i, o in enumerate(owners_of(life))}
        for life, b in zip(lives, placed, strict=True)
    }
    assert all(b.offset % ALIGN == 0 and b.offset >= 0 and b.offset + b.nbytes <= nbytes for b in placed)
    for a, b in combinations(lives, 2):
        mine, other = at[a.buffer.id], at[b.buffer.id]
        shared = mine.keys() & other.keys()
        if a.intervals[1] < b.intervals[0] or b.intervals[1] < a.intervals[0]:
            continue
        in_turns = (a.phases[1] < b.phases[0] or b.phases[1] < a.phases[0]) and a.private and b.private
        assert not shared or (in_turns and all(mine[i] == other[i] for i in shared))


def of(name: str, nbytes: int, interval: int, parts: tuple[int, ...]) -> Life:
    buffer = Buffer(name, "uint8", (nbytes,), Layout.row_major((nbytes,)), "arena")
    return Life(buffer, (interval, interval), (interval, interval), parts)


def test_a_smaller_tensor_lies_where_its_owners_had_the_larger_one() -> None:
    """In the middle, where the parts of two owners meet, rather than at the start, which is all the first one's."""
    placed, nbytes = plan_arena([of("large", 640, 0, (0, 320)), of("small", 256, 1, (0, 128))])
    assert [b.offset for b in placed] == [0, 192]
    assert nbytes < 640 + 640


def chain(batch: int, depth: int = 6) -> bytes:
    """Convolutions one after the other, a residual sum at the end of each pair."""
    b, shape = Builder("chain"), (batch, 8, 12, 12)
    x = "x"
    for layer in range(depth):
        w = b.constant((b.random.standard_normal((8, 8, 3, 3)) * 0.2).astype(np.float32))
        y = b.add("Conv", x, w, b.weight(8), pads=[1, 1, 1, 1])
        last = layer == depth - 1
        x = b.add("Add", y, x, output="y" if last else "") if layer % 2 else b.add("Relu", y)
    return b.model({"x": (TensorProto.FLOAT, shape)}, {"y": shape})


def lowered(model: bytes, threads: int, by_image: bool = False) -> tuple[Program, float]:
    """The Program, and how far its answer lies from the Graph's."""
    machine = Machine.named("avx2")
    stages = compiler.lower(model, threads=threads, machine=machine)
    if by_image:
        intervals = stages.lowered.schedule.intervals
        marked = (tuple(replace(g, by_image=g.template != "nest") for g in i) for i in intervals)
        schedule = replace(stages.lowered.schedule, intervals=tuple(marked))
        stages = compiler.lower(model, threads=threads, machine=machine, schedule=schedule)
    shape = stages.graph.types["x"].shape
    x = np.random.default_rng(1).standard_normal(shape).astype(np.float32)
    want = evaluate(stages.graph, {"x": x})["y"]
    given = {"x": x.reshape(stages.program.buffer("x").shape)}
    seen = run(stages.program, given, stages.lowered.weights, workers=2)["y"].reshape(want.shape)
    return stages.program, float(np.abs(seen - want).max() / np.abs(want).max())


def largest(program: Program) -> int:
    return max(b.nbytes for b in program.buffers if b.space == "arena")


@pytest.mark.parametrize(("batch", "threads"), [(1, 1), (4, 1), (4, 2)])
def test_without_barriers_memory_is_used_again_too(batch: int, threads: int) -> None:
    """By one owner, or by owners of whole images: what a convolution reads, what it adds and what it stores."""
    program, error = lowered(chain(batch), threads)
    assert error < 1e-5
    assert not any(isinstance(item, Barrier) for item in program.body)
    assert program.arena_bytes < 3.2 * largest(program) + OVERREAD_BYTES
    verify(program)


@pytest.mark.parametrize("threads", [1, 2])
def test_image_by_image_an_owner_has_memory_for_one(threads: int) -> None:
    program, error = lowered(chain(batch=8), threads, by_image=True)
    assert error < 1e-5
    inside = [b for b in program.buffers if b.id.endswith("@image")]
    loops = [item for item in program.body if isinstance(item, Loop)]
    assert len(inside) == 5 and [loop.count for loop in loops] == [8 // threads]
    assert all(b.shape[0] in (threads * 12 * 12, threads * 14 * 14) for b in inside)
    (picture,) = (b for b in program.buffers if b.space == "arena" and b not in inside)
    assert program.arena_bytes <= picture.nbytes + 2 * inside[0].nbytes + OVERREAD_BYTES


@pytest.mark.parametrize("threads", [2, 3, 4])
@pytest.mark.parametrize("pads", [(1, 1, 1, 1), (2, 0, 0, 1), (0, 1, 2, 0), (0, 2, 0, 2)])
def test_owners_of_rows_fill_the_border_around_them(threads: int, pads: tuple[int, int, int, int]) -> None:
    top, left, bottom, right = pads
    b, shape = Builder("border"), (1, 8, 40, 12)
    w = [b.constant((b.random.standard_normal((24, c, 3, 3)) * 0.2).astype(np.float32)) for c in (8, 24)]
    inner = b.add("Conv", "x", w[0], b.weight(24), pads=[1, 1, 1, 1])
    b.add("Conv", inner, w[1], b.weight(24), pads=[top, left, bottom, right], output="y")
    model = b.model({"x": (TensorProto.FLOAT, shape)}, {"y": (1, 24, 38 + top + bottom, 10 + left + right)})
    program, error = lowered(model, threads)
    assert error < 1e-5
    (border,) = (p for p in program.phases() if p.id.endswith("_border"))
    inside = next(p for p in program.phases() if p.id == border.id.removesuffix("_border"))
    assert inside.task.operands[-1].buffer == border.task.operands[-1].buffer
    assert border.task.operands[-1].box.size[0] < program.buffer(str(border.task.operands[-1].buffer)).shape[0]
