"""GSPC, a schedule for convolutions in groups, on a model that is one such convolution.

Gibson, Cano, Turner, Crowley, O'Boyle and Storkey, "Optimizing Grouped Convolutions on Edge Devices", ASAP 2020
(arXiv 2006.09791). Its authors have it as a template of TVM; here it is a C++ kernel (kernels/gspc.cpp), specialised to
the layer by the clang of the ziglang wheel. It shares no code with mononn.
"""

from __future__ import annotations

import ctypes
import subprocess
import sys
import tempfile
import weakref
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from mononn_bench.errors import SystemUnavailableError
from mononn_bench.record import Option
from mononn_bench.systems.base import Arrays, Built, System, Task, require_cpu

KERNELS = Path(__file__).with_name("kernels")
SHARED, PARAMETERS = "layer.so", "parameters.npz"
PAPER = "Gibson et al. 2020: Optimizing Grouped Convolutions on Edge Devices"
PUBLISHED = "2020"
"""Of the schedule, which has no version."""
FLAGS = (
    "-O3", "-mcpu=native", "-ffp-contract=fast", "-std=c++20", "-fPIC", "-fvisibility=hidden", "-fno-exceptions",
    "-fno-rtti", "-fno-sanitize=undefined", "-Xclang", "-O3", "-g0",
)  # fmt: skip
NO_RECIPE = "this adapter has GSPC in fp32 alone"
LACKS = {"bf16": NO_RECIPE, "int8": NO_RECIPE}
REFUSAL = "GSPC is a schedule of one convolution: this model is not one Conv node"


class CompilationError(Exception):
    """The compiler refused the kernel; the message holds what it printed."""


