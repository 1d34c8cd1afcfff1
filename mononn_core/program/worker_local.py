"""Worker-local memory: prefetched slots live from issue to consumption, temporaries inside one task."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from mononn_core.program.expr import INDEX, Expr, Load, substitute, walk
from mononn_core.program.footprint import Site
from mononn_core.program.ir import Barrier, Buffer, For, Let, Phase, Prefetch, Program, Reduce, Statement, Store
from mononn_core.program.memory import CONSTANT, PRIVATE, dim_tables
from mononn_core.program.proof import guarded_loads
from mononn_core.program.rules import depends, refuse
from mononn_core.program.scalar import Array, Frame, evaluate

LIVE = "prefetched slots live until they are consumed"
Trace = list[tuple[Phase | Barrier, dict[str, int]]]


@dataclass(frozen=True)
class Fetched:
    """A prefetched operand: trace positions of issue and consumption, its role there, and where it lies."""

    issue: int
    use: int
    role: str
    buffer: Buffer


def check(program: Program) -> None:
    """Refuse the first misuse of worker-local memory."""
    trace: Trace = list(program.trace())
    used = [_used(program, item, loop) if isinstance(item, Phase) else [] for item, loop in trace]
    for (item, _), private in zip(trace, used, strict=True):
        for n, a in enumerate(private):
            if isinstance(item, Phase) and any(_overlap(a, b) for b in private[:n]):
                raise refuse("live buffers do not overlap", f"local buffer {a.id!r} shares bytes with another", item)
    _check_slots(trace, used, _slots(program, trace))
    seen = set[object]()
    for (item, loop), private in zip(trace, used, strict=True):
        if isinstance(item, Phase) and private:
            key = (item.id, tuple(loop.values()) if any(depends(item, n) for n in loop) else ())
            if key not in seen:
                seen.add(key)
                Temporaries(Site(program, item, loop)).check()


def _used(program: Program, phase: Phase, loop: dict[str, int]) -> list[Buffer]:
    """Worker-local buffers that the phase's tasks use."""
    names = [program.resolve(o.buffer, loop) for o in phase.task.operands] + list(phase.task.local)
    found = (program.buffer(n) for n in dict.fromkeys(names))
    return [b for b in found if b.space == PRIVATE]


def _overlap(a: Buffer, b: Buffer) -> bool:
    return a.offset < b.offset + b.nbytes and b.offset < a.offset + a.nbytes


def _slots(program: Program, trace: Trace) -> list[Fetched]:
    """Every prefetch into a slot, as executed and in order; checks that what it fetches exists and is constant."""
    found: list[Fetched] = []
    useful, asked = set[tuple[str, str, str]](), dict[tuple[str, str, str], Phase]()
    for position, (item, _) in enumerate(trace):
        for p in item.prefetches if isinstance(item, Phase) else ():
            assert isinstance(item, Phase)
            asked[item.id, p.phase, p.role] = item
            use = next((n for n in range(position, len(trace)) if _is(trace[n][0], p.phase)), None)
            if use is None:
                continue
            useful.add((item.id, p.phase, p.role))
            slot = _fetched(program, item, p, trace[use])
            if slot is not None:
                found.append(Fetched(position, use, p.role, slot))
    for key, phase in asked.items():
        if key not in useful:
            raise refuse("prefetches have a consumer", f"prefetches for phase {key[1]!r}, which never comes", phase)
    return found


def _is(item: Phase | Barrier, name: str) -> bool:
    return isinstance(item, Phase) and item.id == name


