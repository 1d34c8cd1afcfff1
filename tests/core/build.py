"""Short ways to write down Programs by hand."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from mononn_core.graph import Origin
from mononn_core.program.expr import Acc, Const, Expr, Load, Var, const, op
from mononn_core.program.ir import (
    Assign,
    Axis,
    Box,
    Buffer,
    For,
    Layout,
    Operand,
    Phase,
    Program,
    Result,
    Slot,
    Store,
    Task,
)

Array = np.ndarray[Any, Any]
F32 = "float32"


@dataclass(frozen=True)
class Case:
    """A Program and what it must answer."""

    program: Program
    inputs: Mapping[str, Array]
    weights: Mapping[str, Array]
    expected: Mapping[str, Array]


def random(shape: tuple[int, ...], seed: int, scale: float = 1.0) -> Array:
    """Standard normal float32 numbers times ``scale``."""
    return (np.random.default_rng(seed).standard_normal(shape) * scale).astype(np.float32)


def v(name: str) -> Var:
    return Var(name)


def buffer(name: str, shape: tuple[int, ...], space: str, offset: int = 0, dtype: str = F32, pad: int = 0) -> Buffer:
    return Buffer(name, dtype, shape, Layout.row_major(shape, pad), space, offset, align=np.dtype(dtype).itemsize)


def box(*dims: tuple[Expr | int, int, int]) -> Box:
    """A box from (offset, size, bound) per dimension."""
    return Box(
        tuple(Const(o) if isinstance(o, int) else o for o, _, _ in dims),
        tuple(n for _, n, _ in dims),
        tuple(b for _, _, b in dims),
    )


def origin(name: str, kind: str = "MatMul") -> tuple[Origin, ...]:
    return (Origin(name, kind),)


def load(role: str, *index: Expr | int, dtype: str = F32) -> Load:
    return Load(role, tuple(Const(i) if isinstance(i, int) else i for i in index), dtype)


def relu(e: Expr) -> Expr:
    return op("max", e, const(0.0))


def store_tile(value: Expr, row: Expr, column: Expr, role: str = "out") -> tuple[Result, ...]:
    """The usual epilogue: element (m, n) of the tile at (row, column)."""
    return (Result(role, ("m", "n"), (row + v("m"), column + v("n")), value),)


def matmul_phase(
    name: str,
    a: str | Slot,
    b: str | Slot,
    out: str | Slot,
    sizes: tuple[int, int, int],
    tile: tuple[int, int],
    value: Expr | None = None,
    extra: tuple[Operand, ...] = (),
    assign: Assign | None = None,
    **rest: Any,
) -> Phase:
    """``out[M, N] = value(a[M, K] @ b[K, N])`` in tiles; domain variables i (rows) and j (columns)."""
    M, N, K = sizes
    m, n = tile
    i, j = v("i") * m, v("j") * n
    task = Task(
        "matmul",
        (
            Operand("a", a, box((i, m, M), (0, K, K))),
            Operand("b", b, box((0, K, K), (j, n, N)), stable=True),
            *extra,
            Operand("out", out, box((i, m, M), (j, n, N)), "write"),
        ),
        {"panel": 0},
        results=store_tile(Acc() if value is None else value, i, j),
    )
    domain = (Axis("i", -(-M // m)), Axis("j", -(-N // n)))
    return Phase(name, domain, assign or Assign(), task, origin=origin(name), **rest)


def copy_phase(name: str, source: str, target: str, shape: tuple[int, int], **rest: Any) -> Phase:
    """Copy a matrix row by row; domain variable r."""
    R, C = shape
    task = Task(
        "nest",
        (
            Operand("in", source, box((v("r"), 1, R), (0, C, C))),
            Operand("out", target, box((v("r"), 1, R), (0, C, C)), "write"),
        ),
        body=(For("c", C, (Store("out", (v("r"), v("c")), load("in", v("r"), v("c"))),), "vector"),),
    )
    return Phase(name, (Axis("r", R),), Assign(), task, origin=origin(name, "Identity"), **rest)
