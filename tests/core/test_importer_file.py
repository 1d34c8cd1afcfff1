"""Large constants stay in their file: what is read is what protobuf's parser alone reads, whatever the bytes."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import google.protobuf.message
import numpy as np
import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper

from mononn_core.errors import ModelError
from mononn_core.importer import file
from mononn_core.importer.protobuf import initializers, read_model, read_structure

SMALL = 24
"""Bytes from which on a constant is large in these tests."""


def model(*sizes: int) -> bytes:
    """Of constants of so many float32, every other one with a document behind its data."""
    weights = [numpy_helper.from_array(np.arange(n, dtype=np.float32), f"w{i}") for i, n in enumerate(sizes)]
    for tensor in weights[::2]:
        tensor.doc_string = "what it is for"
    nodes = [helper.make_node("Identity", [w.name], [f"y{i}"]) for i, w in enumerate(weights)]
    outputs = [helper.make_tensor_value_info(f"y{i}", TensorProto.FLOAT, (n,)) for i, n in enumerate(sizes)]
    graph = helper.make_graph(nodes, "constants", [], outputs, weights)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)]).SerializeToString()


def parsed(data: bytes) -> onnx.ModelProto | None:
    """By protobuf's parser, None where it refuses."""
    found = onnx.ModelProto()
    try:
        found.ParseFromString(data)
    except google.protobuf.message.DecodeError:
        return None
    return found


def whole(data: bytes) -> onnx.ModelProto | None:
    """The model without its large constants, and these put back."""
    small, large = file.without_large(memoryview(data))
    found = parsed(small)
    for number, raw in large.items() if found is not None else ():
        assert not found.graph.initializer[number].raw_data
        found.graph.initializer[number].raw_data = bytes(raw)
    return found


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(file, "LARGE", SMALL)


@pytest.mark.parametrize("sizes", [(3,), (6,), (100,), (3, 40, 5, 6, 7, 40_000, 2)])
def test_nothing_is_lost(sizes: tuple[int, ...]) -> None:
    data = model(*sizes)
    small, large = file.without_large(memoryview(data))
    assert sorted(large) == [i for i, n in enumerate(sizes) if n * 4 >= SMALL]
    assert len(small) < len(data) - sum(map(len, large.values())) + 8 or not large
    assert whole(data) == parsed(data)


base = model(3, 40, 6, 9)


@settings(max_examples=400, deadline=None)
@given(st.lists(st.tuples(st.integers(0, len(base) - 1), st.integers(0, 255)), max_size=3), st.integers(0, len(base)))
def test_damaged_bytes_are_read_as_the_parser_reads_them(changes: list[tuple[int, int]], length: int) -> None:
    data = bytearray(base)
    for at, value in changes:
        data[at] = value
    for damaged in (bytes(data), bytes(data[:length])):
        found, wanted = whole(damaged), parsed(damaged)
        assert (found is None) == (wanted is None)
        if found is not None and wanted is not None:
            assert found.SerializeToString(deterministic=True) == wanted.SerializeToString(deterministic=True)


def test_large_constants_are_not_copied(tmp_path: Path) -> None:
    data = model(3, 40)
    structure, large = read_structure(data)
    value = initializers(structure.graph, large)["w1"]
    assert np.shares_memory(value, np.frombuffer(data, np.uint8))
    path = tmp_path / "model.onnx"
    path.write_bytes(data)
    structure, large = read_structure(path)
    found = initializers(structure.graph, large)
    for i, n in enumerate((3, 40)):
        np.testing.assert_array_equal(found[f"w{i}"], np.arange(n, dtype=np.float32))
    assert read_model(path) == parsed(data)


def test_elements_that_share_bytes_and_data_that_do_not_fit() -> None:
    values = np.arange(100) % 8
    packed = np.array([a | b << 4 for a, b in zip(values[::2], values[1::2], strict=True)], np.uint8)
    nibbles = helper.make_tensor("w0", TensorProto.INT4, (100,), packed.tobytes(), raw=True)
    found = initializers(helper.make_graph([], "g", [], [], [nibbles]), {0: memoryview(packed.tobytes())})
    np.testing.assert_array_equal(found["w0"].astype(np.int64), values)
    short = numpy_helper.from_array(np.arange(50, dtype=np.float32), "w0")
    with pytest.raises(ModelError, match="'w0' has data that do not fit its shape"):
        initializers(helper.make_graph([], "g", [], [], [short]), {0: memoryview(short.raw_data[:-4])})


def test_an_empty_file_is_no_model(tmp_path: Path) -> None:
    (tmp_path / "empty.onnx").write_bytes(b"")
    with pytest.raises(ModelError, match="no graph"):
        read_model(tmp_path / "empty.onnx")


def test_a_pipe_is_read(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    data = model(3, 40)
    with ThreadPoolExecutor(1) as writer:
        writing = writer.submit((tmp_path / "pipe").write_bytes, data)
        assert read_model(tmp_path / "pipe") == parsed(data)
        assert writing.result() == len(data)
