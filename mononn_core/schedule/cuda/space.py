"""Which decisions a group may have on a GPU, and why another is not legal."""

from __future__ import annotations

from dataclasses import replace
from math import ceil

from mononn_core.errors import UnsupportedError
from mononn_core.schedule.cuda.builder import HELD_BYTES, CudaBuilder
from mononn_core.schedule.cuda.plan import Planner
from mononn_core.schedule.cuda.schedule import CudaGroup, CudaSchedule
from mononn_core.schedule.cuda.tiles import tile_problem
from mononn_core.schedule.fuse import FusionGroup
from mononn_core.schedule.prepare import is_template
from mononn_core.schedule.views import matrix_shape


def problem_of(
    group: CudaGroup, stage: FusionGroup, schedule: CudaSchedule, planner: Planner, builder: CudaBuilder
) -> str:
    """Why a decision is not legal for ``stage`` in ``schedule``; "" where it is. Whether the barriers suffice the
    verifier says."""
    if group.template == "sum":
        return _sum_problem(group, stage, schedule) or _tasks_problem(group, stage, builder)
    expected = _template(stage, planner)
    if group.template != expected:
        return f"template {group.template!r} cannot compute it, {expected} can"
    if (group.tile is None) != (expected != "matmul"):
        return "a product has a tile, and nothing else has"
    if expected == "matmul":
        return _product_problem(group, stage, schedule, planner)
    if expected == "attention":
        return _attention_problem(group, stage, builder)
    if group.adds:
        source = planner.source(stage)
        if source is None or source.stored != group.adds or not _in_parts(group.adds, schedule):
            return f"it does not normalise a product {group.adds!r} in parts"
    return _tasks_problem(group, stage, builder)


def _template(stage: FusionGroup, planner: Planner) -> str:
    root = stage.root
    return root.op if root and root.op in ("matmul", "attention") and is_template(root, planner.graph) else "nest"


def _in_parts(name: str, schedule: CudaSchedule) -> bool:
    return any(g.group == name and g.tile is not None and g.tile.parts > 1 for g in schedule.groups)


def _sum_problem(group: CudaGroup, stage: FusionGroup, schedule: CudaSchedule) -> str:
    if not _in_parts(group.group, schedule):
        return "only a product in parts is summed"
    if any(other.adds == stage.stored for other in schedule.groups):
        return "a norm adds its parts"
    return ""


def _product_problem(group: CudaGroup, stage: FusionGroup, schedule: CudaSchedule, planner: Planner) -> str:
    tile, shape = group.tile, planner.shape(stage)
    assert tile is not None
    if group.fill:
        fill = planner.by_stored.get(group.fill)
        if fill is None or not planner.fillable(fill) or planner.consumer(fill, {}) is not stage:
            return f"{group.fill!r} is not what its left side alone is computed by"
        if tile.parts > 1:
            return "a product whose left side is filled in is not cut into parts"
        operations, nbytes = planner.fill_work(fill)
        shape = replace(shape, fill=operations, fill_bytes=nbytes)
    if tile.parts > 1:
        added = any(g.adds == stage.stored or (g.template == "sum" and g.group == group.group) for g in schedule.groups)
        if shape.batch > 1 or not added:
            return f"nothing adds its {tile.parts} parts"
        shape = replace(shape, split=True)
    return tile_problem(shape, tile, planner.target)


def _attention_problem(group: CudaGroup, stage: FusionGroup, builder: CudaBuilder) -> str:
    try:
        allowed = builder.attention_tiles(stage)
    except UnsupportedError as error:
        return str(error)
    if (group.rows, group.keys) in allowed:
        return ""
    known = ", ".join(f"{rows} x {keys}" for rows, keys in allowed)
    return f"{group.rows} rows and {group.keys} keys are none of {known}"


def _tasks_problem(group: CudaGroup, stage: FusionGroup, builder: CudaBuilder) -> str:
    rows, columns = matrix_shape(builder.types[stage.root.outputs[0] if stage.root else stage.stored].shape)
    if group.by == "single":
        return "" if group.tasks == 1 else f"a single task is not {group.tasks}"
    if group.by not in ("rows", "columns") or (group.by == "columns" and stage.root is not None):
        return f"it cannot be dealt by {group.by or 'nothing'}"
    most = rows if group.by == "rows" else columns
    if not 1 < group.tasks <= most:
        return f"{group.tasks} tasks by {group.by} are not 2 to {most}"
    each = ceil(most / group.tasks)
    if group.adds and each * columns * 4 > HELD_BYTES and group.tasks < builder.norm_tasks(stage).owners:
        return f"{each} rows of sums are more than a task holds"
    return ""
