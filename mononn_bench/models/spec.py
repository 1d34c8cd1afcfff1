"""What an entry of the catalogue is, as plain data, and what a file is. Nothing here imports a framework."""

from __future__ import annotations

import mmap
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

QUANTISED = (
    "QuantizeLinear", "DequantizeLinear", "DynamicQuantizeLinear", "MatMulInteger", "ConvInteger", "QLinearMatMul",
    "QLinearConv", "QGemm", "QAttention", "MatMulIntegerToFloat", "DynamicQuantizeMatMul", "DynamicQuantizeLSTM",
    "MatMulNBits", "GatherBlockQuantized",
)  # fmt: skip
"""Operators, by ONNX's and ONNX Runtime's names, of which a file has one or another that is quantised."""
LOCATION = re.compile(rb"\x0a\x08location\x12([\x00-\x7f]|[\x80-\xff][\x00-\x7f])")
Role = Literal["tokens", "mask", "segments", "image", "dense"]
Family = Literal[
    "bert", "vit", "t5", "resnet", "resnext", "mobilenet", "mlp", "light", "identity",
    "swin", "regnet", "efficientnet", "mobilenetv3", "unet", "r3d", "wavenet", "lstm",
    "grouped",
]  # fmt: skip


@dataclass(frozen=True)
class InputSpec:
    """One graph input: `shape` is static; `limit` is the exclusive upper bound of integer values; `scale` is the
    standard deviation of an image's values.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    role: Role
    limit: int = 0
    scale: float = 1.0


@dataclass(frozen=True)
class HubSource:
    """Where pretrained weights come from: repository, revision (a commit), file, the file's SHA-256 and bytes, and the
    SPDX identifier of the licence that its publisher gives.
    """

    repo_id: str
    revision: str
    filename: str
    sha256: str
    size_bytes: int
    licence: str

    @property
    def summary(self) -> str:
        """What a user wants to know before it is downloaded."""
        return f"{self.repo_id}, {self.size_bytes / 1e6:.0f} MB, {self.licence}"


@dataclass(frozen=True)
class ModelSpec:
    """A catalogued model. `config` holds the arguments of its family's constructor (models/networks.py)."""

    name: str
    family: Family
    config: Mapping[str, Any]
    inputs: tuple[InputSpec, ...]
    outputs: tuple[str, ...]
    full_size: bool
    summary: str
    hub: HubSource | None = None


def image_classifier(name: str, family: Family, config: Mapping[str, Any], size: int, summary: str, full_size: bool,
            hub: HubSource | None = None) -> ModelSpec:  # fmt: skip
    """Logits of one image of `size` x `size` pixels."""
    return ModelSpec(
        name=name,
        family=family,
        config=config,
        inputs=(InputSpec("pixel_values", "float32", (1, 3, size, size), "image"),),
        outputs=("logits",),
        full_size=full_size,
        summary=f"{summary}, {size}x{size} image",
        hub=hub,
    )


def file_options(path: str, shapes: Mapping[str, Sequence[int]]) -> list[str]:
    """The options that name a user's file and the shapes of its inputs."""
    return [f"--path={path}", *(f"--shape={name}={'x'.join(map(str, shape))}" for name, shape in shapes.items())]


def data_files(path: Path) -> list[str]:
    """The files that an ONNX file keeps weights in, sorted. Nothing is parsed: behind the key "location" stands the
    name's length, in one byte or two, and the name (onnx.proto, TensorProto.external_data).
    """
    if not path.stat().st_size:
        return []
    found = set()
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as text:
        for match in LOCATION.finditer(text):
            size = match[1][0] & 127 | (match[1][1] << 7 if len(match[1]) > 1 else 0)
            found.add(text[match.end() : match.end() + size].decode(errors="replace"))
    return sorted(found)


def is_quantised(path: Path) -> bool:
    """Whether an ONNX file has operators of quantised networks. Nothing is parsed: an operator's name stands in a file
    behind a node's fourth field and its length (onnx.proto, NodeProto.op_type).
    """
    if not path.stat().st_size:
        return False
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as text:
        return any(text.find(b'"%c%s' % (len(name), name.encode())) >= 0 for name in QUANTISED)
