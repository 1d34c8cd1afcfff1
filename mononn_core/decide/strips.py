"""Which convolutions run in strips of an image's rows: where the image between two of them is larger than a near
cache, and fetching it from further away takes longer than computing again the rows that neighbouring strips share.

A block of a MobileNet (an expansion, the depthwise convolution that reads it, the projection behind) then never stores
its widest image: a strip of it lies in the second-level cache. (Several layers for each tile of an image: Alwani et
al., Fused-layer CNN accelerators, MICRO 2016.)
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from math import ceil, prod

from mononn_core.decide.bands import reader_of
from mononn_core.element import itemsize
from mononn_core.ops.common import integers
from mononn_core.schedule.decisions import L2_SHARE, padded_stride
from mononn_core.schedule.groups import CpuGroups
from mononn_core.schedule.images import Together, rounds_of
from mononn_core.schedule.schedule import Bands, GroupSchedule
from mononn_core.schedule.stages import FusionGroup, border_of
from mononn_core.templates.conv_node import Conv, image_of

Interval = tuple[GroupSchedule, ...]
TEMPLATES = ("conv", "depthwise")
FEWEST_ROWS = 2
"""Of a strip."""
STAYS = 0.5
"""Share of the second-level cache up to which an image and what is computed of it stay there, beside all else that
passes (measured with 2 MiB)."""
RATE = 0.65
"""Share of the peak at which shared rows are computed again, epilogue included: an estimate set by hand."""


@dataclass(frozen=True)
class Pair:
    """A convolution that alone reads, through windows, the image that another one stores; as both are decided."""

    image: GroupSchedule
    reader: GroupSchedule


def pairs(groups: CpuGroups, chosen: Mapping[str, Sequence[GroupSchedule]]) -> Iterator[tuple[Pair, Pair]]:
    """Neighbouring convolutions as they are decided, and the same in strips: all ways that are legal, those of few
    strips first. ``chosen``: a stage's own tensor to what may be decided for it."""
    for image, reading in pairwise(groups.stages):
        if image.own not in chosen or reading.own not in chosen:
            continue
        if reader_of(image, groups.views) != (reading.root.output if reading.root else ""):
            continue
        images = groups.builder.types[image.stored].shape[0]
        first, second = (_dealt_by_images(chosen[stage.own], images) for stage in (image, reading))
        if first is not None and second is not None and image.own == image.stored:
            for pair in _in_strips(groups, image, reading, first, second):
                yield Pair(first, second), pair


def _dealt_by_images(decisions: Sequence[GroupSchedule], images: int) -> GroupSchedule | None:
    """The decision of a convolution by which owners have ``images``, or rows of the only one."""
    kind = "rows" if images == 1 else "batch"
    for g in decisions:
        mine = g.partition.kind == kind or (g.partition.kind == "single" and g.partition.owners == 1)
        if mine and g.template in TEMPLATES and g.partition.bands is None and g.strips == 1 and g.tile is not None:
            return g
    return None


def _parts(groups: CpuGroups, conv: Conv) -> int:
    """Into how many parts the owners cut an image."""
    return groups.owners if conv.out[0] == 1 else 1


