"""Races, stale reads and broken waits: the happens-before relation, exact to the element.

Phase executions are visited in trace order, which the relation follows. Tasks of one phase that have the same owner,
waits and signals are one *class*: they precede and follow the same tasks. Between two barriers each class carries a
bit set of the classes that happen before it; whatever stands before the last barrier happens before everything. Shared
memory is cut wherever anything that a phase reads or writes begins or ends. Every piece remembers the class that wrote
it last, the buffer it was written as, and which classes have read it since; each read and write is checked against
these three.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace

import numpy as np

from mononn_core.program.footprint import Footprint, Reads, Runs, Site, joined, runs_of, union
from mononn_core.program.ir import Barrier, Buffer, Phase, Program
from mononn_core.program.memory import CONSTANT, dim_tables, shadow_unit
from mononn_core.program.rounds import Rounds
from mononn_core.program.rules import depends, phases_with_loops, refuse
from mononn_core.program.scalar import Array

NOTHING = -1


def bits(ids: Array, base: int) -> int:
    """Bit set of the class numbers in ``ids`` that are not below ``base``."""
    recent = ids[ids >= base] - base
    return sum(1 << i for i in np.flatnonzero(np.bincount(recent)).tolist())


class Shadow:
    """All shared memory, the arena and behind it each output, in pieces.

    Attributes:
        cuts: the units at which a piece begins, in order; the last ends at the last of them.
        writer, holder, readers: of every piece the last writer's class, the number of the buffer that it wrote as, and
            the set of readers since.
    """

    def __init__(self, program: Program, cuts: Iterable[tuple[str, Runs]]) -> None:
        """``cuts``: buffers, with runs of their elements that pieces shall end with."""
        shared = tuple(b for b in program.buffers if b.space not in CONSTANT)
        unit, end = shadow_unit(shared), program.arena_bytes
        self._placed = dict[str, tuple[int, int]]()
        for b in shared:
            offset = b.offset
            if b.space == "output":
                offset, end = end, end + b.nbytes
            self._placed[b.id] = (offset // unit, b.itemsize // unit)
        cut = np.zeros(end // unit + 1, bool)
        for name, runs in cuts:
            first, width = self._placed[name]
            cut[runs.starts * width + first] = True
            cut[runs.ends * width + first] = True
        self.cuts = np.flatnonzero(cut)
        pieces = len(self.cuts)
        self.writer, self.holder, self.readers = (np.full(pieces, NOTHING, np.int32) for _ in range(3))

    def pieces(self, name: str, runs: Runs) -> tuple[Array, Array]:
        """Of ``runs`` of a buffer that pieces were cut for: the numbers of their pieces, and how many each has."""
        first, width = self._placed[name]
        start = np.searchsorted(self.cuts, runs.starts * width + first)
        counts = np.searchsorted(self.cuts, runs.ends * width + first) - start
        before = np.cumsum(counts) - counts
        return np.repeat(start - before, counts) + np.arange(int(counts.sum())), counts


@dataclass
class Segment:
    """What is known since the last barrier. Class and reader-set numbers below the bases are from before it."""

    class_base: int
    reader_base: int
    before: list[int] = field(default_factory=list)
    """Per class: bit set of the classes that happen before it."""
    reader_sets: list[int] = field(default_factory=list)
    owners: dict[tuple[str, int], int] = field(default_factory=dict)
    """(group, owner) -> classes that happen before the owner's next phase."""
    arrivals: dict[tuple[str, int], int] = field(default_factory=dict)
    """Counter element -> classes that have signalled it, and all that happen before them."""
    counted: dict[tuple[str, int], int] = field(default_factory=dict)
    """Counter element -> arrivals that a wait relies on."""


@dataclass(frozen=True)
class Access:
    """Runs of elements of an operand, named by its role, that tasks read or write. ``classes``: numbers of those who
    read all of them, or of the writer of each run; the phase's first has number 0."""

    role: str
    runs: Runs
    classes: Array


