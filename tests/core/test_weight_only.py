"""Products by weights of few bits in blocks: what becomes one, what it computes, what it stores."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import onnxruntime
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper

import mononn_core as mononn
from mononn_core.compiler import lower
from mononn_core.errors import UnsupportedError
from mononn_core.importer import load
from mononn_core.machine import Machine
from mononn_core.ops.weight_only import run_of
from mononn_core.passes.pipeline import run as optimised
from mononn_core.program.interpret import run as interpret
from mononn_core.runtime.session import Session
from mononn_core.templates.weight_only import packed, unpacked
from mononn_core.templates.weight_only_bytes import separate, together

Array = np.ndarray[Any, Any]
RUNNABLE = [n for n in ("avx512", "avx2", "scalar") if Machine.named(n).features <= Machine.probe().features]
RANDOM = np.random.default_rng(5)
multiplies_bytes = pytest.mark.skipif(Machine.probe().product("uint8") is None, reason="needs products of bytes")


def numbers(shape: tuple[int, ...], bits: int) -> Array:
    return RANDOM.integers(0, 1 << bits, shape).astype(np.uint8)


def real(q: Array, scale: Array, zero: Array, block: int) -> Array:
    """[N, K] numbers as the doubles that they stand for."""
    wide = (np.repeat(part.astype(np.float64), block, 1)[:, : q.shape[1]] for part in (zero, scale))
    return np.asarray((q - next(wide)) * next(wide))


def in_bytes(q: Array, bits: int) -> Array:
    """The lowest bits of a byte first."""
    each = 8 // bits
    padded = np.pad(q, ((0, 0), (0, -q.shape[1] % each))).reshape(len(q), -1, each)
    return np.bitwise_or.reduce(padded << (np.arange(each, dtype=np.uint8) * bits).astype(np.uint8), axis=2)


def one_node(
    op_type: str, x: Array, constants: Mapping[str, Array], dtype: int = TensorProto.FLOAT, **attributes: object
) -> onnx.ModelProto:
    """y = op(x, constants in order; "": absent), of ONNX Runtime's domain."""
    names = [n if n[:1] != "_" else "" for n in constants]
    domain = {"domain": "com.microsoft"}
    kind = helper.np_dtype_to_tensor_dtype(x.dtype)
    graph = helper.make_graph(
        [helper.make_node(op_type, names, ["y"], "node", **domain, **attributes)],
        "one",
        [helper.make_tensor_value_info("x", kind, x.shape)],
        [helper.make_tensor_value_info("y", dtype, None)],
        [numpy_helper.from_array(v, n) for n, v in constants.items() if n != "x" and n[:1] != "_"],
    )
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=10)


