"""Shorter sequences: what is proven runs padded as a longer one, and what is not is refused."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import TensorProto

from mononn_core import compiler
from mononn_core.compiler.padding import Padding, graphs
from mononn_core.compiler.padding.bounds import is_ordinary, rounded
from mononn_core.errors import InputError
from mononn_core.graph import Graph
from mononn_core.importer import Imported
from mononn_core.ops.evaluate import run as evaluate
from mononn_core.runtime import loading
from tests.core.networks import Builder

WIDTH, HEADS, BATCH = 32, 2, 2
LOWEST = float(np.finfo(np.float32).min)
Body = Callable[[Builder, str, str], str]
"""Of states [batch, length, WIDTH] and a mask [batch, length] of integers, states."""
Feed = dict[str, np.ndarray]


def number(b: Builder, value: float) -> str:
    return b.constant(np.array(value, np.float32))


def length_of(b: Builder, x: str) -> str:
    return b.add("Gather", b.add("Shape", x), b.constant(np.array(1)))


def added(b: Builder, mask: str, value: float) -> str:
    """[batch, 1, 1, length]: nothing where the mask is one, the value where it is zero."""
    real = b.add("Unsqueeze", b.add("Cast", mask, to=TensorProto.FLOAT), b.ints(1, 2))
    return b.add("Mul", b.add("Sub", number(b, 1), real), number(b, value))


def kept(b: Builder, mask: str, *axes: int) -> str:
    return b.add("Unsqueeze", b.add("Cast", mask, to=TensorProto.BOOL), b.ints(*axes))


def chosen(b: Builder, condition: str, value: float) -> str:
    return b.add("Where", condition, number(b, 0), number(b, value))


def earlier(b: Builder, x: str) -> str:
    """[length, length]: whether a key is no later than a query."""
    places = b.add("Range", b.constant(np.array(0)), length_of(b, x), b.constant(np.array(1)))
    return b.add("LessOrEqual", b.add("Unsqueeze", places, b.ints(0)), b.add("Unsqueeze", places, b.ints(1)))


def attention(b: Builder, x: str, bias: str) -> str:
    def heads(name: str) -> str:
        return b.add("Transpose", b.add("Reshape", name, b.ints(0, 0, HEADS, WIDTH // HEADS)), perm=[0, 2, 1, 3])

    q, k, v = (heads(b.linear(x, WIDTH, WIDTH)) for _ in range(3))
    scores = b.add("MatMul", q, b.add("Transpose", k, perm=[0, 1, 3, 2]))
    weights = b.add("Softmax", b.add("Add", scores, bias) if bias else scores, axis=-1)
    context = b.add("Transpose", b.add("MatMul", weights, v), perm=[0, 2, 1, 3])
    joined = b.add("Add", b.add("Reshape", context, b.ints(0, 0, WIDTH)), x)
    return b.add("LayerNormalization", joined, b.weight(WIDTH), b.weight(WIDTH))


def masked(value: float) -> Body:
    return lambda b, x, mask: attention(b, x, added(b, mask, value))


def infinite(b: Builder, x: str, mask: str) -> str:
    return attention(b, x, chosen(b, kept(b, mask, 1, 2), float("-inf")))


def causal(value: float) -> Body:
    def body(b: Builder, x: str, mask: str) -> str:
        return attention(b, x, chosen(b, b.add("And", earlier(b, x), kept(b, mask, 1, 2)), value))

    return body


def rows_and_columns(b: Builder, x: str, mask: str) -> str:
    """A position that the mask leaves out attends to nothing: what it gets depends on how many there are."""
    return attention(b, x, chosen(b, b.add("And", kept(b, mask, 1, 3), kept(b, mask, 1, 2)), LOWEST))


def rows_joined(b: Builder, x: str, mask: str) -> str:
    """Batch and length as one axis."""
    rows = b.add("Tanh", b.linear(b.add("Reshape", x, b.ints(-1, WIDTH)), WIDTH, WIDTH))
    return b.add("Reshape", rows, b.add("Shape", x))


def masked_mean(b: Builder, x: str, mask: str) -> str:
    """Taken from every position, as a pooled state is computed."""
    weights = b.add("Unsqueeze", b.add("Cast", mask, to=TensorProto.FLOAT), b.ints(2))
    total = b.add("ReduceSum", b.add("Mul", x, weights), b.ints(1), keepdims=1)
    return b.add("Sub", x, b.add("Div", total, b.add("ReduceSum", weights, b.ints(1), keepdims=1)))


def first_beside(b: Builder, x: str, mask: str) -> str:
    """A state of its own put in front, and taken away again; the first one's added to all."""
    own = b.add("Expand", b.weight(1, 1, WIDTH), b.add("Concat", b.ints(BATCH), b.ints(1, WIDTH), axis=0))
    both = b.add("Tanh", b.add("Concat", own, x, axis=1))
    first = b.add("Slice", both, b.ints(0), b.ints(1), b.ints(1))
    return b.add("Add", b.add("Slice", both, b.ints(1), b.ints(1 << 30), b.ints(1)), first)


