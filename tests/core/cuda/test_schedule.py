"""CUDA Programs of small networks: legal, right on the virtual machine, and shaped as the design says."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import numpy as np
import pytest

from mononn_core.cost.cuda import predict
from mononn_core.errors import OptionError, UnsupportedError
from mononn_core.gpu import Gpu
from mononn_core.graph import Graph
from mononn_core.importer import load
from mononn_core.lower.steps import Lowered
from mononn_core.ops.evaluate import run as evaluate
from mononn_core.options import ARCHITECTURES, Options
from mononn_core.passes import pipeline
from mononn_core.program.expr import Load, walk
from mononn_core.program.interpret import run
from mononn_core.program.ir import Barrier, Loop, Phase, Program
from mononn_core.program.rules import body_expressions, depends
from mononn_core.program.text import to_text
from mononn_core.program.verify import verify
from mononn_core.schedule.cuda.schedule import CudaSchedule
from tests.core import networks
from tests.core.build import Case
from tests.core.cuda.emulated import Run
from tests.core.cuda.lowered import lower
from tests.core.cuda.networks import convnext, convolutions, mobile, patches, translator

WIDE = {"tokens": 20, "width": 32, "hidden": 512, "heads": 2, "layers": 1}
MODELS: dict[str, Callable[[], bytes]] = {
    "mlp": networks.mlp,
    "encoder": networks.encoder,
    "wide encoder": lambda: networks.encoder(**WIDE),
    "mixed": networks.mixed,
    "translator": translator,
    "patches": patches,
    "convolutions": convolutions,
    "mobile": lambda: mobile(images=2, groups=12),
    "convnext": convnext,
}
TOLERANCE = {"fp32": 1e-5, "fp16": 6e-3, "bf16": 5e-2}
"""Of the largest output."""


def prepared(model: bytes) -> Graph:
    return pipeline.prepare(pipeline.run(load(model, {})), "cuda")


@cache
def graph(name: str) -> Graph:
    return prepared(MODELS[name]())


@cache
def lowered(name: str, precision: str = "fp16", gpu: str = "H200") -> Lowered[CudaSchedule]:
    return lower(graph(name), Options(target="cuda", precision=precision), Gpu.named(gpu))


def feeds(g: Graph) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(5)
    found = {}
    for name in g.inputs:
        kind = g.types[name]
        normal = rng.standard_normal(kind.shape).astype(np.float32)
        limit = 2 if name == "mask" else 5
        found[name] = normal if kind.dtype == "float32" else rng.integers(0, limit, kind.shape)
    return found


def barriers(program: Program) -> int:
    return sum(isinstance(i, Barrier) for i, _ in program.trace())


def product_phases(program: Program) -> list[Phase]:
    return [p for p in program.phases() if p.task.template == "matmul"]


@pytest.mark.parametrize("precision", TOLERANCE)
@pytest.mark.parametrize("name", MODELS)
def test_programs_are_legal_and_right(name: str, precision: str) -> None:
    g, low = graph(name), lowered(name, precision)
    verify(low.program)
    given = feeds(g)
    shaped = {n: a.reshape(low.program.buffer(n).shape) for n, a in given.items()}
    got = run(low.program, shaped, low.weights, workers=3, seed=7)
    for output, want in evaluate(g, given).items():
        error = np.abs(got[output].reshape(want.shape) - want).max()
        assert got[output].dtype == want.dtype
        assert error <= TOLERANCE[precision] * np.abs(want).max(), error


@pytest.mark.parametrize("gpu", Gpu.names())
@pytest.mark.parametrize("name", ["encoder", "patches"])
def test_every_described_gpu_gets_a_legal_program(name: str, gpu: str) -> None:
    verify(lowered(name, "bf16", gpu).program)


def test_the_same_input_gives_the_same_program() -> None:
    again = lower(graph("encoder"), Options(target="cuda", precision="fp16"), Gpu.named("H200"))
    assert to_text(again.program) == to_text(lowered("encoder").program)


@cache
def bert() -> Lowered[CudaSchedule]:
    """Layers of BERT-base's sizes; nobody looks at the weights."""
    g = prepared(networks.encoder(layers=3, tokens=128, width=768, heads=12, hidden=3072))
    return lower(g, Options(target="cuda", precision="fp16"), Gpu.named("H100"))


def test_a_layer_of_bert_is_six_phases() -> None:
    program = bert().program
    (loop,) = [i for i in program.body if isinstance(i, Loop)]
    assert sum(isinstance(i, Phase) for i in loop.body) <= 6
    assert sum(isinstance(i, Barrier) for i in loop.body) <= 6
    assert barriers(program) <= 3 * 6 + 1


