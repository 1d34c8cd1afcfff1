"""Names and shapes of the tensors in published checkpoints, written down from the files themselves, of any size."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from typing import Any

Shape = tuple[int, ...]
Named = Iterator[tuple[str, Shape]]
COUNTER = "num_batches_tracked"


def both(name: str, *shape: int) -> Named:
    """A weight of that shape and its bias."""
    yield f"{name}.weight", shape
    yield f"{name}.bias", shape[:1]


def old_norm(name: str, width: int) -> Named:
    """A layer norm as TensorFlow's BERT calls its two tensors."""
    yield f"{name}.gamma", (width,)
    yield f"{name}.beta", (width,)


def bert(config: Mapping[str, Any]) -> Named:
    """google-bert/bert-base-uncased, its two pretraining heads included; their decoder is the embedding."""
    wide, ffn, words = config["hidden_size"], config["intermediate_size"], config["vocab_size"]
    yield "bert.embeddings.word_embeddings.weight", (words, wide)
    yield "bert.embeddings.position_embeddings.weight", (config["max_position_embeddings"], wide)
    yield "bert.embeddings.token_type_embeddings.weight", (2, wide)
    yield from old_norm("bert.embeddings.LayerNorm", wide)
    for layer in range(config["num_hidden_layers"]):
        path = f"bert.encoder.layer.{layer}"
        for part in ("query", "key", "value"):
            yield from both(f"{path}.attention.self.{part}", wide, wide)
        yield from both(f"{path}.attention.output.dense", wide, wide)
        yield from old_norm(f"{path}.attention.output.LayerNorm", wide)
        yield from both(f"{path}.intermediate.dense", ffn, wide)
        yield from both(f"{path}.output.dense", wide, ffn)
        yield from old_norm(f"{path}.output.LayerNorm", wide)
    yield from both("bert.pooler.dense", wide, wide)
    yield "cls.predictions.bias", (words,)
    yield from both("cls.predictions.transform.dense", wide, wide)
    yield from old_norm("cls.predictions.transform.LayerNorm", wide)
    yield from both("cls.seq_relationship", 2, wide)


def vit(config: Mapping[str, Any]) -> Named:
    """google/vit-base-patch16-224."""
    wide, ffn, patch = config["hidden_size"], config["intermediate_size"], config["patch_size"]
    yield "vit.embeddings.cls_token", (1, 1, wide)
    yield "vit.embeddings.position_embeddings", (1, (config["image_size"] // patch) ** 2 + 1, wide)
    yield from both("vit.embeddings.patch_embeddings.projection", wide, 3, patch, patch)
    for layer in range(config["num_hidden_layers"]):
        path = f"vit.encoder.layer.{layer}"
        for part in ("query", "key", "value"):
            yield from both(f"{path}.attention.attention.{part}", wide, wide)
        yield from both(f"{path}.attention.output.dense", wide, wide)
        yield from both(f"{path}.intermediate.dense", ffn, wide)
        yield from both(f"{path}.output.dense", wide, ffn)
        yield from both(f"{path}.layernorm_before", wide)
        yield from both(f"{path}.layernorm_after", wide)
    yield from both("vit.layernorm", wide)
    yield from both("classifier", config["num_labels"], wide)


def t5(config: Mapping[str, Any]) -> Named:
    """google-t5/t5-small: one embedding for encoder, decoder and head; a bias in cross-attention that nothing reads."""
    wide, inner, heads = config["d_model"], config["num_heads"] * config["d_kv"], config["num_heads"]
    yield "shared.weight", (config["vocab_size"], wide)
    for side, kinds in (("encoder", ("SelfAttention",)), ("decoder", ("SelfAttention", "EncDecAttention"))):
        for block in range(config["num_layers"]):
            path = f"{side}.block.{block}.layer"
            for layer, kind in enumerate(kinds):
                for part in "qkv":
                    yield f"{path}.{layer}.{kind}.{part}.weight", (inner, wide)
                yield f"{path}.{layer}.{kind}.o.weight", (wide, inner)
                if block == 0:
                    yield f"{path}.{layer}.{kind}.relative_attention_bias.weight", (32, heads)
                yield f"{path}.{layer}.layer_norm.weight", (wide,)
            yield f"{path}.{len(kinds)}.DenseReluDense.wi.weight", (config["d_ff"], wide)
            yield f"{path}.{len(kinds)}.DenseReluDense.wo.weight", (wide, config["d_ff"])
            yield f"{path}.{len(kinds)}.layer_norm.weight", (wide,)
        yield f"{side}.final_layer_norm.weight", (wide,)


def batch_norm(name: str, width: int) -> Named:
    """Gain, shift, the two statistics, and how many batches they are of."""
    yield from both(name, width)
    yield f"{name}.running_mean", (width,)
    yield f"{name}.running_var", (width,)
    yield f"{name}.{COUNTER}", ()


def resnet(config: Mapping[str, Any]) -> Named:
    """timm/resnet50.a1_in1k."""
    inputs = config["embedding_size"]
    yield "conv1.weight", (inputs, 3, 7, 7)
    yield from batch_norm("bn1", inputs)
    for stage, (depth, outputs) in enumerate(zip(config["depths"], config["hidden_sizes"], strict=True), 1):
        for block in range(depth):
            path, middle = f"layer{stage}.{block}", outputs // 4
            shapes = ((middle, inputs, 1, 1), (middle, middle, 3, 3), (outputs, middle, 1, 1))
            for index, shape in enumerate(shapes, 1):
                yield f"{path}.conv{index}.weight", shape
                yield from batch_norm(f"{path}.bn{index}", shape[0])
            if block == 0:
                yield f"{path}.downsample.0.weight", (outputs, inputs, 1, 1)
                yield from batch_norm(f"{path}.downsample.1", outputs)
            inputs = outputs
    yield from both("fc", config["num_labels"], inputs)


PUBLISHED = {"bert": bert, "vit": vit, "t5": t5, "resnet": resnet}


def file_bytes(tensors: Mapping[str, Shape], *, ordered: bool, metadata: bool) -> int:
    """The size of a safetensors file of these float32 tensors (COUNTERs: int64). `ordered`: widest type first, then
    by name, the header filled up to 8 bytes, as its writer has done since 0.3; before, in any order and not filled up.
    """
    names = sorted(tensors, key=lambda name: (not name.endswith(COUNTER), name)) if ordered else list(tensors)
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}} if metadata else {}
    end = 0
    for name in names:
        counter, start = name.endswith(COUNTER), end
        end += math.prod(tensors[name]) * (8 if counter else 4)
        kind = "I64" if counter else "F32"
        header[name] = {"dtype": kind, "shape": list(tensors[name]), "data_offsets": [start, end]}
    text = len(json.dumps(header, separators=(",", ":")))
    return 8 + (math.ceil(text / 8) * 8 if ordered else text) + end
