"""Small Programs about data: gathers, attention, blocked layouts, shared bytes, worker-local temporaries."""

from __future__ import annotations

import numpy as np

from mononn_core.program.expr import Acc, Cast, Const, Expr, Select, Var, const, op
from mononn_core.program.ir import (
    Assign,
    Axis,
    Barrier,
    Buffer,
    For,
    Layout,
    Let,
    Operand,
    Phase,
    Program,
    Reduce,
    Result,
    Store,
    Task,
)
from tests.core.build import F32, Case, box, buffer, load, matmul_phase, origin, random, v


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
    return Phase("embed", (Axis("s", S),), Assign("strided"), task, origin=origin("embed", "Gather"))


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
        {"at_once": 2},
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
