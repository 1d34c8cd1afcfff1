"""Images in bands: owners compute the rows that their windows share themselves, and no barrier stands in between."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import TensorProto

from mononn_core import compiler
from mononn_core.machine import Machine
from mononn_core.program.ir import Barrier, Phase, Program
from mononn_core.runtime.session import Session
from tests.core.networks import Builder
from tests.core.test_convolution import Layer, chain, on_the_machine, picture, reference


def in_bands(program: Program) -> list[str]:
    """The buffers of images in bands."""
    return [b.id for b in program.buffers if b.id.endswith("@bands")]


@pytest.mark.parametrize("threads", [2, 3])
@pytest.mark.parametrize(
    ("shape", "layer"),
    [
        ((1, 3, 30, 30), Layer(32, (7, 7), (2, 2), (3, 3, 3, 3))),
        ((1, 3, 31, 17), Layer(32, (3, 3), (2, 2), (1, 1, 1, 1))),
        ((1, 3, 29, 23), Layer(48, (5, 3), (1, 1), (0, 2, 1, 0))),
        ((1, 32, 24, 18), Layer(32, (3, 3), (1, 1), (1, 1, 1, 1))),
        ((1, 4, 25, 11), Layer(16, (3, 3), (2, 1), (2, 0, 0, 1), (2, 1))),
        ((1, 16, 19, 19), Layer(16, (5, 5), (1, 1), (2, 2, 2, 2), group=16)),
    ],
)
def test_a_transposition_and_its_convolution_meet_without_a_barrier(
    shape: tuple[int, int, int, int], layer: Layer, threads: int
) -> None:
    model, x = chain(shape, [layer]), picture(shape)
    stages = compiler.lower(model, threads=threads, machine=Machine.named("avx2"))
    image, windows = stages.program.body[:2]
    assert isinstance(image, Phase) and isinstance(windows, Phase), "a barrier between the two"
    (bands,) = in_bands(stages.program)
    assert [o.buffer for o in image.task.operands if o.access == "write"] == [bands]
    assert [o.buffer for o in windows.task.operands if o.role == "a"] == [bands]
    want = reference(model, x)
    seen = on_the_machine(stages, x, workers=threads, seed=0)
    np.testing.assert_allclose(seen.reshape(want.shape), want, rtol=1e-4, atol=1e-5)
    for workers in (1, threads):
        with Session(compiler.build(stages), threads=workers) as session:
            np.testing.assert_allclose(session.run({"x": x})["y"], want, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("shape", "layer"),
    [
        ((1, 16, 20, 20), Layer(32, (1, 1))),  # no windows in common
        ((1, 16, 55, 20), Layer(32, (1, 1))),
        ((2, 3, 20, 20), Layer(32, (3, 3))),  # images, not rows, are dealt
    ],
)
def test_what_shares_nothing_is_stored_whole(shape: tuple[int, int, int, int], layer: Layer) -> None:
    stages = compiler.lower(chain(shape, [layer]), threads=2, machine=Machine.named("avx2"))
    assert not in_bands(stages.program)


@pytest.mark.parametrize(("height", "kernel"), [(5, 3), (6, 3), (5, 7), (9, 3), (4, 5)])
@pytest.mark.parametrize("threads", [3, 4])
def test_owners_with_few_rows_or_none(height: int, kernel: int, threads: int) -> None:
    """Of five rows among four owners, two each, the third has one."""
    shape = (1, 3, height, 60)
    model, x = chain(shape, [Layer(64, (kernel, kernel), pads=(kernel // 2,) * 4)]), picture(shape)
    stages = compiler.lower(model, threads=threads, machine=Machine.named("avx2"))
    want = reference(model, x)
    np.testing.assert_allclose(on_the_machine(stages, x, threads, 0).reshape(want.shape), want, rtol=1e-4, atol=1e-5)


def test_an_image_of_two_readers_is_stored_whole() -> None:
    b = Builder("two")
    image = b.add("Sigmoid", "x")
    wide, narrow = (b.constant(b.random.standard_normal((8, 4, k, k)).astype(np.float32)) for k in (5, 3))
    y = b.add("Conv", image, wide, pads=[2, 2, 2, 2])
    b.add("Add", y, b.add("Conv", image, narrow, pads=[1, 1, 1, 1]), output="y")
    model = b.model({"x": (TensorProto.FLOAT, (1, 4, 20, 20))}, {"y": (1, 8, 20, 20)})
    stages = compiler.lower(model, threads=2, machine=Machine.named("avx2"))
    first = stages.program.body[0]
    assert isinstance(first, Phase)
    shared = [str(o.buffer) for o in first.task.operands if o.access == "write"]
    assert not any(name.endswith("@bands") for name in shared)
    assert any(isinstance(item, Barrier) for item in stages.program.body)
    x = picture((1, 4, 20, 20))
    want = reference(model, x)
    np.testing.assert_allclose(on_the_machine(stages, x, 2, 0).reshape(want.shape), want, rtol=1e-4, atol=1e-4)
