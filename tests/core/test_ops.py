"""Operators: semantics against independent formulas, and the two descriptions of one operator against each other."""

from __future__ import annotations

import math
from random import Random
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from mononn_core.errors import MononnError, ShapeError, UnsupportedError
from mononn_core.graph import TensorType
from mononn_core.ops import common, numeric, registry
from mononn_core.ops.builder import type_of
from mononn_core.program.expr import Load, Var
from mononn_core.program.scalar import Frame, evaluate

RNG = np.random.default_rng(7)


def floats(*shape: int, dtype: str = "float32") -> np.ndarray:
    return RNG.standard_normal(shape).astype(dtype)


def positive(*shape: int) -> np.ndarray:
    return (RNG.random(shape) + 1.25).astype("float32")


def unit(*shape: int) -> np.ndarray:
    return (RNG.random(shape) * 1.8 - 0.9).astype("float32")


def whole(*shape: int, low: int = -9, high: int = 9, dtype: str = "int64") -> np.ndarray:
    return RNG.integers(low, high, shape).astype(dtype)


def bits(*shape: int) -> np.ndarray:
    return RNG.random(shape) > 0.5


A, B = floats(2, 3, 4), floats(3, 1)
NONZERO = np.where((w := whole(3, 1)) == 0, 3, w)
QUANTISED = [
    ("uint8", [np.float32(0.7), np.uint8(120)]),
    ("int8", [positive(3, 1), whole(3, 1, dtype="int8")]),
    ("uint8", [np.float32(0.9)]),
]
SPECIAL = np.array([1.0, -np.inf, np.nan, np.inf, -0.0, 0.0], dtype="float32")
# fmt: off
REAL = (
    "neg", "abs", "exp", "sin", "cos", "tan", "tanh", "erf", "sigmoid", "softplus", "relu", "floor", "ceil",
    "round", "sign", "sinh", "cosh", "asinh", "atan", "identity",
)
# fmt: on
CASES: list[tuple[str, list[np.ndarray], dict[str, Any]]] = [
    *((op, [A], {}) for op in REAL),
    *((op, [positive(2, 3)], {}) for op in ["log", "sqrt", "reciprocal", "acosh"]),
    *((op, [unit(2, 3)], {}) for op in ["asin", "acos", "atanh"]),
    *((op, [A, B], {}) for op in ["add", "sub", "mul", "div", "min", "max"]),
    *((op, [whole(2, 3), NONZERO[:, 0]], {}) for op in ["add", "sub", "mul", "div", "min", "max"]),
    *((op, [whole(3, 2), whole(2)], {}) for op in ["equal", "less", "greater", "less_equal", "greater_equal"]),
    *((op, [A, A.copy()], {}) for op in ["equal", "less_equal"]),
    *(("quantize", [A * 100, *more], {"to": to}) for to, more in QUANTISED),
    *(
        ("dequantize", [whole(2, 3, 4, low=low, high=low + 256, dtype=to), *more], {})
        for low, (to, more) in zip((0, -128, 0), QUANTISED, strict=True)
    ),
    *(
        ("lookup", [whole(2, 3, 4, low=low, high=low + 256, dtype=dtype)], {"to": to, "table": tuple(range(-128, 128))})
        for low, dtype, to in ((0, "uint8", "int8"), (-128, "int8", "int8"))
    ),
    *((op, [bits(2, 3), bits(3)], {}) for op in ["and", "or", "xor"]),
    *((f"bitwise_{op}", [whole(2, 3), whole(3)], {}) for op in ("and", "or", "xor")),
    ("bitwise_not", [whole(4)], {}),
    ("shift", [whole(4, low=0, dtype="uint8"), whole(4, low=0, high=4, dtype="uint8")], {"left": True}),
    ("shift", [whole(4, low=0, dtype="uint8"), whole(4, low=0, high=4, dtype="uint8")], {"left": False}),
    ("not", [bits(5)], {}),
    ("pow", [positive(2, 3), floats(3)], {}),
    ("pow", [positive(4), whole(4, low=0, high=4)], {}),
    ("mod", [whole(2, 3), NONZERO[:, 0]], {"fmod": False}),
    ("mod", [whole(2, 3), NONZERO[:, 0]], {"fmod": True}),
    ("mod", [A, B], {"fmod": True}),
    ("mod", [A, B], {"fmod": False}),
    ("clip", [A], {"low": -0.5, "high": 0.25}),
    ("clip", [whole(9)], {"low": -2}),
    ("clip", [A], {"high": 0.0}),
    ("cast", [A], {"to": "float64"}),
    ("cast", [A * 9], {"to": "int32"}),
    ("cast", [np.array([0.0, -0.0, 2.0, np.nan], "float32")], {"to": "bool"}),
    ("cast", [bits(6)], {"to": "float32"}),
    ("bitcast", [A], {"to": "int32"}),
    ("cast", [whole(6)], {"to": "float32"}),
    ("isnan", [SPECIAL], {}),
    ("isinf", [SPECIAL], {}),
    ("isinf", [SPECIAL], {"positive": False, "negative": True}),
    ("isinf", [SPECIAL], {"positive": True, "negative": False}),
    ("where", [bits(3, 1), A, B], {}),
    ("gelu", [A], {"approximate": "none"}),
    ("gelu", [A], {"approximate": "tanh"}),
    ("reshape", [A], {"shape": (4, 1, 6)}),
    ("reshape", [floats()], {"shape": (1, 1)}),
    ("transpose", [A], {"perm": (2, 0, 1)}),
    ("slice", [A], {"starts": (1, 2, 0), "sizes": (1, 3, 2), "steps": (1, -1, 3)}),
    ("slice", [A], {"starts": (0, 0, 0), "sizes": (2, 0, 4), "steps": (1, 1, 1)}),
    ("expand", [B], {"shape": (2, 3, 5)}),
    ("concat", [A, floats(2, 0, 4), floats(2, 1, 4), floats(2, 2, 4)], {"axis": 1}),
    ("pad", [A], {"before": (0, 2, 1), "after": (1, 0, 0), "mode": "constant", "value": 1.5}),
    ("pad", [A], {"before": (1, 2, 1), "after": (1, 1, 2), "mode": "reflect", "value": 0.0}),
    ("pad", [A], {"before": (1, 2, 1), "after": (1, 1, 2), "mode": "edge", "value": 0.0}),
    ("pad", [A], {"before": (1, 2, 1), "after": (1, 1, 2), "mode": "wrap", "value": 0.0}),
    ("border", [A, floats(4)], {"before": (0, 2, 0), "after": (1, 0, 0)}),
    ("tile", [A], {"repeats": (1, 2, 3)}),
    ("trilu", [A], {"k": 1, "upper": True}),
    ("trilu", [whole(2, 4, 3)], {"k": -1, "upper": False}),
    ("windows", [floats(2, 7, 8)], {"axis": 1, "kernel": (3, 2), "strides": (2, 1), "dilations": (1, 3)}),
    ("windows", [floats(2, 7, 8, 3)], {"axis": 1, "kernel": (3, 2), "strides": (2, 1), "dilations": (1, 3)}),
    ("gather", [A, np.array([[2, -1], [0, -3]])], {"axis": 1}),
    ("gather", [A, np.array(1, "int32")], {"axis": 2}),
    ("gather_elements", [A, whole(2, 2, 4, low=-3, high=3)], {"axis": 1}),
    ("gather_nd", [A, whole(5, 2, low=-2, high=2)], {"batch_dims": 0}),
    ("gather_nd", [A, whole(2, 6, 1, low=-3, high=3)], {"batch_dims": 1}),
    ("one_hot", [whole(3, low=-4, high=4), np.array([2.0, 5.0])], {"axis": 0, "depth": 4}),
    ("one_hot", [whole(3, 2, low=0, high=4), np.array([0, 1])], {"axis": 2, "depth": 4}),
]


