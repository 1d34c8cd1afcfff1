"""Small Programs about order: prefetch, split contraction, counters, a rolled loop, an owned group."""

from __future__ import annotations

from typing import Any

import numpy as np

from mononn_core.program.expr import Acc, Const, Var, const, op
from mononn_core.program.ir import (
    Assign,
    Axis,
    Barrier,
    Counter,
    For,
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
from tests.core.build import F32, Array, Case, box, buffer, copy_phase, load, matmul_phase, origin, random, relu, v


def _fetching(name: str, number: int, M: int, N: int, steps: int) -> Phase:
    """Product 1 (h to t, ReLU) or 2 (t to h) of a layer, which fetches the first weight tile of the other one."""
    first = number == 1
    source, target, other = ("h", "t", "second") if first else ("t", "h", "first")
    return matmul_phase(
        name,
        source,
        Slot("layers", f"w{number}"),
        target,
        (M, N, N),
        (number + 1, steps),
        relu(Acc()) if first else Acc(),
        prefetches=(Prefetch(other, "b", f"slot{number % 2}"),),
    )


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
    body = (
        copy_phase("enter", "x", "h", (M, N), prefetches=(Prefetch("first", "b", "slot0"),)),
        Barrier(0),
        Loop(
            "layer",
            layers,
            (_fetching("first", 1, M, N, steps), Barrier(1), _fetching("second", 2, M, N, steps), Barrier(2)),
            "layers",
        ),
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


def _combine_phase(parts: int, M: int, N: int) -> Phase:
    """``y = relu(sum of the parts + bias)``, row by row."""
    task = Task(
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
    return Phase("combine", (Axis("r", M),), Assign(), task, origin=origin("combine", "Add"))


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
        {"panel": 0},
        results=(Result("part", ("m", "n"), (s, i + v("m"), v("n")), Acc()),),
        split=Split("s", parts, "partial"),
        mainloop=Mainloop("k", 2),
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
            _combine_phase(parts, M, N),
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
        Reduce("sum", "add", "k", 8, load("in", row, v("k"))),
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


def _centre_phase(M: int, N: int, assign: Assign) -> Phase:
    """Rows of h minus their mean, into t."""
    row = v("i") * 2 + v("r")
    task = Task(
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
                    Reduce("total", "add", "k", N, load("in", row, v("k"))),
                    Let("mean", op("div", Var("total", F32), const(float(N)))),
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
    return Phase("normalise", (Axis("i", 5),), assign, task, origin=origin("normalise", "Sub"))


def owned_group() -> Case:
    """Three phases owned by rows: a product, its rows normalised, and a second product; no barrier between them."""
    M, N, K, L = 10, 6, 4, 5
    rows = Assign("owned", "rows", v("i"), 5)
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
            _centre_phase(M, N, rows),
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
