"""Seeded weights, scaled so that a deep network behaves like a trained one.

With a framework's default initialisation (standard deviation 0.02, zero biases, unit gains) activations shrink,
attention is uniform and a wrong kernel may pass unnoticed. Here every product keeps the variance of its input at
about 1 (LeCun, He), attention scores have a standard deviation of SCORE_STD, and biases, gains and shifts are random.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

SCORE_STD = 4.4
"""Standard deviation of q.k/sqrt(d): keeps the mean entropy of a row of attention below 0.7 log(n)."""
GELU_SECOND_MOMENT = 0.425
"""E[gelu(z)^2] for standard normal z."""
CONTEXT_GAIN, FEED_FORWARD_GAIN = 0.3, 0.7
"""What the two branches of a layer add to the residual stream. With 1 the tokens of a random 12-layer encoder become
alike (rank collapse, Dong et al. 2021) and its attention uniform again."""
BIAS_STD = 0.1
SHIFT_STD = 0.1
GAIN_RANGE = (0.5, 1.5)


def generator(seed: int, name: str) -> np.random.Generator:
    """A generator that depends on the seed and the tensor's name alone, so the order of tensors does not matter."""
    digest = hashlib.sha256(f"{seed}:{name}".encode()).digest()
    return np.random.Generator(np.random.PCG64(int.from_bytes(digest[:16], "little")))


def _gain(name: str) -> float:
    """Factor on 1/sqrt(fan_in) for the matrix of that name (see the module's text)."""
    if "attention.self.query" in name or "attention.self.key" in name:
        return math.sqrt(SCORE_STD)
    if "attention.output.dense" in name:
        return CONTEXT_GAIN
    if "intermediate" not in name and "attention" not in name and "output.dense" in name:
        return FEED_FORWARD_GAIN / math.sqrt(GELU_SECOND_MOMENT)
    if name.startswith("layers."):  # a ReLU halves the second moment (He et al. 2015)
        return 1.0 if name.startswith("layers.0.") else math.sqrt(2.0)
    return 1.0


def seeded_tensor(name: str, shape: tuple[int, ...], seed: int) -> NDArray[np.float32]:
    """The float32 tensor `name` of that shape; the same arguments give the same bits."""
    random = generator(seed, name)
    if "LayerNorm" in name and name.endswith("weight"):
        return random.uniform(*GAIN_RANGE, size=shape).astype(np.float32)
    normal = random.standard_normal(shape, dtype=np.float32)
    if name.endswith("bias"):
        return normal * np.float32(SHIFT_STD if "LayerNorm" in name else BIAS_STD)
    if "embeddings" in name:
        return normal * np.float32(1 / math.sqrt(3))
    return normal * np.float32(_gain(name) / math.sqrt(shape[-1]))


def seeded_state(shapes: Mapping[str, tuple[int, ...]], seed: int) -> dict[str, NDArray[np.float32]]:
    """Every tensor of a state dictionary, given its shapes."""
    return {name: seeded_tensor(name, shape, seed) for name, shape in shapes.items()}
