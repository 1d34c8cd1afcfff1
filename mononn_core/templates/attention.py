"""Attention: s = q k^T for q [R, D] and k [T, D], p = softmax over j of score(s[i, j]), and p v for v [T, E].

Vaswani et al., "Attention Is All You Need", NeurIPS 2017, section 3.2.1; on a GPU keys and values pass in steps with
running maxima and sums: Milakov and Gimelshein, "Online normalizer calculation for softmax", 2018; Dao et al.,
"FlashAttention", NeurIPS 2022.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from math import ceil
from typing import Any, ClassVar

import numpy as np

from mononn_core.codegen.c import literal
from mononn_core.codegen.cpu_storage import TILES, CpuStorage, CpuTemplate, is_narrow, write_tiles
from mononn_core.codegen.cstyle import Printer
from mononn_core.codegen.cuda_expressions import CudaPrinter, unguarded_loads
from mononn_core.codegen.cuda_lanes import store_width
from mononn_core.codegen.cuda_lanes import write_element as write_lanes
from mononn_core.codegen.cuda_storage import CudaStorage, CudaTemplate, inner_axes
from mononn_core.codegen.epilogues import write_element
from mononn_core.codegen.loops import score_text
from mononn_core.codegen.storage import row_stride
from mononn_core.element import BYTES, C_TYPES, COMPUTE, CUDA_TYPES, PARTNERS, WORD, computed, itemsize
from mononn_core.errors import UnsupportedError
from mononn_core.graph import Node
from mononn_core.ops import registry
from mononn_core.ops.attention import score_steps
from mononn_core.ops.common import integers, numbers
from mononn_core.ops.quantise import Rounding
from mononn_core.program.expr import Acc, Cast, Const, Expr, Var, op
from mononn_core.program.ir import Box, Phase, Task
from mononn_core.program.simplify import simplify
from mononn_core.program.template import Array, Elements, Extent, Running, Template, operand, sides
from mononn_core.program.tensor_core import KINDS, WARP, AttentionShape, kind_of
from mononn_core.schedule.binder import BLOCK, HEAD, OWNER, TaskBuilder, bound, unit_axes
from mononn_core.schedule.cuda.builder import CudaBuilder
from mononn_core.schedule.cuda.schedule import CudaGroup
from mononn_core.schedule.cuda.template import CudaScheduled, PlannedPhase
from mononn_core.schedule.decisions import TILED_ROWS, most_at_once, tile_step
from mononn_core.schedule.operands import attention_axes, axis, unit_stride
from mononn_core.schedule.phases import PhaseBuilder
from mononn_core.schedule.schedule import GroupSchedule, Partition
from mononn_core.schedule.stages import FusionGroup
from mononn_core.schedule.template import CpuScheduled, Ways
from mononn_core.schedule.views import Views, matrix_shape

PACKED_VECTORS = 2
"""Vectors of keys, or of values' columns, in a packed panel of that kernel."""
VECTOR, SCORE = 16, 22
"""Keys of a vector; terms of both products that are added up in the time in which a score is weighed (measured)."""
BLOCK_KEYS = (256, 128, 64, 32, 16)
"""Keys that a GPU's task takes in one step, the most that fit."""
MOST_FRAGMENTS = 16
"""Fragments of keys in a warp's registers."""
BLOCK_ROWS = (16, 32, 64)
STARTING_ROWS = 64
"""Rows whose work takes as long as what a task takes however few it has: its loads, its reductions. An estimate."""
AHEAD = 32
"""Most values that a GPU's thread loads for scores before it has them."""


@dataclass(frozen=True)
class AttentionParams:
    """``guard``: a row whose scores are all -inf gives 0, not NaN. Of a CPU: rows whose sums are in registers together,
    at most ``at_once``; ``tile_groups`` of a row of q that a tile register holds (0: all is in vectors); of integers,
    ``zeros`` are subtracted from q, k and v, and probabilities are whole multiples of ``step``, ``most`` times it at
    most. Of a GPU: ``kind`` of its products (of its operands' type where it is ""), and
    ``keys`` that it takes in one step."""

    guard: bool = False
    at_once: int = 0
    tile_groups: int = 0
    zeros: tuple[int, int, int] = (0, 0, 0)
    step: float = 0.0
    most: int = 0
    kind: str = ""
    keys: int = 64


