"""A compiled function without its host: the test says which worker enters it, and when."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping

import numpy as np

from mononn_core.program import abi
from mononn_core.runtime.artifact import Artifact
from mononn_core.runtime.cpu import Code


def zeroed(size: int) -> np.ndarray:
    """So many bytes from an address that is a multiple of 64 on."""
    whole = np.zeros(size + 64, np.uint8)
    return whole[-whole.ctypes.data % 64 :][:size]


class Entry:
    """The function of ``artifact`` for so many workers. Workers that share nothing but ``call`` enter it one by one."""

    def __init__(self, artifact: Artifact, workers: int) -> None:
        self.manifest = artifact.manifest
        self.code = Code(artifact, share_weights=False)
        (library,) = self.code.libraries
        self.function = getattr(library.functions, abi.ENTRY)
        sizes = {
            "sync": 2 * workers * abi.CACHE_LINE,
            "counters": max(self.manifest["counters"], 1) * abi.CACHE_LINE,
            "arena": self.manifest["arena_bytes"],
            "scratch": workers * self.manifest["scratch_bytes"],
            "error": 8,
        }
        self.memory = {name: zeroed(size) for name, size in sizes.items()}
        addresses = {name: array.ctypes.data for name, array in self.memory.items()}
        self.call = abi.Call(
            abi_version=abi.ABI_VERSION, workers=workers, weights=self.code.weights.address, **addresses
        )

    def prepare(self, inputs: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """A new run: the outputs that it will write, zero so far."""
        self.inputs = [np.ascontiguousarray(inputs[i["name"]]) for i in self.manifest["inputs"]]
        outputs = {o["name"]: np.zeros(o["shape"], o["dtype"]) for o in self.manifest["outputs"]}
        self.arrays = [(ctypes.c_void_p * len(a))(*(x.ctypes.data for x in a)) for a in (self.inputs, outputs.values())]
        self.call.inputs, self.call.outputs = (ctypes.cast(a, ctypes.c_void_p) for a in self.arrays)
        self.call.epoch += 1
        return outputs

    def __call__(self, worker: int) -> int:
        """Enters as that worker and returns what the function returns."""
        return int(self.function(ctypes.byref(self.call), worker))
