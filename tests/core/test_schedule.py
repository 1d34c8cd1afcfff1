"""Schedules as values: printed, read again, changed by hand or at random, and refused with the reason."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from random import Random

import numpy as np
import onnx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from mononn_core import compiler
from mononn_core.compiler import Stages
from mononn_core.decide import search, space
from mononn_core.decide.cpu import CpuScheduler
from mononn_core.errors import OptionError
from mononn_core.machine import Machine
from mononn_core.ops.evaluate import run as evaluate
from mononn_core.options import Options
from mononn_core.passes import pipeline
from mononn_core.program.interpret import run as interpret
from mononn_core.program.text import to_text as program_text
from mononn_core.runtime.session import Session
from mononn_core.schedule.groups import CpuGroups
from mononn_core.schedule.schedule import Bands, GroupSchedule, Partition, Schedule, Tile
from tests.core import test_groups, test_winograd
from tests.core.networks import MODELS, Builder, encoder
from tests.core.test_convolution import Layer, chain

MACHINE = Machine.named("avx2")
NETWORKS: dict[str, Callable[[], bytes]] = {
    **MODELS,
    "wide encoder": lambda: encoder(layers=2, tokens=16, width=64, heads=4, hidden=128),
    "winograd": lambda: test_winograd.network(32, 32, 12, 12),
    "images": lambda: chain((2, 20, 8, 8), [Layer(20, (5, 5), (1, 1), (2, 2, 2, 2))] * 2),
    "depthwise": lambda: test_groups.network(32, 8, 32, 9, 1),
    "groups": lambda: test_groups.network(40, 2, 68, 9, 1),
    "bands": lambda: chain((1, 3, 30, 30), [Layer(32, (7, 7), (2, 2), (3, 3, 3, 3))]),
}


def lowered(name: str, schedule: Schedule | None = None, threads: int = 2) -> Stages:
    stages = compiler.lower(NETWORKS[name](), threads=threads, machine=MACHINE, schedule=schedule)
    assert isinstance(stages, Stages)
    return stages


def decided(name: str) -> Schedule:
    found = lowered(name).lowered.schedule
    assert found is not None
    return found


def inputs(stages: Stages) -> dict[str, np.ndarray]:
    random = np.random.default_rng(4)
    types = {name: stages.graph.types[name] for name in stages.graph.inputs}
    return {
        name: random.standard_normal(kind.shape).astype(np.float32)
        if kind.dtype == "float32"
        else random.integers(0, 2, kind.shape).astype(kind.dtype)
        for name, kind in types.items()
    }


def check_answers(stages: Stages, compiled: bool = False) -> None:
    """The virtual machine, and the compiled function where asked for, near the evaluation of the imported Graph."""
    fed = inputs(stages)
    want = evaluate(stages.graph, fed)
    program = stages.program
    shaped = {name: fed[name].reshape(program.buffer(name).shape) for name in program.inputs}
    answers = interpret(program, shaped, stages.lowered.weights, workers=2)
    for name, exact in want.items():
        np.testing.assert_allclose(answers[name].reshape(exact.shape), exact, rtol=1e-3, atol=1e-4)
    if compiled:
        with Session(compiler.build(stages), threads=2) as session:
            for name, answer in session.run(fed).items():
                np.testing.assert_allclose(answer, want[name], rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("name", sorted(NETWORKS))
def test_a_printed_schedule_gives_the_same_program(name: str) -> None:
    first = lowered(name)
    schedule = first.lowered.schedule
    assert schedule is not None
    for read in (Schedule.read(schedule.to_text()), Schedule.read(schedule.to_json())):
        assert read == schedule
    again = lowered(name, Schedule.read(schedule.to_text()))
    assert program_text(again.program) == program_text(first.program)
    assert again.source == first.source
    assert again.lowered.weights.keys() == first.lowered.weights.keys()


def test_bands_and_segments_are_printed() -> None:
    assert any(g.partition.bands for g in decided("bands").groups)
    group = GroupSchedule("a: b", "matmul", Partition("columns", 2, 3, Bands("x@bands", -3, 5, 7)), Tile(1, 2, 16, 14))
    schedule = Schedule("a network, 3 owners", 2, ((group,), (group,)))
    assert Schedule.from_text(schedule.to_text()) == schedule == Schedule.from_json(schedule.to_json())
    early = replace(schedule, prefetch=True)
    assert Schedule.from_text(early.to_text()) == early == Schedule.from_json(early.to_json()) != schedule
    commented = "# by hand\n\n" + schedule.to_text().replace("\nbarrier", " # wide\n  barrier # here")
    assert Schedule.from_text(commented) == schedule


def test_weights_are_asked_for_early_where_the_schedule_says_so() -> None:
    """Whatever the options say: two lowerings of one Schedule give the same Program."""
    plain = apart(decided("wide encoder"))
    early = lowered("wide encoder", replace(plain, prefetch=True))
    assert any(p.prefetches for p in early.program.phases()) and early.lowered.schedule.prefetch
    assert not any(p.prefetches for p in lowered("wide encoder", plain).program.phases())
    asked = compiler.lower(NETWORKS["wide encoder"](), threads=2, machine=MACHINE, prefetch=True)
    assert asked.lowered.schedule == replace(decided("wide encoder"), prefetch=True)


def group_of(schedule: Schedule, template: str, number: int = 0) -> GroupSchedule:
    return [g for g in schedule.groups if g.template == template][number]


def apart(schedule: Schedule) -> Schedule:
    """A barrier after every group, so that any way of dealing is ordered."""
    whole = tuple((replace(g, partition=replace(g.partition, bands=None)),) for g in schedule.groups)
    return replace(schedule, intervals=whole)


def narrower(schedule: Schedule) -> Schedule:
    group = group_of(schedule, "matmul", 1)
    assert group.tile is not None
    return schedule.with_group(replace(group, tile=replace(group.tile, panel=8)))


def more_blocks(schedule: Schedule) -> Schedule:
    group = group_of(schedule, "conv" if any(g.template == "conv" for g in schedule.groups) else "winograd4")
    assert group.tile is not None
    return schedule.with_group(
        replace(group, tile=Tile(-(-group.tile.rows // 2), 2 * group.tile.blocks, group.tile.panel, group.tile.at_once))
    )


def direct(schedule: Schedule) -> Schedule:
    group = group_of(schedule, "winograd4")
    return schedule.with_group(replace(group, template="conv"))


def alone(schedule: Schedule) -> Schedule:
    schedule = apart(schedule)
    groups = [replace(g, partition=Partition("single", 2)) for g in schedule.groups if g.template == "nest"]
    for group in groups:
        schedule = schedule.with_group(group)
    return schedule


def by_columns(schedule: Schedule) -> Schedule:
    """Every product by columns, in the tile that suits that."""
    schedule = apart(schedule)
    scheduler = scheduler_of("wide encoder", 2)
    for group in [g for g in schedule.groups if g.template == "matmul"]:
        stage = scheduler.groups.by_name[group.group][1]
        wanted = [g for g in space.preferred(stage, scheduler.groups.builder, 2) if g.partition.kind == "columns"]
        schedule = schedule.with_group(wanted[0])
    return schedule


@pytest.mark.parametrize(
    ("name", "edit"),
    [("wide encoder", narrower), ("winograd", more_blocks), ("winograd", direct), ("mixed", alone),
     ("wide encoder", by_columns)],
)  # fmt: skip
def test_a_legal_schedule_made_by_hand_runs(name: str, edit: Callable[[Schedule], Schedule]) -> None:
    schedule = decided(name)
    changed = edit(schedule)
    assert changed != schedule
    stages = lowered(name, changed)
    assert stages.lowered.schedule == changed
    assert stages.source != lowered(name).source
    check_answers(stages, compiled=True)


def product(rows: int, terms: int, columns: int) -> bytes:
    """One product by weights."""
    b = Builder("product")
    b.add("MatMul", "x", b.weight(terms, columns), output="y")
    return b.model({"x": (onnx.TensorProto.FLOAT, (rows, terms))}, {"y": (rows, columns)})


@pytest.mark.parametrize(
    ("machine", "rows", "columns", "panel", "at_once"),
    [
        ("avx512", 64, 96, 48, 9),
        ("avx512", 64, 256, 32, 14),  # 48 would add 32 columns
        ("avx512", 28, 96, 32, 14),  # 14 rows an owner, which tiles of 9 would cut into two of 7
        ("avx2", 64, 96, 24, 4),
        ("avx2", 64, 64, 16, 6),
        ("neon", 64, 96, 8, 14),
    ],
)
def test_three_vectors_where_rows_and_columns_fill_them(
    machine: str, rows: int, columns: int, panel: int, at_once: int
) -> None:
    """With the same bits as two: a sum's terms are added in the same order."""
    named = Machine.named(machine)
    first = compiler.lower(product(rows, 40, columns), threads=2, machine=named)
    group = group_of(first.lowered.schedule, "matmul")
    assert group.tile is not None and (group.tile.panel, group.tile.at_once) == (panel, at_once)
    check_answers(first)
    two = replace(group, tile=replace(group.tile, panel=2 * named.lanes("float32"), at_once=6))
    other = compiler.lower(
        product(rows, 40, columns), threads=2, machine=named, schedule=first.lowered.schedule.with_group(two)
    )
    if not named.features <= Machine.probe().features:
        return
    answers = []
    for stages in (first, other):
        with Session(compiler.build(stages), threads=2) as session:
            answers.append(session.run(inputs(stages))["y"])
    np.testing.assert_array_equal(*answers)


