"""Small Programs written by hand, each with inputs, weights and its answer in NumPy.

They exercise every part of the grammar: prefetch into a local slot, split contractions, counters, rolled loops over
tables, owned groups, worker-local temporaries, ragged tiles, blocked layouts and shared arena bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from mononn_core.graph import Origin
from mononn_core.program.expr import Acc, Cast, Const, Expr, Load, Select, Var, const, op
from mononn_core.program.tile import (
    Assign,
    Axis,
    Barrier,
    Box,
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
    Split,
    Store,
    Table,
    Task,
    Wait,
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
        results=store_tile(Acc() if value is None else value, i, j),
    )
    domain = (Axis("i", -(-M // m)), Axis("j", -(-N // n)))
    return Phase(name, domain, assign or Assign(), task, origin=origin(name), **rest)


def double_buffered_prefetch(layers: int = 3) -> Case:
    """Each rolled layer is two products; on entering one, workers fetch their first weight tile of the next."""
    M, N, steps = 5, 8, 4
    size = M * N * 4
    weights = {f"w{k}_{i}": random((N, N), 10 * k + i, 0.4) for i in range(layers) for k in (1, 2)}
    buffers = [buffer("x", (M, N), "input"), buffer("y", (M, N), "output")]
    buffers += [buffer(name, (N, N), "weight", p * N * N * 4) for p, name in enumerate(weights)]
    buffers += [buffer(n, (M, N), "arena", o) for n, o in (("h", 0), ("t", size + 32))]
    buffers += [buffer(f"slot{s}", (N, steps), "local", s * N * steps * 4) for s in (0, 1)]
    rows = tuple((f"w1_{i}", f"w2_{i}") for i in range(layers))
    loop = Loop(
        "layer",
        layers,
        (
            matmul_phase(
                "first",
                "h",
                Slot("layers", "w1"),
                "t",
                (M, N, N),
                (2, steps),
                relu(Acc()),
                prefetches=(Prefetch("second", "b", "slot1"),),
            ),
            Barrier(1),
            matmul_phase(
                "second",
                "t",
                Slot("layers", "w2"),
                "h",
                (M, N, N),
                (3, steps),
                prefetches=(Prefetch("first", "b", "slot0"),),
            ),
            Barrier(2),
        ),
        "layers",
    )
    body = (
        copy_phase("enter", "x", "h", (M, N), prefetches=(Prefetch("first", "b", "slot0"),)),
        Barrier(0),
        loop,
        copy_phase("leave", "h", "y", (M, N)),
    )
    program = Program(
        "double_buffered_prefetch",
        tuple(buffers),
        body,
        tables=(Table("layers", ("w1", "w2"), rows),),
        inputs=("x",),
        outputs=("y",),
        arena_bytes=2 * size + 64,
        weight_bytes=len(weights) * N * N * 4,
        scratch_bytes=2 * N * steps * 4,
    )
    h = x = random((M, N), 0)
    for i in range(layers):
        h = np.maximum(h @ weights[f"w1_{i}"], 0) @ weights[f"w2_{i}"]
    return Case(program, {"x": x}, weights, {"y": h})


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


def split_k(parts: int = 4) -> Case:
    """A contraction cut into parts along K; a phase of its own sums the partial results in order, adds a bias."""
    M, N, K, k = 4, 6, 15, 4
    i, s = v("i") * 2, v("s")
    split = Task(
        "matmul",
        (
            Operand("a", "x", box((i, 2, M), (s * k, k, K))),
            Operand("b", "w", box((s * k, k, K), (0, N, N)), stable=True),
            Operand("part", "partial", box((s, 1, parts), (i, 2, M), (0, N, N)), "partial"),
        ),
        results=(Result("part", ("m", "n"), (s, i + v("m"), v("n")), Acc()),),
        split=Split("s", parts, "partial"),
        mainloop=Mainloop("k", 2),
    )
    combine = Task(
        "nest",
        (
            Operand("part", "partial", box((0, parts, parts), (v("r"), 1, M), (0, N, N))),
            Operand("bias", "bias", box((0, N, N)), stable=True),
            Operand("out", "y", box((v("r"), 1, M), (0, N, N)), "write"),
        ),
        body=(
            For(
                "c",
                N,
                (
                    Reduce("sum", "add", "p", parts, load("part", v("p"), v("r"), v("c"))),
                    Store(
                        "out",
                        (v("r"), v("c")),
                        relu(op("add", Var("sum", F32), load("bias", v("c")))),
                    ),
                ),
                "vector",
            ),
        ),
    )
    program = Program(
        "split_k",
        (
            buffer("x", (M, K), "input"),
            buffer("w", (K, N), "weight", 0),
            buffer("bias", (N,), "weight", 384),
            buffer("partial", (parts, M, N), "arena", 64),
            buffer("y", (M, N), "output"),
        ),
        (
            Phase("product", (Axis("i", 2), Axis("s", parts)), Assign(), split, origin=origin("product")),
            Barrier(0),
            Phase("combine", (Axis("r", M),), Assign(), combine, origin=origin("combine", "Add")),
        ),
        inputs=("x",),
        outputs=("y",),
        arena_bytes=64 + parts * M * N * 4,
        weight_bytes=448,
    )
    x, weights = random((M, K), 1), {"w": random((K, N), 2), "bias": random((N,), 3)}
    return Case(program, {"x": x}, weights, {"y": np.maximum(x @ weights["w"] + weights["bias"], 0)})


def _scale_phase(name: str, source: str, target: str, factor: float, **rest: Any) -> Phase:
    """Tasks (i: 2 rows, j: 4 columns) of an [8, 8] matrix times a factor."""
    place = (v("i") * 2 + v("r"), v("j") * 4 + v("c"))
    tile = box((v("i") * 2, 2, 8), (v("j") * 4, 4, 8))
    body = Store("out", place, op("mul", load("in", *place), const(factor)))
    task = Task(
        "nest",
        (Operand("in", source, tile), Operand("out", target, tile, "write")),
        body=(For("r", 2, (For("c", 4, (body,), "vector"),)),),
    )
    return Phase(name, (Axis("i", 4), Axis("j", 2)), Assign(), task, origin=origin(name, "Mul"), **rest)


def _row_sum_phase(name: str, source: str, target: str, **rest: Any) -> Phase:
    """Tasks (i: 2 rows): every element plus its row's sum, of an [8, 8] matrix."""
    rows = box((v("i") * 2, 2, 8), (0, 8, 8))
    row = v("i") * 2 + v("r")
    body = (
        Reduce("sum", "add", "k", 8, load("in", row, v("k")), lanes=4),
        For(
            "c",
            8,
            (Store("out", (row, v("c")), op("add", load("in", row, v("c")), Var("sum", F32))),),
            "vector",
        ),
    )
    task = Task("nest", (Operand("in", source, rows), Operand("out", target, rows, "write")), body=(For("r", 2, body),))
    return Phase(name, (Axis("i", 4),), Assign(), task, origin=origin(name, "ReduceSum"), **rest)


