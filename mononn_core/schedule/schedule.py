"""Schedule: all that is decided between a Graph and its Program, as a value that can be printed, kept and changed.

    network encoder, fp32, 2 owners
    group t12: matmul by columns in 3 segments, tile 128 rows x 1 blocks x panel 32, 14 at once
    group t20: attention by heads
    barrier
    group t31: nest by rows
    group t32: conv by batch, tile 8 rows x 1 blocks x panel 16, 6 at once, image by image
    group t33: conv by rows, tile 7 rows x 1 blocks x panel 16, 6 at once, in 4 strips

A *group* is a set of operators computed together (:class:`mononn_core.schedule.fuse.FusionGroup`), named by the last
tensor that is its own. Groups run in the order written; a barrier stands where every owner waits for all others. What
is not written here follows from it: two lowerings of one Schedule give the same Program.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Protocol, TypeVar

from mononn_core.errors import OptionError

FORMAT = 3
S = TypeVar("S")


@dataclass(frozen=True)
class Bands:
    """An image stored as one band an owner, under the id ``buffer``: owner o's band holds the pixels from ``first + o *
    step`` on, ``size`` of them or to the image's end. Bands overlap where their owners read the same pixels. In strips,
    it holds those of an image's strip t from ``first + t * step`` on, or the image's last ``size``; of the only image
    owner o has the strips from ``o * strips`` on."""

    buffer: str
    first: int
    step: int
    size: int


@dataclass(frozen=True)
class Partition:
    """kind: "rows", "columns" (of each of ``segments`` equal runs of columns), "heads", "batch", or "single" (owner 0
    does it all). ``bands``: how a group dealt by rows stores its image, or a convolution finds it."""

    kind: str
    owners: int
    segments: int = 1
    bands: Bands | None = None

    @property
    def group(self) -> str:
        return f"owners{self.owners}"


@dataclass(frozen=True)
class Tile:
    """A task's share of a product or convolution: ``rows`` (of an image: image rows) x ``panel`` columns; an owner has
    ``blocks`` blocks of rows. Sums of ``at_once`` rows (of an image: pixels) are in registers together, at most."""

    rows: int
    blocks: int
    panel: int
    at_once: int


@dataclass(frozen=True)
class GroupSchedule:
    """How one group is computed: by which template ("nest": generated loops), dealt to owners how, in which tile.
    ``by_image``: each image of a batch goes through this group and those beside it that say so before the next does.
    ``strips``: in how many parts of its rows each owner's share of an image does so."""

    group: str
    template: str
    partition: Partition
    tile: Tile | None = None
    by_image: bool = False
    strips: int = 1

    @property
    def stores_bands(self) -> bool:
        """Whether it is the one that stores an image in bands, not the one that reads it."""
        return self.partition.bands is not None and self.partition.bands.buffer == f"{self.group}@bands"

    def to_text(self) -> str:
        """Its line of the Schedule's text."""
        partition = self.partition
        words = [f"group {self.group}: {self.template} by {partition.kind}"]
        if partition.segments > 1:
            words.append(f" in {partition.segments} segments")
        if self.tile is not None:
            tile = self.tile
            words.append(f", tile {tile.rows} rows x {tile.blocks} blocks x panel {tile.panel}, {tile.at_once} at once")
        if partition.bands is not None:
            bands = partition.bands
            words.append(f", {bands.size} pixels a band of {bands.buffer} from {bands.first} every {bands.step}")
        words += [", image by image"] if self.by_image else []
        words += [f", in {self.strips} strips"] if self.strips > 1 else []
        return "".join(words)


@dataclass(frozen=True)
class Schedule:
    """``intervals``: groups between two barriers each, for ``owners`` owners. ``prefetch``: workers ask for the first
    weights that they read behind a barrier before they wait there. ``precision``: what is multiplied, where the model
    says float32."""

    network: str
    owners: int
    intervals: tuple[tuple[GroupSchedule, ...], ...]
    prefetch: bool = False
    precision: str = "fp32"

    @property
    def groups(self) -> tuple[GroupSchedule, ...]:
        """All groups in order."""
        return tuple(group for interval in self.intervals for group in interval)

    def with_group(self, changed: GroupSchedule) -> Schedule:
        """This Schedule with another decision for one of its groups."""
        intervals = tuple(tuple(changed if g.group == changed.group else g for g in i) for i in self.intervals)
        return replace(self, intervals=intervals)

    def to_text(self) -> str:
        """The Schedule in the grammar of this module's docstring."""
        early = ", weights asked for early" if self.prefetch else ""
        head = f"network {self.network}, {self.precision}, {self.owners} owners{early}"
        return print_schedule(head, self.intervals)

    @staticmethod
    def from_text(text: str) -> Schedule:
        """What :meth:`to_text` printed; raises OptionError with the line that is not of the grammar."""
        head, intervals = parse_schedule(text, _HEAD, _GROUP, "network NAME, fp32, 2 owners")
        owners = int(head["owners"])
        made = tuple(tuple(_group(g, owners) for g in i) for i in intervals)
        return Schedule(head["network"], owners, made, bool(head["early"]), head["precision"])

    def to_json(self) -> str:
        """The same as JSON, for scripts."""
        intervals = [[_plain(group) for group in interval] for interval in self.intervals]
        head = {"format": FORMAT, "network": self.network, "precision": self.precision, "owners": self.owners}
        about = {**head, "prefetch": self.prefetch, "intervals": intervals}
        return json.dumps(about, indent=1) + "\n"

    @staticmethod
    def from_json(text: str) -> Schedule:
        """What :meth:`to_json` printed; raises OptionError for anything else."""

        def make(about: Mapping[str, Any]) -> Schedule:
            owners = number_of(about["owners"])
            intervals = tuple(tuple(_from_plain(g, owners) for g in interval) for interval in about["intervals"])
            network, precision = str(about["network"]), str(about["precision"])
            return Schedule(network, owners, intervals, bool(about["prefetch"]), precision)

        return parse_json(text, make)

    @staticmethod
    def read(text: str) -> Schedule:
        """Either form."""
        return Schedule.from_json(text) if text.lstrip().startswith("{") else Schedule.from_text(text)