@pytest.mark.parametrize(("rows", "terms", "columns", "blocks"), [(200, 3072, 768, 1), (3200, 768, 64, 8)])
def test_rows_are_cut_where_reading_them_again_takes_longer_than_weights(
    rows: int, terms: int, columns: int, blocks: int
) -> None:
    """Of more rows than the second-level cache holds: blocks that each read all weights, or rows that panels read."""
    stages = compiler.lower(product(rows, terms, columns), threads=2, machine=Machine.named("avx512"))
    (group,) = stages.lowered.schedule.groups
    assert group.partition.kind == "rows" and group.tile is not None and group.tile.blocks == blocks


def test_joined_rows_are_not_dealt_by_columns() -> None:
    """Rows in pieces, each in a loop of its own; a part of the columns would ask which piece each element is of."""
    b = Builder("joined")
    b.add("Concat", b.add("Exp", "x"), b.add("Neg", "z"), output="y", axis=1)
    kinds = {"x": (onnx.TensorProto.FLOAT, (3, 1600)), "z": (onnx.TensorProto.FLOAT, (3, 400))}
    stages = compiler.lower(b.model(kinds, {"y": (3, 2000)}), threads=2, machine=MACHINE)
    assert group_of(stages.lowered.schedule, "nest").partition.kind == "rows"
    assert stages.source.count("each_lane") == 2
    check_answers(stages)


