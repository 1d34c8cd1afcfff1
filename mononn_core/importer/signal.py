"""Converters of Fourier transforms: products with constant matrices of cosines and sines."""

from __future__ import annotations

import numpy as np

from mononn_core.importer.context import Context, converts
from mononn_core.importer.movement import part


def spectrum(ctx: Context, real: str, imaginary: str, count: int, inverse: bool, sided: int) -> str:
    """The DFT over the last axis of (real, imaginary) of ``count`` points, its first ``sided`` bins: [..., sided, 2].

    ``imaginary`` may be "" for a real signal.
    """
    angles = 2 * np.pi * np.outer(np.arange(count), np.arange(sided)) / count
    scale = 1 / count if inverse else 1.0
    dtype = ctx.type(real).dtype
    cosine = ctx.make(np.cos(angles) * scale, dtype)
    sine = ctx.make(np.sin(angles) * (-scale if inverse else scale), dtype)
    out_real = ctx.add("matmul", real, cosine)
    out_imaginary = ctx.add("neg", ctx.add("matmul", real, sine))
    if imaginary:
        out_real = ctx.add("add", out_real, ctx.add("matmul", imaginary, sine))
        out_imaginary = ctx.add("add", out_imaginary, ctx.add("matmul", imaginary, cosine))
    shape = (*ctx.type(out_real).shape, 1)
    return ctx.add("concat", ctx.reshape(out_real, shape), ctx.reshape(out_imaginary, shape), axis=len(shape) - 1)


def signal_of_bins(ctx: Context, real: str, imaginary: str, count: int) -> str:
    """The real signal [..., count, 1] of the first count // 2 + 1 bins of its transform: each of the others is the
    conjugate of one of these."""
    bins = np.arange(count // 2 + 1)
    twice = np.where((bins == 0) | (2 * bins == count), 1, 2)[:, None] / count
    angles = 2 * np.pi * np.outer(bins, np.arange(count)) / count
    dtype = ctx.type(real).dtype
    y = ctx.add("matmul", real, ctx.make(np.cos(angles) * twice, dtype))
    if imaginary:
        y = ctx.add("sub", y, ctx.add("matmul", imaginary, ctx.make(np.sin(angles) * twice, dtype)))
    return ctx.reshape(y, (*ctx.type(y).shape, 1))


def components(ctx: Context, x: str) -> tuple[str, str]:
    """Real and imaginary part of [..., 1 or 2]; the latter "" when there is none."""
    t = ctx.type(x)
    real = ctx.reshape(part(ctx, x, t.rank - 1, 0, 1), t.shape[:-1])
    return real, ctx.reshape(part(ctx, x, t.rank - 1, 1, 1), t.shape[:-1]) if t.shape[-1] == 2 else ""


def fitted(ctx: Context, x: str, count: int) -> str:
    """The last axis cut or padded with zeros to ``count``."""
    t = ctx.type(x)
    extent = t.shape[-1]
    if extent >= count:
        return part(ctx, x, t.rank - 1, 0, count)
    after = (*(0,) * (t.rank - 1), count - extent)
    return ctx.add("pad", x, before=(0,) * t.rank, after=after, mode="constant", value=0.0)


@converts("DFT")
def fourier(ctx: Context) -> str:
    """Along one axis of [..., 1 or 2]; one-sided: the first n // 2 + 1 bins of a real signal, or back."""
    t = ctx.type(0)
    axis = (
        int(ctx.constant(2, "axis").reshape(())) if ctx.has(2) else int(ctx.attr("axis", 1 if ctx.opset < 20 else -2))
    )
    axis = ctx.normal(axis, t.rank)
    inverse, onesided = bool(ctx.attr("inverse", 0)), bool(ctx.attr("onesided", 0))
    back = inverse and onesided
    whole = 2 * (t.shape[axis] - 1) if back else t.shape[axis]
    count = int(ctx.constant(1, "length").reshape(())) if ctx.has(1) else whole
    perm = [d for d in range(t.rank - 1) if d != axis] + [axis]
    moved = ctx.add("transpose", ctx.input(0), perm=(*perm, t.rank - 1))
    real, imaginary = components(ctx, moved)
    if back:
        bins = count // 2 + 1
        y = signal_of_bins(ctx, fitted(ctx, real, bins), fitted(ctx, imaginary, bins) if imaginary else "", count)
        return ctx.add("transpose", y, perm=(*(int(p) for p in np.argsort(perm)), t.rank - 1))
    real, imaginary = fitted(ctx, real, count), fitted(ctx, imaginary, count) if imaginary else ""
    y = spectrum(ctx, real, imaginary, count, inverse, count // 2 + 1 if onesided else count)
    return ctx.add("transpose", y, perm=(*(int(p) for p in np.argsort(perm)), t.rank - 1))


@converts("STFT")
def short_time_fourier(ctx: Context) -> str:
    """Frames of [batch, length, 1 or 2], times the window, transformed: [batch, frames, bins, 2]. A real signal may be
    [batch, length], as exporters write it and ONNX Runtime reads it."""
    signal, window, shape = ctx.input(0), ctx.input(2), ctx.type(0).shape
    signal = ctx.reshape(signal, (*shape, 1)) if len(shape) == 2 else signal
    step = int(ctx.constant(1, "frame step").reshape(()))
    count = int(ctx.constant(3, "frame length").reshape(())) if ctx.has(3) else ctx.type(window).size
    frames = []
    for name in components(ctx, signal):
        if not name:
            frames.append("")
            continue
        cut = ctx.add("windows", name, axis=ctx.type(name).rank - 1, kernel=(count,), strides=(step,), dilations=(1,))
        cut = ctx.add("transpose", cut, perm=(0, 2, 1))
        frames.append(ctx.add("mul", cut, window) if window else cut)
    onesided = bool(ctx.attr("onesided", 1))
    return spectrum(ctx, frames[0], frames[1], count, False, count // 2 + 1 if onesided else count)
