"""The Schedule of a GPU: what is decided between a Graph and the Program of one cooperative kernel, as a value.

    network encoder, fp16, blocks of 256 threads, 1 a multiprocessor
    group t12: matmul, tile 64 x 48, warps 2 x 4, 3 stages, filled by t9
    group t20: attention, 16 rows, 64 keys
    group t22: depthwise, 2 image rows, panels of 64
    barrier
    group t31: matmul, tile 64 x 48, warps 2 x 4, 4 stages, 2 parts
    barrier
    group t33: nest, 128 tasks by rows, adds the parts of t31

As :mod:`mononn_core.schedule.schedule` for a CPU; a group that fills another's left side has no line of its own. "sum"
is the group of a product in parts again: a phase that adds them, where nothing that reads the product does.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from mononn_core.errors import OptionError
from mononn_core.schedule.cuda.tiles import BlockTile
from mononn_core.schedule.schedule import FORMAT, Schedule, number_of, parse_json, parse_schedule, print_schedule


@dataclass(frozen=True)
class CudaGroup:
    """How one group is computed.

    Attributes:
        template: "matmul", "attention", "nest", "sum" or a convolution's.
        tile: of a product.
        rows, keys: of an attention's task, and keys it takes in one step.
        rows, panel: image rows and channels of a convolution's task.
        tasks, by: of a nest or sum: how many, dealt by "rows", "columns", or "single".
        fill: the group that a product's tasks compute their left side with, or "".
        adds: the product whose parts a norm adds, or "".
    """

    group: str
    template: str
    tile: BlockTile | None = None
    rows: int = 0
    keys: int = 0
    panel: int = 0
    tasks: int = 0
    by: str = ""
    fill: str = ""
    adds: str = ""

    def to_text(self) -> str:
        """Its line of the Schedule's text."""
        words = [f"group {self.group}: {self.template}"]
        if self.tile is not None:
            t = self.tile
            words.append(f"tile {t.rows} x {t.columns}, warps {t.warps[0]} x {t.warps[1]}, {t.stages} stages")
            words += [f"{t.parts} parts"] if t.parts > 1 else []
        if self.keys:
            words.append(f"{self.rows} rows, {self.keys} keys")
        if self.panel:
            words.append(f"{self.rows} image rows, panels of {self.panel}")
        if self.tasks:
            words.append(f"{self.tasks} tasks by {self.by}")
        words += [f"filled by {self.fill}"] if self.fill else []
        words += [f"adds the parts of {self.adds}"] if self.adds else []
        return ", ".join(words)


@dataclass(frozen=True)
class CudaSchedule:
    """``intervals``: groups between two barriers of the grid each; the launch is ``blocks_per_sm`` blocks of
    ``threads`` on every multiprocessor. ``precision``: in which activations and weights are stored and multiplied."""

    network: str
    threads: int
    blocks_per_sm: int
    intervals: tuple[tuple[CudaGroup, ...], ...]
    precision: str = "fp32"

    @property
    def groups(self) -> tuple[CudaGroup, ...]:
        """All groups in order."""
        return tuple(group for interval in self.intervals for group in interval)

    def with_group(self, group: CudaGroup, changed: CudaGroup) -> CudaSchedule:
        """This Schedule with another decision in the place of ``group``."""
        intervals = tuple(tuple(changed if g == group else g for g in i) for i in self.intervals)
        return replace(self, intervals=intervals)

    def to_text(self) -> str:
        """The Schedule in the grammar of this module's docstring."""
        launch = f"blocks of {self.threads} threads, {self.blocks_per_sm} a multiprocessor"
        return print_schedule(f"network {self.network}, {self.precision}, {launch}", self.intervals)

    @staticmethod
    def from_text(text: str) -> CudaSchedule:
        """What :meth:`to_text` printed; raises OptionError with the line that is not of the grammar."""
        head, intervals = parse_schedule(
            text, _HEAD, _GROUP, "network NAME, fp16, blocks of 256 threads, 1 a multiprocessor"
        )
        made = tuple(tuple(map(_group, interval)) for interval in intervals)
        return CudaSchedule(head["network"], int(head["threads"]), int(head["blocks"]), made, head["precision"])

    def to_json(self) -> str:
        """The same as JSON, for scripts."""
        about = {
            "format": FORMAT,
            "network": self.network,
            "precision": self.precision,
            "threads": self.threads,
            "blocks_per_sm": self.blocks_per_sm,
            "intervals": [[_plain(group) for group in interval] for interval in self.intervals],
        }
        return json.dumps(about, indent=1) + "\n"

    @staticmethod
    def from_json(text: str) -> CudaSchedule:
        """What :meth:`to_json` printed; raises OptionError for anything else."""

        def make(about: Mapping[str, Any]) -> CudaSchedule:
            intervals = tuple(tuple(map(_from_plain, interval)) for interval in about["intervals"])
            launch = number_of(about["threads"]), number_of(about["blocks_per_sm"])
            return CudaSchedule(str(about["network"]), *launch, intervals, str(about["precision"]))

        return parse_json(text, make)


