"""Depthwise convolutions on a GPU: from ONNX to the emulator; borders, tiles, costs, and the strips of threads."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from onnx import TensorProto

from mononn_core import compiler
from mononn_core.compiler import CudaStages
from mononn_core.cost.cuda import work_of
from mononn_core.errors import OptionError
from mononn_core.ops.evaluate import run as evaluate
from mononn_core.program.interpret import run
from mononn_core.program.ir import Barrier, Phase
from mononn_core.program.template import operand
from mononn_core.program.windows import Windows
from mononn_core.runtime.cuda_toolchain import compile_cubin
from mononn_core.runtime.emulated import EmulatedSession
from mononn_core.schedule.cuda.schedule import CudaGroup, CudaSchedule
from mononn_core.schedule.cuda.tiles import Target
from mononn_core.templates import depthwise
from mononn_core.templates.conv_node import Conv
from mononn_core.templates.windowed_cuda import block_tiles
from mononn_core.vocabulary import cuda_headers as headers
from tests.core.cuda.cases import CASES
from tests.core.cuda.emulated import Run
from tests.core.cuda.networks import mobile
from tests.core.cuda.test_print_programs import check
from tests.core.networks import Builder
from tests.core.test_convolution import Layer, chain

LIMIT = {"fp32": 1e-5, "fp16": 6e-3}
"""Of the largest output."""


def lowered(model: bytes, precision: str = "fp16", schedule: CudaSchedule | None = None) -> CudaStages:
    stages = compiler.lower(model, target="cuda-emulated", precision=precision, gpu="H100", schedule=schedule)
    assert isinstance(stages, CudaStages)
    return stages


def sliding(stages: CudaStages) -> list[Phase]:
    return [p for p in stages.program.phases() if p.task.template == "depthwise"]


def network(
    inputs: int = 8, channels: int = 24, size: int = 5, kernel: int = 3, stride: int = 1, images: int = 1
) -> bytes:
    """A product over pixels, a depthwise convolution, a product."""
    b, pads = Builder("network"), [kernel // 2] * 4
    x = b.add("Relu", b.add("Conv", "x", b.weight(channels, inputs, 1, 1), b.weight(channels)))
    settings = {"pads": pads, "strides": [stride, stride], "group": channels}
    x = b.add("Relu", b.add("Conv", x, b.weight(channels, 1, kernel, kernel), b.weight(channels), **settings))
    b.add("Conv", x, b.weight(4, channels, 1, 1), output="y")
    out = (size - 1) // stride + 1
    return b.model({"x": (TensorProto.FLOAT, (images, inputs, size, size))}, {"y": (images, 4, out, out)})


def error(stages: CudaStages, answer: Callable[[np.ndarray], np.ndarray]) -> float:
    """The largest, of the largest value of the imported Graph's own answer, or of 0.1."""
    x = np.random.default_rng(1).standard_normal(stages.graph.types["x"].shape).astype(np.float32)
    want = evaluate(stages.graph, {"x": x})["y"]
    return float(np.abs(answer(x).reshape(want.shape) - want).max() / max(np.abs(want).max(), 0.1))


def on_the_machine(stages: CudaStages) -> float:
    """The error of the virtual machine."""
    shape = stages.program.buffer("x").shape
    return error(stages, lambda x: run(stages.program, {"x": x.reshape(shape)}, stages.lowered.weights, workers=3)["y"])


def on_the_emulator(stages: CudaStages) -> float:
    with EmulatedSession(compiler.build(stages), blocks=3) as session:
        return error(stages, lambda x: session.run({"x": x})["y"])


@pytest.mark.parametrize(
    ("model", "precision"),
    [(lambda: mobile(images=2, groups=12), "fp32"), (mobile, "fp16")],
    ids=["fp32", "fp16"],
)
def test_a_network_is_right_on_the_emulator(model: Callable[[], bytes], precision: str) -> None:
    stages = lowered(model(), precision)
    assert len(sliding(stages)) == 2
    assert on_the_emulator(stages) < LIMIT[precision]


def test_images_are_stored_in_the_type_of_the_precision() -> None:
    stages = lowered(mobile())
    for phase in sliding(stages):
        for role in ("a", "b", "out"):
            assert stages.program.buffer(str(operand(phase.task, role).buffer)).dtype == "float16"


def test_a_border_stands_beside_what_it_surrounds() -> None:
    """Between the same barriers as the inside; no other phase copies the image."""
    intervals: list[list[Phase]] = [[]]
    for item, _ in lowered(mobile(images=2)).program.trace():
        if isinstance(item, Barrier):
            intervals.append([])
        else:
            intervals[-1].append(item)
    borders = [p for interval in intervals for p in interval if p.id.endswith("_border")]
    assert len(borders) == 2
    for interval in intervals:
        for border in (p for p in interval if p in borders):
            inside = next(p for p in interval if p.id == border.id.removesuffix("_border"))
            assert operand(inside.task, "out").buffer == operand(border.task, "out").buffer
            assert border.tasks == 2, "an image each"