def by_position(b: Builder, x: str, mask: str) -> str:
    """Rows of a table: counted where the mask is one."""
    counted = b.add("Mul", b.add("CumSum", mask, b.constant(np.array(1))), mask)
    return b.add("Add", x, b.add("Gather", b.weight(64, WIDTH), counted))


def from_the_end(b: Builder, mask: str) -> str:
    """How many positions the mask keeps from each on."""
    found = b.add("CumSum", mask, b.constant(np.array(1)), reverse=1)
    return b.add("Unsqueeze", b.add("Cast", found, to=TensorProto.FLOAT), b.ints(2))


def flat_mask(b: Builder, x: str, mask: str) -> str:
    """The mask read by its places in all of the batch, as exporters write it."""
    count = length_of(b, x)
    places = b.add("Range", b.constant(np.array(0)), count, b.constant(np.array(1)))
    lines = b.add("Mul", b.constant(np.arange(BATCH).reshape(BATCH, 1)), count)
    taken = b.add("Gather", b.add("Reshape", mask, b.ints(-1)), b.add("Add", lines, places), axis=0)
    return attention(b, x, chosen(b, kept(b, taken, 1, 2), float("-inf")))


def of_each_place(b: Builder, x: str, mask: str) -> str:
    pixels = b.add("Unsqueeze", b.add("Transpose", x, perm=[0, 2, 1]), b.ints(2))
    y = b.add("Conv", pixels, b.weight(WIDTH, WIDTH, 1, 1))
    return b.add("Transpose", b.add("Squeeze", y, b.ints(2)), perm=[0, 2, 1])


def replaced(b: Builder, x: str, mask: str) -> str:
    """Scores set to -5, which leaves some weight."""
    scores = b.add("MatMul", b.linear(x, WIDTH, WIDTH), b.add("Transpose", x, perm=[0, 2, 1]))
    left = b.add("Where", kept(b, mask, 1), scores, number(b, -5))
    return b.add("MatMul", b.add("Softmax", left, axis=-1), x)


def product_over_all(b: Builder, x: str, mask: str) -> str:
    """What is one half where there is nothing."""
    half = b.add("Sigmoid", x)
    return b.add("MatMul", x, b.add("MatMul", b.add("Transpose", half, perm=[0, 2, 1]), half))


def one_behind(b: Builder, x: str) -> str:
    """Each position's next one; the last one's is a state of its own."""
    own = b.add("Expand", b.weight(1, 1, WIDTH), b.add("Concat", b.ints(BATCH), b.ints(1, WIDTH), axis=0))
    return b.add("Slice", b.add("Concat", x, own, axis=1), b.ints(1), b.ints(1 << 30), b.ints(1))


def counted_back(b: Builder, x: str, mask: str) -> str:
    """The last, by an index that a run computes."""
    zero = b.constant(np.array(0))
    back = b.add("Neg", b.add("Gather", b.add("Gather", mask, zero, axis=1), zero, axis=0))
    return b.add("Add", x, b.add("Unsqueeze", b.add("Gather", x, back, axis=1), b.ints(1)))


def of_neighbours(b: Builder, x: str, mask: str) -> str:
    line = b.add("Transpose", x, perm=[0, 2, 1])
    y = b.add("Conv", line, b.weight(WIDTH, WIDTH, 3), b.weight(WIDTH), pads=[1, 1])
    return b.add("Transpose", b.add("Conv", y, b.weight(WIDTH, WIDTH, 3), pads=[1, 1]), perm=[0, 2, 1])


def last(b: Builder, x: str, mask: str) -> str:
    return b.add("Add", x, b.add("Gather", x, b.ints(-1), axis=1))


def per_length(b: Builder, x: str, mask: str) -> str:
    return b.add("Div", x, b.add("Cast", length_of(b, x), to=TensorProto.FLOAT))


def undefined(b: Builder, x: str, mask: str) -> str:
    """States that are no numbers where all of a row is zero: a zero weight does not take them away."""
    size = b.add("ReduceSum", b.add("Mul", x, x), b.ints(2), keepdims=1)
    weights = b.add("Unsqueeze", b.add("Cast", mask, to=TensorProto.FLOAT), b.ints(1))
    return b.add("Add", x, b.add("MatMul", weights, b.add("Div", x, size)))