def read_schedule(text: str) -> Schedule | CudaSchedule:
    """A Schedule as text or JSON, of a CPU or of a GPU; raises OptionError for anything else."""
    if text.lstrip().startswith("{"):
        return CudaSchedule.from_json(text) if '"threads"' in text else Schedule.from_json(text)
    return CudaSchedule.from_text(text) if ", blocks of " in text else Schedule.from_text(text)


_HEAD = re.compile(
    r"network (?P<network>.*), (?P<precision>\w+), blocks of (?P<threads>\d+) threads, (?P<blocks>\d+) a multiprocessor"
)
_GROUP = re.compile(
    r"group (?P<group>.+?): (?P<template>\w+)"
    r"(?:, tile (?P<m>\d+) x (?P<n>\d+), warps (?P<wm>\d+) x (?P<wn>\d+), (?P<stages>\d+) stages"
    r"(?:, (?P<parts>\d+) parts)?)?"
    r"(?:, (?P<rows>\d+) rows, (?P<keys>\d+) keys)?"
    r"(?:, (?P<lines>\d+) image rows, panels of (?P<panel>\d+))?"
    r"(?:, (?P<tasks>\d+) tasks by (?P<by>\w+))?"
    r"(?:, filled by (?P<fill>.+))?"
    r"(?:, adds the parts of (?P<adds>.+))?"
)


def _group(found: re.Match[str]) -> CudaGroup:
    tile = None
    if found["m"]:
        warps = int(found["wm"]), int(found["wn"])
        tile = BlockTile(int(found["m"]), int(found["n"]), warps, int(found["stages"]), int(found["parts"] or 1))
    rows, lines, keys, panel, tasks = (int(found[name] or 0) for name in ("rows", "lines", "keys", "panel", "tasks"))
    by, fill, adds = (found[name] or "" for name in ("by", "fill", "adds"))
    return CudaGroup(found["group"], found["template"], tile, rows or lines, keys, panel, tasks, by, fill, adds)


def _plain(group: CudaGroup) -> dict[str, Any]:
    plain = {name: value for name, value in vars(group).items() if value and name != "tile"}
    return plain | ({"tile": vars(group.tile)} if group.tile is not None else {})


def _from_plain(plain: Mapping[str, Any]) -> CudaGroup:
    unknown = set(plain) - set(CudaGroup.__dataclass_fields__)
    if unknown:
        raise OptionError(f"a group of the schedule has {sorted(unknown)[0]!r}, which means nothing")
    tile = None
    if "tile" in plain:
        given = dict(plain["tile"])
        first, second = (number_of(n) for n in given.pop("warps"))
        tile = BlockTile(**{name: number_of(n) for name, n in given.items()}, warps=(first, second))
    rows, keys, panel, tasks = (number_of(plain.get(name, 0)) for name in ("rows", "keys", "panel", "tasks"))
    by, fill, adds = (str(plain.get(name, "")) for name in ("by", "fill", "adds"))
    return CudaGroup(str(plain["group"]), str(plain["template"]), tile, rows, keys, panel, tasks, by, fill, adds)