@dataclass(frozen=True)
class Classes:
    """What a phase touches by the classes of its tasks. ``keys``: of each class its owner, and the elements of the
    counters that it waits for and signals."""

    footprint: Footprint
    keys: tuple[tuple[int, ...], ...]
    reads: tuple[Access, ...]
    writes: tuple[Access, ...]

    @staticmethod
    def of(f: Footprint) -> Classes:
        """The fewest runs that say the same as the footprint's."""
        owners = np.zeros(f.tasks, np.int64) if f.owners is None else f.owners
        columns = [owners, *(w.elements for w in f.waits), *(s.elements for s in f.signals)]
        keys, numbers = np.unique(np.stack(columns, axis=1), axis=0, return_inverse=True)
        numbers = numbers.reshape(-1)
        alike = dict[tuple[str, tuple[int, ...]], list[Reads]]()
        for part in f.reads:
            alike.setdefault((part.operand.role, tuple(sorted(set(numbers[part.tasks].tolist())))), []).append(part)
        reads = [
            Access(role, union([part.runs for part in parts]), np.array(classes))
            for (role, classes), parts in alike.items()
        ]
        writes = [Access(w.operand.role, *joined(w.runs.starts, w.runs.ends, numbers[w.tasks])) for w in f.writes]
        return Classes(f, tuple(map(tuple, keys.tolist())), tuple(reads), tuple(writes))

    def moved(self, by: Mapping[str, int], times: int) -> Classes:
        """What the same tasks touch so many elements further on, of each operand."""
        reads, writes = (
            tuple(Access(a.role, a.runs.moved(by[a.role] * times), a.classes) for a in part)
            for part in (self.reads, self.writes)
        )
        return replace(self, reads=reads, writes=writes)


@dataclass(frozen=True)
class Executed:
    """One phase execution being checked. ``first``: number of its first class in the segment."""

    phase: Phase
    loop: dict[str, int]
    first: int


