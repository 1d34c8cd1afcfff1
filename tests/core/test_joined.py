"""Concatenations that the stages of their inputs store, each its channels."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import TensorProto

from mononn_core import compiler
from mononn_core.compiler.cpu import groups_of
from mononn_core.decide.space import legal
from mononn_core.machine import Machine
from mononn_core.program.interpret import run
from mononn_core.program.ir import Barrier, Operand, Phase, Program
from mononn_core.runtime.session import Session
from mononn_core.schedule.boxes import owner_boxes
from mononn_core.schedule.template import scheduled
from tests.core.networks import Builder
from tests.core.test_convolution import picture, reference

IMAGE = (1, 3, 13, 11)


def writers(program: Program) -> dict[str, list[str]]:
    """The buffers that several phases without a border write, and those phases' templates."""
    found: dict[str, list[str]] = {}
    for phase in program.phases():
        for name in {str(o.buffer) for o in phase.task.operands if o.access == "write"}:
            found.setdefault(name, []).append(phase.task.template)
    return {name: templates for name, templates in found.items() if len(templates) > 1}


def check(model: bytes, threads: int, level: str = "avx2", shape: tuple[int, ...] = IMAGE) -> Program:
    """The virtual machine and the compiled function against onnx's reference; gives the Program. Its schedule is legal
    when it is given back."""
    stages = compiler.lower(model, threads=threads, machine=Machine.named(level))
    compiler.lower(model, threads=threads, machine=stages.machine, schedule=stages.lowered.schedule)
    x = picture(shape)
    want = reference(model, x)
    given = {"x": x.reshape(stages.program.buffer("x").shape)}
    for seed in range(3):
        seen = run(stages.program, given, stages.lowered.weights, 1 + (threads + seed) % 4, seed)
        np.testing.assert_allclose(seen["y"].reshape(want.shape), want, rtol=1e-4, atol=1e-5)
    for workers in (1, threads):
        with Session(compiler.build(stages), threads=workers) as session:
            np.testing.assert_allclose(session.run({"x": x})["y"], want, rtol=1e-4, atol=1e-5)
    return stages.program


def conv(b: Builder, x: str, shape: tuple[int, int, int, int], after: str = "Relu", output: str = "") -> str:
    pad = shape[2] // 2
    scale = np.float32(np.prod(shape[1:]) ** -0.5)
    weight = b.constant(b.random.standard_normal(shape).astype(np.float32) * scale)
    y = b.add("Conv", x, weight, b.weight(shape[0]), pads=[pad] * 4, output="" if after else output)
    return b.add(after, y, output=output) if after else y


def modelled(b: Builder, channels: int) -> bytes:
    return b.model({"x": (TensorProto.FLOAT, IMAGE)}, {"y": (1, channels, *IMAGE[2:])})


@pytest.mark.parametrize("threads", [1, 2, 3])
@pytest.mark.parametrize(("one", "three"), [(16, 24), (5, 3), (64, 64)])
def test_branches_of_a_module_store_their_channels(one: int, three: int, threads: int) -> None:
    b = Builder("fire")
    squeezed = conv(b, "x", (16, 3, 1, 1))
    parts = [conv(b, squeezed, (one, 16, 1, 1)), conv(b, squeezed, (three, 16, 3, 3))]
    parts.append(b.add("MaxPool", squeezed, kernel_shape=[3, 3], pads=[1, 1, 1, 1]))
    parts.append(b.add("Sigmoid", b.add("Add", conv(b, squeezed, (8, 16, 1, 1), ""), conv(b, squeezed, (8, 16, 1, 1)))))
    joined = b.add("Concat", *parts, axis=1)
    conv(b, joined, (8, one + three + 24, 1, 1), output="y")
    program = check(modelled(b, 8), threads)
    ((_, templates),) = [(n, t) for n, t in writers(program).items() if not n.endswith("@parts") and len(t) == 4]
    assert templates.count("nest") == 1  # the pool; nothing copies
    assert not any("concat" in phase.id for phase in program.phases())


def test_parts_on_both_sides_of_a_barrier() -> None:
    """What the first branch stored lives until the last has stored its own."""
    b = Builder("deep")
    wide = conv(b, "x", (64, 3, 3, 3))
    flat = conv(b, wide, (64, 64, 1, 1))
    deep = conv(b, conv(b, conv(b, wide, (64, 64, 3, 3)), (48, 64, 3, 3)), (64, 48, 3, 3))
    conv(b, b.add("Concat", flat, deep, axis=1), (8, 128, 1, 1), output="y")
    program = check(modelled(b, 8), 2)
    (name,) = [name for name, templates in writers(program).items() if templates == ["conv", "winograd4"]]
    steps = [item for item, _ in program.trace()]
    wrote = [i for i, s in enumerate(steps) if isinstance(s, Phase) and name in [o.buffer for o in outs(s)]]
    assert any(isinstance(s, Barrier) for s in steps[wrote[0] : wrote[-1]])


