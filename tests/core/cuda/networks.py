"""Small networks of the kinds that the CUDA schedule is made for, beside those of :mod:`tests.core.networks`."""

from __future__ import annotations

import numpy as np
from onnx import TensorProto

from tests.core.networks import Builder


def _norm(b: Builder, x: str, width: int) -> str:
    """T5's norm: the root mean square, no mean taken off."""
    squares = b.add("ReduceMean", b.add("Pow", x, b.constant(np.float32(2).reshape(()))), b.ints(-1), keepdims=1)
    root = b.add("Sqrt", b.add("Add", squares, b.constant(np.float32(1e-6).reshape(()))))
    return b.add("Mul", b.weight(width), b.add("Div", x, root))


def _attend(b: Builder, x: str, memory: str, sizes: tuple[int, int, int, int], bias: str = "") -> str:
    """Attention of ``x`` over ``memory``, projected; sizes: rows, keys, width, heads."""
    rows, keys, width, heads = sizes

    def split(source: str, count: int) -> str:
        shape = b.ints(1, count, heads, width // heads)
        return b.add(
            "Transpose", b.add("Reshape", b.add("MatMul", source, b.weight(width, width)), shape), perm=[0, 2, 1, 3]
        )

    q, k, v = split(x, rows), split(memory, keys), split(memory, keys)
    score = b.add("MatMul", q, b.add("Transpose", k, perm=[0, 1, 3, 2]))
    score = b.add("Add", score, bias) if bias else score
    mixed = b.add("Transpose", b.add("MatMul", b.add("Softmax", score, axis=-1), v), perm=[0, 2, 1, 3])
    return b.add("MatMul", b.add("Reshape", mixed, b.ints(1, rows, width)), b.weight(width, width))


def translator(layers: int = 2, rows: int = 3, keys: int = 6, width: int = 16, heads: int = 2) -> bytes:
    """A T5-like encoder and decoder: pre-norm, ReLU, biases of the scores, attention over the encoder."""
    b = Builder("translator")
    hidden = 2 * width

    def feed(x: str) -> str:
        inner = b.add("Relu", b.add("MatMul", _norm(b, x, width), b.weight(width, hidden)))
        return b.add("Add", x, b.add("MatMul", inner, b.weight(hidden, width)))

    def attend(x: str, memory: str, sizes: tuple[int, int], bias: str = "") -> str:
        normed = _norm(b, x, width)
        return b.add("Add", x, _attend(b, normed, memory or normed, (*sizes, width, heads), bias))

    x = b.add("Gather", b.weight(11, width), "ids")
    bias = b.add("Unsqueeze", b.weight(heads, keys, keys), b.ints(0))
    for _ in range(layers):
        x = feed(attend(x, "", (keys, keys), bias))
    memory = _norm(b, x, width)
    y = b.add("Gather", b.weight(11, width), "starts")
    for _ in range(layers):
        y = attend(y, "", (rows, rows))
        y = feed(attend(y, memory, (rows, keys)))
    b.add("MatMul", _norm(b, y, width), b.weight(width, 11), output="y")
    inputs = {"ids": (TensorProto.INT64, (1, keys)), "starts": (TensorProto.INT64, (1, rows))}
    return b.model(inputs, {"y": (1, rows, 11)})


def patches(layers: int = 2, size: int = 12, patch: int = 4, width: int = 16, heads: int = 2) -> bytes:
    """A ViT-like encoder of an image's patches and one token more; the class of the first token."""
    b = Builder("patches")
    tokens = (size // patch) ** 2 + 1
    x = b.add("Conv", "x", b.weight(width, 4, patch, patch), b.weight(width), strides=[patch] * 2)
    x = b.add("Transpose", b.add("Reshape", x, b.ints(1, width, tokens - 1)), perm=[0, 2, 1])
    x = b.add("Add", b.add("Concat", b.weight(1, 1, width), x, axis=1), b.weight(1, tokens, width))
    for _ in range(layers):
        normed = b.add("LayerNormalization", x, b.weight(width), b.weight(width), epsilon=1e-5)
        x = b.add("Add", x, _attend(b, normed, normed, (tokens, tokens, width, heads)))
        normed = b.add("LayerNormalization", x, b.weight(width), b.weight(width), epsilon=1e-5)
        x = b.add("Add", x, b.linear(b.add("Gelu", b.linear(normed, width, 3 * width)), 3 * width, width))
    first = b.add("Gather", x, b.ints(0), axis=1)
    b.add("MatMul", first, b.weight(width, 5), output="y")
    return b.model({"x": (TensorProto.FLOAT, (1, 4, size, size))}, {"y": (1, 1, 5)})


def convolutions(size: int = 9, channels: int = 8) -> bytes:
    """A small residual network: 3x3 and 1x1 convolutions, one of them strided, poolings, a classifier."""
    b = Builder("convolutions")
    x = b.add("Relu", b.add("Conv", "x", b.weight(channels, 3, 3, 3), b.weight(channels), pads=[1, 1, 1, 1]))
    x = b.add("MaxPool", x, kernel_shape=[3, 3], strides=[2, 2], pads=[1, 1, 1, 1])
    y = b.add("Relu", b.add("Conv", x, b.weight(channels, channels, 1, 1), b.weight(channels)))
    y = b.add("Conv", y, b.weight(channels, channels, 3, 3), b.weight(channels), pads=[1, 1, 1, 1])
    x = b.add("Relu", b.add("Add", x, y))
    x = b.add("Conv", x, b.weight(2 * channels, channels, 3, 3), strides=[2, 2])
    x = b.add("Flatten", b.add("GlobalAveragePool", x))
    b.add("MatMul", x, b.weight(2 * channels, 5), output="y")
    return b.model({"x": (TensorProto.FLOAT, (2, 3, size, size))}, {"y": (2, 5)})


def mobile(size: int = 13, images: int = 1, channels: int = 8, groups: int = 24) -> bytes:
    """MobileNet-like: a strided stem, an inverted residual with squeeze and excitation, a strided one of 5x5, a
    classifier. ``groups`` of the first depthwise convolution of 24 channels."""
    b = Builder("mobile")
    wide = 3 * channels

    def conv(x: str, outputs: int, inputs: int, kernel: int = 1, **attributes: object) -> str:
        w = b.random.standard_normal((outputs, inputs, kernel, kernel)).astype(np.float32) / (kernel * inputs**0.5)
        return b.add("Conv", x, b.constant(w), b.weight(outputs), pads=[kernel // 2] * 4, **attributes)

    def relu6(x: str) -> str:
        return b.add("Clip", x, *(b.constant(np.float32(end).reshape(())) for end in (0, 6)))

    x = relu6(conv("x", channels, 3, 3, strides=[2, 2]))
    y = relu6(conv(relu6(conv(x, wide, channels)), wide, wide // groups, 3, group=groups))
    gate = b.add("Relu", conv(b.add("GlobalAveragePool", y), channels, wide))
    y = b.add("Mul", y, b.add("Sigmoid", conv(gate, wide, channels)))
    x = b.add("Add", x, conv(y, channels, wide))
    y = relu6(conv(relu6(conv(x, wide, channels)), wide, 1, 5, group=wide, strides=[2, 2]))
    y = b.add("Flatten", b.add("GlobalAveragePool", conv(y, 2 * channels, wide)))
    b.add("MatMul", y, b.weight(2 * channels, 5), output="y")
    return b.model({"x": (TensorProto.FLOAT, (images, 3, size, size))}, {"y": (images, 5)})


def convnext(size: int = 16, channels: int = 12, layers: int = 2) -> bytes:
    """ConvNeXt-like: patches, then depthwise 7x7, norm and products over the channels; an image is padded and added."""
    b = Builder("convnext")
    x = b.add("Conv", "x", b.weight(channels, 3, 4, 4), b.weight(channels), strides=[4, 4])
    for _ in range(layers):
        y = b.add("Conv", x, b.weight(channels, 1, 7, 7), b.weight(channels), pads=[3] * 4, group=channels)
        y = b.add("Transpose", y, perm=[0, 2, 3, 1])
        y = b.add("LayerNormalization", y, b.weight(channels), b.weight(channels), epsilon=1e-6)
        y = b.linear(b.add("Gelu", b.linear(y, channels, 4 * channels)), 4 * channels, channels)
        x = b.add("Add", x, b.add("Transpose", y, perm=[0, 3, 1, 2]))
    b.add("MatMul", b.add("Flatten", b.add("GlobalAveragePool", x)), b.weight(channels, 5), output="y")
    return b.model({"x": (TensorProto.FLOAT, (1, 3, size, size))}, {"y": (1, 5)})