PROVEN: dict[str, Body] = {
    "each position alone": lambda b, x, mask: b.add("Tanh", x),
    "a mask added": masked(LOWEST),
    "a mask of minus infinity": infinite,
    "causal": causal(LOWEST),
    "causal, minus infinity": causal(float("-inf")),
    "batch and length as one axis": rows_joined,
    "a mean of what the mask keeps": masked_mean,
    "a state in front": first_beside,
    "positions counted": by_position,
    "a mask read flat": flat_mask,
    "sums up to each": lambda b, x, mask: b.add("CumSum", x, b.constant(np.array(1)), exclusive=1),
    "a mask counted from its end": lambda b, x, mask: b.add("Add", x, from_the_end(b, mask)),
    "a convolution of single pixels": of_each_place,
}
REFUSED: dict[str, Body] = {
    "no mask": lambda b, x, mask: attention(b, x, ""),
    "a mask that leaves some weight": masked(-5.0),
    "scores set to little": replaced,
    "rows masked too": rows_and_columns,
    "a product over all": product_over_all,
    "sums from each on": lambda b, x, mask: b.add("CumSum", b.add("Exp", x), b.constant(np.array(1)), reverse=1),
    "the next": lambda b, x, mask: one_behind(b, x),
    "the next one added": lambda b, x, mask: b.add("Add", x, one_behind(b, x)),
    "a mean of all": lambda b, x, mask: b.add("Sub", x, b.add("ReduceMean", x, b.ints(1), keepdims=1)),
    "the smallest of all": lambda b, x, mask: b.add("Sub", x, b.add("ReduceMin", b.add("Mul", x, x), b.ints(1))),
    "neighbours": of_neighbours,
    "the last": last,
    "the last, counted back": counted_back,
    "the length as a number": per_length,
    "undefined where there is nothing": undefined,
}


def model(*bodies: Body) -> bytes:
    b = Builder("lengths")
    x = "x"
    for body in bodies:
        x = body(b, x, "mask")
    b.add("Identity", x, output="y")
    edges = ("batch", "length", WIDTH)
    inputs = {"x": (TensorProto.FLOAT, edges), "mask": (TensorProto.INT64, edges[:2])}
    return b.model(inputs, {"y": edges})  # type: ignore[arg-type]


def shapes(length: int) -> dict[str, tuple[int, ...]]:
    return {"x": (BATCH, length, WIDTH), "mask": (BATCH, length)}


