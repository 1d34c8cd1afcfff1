"""The parent's side of a worker: start it in its system's interpreter, ask it, stop it, and know why it died."""

from __future__ import annotations

import json
import os
import re
import select
import shutil
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Literal

from mononn_bench.errors import DiskFullError
from mononn_bench.systems import get_system

PACKAGE = Path(__file__).resolve().parents[1]
SERVER = "mononn_bench.measure.worker"
_KILOBYTES = re.compile(r"^(\w+):\s+(\d+) kB$", re.MULTILINE)
FULL_BYTES = 16_000_000
"""A disk with less room than this is full: no build and no answer would fit."""
WATCH_S = 0.1
"""How often memory is looked at while a worker loads or builds; during a block the parent looks once a second."""

# Only named packages of the checkout become importable, whatever else lies beside them.
_BOOTSTRAP = """
import importlib, importlib.util, json, sys
settings = json.loads(sys.argv[1])
sys.path[:0] = settings["site"]
for name, folder in settings["packages"].items():
    spec = importlib.util.spec_from_file_location(name, folder + "/__init__.py", submodule_search_locations=[folder])
    sys.modules[name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(sys.modules[name])
importlib.import_module(settings["server"]).serve(settings)
"""
_STEERING_VARIABLES = (
    "OMP_",
    "MKL_",
    "OPENBLAS_",
    "GOMP_",
    "KMP_",
    "NUMEXPR_",
    "VECLIB_",
    "GOTO_",
    "PYTHON",
    "VIRTUAL_ENV",
    "GLIBC_TUNABLES",
    "MALLOC_",
    "LD_PRELOAD",
    "THP_MEM_",
    "TBB_",
    "DNNL_",
    "ONEDNN_",
    "ORT_",
    "OV_",
    "OPENVINO_",
    "TORCH",
    "PYTORCH_",
    "ATEN_",
    "XLA_",
    "JAX_",
    "TF_",
    "TVM_",
)


@dataclass(frozen=True)
class Limits:
    """When a worker is ended: seconds to an answer, 10^6 bytes held; looked at every `watch_s`."""

    seconds: float
    memory_mb: int
    watch_s: float = WATCH_S


@dataclass(frozen=True)
class Memory:
    """What a worker's group holds, in bytes, by the kernel's counters: resident set and its high-water mark (VmRSS,
    VmHWM), proportional set, what of that no file stands behind (Pss_Anon), and what lies in transparent huge pages
    (AnonHugePages).
    """

    resident: int
    peak: int
    proportional: int
    anonymous: int
    huge: int


class WorkerFailedError(Exception):
    """The worker answered that it cannot, or did not answer: `status` and `reason` are its row's."""

    def __init__(self, status: Literal["unavailable", "failed", "timeout"], reason: str) -> None:
        super().__init__(reason)
        self.status = status
        self.reason = reason