def name_of(case: tuple[str, list[np.ndarray], dict[str, Any]]) -> str:
    return f"{case[0]}-{case[1][0].dtype}"


def pointwise(op: str, arrays: list[np.ndarray], attrs: dict[str, Any], out: TensorType) -> np.ndarray:
    """Every output element by the operator's scalar expression."""
    definition = registry.get(op)
    assert definition.point is not None
    types = [type_of(a) for a in arrays]

    def reader(number: int) -> registry.Reader:
        return lambda index: Load(str(number), tuple(index), types[number].dtype)

    frame = Frame()
    for axis, extent in enumerate(out.shape):
        frame = frame.loop(f"i{axis}", extent)
    readers = [reader(k) for k in range(len(arrays))]
    expression = definition.point(readers, types, out, attrs, tuple(Var(f"i{axis}") for axis in range(out.rank)))

    def load(node: Load, index: tuple[np.ndarray, ...], mask: np.ndarray | None) -> np.ndarray:
        array = arrays[int(node.operand)]
        if mask is None:
            assert all((i >= 0).all() and (i < n).all() for i, n in zip(index, array.shape, strict=True))
        safe = tuple(np.clip(i, 0, n - 1) for i, n in zip(index, array.shape, strict=True))
        return np.asarray(array[safe])

    return np.asarray(frame.full(evaluate(expression, frame, load)))


