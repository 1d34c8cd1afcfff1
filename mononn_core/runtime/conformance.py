"""Runs the conformance kernel: on this machine's GPU, or on the emulator in two orders of its threads."""

from __future__ import annotations

import ctypes
from pathlib import Path
from typing import Any

import numpy as np

from mononn_core.emulate import conformance as kernel
from mononn_core.runtime.cuda import check_driver, device_errors, import_cupy
from mononn_core.runtime.cuda_device import present
from mononn_core.runtime.cuda_toolchain import compile_cubin
from mononn_core.vocabulary import FOLDER

VOCABULARY = FOLDER / "mononn_ptx.cuh"


def conformance(on_gpu: bool, output: Path | None = None) -> dict[str, Any]:
    """Each primitive's standing against the emulator's table.

    Args:
        on_gpu: run on the GPU; else the emulator is compared with itself under another schedule.
        output: where a GPU's outputs are kept (npz).

    Returns:
        "primitives": name to standing; "different": those that are not as the emulator has them.

    Raises:
        DeviceError: there is no GPU, or it refuses the kernel.
        ToolchainError: no compiler, for the GPU or for the emulator.
    """
    found = run_on_gpu() if on_gpu else kernel.emulated("reversed")
    if on_gpu and output is not None:
        kernel.save(output, found)
    standing = kernel.compare(kernel.emulated(), found)
    different = [name for name, text in standing.items() if text not in (kernel.CONFIRMED, kernel.UNCONFIRMED)]
    return {"primitives": standing, "different": different}


def run_on_gpu() -> dict[str, np.ndarray]:
    """The sections as this GPU computes them."""
    device, cupy = check_driver(present()), import_cupy()
    headers = {VOCABULARY.name: VOCABULARY.read_text(encoding="utf-8")}
    code = compile_cubin(kernel.source(), headers, device.arch).code
    with device_errors("running the conformance kernel"):
        module = cupy.cuda.function.Module()
        module.load(code)
        function = module.get_function(kernel.KERNEL)
        out = cupy.zeros(kernel.OUT_WORDS, cupy.uint32)
        sync, once = cupy.zeros(kernel.SYNC_WORDS, cupy.uint32), cupy.zeros(1, cupy.uint64)
        given = cupy.asarray(kernel.inputs())
        words = (ctypes.c_uint64 * 4)(*(array.data.ptr for array in (out, given, sync, once)))
        parameters = (ctypes.c_void_p * 1)(ctypes.addressof(words))
        grid, block = (kernel.BLOCKS, 1, 1), (kernel.THREADS, 1, 1)
        stream = cupy.cuda.get_current_stream()
        cupy.cuda.driver.launchCooperativeKernel(
            function.ptr, *grid, *block, kernel.SHARED_BYTES, stream.ptr, ctypes.addressof(parameters)
        )
        stream.synchronize()
        return kernel.split(out.get(), once.get())
