"""What a launch did and what was wrong with it, in words."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from mononn_core.emulate import errors
from mononn_core.emulate.interface import CONSTANT, Actor, Event, Result
from mononn_core.emulate.symbols import Lines

OPERATIONS = (
    "",
    *("sync_warp", "shuffle", "shuffle_xor", "ldmatrix", "ldmatrix .trans", "mma_16<f16>", "mma_16<bf16>", "mma_tf32"),
    *(
        "sync_block",
        "sync_some",
        "load_acquire",
        "pause",
        "stage_copy",
        "stage_wait",
        "a load again and again",
        "the kernel's end",
    ),
)
"""Names of runtime/state.hpp's ``Op``."""
KINDS = {
    CONSTANT["RACE"]: ("race", errors.RaceError),
    CONSTANT["SOURCE"]: ("race", errors.RaceError),
    CONSTANT["UNFENCED"]: ("race", errors.RaceError),
    CONSTANT["DEADLOCK"]: ("deadlock", errors.DeadlockError),
    CONSTANT["MISALIGNED"]: ("misaligned", errors.MisalignedError),
    CONSTANT["BOUNDS"]: ("bounds", errors.BoundsError),
    CONSTANT["POISON"]: ("poison", errors.PoisonError),
    CONSTANT["PENDING"]: ("pending", errors.PoisonError),
    CONSTANT["CONVERGENCE"]: ("convergence", errors.ConvergenceError),
    CONSTANT["CRASH"]: ("crash", errors.CrashError),
    CONSTANT["TIME"]: ("time", errors.CrashError),
    CONSTANT["USAGE"]: ("usage", errors.CrashError),
}


@dataclass(frozen=True)
class Watch:
    """A buffer in global memory that the kernel may touch.

    Attributes:
        address: of its first byte.
        bytes: its length.
        name: for messages.
        read_only: a write to it is an error, and no race is looked for.
        unwritten: nobody has written it yet: a read before a write is an error.
    """

    address: int
    bytes: int
    name: str
    read_only: bool = False
    unwritten: bool = False


@dataclass(frozen=True)
class Found:
    """One thing that was wrong: its kind (first words of :data:`KINDS`), the error class, one sentence."""

    kind: str
    error: type[errors.EmulationError]
    describe: Callable[[], str] = field(repr=False)

    @property
    def text(self) -> str:
        return self.describe()


@dataclass(frozen=True)
class BankUse:
    """Accesses to shared memory from one line: the passes they take, and the further ones that bank conflicts cost."""

    line: str
    passes: int
    extra: int


@dataclass(frozen=True)
class Report:
    """What a launch did.

    Attributes:
        found: what was wrong, in the order it was found; empty for a sound launch.
        lost: how many more there were than the runtime writes down.
        banks: lines with bank conflicts, the most extra passes first.
        counters: how often things happened, by name:
        barriers: completed block barriers (and sync_some).
        warp_operations: rendezvous of warps: shuffles, ldmatrix, mma, sync_warp.
        matrix_products: mma among them.
        copies: cp.async issued.
        switches: of fibers.
        accesses: instrumented loads and stores to watched and shared memory.
        ldmatrix_passes, ldmatrix_conflicts: matrices read by ldmatrix, and the extra passes that bank conflicts cost
            (up to 7 for each).
        shared_accesses, shared_conflicts: the same for copies, loads and stores of whole warps, where asked for.
    """

    found: tuple[Found, ...] = ()
    lost: int = 0
    counters: dict[str, int] = field(default_factory=dict)
    banks: tuple[BankUse, ...] = ()

    def check(self) -> Report:
        """Itself; raises the error of the first thing found, with what else there was."""
        if self.found:
            more = [f.text for f in self.found[1:6]]
            count = len(self.found) + self.lost
            tail = f" ({count} findings; next: {' | '.join(more)})" if more else ""
            raise self.found[0].error(self.found[0].text + tail)
        return self


COUNTERS = (
    *("barriers", "warp_operations", "matrix_products", "copies", "switches", "accesses"),
    *("ldmatrix_passes", "ldmatrix_conflicts", "shared_accesses", "shared_conflicts"),
)


