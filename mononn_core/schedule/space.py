"""What may be decided for a group: the preferred decisions, all legal ones, and why another is not among them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from math import ceil, gcd

from mononn_core.machine import Machine
from mononn_core.ops import registry
from mononn_core.schedule.convolution import Conv, image_of
from mononn_core.schedule.decisions import SMALLEST_BLOCK
from mononn_core.schedule.fuse import FusionGroup
from mononn_core.schedule.operands import Product
from mononn_core.schedule.phases import PhaseBuilder, rows_stand_alone
from mononn_core.schedule.prepare import is_template
from mononn_core.schedule.schedule import GroupSchedule, Partition, Tile
from mononn_core.schedule.views import Views, matrix_shape

SMALL_FLOPS = 200_000
"""Below this one owner may do a stage alone: a barrier costs as much as the work."""
PANEL_VECTORS = (1, 2, 4, 8)
"""Vectors of columns that a product's register tile may span."""


def preferred(stage: FusionGroup, builder: PhaseBuilder, owners: int) -> tuple[GroupSchedule, ...]:
    """A decision for every partition worth a try, each with the tile that suits the machine, the preferred first."""
    return tuple(_with_tile(stage, builder, p) for p in partitions(stage, builder.views, owners, builder.machine))


def legal(stage: FusionGroup, builder: PhaseBuilder, owners: int) -> Iterator[GroupSchedule]:
    """Every decision for a stage, the preferred ones first; those in parts, which two stages take together, are none of
    them."""
    seen = set()
    single = Partition("single", owners)
    for group in (*preferred(stage, builder, owners), _with_tile(stage, builder, single)):
        for tile in (group.tile, *_tiles(stage, builder, group)):
            for template in templates(stage, builder):
                found = replace(group, template=template, tile=tile)
                if found not in seen and not problem(stage, builder, found):
                    seen.add(found)
                    yield found


def templates(stage: FusionGroup, builder: PhaseBuilder) -> tuple[str, ...]:
    """Templates that can compute a stage, the preferred first; "nest" where none can."""
    if stage.root is None or not is_template(stage.root, builder.views.graph):
        return ("nest",)
    if stage.root.op != "conv":
        return (stage.root.op,)
    return tuple(dict.fromkeys(form.template for form in _forms(stage, builder)))


def problem(stage: FusionGroup, builder: PhaseBuilder, group: GroupSchedule) -> str:
    """Why a decision is not legal for a stage; "" where it is."""
    allowed = templates(stage, builder)
    if group.template not in allowed:
        return f"template {group.template!r} cannot compute it, {' or '.join(allowed)} can"
    partition, tile = group.partition, group.tile
    owners = partition.owners
    known = {p.kind for p in partitions(stage, builder.views, owners, builder.machine)} | {"single"}
    if partition.kind not in known:
        return f"it cannot be dealt by {partition.kind} to {owners} owners, {' or '.join(sorted(known))} can be"
    if group.template == "matmul":
        return _product_problem(stage, builder, partition, tile)
    if partition.segments != 1:
        return "only the columns of a product have segments"
    if group.template in ("attention", "nest"):
        return "" if tile is None else f"template {group.template!r} has no tile"
    return _image_problem(stage, builder, group)


def partitions(stage: FusionGroup, views: Views, owners: int, machine: Machine) -> tuple[Partition, ...]:
    """Ways of dealing a stage to ``owners`` owners that are worth a try, the preferred first."""
    types = views.graph.types
    single = Partition("single", owners)
    if owners == 1:
        return (single,)
    op = stage.root.op if stage.root and is_template(stage.root, views.graph) else ""
    if op == "matmul":
        found, flops = _matmul_partitions(stage, views, owners, machine)
    elif op == "conv":
        found, flops = _conv_partitions(stage, views, owners, machine)
    elif op == "attention":
        assert stage.root is not None
        batch, heads, rows, depth = types[stage.root.inputs[0]].shape
        flops = 4 * batch * heads * rows * depth * types[stage.root.inputs[1]].shape[2]
        found = [Partition("heads", owners)] if (batch * heads) % owners == 0 else []
        exact = rows % owners == 0 or rows_stand_alone(stage.root, views)
        found += [Partition("rows", owners)] if exact and rows >= 8 * owners else []
    else:
        rows, columns = matrix_shape(types[stage.root.outputs[0] if stage.root else stage.stored].shape)
        flops = rows * columns * 8
        found = [Partition("rows", owners)] if rows >= owners else []
        whole_row = stage.root is not None and registry.get(stage.root.op).kind == "row"
        lanes = machine.vector_bytes // 4
        if not whole_row and columns >= 2 * lanes * owners:
            found.append(Partition("columns", owners))
    return (*found, single) if flops < SMALL_FLOPS or not found else tuple(found)


