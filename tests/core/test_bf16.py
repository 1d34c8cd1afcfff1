"""Precision bf16 on a CPU: what is stored and multiplied in 16 bits, what stays float32, how near the answers are."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto

from mononn_core import compiler
from mononn_core.cli.main import main
from mononn_core.errors import OptionError
from mononn_core.lower import rounding
from mononn_core.machine import Machine
from mononn_core.ops.evaluate import run as evaluate
from mononn_core.program.interpret import run
from mononn_core.runtime.session import Session
from mononn_core.schedule.schedule import Schedule
from tests.core.networks import Builder, encoder
from tests.core.tiles import TILED, built

NARROW = replace(Machine.named("avx512"), features=Machine.named("avx512").features | {"avx512bf16"})
LIMIT = 2e-2
"""Of the relative L2 error: what the comparison grants networks in bf16."""


def pictures() -> bytes:
    """x [1, 3, 18, 17]: a stem of three channels, 3x3 and strided 1x1 convolutions, residual sums, groups."""
    b = Builder("pictures")

    def conv(x: str, *shape: int, **attributes: object) -> str:
        w = b.random.standard_normal(shape) * np.prod(shape[1:]) ** -0.5
        return b.add("Conv", x, b.constant(w.astype(np.float32)), b.weight(shape[0]), **attributes)

    stem = b.add("Relu", conv("x", 24, 3, 3, 3, pads=[1, 1, 1, 1]))
    y = b.add("Relu", conv(stem, 24, 24, 3, 3, pads=[1, 1, 1, 1]))
    y = b.add("Relu", b.add("Add", conv(y, 24, 24, 1, 1), stem))
    depthwise = conv(y, 24, 1, 3, 3, group=24, pads=[1, 1, 1, 1], strides=[2, 2])
    y = b.add("Relu", b.add("Add", depthwise, conv(y, 24, 24, 1, 1, strides=[2, 2])))
    y = b.add("Relu", conv(y, 24, 4, 3, 3, group=6, pads=[1, 1, 1, 1]))
    y = b.add("GlobalAveragePool", conv(y, 40, 24, 1, 1))
    b.add("Flatten", y, output="y")
    return b.model({"x": (TensorProto.FLOAT, (1, 3, 18, 17))}, {"y": (1, 40)})


def perceptron() -> bytes:
    """x [7, 33] -> y [7, 21]: an odd number of terms, a product of the caller's own array."""
    b = Builder("perceptron")
    y = b.add("Relu", b.linear("x", 33, 45))
    y = b.add("Gelu", b.linear(y, 45, 67))
    b.add("Identity", b.linear(y, 67, 21), output="y")
    return b.model({"x": (TensorProto.FLOAT, (7, 33))}, {"y": (7, 21)})


def cross() -> bytes:
    """Attention of x [9, 32] over the caller's own keys and values, in two heads: queries that a product reads too."""
    b = Builder("cross")
    q = b.linear("x", 32, 32)
    heads = b.add("Transpose", b.add("Reshape", q, b.ints(1, 9, 2, 16)), perm=[0, 2, 1, 3])
    scores = b.add("MatMul", heads, b.add("Transpose", "keys", perm=[0, 1, 3, 2]))
    scores = b.add("Mul", scores, b.constant(np.float32(0.25).reshape(())))
    found = b.add("MatMul", b.add("Softmax", scores, axis=-1), "values")
    flat = b.add("Reshape", b.add("Transpose", found, perm=[0, 2, 1, 3]), b.ints(9, 32))
    b.add("Add", b.linear(flat, 32, 32), b.linear(q, 32, 32), output="y")
    kind = (TensorProto.FLOAT, (1, 2, 7, 16))
    return b.model({"x": (TensorProto.FLOAT, (9, 32)), "keys": kind, "values": kind}, {"y": (9, 32)})


NETWORKS = {
    "cross": cross,
    "encoder": lambda: encoder(layers=2, tokens=12, width=64, heads=4, hidden=128),
    "eighty tokens": lambda: encoder(layers=1, tokens=80, width=32, heads=2, hidden=32),
    "odd encoder": lambda: encoder(layers=1, tokens=13, width=60, heads=6, hidden=31),
    "pictures": pictures,
    "perceptron": perceptron,
}