@dataclass(frozen=True)
class Layer:
    """One convolution: x [n, c, h, w] with weights [k, c / groups, kh, kw] and bias [k]; strides are (down, across),
    padding is (top, left, bottom, right).
    """

    x: tuple[int, ...]
    weights: NDArray[np.float32]
    bias: NDArray[np.float32]
    groups: int
    strides: tuple[int, ...]
    padding: tuple[int, ...]

    def sizes(self, workers: int) -> dict[str, int]:
        """What the kernel is specialised to, by the names that it has for them; channels are those of one group."""
        n, _, h, w = self.x
        k, c, kh, kw = self.weights.shape
        image = {"N": n, "G": self.groups, "C": c, "K": k // self.groups, "H": h, "W": w, "KH": kh, "KW": kw}
        steps = dict(zip(("SH", "SW"), self.strides, strict=True))
        border = dict(zip(("TOP", "LEFT", "BOTTOM", "RIGHT"), self.padding, strict=True))
        return {**image, **steps, **border, "WORKERS": workers}


class Gspc(System):
    """Weights packed when the layer is loaded; input packed, and output unpacked row by row, in each run.

    `layout=packed`: input and output have GSPC's layouts, as between layers that keep them, and what packs and unpacks
    is not timed.
    """

    name: ClassVar[str] = "gspc"
    environment: ClassVar[str] = "mononn"
    family: ClassVar[str] = "gspc"
    data: ClassVar[Path | None] = KERNELS
    variants: ClassVar[Mapping[str, tuple[str, ...]]] = {"layout": ("packed", "nchw")}
    load_only: ClassVar[frozenset[str]] = System.load_only | {"layout"}

    def __init__(self) -> None:
        self._library: Any = None
        self._layer: Any = None
        self._weights: Arrays = {}
        self._outputs: Arrays = {}
        self._inputs: Arrays = {}

    @property
    def _packed(self) -> bool:
        return self.chosen.get("layout") == "packed"

    def probe(self) -> dict[str, str]:
        try:
            return {"gspc": PUBLISHED, "ziglang": version("ziglang")}
        except PackageNotFoundError as error:
            raise SystemUnavailableError("ziglang, whose compiler makes GSPC's kernel, is not installed") from error

    def options(self, task: Task) -> tuple[Option, ...]:
        layout = "packed before and after" if self._packed else "NCHW, packed in the run"
        return (
            Option("schedule", "conv2d_NCHWc of groups", PAPER),
            Option("layout", layout, PAPER),
            Option("compiler", "-O3 -mcpu=native", PAPER),
            Option("threads", str(task.threads), PAPER),
        )

    def build(self, task: Task) -> Built:
        """Raises SystemUnavailableError for any other precision or target, and unless the model is one Conv of four
        axes and float32, its weights stored and its dilations 1.
        """
        require_cpu(task, self.name, LACKS)
        layer = read_layer(task)
        shared = (task.build_folder / SHARED).resolve()
        compile_kernel(layer.sizes(task.threads), shared)
        np.savez(task.build_folder / PARAMETERS, weights=layer.weights, bias=layer.bias)
        four = (ctypes.c_long * 4)()
        ctypes.CDLL(str(shared)).gspc_layout(four)
        return Built(details=dict(zip(("ic", "oc", "tile", "lanes"), four, strict=True)))

    def load(self, task: Task) -> None:
        self._library = ctypes.CDLL(str((task.build_folder / SHARED).resolve()))
        self._library.gspc_create.restype = ctypes.c_void_p
        with np.load(task.build_folder / PARAMETERS) as stored:
            self._weights = {name: stored[name] for name in ("weights", "bias")}
        (output,) = task.model.outputs
        self._outputs = {output.name: np.zeros(output.shape, np.float32)}

    def bind(self, inputs: Arrays) -> None:
        (x,), (y,) = inputs.values(), self._outputs.values()
        pointers = [_pointer(array) for array in (x, y, *self._weights.values())]
        layer = ctypes.c_void_p(self._library.gspc_create(*pointers, ctypes.c_bool(self._packed)))
        weakref.finalize(self, self._library.gspc_destroy, layer)
        self._inputs, self._layer, self._run = inputs, layer, self._library.gspc_run
        self.upload()

    def upload(self) -> None:
        if self._packed:
            self._library.gspc_pack(self._layer)

    def run(self) -> None:
        self._run(self._layer)

    def outputs(self) -> Arrays:
        if self._packed:
            self._library.gspc_unpack(self._layer)
        return self._outputs


def _pointer(array: NDArray[Any]) -> ctypes.c_void_p:
    return ctypes.c_void_p(array.ctypes.data)


def compile_kernel(sizes: Mapping[str, int], shared: Path) -> None:
    """The kernel for a layer of these sizes (see `Layer.sizes`) as a shared object.

    It is compiled and linked in two steps without any library: what it needs of the C library is in every process.
    Raises CompilationError.
    """
    zig = [sys.executable, "-m", "ziglang"]
    defines = [f"-DGSPC_{name}={value}" for name, value in sizes.items()]
    with tempfile.TemporaryDirectory(prefix="gspc-") as name:
        work = Path(name)
        _call([*zig, "c++", *FLAGS, *defines, "-c", str(KERNELS / "gspc.cpp"), "-o", "layer.o"], work)
        _call([*zig, "ld.lld", "-shared", "layer.o", "-o", str(shared)], work)


def _call(command: Sequence[str], folder: Path) -> None:
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    if done.returncode:
        raise CompilationError(f"the kernel cannot be compiled: {done.stderr.strip()[:300]}")


def read_layer(task: Task) -> Layer:
    """The model's only node. Raises SystemUnavailableError unless it is a convolution that the kernel has."""
    import onnx
    from onnx import numpy_helper

    model = onnx.load(task.onnx)
    nodes, stored = model.graph.node, {t.name: numpy_helper.to_array(t) for t in model.graph.initializer}
    if [(node.op_type, node.domain) for node in nodes] != [("Conv", "")]:
        raise SystemUnavailableError(REFUSAL)
    (node,) = nodes
    names = [name for name in node.input if name]
    if names[0] in stored or any(name not in stored for name in names[1:]):
        raise SystemUnavailableError(f"{REFUSAL} of stored weights")
    (x,) = (tensor for tensor in task.model.inputs if tensor.name == names[0])
    weights, *bias = (stored[name] for name in names[1:])
    given = {a.name: onnx.helper.get_attribute_value(a) for a in node.attribute}
    padded = given.get("auto_pad", b"NOTSET") in (b"NOTSET", b"VALID")
    plain = set(given.get("dilations", [1])) == {1} and padded
    if weights.ndim != 4 or weights.dtype != np.float32 or not plain:
        raise SystemUnavailableError(f"{REFUSAL} of two dimensions in float32 with explicit padding and no dilation")
    return Layer(
        x=x.shape,
        weights=weights,
        bias=bias[0] if bias else np.zeros(len(weights), np.float32),
        groups=given.get("group", 1),
        strides=tuple(given.get("strides", [1, 1])),
        padding=tuple(given.get("pads", [0, 0, 0, 0])),
    )