class Attention(Template[AttentionParams], CpuTemplate, CpuScheduled, CudaTemplate, CudaScheduled):
    """Prologue "score" is an expression of Acc (= s[i, j]), its axes i and j, and Loads; results have axes (i, d)."""

    name = op = "attention"
    roles = ("q", "k", "v")
    parameters = AttentionParams
    prologues: ClassVar[Mapping[str, tuple[str, ...]]] = {"score": ("i", "j")}
    efficiency = 0.95

    # -- meaning ----------------------------------------------------------------------------------------------------

    def contraction(self, task: Task, extent: Extent) -> str:
        for first, second, side in (("q", "k", 1), ("k", "v", 0)):
            if (extent(first, side) != extent(second, side)).any():
                return f"the extents that operands {first!r} and {second!r} contract differ"
        return ""

    def elements(self, task: Task, axes: tuple[str, ...], prologue: str = "") -> Elements:
        return sides(task, axes, (("q", 0), ("k", 0) if prologue else ("v", 1)))

    def compute(self, task: Task, running: Running) -> Array:
        params = self.params(task)
        q, k, v = (running.matrix(role) for role in self.roles)
        whole = params.step > 0
        if whole:
            q, k, v = (x - x.dtype.type(zero) for x, zero in zip((q, k, v), params.zeros, strict=True))
        score = running.prologue("score", (q @ k.T).astype(COMPUTE) if whole else q @ k.T)
        weight = np.exp(score - score.max(axis=1, keepdims=True, initial=-np.inf))
        weight = weight / weight.sum(axis=1, keepdims=True)
        if params.guard:
            weight = np.where(np.isnan(weight), np.zeros_like(weight), weight)
        if whole:
            weight = np.minimum(np.round(weight / weight.dtype.type(params.step)), params.most).astype(WORD)
        return np.asarray(weight @ v)

    # -- how groups are dealt, on a CPU -----------------------------------------------------------------------------

    def rate(self, phase: Phase) -> float:
        """Scores take their time beside the products, and those of keys that fill up a vector as much as others."""
        keys, depth = operand(phase.task, "k").box.size[-2:]
        return keys / (VECTOR * ceil(keys / VECTOR)) * depth / (depth / self.efficiency + SCORE)

    def ways(self, stage: FusionGroup, builder: PhaseBuilder, owners: int) -> Ways:
        assert stage.root is not None
        batch, heads, rows, depth = builder.types[stage.root.inputs[0]].shape
        flops = 4 * batch * heads * rows * depth * builder.types[stage.root.inputs[1]].shape[2]
        found = [Partition("heads", owners)] if (batch * heads) % owners == 0 else []
        exact = rows % owners == 0 or rows_stand_alone(stage.root, builder.views)
        return Ways((*found, *([Partition("rows", owners)] if exact and rows >= 8 * owners else [])), flops)

    def build(self, builder: PhaseBuilder, stage: FusionGroup, decided: GroupSchedule, name: str) -> Phase:
        node, partition = stage.root, decided.partition
        assert node is not None
        batch, heads, rows, depth = builder.types[node.inputs[0]].shape
        owners = partition.owners if partition.kind != "single" else 1
        bh: Expr = Var(HEAD)
        i0: Expr = Const(0)
        if partition.kind == "rows":
            tile_rows, per_owner = ceil(rows / owners), batch * heads
            i0 = Var(OWNER) * tile_rows
        else:
            tile_rows, per_owner = rows, batch * heads // owners
            bh = Var(OWNER) * per_owner + bh
        extents = {OWNER: owners, HEAD: per_owner}
        kind = builder.multiplied(node)
        groups = tile_step(depth, kind, builder.machine)
        at_once = TILED_ROWS if groups else most_at_once(PACKED_VECTORS, builder.machine, kind)
        params: dict[str, Any] = {"guard": guarded(node), "at_once": at_once}
        params |= {"tile_groups": groups} if groups else {}
        if builder.types[node.inputs[0]].dtype in BYTES:
            step, _, most = numbers(node.attrs, "probability")
            params |= {"zeros": integers(node.attrs, "zeros"), "step": step, "most": int(most)}
        task, flops = build_task(builder, stage, tile_rows, extents, (bh, i0), params)
        return builder.phase(name, stage, partition, extents, task, flops)

    # -- C++ --------------------------------------------------------------------------------------------------------

    def scratch_floats(self, task: Task, lanes: int) -> int:
        """Packed K and V of a head, and the scores of a row block, whose rows may lie a vector further apart."""
        (rows, depth), (keys, _), (_, width) = (operand(task, role).box.size for role in self.roles)
        panel = PACKED_VECTORS * lanes
        padded = ceil(keys / panel) * panel
        scores = min(rows, self.params(task).at_once) * (padded + lanes)
        return padded * depth + keys * ceil(width / panel) * panel + scores

    def headers(self, phase: Phase, code: CpuStorage) -> tuple[str, ...]:
        if self.params(phase.task).tile_groups:
            return (TILES, "mononn_tile_attention.hpp")
        return ("mononn_dot_attention.hpp",) if is_narrow(phase, code, "q") else ()

    def write_state(self, phase: Phase, code: CpuStorage) -> None:
        write_tiles(self.params(phase.task).tile_groups, code)

    def write_call(self, phase: Phase, printer: Printer, code: CpuStorage) -> None:
        task, out = phase.task, code.out
        q, k, v = (operand(task, role) for role in self.roles)
        result = task.results[0]
        inner = code.element_printer(printer, result.axes, (q.box.size[0], v.box.size[1]))
        scores = code.element_printer(printer, self.prologues["score"], (q.box.size[0], k.box.size[0]))
        code.write_scratch(phase)
        with out.block("auto score_ = [&](long i, long j, auto v_) {", "};"):
            out.line("using T = decltype(v_);")
            out.line("(void)i, (void)j;")
            out.line(f"return T({score_text(task.prologue['score'], scores)});")
        write_element(out, result, inner, ragged=True)
        rows, rows_text = code.extents(q, 0, printer)
        parts = []
        for o in (q, k, v):
            parts += [code.corner(printer, o), str(row_stride(printer.pointers[o.role].buffer))]
        calls = []
        params = self.params(task)
        if params.at_once < 1:
            raise UnsupportedError(f"phase {phase.id!r}: an attention on a CPU says how many rows it has at once")
        guard = "true" if params.guard else "false"
        struct, points = "mn::Attention<", ""
        if is_narrow(phase, code, "q"):
            left = code.buffer(q.buffer).dtype
            struct = f"mn::DotAttention<{C_TYPES[left]}, {C_TYPES[PARTNERS.get(left, left)]}, "
        tiled, first = "", ""
        if params.tile_groups:
            struct, tiled, first = struct.replace("Dot", "Tile"), f", {params.tile_groups}", "tiles_, "
        if params.step > 0:
            numbers_text = ", ".join(map(str, (*params.zeros, params.most)))
            points = f", mn::Whole<{numbers_text}>{{{literal(Const(1 / params.step, COMPUTE))}}}"
        for r in (r for r in rows if r > 0):
            sizes = f"{r}, {k.box.size[0]}, {q.box.size[1]}, {v.box.size[1]}, {params.at_once}, {guard}"
            shape = f"{struct}{sizes}{tiled}>"
            code.assert_fits(phase, shape)
            calls.append((rows_text, r, f"{shape}::run({first}{', '.join(parts)}, local_, score_, element_{points});"))
        code.choose(calls, 0 in rows)

    # -- on a GPU ---------------------------------------------------------------------------------------------------

    def decided(self, builder: CudaBuilder, planned: PlannedPhase) -> CudaGroup:
        rows, keys = block_tiles(builder, planned.stage)[0]
        return CudaGroup(planned.stage.own, self.name, rows=rows, keys=keys)

    def problem_cuda(self, builder: CudaBuilder, stage: FusionGroup, group: CudaGroup) -> str:
        try:
            allowed = block_tiles(builder, stage)
        except UnsupportedError as error:
            return str(error)
        if (group.rows, group.keys) in allowed:
            return ""
        known = ", ".join(f"{rows} x {keys}" for rows, keys in allowed)
        return f"{group.rows} rows and {group.keys} keys are none of {known}"

    def alternatives(self, builder: CudaBuilder, stage: FusionGroup, group: CudaGroup) -> Iterator[CudaGroup]:
        return (replace(group, rows=rows, keys=keys) for rows, keys in block_tiles(builder, stage))

    def build_cuda(self, builder: CudaBuilder, planned: PlannedPhase, group: CudaGroup, name: str) -> Phase:
        node, rows = planned.stage.root, group.rows
        assert node is not None
        batch, heads, total, _ = builder.types[node.inputs[0]].shape
        extents = {HEAD: batch * heads, BLOCK: ceil(total / rows)}
        params = {"guard": guarded(node), "kind": builder.target.kind, "keys": group.keys}
        task, flops = build_task(builder, planned.stage, rows, extents, (Var(HEAD), Var(BLOCK) * rows), params)
        return builder.task_phase(name, planned.stage, extents, task, flops)

    # -- CUDA C++ ---------------------------------------------------------------------------------------------------

    def shared_bytes(self, phase: Phase, code: CudaStorage) -> int:
        return self.shape(phase, code).bytes

    def shape(self, phase: Phase, code: CudaStorage) -> AttentionShape:
        """How a task is computed; raises UnsupportedError where its kind cannot read q."""
        task, params = phase.task, self.params(phase.task)
        q, k, v = (operand(task, role).box.size for role in self.roles)
        dtype = code.buffer(operand(task, "q").buffer).dtype
        kind = params.kind or kind_of(dtype)
        if dtype != KINDS[kind]:
            raise UnsupportedError(f"phase {phase.id!r}: attention in {kind} cannot read {dtype} operands")
        return AttentionShape.of(q[-2], k[-2], params.keys, q[-1], v[-1], code.warps, itemsize(dtype))

    def write_cuda(self, phase: Phase, printer: CudaPrinter, code: CudaStorage) -> None:
        task, shape = phase.task, self.shape(phase, code)
        axes = task.results[0].axes[-2:]
        scope = inner_axes(printer, axes, (shape.rows, shape.width))
        width = store_width(task.results, axes[1], shape.width, scope)
        loads = self._write_score(task, shape, printer, code)
        write_lanes(code.out, task.results, width, scope)
        q, k, v = (operand(task, role) for role in self.roles)
        aligned = min(16, *(code.row_alignment(o, printer) for o in (q, k, v)))
        guard, whole = ("true" if yes else "false" for yes in (self.params(task).guard, shape.whole))
        kind = CUDA_TYPES[code.buffer(q.buffer).dtype]
        code.out.line(
            f"using Attention = mn::Attention<{kind}, {shape.depth}, {shape.width}, {shape.strips}, "
            f"{shape.step}, {whole}, {loads}, {width}, {guard}, {aligned}>;"
        )
        code.out.line(f"static_assert(Attention::BYTES <= {shape.bytes});")
        parts = [f"{code.corner(printer, o)}, {row_stride(printer.pointers[o.role].buffer)}" for o in (q, k, v)]
        sizes = f"{code.extent(q, len(q.box.size) - 2, printer)}, {code.extent(k, len(k.box.size) - 2, printer)}"
        code.out.line(
            f"Attention::run({code.template_place(phase)}, {', '.join(parts)}, {sizes}, ahead_, score_, element_);"
        )

    def _write_score(self, task: Task, shape: AttentionShape, printer: CudaPrinter, code: CudaStorage) -> int:
        """Print ``ahead_``, which loads what the scores of a key need before the key is there, and ``score_``. Returns
        how many values that is, 0 where they are too many to wait in registers."""
        scope = inner_axes(replace(printer, acc="s_"), self.prologues["score"], (shape.rows, shape.keys))
        score = task.prologue.get("score", Acc())
        loads = [e for e in unguarded_loads(score) if computed(e.dtype) == COMPUTE]
        if len(loads) * shape.fragments * 4 > AHEAD:
            loads = []
        values: list[Expr] = [e if e.dtype == COMPUTE else Cast(e, COMPUTE) for e in loads]
        with code.out.block(f"auto ahead_ = [&](int i, int j, float (&x_)[{max(1, len(loads))}]) {{", "};"):
            code.out.line("(void)i, (void)j, (void)x_;")
            for number, value in enumerate(values):
                code.out.line(f"x_[{number}] = {scope.scalar(value)};")
        ready = replace(scope, loaded={value: f"x_[{number}]" for number, value in enumerate(values)})
        with code.out.block(
            f"auto score_ = [&](int i, int j, float s_, const float (&x_)[{max(1, len(loads))}]) {{", "};"
        ):
            code.out.line("(void)i, (void)j, (void)x_;")
            code.out.line(f"return {ready.scalar(score)};")
        return len(loads)