def _in_strips(
    groups: CpuGroups, image: FusionGroup, reading: FusionGroup, first: GroupSchedule, second: GroupSchedule
) -> Iterator[Pair]:
    conv, windows, builder = Conv.of(image, groups.builder), Conv.of(reading, groups.builder), groups.builder
    if windows.kernel[0] == 1 or max(*conv.dilations, *windows.dilations) > 1:
        return
    view, parts, height = image_of(builder, reading), _parts(groups, windows), windows.out[1]
    pitch, border = view.pitch, border_of(image)
    above, below = (integers(border.attrs, k)[1] if border is not None else 0 for k in ("before", "after"))
    images, stored, width, _ = builder.types[image.stored].shape
    if view.tensor != image.stored or pitch != width or view.first % pitch or height % parts:
        return
    if (conv.out[0], windows.out[0], above + conv.out[1] + below) != (images, images, stored):
        return  # what is stored are other images than the convolution's own
    assert first.tile is not None and second.tile is not None
    for strips in range(2, height // parts // FEWEST_ROWS + 1):
        rows, rest = divmod(height // parts, strips)
        span = (rows - 1) * windows.strides[0] + windows.kernel[0]
        step = rows * windows.strides[0]
        # only the first strip reads the border above, and only the last the one below
        last = view.first // pitch + (parts * strips - 1) * step
        if rest or step < above or last - step + span > above + conv.out[1] or span > conv.out[1]:
            continue
        # the first strip computes as many rows as the others behind the border above, the last before the one below
        bands = Bands(f"{image.own}@bands", view.first, step * pitch, (span + max(above, below)) * pitch)
        yield Pair(
            replace(
                first,
                partition=replace(first.partition, bands=bands),
                tile=replace(first.tile, rows=span, blocks=1),
                strips=strips,
            ),
            replace(
                second,
                partition=replace(second.partition, bands=bands),
                tile=replace(second.tile, rows=rows, blocks=1),
                strips=strips,
            ),
        )


def following(groups: CpuGroups, group: GroupSchedule, before: Sequence[GroupSchedule]) -> GroupSchedule | None:
    """``group``, a convolution that stands behind those that run in strips, in as many strips; None where it reads
    other rows than these have just stored."""
    strips, tile = before[-1].strips, group.tile
    if strips == 1 or group.template not in TEMPLATES:
        return None
    conv = Conv.of(groups.stage(group), groups.builder)
    rows, rest = divmod(conv.out[1], _parts(groups, conv) * strips)
    if rest or max(conv.dilations) > 1 or _dealt_by_images([group], conv.out[0]) is None:
        return None
    assert tile is not None
    found = replace(group, tile=replace(tile, rows=rows, blocks=1), strips=strips)
    rounds = rounds_of(found, groups.items(found))
    assert rounds is not None
    together = Together(rounds)
    return found if all(together.add(g, groups.items(g)) for g in (*before, found)) else None


def plain(groups: CpuGroups, group: GroupSchedule) -> GroupSchedule:
    """The same as one whole, neither in strips nor in bands."""
    whole = replace(group, partition=replace(group.partition, bands=None), strips=1)
    if group.strips == 1 or group.tile is None or group.template not in TEMPLATES:
        return whole
    conv = Conv.of(groups.stage(group), groups.builder)
    rows = ceil(conv.out[1] / _parts(groups, conv))
    return replace(whole, tile=replace(group.tile, rows=rows, blocks=1))


def joined(interval: Interval, groups: CpuGroups, fixed: Collection[str]) -> Interval:
    """The groups of an interval, with those in strips that stand behind others in strips and can be."""
    found: list[GroupSchedule] = []
    for group in interval:
        run = _run(found)
        if group.partition.bands is None and (group.strips > 1 or group.group not in fixed):
            whole = plain(groups, group)
            more = following(groups, whole, run) if run and not _widens(groups, whole) else None
            group = whole if more is None else more
        found.append(group)
    return tuple(found)


def _widens(groups: CpuGroups, group: GroupSchedule) -> bool:
    """Whether a group stores more of each of several images than it reads: that is better passed on image by image."""
    if group.template not in TEMPLATES:
        return False
    conv = Conv.of(groups.stage(group), groups.builder)
    return conv.out[0] > 1 and prod(conv.out[1:]) > prod(conv.x[1:])


def _run(before: Sequence[GroupSchedule]) -> list[GroupSchedule]:
    """The groups in strips that the last of those ``before`` is one of."""
    first = next((i for i in range(len(before) - 1, -1, -1) if before[i].strips == 1 or before[i].stores_bands), 0)
    return [g for g in before[first:] if g.strips > 1]


def problem(interval: Interval, groups: CpuGroups) -> str:
    """Why groups of an interval cannot run in strips as they say; "" where they can."""
    for number, group in enumerate(interval):
        if group.strips == 1:
            continue
        legal = False
        if group.stores_bands:
            both = Pair(*interval[number : number + 2]) if number + 1 < len(interval) else None
            legal = both is not None and any(
                both == pair for _, pair in pairs(groups, {g.group: (plain(groups, g),) for g in interval})
            )
        elif number:
            run = _run(interval[:number])
            more = following(groups, plain(groups, group), run) if run else None
            legal = group.partition.bands == run[-1].partition.bands if run and run[-1].stores_bands else more == group
        if not legal:
            return (
                f"group {group.group!r} cannot run in {group.strips} strips of {group.tile and group.tile.rows} rows: "
                "they are of a convolution, the one that alone reads its image in bands, and of those behind it that "
                "read no other rows than these"
            )
    return ""


def cheapest(
    groups: CpuGroups,
    chosen: Mapping[str, Sequence[GroupSchedule]],
    fixed: Collection[str],
    meet: Callable[[GroupSchedule, GroupSchedule], bool],
) -> dict[str, GroupSchedule]:
    """Of the groups that run in strips, but for those that are ``fixed``, how they do: own tensor to decision.
    ``meet``: whether the owners of a pair read their own bands alone, as far as is known."""
    found: dict[str, tuple[float, Pair]] = {}
    for whole, pair in pairs(groups, chosen):
        if pair.image.group in fixed or pair.reader.group in fixed:
            continue
        gain = _saved(groups, whole, pair)
        if gain > found.get(pair.image.group, (0.0, pair))[0] and meet(pair.image, pair.reader):
            found[pair.image.group] = gain, pair
    decided: dict[str, GroupSchedule] = {}
    for _, pair in found.values():
        if pair.image.group not in decided:
            decided |= {pair.image.group: pair.image, pair.reader.group: pair.reader}
    return decided


def _saved(groups: CpuGroups, whole: Pair, pair: Pair) -> float:
    """Seconds that an owner saves of an image: those in which it would come back from the last-level cache (from the
    second level it comes while it is multiplied). 0 where a strip does not fit the second level, or what the owner has
    of a whole image does."""
    machine, strips = groups.machine, pair.image.strips
    conv = Conv.of(groups.stage(pair.image), groups.builder)
    images, parts = conv.out[0], _parts(groups, conv)
    moved = [_nbytes(groups, g) / (images * parts) for g in (whole.image, whole.reader)]
    assert pair.image.tile is not None
    rows = pair.image.tile.rows
    near = _nbytes(groups, whole.image) / images * rows / conv.out[1] + moved[1] / strips
    passed = reader_of(groups.stage(whole.reader), groups.views) is not None  # on to a convolution that may join them
    if near > L2_SHARE * machine.l2_bytes or sum(moved) <= STAYS * machine.l2_bytes or (images > 1 and not passed):
        return 0.0  # several images that are not passed on are better done image by image
    again = conv.flops / images * (rows * strips / conv.out[1] - 1 / parts)
    slower = 1 / machine.l3_bandwidth
    if images > 1:  # what the near cache holds of an image is read from there without strips
        slower *= 1 - machine.l2_bytes / sum(moved)
    return (moved[0] + 2 * passed * moved[1]) * slower - again / (RATE * machine.peak_flops_per_core)


def _nbytes(groups: CpuGroups, group: GroupSchedule) -> int:
    """Of what a group stores whole."""
    _, dtype, (rows, columns) = groups.stored(group)
    return rows * padded_stride(columns, dtype, groups.machine) * itemsize(dtype)
