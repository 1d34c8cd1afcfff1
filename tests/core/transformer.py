"""A transformer encoder written by hand as a rolled Program, of any size: BERT-base for timing, tiny for running."""

from __future__ import annotations

from typing import Any

import numpy as np

from mononn_core.program.expr import Acc, Expr, Var, const, op
from mononn_core.program.ir import (
    Assign,
    Axis,
    Barrier,
    For,
    Let,
    Loop,
    Operand,
    Phase,
    Program,
    Reduce,
    Result,
    Slot,
    Store,
    Table,
    Task,
)
from tests.core.build import F32, Array, Case, box, buffer, copy_phase, load, matmul_phase, origin, random, v

WEIGHTS = ("w_qkv", "w_out", "w_up", "w_down", "b_qkv", "b_out", "b_up", "b_down", "gamma1", "gamma2")


def _weight_shapes(H: int, F: int) -> dict[str, tuple[int, ...]]:
    return dict(
        zip(
            WEIGHTS,
            ((H, 3 * H), (H, H), (H, F), (F, H), (3 * H,), (H,), (F,), (H,), (H,), (H,)),
            strict=True,
        )
    )


def _bias(name: str, tile: int, extent: int) -> Operand:
    return Operand("bias", Slot("layers", name), box((v("j") * tile, tile, extent)), stable=True)


def _product(name: str, a: str, out: str, sizes: tuple[int, int, int], tile: tuple[int, int], **rest: Any) -> Phase:
    """``out = a w_name + b_name``, with ReLU for the first half of the feed-forward, the residual for the others."""
    n = tile[1]
    biased: Expr = op("add", Acc(), load("bias", v("j") * n + v("n")))
    extra = [_bias(f"b_{name}", n, sizes[1])]
    if name == "up":
        biased = op("max", biased, const(0.0))
    elif name != "qkv":
        place = (v("i") * tile[0] + v("m"), v("j") * n + v("n"))
        residual = box((v("i") * tile[0], tile[0], sizes[0]), (v("j") * n, n, sizes[1]))
        extra.append(Operand("residual", "h" if name == "out" else "u", residual))
        biased = op("add", biased, load("residual", *place))
    return matmul_phase(name, a, Slot("layers", f"w_{name}"), out, sizes, tile, biased, tuple(extra), **rest)


