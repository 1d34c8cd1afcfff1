"""Programs as the CUDA schedule emits them, written by hand: strided phases, 16-bit storage, tensor-core tiles."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
from ml_dtypes import bfloat16

from mononn_core.program.expr import Acc, Cast, Const, Expr, const, op
from mononn_core.program.ir import (
    Assign,
    Axis,
    Barrier,
    Buffer,
    For,
    Layout,
    Mainloop,
    Operand,
    Phase,
    Prefetch,
    Program,
    Result,
    Slot,
    Store,
    Task,
)
from mononn_core.schedule.binder import fragment_buffer
from tests.core.build import Case, box, load, origin, random, v

HALF = {"f16": "float16", "bf16": "bfloat16", "tf32x3": "float32"}
STRIDED = Assign("strided")


def dtype_of(kind: str) -> np.dtype[Any]:
    return np.dtype(bfloat16) if kind == "bf16" else np.dtype(HALF[kind])


def padded(name: str, shape: tuple[int, ...], space: str, offset: int, kind: str) -> Buffer:
    """A matrix whose rows are multiples of 16 bytes."""
    chunk = 4 if kind == "tf32x3" else 8
    pad = -shape[-1] % chunk
    return Buffer(name, HALF[kind], shape, Layout.row_major(shape, pad), space, offset, 128)


def panels(name: str, shape: tuple[int, int], width: int, offset: int, kind: str) -> Buffer:
    """Weights [K, N] in panels of ``width`` columns."""
    K, N = shape
    count = -(-N // width)
    layout = Layout((((K, width),), ((count, K * width), (width, 1))), count * K * width)
    return Buffer(name, HALF[kind], shape, layout, "weight", offset, 128)


def fragments(name: str, shape: tuple[int, int], width: int, offset: int, kind: str) -> Buffer:
    """The same in fragments, for stages."""
    return replace(fragment_buffer(name, shape, width, HALF[kind]), offset=offset, align=128)


def wide(role: str, *index: Expr | int, kind: str) -> Expr:
    """A Load as float32."""
    e = load(role, *index, dtype=HALF[kind])
    return e if kind == "tf32x3" else Cast(e, "float32")


def narrow(e: Expr, kind: str) -> Expr:
    """A value as it is stored."""
    return e if kind == "tf32x3" else Cast(e, HALF[kind])


def convert_phase(name: str, source: str, target: str, shape: tuple[int, int], kind: str, rows: int = 4) -> Phase:
    """A float32 matrix becomes one of the compute type."""
    R, C = shape
    r = v("t") * rows
    body = For("x", C, (Store("out", (r + v("y"), v("x")), narrow(load("in", r + v("y"), v("x")), kind)),), "vector")
    limit = Const(R) + r * -1 if R % rows else None
    task = Task(
        "nest",
        (
            Operand("in", source, box((r, rows, R), (0, C, C))),
            Operand("out", target, box((r, rows, R), (0, C, C)), "write"),
        ),
        body=(For("y", rows, (body,), "serial", limit),),
    )
    return Phase(name, (Axis("t", -(-R // rows)),), STRIDED, task, origin=origin(name, "Cast"))


def product_phase(
    name: str,
    a: str,
    b: str | Slot,
    out: str,
    sizes: tuple[int, int, int],
    tile: tuple[int, int],
    warps: tuple[int, int],
    kind: str,
    value: Expr,
    extra: tuple[Operand, ...] = (),
    step: int = 32,
    stages: int = 3,
    **rest: Any,
) -> Phase:
    """``out[M, N] = value(a[M, K] b[K, N])``; domain: column panel p (slow) and row block r."""
    M, N, K = sizes
    m, n = tile
    i, j = v("r") * m, v("p") * n
    task = Task(
        "matmul",
        (
            Operand("a", a, box((i, m, M), (0, K, K))),
            Operand("b", b, box((0, K, K), (j, n, N)), stable=True),
            *extra,
            Operand("out", out, box((i, m, M), (j, n, N)), "write"),
        ),
        {"tile": tile, "warps": warps, "kind": kind},
        (Result("out", ("m", "n"), (i + v("m"), j + v("n")), value),),
        mainloop=Mainloop("k", step, stages, "cp_async"),
    )
    domain = (Axis("p", -(-N // n)), Axis("r", -(-M // m)))
    return Phase(name, domain, Assign("strided", order=("p", "r")), task, origin=origin(name), **rest)


def mlp(
    kind: str = "f16", M: int = 70, K: int = 90, H: int = 100, N: int = 50, lie: Callable[..., Buffer] = panels
) -> Case:
    """Two ragged products with bias and activation, of more steps than stages and of as many; the second's weights are
    fetched before the barrier. ``lie``: how weights do."""
    w1, w2 = random((K, H), 1, 0.2).astype(dtype_of(kind)), random((H, N), 2, 0.2).astype(dtype_of(kind))
    bias, x = random((1, H), 3), random((M, K), 4)
    j = v("p") * 40
    hidden = narrow(op("max", op("add", Acc(), load("bias", 0, j + v("n"))), const(0.0)), kind)
    size = dtype_of(kind).itemsize
    second = 128 * -(-(3 * 40 * (K + 15) * size) // 128)
    third = second + 128 * -(-(4 * 16 * (H + 15) * size) // 128)
    buffers = (
        Buffer("x", "float32", (M, K), Layout.row_major((M, K)), "input", 0),
        Buffer("y", "float32", (M, N), Layout.row_major((M, N)), "output", 0),
        lie("w1", (K, H), 40, 0, kind),
        lie("w2", (H, N), 16, second, kind),
        Buffer("bias", "float32", (1, H), Layout.row_major((1, H)), "weight", third, 128),
        padded("xh", (M, K), "arena", 0, kind),
        padded("h", (M, H), "arena", 64 * 1024, kind),
    )
    bias_operand = Operand("bias", "bias", box((0, 1, 1), (j, 40, H)), stable=True)
    body = (
        convert_phase("convert", "x", "xh", (M, K), kind),
        Barrier(0),
        product_phase(
            "up", "xh", "w1", "h", (M, H, K), (64, 40), (4, 1), kind, hidden, (bias_operand,),
            stages=2, prefetches=(Prefetch("down", "b"),),
        ),
        Barrier(1),
        product_phase("down", "h", "w2", "y", (M, N, H), (32, 16), (2, 1), kind, Acc(), stages=4),
    )  # fmt: skip
    program = Program(
        "mlp", buffers, body, inputs=("x",), outputs=("y",), arena_bytes=128 * 1024, weight_bytes=third + 4 * H
    )
    half = x.astype(dtype_of(kind)).astype(np.float32)
    h = np.maximum(half @ w1.astype(np.float32) + bias, 0).astype(dtype_of(kind)).astype(np.float32)
    return Case(program, {"x": x}, {"w1": w1, "w2": w2, "bias": bias}, {"y": h @ w2.astype(np.float32)})


def fetched_early(kind: str = "f16", lie: Callable[..., Buffer] = panels) -> Case:
    """:func:`mlp`, whose last weights are fetched before the first phase's barrier: another phase runs in between. They
    have more stages than are fetched early."""
    case = mlp(kind, lie=lie)
    convert, first, up, second, down = case.program.body
    assert isinstance(convert, Phase)
    assert isinstance(up, Phase)
    assert isinstance(down, Phase)
    down = replace(down, task=replace(down.task, mainloop=Mainloop("k", 16, 7, "cp_async")))
    body = (replace(convert, prefetches=up.prefetches), first, replace(up, prefetches=()), second, down)
    return replace(case, program=replace(case.program, body=body))


def staged(kind: str = "f16") -> Case:
    """:func:`mlp` with weights that stages bring."""
    return mlp(kind, lie=fragments)


def staged_early(kind: str = "f16") -> Case:
    """:func:`fetched_early` with weights that stages bring: another phase's would come between, so it is but a hint."""
    return fetched_early(kind, fragments)


