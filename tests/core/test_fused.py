"""ONNX Runtime's fused operators on real numbers: what they are made of computes what ONNX Runtime computes."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import onnxruntime as ort
import pytest
from onnx import helper

from mononn_core import compiler
from mononn_core.errors import MononnError
from mononn_core.importer.reader import load
from mononn_core.importer.survey import check
from mononn_core.machine import Machine
from mononn_core.ops.evaluate import run as evaluate
from mononn_core.passes import pipeline
from tests.core.models import model

RANDOM = np.random.default_rng(0)
B, S, H, N, P = 2, 5, 24, 3, 4
D = H // N


def real(*shape: int) -> np.ndarray:
    return RANDOM.standard_normal(shape).astype(np.float32)


def whole(*values: Any) -> np.ndarray:
    return np.array(values, np.int32)


@dataclass
class Case:
    """An operator, its inputs (None: absent), attributes, and the positions of its outputs; so many are compared."""

    op: str
    inputs: tuple[np.ndarray | None, ...]
    attrs: dict[str, Any] = field(default_factory=dict)
    outputs: tuple[int, ...] = (0,)
    compared: int = 3
    domain: str = "com.microsoft"


KEPT = np.array([[1, 1, 1, 0, 0], [1, 1, 1, 1, 1]], np.int32)
ANGLES = np.outer(np.arange(16), 10000.0 ** (-np.arange(D // 2) / (D // 2)))
COS, SIN = np.cos(ANGLES).astype(np.float32), np.sin(ANGLES).astype(np.float32)
QKV = (real(B, S, H), real(H, 3 * H), real(3 * H))
APART = (real(B, S, H), real(B, 7, H), real(B, 7, H))
PAST = (real(B, N, P, D), real(B, N, P, D))
WIDE = 16
"""Of heads: ONNX Runtime rotates multiples of 16."""
FEW = tuple(real(1, S, n * WIDE) for n in (4, 2, 2))
TURNS = np.outer(np.arange(16), 10000.0 ** (-np.arange(WIDE // 2) / (WIDE // 2)))
TURN = (np.cos(TURNS).astype(np.float32), np.sin(TURNS).astype(np.float32))

CASES = {
    "Gelu": Case("Gelu", (real(3, 8),)),
    "BiasGelu": Case("BiasGelu", (real(3, 8), real(8))),
    "FastGelu": Case("FastGelu", (real(3, 8),)),
    "FastGelu, bias": Case("FastGelu", (real(3, 8), real(8))),
    "QuickGelu": Case("QuickGelu", (real(3, 8),), {"alpha": 1.5}),
    "FusedMatMul": Case("FusedMatMul", (real(2, 4, 3), real(2, 5, 4)), {"transA": 1, "transB": 1, "alpha": 0.5}),
    "FusedMatMul, batches": Case("FusedMatMul", (real(4, 2, 3), real(2, 3, 5)), {"transBatchA": 1}),
    "FusedGemm": Case(
        "FusedGemm",
        (real(3, 4), real(5, 4), real(5)),
        {"transB": 1, "activation": "LeakyRelu", "activation_alpha": 0.2},
    ),
    "FusedConv": Case(
        "FusedConv",
        (real(1, 3, 6, 6), real(4, 3, 3, 3), real(4)),
        {"kernel_shape": [3, 3], "pads": [1] * 4, "activation": "Clip", "activation_params": [0.0, 1.0]},
    ),
    "FusedConv, sum": Case(
        "FusedConv",
        (real(1, 3, 6, 6), real(4, 3, 3, 3), real(4), real(1, 4, 6, 6)),
        {"kernel_shape": [3, 3], "pads": [1] * 4, "activation": "Relu"},
    ),
    "SimplifiedLayerNormalization": Case(
        "SimplifiedLayerNormalization", (real(2, 3, 8), real(8)), {"epsilon": 1e-3}, domain=""
    ),
    "SkipLayerNormalization": Case(
        "SkipLayerNormalization", (real(2, 3, 8), real(2, 3, 8), real(8), real(8), real(8)), {"epsilon": 1e-5}, (0, 3)
    ),
    "SkipLayerNormalization, no beta": Case("SkipLayerNormalization", (real(2, 3, 8), real(2, 3, 8), real(8))),
    "SkipSimplifiedLayerNormalization": Case(
        "SkipSimplifiedLayerNormalization", (real(2, 3, 8), real(2, 3, 8), real(8), real(8)), {}, (0, 3)
    ),
    "EmbedLayerNormalization": Case(
        "EmbedLayerNormalization",
        (
            whole([1, 2, 3], [4, 0, 1]),
            whole([0, 1, 1], [0, 0, 1]),
            real(5, 8),
            real(6, 8),
            real(2, 8),
            real(8),
            real(8),
            whole([1, 1, 0], [1, 1, 1]),
        ),
        {},
        (0, 1),
    ),
    "EmbedLayerNormalization, least": Case(
        "EmbedLayerNormalization",
        (whole([1, 2, 3], [4, 0, 1]), None, real(5, 8), real(6, 8), None, real(8), real(8)),
        {},
        (0, 1),
    ),
    "Attention": Case("Attention", QKV, {"num_heads": N}),
    "Attention, keys kept": Case("Attention", (*QKV, KEPT), {"num_heads": N}),
    "Attention, lengths": Case("Attention", (*QKV, whole(3, 5)), {"num_heads": N}),
    "Attention, ends and starts": Case("Attention", (*QKV, whole(4, 5, 1, 0)), {"num_heads": N}),
    "Attention, queries by keys": Case(
        "Attention", (*QKV, np.broadcast_to(KEPT[:, None], (B, S, S)).copy()), {"num_heads": N}
    ),
    "Attention, causal, past": Case(
        "Attention", (*QKV, None, np.stack(PAST)), {"num_heads": N, "unidirectional": 1}, (0, 1)
    ),
    "Attention, bias of scores": Case(
        "Attention", (*QKV, None, None, real(B, N, S, S)), {"num_heads": N, "scale": 0.3}
    ),
    "Attention, other widths": Case(
        "Attention",
        (real(B, S, H), real(H, 2 * H + 12), real(2 * H + 12)),
        {"num_heads": N, "qkv_hidden_sizes": [H, H, 12]},
    ),
    "QAttention": Case(
        "QAttention",
        (
            RANDOM.integers(0, 255, (B, S, H)).astype(np.uint8),
            RANDOM.integers(-60, 60, (H, 3 * H)).astype(np.int8),
            real(3 * H),
            np.array(0.02, np.float32),
            np.array([0.01], np.float32),
            KEPT,
            np.array(120, np.uint8),
            np.array([0], np.int8),
        ),
        {"num_heads": N},
    ),
    "QEmbedLayerNormalization": Case(
        "QEmbedLayerNormalization",
        (
            RANDOM.integers(0, 9, (B, S)).astype(np.int32),
            RANDOM.integers(0, 2, (B, S)).astype(np.int32),
            *(RANDOM.integers(0, 255, (rows, 8)).astype(np.uint8) for rows in (9, 7, 2)),
            *(RANDOM.integers(0, 255, 8).astype(np.uint8) for _ in range(2)),
            KEPT,
            *(np.array(scale, np.float32) for scale in (0.03, 0.02, 0.01, 0.005, 0.004)),
            *(np.array(zero, np.uint8) for zero in (120, 130, 110, 0, 128)),
        ),
        {"epsilon": 1e-12},
        (0, 1),
    ),
    "MultiHeadAttention": Case("MultiHeadAttention", APART, {"num_heads": N}),
    "MultiHeadAttention, bias": Case("MultiHeadAttention", (*APART, real(3 * H)), {"num_heads": N}),
    "MultiHeadAttention, keys kept": Case(
        "MultiHeadAttention", (*APART, None, np.array([[1] * 4 + [0] * 3, [1] * 7], np.int32)), {"num_heads": N}
    ),
    "MultiHeadAttention, past": Case(
        "MultiHeadAttention",
        (real(B, S, H), real(B, S, H), real(B, S, H), None, None, real(1, N, S, P + S), *PAST),
        {"num_heads": N},
        (0, 1, 2),
    ),
    "MultiHeadAttention, heads": Case(
        "MultiHeadAttention", (real(B, S, H), real(B, N, 7, D), real(B, N, 7, D)), {"num_heads": N}
    ),
    "RotaryEmbedding": Case("RotaryEmbedding", (real(B, S, H), np.tile(np.arange(S), (B, 1)), COS, SIN)),
    "RotaryEmbedding, from, interleaved": Case(
        "RotaryEmbedding", (real(B, N, S, D), np.array([3]), COS, SIN), {"interleaved": 1}
    ),
    "GroupQueryAttention": Case(
        "GroupQueryAttention",
        (*FEW, None, None, whole(S - 1), whole(S)),
        {"num_heads": 4, "kv_num_heads": 2},
        (0, 1, 2),
    ),
    "GroupQueryAttention, past": Case(
        "GroupQueryAttention",
        (
            *(real(1, 1, n * WIDE) for n in (4, 2, 2)),
            real(1, 2, P, WIDE),
            real(1, 2, P, WIDE),
            whole(P),
            whole(P + 1),
            *TURN,
        ),
        {"num_heads": 4, "kv_num_heads": 2, "do_rotary": 1},
        (0, 1, 2),
    ),
    "GroupQueryAttention, lengths": Case(
        "GroupQueryAttention",
        (
            *(real(2, 1, n * WIDE) for n in (4, 2, 2)),
            real(2, 2, P, WIDE),
            real(2, 2, P, WIDE),
            whole(P, P - 2),
            whole(P + 1),
        ),
        {"num_heads": 4, "kv_num_heads": 2},
        (0, 1, 2),
        compared=1,
    ),
    "GroupQueryAttention, packed": Case(
        "GroupQueryAttention",
        (real(1, S, 8 * WIDE), None, None, None, None, whole(S - 1), whole(S), *TURN),
        {"num_heads": 4, "kv_num_heads": 2, "do_rotary": 1, "local_window_size": 3, "softcap": 5.0},
    ),
}


def made(case: Case, fixed: tuple[str, ...] = ()) -> tuple[bytes, dict[str, np.ndarray]]:
    """A model of one node, and its inputs; those of ``fixed`` are constants."""
    values = {f"x{i}": v for i, v in enumerate(case.inputs) if v is not None}
    names = [f"x{i}" if v is not None else "" for i, v in enumerate(case.inputs)]
    results = [f"y{i}" if i in case.outputs else "" for i in range(max(case.outputs) + 1)]
    one = helper.make_node(case.op, names, results, name="one", domain=case.domain, **case.attrs)
    given = [(name, str(v.dtype), v.shape) for name, v in values.items() if name not in fixed]
    outputs = [r for r in results if r]
    built = model([one], given, outputs, {name: values[name] for name in fixed}, opset=15, domains=["com.microsoft"])
    return built.SerializeToString(), {n: v for n, v in values.items() if n not in fixed}


@pytest.mark.parametrize("name", CASES)
def test_as_onnx_runtime(name: str) -> None:
    case = CASES[name]
    source, values = made(case, ("x6",) if case.op == "GroupQueryAttention" else ())
    session = ort.InferenceSession(source, providers=["CPUExecutionProvider"])
    want = session.run(None, values)
    assert check(source)[0][2] == "expanded"
    got = evaluate(load(source), values)
    for output, expected in list(zip(session.get_outputs(), want, strict=True))[: case.compared]:
        np.testing.assert_allclose(got[output.name], expected, rtol=2e-5, atol=2e-5, err_msg=output.name)


@pytest.mark.parametrize("points", [(2,), (2, 4 * H)])
def test_a_quantised_lstm_is_that_of_its_weights(points: tuple[int, ...]) -> None:
    """The input is quantised as by ONNX Runtime, states row by row, where it has one range for all rows; weights are of
    seven bits: where no instruction multiplies bytes, its pairs of products saturate at 16."""
    x, bias, start = real(S, B, 6), real(2, 8 * H), real(2, B, H)
    whole, numbers, floats = list[np.ndarray](), list[np.ndarray](), list[np.ndarray]()
    for rows in (6, H):
        values = RANDOM.integers(-64, 65, (2, rows, 4 * H)).astype(np.int8)
        scale, zero = RANDOM.uniform(0.002, 0.008, points).astype(np.float32), np.zeros(points, np.int8)
        whole.append(values)
        numbers += [scale, zero]
        floats.append((values * scale.reshape(2, 1, -1)).transpose(0, 2, 1).copy())
    attrs = {"direction": "bidirectional", "hidden_size": H}
    case = Case("LSTM", (x, *floats, bias, None, start, start), attrs, (0, 1, 2), domain="")
    narrow = Case("DynamicQuantizeLSTM", (x, *whole, bias, None, start, start, None, *numbers), attrs, (0, 1, 2))
    source, values = made(narrow, tuple(f"x{i}" for i in (1, 2, 8, 9, 10, 11)))
    want, rounded = (ort.InferenceSession(m).run(None, v) for m, v in (made(case), (source, values)))
    graph = load(source)
    got = evaluate(graph, values)
    for output, expected, theirs in zip(("y0", "y1", "y2"), want, rounded, strict=True):
        off = np.linalg.norm(theirs - expected)
        assert 0 < np.linalg.norm(got[output] - expected) < 1.5 * off, "less exact than they are"
        assert off < 0.05 * np.linalg.norm(expected), "they compute the same"
    step = np.float32((max(x.max(), 0) - min(x.min(), 0)) / 255)
    zero = np.round(-min(x.min(), 0) / step)
    dequantised = ((np.clip(np.round(x / step) + zero, 0, 255) - zero) * step).astype(np.float32)
    seen = replace(case, inputs=(dequantised, *case.inputs[1:]))
    model, given = made(seen)
    unrounded = evaluate(pipeline.run(graph), values)
    for output, expected in zip(("y0", "y1", "y2"), ort.InferenceSession(model).run(None, given), strict=True):
        np.testing.assert_allclose(unrounded[output], expected, rtol=1e-4, atol=1e-4)


CAUSAL = ["Attention, causal, past", "GroupQueryAttention", "GroupQueryAttention, past"]


@pytest.mark.parametrize("name", CAUSAL)
def test_masks_of_half_floats_are_finite(name: str) -> None:
    """No key is kept away by infinity, which times zero is no number."""
    case = CASES[name]
    fixed = ("x6",) if case.op == "GroupQueryAttention" else ()
    want = evaluate(load(made(case, fixed)[0]), made(case, fixed)[1])
    halves = tuple(v.astype(np.float16) if v is not None and v.dtype == np.float32 else v for v in case.inputs)
    source, values = made(replace(case, inputs=halves), fixed)
    got = evaluate(load(source), values)
    np.testing.assert_allclose(got["y0"], want["y0"], rtol=5e-2, atol=5e-2)


ATTENTION = [
    n for n, c in CASES.items() if c.op.endswith("Attention") and not {"QAttention", "softcap"} & {c.op, *c.attrs}
]


@pytest.mark.parametrize("name", ATTENTION)
def test_attention_is_recognised(name: str) -> None:
    """As the exporters' own forms are: it is no product, softmax and product."""
    source, _ = made(CASES[name], ("x6",) if CASES[name].op == "GroupQueryAttention" else ())
    ops = [n.op for n in compiler.lower(source, threads=1, machine=Machine.named("avx2")).optimized.nodes]
    assert "attention" in ops and "softmax" not in ops


@pytest.mark.parametrize(
    ("case", "reason"),
    [
        (Case("FusedGemm", (real(3, 4), real(4, 5)), {"activation": "Mish"}), "its activation 'Mish' is none"),
        (Case("MultiHeadAttention", (real(2, 5, 3, 3, 8),), {"num_heads": 3}), "packed queries, keys and values"),
        (Case("Attention", (*QKV, real(7)), {"num_heads": N}), r"a mask of shape \[7\]"),
        (Case("RotaryEmbedding", (real(B, S, H), np.arange(3), COS, SIN), {"scale": 2.0}), "that are scaled"),
        (Case("SkipLayerNormalization", (real(2, 3, 8),)), "a required input is missing"),
        (Case("Conv", (real(1, 3, 6, 6), real(4, 3, 3, 3)), domain="com.microsoft.nchwc"), "at level EXTENDED"),
    ],
)
def test_what_has_no_form_is_refused(case: Case, reason: str) -> None:
    with pytest.raises(MononnError, match=reason):
        load(made(case)[0])