def without_barriers(schedule: Schedule) -> Schedule:
    return replace(schedule, intervals=(schedule.groups,))


def backwards(schedule: Schedule) -> Schedule:
    return replace(schedule, intervals=tuple(reversed(apart(schedule).intervals)))


def renamed(schedule: Schedule) -> Schedule:
    first = replace(schedule.groups[0], group="no such tensor")
    return replace(schedule, intervals=((first, *schedule.intervals[0][1:]), *schedule.intervals[1:]))


def change(which: str, /, **fields: object) -> Callable[[Schedule], Schedule]:
    return lambda schedule: schedule.with_group(replace(group_of(schedule, which), **fields))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("name", "edit", "reason"),
    [
        ("wide encoder", without_barriers, "the schedule is not legal: "),
        ("wide encoder", backwards, "before .*, which it reads"),
        ("wide encoder", change("matmul", tile=Tile(4, 1, 8, 6)), "1 blocks of 4 rows do not hold the .* of an owner"),
        ("wide encoder", change("matmul", tile=Tile(16, 1, 16, 15)), "15 rows at once .* are not 1 to 6"),
        ("wide encoder", change("matmul", tile=Tile(16, 1, 12, 6)), "12 columns is not 1, 2, 3, 4 or 8 vectors"),
        ("wide encoder", change("attention", template="conv"), "template 'conv' cannot compute it, attention can"),
        ("wide encoder", change("attention", partition=Partition("columns", 2)), "dealt by columns to 2 owners"),
        ("wide encoder", change("matmul", tile=None), "a product has a tile"),
        ("winograd", change("winograd4", tile=Tile(100, 2, 16, 6)), "2 blocks of 100 rows are more than the"),
        ("winograd", change("winograd4", tile=Tile(6, 1, 24, 6)), "a panel of 24 channels is not 16 or 8"),
        ("depthwise", change("depthwise", template="winograd"), "depthwise can"),
        ("images", change("conv", tile=Tile(5, 2, 16, 6)), "do not divide the 8 of each image"),
        ("wide encoder", lambda s: replace(s, owners=3), "for 3 owners, not 2"),
        ("wide encoder", lambda s: replace(s, precision="bf16"), "for precision bf16, not fp32"),
        ("wide encoder", lambda s: replace(s, intervals=s.intervals[:-1]), "has no group"),
        ("wide encoder", lambda s: replace(s, intervals=(*s.intervals, s.intervals[0])), "twice"),
        ("wide encoder", renamed, "a group 'no such tensor', which encoder has not"),
        ("bands", lambda s: s.with_group(
            replace(s.groups[0], partition=replace(s.groups[0].partition, bands=Bands("x@bands", 0, 1, 2)))
        ), "is not what a map and the one convolution"),
        ("bands", lambda s: s.with_group(
            replace(s.groups[0], partition=replace(s.groups[0].partition, bands=None))
        ), "is not what a map and the one convolution"),
    ],
)  # fmt: skip
def test_an_illegal_schedule_is_refused_with_its_reason(
    name: str, edit: Callable[[Schedule], Schedule], reason: str
) -> None:
    changed = edit(decided(name))
    with pytest.raises(OptionError, match=reason):
        lowered(name, changed)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "begins with a line like"),
        ("group a: nest by rows\n", "begins with a line like"),
        ("network x, fp32, 2 owners\ngroup a: nest by rows, tile 1 rows\n", "line 2 of the schedule is not understood"),
        ('{"format": 77}', "format 77; this version reads format 3"),
        ('{"format": 3, "network": "x", "owners": 2, "intervals": [[{"group": "a"}]]}', "no schedule in JSON"),
        ('{"format": 3, "network": "x", "owners": "2", "intervals": []}', "no schedule in JSON"),
        ('{"format": 3, "network": "x", "owners": 2, "intervals": [[{"group": "a", "speed": 9}]]}', "'speed'"),
        ("{", "no schedule in JSON"),
    ],
)
def test_what_is_no_schedule_is_refused(text: str, reason: str) -> None:
    with pytest.raises(OptionError, match=reason):
        Schedule.read(text)