def attention(kind: str = "f16", heads: int = 2, R: int = 40, T: int = 75, D: int = 24) -> Case:
    """Scaled, masked attention of several heads in one row-major tensor, 16 rows or more a task."""
    q, k, w = (random((n, heads * D), s) for n, s in ((R, 1), (T, 2), (T, 3)))
    mask = np.where(random((1, T), 4) > 0.8, np.float32(-np.inf), np.float32(0)).astype(np.float32)
    rows = 32
    h, r = v("h") * D, v("r") * rows
    buffers = [Buffer(n, "float32", s, Layout.row_major(s), "input", p) for p, (n, s) in enumerate(
        (("q", (R, heads * D)), ("k", (T, heads * D)), ("v", (T, heads * D)), ("mask", (1, T))))]  # fmt: skip
    buffers += [Buffer("o", "float32", (R, heads * D), Layout.row_major((R, heads * D)), "output", 0)]
    converts, offset = [], 0
    for name, n in (("q", R), ("k", T), ("v", T)):
        buffers.append(padded(name + "h", (n, heads * D), "arena", offset, kind))
        converts.append(convert_phase("convert " + name, name, name + "h", (n, heads * D), kind, 8))
        offset += 32 * 1024
    scale = op("mul", Acc(), const(D**-0.5))
    task = Task(
        "attention",
        (
            Operand("q", "qh", box((r, rows, R), (h, D, heads * D))),
            Operand("k", "kh", box((0, T, T), (h, D, heads * D))),
            Operand("v", "vh", box((0, T, T), (h, D, heads * D))),
            Operand("mask", "mask", box((0, 1, 1), (0, T, T))),
            Operand("out", "o", box((r, rows, R), (h, D, heads * D)), "write"),
        ),
        {"kind": kind, "guard": True, "keys": 64},
        (Result("out", ("i", "d"), (r + v("i"), h + v("d")), Acc()),),
        prologue={"score": op("add", scale, load("mask", 0, v("j")))},
    )
    domain = (Axis("h", heads), Axis("r", -(-R // rows)))
    body = (*converts, Barrier(0), Phase("attend", domain, Assign("strided", order=("h", "r")), task))
    program = Program(
        "attention", tuple(buffers), body, inputs=("q", "k", "v", "mask"), outputs=("o",), arena_bytes=offset
    )
    parts = []
    qh, kh, vh = (t.astype(dtype_of(kind)).astype(np.float32) for t in (q, k, w))
    for n in range(heads):
        s = slice(n * D, n * D + D)
        score = qh[:, s] @ kh[:, s].T * np.float32(D**-0.5) + mask
        weight = np.exp(score - score.max(1, keepdims=True))
        parts.append(weight / weight.sum(1, keepdims=True) @ vh[:, s])
    return Case(program, {"q": q, "k": k, "v": w, "mask": mask}, {}, {"o": np.concatenate(parts, 1)})


TOLERANCE = {"f16": 4e-3, "bf16": 3e-2, "tf32x3": 1e-5}
"""Of a kind, relative to the largest expected value."""
FAMILIES = (mlp, fetched_early, attention)
STAGED_FAMILIES = (staged, staged_early)
"""Of 16-bit kinds alone."""