def inputs(stages: compiler.CpuStages) -> dict[str, np.ndarray]:
    random, graph = np.random.default_rng(5), stages.graph
    types = {name: graph.types[name] for name in graph.inputs}
    return {
        n: random.integers(0, 2, t.shape).astype(t.dtype)
        if "int" in t.dtype
        else random.standard_normal(t.shape).astype(t.dtype)
        for n, t in types.items()
    }


def error(value: np.ndarray, want: np.ndarray) -> float:
    return float(np.linalg.norm(value.astype(float) - want) / np.linalg.norm(want))


@pytest.mark.parametrize("name", NETWORKS)
def test_answers(name: str) -> None:
    """The virtual machine, and the compiled function where the processor has the instruction."""
    stages = compiler.lower(NETWORKS[name](), threads=2, machine=NARROW, precision="bf16")
    given = inputs(stages)
    want = evaluate(stages.graph, given)["y"]
    shaped = {n: given[n].reshape(stages.program.buffer(n).shape) for n in given}
    seen = run(stages.program, shaped, stages.lowered.weights, workers=2)["y"].reshape(want.shape)
    assert 1e-5 < error(seen, want) < LIMIT
    if not NARROW.features <= Machine.probe().features:
        pytest.skip("this processor multiplies no bf16")
    artifact, answers = compiler.build(stages), []
    for workers in (1, 2, 4):
        with Session(artifact, threads=workers) as session:
            answers.append(session.run(given)["y"])
        np.testing.assert_array_equal(answers[-1], answers[0])
    assert error(answers[0], want) < LIMIT and error(answers[0], seen) < LIMIT


@pytest.mark.parametrize("name", NETWORKS)
def test_answers_of_tile_registers(name: str) -> None:
    """As they are, and in plain C: near what vectors compute, the same for any number of workers."""
    stages = compiler.lower(NETWORKS[name](), threads=2, machine=TILED, precision="bf16")
    given = inputs(stages)
    want = evaluate(stages.graph, given)["y"]
    for artifact in built(stages):
        answers = []
        for workers in (1, 2, 3):
            with Session(artifact, threads=workers) as session:
                answers.append(session.run(given)["y"])
            np.testing.assert_array_equal(answers[-1], answers[0])
        assert 1e-5 < error(answers[0], want) < LIMIT


def test_what_is_narrow() -> None:
    """Weights of products and what these read; a depthwise convolution reads either; inputs and outputs are wide."""
    stages = compiler.lower(pictures(), threads=2, machine=NARROW, precision="bf16")
    packed = {b.id: b.dtype for b in stages.program.buffers if b.space == "weight" and "@" in b.id}
    assert sorted(packed.values()).count("bfloat16") == 6, "three of 3x3, one of them in groups, and three of 1x1"
    dtype = {b.id: b.dtype for b in stages.program.buffers}
    grouped = {
        p.task.params["group"]: [dtype[str(o.buffer)] for o in p.task.operands if o.role in ("a", "b")]
        for p in stages.program.phases()
        if p.task.template == "depthwise"
    }
    assert grouped == {1: ["bfloat16", "float32"], 4: ["bfloat16", "bfloat16"]}
    assert {b.dtype for b in stages.program.buffers if b.space in ("input", "output")} == {"float32"}
    assert "winograd" not in {p.task.template for p in stages.program.phases()}
    joined = {p.id: p.task.params["joined"] for p in stages.program.phases() if p.task.template == "conv"}
    assert sorted(joined.values())[-2:] == [1, 3], "the taps of a picture's three channels are multiplied as one run"


def test_operands_are_narrow_together() -> None:
    """Attention over keys that lie in the caller's array multiplies float32, and so does whoever shares its queries."""
    stages = compiler.lower(cross(), threads=2, machine=NARROW, precision="bf16")
    dtype = {b.id: b.dtype for b in stages.program.buffers}
    for phase in stages.program.phases():
        operands = {o.role: dtype[str(o.buffer)] for o in phase.task.operands}
        if phase.task.template == "attention":
            assert {operands[role] for role in "qkv"} == {"float32"}
        if phase.task.template == "matmul":
            assert operands["a"] == operands["b"]
    assert "bfloat16" in dtype.values(), "what attention finds is multiplied narrow"