def counter_hand_off() -> Case:
    """Row blocks flow from one phase to the next by counters; no barrier at all."""
    size = 8 * 8 * 4
    program = Program(
        "counter_hand_off",
        (
            buffer("x", (8, 8), "input"),
            buffer("a", (8, 8), "arena", 0),
            buffer("b", (8, 8), "arena", size),
            buffer("y", (8, 8), "output"),
        ),
        (
            _scale_phase("scale", "x", "a", 2.0, signals=(Signal("rows", (v("i"),)),)),
            _row_sum_phase(
                "sum",
                "a",
                "b",
                waits=(Wait("rows", (v("i"),), Const(2)),),
                signals=(Signal("rows", (v("i"),), 3),),
            ),
            _scale_phase("rescale", "b", "y", 0.5, waits=(Wait("rows", (v("i"),), Const(5)),)),
        ),
        counters=(Counter("rows", (4,)),),
        inputs=("x",),
        outputs=("y",),
        arena_bytes=2 * size,
    )
    x = random((8, 8), 4)
    a = x * 2
    return Case(program, {"x": x}, {}, {"y": (a + a.sum(axis=1, keepdims=True)) / 2})


def counter_loop(count: int = 4) -> Case:
    """A rolled loop whose hand-off is a counter that grows with the iteration; the barrier is for the way back."""
    size = 8 * 8 * 4
    iteration = v("t")
    loop = Loop(
        "t",
        count,
        (
            _scale_phase("scale", "a", "b", 0.5, signals=(Signal("rows", (v("i"),)),)),
            _row_sum_phase("sum", "b", "a", waits=(Wait("rows", (v("i"),), iteration * 2 + 2),)),
            Barrier(1),
        ),
        "none",
    )
    program = Program(
        "counter_loop",
        (
            buffer("x", (8, 8), "input"),
            buffer("a", (8, 8), "arena", 0),
            buffer("b", (8, 8), "arena", size),
            buffer("y", (8, 8), "output"),
        ),
        (
            copy_phase("enter", "x", "a", (8, 8)),
            Barrier(0),
            loop,
            copy_phase("leave", "a", "y", (8, 8)),
        ),
        tables=(Table("none", (), ((),) * count),),
        counters=(Counter("rows", (4,)),),
        inputs=("x",),
        outputs=("y",),
        arena_bytes=2 * size,
    )
    a = x = random((8, 8), 5)
    for _ in range(count):
        b = a * np.float32(0.5)
        a = b + b.sum(axis=1, keepdims=True)
    return Case(program, {"x": x}, {}, {"y": a})


