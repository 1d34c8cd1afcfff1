"""The catalogue of models: sizes, inputs and outputs as plain data. Nothing here imports a framework."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from mononn_bench.errors import UnknownNameError

Role = Literal["tokens", "mask", "segments", "dense"]


@dataclass(frozen=True)
class InputSpec:
    """One graph input: `shape` is static; `limit` is the exclusive upper bound of integer values."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    role: Role
    limit: int = 0


@dataclass(frozen=True)
class HubSource:
    """Where pretrained weights come from: repository, revision, file, and the file's SHA-256."""

    repo_id: str
    revision: str
    filename: str
    sha256: str


@dataclass(frozen=True)
class ModelSpec:
    """A catalogued model. `config` holds the arguments of its family's constructor."""

    name: str
    family: Literal["bert", "mlp", "identity"]
    config: Mapping[str, int]
    inputs: tuple[InputSpec, ...]
    outputs: tuple[str, ...]
    full_size: bool
    summary: str
    hub: HubSource | None = None


def _bert(name: str, *, tokens: int, layers: int, hidden: int, heads: int, ffn: int, vocab: int, positions: int,
          full_size: bool = False, hub: HubSource | None = None) -> ModelSpec:  # fmt: skip
    shape = (1, tokens)
    return ModelSpec(
        name=name,
        family="bert",
        config={
            "vocab_size": vocab,
            "hidden_size": hidden,
            "num_hidden_layers": layers,
            "num_attention_heads": heads,
            "intermediate_size": ffn,
            "max_position_embeddings": positions,
            "type_vocab_size": 2,
        },
        inputs=(
            InputSpec("input_ids", "int64", shape, "tokens", vocab),
            InputSpec("attention_mask", "int64", shape, "mask", 2),
            InputSpec("token_type_ids", "int64", shape, "segments", 2),
        ),
        outputs=("last_hidden_state", "pooler_output"),
        full_size=full_size,
        summary=f"BERT encoder, {layers} layers, {hidden} wide, {heads} heads, {tokens} tokens, padding mask",
        hub=hub,
    )


def _mlp(name: str, *, layers: int, width: int) -> ModelSpec:
    return ModelSpec(
        name=name,
        family="mlp",
        config={"layers": layers, "width": width},
        inputs=(InputSpec("x", "float32", (1, width), "dense"),),
        outputs=("y",),
        full_size=False,
        summary=f"{layers} times Linear {width}x{width} and ReLU, batch 1",
    )


BERT_BASE_UNCASED = HubSource(
    repo_id="google-bert/bert-base-uncased",
    revision="86b5e0934494bd15c9632b12f734a8a67f723594",
    filename="model.safetensors",
    sha256="68d45e234eb4a928074dfd868cead0219ab85354cc53d20e772753c6bb9169d3",
)

IDENTITY = ModelSpec(
    name="identity",
    family="identity",
    config={},
    inputs=(InputSpec("x", "float32", (1, 256), "dense"),),
    outputs=("y",),
    full_size=False,
    summary="one Identity node: what a call costs",
)
"""No case of its own: built beside each model, its time is a column of every table."""

ZOO: dict[str, ModelSpec] = {
    spec.name: spec
    for spec in (
        _bert("bert-base", tokens=128, layers=12, hidden=768, heads=12, ffn=3072, vocab=30522, positions=512,
              full_size=True, hub=BERT_BASE_UNCASED),
        _bert("bert-tiny", tokens=32, layers=2, hidden=128, heads=2, ffn=512, vocab=30522, positions=512),
        _mlp("mlp", layers=8, width=256),
        _bert("bert-test", tokens=16, layers=2, hidden=32, heads=2, ffn=64, vocab=99, positions=32),
        _mlp("mlp-test", layers=3, width=32),
    )
}  # fmt: skip


def get_model(name: str) -> ModelSpec:
    """The catalogued model of that name; UnknownNameError names the nearest right one."""
    if name == IDENTITY.name:
        return IDENTITY
    if name not in ZOO:
        raise UnknownNameError("model", name, ZOO)
    return ZOO[name]
