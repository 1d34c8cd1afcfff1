"""Random networks of images: convolutions of every kind, pools, joins, enlargements and borders in any order, as the
parts of encoders, pyramids and U-Nets meet. The verifier proves their Programs, the compiled ones answer as onnx's
reference."""

from __future__ import annotations

from dataclasses import dataclass, field
from random import Random

import numpy as np
import pytest
from onnx import TensorProto

from mononn_core import compiler
from mononn_core.machine import Machine
from mononn_core.runtime.session import Session
from tests.core.networks import Builder
from tests.core.test_convolution import picture, reference

ACTIVATIONS = ("", "", "Relu", "Sigmoid", "Tanh", "LeakyRelu", "HardSwish", "SiLU")
POOLS = ((2, 2, 0), (3, 1, 1), (3, 2, 1), (5, 1, 2))
TRANSPOSED = ((2, 2, 0), (4, 2, 1), (3, 1, 1))
LARGEST = 400
"""Pixels of an image that is enlarged."""


@dataclass(frozen=True)
class Image:
    """A tensor [batch, channels, height, width] of a network."""

    name: str
    channels: int
    size: tuple[int, int]


@dataclass
class Network:
    """What is drawn so far. ``images``: of these the next operator takes one of the last five."""

    random: Random
    shape: tuple[int, int, int, int]
    builder: Builder = field(default_factory=lambda: Builder("random"))
    images: list[Image] = field(default_factory=list)

    def one_of(self, *values: int) -> int:
        return self.random.choice(values)

    def keep(self, name: str, channels: int, size: tuple[int, int]) -> None:
        self.images.append(Image(name, channels, size))

    def activate(self, name: str, channels: int, size: tuple[int, int]) -> None:
        act = self.random.choice(ACTIVATIONS)
        if act == "SiLU":
            name = self.builder.add("Mul", name, self.builder.add("Sigmoid", name))
        elif act:
            name = self.builder.add(act, name)
        self.keep(name, channels, size)

    def conv(self, x: Image) -> None:
        kernel, dilation, stride = self.one_of(1, 3, 3, 5), self.one_of(1, 1, 1, 2), self.one_of(1, 1, 2)
        before = self.one_of(dilation * (kernel // 2), dilation * (kernel // 2), 0)
        after = max(before - self.one_of(0, 0, 1), 0)
        group = self.one_of(1, 1, x.channels, 2 - x.channels % 2)
        channels = group * self.one_of(1, 2) if group == x.channels else group * self.one_of(2, 4, 8, 12)
        size = [(n + before + after - dilation * (kernel - 1) - 1) // stride + 1 for n in x.size]
        if min(size) >= 1:
            weights = self.builder.weight(channels, x.channels // group, kernel, kernel), self.builder.weight(channels)
            how = {"strides": [stride] * 2, "dilations": [dilation] * 2, "group": group}
            y = self.builder.add("Conv", x.name, *weights, pads=[before] * 2 + [after] * 2, **how)
            self.activate(y, channels, (size[0], size[1]))

    def transposed(self, x: Image) -> None:
        kernel, stride, pad = self.random.choice(TRANSPOSED)
        channels, size = self.one_of(4, 8, 20), [(n - 1) * stride + kernel - 2 * pad for n in x.size]
        if np.prod(x.size) <= LARGEST:
            weights = self.builder.weight(x.channels, channels, kernel, kernel), self.builder.weight(channels)
            y = self.builder.add("ConvTranspose", x.name, *weights, strides=[stride] * 2, pads=[pad] * 4)
            self.activate(y, channels, (size[0], size[1]))

    def pool(self, x: Image) -> None:
        kernel, stride, pad = self.random.choice(POOLS)
        size = [(n + 2 * pad - kernel) // stride + 1 for n in x.size]
        if min(size) >= 1:
            how = {"kernel_shape": [kernel] * 2, "strides": [stride] * 2, "pads": [pad] * 4}
            self.activate(self.builder.add("MaxPool", x.name, **how), x.channels, (size[0], size[1]))

    def concat(self, x: Image) -> None:
        alike = [image for image in self.images[1:] if image.size == x.size]
        if len(alike) > 1:
            parts = self.random.sample(alike, min(self.one_of(2, 2, 3), len(alike)))
            joined = self.builder.add("Concat", *(p.name for p in parts), axis=1)
            self.keep(joined, sum(p.channels for p in parts), x.size)

    def level(self, x: Image) -> None:
        """Of a U-Net: the image joined with what comes back from half its size."""
        if x.size[0] % 2 == x.size[1] % 2 == 0:
            small = self.builder.add("MaxPool", x.name, kernel_shape=[2, 2], strides=[2, 2])
            deep = self.builder.add("Conv", small, self.builder.weight(8, x.channels, 3, 3), pads=[1] * 4)
            up = self.builder.add("ConvTranspose", deep, self.builder.weight(8, 8, 2, 2), strides=[2, 2])
            parts = self.random.choice([(x.name, up), (up, x.name)])
            self.keep(self.builder.add("Concat", *parts, axis=1), x.channels + 8, x.size)

    def add(self, x: Image) -> None:
        other = self.random.choice([image for image in self.images if image.size == x.size])
        if other.channels == x.channels and other is not x:
            self.activate(self.builder.add("Add", x.name, other.name), x.channels, x.size)

    def gate(self, x: Image) -> None:
        """Squeeze and excite."""
        mean = self.builder.add("GlobalAveragePool", x.name)
        few = self.builder.add("Relu", self.builder.add("Conv", mean, self.builder.weight(4, x.channels, 1, 1)))
        all_of = self.builder.add("Sigmoid", self.builder.add("Conv", few, self.builder.weight(x.channels, 4, 1, 1)))
        self.keep(self.builder.add("Mul", x.name, all_of), x.channels, x.size)

    def resize(self, x: Image) -> None:
        if np.prod(x.size) <= LARGEST:
            scales = self.builder.constant(np.array([1, 1, 2, 2], np.float32))
            mode, where = self.random.choice([("nearest", "asymmetric"), ("linear", "half_pixel")])
            how = {"mode": mode, "coordinate_transformation_mode": where, "nearest_mode": "floor"}
            larger = self.builder.add("Resize", x.name, "", scales, **how)
            self.activate(larger, x.channels, (2 * x.size[0], 2 * x.size[1]))

    def pad(self, x: Image) -> None:
        top, left, bottom, right = (self.one_of(0, 1, 2) for _ in range(4))
        mode = self.random.choice(["constant", "edge", "reflect"])
        size = (x.size[0] + top + bottom, x.size[1] + left + right)
        if mode != "reflect" or min(x.size) > 2:
            widths = self.builder.ints(0, 0, top, left, 0, 0, bottom, right)
            self.keep(self.builder.add("Pad", x.name, widths, mode=mode), x.channels, size)

    def halves(self, x: Image) -> None:
        half = x.channels // 2
        for first, last in ((0, half), (half, x.channels)):
            if first < last:
                ends = (self.builder.ints(n) for n in (first, last, 1))
                self.activate(self.builder.add("Slice", x.name, *ends), last - first, x.size)

    def shuffle(self, x: Image) -> None:
        if x.channels % 2 == 0:
            n, *size = self.shape[0], *x.size
            split = self.builder.add("Reshape", x.name, self.builder.ints(n, 2, x.channels // 2, *size))
            mixed = self.builder.add("Transpose", split, perm=[0, 2, 1, 3, 4])
            whole = self.builder.add("Reshape", mixed, self.builder.ints(n, x.channels, *size))
            self.keep(whole, x.channels, x.size)


STEPS = (Network.conv, Network.transposed, Network.pool, Network.concat, Network.add, Network.gate)
STEPS += (Network.resize, Network.pad, Network.halves, Network.shuffle, Network.level, Network.concat)
STEPS += (Network.conv,) * 3


def network(seed: int) -> tuple[bytes, tuple[int, int, int, int]]:
    """A model of an input x and an output y, both images, and the shape of x."""
    random = Random(seed)
    batch, channels = random.choice([1, 1, 2, 3]), random.choice([1, 3, 4, 16])
    shape = (batch, channels, random.randint(8, 16), random.randint(8, 16))
    return drawn(Network(random, shape), random.randint(4, 15)), shape


def drawn(on: Network, steps: int) -> bytes:
    """The model of what is drawn in so many steps."""
    on.images.append(Image("x", on.shape[1], on.shape[2:]))
    for _ in range(steps):
        on.random.choice(STEPS)(on, on.random.choice(on.images[-5:]))
    y = on.images[-1]
    on.builder.add("Identity", y.name, output="y")
    outputs = {"y": (on.shape[0], y.channels, *y.size)}
    return on.builder.model({"x": (TensorProto.FLOAT, on.shape)}, outputs)


def prove(seed: int) -> compiler.Stages:
    """Any fault that the verifier finds is raised."""
    machine = Machine.named(("avx2", "avx512")[seed // 3 % 2])
    return compiler.lower(network(seed)[0], threads=1 + seed % 3, machine=machine)


@pytest.mark.parametrize(
    "first", [pytest.param(n, marks=pytest.mark.slow) if n % 40 else n for n in range(80, 200, 20)]
)
def test_programs_of_random_networks_are_proven(first: int) -> None:
    for seed in range(first, first + 20):
        prove(seed)


@pytest.mark.slow
@pytest.mark.parametrize("first", range(200, 3000, 200))
def test_programs_of_many_random_networks_are_proven(first: int) -> None:
    for seed in range(first, first + 200):
        prove(seed)


@pytest.mark.parametrize("seed", [s for s in range(80) if s // 3 % 2 == 0][::4])
def test_random_networks_answer_as_the_reference(seed: int) -> None:
    model, shape = network(seed)
    x = picture(shape)
    want = reference(model, x)
    with Session(compiler.build(prove(seed)), threads=1 + seed % 3) as session:
        got = session.run({"x": x})["y"]
    assert np.linalg.norm(got - want) <= 1e-5 * np.linalg.norm(want) + 1e-6
