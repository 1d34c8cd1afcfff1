"""Smaller batches: what is proven runs as the first entries of a larger batch, and what is not is refused."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import TensorProto

from mononn_core import compiler
from mononn_core.cli.main import main
from mononn_core.compiler.padding import Padding
from mononn_core.errors import InputError, MononnError
from mononn_core.graph import Graph
from mononn_core.importer import Imported
from mononn_core.ops.evaluate import run as evaluate
from mononn_core.runtime import loading
from tests.core.networks import Builder

LENGTH, WIDTH, HEADS = 6, 32, 2
Body = Callable[[Builder, str], str]


def attention(b: Builder, x: str) -> str:
    """By reshapes that keep the batch, and by ones that join it with the length."""

    def heads(name: str) -> str:
        flat = b.add("Reshape", name, b.ints(-1, WIDTH))
        split = b.add("Reshape", b.linear(flat, WIDTH, WIDTH), b.ints(-1, LENGTH, HEADS, WIDTH // HEADS))
        return b.add("Transpose", split, perm=[0, 2, 1, 3])

    q, k, v = (heads(x) for _ in range(3))
    score = b.add("Softmax", b.add("MatMul", q, b.add("Transpose", k, perm=[0, 1, 3, 2])), axis=-1)
    context = b.add("Transpose", b.add("MatMul", score, v), perm=[0, 2, 1, 3])
    joined = b.add("Reshape", context, b.ints(0, 0, WIDTH))
    return b.add("LayerNormalization", b.add("Add", joined, x), b.weight(WIDTH), b.weight(WIDTH))


def image(b: Builder, x: str) -> str:
    """[B, LENGTH, WIDTH] as [B, 2, LENGTH, WIDTH / 2]: a convolution, a gate of its means, and back."""
    y = b.add("Transpose", b.add("Reshape", x, b.ints(0, LENGTH, 2, WIDTH // 2)), perm=[0, 2, 1, 3])
    y = b.add("Conv", y, b.weight(4, 2, 3, 3), b.weight(4), pads=[1, 1, 1, 1])
    y = b.add("Mul", y, b.add("Sigmoid", b.add("GlobalAveragePool", y)))
    y = b.add("Transpose", b.add("MaxPool", y, kernel_shape=[1, 2], strides=[1, 2]), perm=[0, 2, 1, 3])
    return b.add("Reshape", y, b.ints(0, LENGTH, WIDTH))


def positions(b: Builder, x: str) -> str:
    """A table expanded to the batch, a first place taken out, and rows put beside each other."""
    shape = b.add("Shape", x)
    table = b.add("Expand", b.weight(1, LENGTH, WIDTH), shape)
    first = b.add("Unsqueeze", b.add("Gather", x, b.constant(np.array(0)), axis=1), b.ints(1))
    rest = b.add("Slice", x, b.ints(1), b.ints(1 << 30), b.ints(1))
    return b.add("Add", b.add("Concat", first, rest, axis=1), table)


def entry_s_number(b: Builder, x: str) -> str:
    """A constant for each entry: its number. The first ones are the same in a smaller batch."""
    count = b.add("Gather", b.add("Shape", x), b.constant(np.array(0)))
    numbers = b.add("Range", b.constant(np.array(0)), count, b.constant(np.array(1)))
    return b.add("Add", x, b.add("Reshape", b.add("Cast", numbers, to=TensorProto.FLOAT), b.ints(-1, 1, 1)))


def by_its_size(b: Builder, x: str) -> str:
    return b.add("Div", x, b.add("Cast", b.add("Gather", b.add("Shape", x), b.ints(0)), to=TensorProto.FLOAT))


def scrambled(b: Builder, x: str) -> str:
    """Rows read as if the batch were last, a table of the rows added, and read back: an entry meets another's rows."""
    turned = b.add("Reshape", x, b.ints(LENGTH * WIDTH, -1))
    return b.add("Reshape", b.add("Add", turned, b.weight(LENGTH * WIDTH, 1)), b.ints(-1, LENGTH, WIDTH))


