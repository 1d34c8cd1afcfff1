"""ConvInteger: the exact sums, through the convolutions of bytes, whatever its zero points and when they are known."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np
import pytest
from onnx import helper
from onnx.reference import ReferenceEvaluator

from mononn_core import compiler
from mononn_core.compiler.cpu import product_features
from mononn_core.machine import Machine
from mononn_core.program.interpret import run
from mononn_core.runtime.session import Session
from mononn_core.schedule.decisions import L2_SHARE
from tests.core.models import model, node


@dataclass(frozen=True)
class Case:
    """``zero``: of x, None where x is quantised in the run, and its own; in the model unless ``late``."""

    shape: tuple[int, ...] = (1, 8, 9, 10)
    weight: tuple[int, ...] = (16, 8, 3, 3)
    x: str = "uint8"
    w: str = "int8"
    zero: int | None = None
    w_zero: int | None = None
    late: bool = False
    through: str = "conv"
    attributes: dict[str, object] = field(default_factory=lambda: {"pads": [1, 1, 1, 1]})


CASES = {
    "quantised in the run": Case(),
    "known": Case(zero=3, attributes={"pads": [1, 0, 2, 1], "strides": [2, 1]}),
    "known only in the run": Case(zero=7, late=True, weight=(16, 2, 3, 3), attributes={"pads": [1] * 4, "group": 4}),
    "signed": Case(x="int8", zero=-3, attributes={"pads": [1, 0, 2, 1], "dilations": [2, 1]}),
    "unsigned weights": Case(x="int8", w="uint8", zero=-3, w_zero=128),
    "weights of nine bits": Case(x="int8", w="uint8", zero=-3, w_zero=5),
    "of nine bits, known only in the run": Case(
        w="uint8", w_zero=250, attributes={"pads": [1, 0, 2, 1], "strides": [2, 1]}
    ),
    "of nine bits, in groups": Case(
        w="uint8", zero=7, late=True, w_zero=130, weight=(16, 2, 3, 3), attributes={"pads": [1] * 4, "group": 4}
    ),
    "of nine bits, one pixel": Case(w="uint8", w_zero=120, weight=(16, 8, 1, 1), attributes={}),
    "depthwise": Case(weight=(8, 1, 3, 3), attributes={"pads": [1] * 4, "group": 8}, through="depthwise"),
    "a sequence": Case((2, 8, 30), (16, 8, 5), "int8", zero=4, late=True, attributes={"pads": [2, 2]}),
    "a volume": Case((1, 2, 5, 6, 7), (16, 2, 3, 3, 3), zero=9, attributes={"pads": [1] * 6}),
    "patches of a volume": Case((1, 3, 4, 8, 8), (16, 3, 2, 4, 4), attributes={"strides": [2, 4, 4]}),
    "a volume, of nine bits, in groups": Case(
        (2, 4, 5, 6, 7),
        (8, 2, 2, 3, 3),
        zero=7,
        late=True,
        w="uint8",
        w_zero=130,
        attributes={"pads": [1, 0, 2, 0, 1, 1], "strides": [2, 1, 2], "group": 2},
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_as_the_reference(name: str) -> None:
    case, random = CASES[name], np.random.default_rng(0)

    def whole(shape: tuple[int, ...], kind: str) -> np.ndarray:  # type: ignore[type-arg]
        limits = np.iinfo(kind)
        return random.integers(limits.min, limits.max + 1, shape).astype(kind)

    feeds, nodes, zero = {}, [], "" if case.zero is None else "zero"
    constants = {"w": whole(case.weight, case.w)}
    if case.zero is None:
        feeds["x"] = random.standard_normal(case.shape).astype(np.float32)
        nodes.append(node("DynamicQuantizeLinear", "x", "xq scale zero"))
        zero = "zero"
    else:
        feeds["xq"] = whole(case.shape, case.x)
        (feeds if case.late else constants)["zero"] = np.array(case.zero, case.x)
    if case.w_zero is not None:
        constants["wz"] = np.array(case.w_zero, case.w)
    inputs = ["xq", "w", zero, *(["wz"] if case.w_zero is not None else [])]
    nodes.append(helper.make_node("ConvInteger", inputs, ["y"], **case.attributes))
    edges = [(n, str(v.dtype), v.shape) for n, v in feeds.items()]
    proto = model(nodes, edges, ["y"], constants)
    (wanted,) = ReferenceEvaluator(proto).run(None, feeds)
    stages = compiler.lower(proto.SerializeToString(), threads=2)
    with Session(compiler.build(stages), threads=2) as session:
        np.testing.assert_array_equal(session.run(feeds)["y"], wanted)
    assert stages.manifest["phases"][-1]["template"] == case.through


def test_lines_that_panels_share_stay_in_the_cache() -> None:
    """A panel's bytes are half a cache line: image rows are cut so that the other half is written before it leaves
    the second-level cache, and a line is fetched once. Of floats a panel's are whole lines."""
    random, machine = np.random.default_rng(0), Machine.named("avx512")
    constants = {
        "w": random.integers(-9, 9, (256, 64, 1, 1)).astype(np.int8),
        "scale": np.float32(0.02),
        "zero": np.uint8(128),
        "fine": np.float32(0.01),
        "none": np.int8(0),
        "real": random.standard_normal((256, 64, 1, 1)).astype(np.float32),
    }
    nodes = [
        node("QuantizeLinear", "x scale zero", "q"),
        node("QLinearConv", "q scale zero w fine none scale zero", "y"),
        node("Conv", "x real", "z"),
    ]
    proto = model(nodes, [("x", "float32", (1, 64, 56, 56))], ["y", "z"], constants)
    stages = compiler.lower(proto.SerializeToString(), threads=1, machine=machine)
    tiles = [group.tile for group in stages.lowered.schedule.groups if group.tile is not None]
    bytes_, floats = sorted(tiles, key=lambda tile: -tile.blocks)
    assert (bytes_.panel, floats.panel) == (32, 32)
    assert bytes_.blocks * bytes_.rows >= 56 > floats.rows * (floats.blocks - 1)
    assert bytes_.rows * 56 * (64 + 256) <= L2_SHARE * machine.l2_bytes < 56 * 56 * (64 + 256)
    assert "mn::prefetch_write(" not in stages.source  # outputs are stored plane by plane: neighbours share a line


