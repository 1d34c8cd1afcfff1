"""Hand-written CUDA Programs of nests and of the parts between them: norms, split sums, local left sides, gathers,
counters, rolled layers."""

from __future__ import annotations

from typing import Any

import numpy as np

from mononn_core.program.expr import Acc, Const, Expr, Select, Var, const, op
from mononn_core.program.ir import (
    Assign,
    Axis,
    Barrier,
    Buffer,
    Counter,
    For,
    Layout,
    Let,
    Loop,
    Mainloop,
    Operand,
    Phase,
    Prefetch,
    Program,
    Reduce,
    Result,
    Signal,
    Slot,
    Statement,
    Store,
    Table,
    Task,
    Wait,
)
from tests.core.build import F32, Array, Case, box, load, random, v
from tests.core.cuda.programs import STRIDED, dtype_of, narrow, padded, panels, product_phase, wide


def plain(name: str, shape: tuple[int, ...], space: str, offset: int = 0, dtype: str = F32) -> Buffer:
    align = 128 if space in ("arena", "weight") else 16
    return Buffer(name, dtype, shape, Layout.row_major(shape), space, offset, align)


def elementwise(name: str, buffers: tuple[str, str], shape: tuple[int, int], value: Expr, **rest: Any) -> Phase:
    """One task that stores ``value``, an expression of role "in" at (y, x), everywhere."""
    R, C = shape
    whole = box((0, R, R), (0, C, C))
    task = Task(
        "nest",
        (Operand("in", buffers[0], whole), Operand("out", buffers[1], whole, "write")),
        body=(For("y", R, (For("x", C, (Store("out", (v("y"), v("x")), value),), "vector"),)),),
    )
    return Phase(name, (Axis("o", 1),), STRIDED, task, **rest)


def normalise(row: Expr, columns: int, kind: str) -> tuple[tuple[Statement, ...], Expr]:
    """Statements and value of a layer norm (no affine part) of role "in" along x."""
    along, here = wide("in", row, v("z"), kind=kind), wide("in", row, v("x"), kind=kind)
    mean, scale = Var("mean", F32), Var("scale", F32)
    centred = op("sub", along, mean)
    variance = op("div", Var("squares", F32), const(float(columns)))
    statements = (
        Reduce("sum", "add", "z", columns, along),
        Let("mean", op("div", Var("sum", F32), const(float(columns)))),
        Reduce("squares", "add", "z", columns, op("mul", centred, centred)),
        Let("scale", op("reciprocal", op("sqrt", op("add", variance, const(1e-5))))),
    )
    return statements, op("mul", op("sub", here, mean), scale)


def norm_numpy(x: Array) -> Array:
    centred = x - x.mean(1, keepdims=True)
    return np.asarray(centred / np.sqrt((centred * centred).mean(1, keepdims=True) + np.float32(1e-5)))