def test_its_schedule_says_so() -> None:
    """Printed and given back it makes the same function; it is none of another precision."""
    stages = compiler.lower(perceptron(), threads=2, machine=NARROW, precision="bf16")
    text = stages.lowered.schedule.to_text()
    assert text.startswith("network perceptron, bf16, 2 owners\n")
    given = Schedule.read(text)
    assert given == Schedule.read(given.to_json()) == stages.lowered.schedule
    again = compiler.lower(perceptron(), threads=2, machine=NARROW, precision="bf16", schedule=given)
    assert again.source == stages.source
    with pytest.raises(OptionError, match="precision bf16, not fp32"):
        compiler.lower(perceptron(), threads=2, machine=NARROW, schedule=given)


def test_weights_are_half_as_large() -> None:
    model = encoder(layers=2, tokens=12, width=64, heads=4, hidden=128)
    sizes = [compiler.lower(model, machine=NARROW, precision=p).program.weight_bytes for p in ("bf16", "fp32")]
    assert sizes[0] < 0.6 * sizes[1]


SLOW = replace(NARROW, product_peaks=(("bfloat16", NARROW.peak_flops_per_core / 2),))
WIDE = {
    "slow": SLOW,
    "neon bf16": replace(Machine.named("neon"), features=Machine.named("neon").features | {"bf16"}),
    **{name: Machine.named(name) for name in ("avx512", "avx2", "neon", "scalar")},
}


@pytest.mark.parametrize("level", WIDE)
def test_a_processor_that_is_no_faster_multiplies_floats(level: str) -> None:
    """There is no instruction, or a slow one, or no kernel with it (bfdot): the function is that of fp32."""
    model = encoder(layers=1, tokens=12, width=64, heads=4, hidden=128)
    chosen = [compiler.lower(model, threads=2, machine=WIDE[level], precision=p) for p in ("bf16", "fp32")]
    assert "bfloat16" not in {b.dtype for b in chosen[0].program.buffers}
    assert chosen[0].source.replace("precision bf16", "precision fp32") == chosen[1].source


@pytest.mark.parametrize("level", WIDE)
def test_few_rows_read_half_the_weights(level: str) -> None:
    """There they are rounded, and multiplied as float32: the answers are those of a model with such weights."""
    b, rounded = Builder("row"), Builder("row")
    for builder in (b, rounded):
        y = builder.add("Relu", builder.linear("x", 48, 96))
        builder.add("Identity", builder.linear(y, 96, 32), output="y")
    for tensor in rounded.weights:
        value = onnx.numpy_helper.to_array(tensor)
        if value.ndim == 2:
            near = rounding.rounded(value, "bfloat16").astype(np.float32)
            tensor.CopyFrom(onnx.numpy_helper.from_array(near, tensor.name))
    edges = {"x": (TensorProto.FLOAT, (1, 48))}, {"y": (1, 32)}
    x = {"x": np.random.default_rng(3).standard_normal((1, 48)).astype(np.float32)}
    stages = compiler.lower(b.model(*edges), threads=2, machine=WIDE[level], precision="bf16")
    packed = {b.id: b.dtype for b in stages.program.buffers if b.space == "weight" and "@" in b.id}
    assert set(packed.values()) == {"bfloat16"} and len(packed) == 2
    near = compiler.lower(rounded.model(*edges), threads=2, machine=WIDE[level])
    answers = [run(s.program, x, s.lowered.weights, workers=2)["y"] for s in (stages, near)]
    np.testing.assert_array_equal(*answers)
    exact = evaluate(stages.graph, x)["y"]
    assert 1e-5 < error(answers[0], exact) < LIMIT
    if WIDE[level].features <= Machine.probe().features:
        with Session(compiler.build(stages), threads=2) as session:
            assert error(session.run(x)["y"], answers[0]) < 1e-6


def test_what_the_command_says_of_wide_products(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Which products multiply float32 in a lower precision, and why."""
    for network in (cross, pictures):
        (tmp_path / f"{network.__name__}.onnx").write_bytes(network())
    for machine, network, count, why in (
        (NARROW, "cross", 2, "since it reads the caller's array, or what another one reads as float32"),
        (NARROW, "pictures", 1, "since no kernel multiplies bfloat16 in products of its kind"),
        (SLOW, "cross", 3, "since bfloat16 is no faster on this processor"),
    ):
        monkeypatch.setattr(Machine, "probe", staticmethod(lambda machine=machine: machine))
        assert main(["check", str(tmp_path / f"{network}.onnx"), "--precision", "bf16"]) == 0
        assert capsys.readouterr().out.count(f": multiplied as float32, {why}\n") == count
    assert main(["check", str(tmp_path / "cross.onnx")]) == 0
    assert "multiplied as" not in capsys.readouterr().out
