"""A GPU's Schedule as a value: printed, read again, changed by hand, and refused with the reason."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from random import Random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mononn_core import compiler
from mononn_core.compiler import CudaStages
from mononn_core.cost.cuda import barrier_seconds
from mononn_core.decide import cuda_search
from mononn_core.decide.cuda import CudaScheduler
from mononn_core.errors import OptionError
from mononn_core.gpu import Gpu
from mononn_core.importer import load
from mononn_core.lower.cuda import lower
from mononn_core.options import Options
from mononn_core.passes import pipeline
from mononn_core.program.text import to_text as program_text
from mononn_core.program.verify import verify
from mononn_core.runtime.emulated import EmulatedSession
from mononn_core.schedule.cuda.groups import CudaGroups
from mononn_core.schedule.cuda.schedule import CudaGroup, CudaSchedule, read_schedule
from mononn_core.schedule.cuda.tiles import GRIDS, STAGES, BlockTile
from mononn_core.schedule.schedule import Schedule
from tests.core.cuda.networks import mobile, patches, translator
from tests.core.networks import MODELS, encoder

NETWORKS: dict[str, Callable[[], bytes]] = {
    "encoder": MODELS["encoder"],
    "mixed": MODELS["mixed"],
    "translator": translator,
    "patches": patches,
    "mobile": mobile,
    "wide": lambda: encoder(layers=2, tokens=32, width=256, heads=4, hidden=1024),
}


def lowered(name: str, schedule: CudaSchedule | None = None, precision: str = "fp16") -> CudaStages:
    stages = compiler.lower(
        NETWORKS[name](), target="cuda-emulated", precision=precision, gpu="H100", schedule=schedule
    )
    assert isinstance(stages, CudaStages)
    return stages


@cache
def decided(name: str) -> CudaSchedule:
    return lowered(name).lowered.schedule


@pytest.mark.parametrize("precision", ["fp16", "fp32"])
@pytest.mark.parametrize("name", sorted(NETWORKS))
def test_a_printed_schedule_gives_the_same_program(name: str, precision: str) -> None:
    first = lowered(name, precision=precision)
    schedule = first.lowered.schedule
    for text in (schedule.to_text(), schedule.to_json(), first.texts["schedule"]):
        assert read_schedule(text) == schedule
    again = lowered(name, schedule, precision)
    assert program_text(again.program) == program_text(first.program)
    assert again.source == first.source
    assert again.manifest == first.manifest


def test_every_kind_of_decision_is_printed() -> None:
    groups = (
        CudaGroup("a: b", "matmul", BlockTile(64, 48, (2, 4), 3, 2)),
        CudaGroup("c", "matmul", BlockTile(16, 8, (1, 1), 4), fill="x, y"),
        CudaGroup("d", "attention", rows=16, keys=64),
        CudaGroup("f", "depthwise", rows=4, panel=96),
        CudaGroup("a: b", "sum", tasks=7, by="rows"),
        CudaGroup("e", "nest", tasks=1, by="single", adds="a: b"),
    )
    schedule = CudaSchedule("a network, fp32", 256, 1, (groups[:2], groups[2:]), "bf16")
    assert read_schedule(schedule.to_text()) == schedule == read_schedule(schedule.to_json())


def first(schedule: CudaSchedule, wanted: Callable[[CudaGroup], object]) -> CudaGroup:
    return next(group for group in schedule.groups if wanted(group))


def changed(schedule: CudaSchedule, group: CudaGroup, /, **fields: object) -> CudaSchedule:
    new = replace(group, **fields)  # type: ignore[arg-type]
    return replace(schedule, intervals=tuple(tuple(new if g is group else g for g in i) for i in schedule.intervals))


def is_product(group: CudaGroup) -> bool:
    return group.tile is not None


def fewer_stages(schedule: CudaSchedule) -> CudaSchedule:
    group = first(schedule, is_product)
    assert group.tile is not None
    return changed(schedule, group, tile=replace(group.tile, stages=next(s for s in STAGES if s != group.tile.stages)))


def other_rows(schedule: CudaSchedule) -> CudaSchedule:
    group = first(schedule, lambda g: g.template == "attention")
    return changed(schedule, group, rows=32 if group.rows == 16 else 16)


def fewer_tasks(schedule: CudaSchedule) -> CudaSchedule:
    group = first(schedule, lambda g: g.by == "rows" and g.tasks > 3)
    return changed(schedule, group, tasks=group.tasks // 2)


def apart(schedule: CudaSchedule) -> CudaSchedule:
    """A barrier after every group."""
    return replace(schedule, intervals=tuple((group,) for group in schedule.groups))


def other_launch(schedule: CudaSchedule) -> CudaSchedule:
    """A launch of half the threads, in the tiles that its model chooses."""
    stages = compiler.lower(NETWORKS["wide"](), target="cuda-emulated", precision="fp16", gpu="H100")
    assert isinstance(stages, CudaStages)
    return compiler.cuda_variants(stages, 1)["128x1-0"]


@pytest.mark.parametrize(
    "edit",
    [fewer_stages, *(pytest.param(e, marks=pytest.mark.slow) for e in (other_rows, fewer_tasks, apart, other_launch))],
)
def test_a_legal_schedule_made_by_hand_runs(edit: Callable[[CudaSchedule], CudaSchedule]) -> None:
    schedule = decided("wide")
    new = edit(schedule)
    assert new != schedule
    stages = lowered("wide", new)
    assert stages.lowered.schedule == new and stages.source != lowered("wide").source
    random = np.random.default_rng(2)
    fed = {"ids": random.integers(0, 11, (1, 32)), "mask": (np.arange(32) < 20).astype(np.int64)[None]}
    with compiler.compile(NETWORKS["wide"]()) as session:
        want = session.run(fed)["y"]
    with EmulatedSession(compiler.build(stages), blocks=3) as session:
        got = session.run(fed)["y"]
    assert np.abs(got - want).max() < 5e-3 * np.abs(want).max()


PRODUCT = CudaGroup("y", "matmul", BlockTile(64, 48, (2, 4), 3))


@pytest.mark.parametrize(
    ("edit", "reason"),
    [
        (lambda s: replace(s, intervals=(s.groups,)), "the schedule is not legal: "),
        (lambda s: replace(s, intervals=tuple(reversed(apart(s).intervals))), "the schedule is not legal: "),
        (lambda s: replace(s, precision="fp32"), "the schedule is for precision fp32, not fp16"),
        (lambda s: replace(s, threads=96), "launch of 96 threads x 1 blocks is not 256 x 1"),
        (lambda s: changed(s, first(s, is_product), tile=BlockTile(64, 44, (2, 4), 3)), "a tile of 64 x 44 is not one"),
        (lambda s: changed(s, first(s, is_product), tile=None), "a product has a tile"),
        (lambda s: changed(s, first(s, is_product), template="nest"), "template 'nest' cannot compute it, matmul can"),
        (lambda s: changed(s, first(s, lambda g: g.template == "attention"), rows=17), "17 rows and .* are none of"),
        (lambda s: changed(s, first(s, lambda g: g.template == "nest"), tasks=9999, by="rows"), "by rows are not"),
        (lambda s: changed(s, first(s, lambda g: g.template == "nest"), by="heads"), "cannot be dealt by heads"),
        (lambda s: changed(s, first(s, is_product), fill="ids"), "'ids' is not what its left side alone"),
        (lambda s: changed(s, first(s, lambda g: g.template == "nest"), adds="ids"), "does not normalise a product"),
        (lambda s: changed(s, first(s, is_product), group="nothing"), "a group 'nothing', which encoder has not"),
        (lambda s: replace(s, intervals=(*s.intervals, s.intervals[-1])), "twice"),
        (lambda s: replace(s, intervals=(s.intervals[0][1:], *s.intervals[1:])), "has no group"),
    ],
)  # fmt: skip
def test_an_illegal_schedule_is_refused_with_its_reason(
    edit: Callable[[CudaSchedule], CudaSchedule], reason: str
) -> None:
    with pytest.raises(OptionError, match=reason):
        lowered("wide", edit(decided("wide")))


def test_parts_need_somebody_who_adds_them() -> None:
    schedule = decided("wide")
    group = first(schedule, lambda g: is_product(g) and not g.fill and g.tile.parts == 1)
    assert group.tile is not None
    with pytest.raises(OptionError, match="nothing adds its 2 parts"):
        lowered("wide", changed(schedule, group, tile=replace(group.tile, parts=2)))


def test_a_schedule_of_the_other_target() -> None:
    cpu = compiler.lower(NETWORKS["mixed"](), threads=2).lowered.schedule
    assert isinstance(cpu, Schedule) and read_schedule(cpu.to_text()) == cpu == read_schedule(cpu.to_json())
    with pytest.raises(OptionError, match="is a CPU's, the target is cuda-emulated"):
        compiler.lower(NETWORKS["mixed"](), target="cuda-emulated", schedule=cpu)
    with pytest.raises(OptionError, match="is a GPU's, the target is cpu"):
        compiler.lower(NETWORKS["mixed"](), schedule=decided("mixed"))
    with pytest.raises(OptionError, match="line 2 of the schedule is not understood"):
        read_schedule("network x, fp16, blocks of 256 threads, 1 a multiprocessor\ngroup a\n")
    for text in (
        '{"threads": 1}',
        '{"format": 3, "threads": "256", "blocks_per_sm": 1, "network": "x", "intervals": []}',
    ):
        with pytest.raises(OptionError, match=r"format None|no schedule in JSON"):
            read_schedule(text)


def scheduler_of(name: str, precision: str = "fp16") -> CudaScheduler:
    options = Options(target="cuda", precision=precision)
    graph = pipeline.prepare(pipeline.run(load(NETWORKS[name](), {})), "cuda")
    return CudaScheduler(CudaGroups(graph, options, Gpu.named("H100")))


@pytest.mark.parametrize("name", sorted(NETWORKS))
def test_every_decision_lists_its_own_space(name: str) -> None:
    scheduler = scheduler_of(name)
    schedule = scheduler.decide()
    for group in schedule.groups:
        others = scheduler.alternatives(schedule, group)
        assert group in others and len(set(others)) == len(others)
        for other in others[:: max(1, len(others) // 5)]:
            scheduler.check(schedule.with_group(group, other))


@pytest.mark.parametrize("name", sorted(NETWORKS))
def test_a_product_has_the_cheapest_tile_of_its_space(name: str) -> None:
    scheduler = scheduler_of(name)
    schedule = scheduler.decide()
    price = scheduler.price(schedule)
    products = [group for group in schedule.groups if group.tile is not None]
    assert products and price > 0
    for group in products:
        for other in scheduler.alternatives(schedule, group)[::7]:
            assert scheduler.price(schedule.with_group(group, other)) >= price * (1 - 1e-6)
    apart_price = scheduler.price(apart(schedule))
    more = len(schedule.groups) - len(schedule.intervals)
    assert apart_price == pytest.approx(price + more * barrier_seconds(Gpu.named("H100")))


@settings(max_examples=10, deadline=None)
@given(st.randoms(use_true_random=False), st.sampled_from(sorted(NETWORKS)), st.sampled_from(["fp16", "fp32"]))
def test_what_a_search_makes_is_legal_and_lowers(random: Random, name: str, precision: str) -> None:
    scheduler = scheduler_of(name, precision)
    drawn = cuda_search.sample(scheduler, random)
    changed_one = cuda_search.mutate(scheduler, drawn, random)
    crossed = cuda_search.cross(scheduler, changed_one, scheduler.decide(), random)
    assert sum(a != b for a, b in zip(drawn.groups, changed_one.groups, strict=True)) == 1
    for schedule in (drawn, changed_one, crossed):
        scheduler.check(schedule)
        assert scheduler.price(schedule) > 0
        assert read_schedule(schedule.to_text()) == schedule
    verify(lower(scheduler.groups, crossed).program)


def test_variants_are_schedules_by_name() -> None:
    scheduler = scheduler_of("wide")
    variants = scheduler.variants(2)
    assert list(variants) == compiler.variant_names(2)
    assert variants["256x1-0"] == scheduler.decide((GRIDS[0],))
    for schedule in variants.values():
        scheduler.check(schedule)
    first, second = (variants[f"256x1-{rank}"] for rank in (0, 1))
    assert scheduler.price(first) < scheduler.price(second)
