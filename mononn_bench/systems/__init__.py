"""The systems the suite knows. Adding one is a file here, a line in this list and a file under envs/."""

from __future__ import annotations

from functools import cache

from mononn_bench.errors import BadOptionError, UnknownNameError
from mononn_bench.systems.base import COMMON_VARIANTS, System
from mononn_bench.systems.fake import FAKES
from mononn_bench.systems.gspc import Gspc
from mononn_bench.systems.litert import LiteRt
from mononn_bench.systems.mnn import Mnn
from mononn_bench.systems.mononn import Mononn
from mononn_bench.systems.onnxruntime import OnnxRuntime
from mononn_bench.systems.onnxruntime_gpu import OnnxRuntimeCuda, OnnxRuntimeTensorRt
from mononn_bench.systems.openvino import OpenVino
from mononn_bench.systems.tensorrt import TensorRt
from mononn_bench.systems.torch_eager import TorchEager
from mononn_bench.systems.torch_inductor import TorchInductor
from mononn_bench.systems.tvm import Tvm, TvmUntuned
from mononn_bench.systems.xla import Xla
from mononn_bench.systems.zentorch import ZenTorch

REAL: tuple[type[System], ...] = (
    Mononn, OnnxRuntime, OpenVino, TorchEager, TorchInductor, ZenTorch, Xla, Tvm, TensorRt,
)  # fmt: skip
"""What a comparison names, ours first."""

GPU_ONLY: tuple[type[System], ...] = (OnnxRuntimeCuda, OnnxRuntimeTensorRt)
"""What stands for others in a case on an NVIDIA GPU (`on_cuda`)."""

SUITES_ONLY: tuple[type[System], ...] = (TvmUntuned, Mnn, LiteRt, Gspc)
"""What a suite may name and a plain comparison leaves out."""

SYSTEMS: dict[str, type[System]] = {system.name: system for system in REAL + GPU_ONLY + SUITES_ONLY + FAKES}
"""All of them, those for tests included."""

OURS = Mononn.name


@cache
def get_system(name: str) -> type[System]:
    """The adapter of that name, or of a variant of one: `mononn[launch=phases]` (several with commas between).

    Raises UnknownNameError, which names the nearest right one, and BadOptionError for a variant that is none.
    """
    base, bracket, rest = name.partition("[")
    if base not in SYSTEMS:
        raise UnknownNameError("system", base, (system.name for system in REAL))
    system = SYSTEMS[base]
    if not bracket:
        return system
    pairs = [pair.partition("=") for pair in rest.removesuffix("]").split(",")]
    chosen = {key: value for key, _, value in pairs}
    variants = {**COMMON_VARIANTS, **system.variants}
    known = "; ".join(f"{key}={'|'.join(values)}" for key, values in variants.items())
    if not rest.endswith("]") or any(value not in variants.get(key, ()) for key, value in chosen.items()):
        raise BadOptionError(f"{name!r} is no variant of {base}, which has: {known}. Write {base}[key=value,...].")
    members = {"name": name, "chosen": chosen, "__module__": system.__module__, "__doc__": system.__doc__}
    return type(system.__name__, (system,), members)


def built_as(name: str) -> str:
    """The system or variant whose build `name` runs: without what is chosen at a load alone."""
    system = get_system(name)
    chosen = [f"{key}={value}" for key, value in system.chosen.items() if key not in system.load_only]
    base = name.partition("[")[0]
    return f"{base}[{','.join(chosen)}]" if chosen else base