_HEAD = re.compile(
    r"network (?P<network>.*), (?P<precision>\w+), (?P<owners>\d+) owners(?P<early>, weights asked for early)?"
)
_GROUP = re.compile(
    r"group (?P<group>.+?): (?P<template>\w+) by (?P<kind>\w+)(?: in (?P<segments>\d+) segments)?"
    r"(?:, tile (?P<rows>\d+) rows x (?P<blocks>\d+) blocks x panel (?P<panel>\d+), (?P<at_once>\d+) at once)?"
    r"(?:, (?P<size>\d+) pixels a band of (?P<buffer>.+) from (?P<first>-?\d+) every (?P<step>\d+))?"
    r"(?P<by_image>, image by image)?(?:, in (?P<strips>\d+) strips)?"
)


class Printed(Protocol):
    """A group that has a line of a Schedule's text."""

    def to_text(self) -> str: ...


def print_schedule(head: str, intervals: Iterable[Iterable[Printed]]) -> str:
    """The text of a Schedule of any target: a first line, then groups with a barrier between two intervals."""
    lines = [head]
    for number, interval in enumerate(intervals):
        lines += ["barrier"] if number else []
        lines += [group.to_text() for group in interval]
    return "\n".join(lines) + "\n"


def parse_schedule(
    text: str, head: re.Pattern[str], group: re.Pattern[str], example: str
) -> tuple[re.Match[str], list[list[re.Match[str]]]]:
    """What :func:`print_schedule` made: the first line and the groups of each interval, as matched. Empty lines,
    and what follows #, are for people.

    Raises:
        OptionError: the first line is not as ``example``, or a line is no group; the message holds it.
    """
    stripped = ((number, line.split(" # ")[0].strip()) for number, line in enumerate(text.splitlines(), 1))
    lines = [(number, line) for number, line in stripped if line and not line.startswith("#")]
    first = head.fullmatch(lines[0][1]) if lines else None
    if first is None:
        raise OptionError(f"a schedule begins with a line like {example!r}; see mononn inspect --schedule")
    intervals: list[list[re.Match[str]]] = [[]]
    for number, line in lines[1:]:
        found = group.fullmatch(line)
        if line == "barrier":
            intervals.append([])
        elif found is not None:
            intervals[-1].append(found)
        else:
            raise OptionError(
                f"line {number} of the schedule is not understood: {line!r}; see mononn inspect --schedule"
            )
    return first, intervals


def parse_json(text: str, make: Callable[[Mapping[str, Any]], S]) -> S:
    """What ``make`` makes of a Schedule's JSON; raises OptionError where that is none, or of another format."""
    try:
        about = json.loads(text)
        if about.get("format") != FORMAT:
            raise OptionError(f"the schedule has format {about.get('format')}; this version reads format {FORMAT}")
        return make(about)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise OptionError(
            f"this is no schedule in JSON ({type(error).__name__}: {error}); see mononn inspect --schedule --json"
        ) from error


def _group(found: re.Match[str], owners: int) -> GroupSchedule:
    bands = (
        Bands(found["buffer"], int(found["first"]), int(found["step"]), int(found["size"])) if found["buffer"] else None
    )
    names = ("rows", "blocks", "panel", "at_once")
    tile = Tile(*(int(found[name]) for name in names)) if found["rows"] else None
    partition = Partition(found["kind"], owners, int(found["segments"] or 1), bands)
    return GroupSchedule(
        found["group"], found["template"], partition, tile, bool(found["by_image"]), int(found["strips"] or 1)
    )


def _plain(group: GroupSchedule) -> dict[str, Any]:
    partition, tile = group.partition, group.tile
    plain: dict[str, Any] = {"group": group.group, "template": group.template, "partition": partition.kind}
    if partition.segments > 1:
        plain["segments"] = partition.segments
    if tile is not None:
        plain["tile"] = vars(tile)
    if partition.bands is not None:
        plain["bands"] = vars(partition.bands)
    if group.by_image:
        plain["by_image"] = True
    if group.strips > 1:
        plain["strips"] = group.strips
    return plain


def _from_plain(plain: Mapping[str, Any], owners: int) -> GroupSchedule:
    unknown = set(plain) - {"group", "template", "partition", "segments", "tile", "bands", "by_image", "strips"}
    if unknown:
        raise OptionError(f"a group of the schedule has {sorted(unknown)[0]!r}, which means nothing")
    tile = Tile(**{name: number_of(n) for name, n in plain["tile"].items()}) if "tile" in plain else None
    bands = None
    if "bands" in plain:
        given = dict(plain["bands"])
        bands = Bands(str(given.pop("buffer")), **{name: number_of(n) for name, n in given.items()})
    partition = Partition(str(plain["partition"]), owners, number_of(plain.get("segments", 1)), bands)
    by_image = bool(plain.get("by_image", False))
    strips = number_of(plain.get("strips", 1))
    return GroupSchedule(str(plain["group"]), str(plain["template"]), partition, tile, by_image, strips)


def number_of(value: object) -> int:
    if type(value) is not int:
        raise ValueError(f"{value!r} is no whole number")
    return value
