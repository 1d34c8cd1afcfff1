"""Convolutions in strips: every legal way gives the answers of whole images, bit for bit; which ways are chosen."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from onnx import TensorProto

from mononn_core import compiler
from mononn_core.compiler.cpu import groups_of
from mononn_core.decide import search, strips
from mononn_core.decide.cpu import CpuScheduler
from mononn_core.errors import OptionError
from mononn_core.machine import Machine
from mononn_core.program.ir import Loop
from mononn_core.runtime.session import Session
from mononn_core.schedule.schedule import Schedule
from tests.core.networks import Builder
from tests.core.test_convolution import Layer, chain, on_the_machine, picture, reference

PLAIN = Machine.named("avx2")
SMALL = replace(PLAIN, l2_bytes=64 << 10, l3_bytes=1 << 20)
"""A machine whose near cache holds a strip, not an image."""
SHAPE = (1, 8, 24, 20)


def block(
    kernel: tuple[int, int] = (3, 3),
    strides: tuple[int, int] = (1, 1),
    pads: tuple[int, int, int, int] = (1, 1, 1, 1),
    group: int = 48,
    first: Layer | None = None,
) -> list[Layer]:
    """An expansion, or another ``first`` convolution, a convolution in groups that reads it, a projection."""
    return [first or Layer(48, (1, 1)), Layer(48, kernel, strides, pads, group=group), Layer(12, (1, 1), after="")]


def lowered(model: bytes, threads: int, schedule: Schedule | None = None, machine: Machine = PLAIN) -> compiler.Stages:
    return compiler.lower(model, threads=threads, machine=machine, schedule=schedule)


def ways(model: bytes, threads: int) -> tuple[Schedule, list[Schedule]]:
    """The Schedule of whole images, and every one with a pair of convolutions in strips, others joined."""
    stages = lowered(model, threads)
    groups = groups_of(stages.optimized, stages.options, stages.machine)
    whole, scheduler, found = stages.lowered.schedule, CpuScheduler(groups), []
    for _, pair in strips.pairs(groups, {g.group: (g,) for g in whole.groups}):
        found.append(scheduler.decide({pair.image.group: pair.image, pair.reader.group: pair.reader}))
    return whole, found


def in_strips(schedule: Schedule) -> list[str]:
    return [g.template for g in schedule.groups if g.strips > 1]


def loops(stages: compiler.Stages) -> list[int]:
    """Strips of each loop over strips, by phases: their number in it."""
    return [len(item.body) for item in stages.program.body if isinstance(item, Loop) and item.var == "t"]


@st.composite
def blocks(draw: st.DrawFn) -> list[Layer]:
    kernel = (draw(st.integers(2, 5)), draw(st.integers(1, 5)))
    strides = (draw(st.integers(1, 2)), draw(st.integers(1, 2)))
    pads = tuple(draw(st.integers(0, 2)) for _ in range(4))
    stem = st.builds(Layer, st.just(48), st.just((3, 3)), st.just((1, 1)), st.just((1, 1, 1, 1)))
    group = draw(st.sampled_from([48, 48, 6, 1]))
    layers = block(kernel, strides, pads, group, draw(st.sampled_from([None, None, draw(stem)])))  # type: ignore[arg-type]
    windows = Layer(12, (3, 3), pads=(1, 1, 1, 1), after="")
    return [*layers[:2], draw(st.sampled_from([layers[2], windows]))]


@pytest.mark.slow
@settings(max_examples=20, deadline=None)
@example(block(), 1, 24, 1, 0)
@example(block(strides=(2, 2)), 1, 24, 2, 0)
@example(block((5, 5), (2, 2), (2, 2, 2, 2)), 1, 24, 3, 0)
@example(block((5, 5), pads=(2, 2, 2, 2)), 1, 4, 1, 0)
@example(block((7, 7), pads=(3, 3, 0, 3)), 1, 25, 1, 0)
@example(block((7, 7), pads=(0, 3, 3, 3)), 1, 25, 1, 0)
@example(block(pads=(0, 0, 0, 0)), 1, 24, 1, 0)
@example(block(group=1), 1, 24, 2, 0)
@example(block() + block(), 1, 24, 1, 0)
@example(block(), 2, 24, 1, 0)
@example(block(strides=(2, 2)), 4, 24, 2, 0)
@example(block((7, 7), pads=(3, 3, 0, 3)), 2, 25, 2, 0)
@example(block((7, 7), pads=(0, 3, 3, 3)), 2, 25, 1, 0)
@example(block() + block(), 6, 24, 3, 0)
@given(blocks(), st.sampled_from([1, 1, 2, 3, 4]), st.sampled_from([6, 8, 24]), st.integers(1, 3), st.integers(0, 99))
def test_every_way_is_lowered_right(layers: list[Layer], images: int, height: int, threads: int, seed: int) -> None:
    shape = (images, 8, height, 20)
    model, x = chain(shape, layers), picture(shape)
    want = reference(model, x)
    whole, found = ways(model, threads)
    same = on_the_machine(lowered(model, threads, whole), x, threads, seed)
    for schedule in found[seed % 2 :: 2] if len(found) > 2 else found:
        for read in (Schedule.read(schedule.to_text()), Schedule.read(schedule.to_json())):
            assert read == schedule
        stages = lowered(model, threads, schedule)
        assert len(loops(stages)) == 1
        seen = on_the_machine(stages, x, threads, seed)
        np.testing.assert_allclose(seen.reshape(want.shape), want, rtol=1e-4, atol=1e-4)
        np.testing.assert_array_equal(seen, same)


def test_rows_of_another_rank_may_be_stored() -> None:
    """As where tokens are made of sound by convolutions."""
    b = Builder("tokens")
    hidden = b.add("Relu", b.add("Conv", "x", b.weight(48, 8, 3, 1), pads=[1, 0, 1, 0]))
    hidden = b.add("Conv", hidden, b.weight(32, 48, 3, 1), pads=[1, 0, 1, 0], strides=[2, 1])
    rows = b.add("Transpose", b.add("Reshape", hidden, b.ints(1, 32, 48)), perm=[0, 2, 1])
    b.add("Add", rows, b.weight(48, 32), output="y")
    model = b.model({"x": (TensorProto.FLOAT, (1, 8, 96, 1))}, {"y": (1, 48, 32)})
    x = picture((1, 8, 96, 1))
    whole, found = ways(model, 1)
    assert found
    want = on_the_machine(lowered(model, 1, whole), x, 1, 0)
    for schedule in found:
        np.testing.assert_array_equal(on_the_machine(lowered(model, 1, schedule), x, 1, 0), want)


@pytest.mark.in_turn("threads", "images", "strides")
@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize(("images", "strides"), [(1, (1, 1)), (1, (2, 2)), (4, (1, 1))])
def test_the_compiled_function_keeps_its_bits(threads: int, images: int, strides: tuple[int, int]) -> None:
    shape = (images, *SHAPE[1:])
    model, x = chain(shape, block(strides=strides)), picture(shape)
    whole, found = ways(model, threads)
    assert len(found) > 1
    answers = []
    for schedule in (whole, found[0], found[-1]):
        for workers in (1, 2):
            with Session(compiler.build(lowered(model, threads, schedule)), threads=workers) as session:
                answers.append(session.run({"x": x})["y"])
    for answer in answers:
        np.testing.assert_array_equal(answer, answers[0])


@pytest.mark.parametrize("threads", [1, 2])
def test_a_block_that_no_near_cache_holds_runs_in_strips(threads: int) -> None:
    """And only that: neither where the cache is large, nor where the strips' shared rows take longer than is saved."""
    model, x = chain(SHAPE, block()), picture(SHAPE)
    assert not in_strips(lowered(model, threads, machine=PLAIN).lowered.schedule)
    stages = lowered(model, threads, machine=SMALL)
    schedule = stages.lowered.schedule
    assert in_strips(schedule) == ["conv", "depthwise", "conv"] and loops(stages) == [4]
    want = reference(model, x)
    seen = on_the_machine(stages, x, threads, 0)
    np.testing.assert_allclose(seen.reshape(want.shape), want, rtol=1e-4, atol=1e-4)
    widest = [max(b.nbytes for b in s.program.buffers if b.space == "arena") for s in (stages, lowered(model, threads))]
    assert widest[0] < widest[1], "the widest image is not stored"
    alike = replace(SMALL, l2_bandwidth=SMALL.l3_bandwidth)  # what the near cache has comes while it is multiplied
    assert in_strips(lowered(model, threads, machine=alike).lowered.schedule) == in_strips(schedule)
    slow = replace(SMALL, peak_flops_per_core=1e9)
    assert not in_strips(lowered(model, threads, machine=slow).lowered.schedule)


