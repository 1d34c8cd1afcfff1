"""Functions of printed CUDA code: those whose texts differ only in where buffers lie become one.

A phase outside a loop is often one of the loop's phases once more: a network's last layer, whose successor is another.
Code that a multiprocessor meets for the first time comes from far away, so it is shared: the places that differ become
arguments.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from mononn_core.codegen.writer import Writer

_MARK = re.compile("\0([0-9]+)\0")


@dataclass(frozen=True)
class Place:
    """Where a buffer starts, in bytes from its space's start: ``first`` + ``step`` times the iteration ``row`` (C
    text), or what only the C ``text`` says."""

    first: int = 0
    step: int = 0
    row: str = ""
    text: str = ""

    def __str__(self) -> str:
        return self.text or (f"({self.first}ll + {self.step}ll * ({self.row}))" if self.step else str(self.first))

    @property
    def constant(self) -> bool:
        return not self.text and not self.step

    def ahead_of(self, other: Place) -> int | None:
        """Bytes from ``other`` to here where they are always as many; else None."""
        known = (self.step, self.row, self.text) == (other.step, other.row, other.text)
        return self.first - other.first if known else None


def mark(place: int) -> str:
    """What stands in a function's text for its place of that number."""
    return f"\0{place}\0"


@dataclass(frozen=True)
class Function:
    """A printed function: its ``name``, the comment above it, its body with marks for its ``places``, and the loop's
    variable, if it stands in one."""

    name: str
    comment: str
    lines: tuple[str, ...]
    places: tuple[Place, ...]
    loop: str = ""

    @property
    def iterates(self) -> bool:
        """Whether the body itself uses the loop's variable."""
        return bool(self.loop) and any(re.search(rf"\b{self.loop}\b", line) for line in self.lines)

    @property
    def key(self) -> object:
        """Equal for functions that may be one. Where the body asks whether the iteration comes, a place must not be
        looked up before."""
        alone = self.iterates and any(place.text for place in self.places)
        return (self.name if alone else "", self.lines)


class Functions:
    """The functions of one source: how to define and how to call them."""

    def __init__(self, functions: Sequence[Function]) -> None:
        groups: dict[object, list[Function]] = {}
        for function in functions:
            groups.setdefault(function.key, []).append(function)
        self._groups = list(groups.values())
        self._calls: dict[str, tuple[str, str]] = {}
        for group in self._groups:
            moving, _ = _arguments(group)
            for function in group:
                more = [str(function.places[i]) for i in moving] if len(group) > 1 else []
                looped = [function.loop] if function.loop and (len(group) == 1 or function.iterates) else []
                self._calls[function.name] = (group[0].name, "".join(f", {text}" for text in looped + more))

    def call(self, name: str) -> tuple[str, str]:
        """The name of the function that is printed for that of ``name``, and what it is given in the end."""
        return self._calls[name]

    def write(self, out: Writer, opening: str, parameters: str) -> None:
        """Print all; ``opening`` stands before and ``parameters`` open the parameters of each."""
        for group in self._groups:
            first = group[0]
            looped = first.loop if len(group) == 1 or first.iterates else ""
            moving, texts = _arguments(group) if len(group) > 1 else ([], dict(enumerate(map(str, first.places))))
            more = [f"int {looped}"] if looped else []
            more += [f"int64_t at{number}_" for number in range(len(moving))]
            out.line()
            for function in group:
                out.line(f"// {function.comment}")
            with out.block(f"{opening} {first.name}({', '.join([parameters, *more])}) {{"):
                if looped:
                    out.line(f"(void){looped};")
                for line in first.lines:
                    parts = _MARK.split(line)
                    out.line("".join(texts[int(part)] if i % 2 else part for i, part in enumerate(parts)))


def _arguments(group: Sequence[Function]) -> tuple[list[int], Mapping[int, str]]:
    """The places that callers give, and the C text of every place of a function that stands for all of ``group``."""
    moving: list[int] = []
    texts: dict[int, str] = {}
    for i, place in enumerate(group[0].places):
        if place.constant and all(f.places[i] == place for f in group):
            texts[i] = str(place)
            continue
        number, step = next(_followed(group, moving, i), (len(moving), 0))
        if number == len(moving):
            moving.append(i)
        texts[i] = f"(at{number}_ + {step}ll)" if step else f"at{number}_"
    return moving, texts


def _followed(group: Sequence[Function], moving: Sequence[int], i: int) -> Iterator[tuple[int, int]]:
    """Arguments that place ``i`` lies behind by as many bytes in every function of the group: (number, bytes)."""
    for number, other in enumerate(moving):
        steps = {f.places[i].ahead_of(f.places[other]) for f in group}
        if len(steps) == 1 and (step := steps.pop()) is not None:
            yield number, step