def _norm(name: str, source: str, target: str, gamma: str, S: int, H: int, rows: int, assign: Assign) -> Phase:
    """Rows divided by their root mean square, times gamma."""
    tile = box((v("i") * rows, rows, S), (0, H, H))
    row = v("i") * rows + v("r")
    scale = op("reciprocal", op("sqrt", op("div", Var("squares", F32), const(float(H)))))
    value = op("mul", op("mul", load("in", row, v("c")), Var("scale", F32)), load("gamma", v("c")))
    body = (
        Reduce("squares", "add", "k", H, op("mul", load("in", row, v("k")), load("in", row, v("k")))),
        Let("scale", scale),
        For("c", H, (Store("out", (row, v("c")), value),), "vector"),
    )
    operands = (
        Operand("in", source, tile),
        Operand("gamma", Slot("layers", gamma), box((0, H, H)), stable=True),
        Operand("out", target, tile, "write"),
    )
    task = Task("nest", operands, body=(For("r", rows, body, bound=S - v("i") * rows),))
    return Phase(name, (Axis("i", -(-S // rows)),), assign, task, origin=origin(name, "LayerNormalization"))


def _attention(S: int, H: int, heads: int, rows: int) -> Phase:
    D = H // heads
    column, full = v("h") * D, (0, S, S)
    task = Task(
        "attention",
        (
            Operand("q", "qkv", box((v("t") * rows, rows, S), (column, D, 3 * H))),
            Operand("k", "qkv", box(full, (column + H, D, 3 * H))),
            Operand("v", "qkv", box(full, (column + 2 * H, D, 3 * H))),
            Operand("out", "context", box((v("t") * rows, rows, S), (column, D, H)), "write"),
        ),
        results=(Result("out", ("m", "d"), (v("t") * rows + v("m"), column + v("d")), Acc()),),
        prologue={"score": op("mul", Acc(), const(D**-0.5))},
    )
    domain = (Axis("h", heads), Axis("t", -(-S // rows)))
    return Phase("attention", domain, Assign("strided"), task, origin=origin("attention", "Attention"))


def transformer(S: int, H: int, F: int, heads: int, layers: int, m: int, n: int) -> Case:
    """Tiles of m rows and n columns. The output product, both norms and the residuals are owned by row blocks."""
    shapes = _weight_shapes(H, F)
    buffers = [buffer("x", (S, H), "input"), buffer("y", (S, H), "output")]
    offset, weights, rows = 0, {}, []
    for layer in range(layers):
        rows.append(tuple(f"{name}.{layer}" for name in WEIGHTS))
        for number, (name, shape) in enumerate(shapes.items()):
            weights[f"{name}.{layer}"] = (shape, layer * 100 + number)
            buffers.append(buffer(f"{name}.{layer}", shape, "weight", offset))
            offset += int(np.prod(shape)) * 4
    small, wide = S * H * 4, S * F * 4
    arena = {"h": (0, H), "t": (small, H), "u": (2 * small, H), "context": (3 * small, H)}
    arena |= {"qkv": (4 * small, 3 * H), "f": (4 * small, F)}
    buffers += [buffer(name, (S, columns), "arena", at) for name, (at, columns) in arena.items()]
    owned = Assign("owned", "rows", v("i"), -(-S // m))
    loop = (
        _product("qkv", "h", "qkv", (S, 3 * H, H), (m, n)),
        Barrier(1),
        _attention(S, H, heads, m),
        Barrier(2),
        _product("out", "context", "t", (S, H, H), (m, n), assign=owned),
        _norm("norm1", "t", "u", "gamma1", S, H, m, owned),
        Barrier(3),
        _product("up", "u", "f", (S, F, H), (m, n)),
        Barrier(4),
        _product("down", "f", "t", (S, H, F), (m, n), assign=owned),
        _norm("norm2", "t", "h", "gamma2", S, H, m, owned),
        Barrier(5),
    )
    program = Program(
        "transformer",
        tuple(buffers),
        (
            copy_phase("enter", "x", "h", (S, H)),
            Barrier(0),
            Loop("layer", layers, loop, "layers"),
            copy_phase("leave", "h", "y", (S, H)),
        ),
        tables=(Table("layers", WEIGHTS, tuple(rows)),),
        inputs=("x",),
        outputs=("y",),
        arena_bytes=4 * small + max(3 * small, wide),
        weight_bytes=offset,
    )
    values = {k: random(shape, seed, shape[0] ** -0.5) for k, (shape, seed) in weights.items()} if S < 64 else {}
    x = random((S, H), 1)
    return Case(program, {"x": x}, values, {"y": _reference(x, values, layers, heads)} if values else {})


def _reference(h: Array, weights: dict[str, Array], layers: int, heads: int) -> Array:
    S, H = h.shape
    for i in range(layers):
        w = {name: weights[f"{name}.{i}"] for name in WEIGHTS}
        q, k, value = (t.reshape(S, heads, -1).swapaxes(0, 1) for t in np.split(h @ w["w_qkv"] + w["b_qkv"], 3, axis=1))
        score = q @ k.swapaxes(1, 2) * np.float32((H // heads) ** -0.5)
        p = np.exp(score - score.max(axis=-1, keepdims=True))
        context = (p / p.sum(axis=-1, keepdims=True) @ value).swapaxes(0, 1).reshape(S, H)
        t = context @ w["w_out"] + w["b_out"] + h
        u = t / np.sqrt((t * t).mean(axis=1, keepdims=True)) * w["gamma1"]
        t = np.maximum(u @ w["w_up"] + w["b_up"], 0) @ w["w_down"] + w["b_down"] + u
        h = t / np.sqrt((t * t).mean(axis=1, keepdims=True)) * w["gamma2"]
    return h


def tiny_transformer() -> Case:
    """Two layers that the virtual machine runs in a moment; ragged tiles everywhere."""
    return transformer(S=7, H=12, F=20, heads=3, layers=2, m=2, n=5)


def bert_base() -> Program:
    """BERT-base's encoder: 12 layers, 128 tokens."""
    return transformer(S=128, H=768, F=3072, heads=12, layers=12, m=32, n=48).program