class Worker:
    """A process of its own session for one system; leaving the `with` block kills its whole group.

    `server` is the module whose `serve` answers; `defaults` as in `Task`; packages in the folder `site` come before
    the interpreter's own.
    """

    def __init__(
        self,
        system: str,
        python: Path,
        *,
        cores: Sequence[int],
        scratch: Path,
        server: str = SERVER,
        defaults: bool = False,
        site: Path | None = None,
    ) -> None:
        self.system = system
        self.peak_bytes = 0
        scratch.mkdir(parents=True, exist_ok=True)
        self._log = scratch / f"{system}.log"
        to_child, ours_out = os.pipe()
        ours_in, from_child = os.pipe()
        settings = {"parent": os.getpid(), "cores": list(cores), "requests": to_child, "replies": from_child}
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                worker_command(system, python, server, settings, site),
                stdin=subprocess.DEVNULL, stdout=log, stderr=log, pass_fds=(to_child, from_child),
                env=worker_variables(system, scratch, defaults=defaults), start_new_session=True,
            )  # fmt: skip
        os.close(to_child)
        os.close(from_child)
        self._requests = os.fdopen(ours_out, "w", buffering=1)
        self._replies = os.fdopen(ours_in, "rb", buffering=0)

    @property
    def pid(self) -> int:
        """The worker's process id, which is its group's too."""
        return self._process.pid

    def __enter__(self) -> Worker:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.kill()

    def ask(self, call: str, limits: Limits, **arguments: Any) -> dict[str, Any]:
        """The worker's answer to `call`. Raises WorkerFailedError when it cannot, dies, takes too long or too much
        memory.
        """
        self.send(call, **arguments)
        return self.receive(call, limits)

    def send(self, call: str, **arguments: Any) -> None:
        """Ask without waiting; `receive` must follow. A worker that is gone says so there."""
        with suppress(OSError):
            self._requests.write(json.dumps({"call": call, "arguments": arguments}) + "\n")

    def receive(self, call: str, limits: Limits) -> dict[str, Any]:
        """The answer to what was sent; errors as in `ask`, but DiskFullError where the disk is full by then."""
        try:
            return self._received(call, limits)
        except WorkerFailedError:
            if shutil.disk_usage(self._log.parent).free < FULL_BYTES:
                raise DiskFullError(self._log.parent) from None
            raise

    def _received(self, call: str, limits: Limits) -> dict[str, Any]:
        line = b""
        deadline = time.monotonic() + limits.seconds
        while not line.endswith(b"\n"):
            ready, _, _ = select.select([self._replies], [], [], limits.watch_s)
            if ready:
                chunk = self._replies.read(1 << 20)
                if not chunk:
                    raise self._death(call)
                line += chunk
                continue
            if self._process.poll() is not None:
                raise self._death(call)
            held = self.resident_bytes()
            self.peak_bytes = max(self.peak_bytes, held)
            if held > limits.memory_mb * 1e6:
                self.kill()
                raise WorkerFailedError(
                    "failed", f"held more than {limits.memory_mb} MB of memory in {call}, and was ended"
                )
            if time.monotonic() > deadline:
                self.kill()
                raise WorkerFailedError("timeout", f"no answer to {call} within {limits.seconds:g} s")
        answer: dict[str, Any] = json.loads(line)
        if answer.pop("status") != "ok":
            raise WorkerFailedError(
                "unavailable" if "unavailable" in line.decode()[:40] else "failed", answer["reason"]
            )
        return answer

    def memory(self) -> Memory:
        """What the worker's group holds now, and has held at most since `forget_peak`."""
        return memory_of(self.pid)

    def forget_peak(self) -> None:
        """Set the high-water mark to what is resident now; where that is not allowed it stays."""
        for pid in group_members(self.pid):
            with suppress(OSError):
                Path(f"/proc/{pid}/clear_refs").write_text("5")

    def note_memory(self) -> None:
        """Take the present memory into the peak."""
        self.peak_bytes = max(self.peak_bytes, self.resident_bytes())

    def resident_bytes(self) -> int:
        """Proportional set size of the worker's group, bytes; 0 once it is gone."""
        return sum(proportional_bytes(pid) for pid in group_members(self.pid))

    def stop(self) -> None:
        """Stop the whole group, so that a waiting thread pool does not spin."""
        self._signal(signal.SIGSTOP)

    def resume(self) -> None:
        """Let the group go on."""
        self._signal(signal.SIGCONT)

    def kill(self) -> None:
        """End the group and collect the worker; harmless when it is gone."""
        self._signal(signal.SIGKILL)
        self._process.wait()
        for stream in (self._requests, self._replies):
            try:
                stream.close()
            except OSError:
                continue

    def _signal(self, number: int) -> None:
        try:
            os.killpg(self.pid, number)
        except ProcessLookupError:
            return

    def _death(self, call: str) -> WorkerFailedError:
        self._signal(signal.SIGKILL)
        code = self._process.wait()
        if code < 0:
            return WorkerFailedError("failed", f"ended by {signal.Signals(-code).name} in {call}")
        return WorkerFailedError("failed", f"exited with status {code} in {call}: {last_line(self._log)}")


def last_line(log: Path) -> str:
    """The last thing that a process said."""
    lines = log.read_text(errors="replace").strip().splitlines()
    return lines[-1][:200] if lines else "silent"


def worker_command(
    system: str, python: Path, server: str, settings: Mapping[str, Any], site: Path | None = None
) -> list[str]:
    """What starts `server`'s `serve` with `settings` in the system's interpreter; `site` as in `Worker`."""
    packages = {"mononn_bench": str(PACKAGE)}
    packages |= {folder.name: str(folder) for folder in get_system(system).more_sources if _is_package(folder)}
    whole = {**settings, "system": system, "server": server, "packages": packages, "site": [str(site)] if site else []}
    return [str(python), "-I", "-c", _BOOTSTRAP, json.dumps(whole)]


def _is_package(folder: Path) -> bool:
    return (folder / "__init__.py").is_file()


def worker_variables(system: str, scratch: Path, *, defaults: bool = False) -> dict[str, str]:
    """The parent's environment without what steers threads, memory, Python or a library, with a temporary folder of
    its own and the system's own variables; `defaults` as in `Task`.
    """
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(_STEERING_VARIABLES)}
    own = {option.name: option.value for option in get_system(system).process_variables(defaults=defaults)}
    return {**inherited, "TMPDIR": str(scratch), **own}


def group_members(group: int) -> list[int]:
    """Process ids whose group is `group`."""
    found = []
    for entry in os.scandir("/proc"):
        if entry.name.isdigit():
            try:
                fields = Path(entry.path, "stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue
            if int(fields[2]) == group:
                found.append(int(entry.name))
    return found


def memory_of(group: int) -> Memory:
    """What the processes of a group hold; nothing of one that is gone."""
    members = group_members(group)
    rolled = [_kernel_bytes(pid, "smaps_rollup") for pid in members]
    status = [_kernel_bytes(pid, "status") for pid in members]
    return Memory(
        sum(one.get("VmRSS", 0) for one in status),
        sum(one.get("VmHWM", 0) for one in status),
        sum(one.get("Pss", 0) for one in rolled),
        sum(one.get("Pss_Anon", 0) for one in rolled),
        sum(one.get("AnonHugePages", 0) for one in rolled),
    )


def proportional_bytes(pid: int) -> int:
    """Proportional set size of a process in bytes; 0 where it is gone or hidden."""
    return _kernel_bytes(pid, "smaps_rollup").get("Pss", 0)


def _kernel_bytes(pid: int, file: Literal["smaps_rollup", "status"]) -> dict[str, int]:
    """The lines in kB of a file of /proc, in bytes; empty where the process is gone or hidden."""
    try:
        text = Path(f"/proc/{pid}/{file}").read_text()
    except OSError:
        return {}
    return {name: int(number) * 1024 for name, number in _KILOBYTES.findall(text)}
