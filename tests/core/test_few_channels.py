"""Convolutions of few output channels: vectors of input channels, stored as vectors of pixels."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import pytest
from onnx import TensorProto
from onnx.reference import ReferenceEvaluator

from mononn_core import compiler
from mononn_core.compiler import CpuStages
from mononn_core.errors import VerifyError
from mononn_core.machine import Machine
from mononn_core.program.interpret import run
from mononn_core.program.verify import verify
from mononn_core.runtime.session import Session
from mononn_core.runtime.toolchain import compile_shared
from tests.core.networks import Builder
from tests.core.test_templates import changed

LEVELS = [n for n in ("avx512", "avx2") if Machine.named(n).features <= Machine.probe().features]


@dataclass(frozen=True)
class Case:
    """The shape of an image whose pixels are computed, output channels, kernel, attributes; ``then``: what follows."""

    x: tuple[int, int, int, int]
    outputs: int
    kernel: tuple[int, int] = (3, 3)
    attributes: dict[str, object] = field(default_factory=lambda: {"pads": [1, 1, 1, 1]})
    then: str = "Tanh"

    def model(self) -> bytes:
        b = Builder("few", 3)
        x = b.add("Relu", b.add("Conv", "x", b.weight(self.x[1], self.x[1], 1, 1)))
        weights = b.weight(self.outputs, self.x[1], *self.kernel)
        y = b.add("Conv", x, weights, b.weight(self.outputs), **self.attributes)
        if self.then == "pixels last":
            b.add("Transpose", y, perm=[0, 2, 3, 1], output="y")
        elif self.then == "added":
            b.add("Add", y, b.add("Conv", "x", b.weight(self.outputs, self.x[1], 1, 1)), output="y")
        else:
            b.add(self.then, y, output="y")
        return b.model({"x": (TensorProto.FLOAT, self.x)}, {"y": ("n", "c", "h", "w")})  # type: ignore[dict-item]


CASES = {
    "a picture": Case((1, 32, 16, 32), 3),
    "a mask": Case((1, 64, 9, 37), 1, (1, 1), {}),
    "a flow": Case((2, 48, 7, 11), 2),
    "narrower than a vector": Case((1, 32, 9, 5), 4),
    "channels that fill no vector": Case((1, 37, 9, 19), 3, (5, 3), {"pads": [2, 1, 2, 1]}),
    "strides": Case((1, 32, 17, 40), 3, (3, 3), {"strides": [2, 3], "pads": [0, 1, 1, 0]}),
    "dilations": Case((1, 32, 17, 40), 2, (3, 3), {"dilations": [2, 3]}),
    "pixels last": Case((1, 64, 8, 20), 3, then="pixels last"),
    "added to another": Case((1, 64, 8, 20), 3, then="added"),
    "many": Case((1, 128, 6, 33), 5),
    "many taps": Case((1, 32, 13, 30), 3, (7, 7), {"pads": [3, 3, 3, 3]}),
}


def lowered(case: Case, level: str) -> CpuStages:
    return compiler.lower(case.model(), threads=2, machine=Machine.named(level))


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("name", CASES)
def test_as_the_reference(name: str, level: str) -> None:
    case = CASES[name]
    stages = lowered(case, level)
    assert "few_channels" in [phase.task.template for phase in stages.program.phases()]
    x = np.random.default_rng(0).standard_normal(case.x).astype(np.float32)
    (wanted,) = ReferenceEvaluator(case.model()).run(None, {"x": x})
    with Session(compiler.build(stages), threads=2) as session:
        np.testing.assert_allclose(session.run({"x": x})["y"], wanted, rtol=1e-4, atol=1e-4)
    given = {"x": x.reshape(stages.program.buffer("x").shape)}
    seen = run(stages.program, given, stages.lowered.weights, 2)["y"]
    np.testing.assert_allclose(seen.reshape(wanted.shape), wanted, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("threads", [1, 3])
def test_the_bits_hang_on_no_number_of_workers(threads: int) -> None:
    artifact = compiler.build(lowered(CASES["a picture"], LEVELS[0]))
    x = np.random.default_rng(0).standard_normal(CASES["a picture"].x).astype(np.float32)
    found = []
    for workers in (2, threads):
        with Session(artifact, threads=workers) as session:
            found.append(session.run({"x": x})["y"])
    np.testing.assert_array_equal(*found)


@pytest.mark.parametrize(
    "case",
    [
        Case((1, 32, 9, 9), 9),
        Case((1, 32, 9, 9), 8, (1, 1), {}),
        Case((1, 4, 9, 9), 3),
        Case((1, 16, 9, 9), 3, (1, 1), {}),
    ],
)
def test_where_it_does_not_pay(case: Case) -> None:
    assert "few_channels" not in [p.task.template for p in lowered(case, "avx512").program.phases()]


@pytest.mark.parametrize("machine", ["avx512", "neon"])
def test_it_compiles_for_other_processors(machine: str) -> None:
    level = Machine.named(machine)
    for name in ("a mask", "a flow"):
        source, flags = lowered(CASES[name], machine).source, (f"-DMONONN_VECTOR_BYTES={level.vector_bytes}",)
        assert "mn::few_channels<" in source
        assert compile_shared(source, machine=level, extra_flags=flags).code


def test_pixels_at_once_are_a_power_of_two() -> None:
    program = lowered(CASES["a picture"], "avx512").program
    with pytest.raises(VerifyError, match="6 pixels at once are no power of two"):
        verify(changed(program, "few_channels", at_once=6))