def last_of(b: Builder, x: str) -> str:
    """A place whose number is the batch's, along the length."""
    count = b.add("Gather", b.add("Shape", x), b.ints(0))
    there = b.add("Slice", b.add("Concat", x, x, axis=1), count, b.add("Add", count, b.ints(LENGTH)), b.ints(1))
    return b.add("Relu", there)


def numbers_from_the_end(b: Builder, x: str) -> str:
    """A constant for each entry that is another one in a smaller batch."""
    count = b.add("Gather", b.add("Shape", x), b.constant(np.array(0)))
    back = b.add("Range", b.add("Neg", count), b.constant(np.array(0)), b.constant(np.array(1)))
    return b.add("Add", x, b.add("Reshape", b.add("Cast", back, to=TensorProto.FLOAT), b.ints(-1, 1, 1)))


def repeated_sum(b: Builder, x: str) -> str:
    """Each entry as often as there are entries, added up: every operator keeps entries apart, the extent does not."""
    count = b.add("Gather", b.add("Shape", x), b.ints(0))
    wide = b.add("Expand", b.add("Unsqueeze", x, b.ints(1)), b.add("Concat", b.ints(1), count, b.ints(1, 1), axis=0))
    return b.add("ReduceSum", wide, b.ints(1), keepdims=0)


def crossed(b: Builder, x: str) -> str:
    return b.add("MatMul", b.add("MatMul", x, b.weight(WIDTH, LENGTH)), flipped(b, x))


def second(b: Builder, x: str) -> str:
    return b.add("Slice", b.add("Concat", x, x, axis=0), b.ints(1), b.ints(1 << 30), b.ints(0), b.ints(2))


def flipped(b: Builder, x: str) -> str:
    return b.add("Slice", x, b.ints(-1), b.ints(-(1 << 30)), b.ints(0), b.ints(-1))


PROVEN: dict[str, Body] = {
    "elementwise": lambda b, x: b.add("Tanh", x),
    "attention": attention,
    "image": image,
    "positions": positions,
    "an entry's number": entry_s_number,
    "a reduction": lambda b, x: b.add("Sub", x, b.add("ReduceMean", x, b.ints(1), keepdims=1)),
}
REFUSED: dict[str, Body] = {
    "a mean of the batch": lambda b, x: b.add("Sub", x, b.add("ReduceMean", x, b.ints(0), keepdims=1)),
    "a softmax over the batch": lambda b, x: b.add("Softmax", x, axis=0),
    "a product with another entry": crossed,
    "the batch as a number": by_its_size,
    "scrambled rows": scrambled,
    "a place of the batch's number": last_of,
    "numbers from the end": numbers_from_the_end,
    "as often as there are entries": repeated_sum,
    "the batch turned round": flipped,
    "every second of two copies": second,
}


def model(body: Body) -> bytes:
    b = Builder("batch")
    b.add("Identity", body(b, "x"), output="y")
    edges = ("batch", LENGTH, WIDTH)
    return b.model({"x": (TensorProto.FLOAT, edges)}, {"y": edges})  # type: ignore[arg-type, dict-item]


def feed(batch: int) -> np.ndarray:
    return np.random.default_rng(batch).standard_normal((batch, LENGTH, WIDTH)).astype(np.float32)


def graphs(body: Body, *batches: int):  # type: ignore[no-untyped-def]
    imported = Imported(model(body))
    return [imported.graph({"x": (batch, LENGTH, WIDTH)}) for batch in batches]


def batch_padding(large: Graph, small: Graph) -> bool:
    return Padding(large, {"x": (0,)}).ends(small) == {"y": (0,)}