def block_tiles(builder: CudaBuilder, stage: FusionGroup) -> list[tuple[int, int]]:
    """(rows, keys in one step) of tasks that fit a GPU's block, the preferred first: rows for the shortest sum of all
    waves, then the most keys. Where rows past the end of a head would be another head's, tasks divide its rows, or take
    them all.

    Raises:
        UnsupportedError: nothing fits.
    """
    node, target = stage.root, builder.target
    assert node is not None
    (batch, heads, total, _), (_, _, keys, depth), (_, _, _, width) = (builder.types[n].shape for n in node.inputs[:3])
    alone = rows_stand_alone(node, builder.views)
    fits = [r for r in BLOCK_ROWS if alone or total % r == 0 or total <= r] or [total]

    def waves(r: int) -> int:
        return ceil(batch * heads * ceil(total / r) / target.blocks) * (min(r, total) + STARTING_ROWS)

    warps, size = target.threads // WARP, target.itemsize
    found = [
        (min(rows, total), step)
        for rows in sorted(fits, key=lambda r: (waves(r), r))
        for step in BLOCK_KEYS
        for shape in (AttentionShape.of(min(rows, total), keys, step, depth, width, warps, size),)
        if shape.bytes <= target.shared_bytes and (shape.fragments <= MOST_FRAGMENTS or step == BLOCK_KEYS[-1])
    ]
    if not found:
        raise UnsupportedError(
            f"{node.origin}: no tile of an attention of {total} rows and {keys} keys of {depth} fits a block of "
            f"{target.gpu.name}; compile with target cpu"
        )
    return list(dict.fromkeys(found))


