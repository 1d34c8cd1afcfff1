"""What a user chooses. (What a schedule or a tuner decides lives in :mod:`mononn_core.schedule.decisions`.)"""

from __future__ import annotations

import os
from dataclasses import dataclass

from mononn_core.errors import OptionError

TARGETS = ("cpu",)
PRECISIONS = ("fp32",)
LAUNCHES = ("once", "phases")


@dataclass(frozen=True)
class Options:
    """Options of one compilation.

    Attributes:
        target: "cpu".
        precision: "fp32": arithmetic and storage of activations and weights.
        threads: workers the schedule is balanced for (a run may use another number, with the same output bits).
        fuse: fuse elementwise chains, movements and epilogues (off: one phase an operator; for ablations).
        epilogues: finish a product or an attention with the elementwise chain after it (off: that chain is a phase of
            its own, fused with nothing but itself; for ablations).
        prefetch: ask for the first weights of the phase after a barrier before waiting there. Off: on two cores no
            network ran measurably faster or slower with it.
        launch: "once": every worker enters the function once a run, and barriers stand between its phases; "phases":
            the host's worker pool is woken and joined for every phase, as a runtime of separate kernels does (for
            ablations; the same kernels, the same phases, the same bits).
    """

    target: str = "cpu"
    precision: str = "fp32"
    threads: int = 0
    fuse: bool = True
    epilogues: bool = True
    prefetch: bool = False
    launch: str = "once"

    def __post_init__(self) -> None:
        if self.target not in TARGETS:
            raise OptionError(f"target {self.target!r} is unknown; choose one of {', '.join(TARGETS)}")
        if self.precision not in PRECISIONS:
            raise OptionError(f"precision {self.precision!r} is unknown; choose one of {', '.join(PRECISIONS)}")
        if self.launch not in LAUNCHES:
            raise OptionError(f"launch {self.launch!r} is unknown; choose one of {', '.join(LAUNCHES)}")
        if not isinstance(self.threads, int) or self.threads < 0:
            raise OptionError(
                f"threads is {self.threads!r}; give a positive number, or 0 for all cores of this process"
            )
        if self.threads == 0:
            object.__setattr__(self, "threads", len(os.sched_getaffinity(0)))