def norms(kind: str = "f16", rows: int = 13, columns: int = 200, block: int = 4) -> Case:
    """Layer norm of blocks of rows, then softmax of every row in a task of its own."""
    statements, value = normalise(v("r") * block + v("y"), columns, kind)
    place = (v("r") * block + v("y"), v("x"))
    out = For("x", columns, (Store("out", place, narrow(value, kind)),), "vector")
    limit = Const(rows) + v("r") * -block
    first = Task(
        "nest",
        (
            Operand("in", "x", box((v("r") * block, block, rows), (0, columns, columns))),
            Operand("out", "h", box((v("r") * block, block, rows), (0, columns, columns)), "write"),
        ),
        body=(For("y", block, (*statements, out), "serial", limit),),
    )
    along, here = (wide("in", v("r"), v(n), kind=kind) for n in "zx")
    top, total = Var("top", F32), Var("total", F32)
    second = Task(
        "nest",
        (
            Operand("in", "h", box((v("r"), 1, rows), (0, columns, columns))),
            Operand("out", "y", box((v("r"), 1, rows), (0, columns, columns)), "write"),
        ),
        body=(
            Reduce("top", "max", "z", columns, along),
            Reduce("total", "add", "z", columns, op("exp", op("sub", along, top))),
            For(
                "x",
                columns,
                (Store("out", (v("r"), v("x")), op("div", op("exp", op("sub", here, top)), total)),),
                "vector",
            ),
        ),
    )
    buffers = (
        plain("y", (rows, columns), "output"),
        Buffer("x", str(dtype_of(kind)), (rows, columns), Layout.row_major((rows, columns)), "input", 0),
        padded("h", (rows, columns), "arena", 0, kind),
    )
    body = (
        Phase("norm", (Axis("r", -(-rows // block)),), STRIDED, first),
        Barrier(0),
        Phase("softmax", (Axis("r", rows),), STRIDED, second),
    )
    program = Program("norms", buffers, body, inputs=("x",), outputs=("y",), arena_bytes=64 * 1024)
    x = random((rows, columns), 1).astype(dtype_of(kind))
    h = norm_numpy(x.astype(np.float32)).astype(dtype_of(kind)).astype(np.float32)
    weight = np.exp(h - h.max(1, keepdims=True))
    return Case(program, {"x": x}, {}, {"y": weight / weight.sum(1, keepdims=True)})


def long_row(kind: str = "f16") -> Case:
    """Rows too long for a warp go to the whole block."""
    return norms(kind, 2, 4800, 1)


def _filled_task(kind: str, M: int, K: int, N: int, rows: int, width: int) -> Task:
    """Fill "left" with normalised rows, store them too in column panel 0, multiply."""
    r, p = v("r") * rows, v("p") * width
    statements, value = normalise(op("min", r + v("y"), Const(M - 1), dtype="int64"), K, "tf32x3")
    fill = For("x", K, (Store("fill", (v("y"), v("x")), narrow(value, kind)),), "vector")
    keep = For("x", K, (Store("keep", (r + v("y"), v("x")), value),), "vector")
    limit = Const(M) + v("r") * -rows
    return Task(
        "matmul",
        (
            Operand("in", "x", box((r, rows, M), (0, K, K))),
            Operand("fill", "left", box((0, rows, rows), (0, K, K)), "write"),
            Operand("a", "left", box((0, rows, rows), (0, K, K))),
            Operand("b", "w", box((0, K, K), (p, width, N)), stable=True),
            Operand("keep", "n", box((r, rows, M), (0, K, K)), "write"),
            Operand("out", "y", box((r, rows, M), (p, width, N)), "write"),
        ),
        {"tile": (rows, width), "warps": (2, 1), "kind": kind},
        (Result("out", ("m", "n"), (r + v("m"), p + v("n")), Acc(), bounds=(limit, None)),),
        body=(
            For("y", rows, (*statements, fill)),
            For("g", 1, (For("y", rows, (*statements, keep), "serial", limit),), bound=Const(1) + v("p") * -1),
        ),
        mainloop=Mainloop("k", 32, 3, "cp_async"),
        local=("left",),
    )


def filled_left(kind: str = "f16", M: int = 40, K: int = 72, N: int = 48) -> Case:
    """A product whose left side, normalised rows of a float32 input, its own body fills; column panel 0 stores them."""
    rows, width = 32, 16
    task = _filled_task(kind, M, K, N, rows, width)
    chunk = 4 if kind == "tf32x3" else 8
    left = Buffer("left", str(dtype_of(kind)), (rows, K), Layout.row_major((rows, K), chunk), "local", 0, 128)
    buffers = (
        plain("x", (M, K), "input"),
        panels("w", (K, N), width, 0, kind),
        left,
        plain("n", (M, K), "output", 0),
        plain("y", (M, N), "output", 1),
    )
    domain = (Axis("p", N // width), Axis("r", -(-M // rows)))
    body = (Phase("product", domain, Assign("strided", order=("p", "r")), task),)
    program = Program(
        "filled_left",
        buffers,
        body,
        inputs=("x",),
        outputs=("n", "y"),
        weight_bytes=K * N * 4,
        scratch_bytes=left.nbytes,
    )
    x, w = random((M, K), 1), random((K, N), 2, 0.2).astype(dtype_of(kind))
    n = norm_numpy(x)
    y = n.astype(dtype_of(kind)).astype(np.float32) @ w.astype(np.float32)
    return Case(program, {"x": x}, {"w": w}, {"n": n, "y": y})


def _sum_phase(parts: int, M: int, N: int) -> Phase:
    """``y`` = the parts of "sums" in order, and a bias."""
    total: Expr = load("in", v("t"), v("x"))
    for part in range(1, parts):
        total = op("add", total, load("in", v("t") + part * M, v("x")))
    total = op("add", total, load("bias", 0, v("x")))
    task = Task(
        "nest",
        (
            Operand("in", "sums", box((0, parts * M, parts * M), (0, N, N))),
            Operand("bias", "bias", box((0, 1, 1), (0, N, N)), stable=True),
            Operand("out", "y", box((v("t"), 1, M), (0, N, N)), "write"),
        ),
        body=(For("x", N, (Store("out", (v("t"), v("x")), total),), "vector"),),
    )
    return Phase("sum", (Axis("t", M),), STRIDED, task)


def split_sum(kind: str = "f16", parts: int = 3) -> Case:
    """A contraction in parts; the consumer adds them in order, with a bias and a residual."""
    M, N, K, rows = 20, 24, 96, 16
    k = K // parts
    task = Task(
        "matmul",
        (
            Operand("a", "x", box((v("r") * rows, rows, M), (v("s") * k, k, K))),
            Operand("b", "w", box((v("s") * k, k, K), (0, N, N)), stable=True),
            Operand("out", "sums", box((v("s") * M + v("r") * rows, rows, parts * M), (0, N, N)), "write"),
        ),
        {"tile": (rows, N), "warps": (1, 1), "kind": kind},
        (
            Result(
                "out",
                ("m", "n"),
                (v("s") * M + v("r") * rows + v("m"), v("n")),
                Acc(),
                bounds=(Const(M) + v("r") * -rows, None),
            ),
        ),
        mainloop=Mainloop("k", 32, 2, "cp_async"),
    )
    buffers = (
        Buffer("x", str(dtype_of(kind)), (M, K), Layout.row_major((M, K)), "input", 0),
        panels("w", (K, N), N, 0, kind),
        plain("bias", (1, N), "weight", K * N * 4),
        plain("sums", (parts * M, N), "arena"),
        plain("y", (M, N), "output"),
    )
    body = (
        Phase("product", (Axis("s", parts), Axis("r", -(-M // rows))), STRIDED, task),
        Barrier(0),
        _sum_phase(parts, M, N),
    )
    program = Program(
        "split_sum",
        buffers,
        body,
        inputs=("x",),
        outputs=("y",),
        arena_bytes=parts * M * N * 4,
        weight_bytes=K * N * 4 + 128,
    )
    x, w, bias = (
        random((M, K), 1).astype(dtype_of(kind)),
        random((K, N), 2, 0.2).astype(dtype_of(kind)),
        random((1, N), 3),
    )
    return Case(program, {"x": x}, {"w": w, "bias": bias}, {"y": x.astype(np.float32) @ w.astype(np.float32) + bias})


def layers(kind: str = "f16", count: int = 3) -> Case:
    """Rolled layers of two products; each fetches the other's weights before the barrier, across iterations too."""
    M, H = 24, 40
    weights = {f"w{n}{i}": random((H, H), 10 * n + i, 0.2).astype(dtype_of(kind)) for i in range(count) for n in (1, 2)}
    size = 2 * 24 * H * dtype_of(kind).itemsize
    buffers = [
        Buffer("x", str(dtype_of(kind)), (M, H), Layout.row_major((M, H)), "input", 0),
        plain("y", (M, H), "output"),
        padded("h", (M, H), "arena", 0, kind),
        padded("t", (M, H), "arena", 8192, kind),
        *(panels(n, (H, H), 24, p * size, kind) for p, n in enumerate(weights)),
    ]
    table = Table("t", ("a", "b"), tuple((f"w1{i}", f"w2{i}") for i in range(count)))
    relu = narrow(op("max", Acc(), const(0.0)), kind)
    shape, tile = (M, H, H), (16, 24)

    def half(name: str, a: str, b: str, out: str, other: str) -> Phase:
        return product_phase(
            name, a, Slot("t", b), out, shape, tile, (1, 1), kind, relu, prefetches=(Prefetch(other, "b"),)
        )

    inner = (Barrier(0), half("first", "h", "a", "t", "second"), Barrier(1), half("second", "t", "b", "h", "first"))
    raw = load("in", v("y"), v("x"), dtype=str(dtype_of(kind)))
    body = (
        elementwise("copy", ("x", "h"), (M, H), raw, prefetches=(Prefetch("first", "b"),)),
        Loop("l", count, inner, "t"),
        Barrier(2),
        elementwise("store", ("h", "y"), (M, H), wide("in", v("y"), v("x"), kind=kind)),
    )
    program = Program(
        "layers",
        tuple(buffers),
        body,
        (table,),
        inputs=("x",),
        outputs=("y",),
        arena_bytes=16384,
        weight_bytes=2 * count * size,
    )
    x = random((M, H), 9).astype(dtype_of(kind))
    h = x.astype(np.float32)
    for i in range(count):
        for n in (1, 2):
            h = np.maximum(h @ weights[f"w{n}{i}"].astype(np.float32), 0).astype(dtype_of(kind)).astype(np.float32)
    return Case(program, {"x": x}, weights, {"y": h})


def embedding(kind: str = "f16", tokens: int = 11, width: int = 40) -> Case:
    """Rows of a table chosen by the caller's indices, the first column replaced, and the largest of some integers."""
    table = random((30, width), 1).astype(dtype_of(kind))
    ids = np.array([3, 29, -1, 0, 7, 7, -30, 12, 5, 1, 2], np.int64)
    row = op("index", load("ids", v("y"), dtype="int64"), Const(30), dtype="int64")
    value = Select(op("lt", v("x"), Const(1)), const(-1.0), wide("table", row, v("x"), kind=kind))
    gather = Task(
        "nest",
        (
            Operand("ids", "ids", box((0, tokens, tokens))),
            Operand("table", "table", box((0, 30, 30), (0, width, width)), stable=True),
            Operand("out", "y", box((0, tokens, tokens), (0, width, width)), "write"),
        ),
        body=(For("y", tokens, (For("x", width, (Store("out", (v("y"), v("x")), value),), "vector"),)),),
    )
    most = Task(
        "nest",
        (Operand("ids", "ids", box((0, tokens, tokens))), Operand("out", "most", box((0, 1, 1)), "write")),
        body=(
            Reduce("top", "max", "z", tokens, load("ids", v("z"), dtype="int64")),
            Store("out", (Const(0),), Var("top", "int64")),
        ),
    )
    buffers = (
        plain("ids", (tokens,), "input", 0, "int64"),
        padded("table", (30, width), "weight", 0, kind),
        plain("y", (tokens, width), "output", 0),
        plain("most", (1,), "output", 1, "int64"),
    )
    body = (Phase("gather", (Axis("o", 1),), STRIDED, gather), Phase("most", (Axis("o", 1),), STRIDED, most))
    program = Program("embedding", buffers, body, inputs=("ids",), outputs=("y", "most"), weight_bytes=30 * width * 4)
    y = table[ids].astype(np.float32)
    y[:, 0] = -1
    return Case(program, {"ids": ids}, {"table": table}, {"y": y, "most": ids.max(keepdims=True)})


def hand_off(kind: str = "f16") -> Case:
    """Rows flow through the block's own memory to the next phase by counters; no barrier."""
    rows, columns = 16, 40
    double = op("mul", load("in", v("r"), v("x")), const(2.0))
    held = op("add", load("hold", v("x")), load("hold", op("mod", v("x") + 1, Const(columns), dtype="int64")))
    first = Task(
        "nest",
        (
            Operand("in", "x", box((v("r"), 1, rows), (0, columns, columns))),
            Operand("keep", "held", box((0, columns, columns)), "write"),
            Operand("hold", "held", box((0, columns, columns))),
            Operand("out", "h", box((v("r"), 1, rows), (0, columns, columns)), "write"),
        ),
        body=(
            For("x", columns, (Store("keep", (v("x"),), double),), "vector"),
            For("x", columns, (Store("out", (v("r"), v("x")), narrow(held, kind)),), "vector"),
        ),
        local=("held",),
    )
    place = (v("b") * 4 + v("y"), v("x"))
    second = Task(
        "nest",
        (
            Operand("in", "h", box((v("b") * 4, 4, rows), (0, columns, columns))),
            Operand("out", "y", box((v("b") * 4, 4, rows), (0, columns, columns)), "write"),
        ),
        body=(For("y", 4, (For("x", columns, (Store("out", place, wide("in", *place, kind=kind)),), "vector"),)),),
    )
    buffers = (
        plain("x", (rows, columns), "input"),
        padded("h", (rows, columns), "arena", 0, kind),
        plain("held", (columns,), "local"),
        plain("y", (rows, columns), "output"),
    )
    signals, waits = (Signal("blocks", (v("r") // 4,)),), (Wait("blocks", (v("b"),), Const(4)),)
    body = (
        Phase("double", (Axis("r", rows),), STRIDED, first, signals=signals),
        Phase("copy", (Axis("b", rows // 4),), STRIDED, second, waits=waits),
    )
    program = Program(
        "hand_off", buffers, body, counters=(Counter("blocks", (4,)),), inputs=("x",), outputs=("y",),
        arena_bytes=8192, scratch_bytes=columns * 4,
    )  # fmt: skip
    x = random((rows, columns), 1)
    y = (2 * x + 2 * np.roll(x, -1, 1)).astype(dtype_of(kind)).astype(np.float32)
    return Case(program, {"x": x}, {}, {"y": y})


FAMILIES = (norms, long_row, filled_left, split_sum, layers, embedding, hand_off)
