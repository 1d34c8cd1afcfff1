"""How a group's task becomes a phase of a GPU's Program: a domain, whose tasks any block may take."""

from __future__ import annotations

from collections.abc import Mapping
from copy import copy
from math import ceil

from mononn_core.element import itemsize
from mononn_core.graph.graph import Node
from mononn_core.program.ir import Assign, Axis, Buffer, Layout, Phase, Task
from mononn_core.schedule.binder import Matrix, TaskBuilder, fragment_buffer
from mononn_core.schedule.cuda.parts import PartsViews
from mononn_core.schedule.cuda.tiles import Target
from mononn_core.schedule.schedule import Partition
from mononn_core.schedule.stages import FusionGroup


class CudaBuilder(TaskBuilder):
    """Builds phases for one launch. ``locals`` collects the worker-local buffers they use."""

    views: PartsViews

    def __init__(self, views: PartsViews, storage: Mapping[str, str], target: Target) -> None:
        super().__init__(views, storage, target.storage)
        self.target = target
        self.locals: dict[str, Buffer] = {}

    def seeing(self, views: PartsViews) -> CudaBuilder:
        """The same builder, with the same weights and locals, over other views."""
        other = copy(self)
        other.views = views
        return other

    def local(self, shape: tuple[int, int], dtype: str, use: str) -> Buffer:
        """A worker-local matrix; tasks of one use and shape share it."""
        multiple = 16 // itemsize(dtype)
        stride = ceil(shape[1] / multiple) * multiple + multiple
        layout = Layout((((shape[0], stride),), ((shape[1], 1),)), shape[0] * stride)
        name = f"{use}[{shape[0]}x{shape[1]}]"
        return self.locals.setdefault(name, Buffer(name, dtype, shape, layout, "local", align=128))

    def pack_product(self, node: Node, name: str, panel: int, shape: tuple[int, int], matrix: Matrix) -> Buffer:
        """:meth:`pack`, in fragments (see ``fragment_buffer``) where stages bring them."""
        if not self.target.staged:
            return super().pack_product(node, name, panel, shape, matrix)
        known = f"{name}@{panel}f"
        if known not in self.packed:
            self.packed[known] = (fragment_buffer(known, shape, panel, self.weight_type), matrix)
        return self.packed[known][0]

    def phase(
        self, name: str, stage: FusionGroup, partition: Partition, extents: Mapping[str, int], task: Task, flops: int
    ) -> Phase:
        return self.task_phase(name, stage, extents, task, flops)

    def task_phase(self, name: str, stage: FusionGroup, extents: Mapping[str, int], task: Task, flops: int) -> Phase:
        """The phase that does ``task`` for every point of ``extents``."""
        domain = tuple(Axis(v, e) for v, e in extents.items() if e > 1)
        assign = Assign("strided", order=tuple(a.var for a in domain))
        return Phase(name, domain, assign, task, origin=stage.origin, flops=flops)
