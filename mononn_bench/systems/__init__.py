"""The systems the suite knows. Adding one is a file here, a line in this list and a file under envs/."""

from __future__ import annotations

from mononn_bench.errors import UnknownNameError
from mononn_bench.systems.base import System
from mononn_bench.systems.fake import FAKES
from mononn_bench.systems.mononn import Mononn
from mononn_bench.systems.onnxruntime import OnnxRuntime
from mononn_bench.systems.openvino import OpenVino
from mononn_bench.systems.torch_eager import TorchEager
from mononn_bench.systems.torch_inductor import TorchInductor

REAL: tuple[type[System], ...] = (Mononn, OnnxRuntime, OpenVino, TorchEager, TorchInductor)
"""What a comparison names, ours first."""

SYSTEMS: dict[str, type[System]] = {system.name: system for system in (*REAL, *FAKES)}
"""All of them, those for tests included."""

OURS = Mononn.name


def get_system(name: str) -> type[System]:
    """The adapter of that name; UnknownNameError names the nearest right one."""
    if name not in SYSTEMS:
        raise UnknownNameError("system", name, (system.name for system in REAL))
    return SYSTEMS[name]
