"""Every pass on random graphs: movements keep every element, expressions and contractions their values."""

from __future__ import annotations

import math

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from mononn_core.graph import Graph
from mononn_core.passes import pipeline
from tests.core.graphs import Net, assert_same, everything


@st.composite
def chains(draw: st.DrawFn) -> Graph:
    """A random chain of movements over [4, 6, 2]."""
    net = Net()
    x = net.input(4, 6, 2)
    for _ in range(draw(st.integers(1, 7))):
        shape = net.builder.types[x].shape
        kind = draw(st.sampled_from(["reshape", "transpose", "transpose", "slice", "expand"]))
        if kind == "transpose":
            x = net("transpose", x, perm=tuple(draw(st.permutations(range(len(shape))))))
        elif kind == "reshape":
            x = net("reshape", x, shape=draw(st.sampled_from(factorings(math.prod(shape)))))
        elif kind == "slice":
            axis = draw(st.integers(0, len(shape) - 1))
            start = draw(st.integers(0, shape[axis] - 1))
            step = draw(st.sampled_from([1, 1, 2, -1]))
            room = start + 1 if step < 0 else -(-(shape[axis] - start) // step)
            sizes = tuple(draw(st.integers(1, room)) if d == axis else n for d, n in enumerate(shape))
            starts = tuple(start if d == axis else 0 for d in range(len(shape)))
            x = net(
                "slice", x, starts=starts, sizes=sizes, steps=tuple(step if d == axis else 1 for d in range(len(shape)))
            )
        elif math.prod(shape) < 100:
            x = net("expand", x, shape=tuple(2 if n == 1 else n for n in (1, *shape)))
    return net.graph(x)


def factorings(size: int) -> list[tuple[int, ...]]:
    """Shapes of rank up to 4 with that many elements."""
    pairs = [(a, size // a) for a in range(1, size + 1) if size % a == 0]
    triples = [(a, b, r // b) for a, r in pairs for b in range(1, r + 1) if r % b == 0]
    return [(size,), *pairs, *triples, *((1, *t) for t in triples)]


@given(chains())
@settings(max_examples=150, deadline=None)
def test_chains_of_movements_keep_every_element(graph: Graph) -> None:
    after = everything(graph, 0)
    assert_same(graph, after, tolerance=0, seeds=1)
    assert len(after.nodes) <= len(graph.nodes)
    assert pipeline.run(after) is after


@st.composite
def expressions(draw: st.DrawFn) -> Graph:
    """A random graph of elementwise operators and reductions with broadcasting, shared parts and easy constants."""
    net = Net()
    pool = [net.input(2, 3), net.input(3), net.input(2, 1)]
    for _ in range(draw(st.integers(2, 12))):
        kind = draw(st.sampled_from(["binary", "binary", "unary", "constant", "expand", "cast", "where", "reduce"]))
        a, b = draw(st.sampled_from(pool)), draw(st.sampled_from(pool))
        if kind == "binary":
            pool.append(net(draw(st.sampled_from(["add", "sub", "mul", "max", "min"])), a, b))
        elif kind == "unary":
            pool.append(net(draw(st.sampled_from(["neg", "abs", "tanh", "sigmoid", "relu", "identity"])), a))
        elif kind == "constant":
            value = draw(st.sampled_from([0.0, 1.0, 2.0, -0.5, 0.25]))
            pool.append(net.const(np.full(draw(st.sampled_from([(), (1,), (3,), (2, 3)])), value)))
        elif kind == "expand":
            pool.append(net("expand", a, shape=np.broadcast_shapes(net.builder.types[a].shape, (2, 3))))
        elif kind == "cast":
            pool.append(net("cast", net("cast", a, to="float64"), to="float32"))
        elif kind == "where":
            pool.append(net("where", net("less", a, b), b, draw(st.sampled_from(pool))))
        else:
            rank = net.builder.types[a].rank
            pool.append(net("reduce_max", a, axes=tuple(range(rank)), keepdims=draw(st.booleans())) if rank else a)
    return net.graph(*dict.fromkeys(pool[-2:]))


@given(expressions())
@settings(max_examples=150, deadline=None)
def test_random_expressions_keep_their_values(graph: Graph) -> None:
    after = everything(graph, 2e-5)
    assert_same(graph, after, tolerance=2e-5, seeds=1)
    again = pipeline.run(after)
    assert pipeline.run(again) is again


@st.composite
def contractions(draw: st.DrawFn) -> Graph:
    """Products of vectors, matrices and batches, and convolutions of an image that others read too; in two types, of
    inputs and constants."""
    net = Net()
    dtype = draw(st.sampled_from(["float32", "float32", "float64"]))

    def tensor(*shape: int) -> str:
        if draw(st.booleans()):
            return net.input(*shape, dtype=dtype)
        return net.const(np.random.default_rng(len(shape)).standard_normal(shape), dtype)

    outputs = []
    for _ in range(draw(st.integers(1, 2))):
        a = tensor(*draw(st.sampled_from([(4,), (3, 4), (2, 3, 4)])))
        turned = draw(st.booleans())
        b = tensor(*draw(st.sampled_from([(4,), (5, 4), (2, 5, 4)] if turned else [(4,), (4, 5), (2, 4, 5)])))
        outputs.append(net("matmul", a, b, transpose_b=turned))
    if draw(st.booleans()):
        image = net("tanh", tensor(1, 5, 6, 4))
        widths = {key: (0, *draw(st.tuples(*[st.integers(0, 2)] * 2)), 0) for key in ("before", "after")}
        padded = net("pad", image, **widths, mode="constant", value=0.0)
        group = draw(st.sampled_from([1, 1, 2]))
        weight = tensor(draw(st.integers(1, 3)), 2, 4 // group, 6)
        spread = {key: draw(st.sampled_from([(1, 1), (2, 1)])) for key in ("strides", "dilations")}
        outputs += [net("conv", padded, weight, **spread, group=group), net("neg", image)]
    return net.graph(*outputs)


@given(contractions())
@settings(max_examples=100, deadline=None)
def test_random_contractions_keep_their_values(graph: Graph) -> None:
    everything(graph, 2e-5)
