"""The NVIDIA GPU of this machine, asked through the driver without any package."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass

from mononn_core.errors import DeviceError

MAJOR, MINOR = 75, 76
"""CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR and _MINOR (CUDA Driver API)."""
SPECIFIC = {"sm_90": "sm_90a"}
"""Architectures whose code is made with the features that only they have."""


@dataclass(frozen=True)
class Present:
    """The first GPU: its name, its architecture as code for it is named, and the CUDA version its driver knows."""

    name: str
    arch: str
    driver_cuda: tuple[int, int]


def present() -> Present:
    """The first GPU of this machine.

    Raises:
        DeviceError: there is no driver, or no GPU.
    """
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError as error:
        raise DeviceError(
            "no NVIDIA driver is here (libcuda.so.1 cannot be loaded); run on a machine with an NVIDIA GPU, or use the "
            'target "cuda-emulated"'
        ) from error
    status = driver.cuInit(0)
    if status:
        raise DeviceError(f"no NVIDIA GPU can be used here (the driver says error {status}); check nvidia-smi")
    version, device, name = ctypes.c_int(), ctypes.c_int(), ctypes.create_string_buffer(128)
    driver.cuDriverGetVersion(ctypes.byref(version))
    if driver.cuDeviceGet(ctypes.byref(device), 0) or driver.cuDeviceGetName(name, len(name), device):
        raise DeviceError("the NVIDIA driver lists no GPU; check nvidia-smi and CUDA_VISIBLE_DEVICES")
    digits = []
    for attribute in (MAJOR, MINOR):
        value = ctypes.c_int()
        driver.cuDeviceGetAttribute(ctypes.byref(value), attribute, device)
        digits.append(value.value)
    arch = f"sm_{digits[0]}{digits[1]}"
    cuda = (version.value // 1000, version.value % 1000 // 10)
    return Present(name.value.decode(), SPECIFIC.get(arch, arch), cuda)


def present_gpu() -> Present | None:
    """The first GPU; None where there is none."""
    try:
        return present()
    except DeviceError:
        return None
