"""Hand-written CUDA Programs of depthwise convolutions: borders, strides, dilations, groups, ragged ends."""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil, prod

import numpy as np

from mononn_core.program.expr import Acc, Const, Expr, op
from mononn_core.program.ir import (
    Assign,
    Axis,
    Barrier,
    Buffer,
    For,
    Layout,
    Operand,
    Phase,
    Program,
    Result,
    Statement,
    Store,
    Task,
)
from mononn_core.program.windows import Pair, Windows
from mononn_core.schedule.operands import axis
from tests.core.build import Array, Case, box, const, load, origin, random, relu, v
from tests.core.cuda.programs import HALF, STRIDED, dtype_of, narrow, padded, wide


@dataclass(frozen=True)
class Layer:
    """Of ``n`` images [height, width, channels] with ``pads`` (vertical, horizontal); tasks of ``rows`` x ``panel``."""

    n: int
    height: int
    width: int
    channels: int
    kernel: Pair
    strides: Pair
    dilations: Pair
    pads: Pair
    group: int
    rows: int
    panel: int
    residual: bool = False

    @property
    def bordered(self) -> Pair:
        return self.height + 2 * self.pads[0], self.width + 2 * self.pads[1]

    @property
    def out(self) -> Pair:
        every = zip(self.bordered, self.kernel, self.strides, self.dilations, strict=True)
        h, w = ((size - (k - 1) * d - 1) // s + 1 for size, k, s, d in every)
        return h, w

    @property
    def windows(self) -> Windows:
        return Windows(self.kernel, self.strides, self.dilations, self.bordered[1], self.out[1], self.rows)


def _inside(at: Layer, kind: str) -> Phase:
    """The caller's image in the middle of the stored one, an image row a task."""
    (h, w), c = at.bordered, at.channels
    row = v("b") * (h * w) + (v("h") + at.pads[0]) * w + at.pads[1]
    value = narrow(load("in", (v("b") * at.height + v("h")) * at.width + v("w"), v("c")), kind)
    body = For("w", at.width, (For("c", c, (Store("out", (row + v("w"), v("c")), value),), "vector"),))
    first, whole = (v("b") * at.height + v("h")) * at.width, at.n * h * w
    task = Task(
        "nest",
        (
            Operand("in", "x", box((first, at.width, at.n * at.height * at.width), (0, c, c))),
            Operand("out", "image", box((row, at.width, whole), (0, c, c)), "write"),
        ),
        body=(body,),
    )
    return Phase("inside", (Axis("b", at.n), Axis("h", at.height)), STRIDED, task, origin=origin("inside", "Pad"))


def _border(at: Layer, kind: str) -> Phase:
    """Zeros around, an image a task."""
    (h, w), c, (top, left) = at.bordered, at.channels, at.pads

    def run(first: Expr | int, count: int) -> tuple[Statement, ...]:
        at_pixel = v("b") * (h * w) + first + v("z")
        store = Store("out", (at_pixel, v("c")), narrow(const(0.0), kind))
        return (For("z", count, (For("c", c, (store,), "vector"),)),) if count else ()

    start, end = top * w + left, (top + at.height) * w - left
    body = (
        *run(0, start),
        For("h", at.height - 1, run(v("h") * w + (start + at.width), 2 * left)),
        *run(Const(end), h * w - end),
    )
    whole = at.n * h * w
    task = Task("nest", (Operand("out", "image", box((0, whole, whole), (0, c, c)), "write"),), body=body)
    return Phase("border", (Axis("b", at.n),), STRIDED, task, origin=origin("border", "Pad"))


def _slide(at: Layer, kind: str) -> Phase:
    """ReLU of the convolution and a bias, and what the caller gives to add."""
    windows, (oh, ow), (h, w), c = at.windows, at.out, at.bordered, at.channels
    terms, area = windows.taps * at.group, at.n * oh * ow
    extents = {"b": at.n, "r": ceil(oh / at.rows), "p": ceil(c / at.panel)}
    b, r, p = (axis(name, extent) for name, extent in extents.items())
    pixel = b * (h * w) + r * (at.rows * at.strides[0] * w)
    end = at.n * h * w if at.n > 1 else windows.pixels(oh)
    row, column = b * (oh * ow) + r * (at.rows * ow), p * at.panel
    index = (row + v("y") * ow + v("x"), column + v("n"))
    value = relu(op("add", Acc(), load("bias", 0, column + v("n"))))
    value = op("add", value, load("more", *index)) if at.residual else value
    stored = box((row, at.rows * ow, area), (column, at.panel, c))
    more = (Operand("more", "more", stored),) if at.residual else ()
    task = Task(
        "depthwise",
        (
            Operand("a", "image", box((pixel, windows.pixels(at.rows), end), (column, at.panel, c))),
            Operand("b", "w", box((0, terms, terms), (column, at.panel, c)), stable=True),
            Operand("bias", "bias", box((0, 1, 1), (column, at.panel, c)), stable=True),
            *more,
            Operand("out", "slid", stored, "write"),
        ),
        {**windows.params(), "panel": at.panel, "group": at.group},
        (Result("out", ("y", "x", "n"), index, narrow(value, kind)),),
    )
    domain = tuple(Axis(name, extent) for name, extent in extents.items() if extent > 1)
    assign = Assign("strided", order=tuple(a.var for a in domain))
    return Phase("slide", domain, assign, task, origin=origin("slide", "Conv"))


def _widen(at: Layer, kind: str) -> Phase:
    """The result as the caller gets it, an image row a task."""
    rows, width = at.n * at.out[0], at.out[1]
    pixel, c = v("t") * width, at.channels
    store = Store("out", (pixel + v("x"), v("c")), wide("in", pixel + v("x"), v("c"), kind=kind))
    seen = box((pixel, width, rows * width), (0, c, c))
    task = Task(
        "nest",
        (Operand("in", "slid", seen), Operand("out", "y", seen, "write")),
        body=(For("x", width, (For("c", c, (store,), "vector"),)),),
    )
    return Phase("widen", (Axis("t", rows),), STRIDED, task, origin=origin("widen", "Cast"))


def _expected(at: Layer, image: Array, w: Array) -> Array:
    """[n oh ow, c] in float64, one tap after the other."""
    (top, left), (oh, ow) = at.pads, at.out
    image = np.pad(image.astype(np.float64), ((0, 0), (top, top), (left, left), (0, 0)))
    first = np.arange(at.channels) // at.group * at.group
    total = np.zeros((at.n, oh, ow, at.channels))
    for tap, (i, j) in enumerate(np.ndindex(at.kernel)):
        (y, x), (sh, sw) = (i * at.dilations[0], j * at.dilations[1]), at.strides
        seen = image[:, y : y + (oh - 1) * sh + 1 : sh, x : x + (ow - 1) * sw + 1 : sw]
        for c in range(at.group):
            total += seen[..., first + c] * w[tap * at.group + c].astype(np.float64)
    return total.reshape(-1, at.channels)


def _case(name: str, at: Layer, kind: str) -> Case:
    (h, w), (oh, ow), c, terms = at.bordered, at.out, at.channels, prod(at.kernel) * at.group
    pixels, area = at.n * at.height * at.width, at.n * oh * ow
    x, weights = random((pixels, c), 1), random((terms, c), 2, 0.4).astype(dtype_of(kind))
    bias, more = random((1, c), 3), random((area, c), 4)
    whole = ceil(c / at.panel) * at.panel
    after = ceil(terms * whole * dtype_of(kind).itemsize / 128) * 128

    def flat(name: str, shape: Pair, space: str, at: int) -> Buffer:
        return Buffer(name, "float32", shape, Layout.row_major(shape), space, at, 128)

    buffers = (
        flat("x", (pixels, c), "input", 0),
        *((flat("more", (area, c), "input", 1),) if at.residual else ()),
        flat("y", (area, c), "output", 0),
        Buffer("w", HALF[kind], (terms, c), Layout.row_major((terms, c), whole - c), "weight", 0, 128),
        flat("bias", (1, c), "weight", after),
        image := padded("image", (at.n * h * w, c), "arena", 0, kind),
        slid := padded("slid", (area, c), "arena", ceil(image.nbytes / 128) * 128, kind),
    )
    body = (_inside(at, kind), _border(at, kind), Barrier(0), _slide(at, kind), Barrier(1), _widen(at, kind))
    inputs = {"x": x, "more": more} if at.residual else {"x": x}
    program = Program(
        name, buffers, body, inputs=tuple(inputs), outputs=("y",), arena_bytes=slid.offset + slid.nbytes,
        weight_bytes=after + 4 * c,
    )  # fmt: skip
    narrowed = x.astype(dtype_of(kind)).reshape(at.n, at.height, at.width, c)
    y = np.maximum(_expected(at, narrowed, weights) + bias, 0) + (more if at.residual else 0)
    return Case(program, inputs, {"w": weights, "bias": bias}, {"y": y})


def depthwise(kind: str = "f16") -> Case:
    """3x3 over two images, panels and strips that do not end where channels and rows do."""
    return _case("depthwise", Layer(2, 6, 19, 43, (3, 3), (1, 1), (1, 1), (1, 1), 1, 3, 32), kind)


def strided_windows(kind: str = "f16") -> Case:
    """5x5 in steps of two, the last task with fewer image rows, aligned channels."""
    return _case("strided_windows", Layer(1, 9, 37, 64, (5, 5), (2, 2), (1, 1), (2, 2), 1, 2, 64), kind)


def groups_of_two(kind: str = "f16") -> Case:
    """Dilated taps, strides and kernel of their own each way, a residual; one panel, wider than the channels."""
    return _case("groups_of_two", Layer(1, 10, 19, 22, (3, 2), (2, 1), (1, 3), (1, 2), 2, 3, 24, True), kind)


def groups_of_four(kind: str = "f16") -> Case:
    """Groups that lie in a vector, two images."""
    return _case("groups_of_four", Layer(2, 4, 21, 40, (3, 3), (1, 2), (1, 1), (1, 1), 4, 4, 40), kind)


FAMILIES = (depthwise, strided_windows, groups_of_two, groups_of_four)
