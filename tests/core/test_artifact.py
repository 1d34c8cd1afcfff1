"""The .mono container: round trip, equal bytes, and every way a file can be wrong."""

from __future__ import annotations

import errno
import hashlib
import mmap
import os
import struct
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from mononn_core import compiler
from mononn_core.errors import ArtifactError
from mononn_core.runtime import artifact as container
from mononn_core.runtime.artifact import Artifact, digest
from mononn_core.runtime.loading import load
from mononn_core.runtime.session import Session
from tests.core import handmade
from tests.core.networks import encoder


@pytest.fixture(scope="module")
def artifact():
    return handmade.artifact()


@pytest.fixture(scope="module")
def saved(artifact, tmp_path_factory) -> bytes:
    path = tmp_path_factory.mktemp("artifact") / "x.mono"
    artifact.save(path)
    return path.read_bytes()


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    return tmp_path_factory.mktemp("wrong")


def write(folder: Path, data: bytes) -> Path:
    path = folder / "x.mono"
    path.write_bytes(data)
    return path


def test_round_trip(artifact, saved, folder):
    path = write(folder, saved)
    back = Artifact.load(path)
    assert (back.manifest, back.texts) == (artifact.manifest, {"source": handmade.SOURCE})
    assert (back.code, back.host, bytes(back.weights)) == (artifact.code, artifact.host, artifact.weights)
    a = np.arange(64, dtype=np.float32)
    with load(path) as session:
        answer = session.run({"a": a, "k": np.array([1], np.int32)})
    for name, value in handmade.expected(a, 1).items():
        np.testing.assert_array_equal(answer[name], value)


def test_same_artifact_same_bytes(artifact, saved, tmp_path):
    reordered = dict(reversed(artifact.manifest.items()))
    Artifact(reordered, artifact.code, artifact.host, artifact.weights, artifact.texts).save(tmp_path / "y.mono")
    assert (tmp_path / "y.mono").read_bytes() == saved
    with load(tmp_path / "y.mono") as session:
        session.save(tmp_path / "z.mono")
    assert (tmp_path / "z.mono").read_bytes() == saved


def test_a_file_in_use_may_be_replaced(artifact, tmp_path):
    path = tmp_path / "x.mono"
    artifact.save(path)
    with load(path) as session:
        artifact.save(path)
        Session(artifact).run({"a": np.ones(64, np.float32), "k": np.ones(1, np.int32)})
        session.run({"a": np.ones(64, np.float32), "k": np.ones(1, np.int32)})
    assert [p.name for p in tmp_path.iterdir()] == ["x.mono"]


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(place=st.integers(0, 10**9), flip=st.integers(1, 255))
def test_every_altered_byte_is_noticed(saved, folder, place, flip):
    data = bytearray(saved)
    data[place % len(data)] ^= flip
    with pytest.raises(ArtifactError, match=r"altered after it was written|no \.mono file|format version|truncated"):
        Artifact.load(write(folder, bytes(data)))


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(length=st.integers(0, 10**9))
def test_every_truncation_is_noticed(saved, folder, length):
    with pytest.raises(ArtifactError, match=r"truncated|no \.mono file"):
        Artifact.load(write(folder, saved[: length % len(saved)]))


def test_appended_bytes_are_noticed(saved, folder):
    with pytest.raises(ArtifactError, match="altered"):
        Artifact.load(write(folder, saved + b"\0"))


def test_without_verify_only_the_weights_go_unread(saved, folder):
    data = bytearray(saved)
    data[-1] ^= 1
    Artifact.load(write(folder, bytes(data)), verify=False)
    data = bytearray(saved)
    data[saved.index(b'"arena_bytes"')] ^= 1
    with pytest.raises(ArtifactError, match="its manifest section"):
        Artifact.load(write(folder, bytes(data)), verify=False)


def test_other_format_version(saved, folder):
    data = bytearray(saved)
    struct.pack_into("<I", data, 8, 99)
    with pytest.raises(ArtifactError, match="has format version 99, this mononn reads 2; compile the model again"):
        Artifact.load(write(folder, bytes(data)))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"abi_version": 77}, r"mononn 0\.1\.0 with ABI version 77, this one has \d+; compile the model again"),
        (
            {"machine": {"arch": "x86_64", "features": ["avx2", "avx1024", "quantum"]}},
            r"needs the instruction set extensions .*avx1024, quantum, which this machine lacks",
        ),
    ],
)
def test_another_version_or_machine(artifact, tmp_path, changes, message):
    manifest = {**artifact.manifest, **changes}
    Artifact(manifest, artifact.code, artifact.host, artifact.weights).save(tmp_path / "x.mono")
    with pytest.raises(ArtifactError, match=message):
        load(tmp_path / "x.mono")