@pytest.mark.slow
@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.sampled_from(sorted(NETWORKS)), st.sampled_from([2, 3]), st.integers(0, 1 << 30))
def test_what_a_search_makes_is_legal_and_dearer(name: str, owners: int, seed: int) -> None:
    """At random, one decision changed, two crossed: each is legal, runs, keeps what was asked for, and the model finds
    none cheaper than its own choice among what it prefers."""
    random = Random(seed)
    scheduler = scheduler_of(name, owners)
    best = scheduler.decide()
    drawn = search.sample(scheduler, random)
    changed = search.mutate(scheduler, best, random)
    crossed = search.cross(scheduler, drawn, changed, random)
    for schedule in (drawn, changed, crossed):
        scheduler.check(schedule)
        assert scheduler.price(schedule) > 0
    different = [g for g in changed.groups if _plain(g) not in {_plain(b) for b in best.groups}]
    assert len(different) <= 1, "one decision, or an image that is stored whole again"
    whole = {_plain(g) for schedule in (drawn, changed) for g in schedule.groups}
    assert {_plain(g) for g in crossed.groups} <= whole
    again = scheduler.decide({g.group: g for g in best.groups})
    assert again.groups == best.groups and scheduler.price(again) == pytest.approx(scheduler.price(best))
    preferred = {
        stage.own: random.choice(space.preferred(stage, scheduler.groups.builder, owners))
        for stage in scheduler.groups.stages
    }
    other = scheduler.decide(preferred)
    assert scheduler.price(best) <= scheduler.price(other) * 1.02, "up to what the search's beam may miss"
    check_answers(lowered(name, random.choice([drawn, changed, crossed, other]), owners))