def _fetched(program: Program, phase: Phase, p: Prefetch, use: tuple[Phase | Barrier, dict[str, int]]) -> Buffer | None:
    """The slot of a prefetch, None for a cache hint."""
    target, loop = use
    assert isinstance(target, Phase)
    operand = next((o for o in target.task.operands if o.role == p.role), None)
    if operand is None or operand.access != "read":
        raise refuse("prefetches have a consumer", f"phase {p.phase!r} reads no operand {p.role!r}", phase)
    source = program.buffer(program.resolve(operand.buffer, loop))
    if not operand.stable or source.space not in CONSTANT:
        text = f"prefetches operand {p.role!r} of phase {p.phase!r} (buffer {source.id!r}), which is not stable"
        raise refuse("prefetched operands are stable", text, phase)
    if not p.into:
        return None
    slot = program.buffer_map.get(p.into)
    if slot is None or slot.space != PRIVATE:
        raise refuse("prefetches have a consumer", f"prefetches into {p.into!r}, which is not worker-local", phase)
    if slot.shape != operand.box.size or slot.dtype != source.dtype:
        text = f"slot {slot.id!r} is {slot.dtype}{list(slot.shape)}, the box {source.dtype}{list(operand.box.size)}"
        raise refuse("prefetches have a consumer", text, phase)
    return slot


def _check_slots(trace: Trace, used: list[list[Buffer]], slots: list[Fetched]) -> None:
    """No slot's bytes are used from issue to consumption by anything else."""
    for n, slot in enumerate(slots):
        for position in range(slot.issue, slot.use + 1):
            item = trace[position][0]
            if isinstance(item, Phase) and any(_overlap(b, slot.buffer) for b in used[position]):
                raise refuse(LIVE, f"uses local memory of slot {slot.buffer.id!r}, which holds an operand", item)
        for other in slots[n + 1 :]:
            item = trace[other.issue][0]
            assert isinstance(item, Phase)
            if (slot.use, slot.role) == (other.use, other.role):
                raise refuse(LIVE, f"prefetches operand {slot.role!r} a second time", item)
            if slot.issue <= other.issue <= slot.use and _overlap(slot.buffer, other.buffer):
                raise refuse(LIVE, f"a prefetch overwrites slot {slot.buffer.id!r} before it is consumed", item)


