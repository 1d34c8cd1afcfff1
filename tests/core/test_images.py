"""Groups of a batch that run image by image: which, that they may, and that answers keep their bits."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from onnx import TensorProto

from mononn_core import compiler
from mononn_core.compiler.cpu import groups_of
from mononn_core.decide.images import image_by_image
from mononn_core.errors import OptionError
from mononn_core.machine import Machine
from mononn_core.ops.evaluate import run as evaluate
from mononn_core.options import Options
from mononn_core.program.interpret import run
from mononn_core.program.ir import Loop
from mononn_core.runtime.session import Session
from mononn_core.schedule.groups import CpuGroups
from mononn_core.schedule.schedule import Schedule
from tests.core.networks import Builder
from tests.core.test_joined import check

BATCH, CHANNELS, SIZE = 4, 16, 18
SMALL = replace(Machine.named("avx2"), l2_bytes=40 << 10, l3_bytes=1 << 20)
"""A machine whose near caches hold one image, not a batch."""


def network(reverse: bool = False) -> bytes:
    """Convolutions that read each other's bordered images, a depthwise one between, and a sum; ``reverse``: of an image
    and the one at the other end of the batch."""
    b = Builder("images")
    shape = (BATCH, CHANNELS, SIZE, SIZE)
    x = "x"
    for group in (1, CHANNELS, 1):
        w = b.constant((b.random.standard_normal((CHANNELS, CHANNELS // group, 3, 3)) * 0.2).astype(np.float32))
        x = b.add("Relu", b.add("Conv", x, w, b.weight(CHANNELS), group=group, pads=[1, 1, 1, 1]))
    w = b.constant((b.random.standard_normal((CHANNELS, CHANNELS, 1, 1)) * 0.2).astype(np.float32))
    last, other = b.add("Conv", x, w), x
    if reverse:
        ends = [b.constant(np.array([n], np.int64)) for n in (-1, -BATCH - 1, 0, -1)]
        other = b.add("Slice", x, *ends)
    b.add("Add", last, other, output="y")
    return b.model({"x": (TensorProto.FLOAT, shape)}, {"y": shape})


def decided(model: bytes, threads: int = 2) -> tuple[Schedule, CpuGroups]:
    stages = compiler.lower(model, threads=threads, machine=Machine.named("avx2"))
    return stages.lowered.schedule, groups_of(stages.optimized, stages.options, stages.machine)


def marked(schedule: Schedule) -> Schedule:
    """With every convolution running image by image."""
    found = (tuple(replace(g, by_image=g.template != "nest") for g in i) for i in schedule.intervals)
    return replace(schedule, intervals=tuple(found))


@pytest.mark.parametrize("threads", [1, 2])
def test_answers_keep_their_bits(threads: int) -> None:
    model, machine = network(), Machine.named("avx2")
    schedule, _ = decided(model, threads)
    plain = replace(schedule, intervals=tuple(tuple(replace(g, by_image=False) for g in i) for i in schedule.intervals))
    x = np.random.default_rng(0).standard_normal((BATCH, CHANNELS, SIZE, SIZE)).astype(np.float32)
    answers = []
    for one in (plain, marked(schedule)):
        stages = compiler.lower(model, threads=threads, machine=machine, schedule=one)
        loops = [item for item in stages.program.body if isinstance(item, Loop)]
        assert [(loop.count, loop.table) for loop in loops] == ([(BATCH // threads, "")] if one != plain else [])
        want = evaluate(stages.graph, {"x": x})["y"]
        given = {"x": x.reshape(stages.program.buffer("x").shape)}
        seen = run(stages.program, given, stages.lowered.weights, workers=2)["y"].reshape(want.shape)
        np.testing.assert_allclose(seen, want, rtol=1e-4, atol=1e-5)
        if machine.features <= Machine.probe().features:
            artifact = compiler.build(stages)
            for workers in (1, 2, 3):
                with Session(artifact, threads=workers) as session:
                    answers.append(session.run({"x": x})["y"])
    for answer in answers:
        np.testing.assert_array_equal(answer, answers[0])


def test_a_schedule_says_so_in_both_forms() -> None:
    schedule = marked(decided(network())[0])
    assert "image by image" in schedule.to_text()
    assert Schedule.from_text(schedule.to_text()) == schedule == Schedule.from_json(schedule.to_json())


def test_borders_of_a_batch_need_no_barrier() -> None:
    """Each owner fills those around its own images."""
    assert len(decided(network())[0].intervals) == 1


def test_groups_of_another_kind_are_refused() -> None:
    model = network()
    schedule, _ = decided(model)
    wrong = schedule.with_group(replace(schedule.groups[0], by_image=True))
    with pytest.raises(OptionError, match=r"the tasks of group .* are not of one image each"):
        compiler.lower(model, threads=2, machine=Machine.named("avx2"), schedule=wrong)


def test_who_reads_other_images_is_refused_and_never_chosen() -> None:
    model = network(reverse=True)
    schedule, groups = decided(model, 1)
    with pytest.raises(OptionError, match=r"group 'y' reads other images than its own"):
        compiler.lower(model, threads=1, machine=Machine.named("avx2"), schedule=marked(schedule))
    small = CpuGroups(groups.graph, Options(threads=1), SMALL)
    chosen = [g.by_image for i in image_by_image(schedule.intervals, small) for g in i]
    assert any(chosen) and not chosen[-1]


def test_large_images_run_one_by_one_and_small_ones_do_not() -> None:
    """Where all images of a batch stay in the nearest cache nothing is saved."""
    schedule, _ = decided(network())
    assert not any(g.by_image for g in schedule.groups)
    stages = compiler.lower(network(), threads=2, machine=SMALL)
    assert sum(g.by_image for g in stages.lowered.schedule.groups) > 1


@pytest.mark.parametrize("channels", [64, 128])
@pytest.mark.parametrize("threads", [1, 2, 4])
def test_windows_put_together_again_have_one_border(channels: int, threads: int) -> None:
    """Owners have windows, and of the one image that these become the border's columns: who reads it waits."""
    b = Builder("windows")
    z = b.add("Conv", "x", b.weight(channels, 8, 1, 1))
    z = b.add("Transpose", b.add("Reshape", z, b.ints(2, 2, channels, 7, 7)), perm=[2, 0, 3, 1, 4])
    z = b.add("Reshape", z, b.ints(1, channels, 14, 14))
    b.add("Conv", z, b.weight(channels, 1, 3, 3), group=channels, pads=[1, 1, 1, 1], output="y")
    shape = (4, 8, 7, 7)
    check(b.model({"x": (TensorProto.FLOAT, shape)}, {"y": (1, channels, 14, 14)}), threads, shape=shape)


@pytest.mark.parametrize("kernel", [1, 3])
@pytest.mark.parametrize(("frames", "rows"), [(2, 4), (2, 16), (4, 4)])
def test_lines_of_all_images_as_images_of_their_own(frames: int, rows: int, kernel: int) -> None:
    """A video's frames and then, line by line, what follows one another in time: owners have frames, and then lines of
    all of them, whose border they fill."""
    b = Builder("video")
    z = b.add("Conv", "x", b.weight(32, 8, 3, 3), pads=[1, 1, 1, 1])
    z = b.add("Sigmoid", b.add("Conv", z, b.weight(64, 32, kernel, kernel), pads=[kernel // 2] * 4))
    z = b.add("Conv", b.add("Transpose", z, perm=[2, 1, 0, 3]), b.weight(8, 64, 3, 1), pads=[1, 0, 1, 0])
    b.add("Transpose", z, perm=[2, 1, 0, 3], output="y")
    shape = (frames, 8, rows, 16)
    check(b.model({"x": (TensorProto.FLOAT, shape)}, {"y": shape}), 2, shape=shape)