def block_matmul(
    m: int,
    k: int,
    n: int,
    block: int,
    bits: int,
    zeros: str,
    x_type: Any = np.float32,
    accuracy: int = 0,
    steps: int = 0,
) -> tuple[onnx.ModelProto, Array, Array]:
    """A MatMulNBits, its input and its exact answer, where ``steps`` says so of an input that is rounded."""
    blocks = -(-k // block)
    q, zero = numbers((n, k), bits), numbers((n, blocks), bits)
    scale = RANDOM.uniform(0.01, 0.03, (n, blocks)).astype(x_type)
    x = (RANDOM.standard_normal((m, k)) + 0.3).astype(x_type)
    stored = in_bytes(np.pad(q, ((0, 0), (0, blocks * block - k))), bits).reshape(n, blocks, -1)
    constants = {"x": x, "b": stored, "scales": scale.reshape(-1)}
    if zeros == "packed":
        constants["zeros"] = in_bytes(zero, bits).reshape(-1)
    elif zeros == "real":
        constants["zeros"] = zero.astype(x_type)
    else:
        zero = np.full_like(zero, 1 << (bits - 1))
    kind = helper.np_dtype_to_tensor_dtype(x.dtype)
    sizes = {"K": k, "N": n, "bits": bits, "block_size": block, "accuracy_level": accuracy}
    model = one_node("MatMulNBits", x, constants, kind, **sizes)
    steps = steps or (127 if accuracy == 4 else 0)
    seen = rounded(x, run_of(k, block, 64 if steps == 127 else 256), steps) if steps else x.astype(np.float64)
    return model, x, seen @ real(q, scale, zero, block).T


def rounded(x: Array, run: int, steps: int) -> Array:
    """What is left of each row's runs in so many steps on each side of zero."""
    runs = x.astype(np.float32).reshape(len(x), -1, run)
    most = np.maximum(np.abs(runs).max(axis=2, keepdims=True), np.float32(1e-30))
    whole = np.rint(runs * (np.float32(steps) / most))
    return np.asarray(whole * (most / np.float32(steps)).astype(np.float64)).reshape(x.shape)


def error(answer: Array, exact: Array) -> float:
    return float(np.linalg.norm(answer - exact) / np.linalg.norm(exact))


def answer(model: onnx.ModelProto, x: Array, machine: str, threads: int = 1) -> Array:
    named = Machine.probe() if machine == "this" else Machine.named(machine)
    return np.asarray(mononn.compile(model.SerializeToString(), machine=named, threads=threads).run({"x": x})["y"])


def products(model: onnx.ModelProto, target: str = "cpu", rule: str = "float32") -> list[str]:
    return [node.op for node in optimised(load(model.SerializeToString()), target, rule).nodes]


@pytest.mark.in_turn("machine", "zeros", "m")
@pytest.mark.parametrize("machine", RUNNABLE)
@pytest.mark.parametrize("zeros", ["middle", "packed", "real"])
@pytest.mark.parametrize(("m", "bits"), [(1, 4), (2, 8), (3, 4), (4, 4), (7, 4), (37, 8), (37, 4)])
def test_a_product_by_weights_in_blocks(m: int, bits: int, zeros: str, machine: str) -> None:
    model, x, exact = block_matmul(m, 96 if m < 37 else 700, 100, 32, bits, zeros)
    assert products(model) == ["weight_only_matmul"]
    assert error(answer(model, x, machine, threads=2), exact) < 2e-6


@settings(max_examples=12, deadline=None)
@given(st.integers(1, 20), st.integers(1, 300), st.integers(32, 150), st.sampled_from([16, 64, 128]), st.integers(1, 3))
def test_any_extents(m: int, k: int, n: int, block: int, threads: int) -> None:
    model, x, exact = block_matmul(m, k, n, block, 4, "packed")
    assert error(answer(model, x, RUNNABLE[0], threads), exact) < 2e-6


def test_answers_do_not_depend_on_how_many_share_the_columns() -> None:
    model, x, _ = block_matmul(1, 256, 256, 32, 4, "middle")
    one, two = (answer(model, x, RUNNABLE[0], threads) for threads in (1, 2))
    assert (one == two).all()


@pytest.mark.in_turn("machine", "zeros", "m")
@pytest.mark.parametrize("machine", [*RUNNABLE, "this"])
@pytest.mark.parametrize("zeros", ["middle", "packed"])
@pytest.mark.parametrize(
    ("m", "bits", "block"), [(1, 4, 32), (2, 8, 16), (4, 4, 64), (7, 4, 16), (37, 4, 512), (37, 8, 32)]
)
def test_a_product_whose_left_side_may_have_eight_bits(m: int, bits: int, block: int, zeros: str, machine: str) -> None:
    model, x, rounded = block_matmul(m, 1024, 100, block, bits, zeros, accuracy=4)
    assert products(model).count("weight_only_bytes") == 1
    assert error(answer(model, x, machine, threads=2), rounded) < 2e-6
    (theirs,) = onnxruntime.InferenceSession(model.SerializeToString()).run(None, {"x": x})
    assert error(theirs, rounded) < (1e-3 if block < 512 else 1e-2), "they round it alike, or in smaller blocks"


@example(1, 2, 94, 256, 2)  # an owner's last panel has no column
@settings(max_examples=12, deadline=None)
@given(
    st.integers(1, 20), st.integers(1, 9), st.integers(32, 150), st.sampled_from([8, 16, 64, 256]), st.integers(1, 3)
)
def test_any_extents_in_eight_bits(m: int, blocks: int, n: int, block: int, threads: int) -> None:
    model, x, rounded = block_matmul(m, blocks * max(block, 16), n, max(block, 16), 4, "packed", accuracy=4)
    stages = lower(model.SerializeToString(), threads=threads)
    compiled = Session(stages.build(), threads).run({"x": x})["y"]
    assert error(compiled, rounded) < 2e-6
    assert error(interpret(stages.program, {"x": x}, stages.lowered.weights, 1)["y"], compiled) < 2e-6


def test_nothing_of_zeros_and_something_of_a_block_beside_them() -> None:
    model, x, _ = block_matmul(3, 64, 64, 32, 4, "packed", accuracy=4)
    x[0], x[1, 32:] = 0, 0
    found = answer(model, x, RUNNABLE[0])
    assert (found[0] == 0).all() and np.isfinite(found).all() and found[1].any()


@pytest.mark.parametrize(("k", "accuracy"), [(96, 1), (100, 4)])
def test_a_left_side_that_stays_as_it_is(k: int, accuracy: int) -> None:
    """The model says so; a last block is not whole."""
    model, x, exact = block_matmul(2, k, 64, 32, 4, "middle", accuracy=0)
    next(a for a in model.graph.node[0].attribute if a.name == "accuracy_level").i = accuracy
    assert products(model, rule="auto") == ["weight_only_matmul"]
    assert error(answer(model, x, RUNNABLE[0]), exact) < 2e-6


def test_weights_take_their_bits_and_their_scales(tmp_path: Any) -> None:
    model, _, _ = block_matmul(1, 1024, 1024, 128, 4, "middle")
    session = mononn.compile(model.SerializeToString())
    session.save(tmp_path / "four.mono")
    bits, scales = 1024 * 1024 // 2, 1024 * 1024 // 128 * 4
    assert (tmp_path / "four.mono").stat().st_size < bits + scales + 150_000


def test_half_floats_outside() -> None:
    model, x, exact = block_matmul(3, 128, 64, 32, 4, "packed", np.float16)
    found = answer(model, x, RUNNABLE[0])
    assert found.dtype == np.float16 and error(found.astype(np.float64), exact) < 1e-3


def test_two_bits_take_four() -> None:
    model, x, exact = block_matmul(2, 64, 64, 16, 2, "middle")
    (node,) = optimised(load(model.SerializeToString())).nodes
    assert node.attrs["bits"] == 4
    assert error(answer(model, x, RUNNABLE[0]), exact) < 2e-6


def test_another_target_multiplies_floats() -> None:
    assert products(block_matmul(2, 64, 64, 16, 4, "packed")[0], "cuda") == ["matmul"]


def dequantised(transposed: bool, block: int, kind: str, zero: bool) -> tuple[onnx.ModelProto, Array, Array]:
    """x w by a DequantizeLinear in blocks, or with one scale a column; w [K, N], or [N, K] and a Transpose."""
    k, n = 96, 64
    shape = (n, k) if transposed else (k, n)
    axis = 1 if transposed else 0
    low, high = {"int4": (-8, 8), "uint4": (0, 16), "int8": (-128, 128), "uint8": (0, 256)}[kind]
    q = RANDOM.integers(low, high, shape)
    points = tuple(-(-e // block) if d == axis else e for d, e in enumerate(shape)) if block else (n,)
    scale, point = RANDOM.uniform(0.01, 0.03, points).astype(np.float32), RANDOM.integers(low, high, points)
    point = point if zero else np.zeros_like(point)
    parts: list[Array] = [scale, point]
    wide = [np.repeat(p, block, axis) if block else p.reshape((-1, 1) if transposed else (1, -1)) for p in parts]
    weights = (q - wide[1]) * wide[0].astype(np.float64)
    dtype = np.dtype(kind) if kind.endswith("8") else getattr(ml_dtypes, kind)
    names = ["w", "s", "z"] if zero else ["w", "s"]
    values = (q.astype(dtype), scale, point.astype(dtype))
    constants = [numpy_helper.from_array(v, m) for m, v in zip(names, values, strict=False)]
    attributes = {"axis": axis, "block_size": block} if block else {"axis": 1 - axis}
    nodes = [helper.make_node("DequantizeLinear", names, ["r"], **attributes)]
    if transposed:
        nodes.append(helper.make_node("Transpose", ["r"], ["t"], perm=[1, 0]))
    nodes.append(helper.make_node("MatMul", ["x", "t" if transposed else "r"], ["y"]))
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [5, e]) for name, e in (("x", k), ("y", n))]
    graph = helper.make_graph(nodes, "g", ends[:1], ends[1:], constants)
    x = RANDOM.standard_normal((5, k)).astype(np.float32)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    return model, x, x @ (weights.T if transposed else weights)


@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize(("kind", "zero"), [("int4", False), ("int4", True), ("uint4", True)])
@pytest.mark.parametrize("block", [0, 32])
def test_dequantised_weights_of_four_bits(block: int, kind: str, zero: bool, transposed: bool) -> None:
    model, x, exact = dequantised(transposed, block, kind, zero)
    assert products(model) == ["weight_only_matmul"]
    assert error(answer(model, x, RUNNABLE[0]), exact) < 2e-6


@pytest.mark.parametrize("bits", [4, 8])
def test_rows_of_a_table_in_blocks(bits: int) -> None:
    q, zero = numbers((50, 64), bits), numbers((50, 4), bits)
    scale, x = RANDOM.uniform(0.01, 0.03, (50, 4)).astype(np.float32), np.array([[3, 49, 0]])
    constants = {"t": in_bytes(q, bits), "x": x, "s": scale, "z": in_bytes(zero, bits)}
    model = one_node("GatherBlockQuantized", x, constants, block_size=16, bits=bits)
    assert error(answer(model, x, RUNNABLE[0]), real(q, scale, zero, 16)[x]) < 1e-6


@pytest.mark.parametrize("zeros", ["middle", "packed", "real"])
def test_onnxruntime_reads_weights_in_blocks_alike(zeros: str) -> None:
    model, x, exact = block_matmul(3, 128, 64, 32, 4, zeros)
    (theirs,) = onnxruntime.InferenceSession(model.SerializeToString()).run(None, {"x": x})
    assert error(theirs, exact) < 2e-6
    q, zero = numbers((50, 64), 4), numbers((50, 4), 4)
    scale, rows = RANDOM.uniform(0.01, 0.03, (50, 4)).astype(np.float32), np.array([[3, 49, 0]])
    constants = {"t": in_bytes(q, 4), "x": rows, "s": scale, "z": in_bytes(zero, 4)}
    table = one_node("GatherBlockQuantized", rows, constants, block_size=16, bits=4)
    (theirs,) = onnxruntime.InferenceSession(table.SerializeToString()).run(None, {"x": rows})
    assert error(theirs, real(q, scale, zero, 16)[rows]) < 1e-6


def test_what_is_damaged_or_reordered_is_refused_in_a_sentence() -> None:
    model, _, _ = block_matmul(1, 64, 64, 32, 4, "packed")
    model.graph.node[0].attribute[0].i = 96
    with pytest.raises(UnsupportedError, match="do not fill"):
        load(model.SerializeToString())
    model, _, _ = block_matmul(1, 64, 64, 32, 4, "packed")
    model.graph.node[0].input.append("order")
    model.graph.initializer.append(numpy_helper.from_array(np.zeros(64, np.int32), "order"))
    with pytest.raises(UnsupportedError, match="g_idx"):
        load(model.SerializeToString())


@pytest.mark.parametrize("lanes", [1, 4, 8, 16])
def test_packing_is_undone(lanes: int) -> None:
    q = numbers((3, 70), 4)
    assert (unpacked(packed(q, 4, lanes), 4, lanes)[:, :70] == q).all()


@pytest.mark.parametrize("bits", [4, 8])
def test_packing_in_groups_is_undone(bits: int) -> None:
    q = numbers((32, 70), bits)
    assert (separate(together(q, bits), bits) == q).all()