def test_the_parts_of_a_product_are_added_with_their_border() -> None:
    model = network(inputs=128)
    schedule = lowered(model, "fp32").lowered.schedule
    at = next(n for n, interval in enumerate(schedule.intervals) if interval[0].template == "matmul")
    before, ((first,), *rest) = schedule.intervals[:at], schedule.intervals[at:]
    assert first.tile is not None
    filled = ((CudaGroup(first.fill, "nest", tasks=5, by="rows"),),) if first.fill else ()
    product = replace(first, tile=replace(first.tile, parts=2), fill="")
    added = CudaGroup(first.group, "sum", tasks=3, by="rows")
    stages = lowered(model, "fp32", replace(schedule, intervals=(*before, *filled, (product,), (added,), *rest)))
    assert not [p for p in stages.program.phases() if p.id.endswith("_border")]
    assert on_the_machine(stages) < LIMIT["fp32"]


@st.composite
def chains(draw: st.DrawFn) -> tuple[tuple[int, int, int, int], list[Layer]]:
    """One or two convolutions in groups of a channel or a few, of images that stay at least a pixel large."""
    channels, h, w = draw(st.sampled_from([3, 8, 12, 40])), draw(st.integers(3, 9)), draw(st.integers(3, 9))
    shape, layers = (draw(st.sampled_from([1, 2, 3])), channels, h, w), []
    for _ in range(draw(st.integers(1, 2))):
        kernel = draw(st.integers(1, min(5, h))), draw(st.integers(1, min(5, w)))
        pads = tuple(draw(st.integers(0, 3)) for _ in range(4))
        spans = (h + pads[0] + pads[2] - kernel[0], w + pads[1] + pads[3] - kernel[1])
        dilations = tuple(draw(st.integers(1, 2)) if k - 1 <= s else 1 for k, s in zip(kernel, spans, strict=True))
        strides = draw(st.integers(1, 3)), draw(st.integers(1, 3))
        few = draw(st.sampled_from([n for n in (1, 2, 4) if channels % n == 0 and channels > n]))
        after = draw(st.sampled_from(["Relu", "", "Sigmoid"]))
        layers.append(Layer(channels, kernel, strides, pads, dilations, channels // few, after))  # type: ignore[arg-type]
        every = zip(spans, kernel, dilations, strides, strict=True)
        h, w = ((space - (k - 1) * (d - 1)) // step + 1 for space, k, d, step in every)
    return shape, layers


@pytest.mark.emulated
@settings(max_examples=25, deadline=None)
@example(((3, 3, 10, 9), [Layer(3, (5, 4), (3, 3), (1, 1, 1, 2), (2, 1), 3)]), "fp32")
@given(chains(), st.sampled_from(sorted(LIMIT)))
def test_every_geometry_is_right(case: tuple[tuple[int, int, int, int], list[Layer]], precision: str) -> None:
    stages = lowered(chain(*case), precision)
    assert len(sliding(stages)) == len(case[1])
    assert on_the_machine(stages) < LIMIT[precision]
    assert on_the_emulator(stages) < LIMIT[precision]


# -- what is decided --------------------------------------------------------------------------------------------------


def tiled(schedule: CudaSchedule, rows: int, panel: int, template: str = "depthwise") -> CudaSchedule:
    """``schedule`` with another tile of its convolution."""

    def new(group: CudaGroup) -> CudaGroup:
        return replace(group, template=template, rows=rows, panel=panel) if group.panel else group

    return replace(schedule, intervals=tuple(tuple(map(new, interval)) for interval in schedule.intervals))


@pytest.mark.parametrize(("rows", "panel"), [(3, 8), (6, 24), (1, 16), (2, 24)])
def test_another_tile_gives_the_same_answer(rows: int, panel: int) -> None:
    model = network(size=6, images=2)
    stages = lowered(model, schedule=tiled(lowered(model).lowered.schedule, rows, panel))
    (phase,) = sliding(stages)
    assert phase.tasks == 2 * -(-6 // rows) * -(-24 // panel)
    assert on_the_machine(stages) < LIMIT["fp16"]


@pytest.mark.parametrize(
    ("rows", "panel", "template", "reason"),
    [
        (0, 16, "depthwise", "0 image rows are not 1 to 6"),
        (7, 16, "depthwise", "7 image rows are not 1 to 6"),
        (4, 16, "depthwise", "4 image rows do not divide the 6 of each image"),
        (2, 12, "depthwise", "a panel of 12 channels is no multiple of 8 that 24 fill"),
        (2, 32, "depthwise", "a panel of 32 channels is no multiple of 8 that 24 fill"),
        (2, 16, "nest", "template 'nest' cannot compute it, depthwise can"),
    ],
)
def test_an_illegal_tile_is_refused_with_its_reason(rows: int, panel: int, template: str, reason: str) -> None:
    model = network(size=6, images=2)
    with pytest.raises(OptionError, match=reason):
        lowered(model, schedule=tiled(lowered(model).lowered.schedule, rows, panel, template))


def test_tiles_give_every_multiprocessor_work_and_read_little_twice() -> None:
    gpu = lowered(network()).gpu
    target = Target(gpu, "fp16", 256, 1)
    for n, size, channels in ((1, 56, 144), (1, 14, 384), (8, 28, 192)):
        conv = Conv((n, size + 2, size + 2, channels), (n, size, size, channels), (3, 3), (1, 1), (1, 1), channels)
        rows, panel = block_tiles(depthwise.TEMPLATE, conv, target)[0]
        tasks = n * -(-size // rows) * -(-channels // panel)
        assert 0.6 * gpu.sms <= tasks <= gpu.sms
        assert (rows + 2) / rows <= 2


def test_its_work_counts_the_taps_and_no_tensor_core() -> None:
    found = []
    for kernel in (3, 5):
        program = lowered(network(size=14, kernel=kernel)).program
        phase = next(p for p in program.phases() if p.task.template == "depthwise")
        work = work_of(program, phase, {})
        assert work.tensor_flops == 0
        found.append(work.operations * work.tasks)
    outputs = 14 * 14 * 24
    assert found[1] - found[0] == pytest.approx(outputs * (25 - 9))


@pytest.mark.parametrize(
    ("channels", "group", "size", "columns"),
    [((64, 64), 8, 6, 32), ((64, 64), 8, 15, 32), ((14, 42), 7, 6, 42), ((128, 64), 2, 6, 32), ((8, 16), 8, 6, 16)],
)
def test_wider_groups_are_products(channels: tuple[int, int], group: int, size: int, columns: int) -> None:
    """Of as few groups as fill a tile's columns, with zeros between; 169 pixels are filled up to the end of a tile."""
    b, (inputs, outputs), out = Builder("groups"), channels, (size - 2, size - 2)
    b.add("Conv", "x", b.weight(outputs, inputs // group, 3, 3), b.weight(outputs), output="y", group=group)
    stages = lowered(b.model({"x": (TensorProto.FLOAT, (1, inputs, size, size))}, {"y": (1, outputs, *out)}), "fp32")
    (product,) = (p for p in stages.program.phases() if p.task.template == "matmul")
    assert operand(product.task, "b").box.bound[-1] == columns
    assert on_the_machine(stages) < LIMIT["fp32"]
    if size == 15:
        assert on_the_emulator(stages) < LIMIT["fp32"]


# -- the kernel -------------------------------------------------------------------------------------------------------

STRIPS = [(8, 4), (4, 8), (2, 8), (8, 1), (1, 4), (4, 2)]
"""Pixels and channels of a thread."""


SLIDING = ("depthwise-f16", "strided_windows-tf32x3", "groups_of_two-bf16", "groups_of_four-f16")
QUICK = [(SLIDING[2], (4, 2))]
"""All channels are fewer than the panel, and whole vectors."""


@pytest.mark.parametrize(
    ("name", "strip"),
    [*QUICK, *(pytest.param(n, s, marks=pytest.mark.emulated) for n in SLIDING for s in STRIPS if (n, s) not in QUICK)],
)
def test_every_strip_is_right(name: str, strip: tuple[int, int], monkeypatch: pytest.MonkeyPatch) -> None:
    def chosen(windows: Windows, group: int, columns: int, most: int, threads: int) -> tuple[float, int, int]:
        lanes = min(strip[1], most)
        return 0.0, min(strip[0], windows.width), lanes if lanes % group == 0 else 1

    monkeypatch.setattr(depthwise, "thread_strip", chosen)
    case = CASES[name]()
    check(name, case, Run(case), 3, "random:1")


@pytest.mark.parametrize("arch", ["sm_80", "sm_90a"])
def test_it_does_not_spill(arch: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MONONN_CACHE", "")
    stages = lowered(network(channels=96, size=28, kernel=5, stride=2, images=8))
    (usage,) = compile_cubin(stages.source, headers(), arch).kernels.values()
    assert usage.spills == usage.stack == 0