class Temporaries:
    """Walks a nest in order, for all tasks at once, and refuses a read of a worker-local element that the task has
    not written before. Loops that carry such a dependence run one iteration at a time."""

    def __init__(self, site: Site) -> None:
        self.site = site
        operands = {o.role: site.buffer(o) for o in site.phase.task.operands}
        self.private = {role: b for role, b in operands.items() if b.space == PRIVATE}
        self.written = {b.id: np.zeros((site.tasks, b.layout.size), bool) for b in self.private.values()}
        self.tables = {b.id: dim_tables(b.layout, b.shape) for b in self.private.values()}

    def check(self) -> None:
        if self.private:
            self._body(self.site.phase.task.body, self.site.frame, {})
            if self.site.phase.task.template != "nest":
                self._boxes()

    def _boxes(self) -> None:
        """What a template reads of worker-local memory, its body has written."""
        for role, buffer in self.private.items():
            if self.site.operands[role].access != "read":
                continue
            low, high = self.site.boxes[role]
            tables, name = self.tables[buffer.id], buffer.id
            for task in range(self.site.tasks):
                axes = (t[a:b] for t, a, b in zip(tables, low[task], high[task], strict=True))
                if not self.written[name][task, sum(np.ix_(*axes), np.zeros((), np.int64)).reshape(-1)].all():
                    text = f"reads local buffer {name!r} (operand {role!r}), which the task has not filled"
                    raise self.site.refuse("reads are covered by writes", text)

    def _body(self, body: tuple[Statement, ...], frame: Frame, lets: dict[str, Expr]) -> None:
        lets = dict(lets)
        for s in body:
            match s:
                case For():
                    self._for(s, frame, lets)
                case Let():
                    self._loads((s.value,), frame, lets)
                    if s.value.dtype in (INDEX, "bool"):
                        lets[s.name] = substitute(s.value, lets)
                case Reduce():
                    self._loads((s.value,), frame.loop(s.var, s.extent), lets)
                case Store():
                    self._loads((*s.index, s.value), frame, lets)
                    if s.operand in self.private:
                        self._store(s, frame, lets)

    def _for(self, loop: For, frame: Frame, lets: dict[str, Expr]) -> None:
        stored, loaded = set[str](), set[str]()
        self._touched(loop, stored, loaded)
        bound = None
        if loop.bound is not None:
            bound = evaluate(substitute(loop.bound, lets), frame, self.site.no_loads)
        if stored.isdisjoint(loaded):
            inner = frame.loop(loop.var, loop.extent)
            if bound is not None:
                inner = inner.where(np.broadcast_to(inner.lookup(loop.var) < bound[..., None], inner.extents))
            self._body(loop.body, inner, lets)
            return
        if loop.kind == "vector":
            text = f"vector loop {loop.var!r} stores and loads worker-local memory, so its lanes depend on each other"
            raise self.site.refuse("vector iterations are independent", text)
        for i in range(loop.extent):
            inner = frame.inner()
            inner.values[loop.var] = np.asarray(i, np.int64)
            self._body(loop.body, inner if bound is None else inner.where(i < bound), lets)

    def _touched(self, statement: Statement, stored: set[str], loaded: set[str]) -> None:
        """Collect the ids of worker-local buffers that a statement stores and loads."""
        parts: tuple[Expr, ...] = ()
        match statement:
            case For(body=body):
                for inner in body:
                    self._touched(inner, stored, loaded)
            case Store(operand, index, value):
                if operand in self.private:
                    stored.add(self.private[operand].id)
                parts = (*index, value)
            case Let(value=value) | Reduce(value=value):
                parts = (value,)
        roles = {n.operand for e in parts for n in walk(e) if isinstance(n, Load)}
        loaded.update(self.private[r].id for r in roles if r in self.private)

    def _locate(self, role: str, index: tuple[Expr, ...], frame: Frame, lets: dict[str, Expr]) -> tuple[Array, Array]:
        """(task, element offset) of an access in every iteration that takes part; flat."""
        tables = self.tables[self.private[role].id]
        mask = np.broadcast_to(True if frame.mask is None else frame.mask, frame.extents)
        total = np.zeros((), np.int64)
        for table, e in zip(tables, index, strict=True):
            i = np.broadcast_to(evaluate(substitute(e, lets), frame, self.site.no_loads), frame.extents)
            total = total + table[np.where(mask, i, 0)]
        tasks = np.arange(self.site.tasks).reshape((-1,) + (1,) * (len(frame.extents) - 1))
        return np.broadcast_to(tasks, frame.extents)[mask], np.broadcast_to(total, frame.extents)[mask]

    def _loads(self, parts: tuple[Expr, ...], frame: Frame, lets: dict[str, Expr]) -> None:
        for e in parts:
            for load, guards in guarded_loads(substitute(e, lets)):
                if load.operand not in self.private:
                    continue
                inner = frame
                for guard in guards:
                    if not any(isinstance(n, Load) for n in walk(guard)):
                        inner = inner.where(np.broadcast_to(evaluate(guard, frame, self.site.no_loads), frame.extents))
                tasks, offsets = self._locate(load.operand, load.index, inner, lets)
                name = self.private[load.operand].id
                if not self.written[name][tasks, offsets].all():
                    text = f"reads local buffer {name!r} (operand {load.operand!r}) before the task has written it"
                    raise self.site.refuse("reads are covered by writes", text)

    def _store(self, store: Store, frame: Frame, lets: dict[str, Expr]) -> None:
        tasks, offsets = self._locate(store.operand, store.index, frame, lets)
        name = self.private[store.operand].id
        if np.bincount(tasks * self.written[name].shape[1] + offsets, minlength=1).max() > 1:
            raise self.site.refuse("unordered tasks never write one element", f"lanes share an element of {name!r}")
        self.written[name][tasks, offsets] = True
