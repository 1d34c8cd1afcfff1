"""What an adapter needs of an NVIDIA GPU's runtime: whether one is there, buffers, a captured graph."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from numpy.typing import NDArray

from mononn_bench.errors import SystemUnavailableError
from mononn_bench.systems.base import DeviceCall, Task

NO_GPU = "no NVIDIA GPU"
QUERY = ("--query-gpu=name,driver_version,compute_cap,memory.total", "--format=csv,noheader,nounits")


@dataclass(frozen=True)
class Gpu:
    """A GPU as its driver describes it; memory in 2^20 bytes."""

    name: str
    driver: str
    compute_capability: str
    memory_mib: int


def find_gpus() -> tuple[Gpu, ...]:
    """Every GPU that nvidia-smi lists; none where there is no driver."""
    tool = shutil.which("nvidia-smi")
    if tool is None:
        return ()
    done = subprocess.run([tool, *QUERY], capture_output=True, text=True, check=False, timeout=60)
    rows = [[field.strip() for field in line.split(",")] for line in done.stdout.splitlines()]
    return tuple(Gpu(row[0], row[1], row[2], int(row[3])) for row in rows if done.returncode == 0 and len(row) == 4)


def require_gpu() -> None:
    """Raises SystemUnavailableError on a machine without an NVIDIA GPU."""
    if not find_gpus():
        raise SystemUnavailableError(NO_GPU)


def require_cuda_task(task: Task, system: str) -> None:
    """Raises SystemUnavailableError unless the task is fp32 on an NVIDIA GPU."""
    if task.target != "cuda" or task.precision != "fp32":
        raise SystemUnavailableError(
            f"{system} is set up here for fp32 on an NVIDIA GPU, not {task.precision} on {task.target}"
        )


class CudaError(RuntimeError):
    """A call of the CUDA runtime that did not succeed."""


def checked(result: tuple[Any, ...]) -> Any:
    """The value of a call of cuda.bindings.runtime; raises CudaError where its status is not success."""
    status, *values = result
    if int(status) != 0:
        raise CudaError(f"{status.name} ({int(status)}): see the CUDA runtime's error list, and the log")
    return values[0] if len(values) == 1 else tuple(values)


class Device:
    """Device buffers by name, a stream, and one captured graph."""

    def __init__(self) -> None:
        from cuda.bindings import runtime

        self._runtime = runtime
        self._graph: Any = None
        self.stream = checked(runtime.cudaStreamCreate())
        self.buffers: dict[str, int] = {}

    def allocate(self, name: str, nbytes: int) -> int:
        """The address of a new device buffer."""
        self.buffers[name] = checked(self._runtime.cudaMalloc(max(1, nbytes)))
        return self.buffers[name]

    def upload(self, name: str, array: NDArray[Any]) -> None:
        """Copy a C-contiguous host array into its buffer, finished on return."""
        to_device = self._runtime.cudaMemcpyKind.cudaMemcpyHostToDevice
        checked(self._runtime.cudaMemcpy(self.buffers[name], array.ctypes.data, array.nbytes, to_device))

    def download(self, name: str, array: NDArray[Any]) -> None:
        """Copy a buffer into a C-contiguous host array, finished on return."""
        to_host = self._runtime.cudaMemcpyKind.cudaMemcpyDeviceToHost
        checked(self._runtime.cudaMemcpy(array.ctypes.data, self.buffers[name], array.nbytes, to_host))

    def capture(self, enqueue: Callable[[], None]) -> None:
        """Have `enqueue`'s work on the stream as a graph; it must have run once before."""
        mode = self._runtime.cudaStreamCaptureMode.cudaStreamCaptureModeThreadLocal
        checked(self._runtime.cudaStreamBeginCapture(self.stream, mode))
        enqueue()
        graph = checked(self._runtime.cudaStreamEndCapture(self.stream))
        self._graph = checked(self._runtime.cudaGraphInstantiate(graph, 0))

    def launch(self) -> None:
        """Run the graph, and wait for it."""
        self._enqueue()
        self.wait()

    def on_device(self) -> DeviceCall:
        """The stream, and the graph's launch without its end."""
        return DeviceCall(int(self.stream), self._enqueue)

    def _enqueue(self) -> None:
        checked(self._runtime.cudaGraphLaunch(self._graph, self.stream))

    def wait(self) -> None:
        """Wait for everything on the stream."""
        checked(self._runtime.cudaStreamSynchronize(self.stream))