class Order:
    """Walks the trace of a Program and refuses the first broken rule; see the module's docstring."""

    def __init__(self, program: Program, alike: Rounds) -> None:
        self.program, self.alike = program, alike
        self.numbers = {b.id: n for n, b in enumerate(program.buffers)}
        self.outputs = {b.id: whole(b) for b in program.buffers if b.space == "output"}
        self.opened = dict.fromkeys(self.numbers, NOTHING)
        self.taken = set[int]()
        """Numbers of the buffers of whose present generation another one has taken bytes."""
        self.totals = {c.id: np.zeros(int(np.prod(c.shape)), np.int64) for c in program.counters}
        self.segment = Segment(0, 0)
        self.cache: dict[object, Classes] = {}
        self.rounds = {name: loop.count for name, loop in alike.loops.items()}
        self.forms = dict[str, int]()
        """Phase -> the number of its form."""
        self.form_numbers = dict[str, int]()
        """Form, as text -> its number."""
        self.loads_stay = dict[Hashable, bool]()
        self.uses_loop = {p.id: depends(p, loop.var) for p, loop in phases_with_loops(program) if loop is not None}
        self.shadow = Shadow(program, self._runs())

    def check(self) -> None:
        """Visit everything."""
        for item, loop in self.program.trace():
            if isinstance(item, Barrier):
                s = self.segment
                self.segment = Segment(s.class_base + len(s.before), s.reader_base + len(s.reader_sets))
            else:
                self._visit(item, loop)
        for name in self.outputs:
            self._check_output(name)

    def _runs(self) -> Iterator[tuple[str, Runs]]:
        """All that is read or written, by buffer."""
        yield from self.outputs.items()
        for item, loop in self.program.trace():
            if isinstance(item, Phase):
                touched = self.touched(item, loop)
                for part in (*touched.reads, *touched.writes):
                    yield self._name(item, part.role, loop), part.runs

    def touched(self, phase: Phase, loop: dict[str, int]) -> Classes:
        """What the phase touches; executions of phases that differ in the names of buffers alone, in the same pattern,
        share it."""
        moves = self.alike.moves(phase) if loop else None
        (number,) = loop.values() if moves is not None else (0,)
        if moves is not None and number:
            return self.touched(phase, dict.fromkeys(loop, 0)).moved(moves, number)
        names = [self.program.resolve(o.buffer, loop) for o in phase.task.operands]
        kinds = tuple((b.dtype, b.shape, b.layout, b.space) for b in map(self.program.buffer, names))
        form = (self._form(phase), kinds, tuple(map(names.index, names)), self.rounds.get(phase.id))
        key = (form, tuple(loop.values()) if self.uses_loop.get(phase.id) else ())
        if key not in self.cache:
            site = Site(self.program, phase, loop)
            if loop and form not in self.loads_stay:
                self.loads_stay[form] = site.loads_stay(self.rounds[phase.id])
            self.cache[key] = Classes.of(site.footprint(self.loads_stay.get(form, False)))
        return self.cache[key]

    def _form(self, phase: Phase) -> int:
        """A number that phases share which differ in the names of their operands' buffers alone, and in their own."""
        if phase.id not in self.forms:
            task = replace(phase.task, operands=tuple(replace(o, buffer="") for o in phase.task.operands))
            text = repr((phase.domain, phase.assign, phase.waits, phase.signals, task))
            self.forms[phase.id] = self.form_numbers.setdefault(text, len(self.form_numbers))
        return self.forms[phase.id]

    def _visit(self, phase: Phase, loop: dict[str, int]) -> None:
        touched, first = self.touched(phase, loop), len(self.segment.before)
        self._number(phase, touched)
        step = Executed(phase, loop, first)
        for reads in touched.reads:
            self._read(step, reads)
        for writes in touched.writes:
            self._write(step, writes)

    def _number(self, phase: Phase, touched: Classes) -> None:
        """Number the classes of a phase's tasks, with what happens before each."""
        segment, f = self.segment, touched.footprint
        group, keys = phase.assign.group, touched.keys
        self._check_waits(phase, f)
        before = []
        for key in keys:
            mask = 0 if f.owners is None else segment.owners.get((group, key[0]), 0)
            for wait, element in zip(f.waits, key[1:], strict=False):
                mask |= segment.arrivals.get((wait.counter, element), 0)
            before.append(mask)
        first = len(segment.before)
        segment.before.extend(before)
        for n, key in enumerate(keys, first):
            done = segment.before[n] | 1 << n
            if f.owners is not None:
                segment.owners[group, key[0]] = segment.owners.get((group, key[0]), 0) | done
            for signal, element in zip(f.signals, key[1 + len(f.waits) :], strict=True):
                self._arrive(phase, signal.counter, element, done, segment.before[n])
        for signal in f.signals:
            np.add.at(self.totals[signal.counter], signal.elements, signal.amounts)

    def _check_waits(self, phase: Phase, f: Footprint) -> None:
        """Every wait counts exactly the arrivals of the phases before it."""
        for wait in f.waits:
            total = self.totals[wait.counter][wait.elements]
            if (total != wait.amounts).any() or (total == 0).any():
                n = int(np.flatnonzero((total != wait.amounts) | (total == 0))[0])
                raise refuse(
                    "no wait without its arrivals",
                    f"task {n} waits until element {wait.elements[n]} of counter {wait.counter!r} is "
                    f"{wait.amounts[n]}, but {total[n]} arrive before",
                    phase,
                )
            for element in np.unique(wait.elements).tolist():
                key = (wait.counter, element)
                self.segment.counted[key] = self.segment.arrivals.get(key, 0)

    def _arrive(self, phase: Phase, counter: str, element: int, done: int, before: int) -> None:
        """Record a signal. One that an earlier wait does not count must come after all that it counts."""
        key = (counter, element)
        if self.segment.counted.get(key, 0) & ~before:
            raise refuse(
                "no wait without its arrivals",
                f"a signal to element {element} of counter {counter!r} may arrive before signals that an earlier "
                "wait counts on",
                phase,
            )
        self.segment.arrivals[key] = self.segment.arrivals.get(key, 0) | done

    def _name(self, phase: Phase, role: str, loop: dict[str, int]) -> str:
        """Id of an operand's buffer in an iteration."""
        return self.program.resolve(next(o.buffer for o in phase.task.operands if o.role == role), loop)

    def _read(self, step: Executed, reads: Access) -> None:
        name = self._name(step.phase, reads.role, step.loop)
        pieces, _ = self.shadow.pieces(name, reads.runs)
        self._check_content(step.phase, name, pieces)
        readers = (reads.classes + step.first).tolist()
        written = bits(self.shadow.writer[pieces], self.segment.class_base)
        for c in readers if written else ():
            if written & ~self.segment.before[c]:
                raise refuse(
                    "every read is ordered after its write",
                    f"operand {reads.role!r} reads buffer {name!r}, whose write is not ordered before it",
                    step.phase,
                )
        self._add_readers(pieces, sum(1 << c for c in readers))

    def _check_content(self, phase: Phase, name: str, pieces: Array) -> None:
        """The pieces hold this buffer's present generation."""
        holder = self.shadow.holder[pieces]
        wrong = holder != self.numbers[name]
        if wrong.any():
            other = int(holder[wrong][0])
            if other == NOTHING:
                raise refuse("reads are covered by writes", f"reads of buffer {name!r} that nobody has written", phase)
            text = f"reads buffer {name!r}, whose bytes buffer {self.program.buffers[other].id!r} has taken"
            raise refuse("live buffers do not overlap", text, phase)
        if (self.shadow.writer[pieces] < self.opened[name]).any():
            text = f"reads elements of buffer {name!r} that were not rewritten with the others"
            raise refuse("reads are covered by writes", text, phase)

    def _add_readers(self, pieces: Array, mask: int) -> None:
        """Add classes to the reader sets of ``pieces``."""
        readers = self.shadow.readers
        old = readers[pieces]
        if (old == old[0]).all():
            readers[pieces] = self._reader_set(int(old[0]), mask)
            return
        present, inverse = np.unique(old, return_inverse=True)
        new = np.array([self._reader_set(int(i), mask) for i in present], np.int32)
        readers[pieces] = new[inverse.reshape(-1)]

    def _reader_set(self, old: int, mask: int) -> int:
        """Number of the set of readers ``old`` with ``mask`` added."""
        segment = self.segment
        have = segment.reader_sets[old - segment.reader_base] if old >= segment.reader_base else 0
        if have | mask == have and old >= segment.reader_base:
            return old
        segment.reader_sets.append(have | mask)
        return segment.reader_base + len(segment.reader_sets) - 1

    def _write(self, step: Executed, writes: Access) -> None:
        name, shadow = self._name(step.phase, writes.role, step.loop), self.shadow
        number, segment = self.numbers[name], self.segment
        pieces, counts = shadow.pieces(name, writes.runs)
        classes = np.repeat(writes.classes + step.first, counts)
        self._check_earlier(step.phase, name, pieces, classes)
        holder = shadow.holder[pieces]
        present = (holder == number) & (shadow.writer[pieces] >= self.opened[name])
        if present.any() or self.opened[name] == NOTHING or number in self.taken:
            self.opened[name] = segment.class_base + step.first
            self.taken.discard(number)
        for other in np.unique(holder[(holder != number) & (holder != NOTHING)]).tolist():
            if (shadow.writer[pieces[holder == other]] >= self.opened[self.program.buffers[other].id]).any():
                self.taken.add(other)
        shadow.writer[pieces] = classes + segment.class_base
        shadow.holder[pieces] = number
        shadow.readers[pieces] = NOTHING

    def _check_earlier(self, phase: Phase, name: str, pieces: Array, classes: Array) -> None:
        """Every earlier writer and reader of the pieces happens before the class that writes them now."""
        segment = self.segment
        writers, readers = self.shadow.writer[pieces], self.shadow.readers[pieces]
        recent = (writers >= segment.class_base) | (readers >= segment.reader_base)
        if not recent.any():
            return
        writers, readers, classes = writers[recent], readers[recent], classes[recent]
        low, high = int(readers.min()), int(readers.max()) + 1
        code = (writers.astype(np.int64) * (high - low) + (readers - low)) * len(segment.before) + classes
        _, where = np.unique(code, return_index=True)
        for writer, reader, c in zip(*(a[where].tolist() for a in (writers, readers, classes)), strict=True):
            before = segment.before[c]
            if writer >= segment.class_base and not before >> (writer - segment.class_base) & 1:
                raise refuse(
                    "unordered tasks never write one element",
                    f"writes to buffer {name!r} are not ordered after an earlier write of the same bytes",
                    phase,
                )
            if reader >= segment.reader_base and segment.reader_sets[reader - segment.reader_base] & ~before:
                raise refuse(
                    "no element is overwritten while it is read",
                    f"writes to buffer {name!r} are not ordered after the reads of the same bytes",
                    phase,
                )

    def _check_output(self, name: str) -> None:
        pieces, _ = self.shadow.pieces(name, self.outputs[name])
        written = (self.shadow.holder[pieces] != NOTHING) & (self.shadow.writer[pieces] >= self.opened[name])
        if not written.all():
            raise refuse("outputs are written", f"output buffer {name!r} has elements that nobody writes")


def whole(buffer: Buffer) -> Runs:
    """All elements of a buffer."""
    return runs_of(dim_tables(buffer.layout, buffer.shape))
