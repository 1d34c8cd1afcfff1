"""Artifact: one ``.mono`` file holding everything a run needs: manifest, machine code, host runner, packed weights.

The container (docs/artifact.md) is a header, a table of sections and the sections. All of it is under a SHA-256
digest, so that a truncated or altered file is named as such; that protects from accidents, not from an attacker: a
``.mono`` file holds machine code and is to be trusted like a program.
"""

from __future__ import annotations

import errno
import hashlib
import json
import mmap
import os
import platform
import struct
import zlib
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from mononn_core.errors import ArtifactError
from mononn_core.files import replacing
from mononn_core.machine import Machine
from mononn_core.program import abi

MAGIC = b"\x93MONONN\n"
FORMAT_VERSION = 2
HEADER = struct.Struct(
    "<8sIIQ8x32s"
)  # magic, version, sections, bytes of the file, digest of what stands before + table
SECTION = struct.Struct("<16sQQ32s")  # name, offset, bytes, digest
PLAN = struct.Struct("<IIQQIIII")  # ABI version, threads, arena, scratch, functions, inputs, outputs, 0; see _plan
SECTIONS = ("manifest", "plan", "texts", "code", "host", "weights")
CODE = "code:"
"""The code of a family's further specialisations: "code:1" and so on, behind "code"."""
GPU_FIRST, CUBIN, GPU_LAST = ("manifest", "texts"), "cubin:", ("weights",)
"""A GPU's file has one section of machine code an architecture, "cubin:sm_90a", sorted, between these."""
INCLUDED = "header:"
"""Before the name of a text that a GPU's source includes."""
PIECE = 16 << 20
ELF_MACHINES = {62: "x86_64", 183: "aarch64"}
SMALL_ALIGN, PAGE_ALIGN, HUGE_ALIGN = 64, 64 << 10, 2 << 20
HUGE_WEIGHTS = 32 << 20
"""Weights at least this large start on a 2 MiB boundary, where file systems with large folios map huge pages."""

REQUIRED = {
    "name": str,
    "mononn_version": str,
    "abi_version": int,
    "machine": dict,
    "inputs": list,
    "outputs": list,
    "threads": int,
    "arena_bytes": int,
    "scratch_bytes": int,
    "counters": int,
    "weight_bytes": int,
    "phases": list,
}

Buffer = bytes | memoryview


@dataclass(frozen=True)
class Unchecked:
    """The digest that the weights of the file ``path`` must have, where nobody has compared them yet."""

    path: str
    digest: bytes

    def check(self, found: bytes) -> None:
        """Raises ArtifactError where ``found`` is another digest."""
        if found != self.digest:
            raise _altered(self.path, "its weights section")


@dataclass(frozen=True)
class Unpacked:
    """Packed constants that nobody has packed yet: ``fill`` writes them into ``nbytes`` bytes of zeros."""

    nbytes: int
    fill: Callable[[memoryview], None]

    def __len__(self) -> int:
        return self.nbytes

    def in_memory(self) -> memoryview:
        """Packs them."""
        blob = np.zeros(self.nbytes, np.uint8).data
        self.fill(blob)
        return blob