def test_lines_that_a_convolution_stores_are_asked_for_once() -> None:
    weights = np.ones((64, 64, 1, 1), np.int8)
    bytes_ = {"w": weights, "scale": np.float32(0.02), "zero": np.uint8(128), "none": np.int8(0)}
    constants = {**bytes_, "real": weights.astype(np.float32)}
    nodes = [
        node("QuantizeLinear", "x scale zero", "q"),
        node("QLinearConv", "q scale zero w scale none scale zero", "r"),
        node("QLinearConv", "r scale zero w scale none scale zero", "y"),
        node("Conv", "x real", "s"),
        node("Conv", "s real", "z"),
    ]
    proto = model(nodes, [("x", "float32", (1, 64, 8, 8))], ["y", "z"], constants)
    lines = compiler.lower(proto.SerializeToString(), threads=1).source.splitlines()
    asked = [line.partition("mn::prefetch_write(")[0].strip() for line in lines if "mn::prefetch_write(" in line]
    assert sorted(asked) == ["", "if (n % 64 == 0)"]


@pytest.mark.parametrize(("group", "more"), [(8, {"avx512vbmi"}), (2, set[str]())])
def test_words_of_kernel_rows_are_put_together_by_one_instruction(group: int, more: set[str]) -> None:
    """Depthwise; in wider groups what lies side by side is multiplied as it is."""
    machine = Machine.named("avx512")
    machine = replace(machine, features=machine.features | {"avx512vnni", "avx512vbmi"})
    constants = {"w": np.ones((8, 8 // group, 3, 3), np.int8), "zero": np.uint8(3)}
    nodes = [helper.make_node("ConvInteger", ["x", "w", "zero"], ["y"], group=group, pads=[1, 1, 1, 1])]
    proto = model(nodes, [("x", "uint8", (1, 8, 9, 9))], ["y"], constants)
    program = compiler.lower(proto.SerializeToString(), threads=2, machine=machine).program
    assert product_features(program, machine) == {"avx512vnni", *more}


@pytest.mark.parametrize(("kernel", "strides"), [((3, 3), (1, 1)), ((5, 2), (2, 1)), ((1, 4), (1, 3))])
def test_words_of_kernel_rows_mean_the_same_sums(kernel: tuple[int, int], strides: tuple[int, int]) -> None:
    """What the virtual machine makes of them, on a processor that has products of bytes."""
    machine, random = Machine.named("avx512"), np.random.default_rng(0)
    machine = replace(machine, features=machine.features | {"avx512vnni"})
    x = random.integers(0, 256, (1, 20, 9, 8)).astype(np.uint8)
    constants = {"w": random.integers(-128, 128, (20, 1, *kernel)).astype(np.int8), "zero": np.uint8(3)}
    attributes = {"group": 20, "pads": [1, 1, 1, 1], "strides": list(strides)}
    nodes = [helper.make_node("ConvInteger", ["x", "w", "zero"], ["y"], **attributes)]
    proto = model(nodes, [("x", "uint8", x.shape)], ["y"], constants)
    stages = compiler.lower(proto.SerializeToString(), threads=2, machine=machine)
    assert any(p.task.params.get("together") == 4 for p in stages.program.phases())
    given = {"x": x.reshape(stages.program.buffer("x").shape)}
    found = run(stages.program, given, stages.lowered.weights, workers=2)["y"]
    (wanted,) = ReferenceEvaluator(proto).run(None, {"x": x})
    np.testing.assert_array_equal(found.reshape(wanted.shape), wanted)