def rolled_loop(layers: int = 3) -> Case:
    """Equal layers ``h = relu(h w + b)`` as one piece of code over a table that also alternates two arena buffers."""
    M, N = 3, 10
    size = M * N * 4
    weights: dict[str, Array] = {}
    buffers = [buffer("x", (M, N), "input"), buffer("y", (M, N), "output")]
    buffers += [buffer(f"h{p}", (M, N), "arena", p * 128) for p in (0, 1)]
    for i in range(layers):
        weights |= {f"w{i}": random((N, N), 20 + i, 0.4), f"b{i}": random((N,), 30 + i)}
        buffers += [buffer(f"w{i}", (N, N), "weight", i * 512), buffer(f"b{i}", (N,), "weight", i * 512 + 448)]
    rows = tuple((f"h{i % 2}", f"w{i}", f"b{i}", f"h{(i + 1) % 2}") for i in range(layers))
    column = v("j") * 4 + v("n")
    product = matmul_phase(
        "layer",
        Slot("layers", "in"),
        Slot("layers", "w"),
        Slot("layers", "out"),
        (M, N, N),
        (2, 4),
        relu(op("add", Acc(), load("bias", column))),
        extra=(Operand("bias", Slot("layers", "b"), box((v("j") * 4, 4, N)), stable=True),),
    )
    program = Program(
        "rolled_loop",
        tuple(buffers),
        (
            copy_phase("enter", "x", "h0", (M, N)),
            Barrier(0),
            Loop("l", layers, (product, Barrier(1)), "layers"),
            copy_phase("leave", f"h{layers % 2}", "y", (M, N)),
        ),
        tables=(Table("layers", ("in", "w", "b", "out"), rows),),
        inputs=("x",),
        outputs=("y",),
        arena_bytes=128 + size,
        weight_bytes=layers * 512,
    )
    h = x = random((M, N), 6)
    for i in range(layers):
        h = np.maximum(h @ weights[f"w{i}"] + weights[f"b{i}"], 0)
    return Case(program, {"x": x}, weights, {"y": h})


def owned_group() -> Case:
    """Three phases owned by rows: a product, its rows normalised, and a second product; no barrier between them."""
    M, N, K, L = 10, 6, 4, 5
    rows = Assign("owned", "rows", v("i"), 5)
    row = v("i") * 2 + v("r")
    rank = op("div", Var("total", F32), const(float(N)))
    norm = Task(
        "nest",
        (
            Operand("in", "h", box((v("i") * 2, 2, M), (0, N, N))),
            Operand("out", "t", box((v("i") * 2, 2, M), (0, N, N)), "write"),
        ),
        body=(
            For(
                "r",
                2,
                (
                    Reduce("total", "add", "k", N, load("in", row, v("k")), lanes=2),
                    Let("mean", rank),
                    For(
                        "c",
                        N,
                        (
                            Store(
                                "out",
                                (row, v("c")),
                                op("sub", load("in", row, v("c")), Var("mean", F32)),
                            ),
                        ),
                        "vector",
                    ),
                ),
            ),
        ),
    )
    program = Program(
        "owned_group",
        (
            buffer("x", (M, K), "input"),
            buffer("w", (K, N), "weight", 0),
            buffer("u", (N, L), "weight", 128),
            buffer("h", (M, N), "arena", 0, pad=2),
            buffer("t", (M, N), "arena", 320),
            buffer("y", (M, L), "output"),
        ),
        (
            matmul_phase("product", "x", "w", "h", (M, N, K), (2, 4), assign=rows),
            Phase("normalise", (Axis("i", 5),), rows, norm, origin=origin("normalise", "Sub")),
            matmul_phase("project", "t", "u", "y", (M, L, N), (2, 3), assign=rows),
        ),
        inputs=("x",),
        outputs=("y",),
        arena_bytes=640,
        weight_bytes=256,
    )
    x, weights = random((M, K), 7), {"w": random((K, N), 8), "u": random((N, L), 9)}
    h = x @ weights["w"]
    return Case(program, {"x": x}, weights, {"y": (h - h.mean(axis=1, keepdims=True)) @ weights["u"]})