def _plain(group: GroupSchedule) -> GroupSchedule:
    return replace(group, partition=replace(group.partition, bands=None))


def scheduler_of(name: str, owners: int) -> CpuScheduler:
    optimized = compiler.lower(NETWORKS[name](), threads=owners, machine=MACHINE).optimized
    return CpuScheduler(CpuGroups(pipeline.prepare(optimized, "cpu"), Options(threads=owners), MACHINE))


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.sampled_from(sorted(NETWORKS)), st.sampled_from([1, 2, 3]), st.randoms(use_true_random=False))
def test_any_choice_of_legal_decisions_gives_the_same_answers(name: str, owners: int, random: object) -> None:
    """Every group as something that is legal for it, a barrier after each; the verifier has seen the Program."""
    scheduler = scheduler_of(name, owners)
    chosen = []
    for stage in scheduler.groups.stages:
        options = list(space.legal(stage, scheduler.groups.builder, owners))
        preferred = space.preferred(stage, scheduler.groups.builder, owners)
        assert set(preferred) <= set(options)
        chosen.append((random.choice(options),))  # type: ignore[attr-defined]
    stages = lowered(name, Schedule(scheduler.groups.graph.name, owners, tuple(chosen)), owners)
    check_answers(stages)


def dealt(nodes: Callable[[Builder], str], shape: tuple[int, ...], out: tuple[int, ...]) -> str:
    """How two owners share what loops compute of x."""
    b = Builder("loops")
    nodes(b)
    stages = compiler.lower(b.model({"x": (1, shape)}, {"y": out}), threads=2, machine=MACHINE)
    assert stages.lowered.schedule is not None
    (group,) = stages.lowered.schedule.groups
    assert group.template == "nest"
    return group.partition.kind


@pytest.mark.parametrize(
    ("nodes", "shape", "out", "kind"),
    [
        (lambda b: b.add("Mul", "x", b.constant(np.float32([0.5])), output="y"), (1, 197, 768), (1, 197, 768), "rows"),
        (lambda b: b.add("Concat", "x", "x", output="y", axis=1), (1, 64, 55, 55), (1, 128, 55, 55), "rows"),
        (lambda b: b.add("Transpose", "x", output="y", perm=[0, 2, 1, 3]), (1, 128, 8, 64), (1, 8, 128, 64), "rows"),
        (lambda b: b.add("Mul", "x", b.constant(np.float32([0.5])), output="y"), (3, 400_000), (3, 400_000), "columns"),
    ],
)
def test_owners_do_not_write_parts_of_the_same_short_rows(
    nodes: Callable[[Builder], str], shape: tuple[int, ...], out: tuple[int, ...], kind: str
) -> None:
    """Prefetchers run past the end of a part into lines that the other owner is about to write."""
    assert dealt(nodes, shape, out) == kind
