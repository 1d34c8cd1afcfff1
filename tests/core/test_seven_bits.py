"""Weights of seven bits: pairs of their products with bytes are added in 16 bits, exactly, where no instruction does
all of it."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from onnx import helper
from onnx.reference import ReferenceEvaluator

from mononn_core import compiler
from mononn_core.machine import Machine
from mononn_core.program.interpret import run
from mononn_core.runtime.session import Session
from tests.core.models import model, node

Arrays = dict[str, np.ndarray]  # type: ignore[type-arg]


def network(largest: int, random: np.random.Generator) -> tuple[bytes, Arrays, list[np.ndarray]]:  # type: ignore[type-arg]
    """A product, a dense strided convolution and one in groups, with weights that are the largest or the smallest that
    they may be, or any between; inputs and answers."""
    weights = {"w": (38, 45), "k": (21, 6, 3, 3), "g": (32, 16, 1, 1)}
    constants = {name: random.integers(-largest, largest + 1, shape).astype(np.int8) for name, shape in weights.items()}
    for value in constants.values():
        value[..., :9] = largest
        value[:5] = -largest
    feeds = {name: random.integers(0, 256, s).astype(np.uint8) for name, s in INPUTS.items()}
    feeds["a"][:7], feeds["x"][:, :, :5] = 255, 255
    nodes = [
        node("MatMulInteger", "a w", "m"),
        helper.make_node("ConvInteger", ["x", "k"], ["c"], strides=[2, 2], pads=[1] * 4),
        helper.make_node("ConvInteger", ["z", "g"], ["n"], group=2),
    ]
    proto = model(nodes, [(name, "uint8", s) for name, s in INPUTS.items()], ["m", "c", "n"], constants)
    return proto.SerializeToString(), feeds, ReferenceEvaluator(proto).run(None, feeds)


INPUTS = {"a": (29, 38), "x": (1, 6, 13, 17), "z": (1, 32, 7, 9)}


@pytest.mark.parametrize(("largest", "seven"), [(64, True), (65, False), (1, True)])
@pytest.mark.parametrize("level", ["avx512", "avx2"])
def test_sums_are_exact(level: str, largest: int, seven: bool) -> None:
    machine = Machine.named(level)
    if not machine.features <= Machine.probe().features:
        pytest.skip(f"this processor has no {level}")
    serialized, feeds, wanted = network(largest, np.random.default_rng(largest))
    stages = compiler.lower(serialized, threads=2, machine=machine)
    promised = [bool(p.task.params.get("seven_bits")) for p in stages.program.phases() if p.task.template != "nest"]
    assert promised == [seven] * 3 and ("mn::seven_bits(" in stages.source) is seven
    given = {name: value.reshape(stages.program.buffer(name).shape) for name, value in feeds.items()}
    seen = run(stages.program, given, stages.lowered.weights, workers=2)
    with Session(compiler.build(stages), threads=2) as session:
        found = session.run(feeds)
    for name, want in zip(("m", "c", "n"), wanted, strict=True):
        np.testing.assert_array_equal(found[name], want)
        np.testing.assert_array_equal(seen[name].reshape(want.shape), want)


def test_other_processors_multiply_bytes() -> None:
    serialized, *_ = network(64, np.random.default_rng(0))
    avx2 = Machine.named("avx2")
    for machine in (replace(avx2, features=avx2.features | {"avxvnni"}), Machine.named("neon")):
        assert "seven_bits" not in compiler.lower(serialized, threads=2, machine=machine).source