def test_another_architecture(artifact, tmp_path):
    code = artifact.code[:18] + struct.pack("<H", 243) + artifact.code[20:]
    Artifact(artifact.manifest, code, artifact.host, artifact.weights).save(tmp_path / "x.mono")
    with pytest.raises(ArtifactError, match="compiled for another architecture, this is"):
        load(tmp_path / "x.mono")


def test_code_that_cannot_be_loaded():
    source = 'extern "C" int nobody(); __attribute__((visibility("default"))) int (*keep)() = nobody;'
    nobody = handmade.artifact(source + handmade.SOURCE)
    with pytest.raises(ArtifactError, match=r"the compiled function cannot be loaded .*nobody"):
        Session(nobody)
    other = handmade.artifact('extern "C" __attribute__((visibility("default"))) int other() { return 0; }')
    with pytest.raises(ArtifactError, match="the code does not export mononn_run"):
        Session(other)


def test_manifest_without_a_needed_key(artifact):
    manifest = {key: value for key, value in artifact.manifest.items() if key != "arena_bytes"}
    with pytest.raises(ArtifactError, match="'arena_bytes' is missing or no int"):
        Artifact(manifest, artifact.code, artifact.host, artifact.weights)


@pytest.mark.parametrize("name", ["missing.mono", "."])
def test_no_file(tmp_path, name):
    with pytest.raises(ArtifactError, match="cannot be read"):
        load(tmp_path / name)


def test_save_into_a_missing_folder_leaves_nothing(artifact, tmp_path):
    with pytest.raises(ArtifactError, match="cannot be written"):
        artifact.save(tmp_path / "no" / "x.mono")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("size", [0, 1, container.PIECE, container.PIECE + 1])
def test_digest_is_of_the_digests_of_the_pieces(size):
    data = np.random.default_rng(size).bytes(size)
    pieces = [data[i : i + container.PIECE] for i in range(0, size, container.PIECE)]
    assert digest(data) == hashlib.sha256(b"".join(hashlib.sha256(p).digest() for p in pieces)).digest()


@pytest.mark.parametrize("share", ["private", "shared"])
@pytest.mark.parametrize("place", [0, container.PIECE - 1, container.PIECE, -1])
def test_every_piece_of_the_weights_is_compared_when_loaded(artifact, tmp_path, place, share):
    weights = np.zeros(2 * container.PIECE + 1000, np.uint8)
    weights[:256] = np.frombuffer(artifact.weights, np.uint8)
    path = tmp_path / "x.mono"
    Artifact(artifact.manifest, artifact.code, artifact.host, memoryview(weights)).save(path)
    with load(path, weights=share) as session:
        answer = session.run({"a": np.ones(64, np.float32), "k": np.zeros(1, np.int32)})
    np.testing.assert_array_equal(answer["y"], handmade.WEIGHTS[::-1])
    data = np.memmap(path, np.uint8, "r+")
    data[(data.size - weights.size + place) if place >= 0 else -1] ^= 1
    data.flush()
    with pytest.raises(ArtifactError, match="its weights section"):
        load(path, weights=share)
    load(path, verify=False, weights=share).close()


def test_large_weights_start_on_a_huge_page(artifact, tmp_path):
    weights = np.zeros(container.HUGE_WEIGHTS, np.uint8)
    weights[:256] = np.frombuffer(artifact.weights, np.uint8)
    Artifact(artifact.manifest, artifact.code, artifact.host, memoryview(weights)).save(tmp_path / "x.mono")
    with load(tmp_path / "x.mono") as session:
        assert session._code.weights.address % 4096 == 0
        answer = session.run({"a": np.ones(64, np.float32), "k": np.zeros(1, np.int32)})
    np.testing.assert_array_equal(answer["y"], handmade.WEIGHTS[::-1])
    data = (tmp_path / "x.mono").read_bytes()
    offset = data.index(weights[:256].tobytes())
    assert offset % container.HUGE_ALIGN == 0


def test_where_no_file_can_be_mapped_to_be_written_it_is_the_same(monkeypatch, tmp_path):
    artifact = compiler.build(compiler.lower(encoder(), threads=2))
    artifact.save(tmp_path / "mapped.mono")

    def refuse(*given, **more):
        raise OSError(errno.ENODEV, "No such device")

    monkeypatch.setattr(mmap, "mmap", refuse)
    artifact.save(tmp_path / "written.mono")
    assert (tmp_path / "written.mono").read_bytes() == (tmp_path / "mapped.mono").read_bytes()


def test_a_full_disk_is_named_and_leaves_nothing(monkeypatch, tmp_path):
    def refuse(*given):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", refuse)
    with pytest.raises(ArtifactError, match="No space left"):
        handmade.artifact().save(tmp_path / "x.mono")
    assert not list(tmp_path.iterdir())
