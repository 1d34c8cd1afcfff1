"""The random networks of test_random_images.py, quantised: weights by one scale or one a channel, most images between
operators by one of several. What is compiled for each kind of processor answers as the model's own operators do, one
by one."""

from __future__ import annotations

from dataclasses import dataclass, replace
from random import Random

import numpy as np
import pytest

from mononn_core import compiler
from mononn_core.importer import load
from mononn_core.machine import Machine
from mononn_core.runtime.session import Session
from tests.core.test_convolution import picture
from tests.core.test_quantised import HERE, STEP, Quantised, real
from tests.core.test_random_images import Network, drawn

MACHINES = [m for name in ("avx512", "avx2") if (m := Machine.named(name)).features <= HERE.features]
MACHINES.append(replace(Machine.named("avx512"), features=Machine.named("avx512").features | {"avx512vnni"}))
SCALES = ((STEP, 117), (STEP, 117), (0.53 * STEP, 0), (1.87 * STEP, 255))
"""Of images, with their zero points as uint8; no multiple of another, which would be a tie."""
ROUNDED = 0.8
"""Of images are quantised."""


class Weights(Quantised):
    """Draws quantised weights of convolutions."""

    def weight(self, *shape: int) -> str:
        return self.quantised_weight(*shape, axis=0) if len(shape) == 4 else super().weight(*shape)


@dataclass
class Rounded(Network):
    """A network of quantised images."""

    def keep(self, name: str, channels: int, size: tuple[int, int]) -> None:
        if self.random.random() < ROUNDED:
            step, zero = self.random.choice(SCALES)
            signed = self.random.random() < 0.3
            point = np.int8(zero - 128) if signed else np.uint8(zero)
            scale = self.builder.constant(np.float32(step)), self.builder.constant(point)
            name = self.builder.add("DequantizeLinear", self.builder.add("QuantizeLinear", name, *scale), *scale)
        super().keep(name, channels, size)


def network(seed: int) -> tuple[bytes, tuple[int, int, int, int]]:
    """A model of an input x and an output y, both images, and the shape of x."""
    random = Random(seed)
    shape = (random.choice([1, 1, 2]), random.choice([1, 3, 4, 16]), random.randint(8, 16), random.randint(8, 16))
    builder = Weights("uint8", random.choice(["int8", "int8", "uint8"]), random.random() < 0.5)
    return drawn(Rounded(random, shape, builder), random.randint(3, 12)), shape


def judge(seed: int, compiled: bool) -> None:
    """Any fault that the verifier finds is raised."""
    model, shape = network(seed)
    threads = 1 + seed % 3
    stages = compiler.lower(model, threads=threads, machine=MACHINES[seed // 3 % len(MACHINES)])
    if compiled and stages.machine.features <= HERE.features:
        x = picture(shape)
        want = real(load(model), x)
        with Session(compiler.build(stages), threads=threads) as session:
            got = session.run({"x": x})["y"]
        apart = np.abs(got - want) > 1e-4 * np.abs(want).max()
        assert apart.mean() < 0.02, "a few sums that lie between two bytes are rounded the other way"
        assert np.linalg.norm(got - want) <= 2e-2 * np.linalg.norm(want) + 1e-5


@pytest.mark.parametrize("first", range(40, 100, 20))
def test_programs_of_random_networks_are_proven(first: int) -> None:
    for seed in range(first, first + 20):
        judge(seed, compiled=False)


@pytest.mark.parametrize("first", [pytest.param(n, marks=pytest.mark.slow) if n % 10 else n for n in range(0, 40, 5)])
def test_random_networks_answer_as_their_operators_do(first: int) -> None:
    for seed in range(first, first + 5):
        judge(seed, compiled=True)


@pytest.mark.slow
@pytest.mark.parametrize("first", range(100, 1500, 100))
def test_many_random_networks_answer_as_their_operators_do(first: int) -> None:
    for seed in range(first, first + 100):
        judge(seed, compiled=True)