def _tokens_phase(S: int, H: int, V: int) -> Phase:
    """Embedding: rows of a table by an index taken from the input."""
    index = op("index", load("ids", v("s"), dtype="int64"), Const(V))
    task = Task(
        "nest",
        (
            Operand("ids", "ids", box((v("s"), 1, S))),
            Operand("table", "table", box((0, V, V), (0, H, H)), stable=True),
            Operand("out", "h", box((v("s"), 1, S), (0, H, H)), "write"),
        ),
        body=(
            Let("token", index),
            For("c", H, (Store("out", (v("s"), v("c")), load("table", v("token"), v("c"))),), "vector"),
        ),
    )
    return Phase("embed", (Axis("s", S),), Assign("blocked"), task, origin=origin("embed", "Gather"))


def _attention_phase(S: int, heads: int, D: int) -> Phase:
    """Attention over the merged product's columns [q | k | v], heads side by side, a padding mask in the score."""
    H = heads * D
    rows, column = v("t") * 3, v("h") * D
    full = (0, S, S)
    masked = Select(
        op("gt", load("mask", v("j"), dtype="int64"), Const(0)),
        op("mul", Acc(), const(D**-0.5)),
        const(-1e9),
    )
    task = Task(
        "attention",
        (
            Operand("q", "qkv", box((rows, 3, S), (column, D, 3 * H))),
            Operand("k", "qkv", box(full, (column + H, D, 3 * H))),
            Operand("v", "qkv", box(full, (column + 2 * H, D, 3 * H))),
            Operand("mask", "mask", box(full)),
            Operand("out", "y", box((v("h"), 1, heads), (rows, 3, S), (0, D, D)), "write"),
        ),
        results=(Result("out", ("i", "d"), (v("h"), rows + v("i"), v("d")), Acc()),),
        prologue={"score": masked},
    )
    domain = (Axis("h", heads), Axis("t", -(-S // 3)))
    return Phase("attend", domain, Assign(order=("h", "t")), task, origin=origin("attend", "Attention"))


def tokens_attention() -> Case:
    """Embedding, one product for Q, K and V into a blocked layout, attention with a mask, heads split at the end."""
    S, V, heads, D = 7, 11, 2, 4
    H = heads * D
    blocked = Layout((((S, 4),), ((6, S * 4), (4, 1))), 6 * S * 4)
    program = Program(
        "tokens_attention",
        (
            buffer("ids", (S,), "input", 0, "int64"),
            buffer("mask", (S,), "input", 1, "int64"),
            buffer("table", (V, H), "weight", 0),
            buffer("w", (H, 3 * H), "weight", 384),
            buffer("h", (S, H), "arena", 0),
            Buffer("qkv", F32, (S, 3 * H), blocked, "arena", 256),
            buffer("y", (heads, S, D), "output"),
        ),
        (
            _tokens_phase(S, H, V),
            Barrier(0),
            matmul_phase("qkv", "h", "w", "qkv", (S, 3 * H, H), (4, 5)),
            Barrier(1),
            _attention_phase(S, heads, D),
        ),
        inputs=("ids", "mask"),
        outputs=("y",),
        arena_bytes=256 + 6 * S * 4 * 4,
        weight_bytes=384 + H * 3 * H * 4,
    )
    ids = np.array([3, -1, 0, 10, 3, 7, -11], dtype=np.int64)
    mask = np.array([1, 1, 0, 1, 1, 0, 1], dtype=np.int64)
    weights = {"table": random((V, H), 40), "w": random((H, 3 * H), 41, 0.5)}
    q, k, val = np.split(weights["table"][ids] @ weights["w"], 3, axis=1)
    heads_of = lambda t: t.reshape(S, heads, D).swapaxes(0, 1)  # noqa: E731
    score = np.where(mask > 0, heads_of(q) @ heads_of(k).swapaxes(1, 2) * np.float32(D**-0.5), np.float32(-1e9))
    weight = np.exp(score - score.max(axis=-1, keepdims=True))
    y = weight / weight.sum(axis=-1, keepdims=True) @ heads_of(val)
    return Case(program, {"ids": ids, "mask": mask}, weights, {"y": y})


def shared_arena() -> Case:
    """A chain of maps of different types whose dead buffers lend their bytes to later ones; one pads, one compares."""
    n = 12
    i = v("i") * 4 + v("c")
    tile = box((v("i") * 4, 4, n))

    def chain(name: str, source: str, target: str, value: Expr) -> Phase:
        task = Task(
            "nest",
            (Operand("in", source, tile), Operand("out", target, tile, "write")),
            body=(For("c", 4, (Store("out", (i,), value),), "vector"),),
        )
        return Phase(name, (Axis("i", 3),), Assign(), task, origin=origin(name, "Add"))

    shifted = Select(op("ge", i, Const(1)), load("in", i - 1, dtype="int32"), Const(-7, "int32"))
    pad = Task(
        "nest",
        (Operand("in", "c", box((0, n, n))), Operand("out", "y", tile, "write")),
        body=(For("c", 4, (Store("out", (i,), shifted),), "vector"),),
    )
    program = Program(
        "shared_arena",
        (
            buffer("x", (n,), "input"),
            buffer("a", (n,), "arena", 0),
            buffer("b", (n,), "arena", 64, "bool"),
            buffer("c", (n,), "arena", 16, "int32"),
            buffer("y", (n,), "output", 0, "int32"),
        ),
        (
            chain("double", "x", "a", op("mul", load("in", i), const(2.0))),
            Barrier(0),
            chain("test", "a", "b", op("gt", load("in", i), const(0.5))),
            Barrier(1),
            chain("count", "b", "c", Cast(load("in", i, dtype="bool"), "int32")),
            Barrier(2),
            Phase("shift", (Axis("i", 3),), Assign(), pad, origin=origin("shift", "Pad")),
        ),
        inputs=("x",),
        outputs=("y",),
        arena_bytes=76,
    )
    x = random((n,), 50)
    counted = (x * 2 > 0.5).astype(np.int32)
    return Case(program, {"x": x}, {}, {"y": np.concatenate([[np.int32(-7)], counted[:-1]]).astype(np.int32)})


def local_rows() -> Case:
    """Softmax over rows that keeps the exponentials of a row in a worker-local buffer, rows of a ragged last task."""
    R, C, tile = 7, 9, 3
    rows = box((v("i") * tile, tile, R), (0, C, C))
    row = v("i") * tile + v("r")
    keep = op("exp", op("sub", load("in", row, v("c")), Var("top", F32)))
    body = (
        Reduce("top", "max", "k", C, load("in", row, v("k"))),
        For("c", C, (Store("save", (v("c"),), keep),), "vector"),
        Reduce("total", "add", "k", C, load("kept", v("k"))),
        For(
            "c",
            C,
            (Store("out", (row, v("c")), op("div", load("kept", v("c")), Var("total", F32))),),
            "vector",
        ),
    )
    task = Task(
        "nest",
        (
            Operand("in", "x", rows),
            Operand("save", "row", box((0, C, C)), "write"),
            Operand("kept", "row", box((0, C, C))),
            Operand("out", "y", rows, "write"),
        ),
        body=(For("r", tile, body, bound=Const(R) - v("i") * tile),),
        local=("row",),
    )
    program = Program(
        "local_rows",
        (buffer("x", (R, C), "input"), buffer("row", (C,), "local", 0), buffer("y", (R, C), "output")),
        (Phase("softmax", (Axis("i", 3),), Assign(), task, origin=origin("softmax", "Softmax")),),
        inputs=("x",),
        outputs=("y",),
        scratch_bytes=64,
    )
    x = random((R, C), 60)
    weight = np.exp(x - x.max(axis=1, keepdims=True))
    return Case(program, {"x": x}, {}, {"y": weight / weight.sum(axis=1, keepdims=True)})


CASES: dict[str, Callable[[], Case]] = {
    f.__name__: f
    for f in (
        double_buffered_prefetch,
        split_k,
        counter_hand_off,
        counter_loop,
        rolled_loop,
        owned_group,
        tokens_attention,
        shared_arena,
        local_rows,
    )
}