def test_products_fit_one_wave_and_their_launch() -> None:
    low, gpu = bert(), Gpu.named("H100")
    launch = low.schedule
    for phase in product_phases(low.program):
        rows, columns = phase.task.params["tile"]
        warps_m, warps_n = phase.task.params["warps"]
        assert phase.tasks <= gpu.sms * launch.blocks_per_sm
        assert rows % (16 * warps_m) == 0 and columns % (8 * warps_n) == 0
        assert launch.threads % (32 * warps_m * warps_n) == 0
        assert rows * columns <= 64 * 32 * warps_m * warps_n


def test_sums_in_parts_are_added_in_order() -> None:
    program = bert().program
    split = next(p for p in product_phases(program) if any(a.var == "s" for a in p.domain))
    parts = next(a.extent for a in split.domain if a.var == "s")
    out = next(o for o in split.task.operands if o.role == "out")
    (reader,) = [
        p for p in program.phases() if any(o.buffer == out.buffer and o.access == "read" for o in p.task.operands)
    ]
    roles = [o.role for o in reader.task.operands if o.buffer == out.buffer]
    assert len(roles) == parts > 1
    order = [n.operand for e in body_expressions(reader.task.body) for n in walk(e) if isinstance(n, Load)]
    assert [r for r in order if r in roles] == roles


def test_a_norm_inside_a_product_is_stored_once_where_others_read_it() -> None:
    filled = [p for p in product_phases(bert().program) if p.task.body]
    assert filled
    for phase in filled:
        roles = {o.role: o for o in phase.task.operands}
        assert roles["fill"].buffer == roles["a"].buffer
        assert {"kept"} <= roles.keys()


def test_layers_that_take_their_columns_of_one_product_are_rolled() -> None:
    program = lower(prepared(translator(layers=4)), Options(target="cuda"), Gpu.named("H200")).program
    loops = [i for i in program.body if isinstance(i, Loop)]
    assert [loop.count for loop in loops] == [3, 3]
    assert any(depends(p, loop.var) for loop in loops for p in loop.body if isinstance(p, Phase))
    verify(program)


@pytest.mark.emulated
@pytest.mark.parametrize("precision", TOLERANCE)
@pytest.mark.parametrize("name", MODELS)
def test_printed_programs_are_right_in_the_emulator(name: str, precision: str) -> None:
    g, low = graph(name), lowered(name, precision)
    given = feeds(g)
    shaped = {n: a.reshape(low.program.buffer(n).shape) for n, a in given.items()}
    running = Run(Case(low.program, shaped, dict(low.weights), {}), low.schedule.threads, placed=True)
    for schedule in ("random:3", "reversed", "block-first"):
        got = running.run(3, schedule)
        running.emulated.reset()
        for output, want in evaluate(g, given).items():
            error = np.abs(got[output].reshape(want.shape) - want).max()
            assert error <= TOLERANCE[precision] * np.abs(want).max(), (schedule, error)


def test_weights_are_asked_for_before_every_wait() -> None:
    program = bert().program
    (loop,) = [i for i in program.body if isinstance(i, Loop)]
    asked = {f.phase for i in loop.body if isinstance(i, Phase) for f in i.prefetches}
    wanted = {i.id for i in loop.body if isinstance(i, Phase) and i.task.template == "matmul"}
    assert wanted <= asked


@pytest.mark.parametrize("precision", TOLERANCE)
def test_rows_in_the_arena_are_aligned(precision: str) -> None:
    for name in MODELS:
        for b in lowered(name, precision).program.buffers:
            if b.space == "arena" and b.shape[0] > 1:
                ((_, stride),) = b.layout.dims[0]
                assert stride * b.itemsize % 16 == 0 and b.offset % 128 == 0


def test_a_prediction_is_above_its_floor() -> None:
    for name in Gpu.names():
        low = bert()
        launch = low.schedule
        times = predict(low.program, Gpu.named(name), launch.blocks_per_sm, launch.threads)
        assert 0 < times["floor"] < times["seconds"] < 1e-3


def test_weights_beyond_fp16_are_refused_by_name() -> None:
    g = graph("mlp")
    name = next(n for n, c in g.constants.items() if c.ndim == 2)
    large = g.rebuild(g.nodes, g.types, {**g.constants, name: g.constants[name] * np.float32(1e6)})
    with pytest.raises(UnsupportedError, match=r"float16.*bf16 or fp32"):
        lower(large, Options(target="cuda", precision="fp16"), Gpu.named("H100"))
    verify(lower(large, Options(target="cuda", precision="bf16"), Gpu.named("H100")).program)


def test_gpus_have_names_and_architectures() -> None:
    assert {Gpu.for_arch(a).arch for a in ARCHITECTURES} == set(ARCHITECTURES)
    with pytest.raises(OptionError, match="choose one of"):
        Gpu.named("Voodoo 2")
    with pytest.raises(OptionError, match="choose one of"):
        Gpu.for_arch("sm_10")
