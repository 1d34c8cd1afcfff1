"""The adapter of XLA beside BERT-base and ResNet-50 written for JAX by hand: is an imported network as fast?

In XLA's environment, with PYTHONPATH at the checkout: python tests/bench/native_jax.py bert|resnet MODEL_FOLDER
BUILD_FOLDER [RUNS]. BUILD_FOLDER is a build of the system xla. Both run in turn in one process.
"""

import sys
import time
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from mononn_bench.codec import read_record
from mononn_bench.measure.worker import aligned_copy
from mononn_bench.record import ModelRecord
from mononn_bench.systems.base import Task
from mononn_bench.systems.xla import Xla

RANDOM = np.random.default_rng(0)


def weight(*shape):
    return (RANDOM.standard_normal(shape) * 0.02).astype(np.float32)


def layer_norm(x, scale, shift):
    centred = x - x.mean(-1, keepdims=True)
    return centred * lax.rsqrt((centred**2).mean(-1, keepdims=True) + 1e-12) * scale + shift


def bert(tokens=128, width=768, heads=12, inner=3072, layers=12):
    """BERT-base's encoder of token numbers, mask and segments."""
    shapes = dict.fromkeys("qkvo", (width, width)) | {"up": (width, inner), "down": (inner, width)}
    blocks = [{k: (weight(*s), weight(s[1])) for k, s in shapes.items()} for _ in range(layers)]
    words, positions, segments = weight(30522, width), weight(512, width), weight(2, width)
    scale, shift, pooler = weight(width) + 1, weight(width), (weight(width, width), weight(width))

    def dense(x, pair):
        return x @ pair[0] + pair[1]

    def split(x):
        return x.reshape(1, tokens, heads, width // heads).transpose(0, 2, 1, 3)

    def network(ids, mask, types):
        x = jnp.asarray(words)[ids] + positions[:tokens] + jnp.asarray(segments)[types]
        x = layer_norm(x, scale, shift)
        bias = jnp.where(mask[:, None, None, :] > 0, 0.0, -3e38).astype(np.float32)
        for block in blocks:
            q, k, v = (split(dense(x, block[name])) for name in "qkv")
            scores = q @ k.swapaxes(-1, -2) * np.float32((width // heads) ** -0.5)
            mixed = (jax.nn.softmax(scores + bias, -1) @ v).transpose(0, 2, 1, 3).reshape(1, tokens, width)
            x = layer_norm(x + dense(mixed, block["o"]), scale, shift)
            x = layer_norm(
                x + dense(jax.nn.gelu(dense(x, block["up"]), approximate=False), block["down"]), scale, shift
            )
        return x, jnp.tanh(dense(x[:, 0], pooler))

    return network, [RANDOM.integers(0, 2, (1, tokens)) for _ in range(3)]


def resnet(stages=((3, 64), (4, 128), (6, 256), (3, 512))):
    """ResNet-50 of an image [1, 3, 224, 224], its batch norms scales and shifts."""

    def block(x, channels, kernel, stride, residual=None, last=False):
        pad = (kernel - 1) // 2
        y = lax.conv_general_dilated(
            x, weight(kernel, kernel, x.shape[-1], channels), (stride, stride), [(pad, pad)] * 2,
            dimension_numbers=("NHWC", "HWIO", "NHWC"),
        )  # fmt: skip
        y = y * (weight(channels) + 1) + weight(channels)
        y = y if residual is None else y + residual
        return y if last else jax.nn.relu(y)

    def network(image):
        x = block(image.transpose(0, 2, 3, 1), 64, 7, 2)
        around = [(0, 0), (1, 1), (1, 1), (0, 0)]
        x = lax.reduce_window(x, -jnp.inf, lax.max, (1, 3, 3, 1), (1, 2, 2, 1), around)
        for stage, (count, channels) in enumerate(stages):
            for i in range(count):
                stride = 2 if stage and not i else 1
                residual = x if i else block(x, 4 * channels, 1, stride, last=True)
                y = block(block(x, channels, 1, 1), channels, 3, stride)
                x = block(y, 4 * channels, 1, 1, residual)
        return x.mean((1, 2)) @ weight(2048, 1000) + weight(1000)

    return network, [RANDOM.standard_normal((1, 3, 224, 224)).astype(np.float32)]


def main():
    name, model_folder, build_folder = sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3])
    runs = int(sys.argv[4]) if len(sys.argv) > 4 else 20
    model = read_record(ModelRecord, model_folder / "model.json")
    system = Xla()
    system.load(Task(model, model_folder, build_folder, 1, "fp32", "cpu"))
    with np.load(model_folder / "reference.npz") as stored:
        system.bind({t.name: aligned_copy(stored[f"0/in/{t.name}"]) for t in model.inputs})
    network, inputs = {"bert": bert, "resnet": resnet}[name]()
    compiled = jax.jit(network).lower(*inputs).compile()
    calls = {"adapter": system.run, "native": lambda: jax.block_until_ready(compiled(*inputs))}
    seconds = {label: [] for label in calls}
    for _ in range(runs + 3):
        for label, call in calls.items():
            started = time.perf_counter()
            call()
            seconds[label].append(time.perf_counter() - started)
    ours, native = (np.median(seconds[label][3:]) * 1e3 for label in calls)
    print(f"{name}: adapter {ours:.1f} ms, native {native:.1f} ms, ratio {ours / native:.3f}")


if __name__ == "__main__":
    main()