@pytest.mark.parametrize("case", CASES, ids=name_of)
def test_array_and_scalar_forms_agree(case: tuple[str, list[np.ndarray], dict[str, Any]]) -> None:
    op, arrays, attrs = case
    definition = registry.get(op)
    (out,) = definition.infer([type_of(a) for a in arrays], attrs)
    with np.errstate(all="ignore"):
        (wanted,) = definition.evaluate(np, arrays, attrs)
        assert (str(wanted.dtype), wanted.shape) == (out.dtype, out.shape)
        if out.size == 0:
            return
        found = pointwise(op, arrays, attrs, out)
    assert str(found.dtype) == out.dtype
    np.testing.assert_allclose(found, wanted, rtol=2e-6, atol=1e-6, equal_nan=True)


def test_every_scalar_form_has_a_case() -> None:
    with_form = {name for name in registry.names() if registry.get(name).point is not None}
    assert with_form == {op for op, _, _ in CASES}


@pytest.mark.parametrize(
    ("op", "shape", "attrs"), [("reshape", (2, 6), {"shape": (3, 4)}), ("transpose", (2, 3, 4), {"perm": (2, 0, 1)})]
)
def test_forward_inverts_point(op: str, shape: tuple[int, ...], attrs: dict[str, Any]) -> None:
    x = np.arange(math.prod(shape), dtype=np.float32).reshape(shape)
    definition = registry.get(op)
    (out,) = definition.infer([type_of(x)], attrs)
    assert definition.forward is not None
    frame = Frame()
    for axis, extent in enumerate(shape):
        frame = frame.loop(f"i{axis}", extent)
    target = definition.forward(type_of(x), out, attrs, tuple(Var(f"i{axis}") for axis in range(len(shape))))
    (y,) = definition.evaluate(np, [x], attrs)

    def nothing(*_: Any) -> np.ndarray:
        raise AssertionError("an index loads nothing")

    places = tuple(np.broadcast_to(evaluate(e, frame, nothing), shape) for e in target)
    np.testing.assert_array_equal(y[places], x)


@given(hnp.arrays(np.float64, 16, elements=st.floats(-40, 40)))
@settings(max_examples=60, deadline=None)
def test_erf_is_accurate(x: np.ndarray) -> None:
    wanted = np.array([math.erf(v) for v in x])
    np.testing.assert_allclose(numeric.erf(np, x), wanted, rtol=2e-15, atol=0)
    single = numeric.erf(np, x.astype(np.float32))
    assert single.dtype == np.float32
    wanted = np.array([math.erf(v) for v in x.astype(np.float32)], np.float32)
    np.testing.assert_array_max_ulp(single, wanted, maxulp=1)


def test_erf_at_the_edges() -> None:
    with np.errstate(all="ignore"):
        found = numeric.erf(np, np.array([np.inf, -np.inf, np.nan, 0.0, -0.0, 1e-300]))
    np.testing.assert_array_equal(found[:2], [1, -1])
    assert np.isnan(found[2])
    assert not np.signbit(found[3])
    np.testing.assert_allclose(found[5], 1e-300 * 2 / math.sqrt(math.pi))