@dataclass(frozen=True)
class Artifact:
    """A compiled network.

    Attributes:
        manifest: JSON values; the keys in ``REQUIRED`` are needed to run: inputs and outputs are lists of {name,
            dtype, shape} in the order of the call, machine is {arch, features}, phases are the executed ones in order
            ({id, origin, flops, bytes, tasks, barrier, ...}), sizes are bytes.
        code: shared object that exports ``mononn_run``; empty for a GPU.
        further: of a network compiled for several shapes, the code of every specialisation but the first, in the order
            of the manifest's ``further``, which has what they do not have in common with the first.
        host: shared object of runtime/host; empty for a GPU.
        packed: packed constants, or how to make them: into the file, where they are but saved.
        texts: what people may want to read again: "graph", "program", "source"; a GPU's source is also compiled for
            an architecture that has no cubin.
        cubins: machine code of a GPU by architecture ("sm_90a").
        unchecked: what is left to compare before the weights are used.
    """

    manifest: Mapping[str, Any]
    code: bytes
    host: bytes
    packed: Buffer | Unpacked
    texts: Mapping[str, str] = field(default_factory=dict)
    cubins: Mapping[str, bytes] = field(default_factory=dict)
    unchecked: Unchecked | None = None
    further: tuple[bytes, ...] = ()

    @property
    def specialisations(self) -> tuple[Mapping[str, Any], ...]:
        """The manifest of every shape that the network was compiled for."""
        return (self.manifest, *({**self.manifest, **other} for other in self.manifest.get("further", ())))

    @cached_property
    def weights(self) -> Buffer:
        """Packed constants."""
        return self.packed.in_memory() if isinstance(self.packed, Unpacked) else self.packed

    @property
    def target(self) -> str:
        """ "cpu", "cuda" or "cuda-emulated"."""
        return str(self.manifest.get("target", "cpu"))

    def __post_init__(self) -> None:
        for key, kind in REQUIRED.items():
            if not isinstance(self.manifest.get(key), kind):
                raise ArtifactError(f"the manifest's {key!r} is missing or no {kind.__name__}; compile the model again")
        if len(self.further) != len(self.manifest.get("further", ())):
            raise ArtifactError("the manifest tells of other specialisations than there is code for; compile it again")

    def save(self, path: str | Path) -> None:
        """Writes the file under a temporary name and renames it. The same artifact gives the same bytes.

        Raises:
            ArtifactError: the folder does not exist or cannot be written.
        """
        texts = zlib.compress(canonical_json(dict(self.texts)), 9)
        sections: dict[str, Buffer] = {"manifest": canonical_json(self.manifest)}
        if self.target == "cpu":
            sections |= {"plan": _plan(self.specialisations), "texts": texts, "code": self.code}
            sections |= {f"{CODE}{i}": code for i, code in enumerate(self.further, 1)}
            sections["host"] = self.host
        else:
            sections["texts"] = texts
            sections |= {f"{CUBIN}{arch}": self.cubins[arch] for arch in sorted(self.cubins)}
        weights = self.packed if "weights" not in self.__dict__ else self.weights
        try:
            with replacing(Path(path)) as stream:
                _write(stream, sections, weights)
        except OSError as error:
            raise ArtifactError(f"{path} cannot be written ({error.strerror}); choose a writable folder") from error

    @staticmethod
    def load(path: str | Path, verify: bool = True, later: bool = False) -> Artifact:
        """Maps a file.

        Args:
            path: a file that :meth:`save` wrote.
            verify: compare the weights' digest too (all other bytes are always compared).
            later: leave that to who copies a CPU's weights, so that they are read once; see ``unchecked``.

        Raises:
            ArtifactError: not such a file, truncated, altered, of another version, or for another machine.
        """
        view = _map(Path(path))
        table = _read_table(path, view)
        sections = {name: view[offset : offset + size] for name, (offset, size, _) in table.items()}
        for name, (_, _, expected) in table.items():
            if name != "weights" and digest(sections[name]) != expected:
                raise _altered(path, f"its {name} section")
        manifest = json.loads(bytes(sections["manifest"]))
        texts = json.loads(zlib.decompress(sections["texts"]))
        code, host = (bytes(sections.get(name, b"")) for name in ("code", "host"))
        cubins = {n.removeprefix(CUBIN): bytes(data) for n, data in sections.items() if n.startswith(CUBIN)}
        further = tuple(bytes(data) for name, data in sections.items() if name.startswith(CODE))
        unchecked = Unchecked(str(path), table["weights"][2]) if verify else None
        artifact = Artifact(manifest, code, host, sections["weights"], texts, cubins, unchecked, further)
        artifact.check_runnable(str(path))
        if unchecked is None or (later and artifact.target == "cpu"):
            return artifact
        unchecked.check(digest(artifact.weights))
        return replace(artifact, unchecked=None)

    def check_runnable(self, name: str) -> None:
        """Raises ArtifactError, naming ``name``, unless this process can run the code: ABI, architecture, features.

        What a GPU can run is found out when a session is made.
        """
        manifest, here = self.manifest, Machine.probe()
        if manifest["abi_version"] != abi.ABI_VERSION:
            raise ArtifactError(
                f"{name} was compiled by mononn {manifest['mononn_version']} with ABI version "
                f"{manifest['abi_version']}, this one has {abi.ABI_VERSION}; compile the model again"
            )
        if self.target != "cpu":
            return
        arch = ELF_MACHINES.get(int.from_bytes(self.code[18:20], "little"), "another architecture")
        if arch != platform.machine():
            raise ArtifactError(f"{name} was compiled for {arch}, this is {platform.machine()}; compile the model here")
        missing = sorted(set(manifest["machine"]["features"]) - here.features)
        if missing:
            raise ArtifactError(
                f"{name} needs the instruction set extensions {', '.join(missing)}, which this machine lacks; "
                "compile the model here"
            )


