"""The networks of the suite, each written once over a few operators: PyTorch runs them, ONNX files are made of them.

Tensors have the names of the catalogue's modules (mononn_bench.models), so that the same seed gives the same weights as
there. Nothing here needs transformers: a bare GPU machine may have none. Shapes are those of BERT (Devlin et al. 2019),
ViT (Dosovitskiy et al. 2021), T5 (Raffel et al. 2020) and ResNet (He et al. 2016, as transformers lays it out).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from mononn_bench.models.zoo import ModelSpec

MASKED = -1e4
"""Added to a masked score: its weight is 0 in float32, and float16 can hold it."""
BUCKETS, FARTHEST = 32, 128
"""Of T5's relative positions."""
Tensor = Any
Maker = Callable[[], NDArray[Any]]
"""Makes a constant when it is first needed: a compiler that traces a network need not look into NumPy."""


class Operators(Protocol):
    """What a network is written in. `x @ W` is `linear` by the parameter's name (stored [out, in])."""

    def linear(self, x: Tensor, name: str, inner: int, outer: int, bias: bool = True) -> Tensor: ...
    def parameter(self, name: str, shape: tuple[int, ...]) -> Tensor: ...
    def constant(self, make: Maker) -> Tensor: ...
    def gather(self, table: Tensor, indices: Tensor) -> Tensor: ...
    def score_bias(self, table: Tensor, make: Maker) -> Tensor: ...
    def add(self, a: Tensor, b: Tensor) -> Tensor: ...
    def scale(self, x: Tensor, factor: float) -> Tensor: ...
    def layer_norm(self, x: Tensor, name: str, width: int, epsilon: float) -> Tensor: ...
    def rms_norm(self, x: Tensor, name: str, width: int, epsilon: float) -> Tensor: ...
    def activate(self, x: Tensor, kind: str) -> Tensor: ...
    def attention(self, q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None, heads: int, factor: float) -> Tensor: ...
    def mask_bias(self, mask: Tensor) -> Tensor: ...
    def convolution(self, x: Tensor, name: str, shape: tuple[int, ...], stride: int, bias: bool) -> Tensor: ...
    def batch_norm(self, x: Tensor, name: str, channels: int) -> Tensor: ...
    def max_pool(self, x: Tensor) -> Tensor: ...
    def mean_pixels(self, x: Tensor) -> Tensor: ...
    def tokens_of(self, image: Tensor) -> Tensor: ...
    def put_first(self, token: Tensor, x: Tensor) -> Tensor: ...
    def first_token(self, x: Tensor) -> Tensor: ...
    def output_of_table(self, x: Tensor, table: Tensor) -> Tensor: ...


