"""The U-Net of denoising diffusion (Ho et al., "Denoising diffusion probabilistic models", 2020, appendix B): the
contracting and expanding paths of Ronneberger et al. (2015), of residual blocks with group norms (Wu and He 2018) and
SiLU, a step's number in every block, and self-attention where the image is small.

Import this file only where torch is installed.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional

LONGEST_PERIOD = 10_000.0
EPSILON = 1e-6
"""Of group norms, as in the paper's code."""


def step_table(steps: int, width: int) -> Tensor:
    """Sinusoids of each step's number, half sines and half cosines (Vaswani et al. 2017): float32 [steps, width]."""
    half = width // 2
    rates = torch.exp(torch.arange(half, dtype=torch.float64) * (-math.log(LONGEST_PERIOD) / (half - 1)))
    angles = torch.arange(steps, dtype=torch.float64)[:, None] * rates
    return torch.cat([angles.sin(), angles.cos()], 1).float()


class Steps(nn.Module):
    """Numbers [b] below `steps` -> [b, inner]: sinusoids [b, width], linear, SiLU, linear, SiLU."""

    table: Tensor

    def __init__(self, steps: int, width: int, inner: int) -> None:
        super().__init__()
        self.register_buffer("table", step_table(steps, width))
        self.first = nn.Linear(width, inner)
        self.second = nn.Linear(inner, inner)

    def forward(self, step: Tensor) -> Tensor:
        waves = functional.embedding(step, self.table)
        return functional.silu(self.second(functional.silu(self.first(waves))))


class Residual(nn.Module):
    """Twice group norm, SiLU and a 3x3 convolution, the step's vector added in between; added to the shortcut, which is
    a 1x1 convolution where the number of channels changes. [b, inputs, h, w] -> [b, outputs, h, w].
    """

    def __init__(self, inputs: int, outputs: int, step: int, groups: int) -> None:
        super().__init__()
        self.normalization_in = nn.GroupNorm(groups, inputs, EPSILON)
        self.convolution_in = nn.Conv2d(inputs, outputs, 3, padding=1)
        self.step = nn.Linear(step, outputs)
        self.normalization_out = nn.GroupNorm(groups, outputs, EPSILON)
        self.convolution_out = nn.Conv2d(outputs, outputs, 3, padding=1)
        self.shortcut = nn.Conv2d(inputs, outputs, 1) if inputs != outputs else nn.Identity()

    def forward(self, x: Tensor, step: Tensor) -> Tensor:
        y = self.convolution_in(functional.silu(self.normalization_in(x)))
        y = y + self.step(step)[:, :, None, None]
        y = self.convolution_out(functional.silu(self.normalization_out(y)))
        return self.shortcut(x) + y


class PixelAttention(nn.Module):
    """Self-attention of one head over the pixels of a group-normed image, added to it; [b, c, h, w] -> the same."""

    def __init__(self, channels: int, groups: int) -> None:
        super().__init__()
        self.normalization = nn.GroupNorm(groups, channels, EPSILON)
        self.query = nn.Conv2d(channels, channels, 1)
        self.key = nn.Conv2d(channels, channels, 1)
        self.value = nn.Conv2d(channels, channels, 1)
        self.projection = nn.Conv2d(channels, channels, 1)

    def forward(self, x: Tensor) -> Tensor:
        y = self.normalization(x)
        q, k, v = (part(y).flatten(2) for part in (self.query, self.key, self.value))
        weights = torch.softmax(q.transpose(1, 2) @ k * x.shape[1] ** -0.5, dim=-1)
        return x + self.projection((v @ weights.transpose(1, 2)).reshape(x.shape))


class Block(nn.Module):
    """A residual block, and where asked attention after it."""

    def __init__(self, inputs: int, outputs: int, step: int, groups: int, attends: bool) -> None:
        super().__init__()
        self.residual = Residual(inputs, outputs, step, groups)
        self.attention = PixelAttention(outputs, groups) if attends else nn.Identity()

    def forward(self, x: Tensor, step: Tensor) -> Tensor:
        return self.attention(self.residual(x, step))


class Unet(nn.Module):
    """The noise [b, 3, s, s] in images [b, 3, s, s] at steps [b], int64, of a diffusion of `steps`. Level i has
    `width * multiples[i]` channels, `depth` blocks on the way down and one more on the way up; blocks of the level
    `attends` attend to pixels.

    On the way down every result is kept, and on the way up each block takes one of them beside its own input.
    """

    def __init__(self, width: int, multiples: tuple[int, ...], depth: int, attends: int, groups: int,
                 steps: int) -> None:  # fmt: skip
        super().__init__()
        step = 4 * width
        widths = [width * multiple for multiple in multiples]
        self.steps = Steps(steps, width, step)
        self.convolution_first = nn.Conv2d(3, width, 3, padding=1)
        self.down, self.smaller = nn.ModuleList(), nn.ModuleList()
        kept, channels = [width], width
        for level, outputs in enumerate(widths):
            ends = [channels] + [outputs] * (depth - 1)
            self.down.append(nn.ModuleList(Block(c, outputs, step, groups, level == attends) for c in ends))
            kept, channels = kept + [outputs] * depth, outputs
            if level < len(widths) - 1:
                self.smaller.append(nn.Conv2d(channels, channels, 3, stride=2))
                kept.append(channels)
        self.middle = nn.ModuleList(Block(channels, channels, step, groups, first) for first in (True, False))
        self.up, self.larger = nn.ModuleList(), nn.ModuleList()
        for level, outputs in reversed(list(enumerate(widths))):
            ends = [channels] + [outputs] * depth
            blocks = (Block(c + kept.pop(), outputs, step, groups, level == attends) for c in ends)
            self.up.append(nn.ModuleList(blocks))
            channels = outputs
            if level:
                self.larger.append(nn.Conv2d(channels, channels, 3, padding=1))
        self.normalization_last = nn.GroupNorm(groups, channels, EPSILON)
        self.convolution_last = nn.Conv2d(channels, 3, 3, padding=1)

    def forward(self, image: Tensor, step: Tensor) -> Tensor:
        known = self.steps(step)
        x = self.convolution_first(image)
        kept = [x]
        for level, blocks in enumerate(self.down):
            for block in blocks:
                x = block(x, known)
                kept.append(x)
            if level < len(self.smaller):
                x = self.smaller[level](functional.pad(x, (0, 1, 0, 1)))
                kept.append(x)
        for block in self.middle:
            x = block(x, known)
        for level, blocks in enumerate(self.up):
            for block in blocks:
                x = block(torch.cat([x, kept.pop()], 1), known)
            if level < len(self.larger):
                x = self.larger[level](functional.interpolate(x, scale_factor=2.0, mode="nearest"))
        return self.convolution_last(functional.silu(self.normalization_last(x)))
