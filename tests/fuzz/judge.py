"""What the compiler makes of one damaged model, within bounds of time and memory."""

from __future__ import annotations

import multiprocessing
import resource
import time
import traceback
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np

from mononn_core.backend import specialise
from mononn_core.compiler import build, lower_imported
from mononn_core.errors import InputError, MononnError, VerifyError
from mononn_core.graph import Graph
from mononn_core.importer.protobuf import read_model
from mononn_core.importer.reader import declared_inputs
from mononn_core.machine import Machine
from mononn_core.ops.evaluate import run as evaluate
from mononn_core.options import Options
from mononn_core.runtime.session import Session
from tests.fuzz.mutate import corpus, model_of

SECONDS, BYTES = 10.0, 2 << 30
"""The most that a model may take until it is lowered or refused."""
GRACE = 60.0
"""Seconds after which a process that says nothing is ended: compiling and running have no bound of their own."""
EVERY = 10
"""Of those that are lowered so many-th is compiled and run."""
LARGEST_INPUT = 1 << 16
"""Elements of the largest input that is made up; a larger one has to be constant already."""
TOLERANCE = 1e-3
"""Relative L2 error of float results against the Graph's semantics: rounding, and nothing else."""
FINE = ("refused", "lowered", "right", "no run")


def inputs_of(model: bytes, seed: int) -> dict[str, np.ndarray]:
    """Small numbers for every input; raises MononnError for a model that cannot be read."""
    random, found = np.random.default_rng(seed), dict[str, np.ndarray]()
    for name, (dtype, dims) in declared_inputs(read_model(model)).items():
        shape = tuple(d if isinstance(d, int) else 2 for d in dims)
        if int(np.prod([float(max(d, 1)) for d in shape])) > LARGEST_INPUT:
            raise InputError(f"input {name!r} is too large to be made up")
        values = random.integers(0, 3, shape) if np.dtype(dtype).kind in "iub" else random.standard_normal(shape)
        found[name] = values.astype(dtype)
    return found


def judge(model: bytes, number: int) -> tuple[str, str]:
    """(verdict, what to know): "refused" by a named error, "lowered", "right", "no run" (a named error at run time), or
    what is a bug: "internal error", "wrong answer"."""
    try:
        with np.errstate(all="ignore"):
            inputs = inputs_of(model, number)
            graph = specialise(model, inputs)
            stages = lower_imported(graph, Options(threads=2), Machine.probe())
            if number % EVERY:
                return "lowered", ""
            return _run(graph, stages, inputs)
    except VerifyError:  # the compiler's own
        return "internal error", traceback.format_exc()
    except MononnError as error:
        return "refused", f"{type(error).__name__}: {error}"
    except TypeError as error:
        if "float8" in str(error) or "data type" in str(error):  # NumPy has no name for the type
            return "refused", str(error)
        return "internal error", traceback.format_exc()
    except MemoryError:
        return "out of memory", traceback.format_exc()
    except Exception:
        return "internal error", traceback.format_exc()


def _run(graph: Graph, stages: Any, inputs: dict[str, np.ndarray]) -> tuple[str, str]:
    given = {name: value for name, value in inputs.items() if name in graph.inputs}
    with Session(build(stages), threads=2) as session:
        try:
            found = session.run(given)
        except InputError as error:
            return "no run", str(error)
    try:
        wanted = evaluate(graph, given)
    except (IndexError, ValueError, ZeroDivisionError) as error:
        return "no run", f"the semantics have no answer: {error}"
    for name, want in wanted.items():
        if difference := differs(np.asarray(found[name]), np.asarray(want)):
            return "wrong answer", f"output {name!r}: {difference}"
    return "right", ""


def differs(found: np.ndarray, want: np.ndarray) -> str:
    """How two answers differ by more than rounding; "" where they do not. What overflows or is no number in one of them
    is not compared, unless it is much."""
    if found.shape != want.shape or found.dtype != want.dtype:
        return f"{found.dtype}{found.shape} instead of {want.dtype}{want.shape}"
    if want.dtype.kind != "f":
        apart = np.abs(found.astype(np.float64) - want.astype(np.float64))
        share = float((apart > 1).mean()) if apart.size else 0.0  # a rounding that falls the other way is no bug
        return f"{share:.1%} of the integers are others" if share > 0.02 else ""
    if (share := float((np.isfinite(found) != np.isfinite(want)).mean()) if want.size else 0.0) > 0.1:
        return f"{share:.1%} are numbers in one of them alone"
    both = np.isfinite(found) & np.isfinite(want)
    apart = found[both].astype(np.float64) - want[both].astype(np.float64)
    error = np.linalg.norm(apart) / max(float(np.linalg.norm(want[both].astype(np.float64))), 1e-6)
    return f"relative L2 error {error:.2g}" if error > TOLERANCE else ""


def _serve(pipe: Connection, seed: int) -> None:
    """Judges the numbers that come through the pipe; a model may take so much memory beyond what is there already."""
    corpus()
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0])
    resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + BYTES, resource.RLIM_INFINITY))
    while (number := pipe.recv()) is not None:
        started = time.perf_counter()
        verdict, why = judge(model_of(number, seed), number)
        took = time.perf_counter() - started
        if verdict in ("refused", "lowered") and took > SECONDS:
            verdict, why = "too slow", f"{took:.1f} s; {why}"
        pipe.send((verdict, why))


class Judge:
    """A process that judges; ended and begun anew where it crashes or hangs. Use it in a ``with``."""

    def __init__(self, seed: int, serve: Callable[[Connection, int], None] = _serve, grace: float = GRACE) -> None:
        self.seed, self.serve, self.grace = seed, serve, grace
        self.process: Any = None

    def __enter__(self) -> Judge:
        return self

    def __exit__(self, *_: object) -> None:
        if self.process is not None and self.process.is_alive():
            self.pipe.send(None)
            self.process.join(GRACE)

    def send(self, number: int) -> None:
        """Have it begin with a model."""
        if self.process is None:
            context = multiprocessing.get_context("spawn")
            self.pipe, theirs = context.Pipe()
            self.process = context.Process(target=self.serve, args=(theirs, self.seed), daemon=True)
            self.process.start()
            theirs.close()
        self.pipe.send(number)

    def answer(self) -> tuple[str, str]:
        """What it says of the model."""
        try:
            if self.pipe.poll(self.grace):
                verdict: tuple[str, str] = self.pipe.recv()
                return verdict
            return self._ended("hung", f"nothing for {self.grace:.0f} s")
        except EOFError:
            self.process.join()
            return self._ended("crashed", f"the process ended with {self.process.exitcode}")

    def _ended(self, verdict: str, why: str) -> tuple[str, str]:
        self.process.kill()
        self.process.join()
        self.process = None
        return verdict, why


def verdicts(numbers: range, seed: int, processes: int) -> Iterator[tuple[int, str, str]]:
    """(number, verdict, what to know) of every model, in order, by so many processes."""
    with Judge(seed) as first, Judge(seed) as second:
        judges = (first, second)[:processes]
        for start in range(0, len(numbers), len(judges)):
            batch = list(zip(judges, numbers[start : start + len(judges)], strict=False))
            for one, number in batch:
                one.send(number)
            for one, number in batch:
                yield (number, *one.answer())
