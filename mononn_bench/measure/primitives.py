"""What this machine gives, primitive by primitive (machine.c): streams, caches by size, peaks by instruction set,
barriers, hand-offs, wake-ups, system calls, page faults, threads.
"""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from tempfile import TemporaryDirectory

from mononn_bench.errors import MeasurementError
from mononn_bench.measure.case import source_revision
from mononn_bench.measure.environment import describe_machine
from mononn_bench.measure.exclusive import LOCK, exclusive_machine
from mononn_bench.measure.sentinel import DEFAULT_LAST_LEVEL, compilers
from mononn_bench.profiled import Primitives, Reading

SOURCE = Path(__file__).with_name("machine.c")
OPTIONS = ("-O3", "-march=native", "-fno-tree-loop-distribute-patterns", "-pthread")
"""The last but one keeps loops that store from becoming calls of memset, which is another way to store."""
TRIALS = 5
LIMIT_S = 300.0


def read_primitives(
    name: str, cores: Sequence[int], say: Callable[[str], None], *, trials: int = TRIALS, lock: Path = LOCK
) -> Primitives:
    """Measure, alone on the machine, in some seconds.

    Raises MeasurementError where there is no C compiler, or where the program fails.
    """
    machine = describe_machine(name)
    with TemporaryDirectory() as folder, exclusive_machine(say, lock):
        program = _compiled(Path(folder) / "machine")
        last_level = max(machine.caches_kib.values(), default=0) * 1024 or DEFAULT_LAST_LEVEL
        features = f",{','.join(machine.flags)},"
        command = [str(program), str(trials), str(last_level), features, *map(str, cores)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S, check=False)
    if done.returncode != 0:
        raise MeasurementError(f"Measuring the machine failed with status {done.returncode}: {done.stderr.strip()}.")
    return Primitives(
        created=datetime.now(UTC).isoformat(timespec="seconds"),
        machine=machine,
        name=name,
        cores=tuple(cores),
        readings=tuple(map(_reading, done.stdout.splitlines())),
        source_revision=source_revision(),
    )


def _compiled(program: Path) -> Path:
    found = compilers()
    if not found:
        raise MeasurementError("Measuring the machine needs a C compiler: install gcc, or the ziglang package.")
    for compiler in found:
        command = [*compiler, *OPTIONS, "-o", str(program), str(SOURCE)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode == 0:
            return program
    raise MeasurementError(f"{found[-1][0]} does not compile {SOURCE.name}: {done.stderr.strip().splitlines()[-1:]}.")


def _reading(line: str) -> Reading:
    what, variant, workers, unit, values = line.split("\t")
    return Reading(what, variant, int(workers), unit, tuple(float(value) for value in values.split()))