@given(st.integers(-(2**31), 2**31 - 1), st.integers(-(2**31), 2**31 - 1))
def test_integers_divide_towards_zero(a: int, b: int) -> None:
    if b:
        found = numeric.truncated_division(np, np.array([a], np.int64), np.array([b], np.int64))
        assert found.tolist() == [int(math.copysign(abs(a) // abs(b), a * b))]


def test_sigmoid_and_softplus_do_not_overflow() -> None:
    x = np.array([-1000.0, -30.0, 0.0, 30.0, 1000.0], np.float32)
    with np.errstate(all="raise", under="ignore"):
        np.testing.assert_allclose(numeric.sigmoid(np, x), [0, 9.357623e-14, 0.5, 1, 1], rtol=1e-6)
        np.testing.assert_allclose(numeric.softplus(np, x), [0, 9.357623e-14, math.log(2), 30, 1000], rtol=1e-6)


def test_attention_is_the_formula() -> None:
    q, k, v, bias = floats(2, 3, 5, 4), floats(2, 3, 7, 4), floats(2, 3, 7, 6), floats(1, 1, 5, 7)
    (found,) = registry.get("attention").evaluate(np, [q, k, v, bias], {"scale": 0.3})
    scores = np.einsum("bhsd,bhtd->bhst", q.astype(np.float64), k) * 0.3 + bias
    weights = np.exp(scores) / np.exp(scores).sum(-1, keepdims=True)
    np.testing.assert_allclose(found, np.einsum("bhst,bhte->bhse", weights, v), rtol=1e-5, atol=1e-6)


def test_attention_guard_gives_zero_for_rows_without_scores() -> None:
    q = floats(1, 1, 2, 4)
    bias = np.array([[[[0, 0], [-np.inf, -np.inf]]]], np.float32)
    attention = registry.get("attention")
    with np.errstate(invalid="ignore"):
        (plain,) = attention.evaluate(np, [q, q, q, bias], {"scale": 1.0, "guard": False})
        (guarded,) = attention.evaluate(np, [q, q, q, bias], {"scale": 1.0, "guard": True})
    assert np.isnan(plain[0, 0, 1]).all()
    np.testing.assert_array_equal(guarded[0, 0, 1], 0)
    np.testing.assert_array_equal(guarded[0, 0, 0], plain[0, 0, 0])


def test_norms_are_the_formulas() -> None:
    x, gamma, beta = floats(3, 8), floats(8), floats(8)
    wide = x.astype(np.float64)
    centred = wide - wide.mean(-1, keepdims=True)
    layer = centred / np.sqrt((centred**2).mean(-1, keepdims=True) + 1e-5)
    rms = wide / np.sqrt((wide**2).mean(-1, keepdims=True) + 1e-5)
    for op, inputs, wanted in (
        ("layer_norm", [x, gamma, beta], layer * gamma + beta),
        ("layer_norm", [x, None, None], layer),
        ("rms_norm", [x, gamma], rms * gamma),
        ("rms_norm", [x, None], rms),
    ):
        (found,) = registry.get(op).evaluate(np, inputs, {"epsilon": 1e-5})
        np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("op", "types", "attrs", "error"),
    [
        ("add", [("float32", (2, 3)), ("float32", (4,))], {}, ShapeError),
        ("add", [("float32", (2,)), ("int64", (2,))], {}, ShapeError),
        ("where", [("float32", (2,)), ("float32", (2,)), ("float32", (2,))], {}, ShapeError),
        ("reshape", [("float32", (2, 3))], {"shape": (4,)}, ShapeError),
        ("transpose", [("float32", (2, 3))], {"perm": (0, 0)}, ShapeError),
        ("slice", [("float32", (4,))], {"starts": (2,), "sizes": (3,), "steps": (1,)}, ShapeError),
        ("slice", [("float32", (4,))], {"starts": (0,), "sizes": (3,), "steps": (-1,)}, ShapeError),
        ("expand", [("float32", (2,))], {"shape": (3,)}, ShapeError),
        ("concat", [("float32", (2, 3)), ("float32", (2, 4))], {"axis": 0}, ShapeError),
        ("gather", [("float32", (4,)), ("float32", (1,))], {"axis": 0}, ShapeError),
        ("matmul", [("float32", (2, 3)), ("float32", (4, 2))], {}, ShapeError),
        ("matmul", [("float32", ()), ("float32", (4, 2))], {}, ShapeError),
        ("reduce_sum", [("float32", (2, 3))], {"axes": (1, 0), "keepdims": True}, ShapeError),
        ("softmax", [("int64", (2, 3))], {"axis": 1}, ShapeError),
        ("layer_norm", [("float32", (2, 3)), ("float32", (2,)), None], {"epsilon": 0.0}, ShapeError),
        (
            "attention",
            [("float32", (1, 1, 2, 3)), ("float32", (1, 1, 2, 4)), ("float32", (1, 1, 2, 4))],
            {},
            ShapeError,
        ),
        ("windows", [("float32", (4,))], {"axis": 0, "kernel": (5,), "strides": (1,), "dilations": (1,)}, ShapeError),
        ("bitcast", [("float32", (4,))], {"to": "int64"}, ShapeError),
    ],
)
def test_types_that_do_not_fit_are_refused(
    op: str, types: list[Any], attrs: dict[str, Any], error: type[MononnError]
) -> None:
    with pytest.raises(error):
        registry.get(op).infer([None if t is None else TensorType(*t) for t in types], attrs)


def test_registry_refuses_doubles_and_unknown_names() -> None:
    with pytest.raises(ValueError, match="registered twice"):
        registry.register(registry.get("add"))
    with pytest.raises(UnsupportedError, match="'frobnicate'"):
        registry.get("frobnicate")


def test_flops_of_products() -> None:
    a, b = TensorType("float32", (2, 5, 3)), TensorType("float32", (3, 7))
    matmul = registry.get("matmul")
    assert matmul.flops is not None
    assert matmul.flops([a, b], matmul.infer([a, b], {}), {}) == 2 * 2 * 5 * 3 * 7


@settings(max_examples=200, deadline=None)
@given(st.lists(st.integers(0, 11), max_size=4), st.randoms(use_true_random=False))
def test_arrays_are_copied_in_blocks(extents: list[int], random: Random) -> None:
    numbers = np.arange(np.prod(extents, dtype=int), dtype=np.int16).reshape(extents)
    turned = numbers.transpose(random.sample(range(len(extents)), len(extents)))
    for array in (turned, turned[::-1] if extents else turned, np.broadcast_to(turned, (3, *turned.shape))):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(common, "LARGE", 1)
            patch.setattr(common, "BLOCK", 4)
            found = common.contiguous(array)
        assert found.flags.c_contiguous
        assert found.shape == array.shape
        np.testing.assert_array_equal(found, array)