def guarded(node: Node) -> bool:
    """Whether rows without a key give 0."""
    return bool(node.attrs.get("guard", False))


def rows_stand_alone(attention: Node, views: Views) -> bool:
    """Whether the rows of an attention's q end where its matrix does, so that a ragged last tile cannot run into
    another head's rows."""
    axes = attention_axes(attention, 0, views.graph.types)
    found = unit_stride(views.element(attention.inputs[0], axes.index), axes) if axes else None
    return found is not None and isinstance(found[1], Const)


def build_task(
    builder: TaskBuilder,
    stage: FusionGroup,
    rows: int,
    extents: Mapping[str, int],
    at: tuple[Expr, Expr],
    params: Mapping[str, Any],
) -> tuple[Task, int]:
    """(the task of ``rows`` rows of q at ``at`` (head of all, row), operations of the whole product)."""
    node, types = stage.root, builder.types
    assert node is not None
    batch, heads, total_rows, depth = types[node.inputs[0]].shape
    keys, width = types[node.inputs[1]].shape[2], types[node.inputs[2]].shape[3]
    binder = builder.binder(extents)
    bh, i0 = (binder.fix(e, unit_axes(extents)) for e in at)
    where = {"batch": bh // heads if batch > 1 else Const(0), "head": bh % heads if batch > 1 else bh}
    where = {v: simplify(e, binder.outer) for v, e in where.items()}
    sizes = {"q": (rows, depth), "k": (keys, depth), "v": (keys, width)}
    for position, role in enumerate("qkv"):
        tensor, row, column = builder.view(node.inputs[position], attention_axes(node, position, types), where)
        shape = matrix_shape(types[tensor].shape)
        start = simplify(row + i0 if role == "q" else row, binder.outer)
        end = bound(row, shape[0], total_rows if role == "q" else keys)
        binder.add(role, tensor, Box((start, column), sizes[role], (end, shape[1])))
    inner = {"i": (0, rows - 1), "j": (0, keys - 1), "d": (0, width - 1)}
    i = binder.position("row", i0 + axis("i", rows), total_rows)
    score = _score(builder, node.inputs[3] if len(node.inputs) > 3 else "", node.attrs, where, i, axis("j", keys))
    score = binder.bind(score, inner)
    index = (where["batch"], where["head"], i, axis("d", width))
    result = builder.epilogue(stage, binder, index, inner, ("i", "d"))
    task = Task("attention", tuple(binder.operands), params, (result,), prologue={"score": score})
    return task, 2 * batch * heads * total_rows * keys * (depth + width)


def _score(
    builder: TaskBuilder, bias: str, attrs: Mapping[str, registry.Attr], where: Mapping[str, Expr], i: Expr, j: Expr
) -> Expr:
    value: Expr = Acc()
    for step in score_steps(attrs, bool(bias)):
        if isinstance(step, Rounding):
            value = step.point(value)
        elif step is not None:
            value = op("mul", value, Const(step, COMPUTE))
        else:
            shape = builder.types[bias].shape
            full = (where["batch"], where["head"], i, j)[4 - len(shape) :]
            index = tuple(Const(0) if extent == 1 else e for e, extent in zip(full, shape, strict=True))
            value = op("add", value, builder.views.read(bias, index))
    return value


TEMPLATE = Attention()
