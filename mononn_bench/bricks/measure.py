"""Bricks measured: what a system's record lacks is built, run in a few visits spread over the whole, and kept."""

from __future__ import annotations

import random
import shutil
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import onnx

from mononn_bench.bricked import BrickTime, SystemBricks
from mononn_bench.bricks.cut import write_values
from mononn_bench.codec import write_record
from mononn_bench.measure.process import Limits, Worker, WorkerFailedError
from mononn_bench.models.arithmetic import count_arithmetic
from mononn_bench.models.folder import ONNX, RECORD, digest_model
from mononn_bench.models.onnxfile import write_onnx
from mononn_bench.record import ModelRecord, Tensor

VISITS = 3
"""How often each brick is loaded and run in all; machines have slow minutes."""
BLOCK: Mapping[str, float] = {"warm_up_s": 0.005, "warm_up_runs": 2, "block_s": 0.02, "block_runs": 5}
"""Of a visit: at least so many seconds and runs untimed, then timed."""
VALUES = "values.npz"
Say = Callable[[str], None]


@dataclass(frozen=True)
class Ground:
    """What is the same for every brick of a run: cores, limits of an answer, and a folder for what may go."""

    cores: tuple[int, ...]
    limits: Limits
    scratch: Path


@dataclass
class Contender:
    """A system, its interpreter, the precision, and what is known of its times, kept at `path`."""

    python: Path
    path: Path
    precision: str
    record: SystemBricks

    def note(self, times: Mapping[str, BrickTime]) -> None:
        """Add times and write them all down."""
        if times:
            self.record = replace(self.record, times={**self.record.times, **times})
            write_record(self.record, self.path)


@dataclass
class _Tally:
    """What is found of one brick with one system."""

    seconds: list[float] = field(default_factory=list)
    wall_s: float = 0.0
    failure: WorkerFailedError | None = None

    def time(self) -> BrickTime:
        if self.failure:
            return BrickTime(self.failure.status, self.failure.reason, (), self.wall_s)
        return BrickTime("ok", "", tuple(self.seconds), self.wall_s)


def measure_bricks(
    bricks: Mapping[str, Callable[[], onnx.ModelProto]], contenders: Sequence[Contender], ground: Ground, say: Say
) -> None:
    """Measure each of `bricks`, made by key, with each contender that lacks it or has failed with it. What fails is a
    status in its record.

    The caller holds the machine.
    """
    known = {c.record.system: {key for key, time in c.record.times.items() if time.status == "ok"} for c in contenders}
    lacking = {name: [key for key in bricks if key not in times] for name, times in known.items()}
    wanted = [key for key in bricks if any(key in keys for keys in lacking.values())]
    if not wanted:
        return
    tallies = {name: {key: _Tally() for key in keys} for name, keys in lacking.items()}
    try:
        for key in wanted:
            _write_brick(key, bricks[key](), ground.scratch / key)
        for contender in contenders:
            name = contender.record.system
            say(f"  {name}: building {len(lacking[name])} of {len(bricks)} bricks")
            _build_all(contender, tallies[name], ground)
        say(f"  {VISITS} visits to each of {len(wanted)} bricks")
        for visit in range(VISITS):
            random.Random(visit).shuffle(wanted)
            _visit_all(wanted, contenders, tallies, ground)
    finally:
        for key in wanted:
            shutil.rmtree(ground.scratch / key, ignore_errors=True)
    for contender in contenders:
        contender.note({key: tally.time() for key, tally in tallies[contender.record.system].items()})


def _write_brick(key: str, model: onnx.ModelProto, folder: Path) -> None:
    """A brick as adapters take models: the file, its record, and one input set beside them."""
    write_onnx(model, folder / ONNX)
    write_values(model, folder / VALUES)
    counted = count_arithmetic(model)
    record = ModelRecord(
        name=key, batch=1, full_size=False, weights="user", seed=0, source="brick", digest=digest_model(folder),
        opset=next((o.version for o in model.opset_import if o.domain in ("", "ai.onnx")), 0),
        inputs=tuple(map(_end, model.graph.input)), outputs=tuple(map(_end, model.graph.output)), flops=counted.flops,
        weight_bytes=counted.weight_bytes, compulsory_bytes=counted.compulsory_bytes, versions={},
    )  # fmt: skip
    write_record(record, folder / RECORD)


def _end(value: onnx.ValueInfoProto) -> Tensor:
    kind = value.type.tensor_type
    dtype = onnx.helper.tensor_dtype_to_np_dtype(kind.elem_type).name
    return Tensor(value.name, dtype, tuple(d.dim_value for d in kind.shape.dim))


def _build_all(contender: Contender, tallies: Mapping[str, _Tally], ground: Ground) -> None:
    """As many builds beside each other as there are cores."""
    keys, lanes = list(tallies), len(ground.cores)

    def lane(first: int) -> None:
        with _Bench(contender, ground, f"build{first}") as bench:
            for key in keys[first::lanes]:
                bench.try_on(tallies[key], key, "build")

    with ThreadPoolExecutor(lanes) as pool:
        list(pool.map(lane, range(lanes)))


def _visit_all(
    keys: Iterable[str], contenders: Sequence[Contender], tallies: Mapping[str, Mapping[str, _Tally]], ground: Ground
) -> None:
    with ExitStack() as stack:
        benches = [stack.enter_context(_Bench(contender, ground, "visit")) for contender in contenders]
        for key in keys:
            for bench in benches:
                tally = tallies[bench.system].get(key)
                if tally and not tally.failure:
                    bench.visit(tally, key)
            benches.append(benches.pop(0))


class _Bench:
    """A worker for one brick after another; one that failed is replaced."""

    def __init__(self, contender: Contender, ground: Ground, name: str) -> None:
        self.system = contender.record.system
        self._contender, self._ground = contender, ground
        self._scratch = ground.scratch / f"{name}-{self.system}"
        self._worker: Worker | None = None

    def __enter__(self) -> _Bench:
        return self

    def __exit__(self, *_: object) -> None:
        self._end()

    def try_on(self, tally: _Tally, key: str, call: str, **more: Any) -> dict[str, Any]:
        """The worker's answer; a failure is noted, and nothing is answered."""
        folder = self._ground.scratch / key
        task: dict[str, Any] = {
            "model_folder": str(folder), "build_folder": str(folder / self.system), "target": "cpu",
            "precision": self._contender.precision, "threads": len(self._ground.cores),
        }  # fmt: skip
        started = time.perf_counter()
        try:
            return self._ready().ask(call, self._ground.limits, **(more if call == "block" else {**task, **more}))
        except WorkerFailedError as error:
            tally.failure = error
            self._end()
            return {}
        finally:
            tally.wall_s += time.perf_counter() - started

    def visit(self, tally: _Tally, key: str) -> None:
        """Load a brick, run it, note the median, and let its threads rest."""
        values = str(self._ground.scratch / key / VALUES)
        if self.try_on(tally, key, "load", inputs=values, sets=1):
            found = self.try_on(tally, key, "block", sets=1, first=0, **BLOCK)
            tally.seconds += [found["value_s"]] if found else []
        if self._worker:
            self._worker.stop()

    def _ready(self) -> Worker:
        if self._worker is None:
            self._worker = Worker(self.system, self._contender.python, cores=self._ground.cores, scratch=self._scratch)
            self._worker.ask("probe", self._ground.limits)
        self._worker.resume()
        return self._worker

    def _end(self) -> None:
        if self._worker:
            self._worker.kill()
            self._worker = None
