"""Seeded weights, scaled so that a deep network behaves like a trained one.

With a framework's default initialisation (standard deviation 0.02, zero biases, unit gains) activations shrink,
attention is uniform and a wrong kernel may pass unnoticed. Here every product and convolution keeps the variance of
its input at about 1 (LeCun, He), attention scores have a standard deviation of SCORE_STD, and biases, gains and shifts
are random. Statistics of batch norms come from data (mononn_bench.models.statistics).
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mononn_bench.models.zoo import ModelSpec

Rules = tuple[tuple[str, float], ...]
"""Parts of names and gains; the first that fits holds."""

SCORE_STD = 4.4
"""Standard deviation of attention scores: keeps the mean entropy of a row of attention below 0.7 log(n)."""
GELU_SECOND_MOMENT = 0.425
"""E[gelu(z)^2] for standard normal z."""
SILU_SECOND_MOMENT = 0.3557
"""E[silu(z)^2] likewise."""
GATED_SECOND_MOMENT = 0.1156
"""E[tanh(z)^2] E[sigmoid(z)^2] likewise."""
STATE_GAIN = 2.0
"""States of an LSTM are below 1, and of about 0.35; more than this, and rounding grows from token to token."""
RELU_GAIN = math.sqrt(2.0)
"""A ReLU halves the second moment (He et al. 2015)."""
CONTEXT_GAIN, FEED_FORWARD_GAIN = 0.3, 0.7
"""What the two branches of a layer add to the residual stream. With 1 the tokens of a random 12-layer encoder become
alike (rank collapse, Dong et al. 2021) and its attention uniform again."""
BRANCH_GAIN = 0.2
"""On the last norm of each branch that a convolutional network adds to a shortcut. Training starts it at 0 (Goyal et
al. 2017). With 1, batch norms of random layers make any rounding grow from layer to layer (Yang et al. 2019), which
those of trained networks do not.
"""
BIAS_STD = 0.1
SHIFT_STD = 0.1
GAIN_RANGE = (0.5, 1.5)
STATISTICS_SEED = 7919
"""Of the inputs that batch statistics and scales come from: none of them is measured or compared later."""
EXCITATION_GAIN = 2.0
"""Of the two products of a squeeze-and-excitation: means of channels are small beside their activations, and with 1
every channel would be multiplied by nearly the same number. With 4 single images would be multiplied by far more than
others."""
NORMS = ("LayerNorm", "layernorm", "layer_norm", "normalization", "batchnorm", "_norm.", ".norm.", "_bn.")
"""What tensors of a layer norm, RMS norm, group norm or batch norm have in their names."""


def generator(seed: int, name: str) -> np.random.Generator:
    """A generator that depends on the seed and the tensor's name alone, so the order of tensors does not matter."""
    digest = hashlib.sha256(f"{seed}:{name}".encode()).digest()
    return np.random.Generator(np.random.PCG64(int.from_bytes(digest[:16], "little")))


def _wide_rules(spec: ModelSpec) -> Rules:
    """Of the networks in models/wide.py."""
    layers = spec.config.get("stacks", 1) * spec.config.get("depth", 1)
    rules: Mapping[str, Rules] = {
        "regnet": (("attention", EXCITATION_GAIN),),
        "efficientnet": (("squeeze_excite", EXCITATION_GAIN),),
        "mobilenetv3": (("excitation", EXCITATION_GAIN), ("classifier", 1 / math.sqrt(SILU_SECOND_MOMENT))),
        "unet": (
            ("residual.convolution_in", 1 / math.sqrt(SILU_SECOND_MOMENT)),
            ("residual.convolution_out", CONTEXT_GAIN / math.sqrt(SILU_SECOND_MOMENT)),
            ("attention.query", math.sqrt(SCORE_STD)),
            ("attention.key", math.sqrt(SCORE_STD)),
            ("attention.projection", CONTEXT_GAIN),
            ("convolution_last", 1 / math.sqrt(SILU_SECOND_MOMENT)),
            ("convolution_first", 1.0),
        ),
        "wavenet": (
            ("start", 1 / spec.inputs[0].scale),
            ("residual", CONTEXT_GAIN / math.sqrt(GATED_SECOND_MOMENT)),
            ("skip", 1 / math.sqrt(GATED_SECOND_MOMENT * layers)),
            ("hidden", RELU_GAIN),
            ("logits", RELU_GAIN),
        ),
        "lstm": (("weight_ih_l0", math.sqrt(3.0)), ("weight_ih", STATE_GAIN), ("weight_hh", STATE_GAIN)),
    }
    return rules.get(spec.family, ())


def _gain(spec: ModelSpec, name: str) -> float:
    """Factor on 1/sqrt(fan_in) for the matrix or filter of that name (see the module's text)."""
    image_transformer: Rules = (
        ("q_proj", math.sqrt(SCORE_STD)),
        ("k_proj", math.sqrt(SCORE_STD)),
        ("o_proj", CONTEXT_GAIN),
        ("fc2", FEED_FORWARD_GAIN / math.sqrt(GELU_SECOND_MOMENT)),
    )
    rules: Mapping[str, Rules] = {
        "bert": (
            ("attention.self.query", math.sqrt(SCORE_STD)),
            ("attention.self.key", math.sqrt(SCORE_STD)),
            ("attention.output.dense", CONTEXT_GAIN),
            ("intermediate", 1.0),
            ("output.dense", FEED_FORWARD_GAIN / math.sqrt(GELU_SECOND_MOMENT)),
        ),
        "vit": image_transformer,
        "swin": image_transformer,
        "t5": (  # its scores are not divided by sqrt(d)
            ("Attention.q.", SCORE_STD / math.sqrt(spec.config.get("d_kv", 1))),
            ("Attention.o.", CONTEXT_GAIN),
            ("DenseReluDense.wo", FEED_FORWARD_GAIN * RELU_GAIN),
        ),
        "mlp": (("layers.0.", 1.0), ("layers.", RELU_GAIN)),
    }
    usual = RELU_GAIN if "convolution" in name else 1.0
    known = rules.get(spec.family) or _wide_rules(spec)
    return next((gain for part, gain in known if part in name), usual)


def seeded_tensor(spec: ModelSpec, name: str, shape: tuple[int, ...], seed: int) -> NDArray[np.float32]:
    """The float32 tensor `name` of that shape; the same arguments give the same bits."""
    random = generator(seed, name)
    norm = any(part in name for part in NORMS)
    if norm and name.endswith("weight"):
        return random.uniform(*GAIN_RANGE, size=shape).astype(np.float32)
    normal = random.standard_normal(shape, dtype=np.float32)
    if name.rpartition(".")[2].startswith("bias"):
        return normal * np.float32(SHIFT_STD if norm else BIAS_STD)
    if any(part in name for part in ("shared", "attention_bias", "bias_table")):
        return normal
    if "embeddings" in name and len(shape) < 4:
        return normal * np.float32(1 / math.sqrt(3))
    return normal * np.float32(_gain(spec, name) / math.sqrt(math.prod(shape[1:])))


def seeded_state(spec: ModelSpec, shapes: Mapping[str, tuple[int, ...]], seed: int) -> dict[str, NDArray[Any]]:
    """Every tensor of a module's parameters, given their shapes."""
    return {name: seeded_tensor(spec, name, shape, seed) for name, shape in shapes.items()}