class Describer:
    """Turns the runtime's events into sentences.

    Args:
        result: of the launch.
        watched: buffers of the launch.
        shared_bytes: per block.
        blocks: in the launch.
        lines: from an offset in the kernel's object to "file:line" words, or "" where not known.
    """

    def __init__(self, result: Result, watched: Sequence[Watch], shared_bytes: int, blocks: int, lines: Lines) -> None:
        self.result, self.watched, self.shared_bytes, self.blocks = result, watched, shared_bytes, blocks
        self.lines = lines

    def report(self) -> Report:
        events = [self.result.event[i] for i in range(self.result.events)]
        counters = {name: getattr(self.result, name) for name in COUNTERS}
        return Report(self._merged(events), self.result.lost_events, counters, self._banks())

    def _banks(self) -> tuple[BankUse, ...]:
        used = [self.result.bank[i] for i in range(self.result.banks)]
        bad = sorted((b for b in used if b.extra), key=lambda b: -b.extra)
        return tuple(BankUse(self.lines(b.pc - self.result.image), b.passes, b.extra) for b in bad)

    def _merged(self, events: Sequence[Event]) -> tuple[Found, ...]:
        waits = [event for event in events if event.kind == CONSTANT["DEADLOCK"]]
        found = [self._found(event) for event in events if event.kind != CONSTANT["DEADLOCK"]]
        if waits:
            found.append(Found("deadlock", errors.DeadlockError, lambda: self._deadlock(waits)))
        return tuple(found)

    def _found(self, event: Event) -> Found:
        kind, error = KINDS[event.kind]
        return Found(kind, error, lambda: self._sentence(event))

    def _deadlock(self, waits: Sequence[Event]) -> str:
        texts = [self._waiting(event) for event in waits[:12]] + (["..."] if len(waits) > 12 else [])
        return "deadlock: " + "; ".join(texts)

    def _sentence(self, event: Event) -> str:
        who, where = self._who(event.first), self.place(event.address)
        access = _access(event.first)
        if event.kind == CONSTANT["RACE"]:
            other = f"{_access(event.second)} by {self._who(event.second)}"
            return f"race on {where}: {access} of {event.size} bytes by {who} is not ordered after {other}"
        if event.kind == CONSTANT["SOURCE"]:
            return f"race: {where} was written while a copy of it by {who} was under way"
        if event.kind == CONSTANT["UNFENCED"]:
            return f"race: {who} copies to {where}, with no stage_fence behind a write by {self._who(event.second)}"
        if event.kind == CONSTANT["MISALIGNED"]:
            return f"misaligned {access} by {who}: {where} is no multiple of {event.value} bytes"
        if event.kind == CONSTANT["BOUNDS"]:
            if not event.address:
                return f"index {event.value} out of bounds of a local array, {who}"
            return f"{access} of {event.size} bytes out of bounds by {who}: {where}"
        if event.kind == CONSTANT["POISON"]:
            return f"{access} by {who} of {where}, which nobody has written"
        if event.kind == CONSTANT["PENDING"]:
            return f"{access} by {who} of {where}, where a copy issued by {self._who(event.second)} is still under way"
        if event.kind == CONSTANT["CONVERGENCE"]:
            first, second = (OPERATIONS[actor.op] or "a load or store" for actor in (event.first, event.second))
            return f"divergence: {who} at {first}, {self._who(event.second)} at {second}"
        if event.kind == CONSTANT["CRASH"]:
            return f"signal {event.value} in {who} at address {event.address:#x}"
        if event.kind == CONSTANT["TIME"]:
            return f"out of time in {who}; a loop without end, or a limit too small"
        return f"{OPERATIONS[event.first.op]} by {who} with arguments that it does not take ({event.value:#x})"

    def _waiting(self, event: Event) -> str:
        text = f"{self._who(event.first)} at {OPERATIONS[event.first.op]}"
        if event.address:
            return f"{text} of {self.place(event.address)}, which stays {event.value}"
        return text + (f" {event.value}" if OPERATIONS[event.first.op] == "sync_some" else "")

    def _who(self, actor: Actor) -> str:
        line = self.lines(actor.pc - self.result.image) if actor.pc else ""
        where = f" ({line})" if line else ""
        return f"block {actor.block} thread {actor.thread}{where}" if actor.thread >= 0 else f"an earlier launch{where}"

    def place(self, address: int) -> str:
        """A buffer's name and the offset in it."""
        for watch in self.watched:
            if watch.address <= address < watch.address + max(watch.bytes, 1):
                return f"{watch.name}+{address - watch.address}"
        block, offset = divmod(address - self.result.shared, self.result.shared_stride or 1)
        if 0 <= block < self.blocks:
            beyond = "" if offset < self.shared_bytes else f" (it has {self.shared_bytes} bytes)"
            return f"shared memory of block {block}+{offset}{beyond}"
        near = min(self.watched, key=lambda w: abs(address - w.address - w.bytes), default=None)
        if near and abs(address - near.address - near.bytes) < 1 << 20:
            return f"{near.name}+{address - near.address} (it has {near.bytes} bytes)"
        return f"address {address:#x}, in no buffer"


def _access(actor: Actor) -> str:
    word = "write" if actor.access & CONSTANT["WRITE"] else "read"
    if actor.access & CONSTANT["ATOMIC"]:
        return f"atomic {word}"
    return f"copy's {word}" if actor.access & CONSTANT["COPY"] else word
