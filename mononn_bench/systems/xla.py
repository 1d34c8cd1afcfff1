"""XLA: the operators our importer makes of an ONNX file, on jax.numpy, compiled as one function ahead of time.

Convolutions and poolings go to XLA's own operators. Weights of products and tables that are gathered from are
arguments, as JAX programs have them: XLA reads them as they lie. All others are constants of the executable, so that
XLA may lay them out as it likes. The row says "through mononn's importer", for JAX itself reads no ONNX.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from mononn_bench.errors import SystemUnavailableError
from mononn_bench.record import Option
from mononn_bench.systems.base import Arrays, Built, System, Task, require_precision

EXECUTABLE, WEIGHTS = "executable.bin", "weights.npz"
READ_IN_PLACE = frozenset({"matmul", "gather"})
"""Operators whose weights XLA reads as they lie, and from how many bytes on one is an argument."""
LEAST_BYTES = 1024
LACKS = {
    "bf16": "this adapter has no recipe for JAX in bf16",
    "int8": "this adapter has no recipe for JAX in int8",
}
FLAGS = {
    "vectors512": "--xla_cpu_prefer_vector_width=512",
    "onednn": "--xla_cpu_use_onednn=true",
}


class Xla(System):
    """jax.jit lowered and compiled once; rounds load the serialised executable."""

    name: ClassVar[str] = "xla"
    environment: ClassVar[str] = "xla"
    cuda_environment: ClassVar[str] = "xla-cuda"
    on_cuda: ClassVar[tuple[str, ...]] = ("xla",)
    family: ClassVar[str] = "xla"
    more_sources: ClassVar[tuple[Path, ...]] = (Path(__file__).parents[2] / "mononn_core",)
    variants: ClassVar[Mapping[str, tuple[str, ...]]] = {"flags": tuple(FLAGS)}

    has_defaults: ClassVar[bool] = True

    @classmethod
    def process_variables(cls, *, defaults: bool = False) -> tuple[Option, ...]:
        flags = FLAGS.get(cls.chosen.get("flags", ""), "")
        own = (Option("XLA_FLAGS", flags, "OpenXLA: XLA Flags Guidance"),) if flags else ()
        return (*super().process_variables(defaults=defaults), *own)

    def __init__(self) -> None:
        self._call: Any = None
        self._weights: list[Any] = []
        self._inputs: Arrays = {}
        self._arguments: Sequence[Any] = ()
        self._names: list[str] = []
        self._result: Any = None
        self._device: Any = None

    def probe(self) -> dict[str, str]:
        try:
            import jax
            import jaxlib
        except ImportError as error:
            raise SystemUnavailableError(f"JAX cannot be imported: {error}") from error
        return {"jax": jax.__version__, "jaxlib": jaxlib.__version__}

    def options(self, task: Task) -> tuple[Option, ...]:
        graph = Option("graph", "through mononn's importer", "JAX has no ONNX reader of its own")
        if task.defaults:
            return (graph,)
        return (
            graph,
            Option("jit, lower, compile", "one executable", "JAX: Ahead-of-time lowering and compilation"),
            Option("weights of products and tables", "arguments", "JAX: Ahead-of-time lowering and compilation"),
            Option("other weights", "constants of the executable", "JAX: Ahead-of-time lowering, constants"),
            Option("serialize_executable", "kept between rounds", "JAX: jax.experimental.serialize_executable"),
            Option("jax_default_matmul_precision", "highest", "JAX: jax.default_matmul_precision"),
            Option("threads", str(task.threads), "XLA: CPU client, one thread a schedulable core"),
        )

    def build(self, task: Task) -> Built:
        require_precision(task, self.name, LACKS)
        self._prepare(task)
        import jax
        from jax.experimental.serialize_executable import serialize

        from mononn_core import importer

        graph = importer.load(str(task.onnx), {})
        shapes = [jax.ShapeDtypeStruct(t.shape, t.dtype) for t in task.model.inputs]
        names = [tensor.name for tensor in task.model.inputs]
        weights = weights_in_place(graph)
        rest = replace(graph, constants={n: c for n, c in graph.constants.items() if n not in weights})

        network = jax.jit(lambda *arrays: run_graph(rest, dict(zip((*weights, *names), arrays, strict=True))))
        compiled = network.lower(*weights.values(), *shapes).compile()
        (task.build_folder / EXECUTABLE).write_bytes(serialize(compiled)[0])
        np.savez(task.build_folder / WEIGHTS, *weights.values())
        return Built()

    def load(self, task: Task) -> None:
        self._prepare(task)
        import jax
        from jax.experimental.serialize_executable import deserialize_and_load

        payload = (task.build_folder / EXECUTABLE).read_bytes()
        self._names = [tensor.name for tensor in task.model.outputs]
        with np.load(task.build_folder / WEIGHTS) as stored:
            self._weights = [jax.device_put(stored[name], self._device) for name in stored.files]
        jax.block_until_ready(self._weights)
        arguments = jax.tree_util.tree_structure(((*self._weights, *task.model.inputs), {}))
        results = jax.tree_util.tree_structure([0] * len(self._names))
        self._call = deserialize_and_load(payload, arguments, results, execution_devices=[self._device])

    def bind(self, inputs: Arrays) -> None:
        self._inputs = inputs
        self._arguments = tuple(inputs.values())

    def upload(self) -> None:
        if self._device.platform != "cpu":
            import jax

            self._arguments = jax.block_until_ready(jax.device_put(list(self._inputs.values()), self._device))

    def run(self) -> None:
        self._result = self._call(*self._weights, *self._arguments)
        for array in self._result:
            array.block_until_ready()

    def outputs(self) -> Arrays:
        return {name: np.asarray(array) for name, array in zip(self._names, self._result, strict=True)}

    def _prepare(self, task: Task) -> None:
        import jax

        jax.config.update("jax_enable_x64", True)
        if not task.defaults:
            jax.config.update("jax_default_matmul_precision", "highest")
        jax.config.update("jax_platforms", task.target)
        self._device = jax.devices()[0]


def weights_in_place(graph: Any) -> Arrays:
    """The constants of a Graph that become arguments."""
    readers = graph.consumers()
    large = {name: np.asarray(value) for name, value in graph.constants.items() if value.nbytes >= LEAST_BYTES}
    return {
        name: value
        for name, value in large.items()
        if name not in graph.outputs and {reader.op for reader in readers.get(name, ())} <= READ_IN_PLACE
    }


@dataclass(frozen=True)
class Windows:
    """Sliding windows not made yet: a reduction over them alone is one XLA operator."""

    x: Any
    attrs: Mapping[str, Any]

    @property
    def taps(self) -> tuple[int, ...]:
        """The axes of the windows' own elements."""
        return tuple(range(self.attrs["axis"], self.attrs["axis"] + len(self.attrs["kernel"])))