@pytest.mark.in_turn("threads", "batch", "kernel")
@pytest.mark.parametrize("threads", [1, 2, 3])
@pytest.mark.parametrize("batch", [1, 2, 6])
@pytest.mark.parametrize(("kernel", "up_first"), [(1, False), (3, False), (3, True)])
def test_who_else_reads_a_part_finds_it_in_the_concatenation(
    kernel: int, up_first: bool, batch: int, threads: int
) -> None:
    """As a U-Net does, whose skip connections a pool reads as well; with a border around it where windows need one,
    which is there before the pool reads, whichever part comes first."""
    b = Builder("unet")
    skip = conv(b, "x", (24, 3, 3, 3))
    deep = conv(b, b.add("MaxPool", skip, kernel_shape=[2, 2], strides=[2, 2]), (16, 24, 3, 3))
    up = b.add("ConvTranspose", deep, b.weight(16, 20, 2, 2), b.weight(20), strides=[2, 2])
    parts = (up, skip) if up_first else (skip, up)
    conv(b, b.add("Concat", *parts, axis=1), (8, 44, kernel, kernel), output="y")
    shape = (batch, 3, 12, 10)
    model = b.model({"x": (TensorProto.FLOAT, shape)}, {"y": (batch, 8, *shape[2:])})
    program = check(model, threads, shape=shape)
    _, *phases = program.phases()  # the first one puts the border around the picture
    assert not any("concat" in phase.id or "_pad" in phase.id for phase in phases)
    joined = [sum(template != "nest" for template in templates) for templates in writers(program).values()]
    assert max(joined) == 2


def test_owners_of_uneven_columns_wait_for_the_part_that_they_read() -> None:
    """Three owners have eleven columns of the pool each, the last of which reaches into its own part."""
    b = Builder("uneven")
    x = b.add("Conv", "x", b.weight(32, 8, 3, 3), b.weight(32), group=2)
    b.add("Concat", x, b.add("MaxPool", x, kernel_shape=[5, 5], pads=[2, 2, 2, 2]), axis=1, output="y")
    shape = (1, 16, 5, 9)
    model = b.model({"x": (TensorProto.FLOAT, shape)}, {"y": (1, 64, 3, 7)})
    stages = compiler.lower(model, threads=3, machine=Machine.named("neon"))
    inside = [item for item, _ in stages.program.trace()]
    pool = next(i for i, s in enumerate(inside) if isinstance(s, Phase) and "reduce_max" in s.id)
    assert isinstance(inside[pool - 1], Barrier)
    check(model, 3, shape=shape)


def test_parts_that_read_one_another() -> None:
    """As the pools of a detector's pyramid do; the first part's chain reads a result twice."""
    b = Builder("pyramid")
    x = conv(b, "x", (16, 3, 3, 3), "")
    parts = [b.add("Mul", x, b.add("Sigmoid", x))]
    for _ in range(3):
        parts.append(b.add("MaxPool", parts[-1], kernel_shape=[5, 5], pads=[2, 2, 2, 2]))
    conv(b, b.add("Concat", *parts, axis=1), (8, 64, 1, 1), output="y")
    for threads in (1, 2, 3):
        program = check(modelled(b, 8), threads)
        assert not any("concat" in phase.id for phase in program.phases())


@pytest.mark.parametrize("joined", [False, True])
def test_owners_of_columns_have_whole_panels_of_a_part(joined: bool) -> None:
    """Three panels for two owners: one has two thirds of the work, also where more columns follow the part's."""
    b = Builder("panels")
    wide = conv(b, "x", (24, 3, 3, 3), output="" if joined else "y")
    if joined:
        b.add("Concat", wide, conv(b, "x", (16, 3, 1, 1)), axis=1, output="y")
    model = modelled(b, 40 if joined else 24)
    stages = compiler.lower(model, threads=2, machine=Machine.named("neon"))
    groups = groups_of(stages.optimized, stages.options, stages.machine)
    stage = next(s for s in groups.stages if s.root and stages.optimized.types[s.root.output].shape[-1] == 24)
    found = next(g for g in legal(stage, groups.builder, 2) if g.partition.kind == "columns" and g.template == "conv")
    phase = groups.items(found)[0]
    assert isinstance(phase, Phase)
    share = scheduled("conv").busiest(phase, found.partition, lambda operand: owner_boxes(phase, operand))
    assert share == pytest.approx(2 / 3)


def outs(phase: Phase) -> list[Operand]:
    return [o for o in phase.task.operands if o.access == "write"]


def test_the_networks_output_is_stored_by_its_parts() -> None:
    b = Builder("output")
    b.add("Concat", conv(b, "x", (9, 3, 3, 3)), conv(b, "x", (7, 3, 1, 1), "Tanh"), axis=1, output="y")
    check(modelled(b, 16), 2)


@pytest.mark.parametrize("case", ["input", "shared", "twice", "constant", "rows"])
def test_what_else_is_joined_is_copied(case: str) -> None:
    b = Builder("copied")
    a = conv(b, "x", (8, 3, 3, 3))
    parts = {
        "input": (a, "x"),
        "shared": (a, b.add("Sigmoid", a)),
        "twice": (a, a),
        "constant": (a, b.constant(picture((1, 2, *IMAGE[2:])))),
        "rows": (a, conv(b, "x", (8, 3, 1, 1))),
    }[case]
    joined = b.add("Concat", *parts, axis=2 if case == "rows" else 1)
    channels = {"input": 11, "constant": 10, "rows": 8}.get(case, 16)
    weight = b.constant(b.random.standard_normal((4, channels, 1, 1)).astype(np.float32))
    b.add("Conv", joined, weight, output="y")
    height = IMAGE[2] * (2 if case == "rows" else 1)
    program = check(b.model({"x": (TensorProto.FLOAT, IMAGE)}, {"y": (1, 4, height, IMAGE[3])}), 2)
    assert not any(templates.count("conv") > 1 for templates in writers(program).values())