def bert(ops: Operators, spec: ModelSpec, inputs: Mapping[str, Tensor]) -> list[Tensor]:
    """BERT: last hidden state [b, n, h] and pooler output [b, h]."""
    c, tokens = spec.config, spec.inputs[0].shape[1]
    h, eps = c["hidden_size"], 1e-12
    root = "bert.embeddings."
    x = ops.gather(ops.parameter(f"{root}word_embeddings.weight", (c["vocab_size"], h)), inputs["input_ids"])
    kinds = ops.parameter(f"{root}token_type_embeddings.weight", (c["type_vocab_size"], h))
    x = ops.add(x, ops.gather(kinds, inputs["token_type_ids"]))
    places = ops.parameter(f"{root}position_embeddings.weight", (c["max_position_embeddings"], h))
    x = ops.add(x, ops.gather(places, ops.constant(lambda: np.arange(tokens))))
    x = ops.layer_norm(x, f"{root}LayerNorm", h, eps)
    bias = ops.mask_bias(inputs["attention_mask"])
    for layer in range(c["num_hidden_layers"]):
        root = f"bert.encoder.layer.{layer}."
        q, k, v = (ops.linear(x, f"{root}attention.self.{part}", h, h) for part in ("query", "key", "value"))
        heads = c["num_attention_heads"]
        mixed = ops.attention(q, k, v, bias, heads, 1 / math.sqrt(h // heads))
        x = ops.add(ops.linear(mixed, f"{root}attention.output.dense", h, h), x)
        x = ops.layer_norm(x, f"{root}attention.output.LayerNorm", h, eps)
        up = ops.activate(ops.linear(x, f"{root}intermediate.dense", h, c["intermediate_size"]), "gelu")
        x = ops.add(ops.linear(up, f"{root}output.dense", c["intermediate_size"], h), x)
        x = ops.layer_norm(x, f"{root}output.LayerNorm", h, eps)
    pooled = ops.activate(ops.linear(ops.first_token(x), "bert.pooler.dense", h, h), "tanh")
    return [x, pooled]


def vit(ops: Operators, spec: ModelSpec, inputs: Mapping[str, Tensor]) -> list[Tensor]:
    """ViT: logits [b, labels] of images [b, 3, s, s]."""
    c = spec.config
    h, patch, heads = c["hidden_size"], c["patch_size"], c["num_attention_heads"]
    count, eps = (c["image_size"] // patch) ** 2, 1e-12
    root = "network.vit.embeddings."
    shape = (h, 3, patch, patch)
    x = ops.tokens_of(
        ops.convolution(inputs["pixel_values"], f"{root}patch_embeddings.projection", shape, patch, bias=True)
    )
    x = ops.put_first(ops.parameter(f"{root}cls_token", (1, 1, h)), x)
    x = ops.add(x, ops.parameter(f"{root}position_embeddings", (1, count + 1, h)))
    for layer in range(c["num_hidden_layers"]):
        root = f"network.vit.layers.{layer}."
        y = ops.layer_norm(x, f"{root}layernorm_before", h, eps)
        q, k, v = (ops.linear(y, f"{root}attention.{part}_proj", h, h) for part in "qkv")
        mixed = ops.attention(q, k, v, None, heads, 1 / math.sqrt(h // heads))
        x = ops.add(ops.linear(mixed, f"{root}attention.o_proj", h, h), x)
        y = ops.layer_norm(x, f"{root}layernorm_after", h, eps)
        y = ops.activate(ops.linear(y, f"{root}mlp.fc1", h, c["intermediate_size"]), "gelu")
        x = ops.add(ops.linear(y, f"{root}mlp.fc2", c["intermediate_size"], h), x)
    x = ops.first_token(ops.layer_norm(x, "network.vit.layernorm", h, eps))
    return [ops.linear(x, "network.classifier", h, c["num_labels"])]


def t5(ops: Operators, spec: ModelSpec, inputs: Mapping[str, Tensor]) -> list[Tensor]:
    """T5, one teacher-forced pass: logits [b, m, vocabulary]."""
    c = spec.config
    width = c["d_model"]
    table = ops.parameter("t5.shared.weight", (c["vocab_size"], width))
    read = ops.mask_bias(inputs["attention_mask"])
    sizes = {side: spec.inputs[0 if side == "encoder" else 2].shape[1] for side in ("encoder", "decoder")}
    x = _t5_side(ops, c, "encoder", sizes["encoder"], ops.gather(table, inputs["input_ids"]), read, None)
    y = _t5_side(ops, c, "decoder", sizes["decoder"], ops.gather(table, inputs["decoder_input_ids"]), read, x)
    return [ops.output_of_table(ops.scale(y, width**-0.5), table)]


def _t5_side(
    ops: Operators, c: Mapping[str, Any], side: str, tokens: int, x: Tensor, read: Tensor, memory: Tensor | None
) -> Tensor:
    """The encoder (``memory`` None) or the decoder that reads it; ``read`` masks the encoder's tokens."""
    width, inner, heads, eps = c["d_model"], c["d_kv"] * c["num_heads"], c["num_heads"], 1e-6
    decoder = memory is not None
    first = f"t5.{side}.block.0.layer.0.SelfAttention."
    places = ops.parameter(f"{first}relative_attention_bias.weight", (BUCKETS, heads))
    bias = ops.score_bias(places, lambda: _buckets(tokens, decoder))
    bias = ops.add(bias, ops.constant(lambda: _causal(tokens)) if decoder else read)

    def attend(x: Tensor, keys: Tensor, name: str, bias: Tensor) -> Tensor:
        q = ops.linear(x, f"{name}.q", width, inner, bias=False)
        k, v = (ops.linear(keys, f"{name}.{part}", width, inner, bias=False) for part in "kv")
        return ops.linear(ops.attention(q, k, v, bias, heads, 1.0), f"{name}.o", inner, width, bias=False)

    for layer in range(c["num_decoder_layers" if decoder else "num_layers"]):
        root = f"t5.{side}.block.{layer}.layer."
        y = ops.rms_norm(x, f"{root}0.layer_norm", width, eps)
        x = ops.add(x, attend(y, y, f"{root}0.SelfAttention", bias))
        if decoder:
            y = ops.rms_norm(x, f"{root}1.layer_norm", width, eps)
            x = ops.add(x, attend(y, memory, f"{root}1.EncDecAttention", read))
        last = 2 if decoder else 1
        y = ops.rms_norm(x, f"{root}{last}.layer_norm", width, eps)
        y = ops.activate(ops.linear(y, f"{root}{last}.DenseReluDense.wi", width, c["d_ff"], bias=False), "relu")
        x = ops.add(x, ops.linear(y, f"{root}{last}.DenseReluDense.wo", c["d_ff"], width, bias=False))
    return ops.rms_norm(x, f"t5.{side}.final_layer_norm", width, eps)


def _buckets(tokens: int, decoder: bool) -> NDArray[np.int64]:
    """The bucket [n, n] of each distance (Raffel et al. 2020, section 2.1)."""
    distance = np.arange(tokens)[None, :] - np.arange(tokens)[:, None]
    buckets, offset = BUCKETS, np.zeros_like(distance)
    if decoder:
        distance = np.maximum(-distance, 0)
    else:
        buckets //= 2
        offset = np.where(distance > 0, buckets, 0)
        distance = np.abs(distance)
    near = buckets // 2
    ratio = np.log(np.maximum(distance, 1).astype(np.float32) / near) / np.float32(math.log(FARTHEST / near))
    far = np.minimum(near + (ratio * (buckets - near)).astype(np.int64), buckets - 1)
    return offset + np.where(distance < near, distance, far)


def _causal(tokens: int) -> NDArray[np.float32]:
    return np.triu(np.full((1, 1, tokens, tokens), MASKED, np.float32), 1)


def resnet(ops: Operators, spec: ModelSpec, inputs: Mapping[str, Tensor]) -> list[Tensor]:
    """ResNet with bottleneck blocks: logits [b, labels] of images [b, 3, s, s]."""
    c = spec.config

    def unit(x: Tensor, name: str, ends: tuple[int, int], size: int, stride: int, relu: bool) -> Tensor:
        x = ops.convolution(x, f"{name}.convolution", (ends[1], ends[0], size, size), stride, bias=False)
        x = ops.batch_norm(x, f"{name}.normalization", ends[1])
        return ops.activate(x, "relu") if relu else x

    inner = c["embedding_size"]
    x = ops.max_pool(unit(inputs["pixel_values"], "network.resnet.embedder.embedder", (3, inner), 7, 2, True))
    for stage, (outer, depth) in enumerate(zip(c["hidden_sizes"], c["depths"], strict=True)):
        for block in range(depth):
            root = f"network.resnet.encoder.stages.{stage}.layers.{block}."
            stride, narrow = (2 if stage and not block else 1), outer // 4
            y = unit(x, f"{root}layer.0", (inner, narrow), 1, 1, True)
            y = unit(y, f"{root}layer.1", (narrow, narrow), 3, stride, True)
            y = unit(y, f"{root}layer.2", (narrow, outer), 1, 1, False)
            changed = stride != 1 or inner != outer
            x = ops.add(y, unit(x, f"{root}shortcut", (inner, outer), 1, stride, False) if changed else x)
            x, inner = ops.activate(x, "relu"), outer
    return [ops.linear(ops.mean_pixels(x), "network.classifier.1", inner, c["num_labels"])]


def mlp(ops: Operators, spec: ModelSpec, inputs: Mapping[str, Tensor]) -> list[Tensor]:
    """Linear and ReLU, `layers` times: y [b, width] of x [b, width]."""
    x, width = inputs["x"], spec.config["width"]
    for layer in range(spec.config["layers"]):
        x = ops.activate(ops.linear(x, f"layers.{layer}", width, width), "relu")
    return [x]


NETWORKS: Mapping[str, Callable[[Operators, ModelSpec, Mapping[str, Tensor]], list[Tensor]]] = {
    "bert": bert,
    "vit": vit,
    "t5": t5,
    "resnet": resnet,
    "mlp": mlp,
}
