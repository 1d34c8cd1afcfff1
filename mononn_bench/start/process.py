"""One process from its start to its first answer, and what it holds then."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

from mononn_bench.measure.disturbance import difference, take_snapshot
from mononn_bench.measure.process import Limits, WorkerFailedError, last_line, memory_of

LEAST_S = 1e-3
"""Seconds of other processes' work that disturb no start."""


@dataclass(frozen=True)
class Command:
    """What is started: `line` with the place where the descriptor's number goes, and its environment. `files` are what
    it reads of its build and model.
    """

    line: Sequence[str]
    descriptor_at: int
    variables: Mapping[str, str]
    log: Path
    files: tuple[Path, ...]


class Started:
    """A process that was started and has answered; it waits, holding what it has, until it is closed.

    `stood_ms`, `answered_ms`: milliseconds from just before the start. `others_s`: seconds that other processes
    computed meanwhile. Raises WorkerFailedError where it dies, is too late or holds too much.
    """

    def __init__(self, command: Command, limits: Limits) -> None:
        self._limits = limits
        reader, writer = os.pipe()
        line = list(command.line)
        line[command.descriptor_at] = line[command.descriptor_at].replace("DESCRIPTOR", str(writer))
        self._log = command.log
        before = take_snapshot(os.getpid())
        with command.log.open("ab") as log:
            begun = time.monotonic_ns()
            self._process = subprocess.Popen(
                line, stdin=subprocess.PIPE, stdout=log, stderr=log, pass_fds=(writer,),
                env=dict(command.variables), start_new_session=True,
            )  # fmt: skip
        os.close(writer)
        self.pid = self._process.pid
        try:
            stood, answered = (int(text) for text in self._told(reader, begun, lines=1)[0].split())
            seen = difference(before, take_snapshot(self.pid))
            self._told(reader, begun, lines=1)
        except BaseException:
            self.close(kill=True)
            raise
        finally:
            os.close(reader)
        self.stood_ms, self.answered_ms = (stood - begun) / 1e6, (answered - begun) / 1e6
        self.others_s, self.elapsed_s = seen.others_s, seen.elapsed_s

    def __enter__(self) -> Started:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close(kill=kind is not None)

    def disturbed(self, share: float) -> bool:
        """Whether others computed for more than that share of the time."""
        return self.others_s > max(LEAST_S, share * self.elapsed_s)

    def memory(self) -> tuple[float, float]:
        """Proportional set, and what of it no file stands behind, in 10^6 bytes."""
        held = memory_of(self.pid)
        return held.proportional / 1e6, held.anonymous / 1e6

    def mapped_files(self) -> set[Path]:
        """The files that it maps."""
        return mapped_files(self.pid)

    def close(self, *, kill: bool = False) -> None:
        """Let it end by itself, or end it."""
        if kill:
            with suppress(ProcessLookupError):
                os.killpg(self.pid, signal.SIGKILL)
        try:
            self._process.communicate(timeout=self._limits.seconds)
        except subprocess.TimeoutExpired:
            os.killpg(self.pid, signal.SIGKILL)
            self._process.communicate()

    def _told(self, reader: int, begun: int, lines: int) -> list[str]:
        """That many lines from the process."""
        text = b""
        while text.count(b"\n") < lines:
            left = self._limits.seconds - (time.monotonic_ns() - begun) / 1e9
            if left <= 0:
                raise WorkerFailedError("timeout", f"no first answer within {self._limits.seconds:g} s")
            ready, _, _ = select.select([reader], [], [], min(left, self._limits.watch_s))
            if ready:
                byte = os.read(reader, 1)
                if not byte:
                    raise self._death()
                text += byte
            elif memory_of(self.pid).proportional > self._limits.memory_mb * 1e6:
                raise WorkerFailedError("failed", f"held more than {self._limits.memory_mb} MB of memory")
        return text.decode().splitlines()

    def _death(self) -> WorkerFailedError:
        code = self._process.wait()
        if code < 0:
            return WorkerFailedError("failed", f"ended by {signal.Signals(-code).name} before its first answer")
        return WorkerFailedError("failed", f"exited with status {code}: {last_line(self._log)}")


def mapped_files(pid: int | str) -> set[Path]:
    """Regular files that a process maps to read them, not to share what it writes; none of one that is gone."""
    try:
        lines = Path(f"/proc/{pid}/maps").read_text().splitlines()
    except OSError:
        return set()
    parts = [line.split(maxsplit=5) for line in lines]
    named = {Path(part[5]) for part in parts if len(part) == 6 and part[1].endswith("p")}
    return {path for path in named if path.is_file()}