def run_graph(graph: Any, values: dict[str, Any]) -> list[Any]:
    """The outputs of a Graph (mononn_core.graph) on jax.numpy; `values` holds an array for every graph input."""
    import jax.numpy as jnp

    from mononn_core import ops

    values = {**graph.constants, **values}
    pooled = _pooled(graph)
    for node in graph.nodes:
        arguments = [values[name] if name else None for name in node.inputs]
        if node.op == "windows" and node.output in pooled:
            values[node.output] = Windows(arguments[0], node.attrs)
        elif node.op == "conv":
            values[node.output] = convolve(arguments[0], arguments[1], node.attrs)
        elif arguments and isinstance(arguments[0], Windows):
            values[node.output] = pool(arguments[0], node.op)
        else:
            arrays = [a if a is None else jnp.asarray(a) for a in arguments]
            values.update(zip(node.outputs, ops.get(node.op).evaluate(jnp, arrays, node.attrs), strict=True))
    return [jnp.asarray(values[name]) for name in graph.outputs]


def convolve(x: Any, w: Any, attrs: Mapping[str, Any]) -> Any:
    """The operator `conv`: x [N, H, W, C], w [KH, KW, C / group, M] -> [N, OH, OW, M]."""
    from jax import lax

    return lax.conv_general_dilated(
        x, w, attrs["strides"], "VALID", rhs_dilation=attrs["dilations"],
        dimension_numbers=("NHWC", "HWIO", "NHWC"), feature_group_count=attrs["group"],
    )  # fmt: skip


def pool(windows: Windows, op: str) -> Any:
    """A maximum, sum or mean over all elements of each window."""
    from jax import lax

    x, attrs, kernel = windows.x, windows.attrs, windows.attrs["kernel"]
    lead, tail = attrs["axis"], x.ndim - attrs["axis"] - len(kernel)

    def every_axis(sizes: Sequence[int]) -> tuple[int, ...]:
        return (*(1,) * lead, *sizes, *(1,) * tail)

    largest = op == "reduce_max"
    start: Any = (-np.inf if np.issubdtype(x.dtype, np.floating) else np.iinfo(x.dtype).min) if largest else 0
    combine: Callable[[Any, Any], Any] = lax.max if largest else lax.add
    result = lax.reduce_window(
        x, np.asarray(start, x.dtype), combine, every_axis(kernel), every_axis(attrs["strides"]), "VALID",
        window_dilation=every_axis(attrs["dilations"]),
    )  # fmt: skip
    return result / np.asarray(prod(kernel), x.dtype) if op == "reduce_mean" else result


def _pooled(graph: Any) -> set[str]:
    """Outputs of `windows` whose every reader is a maximum, sum or mean over all elements of each window."""
    readers = graph.consumers()
    found = set()
    for node in graph.nodes:
        if node.op == "windows" and node.output not in graph.outputs:
            taps = Windows(None, node.attrs).taps
            if all(_reduces(reader, taps) for reader in readers.get(node.output, ())):
                found.add(node.output)
    return found


def _reduces(node: Any, taps: tuple[int, ...]) -> bool:
    known = node.op in ("reduce_max", "reduce_sum", "reduce_mean")
    return known and tuple(node.attrs["axes"]) == taps and not node.attrs.get("keepdims")