def feed(length: int) -> Feed:
    """The second sequence of the batch is shorter still."""
    random = np.random.default_rng(length)
    mask = np.ones((BATCH, length), np.int64)
    mask[1, max(length // 2, 1) :] = 0
    return {"x": random.standard_normal((BATCH, length, WIDTH)).astype(np.float32), "mask": mask}


def padded(values: Feed, length: int) -> Feed:
    return {n: np.pad(v, [(0, 0), (0, length - v.shape[1]), (0, 0)][: v.ndim]) for n, v in values.items()}


def proven(long: Graph, short: Graph) -> bool:
    return Padding(long, {"x": (1,), "mask": (1,)}).ends(short) == {"y": (1,)}


def check(long: Graph, short: Graph, many: int, few: int) -> bool:
    values = feed(few)
    with np.errstate(all="ignore"):
        whole, part = evaluate(long, padded(values, many))["y"], evaluate(short, values)["y"]
    return np.allclose(whole[:, :few], part, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", PROVEN)
def test_proven_networks_answer_as_at_their_own_length(name: str) -> None:
    imported = Imported(model(PROVEN[name]))
    with compiler.compile(model(PROVEN[name]), shapes=[shapes(12)], threads=2) as session:
        assert [s.least for s in session.specialisations[0].shorter if "length" in str(s)] == [1]
        for length in (5, 12, 7, 11, 1, 6):
            values = feed(length)
            want = evaluate(imported.graph(shapes(length)), values)["y"]
            found = session.run(values)["y"]
            assert found.shape == want.shape
            np.testing.assert_allclose(found, want, rtol=1e-4, atol=2e-5)


def test_equal_layers_are_looked_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    placed: list[str] = []
    whole = graphs.place
    monkeypatch.setattr(graphs, "place", lambda *given: (placed.append(given[2].op), whole(*given))[1])

    def steps(layers: int) -> int:
        def body(b: Builder, x: str, mask: str) -> str:
            for layer in range(layers):
                x = b.add("LayerNormalization", x, b.constant(np.linspace(0.5, 2 + layer, WIDTH, dtype=np.float32)))
                weights = np.linspace(-0.5 - layer / 100, 0.5, WIDTH * WIDTH, dtype=np.float32)
                x = b.add("Relu", b.add("MatMul", x, b.constant(weights.reshape(WIDTH, WIDTH))))
            return x

        imported = Imported(model(body))
        padding = Padding(imported.graph(shapes(12)), {"x": (1,), "mask": (1,)})
        placed.clear()
        assert padding.ends(imported.graph(shapes(9))) == {"y": (1,)}
        return len(placed)

    assert steps(3) == steps(6)


sizes = st.floats(-(2.0**127), 2.0**127, width=32) | st.sampled_from(
    [np.nextafter(2.0**16, end) for end in (0, np.inf)]
)


@given(sizes, sizes)
def test_rounded_bounds_hold_what_the_others_do(a: float, b: float) -> None:
    low, high = min(a, b), max(a, b)
    found = rounded((low, high))
    assert found is not None and found[0] <= low and high <= found[1]
    assert (found[0] < 0, found[1] > 0, found[0] == 0, found[1] == 0) == (low < 0, high > 0, low == 0, high == 0)
    assert is_ordinary(found) == is_ordinary((low, high))


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_not_proven_is_refused(name: str) -> None:
    imported = Imported(model(REFUSED[name]))
    long, short = imported.graph(shapes(9)), imported.graph(shapes(6))
    assert not proven(long, short)
    assert not check(long, short, 9, 6), "it may as well be proven"


def test_a_mask_of_which_it_is_not_known_whether_it_is_enough_is_refused() -> None:
    """-10,000 leaves nothing beside scores of usual sizes, which nothing says these are."""
    imported = Imported(model(masked(-10000.0)))
    long, short = imported.graph(shapes(9)), imported.graph(shapes(6))
    assert check(long, short, 9, 6) and not proven(long, short)


def test_an_index_of_nowhere_is_not_read_in_the_padding() -> None:
    """Zeros less one count from the end; of a table that ends before, they would end the run."""
    b = Builder("table")
    b.add("Gather", b.weight(4, WIDTH), b.add("Sub", b.add("Mul", "ids", "ids"), b.ints(5)), output="y")
    edges = (1, "length")
    imported = Imported(b.model({"ids": (TensorProto.INT64, edges)}, {"y": (*edges, WIDTH)}))  # type: ignore[arg-type]
    long, short = (imported.graph({"ids": (1, length)}) for length in (4, 3))
    assert Padding(long, {"ids": (1,)}).ends(short) is None


def test_refusals_name_the_lengths_that_there_are(tmp_path: Path) -> None:
    two = [shapes(4), shapes(8)]
    refused, compiled = (compiler.compile(model(body), shapes=two, threads=2) for body in (last, infinite))
    with (
        refused,
        pytest.raises(InputError, match=r"not compiled for x=2x6x32 mask=2x6; give x=2x4x32 mask=2x4 \(or a b"),
    ):
        refused.run(feed(6))
    with compiled, pytest.raises(InputError, match=r"mask=2x8 \(or a batch from 1 on, or a length from 5 on\)$"):
        compiled.run(feed(9))
    uneven = {"x": feed(6)["x"], "mask": feed(7)["mask"]}
    compiled.save(tmp_path / "x.mono")
    with loading.load(tmp_path / "x.mono") as session, pytest.raises(InputError, match="not compiled for"):
        session.run(uneven)


def test_buffers_of_a_shorter_sequence_are_read_and_written_in_every_run() -> None:
    with compiler.compile(model(infinite), shapes=[shapes(8)], threads=2) as session:
        values, y = padded(feed(3), 6), np.empty((BATCH, 6, WIDTH), np.float32)
        binding = session.bind(values, {"y": y})
        binding.run()
        first = y.copy()
        values["x"][...], values["mask"][...] = feed(6)["x"], feed(6)["mask"]
        binding.run()
        np.testing.assert_array_equal(y, session.run(feed(6))["y"])
        values["x"][...], values["mask"][...] = padded(feed(3), 6)["x"], padded(feed(3), 6)["mask"]
        binding.run()
        np.testing.assert_array_equal(y, first)


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.sampled_from(sorted({**PROVEN, **REFUSED})), min_size=1, max_size=3),
    st.integers(2, 9),
    st.data(),
)
def test_whatever_is_proven_is_so(names: list[str], many: int, data: st.DataObject) -> None:
    few = data.draw(st.integers(1, many - 1))
    imported = Imported(model(*({**PROVEN, **REFUSED}[name] for name in names)))
    long, short = imported.graph(shapes(many)), imported.graph(shapes(few))
    if proven(long, short):
        assert check(long, short, many, few)
