"""Which maps and convolutions may meet in an image that is stored in bands (:mod:`mononn_core.schedule.bands`)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from mononn_core.ops import registry
from mononn_core.program.ir import Phase
from mononn_core.schedule.bands import bands_of
from mononn_core.schedule.groups import CpuGroups
from mononn_core.schedule.schedule import GroupSchedule
from mononn_core.schedule.stages import FusionGroup
from mononn_core.schedule.views import Views


def with_bands(groups: CpuGroups, chosen: Mapping[str, Sequence[GroupSchedule]]) -> dict[str, list[GroupSchedule]]:
    """For every map that one convolution reads, a decision more for both of them, that meet in bands: a stage's own
    tensor to these. ``chosen``: a stage's own tensor to what may be decided for it without bands."""
    by_root = {stage.root.output: stage for stage in groups.stages if stage.root is not None}
    found: dict[str, list[GroupSchedule]] = {}
    for image in groups.stages:
        one = image.root is None and groups.graph.types[image.stored].shape[:1] == (1,)
        reader = reader_of(image, groups.views) if one else None
        reading = by_root.get(reader) if reader else None
        if reading is None:
            continue
        for plain in chosen[reading.own]:
            by_rows = plain.partition.kind == "rows"
            bands = bands_of(_phase(groups, plain), image.stored, groups.builder) if by_rows else None
            if bands is not None:
                partition = replace(plain.partition, bands=bands)
                for own, group in ((image.own, chosen[image.own][0]), (reading.own, plain)):
                    found.setdefault(own, []).append(replace(group, partition=partition))
    return found


def _phase(groups: CpuGroups, group: GroupSchedule) -> Phase:
    first = groups.items(group)[0]
    assert isinstance(first, Phase)
    return first


def reader_of(image: FusionGroup, views: Views) -> str | None:
    """The convolution (its output) that alone reads the images that a stage stores."""
    name, consumers = image.stored, views.graph.consumers()
    if len(views.type(name).shape) != 4:
        return None
    while name not in views.graph.outputs and len(consumers[name]) == 1:
        (node,) = consumers[name]
        if node.op == "conv":
            return node.output if node.inputs[0] == name else None
        if views.is_stored(node.output) or registry.get(node.op).kind != "movement":
            return None
        name = node.output
    return None
