"""What several networks of the catalogue are built from. Import this file only where torch is installed."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

CONVOLUTIONS = {2: nn.Conv2d, 3: nn.Conv3d}
NORMS = {2: nn.BatchNorm2d, 3: nn.BatchNorm3d}


class Unit(nn.Module):
    """Convolution without bias from `ends[0]` to `ends[1]` channels, batch norm, and an activation or None.

    `size` and `stride`, one number for each of two or three axes or one for all, leave odd kernels centred.
    """

    def __init__(self, ends: tuple[int, int], size: int | tuple[int, ...], stride: int | tuple[int, ...] = 1,
                 groups: int = 1, activation: Callable[[Tensor], Tensor] | None = torch.relu,
                 axes: int = 2) -> None:  # fmt: skip
        super().__init__()
        sizes = (size,) * axes if isinstance(size, int) else size
        padding = tuple(s // 2 for s in sizes)
        self.convolution = CONVOLUTIONS[axes](*ends, sizes, stride, padding, groups=groups, bias=False)
        self.normalization = NORMS[axes](ends[1])
        self.activation = activation

    def forward(self, x: Tensor) -> Tensor:
        x = self.normalization(self.convolution(x))
        return x if self.activation is None else self.activation(x)
