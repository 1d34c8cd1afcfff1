"""Convolutions of few output channels: vectors of input channels, stored as vectors of pixels."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

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


@pytest.mark.in_turn("level", "name")
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


NARROW = ("a picture", "a mask", "channels that fill no vector", "strides", "dilations", "pixels last", "many taps")


@pytest.mark.parametrize("name", NARROW)
def test_of_bfloat16(name: str) -> None:
    """What is multiplied is rounded to eight bits, sums are not: within the gate of such networks."""
    case, options = CASES[name], {"threads": 2, "precision": "bf16"}
    if "avx512bf16" not in Machine.probe().features:
        pytest.skip("this processor has no products of bfloat16")
    machine = replace(Machine.probe(), product_peaks=())
    stages = compiler.lower(case.model(), machine=machine, **options)
    (few,) = (p for p in stages.program.phases() if p.task.template == "few_channels")
    assert {stages.program.buffer(str(o.buffer)).dtype for o in few.task.operands if o.role in ("a", "b")} == {
        "bfloat16"
    }
    x = np.random.default_rng(0).standard_normal(case.x).astype(np.float32)
    (wanted,) = ReferenceEvaluator(case.model()).run(None, {"x": x})
    with Session(compiler.build(stages), threads=2) as session:
        found = session.run({"x": x})["y"]
    assert np.linalg.norm(found - wanted) <= 2e-2 * np.linalg.norm(wanted)
    given = {"x": x.reshape(stages.program.buffer("x").shape)}
    seen = run(stages.program, given, stages.lowered.weights, 2)["y"].reshape(wanted.shape)
    np.testing.assert_allclose(seen, found, rtol=1e-2, atol=1e-2)


def quantised(case: Case) -> bytes:
    """x and the weights in steps, the convolution of them, and what follows."""
    b = Builder("few", 3)
    step, zero, none = b.constant(np.float32(0.05)), b.constant(np.uint8(117)), b.constant(np.int8(0))
    x = b.add("DequantizeLinear", b.add("QuantizeLinear", "x", step, zero), step, zero)
    w = b.constant(b.random.integers(-128, 128, (case.outputs, case.x[1], *case.kernel)).astype(np.int8))
    y = b.add("Conv", x, b.add("DequantizeLinear", w, b.constant(np.float32(0.01)), none), **case.attributes)
    b.add("Transpose", y, perm=[0, 2, 3, 1], output="y") if case.then == "pixels last" else b.add("Relu", y, output="y")
    return b.model({"x": (TensorProto.FLOAT, case.x)}, {"y": ("n", "c", "h", "w")})  # type: ignore[dict-item]


@pytest.mark.parametrize("name", NARROW)
def test_of_bytes(name: str) -> None:
    """The same bits whatever the processor multiplies bytes by."""
    case, found = CASES[name], []
    x = np.random.default_rng(0).standard_normal(case.x).astype(np.float32)
    levels = [*(Machine.named(level) for level in (*LEVELS, "scalar")), Machine.probe()]
    for machine in levels:
        stages = compiler.lower(quantised(case), threads=2, machine=machine)
        assert ("few_channels" in [p.task.template for p in stages.program.phases()]) == (machine.vector_bytes > 4)
        with Session(compiler.build(stages), threads=2) as session:
            found.append(session.run({"x": x})["y"])
    given = {"x": x.reshape(stages.program.buffer("x").shape)}
    found.append(run(stages.program, given, stages.lowered.weights, 2)["y"].reshape(found[0].shape))
    (wanted,) = ReferenceEvaluator(quantised(case)).run(None, {"x": x})
    for seen in found:
        np.testing.assert_array_equal(seen, found[0])
    np.testing.assert_allclose(found[0], wanted, rtol=1e-4, atol=1e-3)


def test_tile_registers_are_not_left_for_it() -> None:
    machine = Machine.named("avx512")
    machine = replace(machine, features=machine.features | {"avx512vnni", "amx-tile", "amx-int8"})
    stages = compiler.lower(quantised(CASES["a picture"]), threads=2, machine=machine)
    assert "few_channels" not in [p.task.template for p in stages.program.phases()]


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
        Case((1, 3, 9, 9), 3),
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


@pytest.mark.parametrize(
    ("params", "message"),
    [
        ({"at_once": 6}, "6 pixels at once are no power of two"),
        ({"joined": 2}, "runs of 2 taps in lines of 16 terms do not exist"),
        ({"line": 0}, "runs of 3 taps in lines of 0 terms do not exist"),
        ({"line": 10}, "operand 'b' does not have the .* rows of its windows"),
    ],
)
def test_parameters_fit_the_windows(params: dict[str, object], message: str) -> None:
    program = lowered(CASES["a picture"], "avx512").program
    with pytest.raises(VerifyError, match=message):
        verify(changed(program, "few_channels", **params))
