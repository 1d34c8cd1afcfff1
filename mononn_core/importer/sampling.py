"""Converter of GridSample: every tap is a gather, weighted and summed."""

from __future__ import annotations

from itertools import product
from typing import Any

from mononn_core.importer.context import Context, converts
from mononn_core.importer.movement import part

CUBIC = -0.75


class Sampler:
    """The steps of one GridSample; coordinates are float tensors [N, outputs..]."""

    def __init__(self, ctx: Context) -> None:
        self.ctx = ctx
        self.shape = ctx.type(0).shape
        self.spatial = self.shape[2:]
        self.aligned = bool(ctx.attr("align_corners", 0))
        self.padding = ctx.attr("padding_mode", "zeros")
        rank = len(self.shape)
        self.data = ctx.add("transpose", ctx.input(0), perm=(0, *range(2, rank), 1))

    def op(self, name: str, x: str, y: str | float) -> str:
        """A binary operator with a tensor or a number."""
        return self.ctx.add(name, x, y if isinstance(y, str) else self.ctx.like(y, x))

    def coordinates(self) -> list[str]:
        """Positions along each spatial axis, in elements."""
        ctx, d = self.ctx, len(self.spatial)
        shape = ctx.type(1).shape[:-1]
        found = []
        for axis, n in enumerate(self.spatial):
            g = ctx.reshape(part(ctx, ctx.input(1), d + 1, d - 1 - axis, 1), shape)
            g = self.op("add", g, 1.0)
            found.append(
                self.op("mul", g, (n - 1) / 2) if self.aligned else self.op("sub", self.op("mul", g, n / 2), 0.5)
            )
        return found

    def bounded(self, x: str, n: int) -> str:
        """Coordinates moved inside, for the padding modes border and reflection."""
        if self.padding == "border":
            return self.ctx.add("clip", x, low=0.0, high=float(n - 1))
        if self.padding == "reflection":
            low, high = (0.0, n - 1.0) if self.aligned else (-0.5, n - 0.5)
            span = high - low
            if span == 0:
                return self.op("mul", x, 0.0)
            folded = self.op("mod", self.op("sub", x, low), 2 * span)
            mirrored = self.ctx.add("min", folded, self.op("add", self.ctx.add("neg", folded), 2 * span))
            return self.ctx.add("clip", self.op("add", mirrored, low), low=0.0, high=float(n - 1))
        return x

    def tap(self, positions: list[str]) -> str:
        """The data [N, outputs.., C] at whole positions; zero outside (padding mode zeros)."""
        ctx = self.ctx
        inside, columns = "", []
        shape = (*ctx.type(positions[0]).shape, 1)
        for x, n in zip(positions, self.spatial, strict=True):
            if self.padding == "zeros":
                test = ctx.add("and", self.op("greater_equal", x, 0.0), self.op("less_equal", x, n - 1.0))
                inside = ctx.add("and", inside, test) if inside else test
            index = ctx.add("cast", ctx.add("clip", x, low=0.0, high=float(n - 1)), to="int64")
            columns.append(ctx.reshape(index, shape))
        indices = columns[0] if len(columns) == 1 else ctx.add("concat", *columns, axis=len(shape) - 1)
        value = ctx.add("gather_nd", self.data, indices, batch_dims=1)
        if not inside:
            return value
        return ctx.add("where", ctx.reshape(inside, shape), value, ctx.like(0, value))

    def weighted(self, taps: list[list[tuple[str, str]]]) -> str:
        """Sum over all combinations of (position, weight), one list an axis."""
        ctx, total = self.ctx, ""
        for combination in product(*taps):
            value = self.tap([position for position, _ in combination])
            weight = combination[0][1]
            for _, more in combination[1:]:
                weight = ctx.add("mul", weight, more)
            term = ctx.add("mul", value, ctx.reshape(weight, (*ctx.type(weight).shape, 1)))
            total = ctx.add("add", total, term) if total else term
        return total

    def linear(self, x: str) -> list[tuple[str, str]]:
        low = self.ctx.add("floor", x)
        upper = self.ctx.add("sub", x, low)
        return [(low, self.op("add", self.ctx.add("neg", upper), 1.0)), (self.op("add", low, 1.0), upper)]

    def cubic(self, x: str, n: int) -> list[tuple[str, str]]:
        """Keys' kernel; positions are bounded tap by tap."""
        low = self.ctx.add("floor", x)
        t = self.ctx.add("sub", x, low)
        taps = []
        for k in range(-1, 3):
            distance = self.ctx.add("abs", self.op("sub", t, float(k)))
            near = self._horner(distance, (CUBIC + 2, -(CUBIC + 3), 0.0, 1.0))
            far = self._horner(distance, (CUBIC, -5 * CUBIC, 8 * CUBIC, -4 * CUBIC))
            weight = self.ctx.add("where", self.op("less_equal", distance, 1.0), near, far)
            taps.append((self.bounded(self.op("add", low, float(k)), n), weight))
        return taps

    def _horner(self, x: str, coefficients: tuple[float, ...]) -> str:
        total = self.op("mul", x, coefficients[0])
        for c in coefficients[1:-1]:
            total = self.ctx.add("mul", self.op("add", total, c), x)
        return self.op("add", total, coefficients[-1])


@converts("GridSample")
def grid_sample(ctx: Context) -> str:
    sampler = Sampler(ctx)
    mode = {"bilinear": "linear", "bicubic": "cubic"}.get(ctx.attr("mode", "linear"), ctx.attr("mode", "linear"))
    found: list[Any] = sampler.coordinates()
    pairs = list(zip(found, sampler.spatial, strict=True))
    if mode == "cubic":
        y = sampler.weighted([sampler.cubic(x, n) for x, n in pairs])
    elif mode == "nearest":
        y = sampler.tap([sampler.bounded(ctx.add("round", x), n) for x, n in pairs])
    else:
        y = sampler.weighted([sampler.linear(sampler.bounded(x, n)) for x, n in pairs])
    rank = len(sampler.shape)
    return ctx.add("transpose", y, perm=(0, rank - 1, *range(1, rank - 1)))