def canonical_json(value: Any) -> bytes:
    """UTF-8 JSON with sorted keys and no spaces; refuses NaN and infinity."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False).encode()


def digest(data: Buffer, take: Callable[[int, memoryview], Buffer] = lambda _, piece: piece) -> bytes:
    """SHA-256 of the SHA-256 digests of the 16 MiB pieces, which are hashed on several threads.

    ``take`` gets a piece's start and bytes, and gives what is hashed for it: a copy, for one.
    """
    view = memoryview(data)
    starts = range(0, len(view), PIECE)

    def piece(start: int) -> bytes:
        return hashlib.sha256(take(start, view[start : start + PIECE])).digest()

    if len(starts) < 2:
        digests = [piece(start) for start in starts]
    else:
        with ThreadPoolExecutor(max_workers=min(len(starts), Machine.probe().cores, 8)) as pool:
            digests = list(pool.map(piece, starts))
    return hashlib.sha256(b"".join(digests)).digest()


def tensor_bytes(tensor: Mapping[str, Any]) -> int:
    """Bytes of a manifest's {dtype, shape}."""
    return int(np.dtype(tensor["dtype"]).itemsize * np.prod(tensor["shape"], dtype=np.int64))


def largest(manifests: Sequence[Mapping[str, Any]], key: str) -> int:
    """What all specialisations need at most."""
    return max(int(manifest[key]) for manifest in manifests)


def _plan(manifests: Sequence[Mapping[str, Any]]) -> bytes:
    """What a C program needs of the manifests, as C structs (host/mononn_file.h: mononn_file_plan)."""
    first, words = manifests[0], list[int]()
    for one in manifests:
        words += [one["counters"], *map(tensor_bytes, (*one["inputs"], *one["outputs"]))]
    memory = (largest(manifests, key) for key in ("arena_bytes", "scratch_bytes"))
    ends = (len(first["inputs"]), len(first["outputs"]))
    plan = PLAN.pack(first["abi_version"], first["threads"], *memory, len(manifests), *ends, 0)
    return plan + struct.pack(f"<{len(words)}Q", *words)