def _matmul_partitions(stage: FusionGroup, views: Views, owners: int, machine: Machine) -> tuple[list[Partition], int]:
    assert stage.root is not None
    p = Product.of(stage.root, views.graph.types)
    lanes = machine.vector_bytes // 4
    flops = 2 * p.batch * p.m * p.n * p.k
    if p.batch > 1:
        found = [Partition("batch", owners)] if p.batch % owners == 0 else []
    else:
        found = [Partition("rows", owners)] if p.m >= 4 * owners else []
    if p.n >= owners * lanes:
        found.append(Partition("columns", owners))
    segments = _segments(stage, views)
    if segments > 1 and p.n % segments == 0 and (p.n // segments) % (owners * lanes) == 0:
        found.append(Partition("columns", owners, segments))
    return found, flops


def _conv_partitions(stage: FusionGroup, views: Views, owners: int, machine: Machine) -> tuple[list[Partition], int]:
    assert stage.root is not None
    lanes = machine.vector_bytes // 4
    conv = Conv.forms(stage.root, views.graph.types, lanes)[0]
    n, height, _, channels = conv.out
    found = [Partition("batch", owners)] if n % owners == 0 else []
    if (n == 1 and height >= owners) or height % owners == 0:
        found.append(Partition("rows", owners))
    if conv.panel // lanes % owners == 0 if conv.depthwise else channels > conv.panel * (owners - 1):
        found.append(Partition("columns", owners))
    return found, conv.flops


def _segments(stage: FusionGroup, views: Views) -> int:
    """How many equal runs of columns the readers of a merged product cut it into (Q, K and V: three)."""
    graph = views.graph
    width = matrix_shape(graph.types[stage.stored].shape)[1]
    cuts = []
    for reader in graph.consumers()[stage.stored]:
        if reader.op == "slice":
            cuts.append(graph.types[reader.outputs[0]].shape[-1])
    common = 0
    for cut in cuts:
        common = gcd(common, cut)
    return width // common if common else 1


# -- tiles ------------------------------------------------------------------------------------------------------------


def _with_tile(stage: FusionGroup, builder: PhaseBuilder, partition: Partition) -> GroupSchedule:
    template = templates(stage, builder)[0]
    tile = None
    if template == "matmul":
        assert stage.root is not None
        tile = builder.tile(Product.of(stage.root, builder.types), partition)
    elif template not in ("attention", "nest"):
        tile = _forms(stage, builder)[0].tile(partition, image_of(builder, stage).pitch, builder.machine)
    return GroupSchedule(stage.own, template, partition, tile)


def _tiles(stage: FusionGroup, builder: PhaseBuilder, group: GroupSchedule) -> Iterator[Tile]:
    """Other tiles, most of them legal."""
    if group.tile is None:
        return
    share = group.tile.rows * group.tile.blocks
    lanes = builder.machine.vector_bytes // 4
    panels = {group.tile.panel, *(vectors * lanes for vectors in PANEL_VECTORS)}
    for panel in sorted(panels):
        for blocks in range(1, max(1, share // (SMALLEST_BLOCK if group.template == "matmul" else 1)) + 1):
            yield Tile(ceil(share / blocks), blocks, panel)


def _product_problem(stage: FusionGroup, builder: PhaseBuilder, partition: Partition, tile: Tile | None) -> str:
    assert stage.root is not None
    if tile is None:
        return "a product has a tile"
    p, lanes = Product.of(stage.root, builder.types), builder.machine.vector_bytes // 4
    by_rows, by_columns = (partition.owners if partition.kind == kind else 1 for kind in ("rows", "columns"))
    if partition.segments > 1:
        possible = (q.segments for q in partitions(stage, builder.views, partition.owners, builder.machine))
        if partition.kind != "columns" or partition.segments not in possible:
            return f"its columns are not read in {partition.segments} equal segments"
    width = p.n // partition.segments
    if tile.panel % lanes or tile.panel // lanes not in PANEL_VECTORS:
        return f"a panel of {tile.panel} columns is not 1, 2, 4 or 8 vectors of {lanes}"
    if tile.panel > lanes and tile.panel * by_columns > width:
        return f"a panel of {tile.panel} columns leaves an owner without any of {width}"
    if partition.segments > 1 and (width // by_columns) % tile.panel:
        return f"panels of {tile.panel} columns do not end where a segment does"
    if p.batch > 1:
        return "" if (tile.rows, tile.blocks) == (p.m, 1) else f"a task of a batched product has all {p.m} rows"
    return _rows_problem(ceil(p.m / by_rows), tile)


def _image_problem(stage: FusionGroup, builder: PhaseBuilder, group: GroupSchedule) -> str:
    tile, partition = group.tile, group.partition
    if tile is None:
        return "a convolution has a tile"
    forms = [form.dealt(partition) for form in _forms(stage, builder) if form.template == group.template]
    panels = [form.panel for form in forms]
    if tile.panel not in panels:
        return f"a panel of {tile.panel} channels is not {' or '.join(map(str, panels))}"
    share = forms[0].share(partition)
    if forms[0].out[0] > 1 and share % tile.rows:
        return f"{tile.rows} image rows do not divide the {share} of each image"
    return _rows_problem(share, tile)


def _rows_problem(share: int, tile: Tile) -> str:
    if tile.rows < 1 or tile.blocks < 1 or tile.rows * tile.blocks < share:
        return f"{tile.blocks} blocks of {tile.rows} rows do not hold the {share} of an owner"
    if tile.rows * (tile.blocks - 1) >= share:
        return f"{tile.blocks} blocks of {tile.rows} rows are more than the {share} of an owner"
    return ""


def _forms(stage: FusionGroup, builder: PhaseBuilder) -> tuple[Conv, ...]:
    assert stage.root is not None
    return Conv.forms(stage.root, builder.types, builder.machine.vector_bytes // 4)
