"""What the emulator finds, as errors: one class a kind, so that a test names its catcher."""

from __future__ import annotations

from mononn_core.errors import MononnError


class EmulationError(MononnError):
    """A kernel did something under the emulator that a GPU does not allow or does not order. A compiler bug."""


class RaceError(EmulationError):
    """Two threads access the same bytes, one writes, and nothing orders them; or a copy's source changes under way."""


class DeadlockError(EmulationError):
    """Every thread that is left waits for something that cannot come any more."""


class MisalignedError(EmulationError):
    """An address is not a multiple of what the access asks for."""


class BoundsError(EmulationError):
    """An access outside every buffer, outside shared memory, or a write to a read-only buffer."""


class PoisonError(EmulationError):
    """A read of memory that nobody has written, or of the destination of a copy that nobody has waited for."""


class ConvergenceError(EmulationError):
    """Lanes of one warp do not come to a warp or block primitive together."""


class CrashError(EmulationError):
    """The kernel ended by a signal, ran out of time, or gave a primitive what it does not take."""
