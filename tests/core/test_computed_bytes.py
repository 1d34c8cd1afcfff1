"""Products of quantised tensors both of which are computed, and of what is joined and padded on its way: of bytes."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest
from onnx import TensorProto

from mononn_core import compiler
from mononn_core.importer import load
from mononn_core.machine import Machine
from mononn_core.ops.quantise import limits
from mononn_core.passes.pipeline import real_products
from mononn_core.program.interpret import run
from mononn_core.runtime.session import Session
from tests.core.models import model, node
from tests.core.test_quantised import STEP, Quantised, real

HERE = Machine.probe()
LEVELS = {name: Machine.named(name) for name in ("avx512", "avx2", "scalar")}
LEVELS = {name: machine for name, machine in LEVELS.items() if machine.features <= HERE.features} | {"here": HERE}


@dataclass(frozen=True)
class Case:
    """x of ``a`` times y of ``b``, transposed by ``perm``; their types and zero points. ``then``: what follows."""

    a: tuple[int, ...]
    b: tuple[int, ...]
    perm: tuple[int, ...] = ()
    kinds: tuple[str, str] = ("uint8", "uint8")
    zeros: tuple[int, int] = (117, 131)
    then: str = "Identity"

    def model(self) -> bytes:
        nodes = []
        for x, n in (("x", 0), ("y", 1)):
            nodes += [
                node("QuantizeLinear", f"{x} scale zero{n}", f"{x}_q"),
                node("DequantizeLinear", f"{x}_q scale zero{n}", f"{x}_d"),
            ]
        name = "y_d"
        if self.perm:
            nodes.append(node("Transpose", name, "t", perm=self.perm))
            name = "t"
        nodes.append(node("MatMul", f"x_d {name}", "product"))
        nodes.append(node(self.then, "product" + " step zero0" * (self.then == "QuantizeLinear"), "z"))
        constants = {
            f"zero{n}": np.array(z, kind) for n, (z, kind) in enumerate(zip(self.zeros, self.kinds, strict=True))
        }
        constants |= {"scale": np.array(0.02, np.float32), "step": np.array(0.6913, np.float32)}
        edges = [("x", "float32", self.a), ("y", "float32", self.b)]
        return model(nodes, edges, ["z"], constants).SerializeToString()

    def feeds(self) -> dict[str, np.ndarray]:
        random = np.random.default_rng(0)
        return {k: random.standard_normal(shape).astype(np.float32) * 2 for k, shape in (("x", self.a), ("y", self.b))}

    def wanted(self) -> np.ndarray:
        sides = []
        for x, zero, kind in zip(self.feeds().values(), self.zeros, self.kinds, strict=True):
            steps = np.round(x / np.float32(0.02)).astype(np.int64)
            sides.append(np.clip(steps + zero, *limits(kind)) - zero)
        a, b = sides
        product = (a @ (b.transpose(self.perm) if self.perm else b)) * float(np.float32(0.02)) ** 2
        if self.then == "QuantizeLinear":
            return np.clip(np.round(product / float(np.float32(0.6913))) + self.zeros[0], *limits(self.kinds[0]))
        return np.maximum(product, 0) if self.then == "Relu" else product


CASES = {
    "heads": Case((2, 3, 33, 48), (2, 3, 48, 45)),
    "columns below one another": Case((2, 3, 33, 48), (2, 3, 45, 48), (0, 1, 3, 2)),
    "odd terms": Case((2, 21, 37), (2, 37, 70), then="Relu"),
    "odd terms, turned": Case((2, 21, 39), (2, 70, 39), (0, 2, 1), then="Relu"),
    "many terms, turned": Case((3, 70, 203), (3, 19, 203), (0, 2, 1)),
    "heads in a row": Case((2, 3, 17, 16), (2, 20, 3, 16), (0, 2, 3, 1)),
    "heads in a row, read as rows": Case((2, 3, 17, 20), (2, 20, 3, 16), (0, 2, 1, 3)),
    "signed right side": Case((40, 64), (64, 33), kinds=("uint8", "int8"), zeros=(0, -3)),
    "signed left side": Case((40, 64), (64, 33), kinds=("int8", "uint8"), zeros=(-5, 0)),
    "no corrections": Case((40, 65), (65, 64), zeros=(0, 128)),
    "one row": Case((4, 1, 50), (4, 50, 31)),
    "an odd batch": Case((3, 21, 40), (3, 33, 40), (0, 2, 1)),
    "an odd batch of heads": Case((3, 21, 40), (40, 3, 33), (1, 0, 2)),
    "bytes again": Case((2, 3, 33, 48), (2, 3, 48, 64), then="QuantizeLinear"),
    "bytes again, in ragged panels": Case((2, 21, 37), (2, 70, 37), (0, 2, 1), then="QuantizeLinear"),
    "one batch for all": Case((4, 9, 50), (1, 50, 31)),
}


@pytest.mark.in_turn("level", "label")
@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("label", CASES)
def test_as_in_whole_numbers(label: str, level: str) -> None:
    case = CASES[label]
    assert not real_products(load(case.model()))
    stages = compiler.lower(case.model(), threads=2, machine=LEVELS[level])
    assert "mn::ComputedBytes<" in stages.source
    with Session(compiler.build(stages), threads=2) as session:
        found = session.run(case.feeds())["z"]
    np.testing.assert_allclose(found, case.wanted(), rtol=2e-7, atol=1e-30)


@pytest.mark.parametrize("label", ["heads in a row", "odd terms, turned"])
def test_the_virtual_machine_agrees(label: str) -> None:
    case = CASES[label]
    stages = compiler.lower(case.model(), threads=2, machine=HERE)
    feeds = {name: x.reshape(stages.program.buffer(name).shape) for name, x in case.feeds().items()}
    found = run(stages.program, feeds, stages.lowered.weights, workers=2)["z"]
    np.testing.assert_allclose(found.reshape(case.wanted().shape), case.wanted(), rtol=2e-7, atol=1e-30)


def test_columns_below_one_another_are_read_as_they_lie() -> None:
    """No byte is moved: heads side by side in a row are views of what is quantised."""
    stages = compiler.lower(CASES["heads in a row"].model(), threads=2, machine=HERE)
    assert [phase.task.template for phase in stages.program.phases()] == ["nest", "nest", "bytes_matmul"]


def test_matrices_of_constants() -> None:
    """Of several experts each has a quantised matrix."""
    random = np.random.default_rng(0)
    w, x = random.integers(-128, 128, (3, 50, 31), np.int8), random.standard_normal((3, 9, 50)).astype(np.float32)
    nodes = [
        node("QuantizeLinear", "x scale zero", "q"),
        node("DequantizeLinear", "q scale zero", "d"),
        node("DequantizeLinear", "w scale", "v"),
        node("MatMul", "d v", "y"),
    ]
    constants = {"w": w, "scale": np.float32(0.03), "zero": np.uint8(125)}
    stages = compiler.lower(model(nodes, [("x", "float32", x.shape)], ["y"], constants).SerializeToString(), threads=2)
    assert "mn::ComputedBytes<" in stages.source
    q = np.clip(np.round(x / np.float32(0.03)) + 125, 0, 255).astype(np.int32) - 125
    with Session(compiler.build(stages), threads=2) as session:
        wanted = (q @ w.astype(np.int32)) * float(np.float32(0.03)) ** 2
        np.testing.assert_allclose(session.run({"x": x})["y"], wanted, rtol=2e-7, atol=1e-30)


@pytest.mark.parametrize(("a_type", "b_type"), [("uint8", "uint8"), ("int8", "int8"), ("uint8", "int8")])
def test_a_product_of_integers_that_are_given(a_type: str, b_type: str) -> None:
    """MatMulInteger, zero points given in the run too."""
    nodes = [node("MatMulInteger", "a b za zb", "y")]
    edges = [("a", a_type, (2, 19, 37)), ("b", b_type, (2, 37, 41)), ("za", a_type, ()), ("zb", b_type, ())]
    random = np.random.default_rng(0)
    feeds = {n: random.integers(*limits(kind), shape, kind, endpoint=True) for n, kind, shape in edges}
    stages = compiler.lower(model(nodes, edges, ["y"], {}).SerializeToString(), threads=2)
    assert "mn::ComputedBytes<" in stages.source
    a, b = (feeds[n].astype(np.int32) - feeds[f"z{n}"].astype(np.int32) for n in "ab")
    with Session(compiler.build(stages), threads=2) as session:
        np.testing.assert_array_equal(session.run(feeds)["y"], a @ b)


def test_what_one_scale_dequantises_is_joined_as_integers() -> None:
    """A convolution of three axes, whose image is a concatenation of its depths, and a transposed one, whose kernels
    are padded to whole strides: both of bytes."""
    b = Quantised("uint8", "int8", per_channel=True)
    y = b.add("Conv", b.rounded("x"), b.quantised_weight(12, 8, 3, 3, 3, axis=0), pads=[1] * 6)
    y = b.rounded(b.add("Relu", y))
    y = b.add("Reshape", y, b.ints(1, 48, 9, 10))
    y = b.add("ConvTranspose", y, b.quantised_weight(48, 5, 3, 3, axis=1), strides=[2, 2], pads=[1, 1, 1, 1])
    b.rounded(y, output="y")
    proto = b.model({"x": (TensorProto.FLOAT, (1, 8, 4, 9, 10))}, {"y": (1, 5, 17, 19)})
    assert real_products(load(proto, {})) == {}
    stages = compiler.lower(proto, threads=2, machine=HERE)
    x = np.random.default_rng(8).standard_normal((1, 8, 4, 9, 10)).astype(np.float32)
    with Session(compiler.build(stages), threads=2) as session:
        found = session.run({"x": x})["y"]
    assert np.abs(found - real(stages.graph, x)).max() < 1.01 * STEP