def test_images_that_fill_most_of_the_near_cache_run_in_strips() -> None:
    """Of 90 KiB each, the image and what is computed of it: something else passes through the cache as well."""
    machines = (replace(SMALL, l2_bytes=size << 10) for size in (200, 256, 512))
    found = [in_strips(lowered(chain(SHAPE, block()), 1, machine=m).lowered.schedule) for m in machines]
    assert found == [["conv", "depthwise", "conv"]] * 2 + [[]]


def test_each_block_has_strips_of_its_own() -> None:
    """The second one's windows read rows that the first one has not stored yet."""
    model, x = chain(SHAPE, block() + block()), picture(SHAPE)
    stages = lowered(model, 1, machine=SMALL)
    assert loops(stages) == [4, 4]
    want = reference(model, x)
    seen = on_the_machine(stages, x, 1, 0)
    np.testing.assert_allclose(seen.reshape(want.shape), want, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("threads", [1, 2])
def test_images_of_a_batch_run_in_strips_one_after_the_other(threads: int) -> None:
    """Each owner's images; what stores more of an image than it reads has no part in that."""
    shape, wider = (4, *SHAPE[1:]), Layer(48, (1, 1))
    model, x = chain(shape, [*block(), wider]), picture(shape)
    stages = lowered(model, threads, machine=SMALL)
    assert in_strips(stages.lowered.schedule) == ["conv", "depthwise", "conv"]
    (loop,) = (item for item in stages.program.body if isinstance(item, Loop) and item.var == "t")
    assert loop.count % (4 // threads) == 0 and loop.count > 4 // threads
    want = reference(model, x)
    seen = on_the_machine(stages, x, threads, 0)
    np.testing.assert_allclose(seen.reshape(want.shape), want, rtol=1e-4, atol=1e-4)
    alone = lowered(chain(SHAPE, [*block(), wider]), threads, machine=SMALL)
    assert in_strips(alone.lowered.schedule) == ["conv", "depthwise", "conv", "conv"]


def excited(images: int) -> bytes:
    """An excitation reads all of the depthwise convolution's image before it scales it."""
    b = Builder("excited")
    wide = b.add("Relu", b.add("Conv", "x", b.constant(b.random.standard_normal((48, 8, 1, 1)).astype(np.float32))))
    deep = b.constant((b.random.standard_normal((48, 1, 3, 3)) * 0.3).astype(np.float32))
    image = b.add("Relu", b.add("Conv", wide, deep, group=48, pads=[1, 1, 1, 1]))
    gate = b.add("Sigmoid", b.add("GlobalAveragePool", image))
    narrow = b.constant((b.random.standard_normal((12, 48, 1, 1)) * 0.2).astype(np.float32))
    b.add("Conv", b.add("Mul", image, gate), narrow, output="y")
    return b.model({"x": (TensorProto.FLOAT, (images, *SHAPE[1:]))}, {"y": (images, 12, *SHAPE[2:])})


def test_what_is_read_twice_is_stored_whole_behind_its_strips() -> None:
    """Of one image; several are better done image by image then."""
    model, x = excited(1), picture(SHAPE)
    want, fast = reference(model, x), replace(SMALL, peak_flops_per_core=1e13)
    assert in_strips(lowered(model, 1, machine=fast).lowered.schedule)
    assert not in_strips(lowered(excited(2), 1, machine=fast).lowered.schedule)
    _, found = ways(model, 1)
    assert found
    for schedule in found:
        assert in_strips(schedule) == ["conv", "depthwise"]
        seen = on_the_machine(lowered(model, 1, schedule), x, 1, 0)
        np.testing.assert_allclose(seen.reshape(want.shape), want, rtol=1e-4, atol=1e-4)


def test_images_that_are_put_together_of_others_have_no_strips() -> None:
    """A convolution's four images side by side in one that its reader's windows go through."""
    b = Builder("windows")
    z = b.add("Reshape", b.add("Conv", "x", b.weight(48, 8, 1, 1)), b.ints(4, 48, 8, 8))
    z = b.add("Reshape", b.add("Transpose", z, perm=[1, 2, 0, 3]), b.ints(1, 48, 8, 32))
    b.add("Conv", z, b.weight(48, 1, 3, 3), group=48, pads=[1, 1, 1, 1], output="y")
    model = b.model({"x": (TensorProto.FLOAT, (4, 8, 8, 8))}, {"y": (1, 48, 8, 32)})
    for threads in (1, 2):
        assert ways(model, threads)[1] == []


@pytest.mark.parametrize("threads", [1, 2])
def test_what_cannot_run_so_is_refused(threads: int) -> None:
    model = chain(SHAPE, block())
    whole, found = ways(model, threads)
    image, reader, last = (g for g in found[0].groups if g.strips > 1)
    plain = {g.group: g for g in whole.groups}
    for wrong in (
        found[0].with_group(plain[reader.group]),
        found[0].with_group(plain[image.group]),
        found[0].with_group(replace(reader, strips=reader.strips + 1)),
        found[0].with_group(replace(last, strips=2 * last.strips)),
        found[0].with_group(replace(last, tile=replace(last.tile, rows=last.tile.rows + 1))),  # type: ignore[type-var]
        whole.with_group(replace(plain[last.group], strips=2)),
    ):
        with pytest.raises(OptionError, match=r"strips|bands"):
            lowered(model, threads, wrong)


@settings(max_examples=10, deadline=None)
@given(st.integers(1, 2), st.randoms(use_true_random=False))
def test_a_search_takes_strips_apart_and_together(threads: int, random) -> None:  # type: ignore[no-untyped-def]
    model = chain(SHAPE, block())
    stages = lowered(model, threads, machine=SMALL)
    scheduler = CpuScheduler(groups_of(stages.optimized, stages.options, SMALL))
    best = stages.lowered.schedule
    drawn, changed = search.sample(scheduler, random), search.mutate(scheduler, best, random)
    if all(g in changed.groups for g in best.groups if g.strips > 1 and g.partition.bands):
        assert sum(g not in best.groups for g in changed.groups) == 1, "the others keep their strips"
    for schedule in (
        changed,
        search.cross(scheduler, best, drawn, random),
        search.cross(scheduler, changed, best, random),
    ):
        scheduler.check(schedule)
        lowered(model, threads, schedule, SMALL)


@pytest.mark.parametrize("threads", [1, 2])
def test_channels_that_become_pixels_of_a_row_are_in_strips_only_where_owners_have_whole_rows(threads: int) -> None:
    """A spectrogram: a task of the convolution that makes it ends within a row, or past one's end."""
    b, height, frame, bins = Builder("spectrogram"), 96, 32, 33
    waves = b.add("Conv", "x", b.weight(bins, 1, 1, frame))
    image = b.add("Transpose", b.add("Mul", waves, waves), perm=[0, 3, 2, 1])
    first = b.add("Relu", b.add("Conv", image, b.weight(8, 1, 3, 3), pads=[1, 1, 1, 1]))
    b.add("Conv", first, b.weight(8, 8, 3, 3), output="y")
    inputs = {"x": (TensorProto.FLOAT, (1, 1, height, frame))}
    model = b.model(inputs, {"y": (1, 8, height - 2, bins - 2)})
    machine = replace(PLAIN, l2_bytes=8 << 10, l3_bytes=1 << 20)
    stages = lowered(model, threads, machine=machine)
    x = np.random.default_rng(0).standard_normal((1, 1, height, frame)).astype(np.float32)
    found, want = on_the_machine(stages, x, threads, 0), reference(model, x)
    np.testing.assert_allclose(found.reshape(want.shape), want, rtol=1e-3, atol=1e-3)
