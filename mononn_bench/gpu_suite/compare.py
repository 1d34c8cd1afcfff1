"""One case of the comparison: every contender in a process of its own, checked, rounds side by side, checked again.

The result has a row a contender: status and reason, versions, each check against the float64 reference, and for warm
and for cold runs the medians of each round's block, by the host's clock and by the GPU's (`measure/device_clock.py`).
Wrong answers have no speed.
"""

from __future__ import annotations

import os
import random
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from statistics import median
from typing import Any

from mononn_bench.gpu_suite.case import Case
from mononn_bench.gpu_suite.contenders import OURS
from mononn_bench.gpu_suite.runner import SITE
from mononn_bench.measure.accuracy import When
from mononn_bench.measure.process import Limits, Worker, WorkerFailedError

MEMORY_MB = 100_000
SERVER = "mononn_bench.gpu_suite.server"
OPEN_S, LEAST_OPEN_S, BLOCK_S = 400.0, 15.0, 60.0
ROUNDS, WARM_RUNS, COLD_RUNS = 10, 20, 10
REHEARSED = (2, 2, 1)
Row = dict[str, Any]


def compare(
    case: Case, names: Sequence[str], work: Path, scratch: Path, seconds: float, tell: Callable[[Row], None]
) -> Row:
    """Measure the case; `tell` is given the result so far after each contender and round.

    `work` may hold packages that were brought along; `seconds` bounds what building all contenders may take together:
    who comes too late is left out.
    """
    deadline = time.monotonic() + seconds
    rows: dict[str, Row] = {name: {"status": "left out", "reason": "not reached"} for name in names}
    described = {key: value for key, value in case.to_json().items() if key != "work"}  # no folder of this machine
    result: Row = {"case": described, "contenders": rows, "rounds": 0}
    rounds, warm, cold = (ROUNDS, WARM_RUNS, COLD_RUNS) if case.target == "cuda" else REHEARSED
    workers: dict[str, Worker] = {}
    with ExitStack() as stack:
        for name in names:
            left = min(OPEN_S, deadline - time.monotonic())
            if left < LEAST_OPEN_S:
                rows[name]["reason"] = "no time was left to build it"
                continue
            worker = stack.enter_context(start_worker(work, scratch / name))
            rows[name] = _open(worker, name, case, left)
            if rows[name]["status"] == "ok":
                workers[name] = worker
            else:
                worker.kill()
            tell(result)
        order = random.Random(0)
        for index in range(rounds):
            shuffled = list(workers)
            order.shuffle(shuffled)
            for name in shuffled:
                for state, runs in (("warm", warm), ("cold", cold)):
                    _block(workers, name, rows[name], state, runs, index)
            result["rounds"] = index + 1
            tell(result)
        for name, worker in workers.items():
            _check(worker, rows[name], case, "after")
    summarise(rows)
    return result


def start_worker(work: Path, scratch: Path) -> Worker:
    """A process of this interpreter that answers as server.py says, with packages of `work` on its path."""
    cores = sorted(os.sched_getaffinity(0))
    return Worker("mononn", Path(sys.executable), cores=cores, scratch=scratch, server=SERVER, site=work / SITE)


def _open(worker: Worker, name: str, case: Case, seconds: float) -> Row:
    limits = Limits(seconds, MEMORY_MB)
    try:
        opened = worker.ask("open", limits, contender=name, case=case.to_json())
    except WorkerFailedError as error:
        return {"status": error.status, "reason": error.reason}
    spent = sum(opened[key] for key in ("import_s", "prepare_s", "bind_s", "first_run_s"))
    row = {"status": "ok", "reason": "", "open_s": spent, **opened, "checks": [], "warm": [], "cold": []}
    _check(worker, row, case, "before")
    return row


def _check(worker: Worker, row: Row, case: Case, when: When) -> None:
    """Judge the contender's answers and keep the checks; a wrong one, or none, is the row's status."""
    try:
        checked = worker.ask("check", Limits(BLOCK_S, MEMORY_MB), case=case.to_json(), when=when)
    except WorkerFailedError as error:
        row.update(status=error.status, reason=error.reason)
        return
    row["checks"] += checked["checks"]
    if checked["wrong"]:
        row.update(status="incorrect", reason=checked["wrong"])


def _block(workers: dict[str, Worker], name: str, row: Row, state: str, runs: int, index: int) -> None:
    """One block; a contender that fails in it leaves, with its reason."""
    if name not in workers:
        return
    try:
        samples = workers[name].ask("block", Limits(BLOCK_S, MEMORY_MB), runs=runs, cold=state == "cold", first=index)
    except WorkerFailedError as error:
        row.update(status=error.status, reason=error.reason)
        workers.pop(name).kill()
        return
    row[state].append({**samples, "host_s": median(samples["host_s"]), "runs": runs})


def summarise(rows: dict[str, Row]) -> None:
    """Medians over rounds of each row that is ok, and the ratio of its host time to our monolith's, round by round."""
    fine = {name: row for name, row in rows.items() if row["status"] == "ok"}
    for row in fine.values():
        for state in ("warm", "cold"):
            blocks = row.get(state, [])
            if not blocks:
                continue
            row[f"{state}_host_us"] = median(b["host_s"] for b in blocks) * 1e6
            for what in ("device", "back_to_back"):
                known = [b[f"{what}_s"] for b in blocks if b[f"{what}_s"] is not None]
                row[f"{state}_{what}_us"] = median(known) * 1e6 if known else None
            base = fine.get(OURS[0], {}).get(state, [])
            pairs = [b["host_s"] / a["host_s"] for a, b in zip(base, blocks, strict=False)]
            row[f"{state}_ratio"] = median(pairs) if pairs else None
