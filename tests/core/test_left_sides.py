"""What the left sides of products by quantised weights are rounded to, and what comes of it."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import helper, numpy_helper

import mononn_core as mononn
from mononn_core.cli.main import main
from mononn_core.compiler import lower
from mononn_core.errors import OptionError
from mononn_core.importer import load
from mononn_core.machine import Machine
from mononn_core.ops.evaluate import run as evaluate
from mononn_core.passes import pipeline
from mononn_core.passes.pipeline import run as optimised
from mononn_core.program.interpret import run as interpret
from mononn_core.runtime.session import Session
from tests.core.test_weight_only import RUNNABLE, answer, block_matmul, dequantised, error, multiplies_bytes, products


@pytest.mark.parametrize(
    ("bits", "accuracy", "rule", "steps"),
    [
        (4, 0, "auto", 127),
        (8, 0, "auto", 127),
        (4, 0, "int16", 127 * 256),
        (8, 0, "int8", 127),
        (8, 4, "int16", 127),
        (8, 4, "float32", 127),
    ],
)
def test_what_a_left_side_is_rounded_to(bits: int, accuracy: int, rule: str, steps: int) -> None:
    model, x, exact = block_matmul(3, 128, 64, 32, bits, "real", accuracy=accuracy, steps=steps)
    graph = optimised(load(model.SerializeToString()), rule=rule)
    (product,) = (node for node in graph.nodes if node.op == "weight_only_bytes")
    assert graph.types[product.inputs[0]].shape[-1] == (128 if steps == 127 else 256)
    assert error(evaluate(graph, {"x": x})["y"], exact) < 2e-6


@multiplies_bytes
@pytest.mark.parametrize("zeros", ["middle", "packed", "real"])
@pytest.mark.parametrize(("m", "bits", "block"), [(1, 8, 32), (3, 4, 64), (7, 8, 512), (37, 4, 32), (37, 8, 1024)])
def test_a_product_whose_left_side_has_sixteen_bits(m: int, bits: int, block: int, zeros: str) -> None:
    model, x, exact = block_matmul(m, 1024, 100, block, bits, zeros, steps=127 * 256)
    found, real = (
        mononn.compile(model.SerializeToString(), threads=2, activations=how).run({"x": x})["y"]
        for how in ("int16", "fp32")
    )
    assert error(found, exact) < 2e-6
    assert 2e-6 < error(found, real) < 1e-4


@multiplies_bytes
@settings(max_examples=12, deadline=None)
@given(
    st.integers(1, 20),
    st.integers(1, 9),
    st.integers(32, 150),
    st.sampled_from([8, 16, 64, 256]),
    st.sampled_from([4, 8]),
    st.sampled_from(["int16", "int8"]),
)
def test_any_extents_of_a_rounded_left_side(m: int, blocks: int, n: int, block: int, bits: int, how: str) -> None:
    block = max(block, 16)
    model, x, exact = block_matmul(m, blocks * block, n, block, bits, "packed", steps={"int8": 127}.get(how, 127 * 256))
    stages = lower(model.SerializeToString(), threads=2, activations=how)
    compiled = Session(stages.build(), 2).run({"x": x})["y"]
    assert error(compiled, exact) < 2e-6
    assert error(interpret(stages.program, {"x": x}, stages.lowered.weights, 1)["y"], compiled) < 2e-6


@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("zero", [False, True])
@pytest.mark.parametrize("kind", ["int8", "uint8"])
def test_weights_of_eight_bits_with_one_scale_a_column(kind: str, zero: bool, transposed: bool) -> None:
    model, x, exact = dequantised(transposed, 0, kind, zero)
    assert products(model) == ["matmul"], "their reals, where left sides stay what they are"
    for rule, terms, most in (("int16", 2 * 96, 1e-4), ("auto", 96, 1e-2)):
        graph = optimised(load(model.SerializeToString()), rule=rule)
        (product,) = (node for node in graph.nodes if node.op == "weight_only_bytes")
        assert graph.types[product.inputs[0]].shape == (5, terms)
        assert error(evaluate(graph, {"x": x})["y"], exact) < most
    in_words = [] if multiplies_bytes.args[0] else [("int16", 1e-4)]
    for how, most in (*in_words, ("fp32", 1e-4), ("auto", 1e-2)):
        session = mononn.compile(model.SerializeToString(), activations=how)
        assert error(session.run({"x": x})["y"], exact) < most


@multiplies_bytes
def test_words_and_not_bytes_of_nothing_and_of_what_is_no_number() -> None:
    model, x, _ = block_matmul(4, 64, 64, 32, 8, "packed")
    x[0], x[1, 32:], x[2, 5], x[3, 7] = 0, 0, np.nan, np.inf
    graph = optimised(load(model.SerializeToString()), rule="int16")
    session = mononn.compile(model.SerializeToString(), activations="int16")
    for found in (evaluate(graph, {"x": x})["y"], session.run({"x": x})["y"]):
        assert (found[0] == 0).all() and np.isfinite(found[1]).all() and not np.isfinite(found[2:]).any()


def test_a_processor_without_products_of_bytes(tmp_path: Any, capsys: pytest.CaptureFixture[str]) -> None:
    model, x, exact = block_matmul(5, 128, 64, 32, 8, "packed")
    assert error(answer(model, x, "avx2" if "avx2" in RUNNABLE else RUNNABLE[-1]), exact) < 2e-6
    with pytest.raises(OptionError, match="compile with activations fp32"):
        lower(model.SerializeToString(), machine=Machine.named("avx2"), activations="int16")
    with pytest.raises(OptionError, match="activations 'int4' is unknown; choose one of auto"):
        lower(model.SerializeToString(), activations="int4")
    with pytest.raises(OptionError, match="is a CPU's; on a GPU leave it out"):
        lower(model.SerializeToString(), target="cuda", activations="int8")
    onnx.save(model, tmp_path / "eight.onnx")
    assert main(["check", str(tmp_path / "eight.onnx"), "--activations", "fp32"]) == 0
    assert "left side" not in capsys.readouterr().out


@multiplies_bytes
def test_what_the_command_says_of_rounded_left_sides(tmp_path: Any, capsys: pytest.CaptureFixture[str]) -> None:
    for name, model in (
        ("blocks", block_matmul(5, 128, 64, 32, 4, "packed")[0]),
        ("column", dequantised(False, 0, "int8", True)[0]),
    ):
        onnx.save(model, tmp_path / f"{name}.onnx")
    assert main(["check", str(tmp_path / "blocks.onnx")]) == 0
    assert "MatMulNBits node 'node': its left side becomes int8\n" in capsys.readouterr().out
    assert main(["check", str(tmp_path / "column.onnx"), "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert list(said["rounded_products"].values()) == ["int8"] and not said["real_products"]


@pytest.mark.parametrize(
    ("kind", "moved", "found"), [("uint16", False, "int16"), ("int16", True, "int16"), ("uint8", False, None)]
)
def test_a_left_side_that_the_model_has_quantised(kind: str, moved: bool, found: str | None) -> None:
    """To 16 bits: it keeps them. To 8: the product is one of the model's own integers, and is not rounded again."""
    model, x, exact = dequantised(False, 0, "int8", False)
    nodes = [helper.make_node("QuantizeLinear", ["x", "step", "middle"], ["xq"])]
    nodes.append(helper.make_node("DequantizeLinear", ["xq", "step", "middle"], ["xd"]))
    if moved:
        nodes.append(helper.make_node("Transpose", ["xd"], ["turned"], perm=[1, 0]))
        nodes.append(helper.make_node("Transpose", ["turned"], ["left"], perm=[1, 0]))
    at = len(model.graph.node) - 1
    model.graph.node[at].input[0] = "left" if moved else "xd"
    for i, node in enumerate(nodes):
        model.graph.node.insert(at + i, node)
    levels = 255 if kind == "uint8" else 65535
    step, middle = np.array(10 / levels, np.float32), np.array(0 if kind == "int16" else levels // 2 + 1, kind)
    model.graph.initializer.extend([numpy_helper.from_array(step, "step"), numpy_helper.from_array(middle, "middle")])
    said = pipeline.rounded_products(load(model.SerializeToString()), "auto")
    assert list(said.values()) == ([found] if found else [])
    its_own = step / np.sqrt(12)  # of numbers of deviation 1
    assert error(mononn.compile(model.SerializeToString()).run({"x": x})["y"], exact) < 2 * its_own
