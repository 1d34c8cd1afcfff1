"""Preflight: in seconds, whether a GPU does the least that every network needs, before minutes are spent on one."""

from __future__ import annotations

import struct
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from mononn_core import emulate
from mononn_core.emulate.errors import EmulationError
from mononn_core.errors import DeviceError
from mononn_core.runtime.cuda import Arguments, check_driver, device_errors, import_cupy
from mononn_core.runtime.cuda_device import present
from mononn_core.runtime.cuda_toolchain import compile_cubin
from mononn_core.vocabulary import cuda_headers

KERNEL, THREADS, SYNC_BYTES = "mononn_preflight", 128, 128
EMULATED_BLOCKS = 4
NOWHERE = 16
"""An address at which nothing ever lies."""
Run = Callable[[int], np.ndarray]


def preflight(on_gpu: bool) -> dict[str, Any]:
    """Compile and load a kernel, launch it over the whole GPU at once, let its blocks meet at a barrier, and see that a
    store to nowhere becomes an error. On a GPU the fault leaves this process unable to use it any more.

    Args:
        on_gpu: on this machine's GPU; else on the emulator.

    Returns:
        "blocks" of the launch; "load_s", compiling and loading; "run_s", the first run; "fault", how the error reads.

    Raises:
        DeviceError: there is no GPU, it refuses the kernel, the barrier does not hold, or the fault goes unnoticed.
        ToolchainError: no compiler.
    """
    clock = [time.perf_counter()]
    run, blocks = _on_gpu() if on_gpu else _emulated()
    clock.append(time.perf_counter())
    found = run(0)
    clock.append(time.perf_counter())
    left = 3 * np.arange(blocks, dtype=np.uint32) + 1
    if not np.array_equal(found, np.concatenate([left, np.full(blocks, left.sum(dtype=np.uint32))])):
        raise DeviceError("blocks went through a barrier of the grid before others had come to it; report this GPU")
    try:
        run(NOWHERE)
    except (DeviceError, EmulationError) as error:
        fault = str(error)
    else:
        raise DeviceError(f"a kernel's store to address {NOWHERE} was not reported; no error of a kernel would be")
    return {"blocks": blocks, "load_s": clock[1] - clock[0], "run_s": clock[2] - clock[1], "fault": fault}


def source() -> str:
    """The kernel's CUDA C++; it includes "mononn_cuda.cuh"."""
    return (Path(emulate.__file__).parent / "preflight.cuh").read_text(encoding="utf-8")


def _emulated() -> tuple[Run, int]:
    built, blocks = emulate.build(source()), EMULATED_BLOCKS

    def run(address: int) -> np.ndarray:
        out, sync = np.zeros(2 * blocks, np.uint32), np.zeros(SYNC_BYTES, np.uint8)
        watch = [emulate.Watch(a.ctypes.data, a.nbytes, name) for name, a in (("out", out), ("sync", sync))]
        words = struct.pack("<2Q", out.ctypes.data, sync.ctypes.data)
        built.launch(KERNEL, words, blocks, THREADS, iteration=address, watch=watch)
        return out

    return run, blocks


def _on_gpu() -> tuple[Run, int]:
    device, cupy = check_driver(present()), import_cupy()
    code = compile_cubin(source(), cuda_headers(), device.arch).code
    runtime = cupy.cuda.runtime
    with device_errors("loading the preflight kernel"):
        module = cupy.cuda.function.Module()
        module.load(code)
        function = module.get_function(KERNEL)
        blocks = int(runtime.deviceGetAttribute(runtime.cudaDevAttrMultiProcessorCount, runtime.getDevice()))

    def run(address: int) -> np.ndarray:
        with device_errors("running the preflight kernel"):
            out, sync = cupy.zeros(2 * blocks, cupy.uint32), cupy.zeros(SYNC_BYTES, cupy.uint8)
            arguments = Arguments(struct.pack("<2Q", out.data.ptr, sync.data.ptr), address)
            stream = cupy.cuda.get_current_stream()
            cupy.cuda.driver.launchCooperativeKernel(
                function.ptr, blocks, 1, 1, THREADS, 1, 1, 0, stream.ptr, arguments.address
            )
            stream.synchronize()
            found: np.ndarray = out.get()
            return found

    return run, blocks