@pytest.mark.parametrize("name", PROVEN)
def test_proven_networks_answer_a_part_as_a_batch_of_its_own(name: str) -> None:
    shapes = [{"x": (batch, LENGTH, WIDTH)} for batch in (1, 6)]
    with compiler.compile(model(PROVEN[name]), shapes=shapes, threads=2) as session:
        assert [[s.least for s in one.shorter] for one in session.specialisations] == [[], [2]]
        for batch in (2, 5, 1, 3, 6):
            x = feed(batch)
            (small,) = graphs(PROVEN[name], batch)
            want = evaluate(small, {"x": x})["y"]
            found = session.run({"x": x})["y"]
            assert found.shape == want.shape
            np.testing.assert_allclose(found, want, rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_not_proven_is_refused(name: str) -> None:
    large, small = graphs(REFUSED[name], 4, 3)
    assert not batch_padding(large, small)
    x = feed(4)
    x[3:] = 0
    whole, part = evaluate(large, {"x": x})["y"][:3], evaluate(small, {"x": x[:3]})["y"]
    assert whole.shape != part.shape or not np.allclose(whole, part), "it may as well be proven"


def test_a_refused_network_says_which_batches_there_are() -> None:
    shapes = [{"x": (batch, LENGTH, WIDTH)} for batch in (1, 4)]
    refused, proven = (compiler.compile(model(body), shapes=shapes, threads=2) for body in (by_its_size, attention))
    with refused, pytest.raises(InputError, match=r"not compiled for x=3x6x32; give x=1x6x32, or x=4x6x32$"):
        refused.run({"x": feed(3)})
    with proven, pytest.raises(InputError, match=r"give x=1x6x32, or x=4x6x32 \(or a batch from 2 on\)$"):
        proven.run({"x": feed(5)})


def test_a_part_s_buffers_are_read_and_written_in_every_run(tmp_path: Path) -> None:
    shapes = [{"x": (4, LENGTH, WIDTH)}]
    with compiler.compile(model(attention), shapes=shapes, threads=2) as session:
        session.save(tmp_path / "x.mono")
        want = session.run({"x": np.concatenate([feed(3), feed(1)])})["y"][:3]
    with loading.load(tmp_path / "x.mono") as session:
        x, y = np.zeros((3, LENGTH, WIDTH), np.float32), np.zeros((3, LENGTH, WIDTH), np.float32)
        binding = session.bind({"x": x}, {"y": y})
        binding.run()
        x[...] = feed(3)
        assert binding.inputs["x"] is x
        binding.run()
        assert binding.outputs["y"] is y
        np.testing.assert_array_equal(y, want)
        with pytest.raises(
            InputError, match=r"output 'y' is float32\[4x6x32\] but the network takes float32\[3x6x32\]"
        ):
            session.bind({"x": x}, {"y": np.zeros((4, LENGTH, WIDTH), np.float32)})


def test_the_command_line_runs_a_part(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "x.onnx").write_bytes(model(attention))
    (tmp_path / "s.txt").write_text(f"x=4x{LENGTH}x{WIDTH}\n")
    file = str(tmp_path / "x.mono")
    assert main(["compile", str(tmp_path / "x.onnx"), "-o", file, "--shapes-file", str(tmp_path / "s.txt")]) == 0
    assert main(["run", file, "--shape", f"x=2x{LENGTH}x{WIDTH}"]) == 0
    assert "y  float32[2, 6, 32]" in capsys.readouterr().out


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.sampled_from(sorted({**PROVEN, **REFUSED})), min_size=1, max_size=3),
    st.integers(2, 6),
    st.data(),
)
def test_whatever_is_proven_is_so(names: list[str], many: int, data: st.DataObject) -> None:
    """Bodies one after the other: where the proof holds, the Graphs agree on the first entries."""
    few = data.draw(st.integers(1, many - 1))

    def body(b: Builder, x: str) -> str:
        for name in names:
            x = {**PROVEN, **REFUSED}[name](b, x)
        return x

    try:
        large, small = graphs(body, many, few)
    except MononnError:  # a slice of nothing, say
        return
    if batch_padding(large, small):
        x = feed(many)
        x[few:] = 0
        whole, part = evaluate(large, {"x": x})["y"][:few], evaluate(small, {"x": x[:few]})["y"]
        np.testing.assert_allclose(whole, part, rtol=1e-4, atol=1e-4)
