"""Small Programs about images: a stored border, windows read through it, image rows that do not divide evenly."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from mononn_core.lower.memory import OVERREAD_BYTES
from mononn_core.program.expr import Acc, Const, Expr
from mononn_core.program.ir import Assign, Axis, Barrier, For, Operand, Phase, Program, Result, Store, Task
from mononn_core.program.windows import Windows
from mononn_core.schedule.binder import panel_buffer
from tests.core.build import F32, Array, Case, box, buffer, const, load, origin, random, relu, v

HEIGHT, WIDTH, CHANNELS, OUTPUTS = 5, 4, 3, 5
PITCH = WIDTH + 2
PANEL = 16
"""Columns of a packed panel: one vector of the widest machine, several of others."""


def _inside() -> Phase:
    """Copy the image into the middle of the padded one, an image row a task."""
    row = (v("h") + 1) * PITCH + v("w") + 1
    value = load("in", v("h") * WIDTH + v("w"), v("c"))
    body = For("w", WIDTH, (For("c", CHANNELS, (Store("out", (row, v("c")), value),), "vector"),))
    pixels, whole = HEIGHT * WIDTH, (HEIGHT + 2) * PITCH
    task = Task(
        "nest",
        (
            Operand("in", "x", box((v("h") * WIDTH, WIDTH, pixels), (0, CHANNELS, CHANNELS))),
            Operand("out", "image", box(((v("h") + 1) * PITCH + 1, WIDTH, whole), (0, CHANNELS, CHANNELS)), "write"),
        ),
        body=(body,),
    )
    return Phase("inside", (Axis("h", HEIGHT),), Assign(), task, origin=origin("inside", "Pad"))


def _border() -> Phase:
    """Zeros above, beside and below."""
    whole = (HEIGHT + 2) * PITCH

    def run(first: Expr, count: int) -> For:
        store = Store("out", (first + v("z"), v("c")), const(0.0))
        return For("z", count, (For("c", CHANNELS, (store,), "vector"),))

    between = run(v("h") * PITCH + (PITCH + 1 + WIDTH), 2)
    body = (run(Const(0), PITCH + 1), For("h", HEIGHT - 1, (between,)), run(Const(whole - PITCH - 1), PITCH + 1))
    task = Task("nest", (Operand("out", "image", box((0, whole, whole), (0, CHANNELS, CHANNELS)), "write"),), body=body)
    return Phase("border", (), Assign(), task, origin=origin("border", "Pad"))


def _windows(name: str, template: str, source: str, weight: str, out: str, windows: Windows, height: int) -> Phase:
    """A convolution over tasks of ``windows.rows`` image rows; domain variable t."""
    step = windows.rows * windows.strides[0] * windows.pitch
    a_columns = CHANNELS if template == "conv" else OUTPUTS
    terms = windows.taps * (CHANNELS if template == "conv" else 1)
    end = windows.pixels(height)
    row = (v("t") * windows.rows + v("y")) * windows.width + v("x")
    area = height * windows.width
    task = Task(
        template,
        (
            Operand("a", source, box((v("t") * step, windows.pixels(windows.rows), end), (0, a_columns, a_columns))),
            Operand("b", weight, box((0, terms, terms), (0, OUTPUTS, OUTPUTS)), stable=True),
            Operand(
                "out",
                out,
                box((v("t") * windows.rows * windows.width, windows.rows * windows.width, area), (0, OUTPUTS, OUTPUTS)),
                "write",
            ),
        ),
        {**windows.params(), "panel": PANEL, "at_once": 4},
        results=(Result("out", ("y", "x", "n"), (row, v("n")), relu(Acc())),),
    )
    tasks = -(-height // windows.rows)
    return Phase(name, (Axis("t", tasks),), Assign(), task, origin=origin(name, "Conv"))


def _reference(x: Array, w: Array, windows: Windows, height: int, depthwise: bool) -> Array:
    """[rows, width, outputs] of x [h, w, c] by w [taps, c, n] (depthwise: [taps, n]), one output pixel at a time."""
    out = np.zeros((height, windows.width, OUTPUTS), np.float32)
    for y, x0 in np.ndindex(height, windows.width):
        for tap, (i, j) in enumerate(np.ndindex(windows.kernel)):
            pixel = x[
                y * windows.strides[0] + i * windows.dilations[0], x0 * windows.strides[1] + j * windows.dilations[1]
            ]
            out[y, x0] += pixel * w[tap] if depthwise else pixel @ w[tap]
    return np.maximum(out, 0)


def bordered_image() -> Case:
    """A 3x3 convolution over an image with a border, two rows at a time, then a strided depthwise one."""
    first = Windows((3, 3), (1, 1), (1, 1), PITCH, WIDTH, 2)
    second = Windows((2, 1), (2, 1), (1, 1), WIDTH, WIDTH, 1)
    area, height = HEIGHT * WIDTH, 2
    w_packed = panel_buffer(f"w@{PANEL}", (9 * CHANNELS, OUTPUTS), PANEL)
    d_packed = panel_buffer(f"d@{PANEL}", (2, OUTPUTS), PANEL)
    buffers = (
        buffer("x", (area, CHANNELS), "input"),
        buffer("y", (height * WIDTH, OUTPUTS), "output"),
        w_packed,
        replace(d_packed, offset=w_packed.nbytes),
        buffer("image", ((HEIGHT + 2) * PITCH, CHANNELS), "arena"),
        buffer("h", (area, OUTPUTS), "arena", (HEIGHT + 2) * PITCH * CHANNELS * 4),
    )
    body = (
        _inside(),
        _border(),
        Barrier(0),
        _windows("conv", "conv", "image", w_packed.id, "h", first, HEIGHT),
        Barrier(1),
        _windows("depthwise", "depthwise", "h", d_packed.id, "y", second, height),
    )
    program = Program(
        "bordered_image",
        buffers,
        body,
        inputs=("x",),
        outputs=("y",),
        arena_bytes=((HEIGHT + 2) * PITCH * CHANNELS + area * OUTPUTS) * 4 + OVERREAD_BYTES,
        weight_bytes=w_packed.nbytes + d_packed.nbytes,
    )
    x, w, d = random((area, CHANNELS), 1), random((9 * CHANNELS, OUTPUTS), 2), random((2, OUTPUTS), 3)
    image = np.pad(x.reshape(HEIGHT, WIDTH, CHANNELS), ((1, 1), (1, 1), (0, 0)))
    h = _reference(image, w.reshape(9, CHANNELS, OUTPUTS), first, HEIGHT, depthwise=False)
    y = _reference(h, d, second, height, depthwise=True)
    return Case(
        program, {"x": x}, {w_packed.id: w, d_packed.id: d}, {"y": y.reshape(height * WIDTH, OUTPUTS).astype(F32)}
    )
