"""The geometry of a convolution's windows over a matrix of pixels, as templates use it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

Pair = tuple[int, int]


@dataclass(frozen=True)
class Windows:
    """Windows over an image that lies as a matrix, a pixel a row.

    Attributes:
        kernel, strides, dilations: (vertical, horizontal).
        pitch: pixels between one image row and the next.
        width: output pixels of an image row.
        rows: output image rows of a whole task; the last task of a ragged domain has fewer.
    """

    kernel: Pair
    strides: Pair
    dilations: Pair
    pitch: int
    width: int
    rows: int

    @staticmethod
    def of(params: Mapping[str, Any]) -> Windows:
        """From a Task's ``params``; raises KeyError or TypeError where one is missing or misshapen."""
        pairs = ((int(v), int(h)) for v, h in (params[key] for key in ("kernel", "strides", "dilations")))
        kernel, strides, dilations = pairs
        return Windows(kernel, strides, dilations, *(int(params[key]) for key in ("pitch", "width", "rows")))

    def params(self) -> dict[str, Any]:
        """What :meth:`of` reads."""
        return dict(vars(self))

    @property
    def taps(self) -> int:
        return self.kernel[0] * self.kernel[1]

    @property
    def span(self) -> Pair:
        """Pixels a window covers, (vertical, horizontal)."""
        (kh, kw), (dh, dw) = self.kernel, self.dilations
        return (kh - 1) * dh + 1, (kw - 1) * dw + 1

    @property
    def reach(self) -> int:
        """Pixels from the start of an image row to the end of the last window over it."""
        return (self.width - 1) * self.strides[1] + self.span[1]

    @property
    def valid(self) -> bool:
        """Whether everything is positive and the windows of a row stay within the row."""
        numbers = (*self.kernel, *self.strides, *self.dilations, self.pitch, self.width, self.rows)
        return min(numbers) >= 1 and self.reach <= self.pitch

    def last_pixel(self, y: Any) -> Any:
        """Pixels from the first to the end of the last window of output image row ``y`` (a number or an Expr)."""
        return y * (self.strides[0] * self.pitch) + ((self.span[0] - 1) * self.pitch + self.reach)

    def pixels(self, rows: int) -> int:
        """Pixels that ``rows`` output image rows read, the unread ones between them included."""
        return int(self.last_pixel(rows - 1))

    def rows_in(self, pixels: int) -> int:
        """Output image rows whose windows lie within the first ``pixels`` pixels; at most :attr:`rows`."""
        if pixels < self.last_pixel(0):
            return 0
        return min(self.rows, (pixels - self.last_pixel(0)) // (self.strides[0] * self.pitch) + 1)

    def taps_of(self, pixels: np.ndarray[Any, Any]) -> list[np.ndarray[Any, Any]]:
        """For every tap the [rows, width, C] pixels it reads, of ``pixels`` [count, C]."""
        rows = self.rows_in(len(pixels))
        y = np.arange(rows)[:, None] * self.strides[0]
        x = np.arange(self.width)[None, :] * self.strides[1]
        places = np.ndindex(self.kernel)
        return [pixels[(y + i * self.dilations[0]) * self.pitch + x + j * self.dilations[1]] for i, j in places]