def _round_up(value: int, unit: int) -> int:
    return -(-value // unit) * unit


def _write(stream: BinaryIO, sections: Mapping[str, Buffer], weights: Buffer | Unpacked) -> None:
    """Header, table and padded sections, the weights last."""
    position = HEADER.size + SECTION.size * (len(sections) + 1)
    table = b""
    for name, data in sections.items():
        offset = _round_up(position, SMALL_ALIGN)
        stream.seek(offset)
        stream.write(data)
        table += SECTION.pack(name.encode(), offset, len(data), digest(data))
        position = offset + len(data)
    offset = _round_up(position, HUGE_ALIGN if len(weights) >= HUGE_WEIGHTS else PAGE_ALIGN)
    found = _write_weights(stream, offset, weights)
    table += SECTION.pack(b"weights", offset, len(weights), found)
    stream.seek(0)
    stream.write(_header(len(sections) + 1, offset + len(weights), table) + table)


def _write_weights(stream: BinaryIO, offset: int, weights: Buffer | Unpacked) -> bytes:
    """The last section, packed where it lies in the file; its digest."""
    size = offset + len(weights)
    stream.truncate(size)
    try:
        os.posix_fallocate(stream.fileno(), 0, size)  # what is mapped has its place on the disk
        mapped = mmap.mmap(stream.fileno(), len(weights), offset=offset) if len(weights) else None
    except OSError as error:
        if error.errno == errno.ENOSPC:
            raise
        mapped = None  # a file system in which nothing is mapped to be written
    if mapped is None:
        data = weights.in_memory() if isinstance(weights, Unpacked) else weights
        stream.seek(offset)
        stream.write(data)
        return digest(data)
    with mapped, memoryview(mapped) as view:
        if isinstance(weights, Unpacked):
            weights.fill(view)
        else:
            view[:] = weights
        return digest(view)


def _header(count: int, size: int, table: bytes) -> bytes:
    blank = HEADER.pack(MAGIC, FORMAT_VERSION, count, size, bytes(32))
    return blank[:-32] + hashlib.sha256(blank[:-32] + table).digest()


def _map(path: Path) -> memoryview:
    try:
        with path.open("rb") as stream:
            return memoryview(mmap.mmap(stream.fileno(), 0, flags=mmap.MAP_PRIVATE, prot=mmap.PROT_READ))
    except ValueError:  # an empty file has no mapping
        return memoryview(b"")
    except OSError as error:
        raise ArtifactError(
            f"{path} cannot be read ({error.strerror}); give a .mono file that `compile` wrote"
        ) from error


def _altered(path: str | Path, part: str) -> ArtifactError:
    return ArtifactError(
        f"{path} was altered after it was written ({part} does not match its digest); compile it again"
    )


def _read_table(path: str | Path, view: memoryview) -> dict[str, tuple[int, int, bytes]]:
    """Name to (offset, bytes, digest) of every section, after the checks of the header, the table and the gaps."""
    if bytes(view[: len(MAGIC)]) != MAGIC:
        raise ArtifactError(f"{path} is no .mono file; give one that `mononn compile` wrote")
    if len(view) < HEADER.size:
        raise ArtifactError(f"{path} is truncated ({len(view)} bytes); copy or compile it again")
    _, version, count, size, _ = HEADER.unpack(view[: HEADER.size])
    if version != FORMAT_VERSION:
        raise ArtifactError(
            f"{path} has format version {version}, this mononn reads {FORMAT_VERSION}; compile the model again"
        )
    if len(view) < size:
        raise ArtifactError(f"{path} is truncated ({len(view)} of {size} bytes); copy or compile it again")
    end = HEADER.size + count * SECTION.size
    table = bytes(view[HEADER.size : end])
    if len(view) != size or end > size or _header(count, size, table) != bytes(view[: HEADER.size]):
        raise _altered(path, "its header")
    found = {}
    for raw, offset, length, expected in SECTION.iter_unpack(table):
        if bytes(view[end:offset]) != bytes(max(offset - end, 0)):
            raise _altered(path, "the padding between its sections")
        found[raw.rstrip(b"\0").decode()] = (offset, length, expected)
        end = offset + length
    names = tuple(found)
    if not (_is_cpus(names) or _is_gpus(names)) or end != size:
        raise ArtifactError(f"{path} lacks sections of this format; compile the model again")
    return found


def _is_cpus(names: tuple[str, ...]) -> bool:
    """Whether these are the sections of a CPU's file."""
    further = [name for name in names if name.startswith(CODE)]
    at = SECTIONS.index("code") + 1
    numbered = [f"{CODE}{i}" for i in range(1, len(further) + 1)]
    return names == (*SECTIONS[:at], *numbered, *SECTIONS[at:])


def _is_gpus(names: tuple[str, ...]) -> bool:
    """Whether these are the sections of a GPU's file."""
    first, middle, last = names[:2], names[2:-1], names[-1:]
    cubins = all(name.startswith(CUBIN) for name in middle) and list(middle) == sorted(middle)
    return first == GPU_FIRST and last == GPU_LAST and cubins
