"""CUDA through CuPy: cubins of the artifact, buffers of the caller's, one cooperative launch or one graph a run.

CuPy is imported when a session is made, so that files can be inspected without it. The calls of the driver used here
are those of the CUDA Driver API: occupancy, function attributes, cooperative launch.
"""

from __future__ import annotations

import ctypes
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np

from mononn_core.errors import ArtifactError, DeviceError, DeviceHangError, InputError, OptionError
from mononn_core.program import abi
from mononn_core.runtime.artifact import INCLUDED, Artifact
from mononn_core.runtime.base import BaseBinding, TensorInfo, check_apart, check_type
from mononn_core.runtime.cuda_device import Present, present
from mononn_core.runtime.gpu_session import GpuSession, on_one_clock

OLDEST_DRIVER = (12, 0)
"""The oldest CUDA version of a driver that loads cubins as this project's toolchain makes them for sm_90a."""
WATCHDOG_SECONDS = 20.0
SPIN_SECONDS = 2e-3
"""How long the end of a run is polled for without a pause."""
NOT_READY = 600
"""cudaErrorNotReady: of all that cudaEventQuery answers but 0, what is no error (CUDA Runtime API, cudaError)."""
WRONG_IMAGE, TOO_NEW_IMAGE = ("CUDA_ERROR_NO_BINARY_FOR_GPU", "CUDA_ERROR_INVALID_IMAGE"), "UNSUPPORTED_PTX"


class CudaCode:
    """What clones share: the loaded module, its functions by name, the weights on the device."""

    def __init__(self, artifact: Artifact) -> None:
        self.device = check_driver(present())
        self.cupy = import_cupy()
        manifest = artifact.manifest
        self.shared_bytes, self.threads = int(manifest["shared_bytes"]), int(manifest["threads"])
        with device_errors("loading the code"):
            self.module = self.cupy.cuda.function.Module()
            self.module.load(choose_cubin(artifact, self.device))
            names = dict.fromkeys(kernel["name"] for kernel in manifest["kernels"])
            self.functions = {name: self.module.get_function(name) for name in names}
            self.wave = min(self._resident(name) for name in names) if names else 1
        weights = np.frombuffer(artifact.weights, np.uint8) if len(artifact.weights) else np.zeros(128, np.uint8)
        with device_memory(weights.nbytes, "weights"):
            self.weights = self.cupy.asarray(weights)

    def _resident(self, name: str) -> int:
        """Blocks of the kernel that are resident at once on the whole GPU.

        Raises:
            DeviceError: the GPU's shared memory or registers do not hold one block an SM.
        """
        driver, runtime = self.cupy.cuda.driver, self.cupy.cuda.runtime
        device = runtime.getDevice()
        room = runtime.deviceGetAttribute(runtime.cudaDevAttrMaxSharedMemoryPerBlockOptin, device)
        pointer = self.functions[name].ptr
        static = driver.funcGetAttribute(driver.CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES, pointer)
        if self.shared_bytes + static > room:
            raise DeviceError(
                f"the code needs {self.shared_bytes + static} bytes of shared memory a block, {self.device.name} has "
                f"{room}; compile for it: --arch {self.device.arch}"
            )
        driver.funcSetAttribute(pointer, driver.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, self.shared_bytes)
        blocks = driver.occupancyMaxActiveBlocksPerMultiprocessor(pointer, self.threads, self.shared_bytes)
        if blocks < 1:
            raise DeviceError(
                f"no block of {self.threads} threads fits an SM of {self.device.name}; compile for it: "
                f"--arch {self.device.arch}"
            )
        return int(blocks) * int(runtime.deviceGetAttribute(runtime.cudaDevAttrMultiProcessorCount, device))


class CudaBinding(BaseBinding):
    """Device buffers bound once. ``launch`` starts a run on a stream without waiting; ``run`` waits and checks."""

    def __init__(
        self,
        session: CudaSession,
        inputs: dict[str, Any],
        outputs: dict[str, Any],
        hosts: Mapping[str, np.ndarray],
        trace: np.ndarray | None,
    ) -> None:
        cupy = session.code.cupy
        self.inputs, self.outputs = inputs, outputs
        self._session, self._hosts, self._trace = session, hosts, trace
        self._stamps = cupy.zeros((*trace.shape, len(abi.GPU_STAMP)), cupy.uint64) if trace is not None else None
        # Host memory that the GPU can write: only an error ever does, and reading it costs no copy.
        self._error_memory = cupy.cuda.alloc_pinned_memory(8)
        self._error = np.frombuffer(self._error_memory, np.uint64, 1)
        self._error[0] = 0
        stamps = self._stamps.data.ptr if self._stamps is not None else 0
        words = abi.pack_gpu_call(
            session.arena.data.ptr, session.code.weights.data.ptr, session.sync.data.ptr, stamps,
            self._error_memory.ptr, [a.data.ptr for a in inputs.values()], [a.data.ptr for a in outputs.values()],
        )  # fmt: skip
        self._arguments = [Arguments(words, launch.iteration) for launch in session.launches]
        self._graph: Any = None
        self._end = cupy.cuda.Event(disable_timing=True)

    def upload(self) -> None:
        """Copies the present values of inputs that were given in host memory to the device."""
        for name, host in self._hosts.items():
            self.inputs[name].set(host)

    def launch(self, stream: Any = None) -> None:
        """Starts a run on a CuPy stream (default: the current one), in order with what stands there.

        Raises:
            DeviceError: the GPU refused the launch. MononnError: the session is closed.
        """
        self._session.check_open()
        stream = stream or self._session.code.cupy.cuda.get_current_stream()
        with device_errors("launching the kernel"):
            if self._session.info["launch"] == "graph":
                self._captured().launch(stream)
            else:
                self._enqueue(stream)

    def run(self) -> None:
        stream = self._session.code.cupy.cuda.get_current_stream()
        self.launch(stream)
        with device_errors("running the kernel"):
            self._end.record(stream)
            self._wait()
        word = int(self._error[0])
        if word:
            self._error[0] = 0
            raise self._session.explain(word)
        if self._trace is not None and self._stamps is not None:
            self._trace[...] = on_one_clock(self._stamps.get())

    def results(self) -> dict[str, Any]:
        if len(self._hosts) < len(self.inputs):
            return self.outputs
        return {name: array.get() for name, array in self.outputs.items()}

    def _enqueue(self, stream: Any) -> None:
        """The run's launches: one cooperative kernel, or the graph's kernels one after the other."""
        session, driver = self._session, self._session.code.cupy.cuda.driver
        cooperative = session.info["launch"] != "graph"
        shape = (session.workers, 1, 1, session.threads, 1, 1, session.code.shared_bytes, stream.ptr)
        for launch, arguments in zip(session.launches, self._arguments, strict=True):
            pointer = session.code.functions[launch.kernel].ptr
            if cooperative:
                driver.launchCooperativeKernel(pointer, *shape, arguments.address)
            else:
                driver.launchKernel(pointer, *shape, arguments.address, 0)

    def _captured(self) -> Any:
        """The run as one CUDA graph, captured when it is first asked for."""
        if self._graph is None:
            stream = self._session.code.cupy.cuda.Stream(non_blocking=True)
            with stream:
                stream.begin_capture()
                self._enqueue(stream)
                self._graph = stream.end_capture()
        return self._graph

    def _wait(self) -> None:
        """Polls for the end of the run; a kernel that hangs becomes an error, the process can go on without the GPU."""
        limit, runtime = self._session.watchdog_seconds, self._session.code.cupy.cuda.runtime
        started = time.perf_counter()
        while status := runtime.eventQuery(self._end.ptr):
            if status != NOT_READY:
                runtime.check_status(status)
            waited = time.perf_counter() - started
            if waited > limit:
                raise DeviceHangError(
                    f"the kernel did not end within {limit:g} s, and CUDA cannot stop it; end this process, and run "
                    "with a larger watchdog_seconds if it only is that slow"
                )
            if waited > SPIN_SECONDS:
                time.sleep(50e-6)


class Arguments:
    """A kernel's parameters in memory: the call by value, and the iteration that a graph's kernel takes."""

    def __init__(self, words: bytes, iteration: int) -> None:
        self._words = ctypes.create_string_buffer(words, len(words))
        self._iteration = ctypes.c_uint32(iteration)
        self._pointers = (ctypes.c_void_p * 2)(ctypes.addressof(self._words), ctypes.addressof(self._iteration))
        self.address = ctypes.addressof(self._pointers)


class CudaSession(GpuSession):
    """A network on the current GPU of CuPy."""

    def __init__(
        self,
        artifact: Artifact,
        blocks: int | None = None,
        watchdog_seconds: float = WATCHDOG_SECONDS,
        code: CudaCode | None = None,
    ) -> None:
        """
        Args:
            artifact: of target "cuda".
            blocks: of the launch; None for what the schedule counts on, at most one resident wave.
            watchdog_seconds: how long a run may take.
            code: an already loaded one (clones).

        Raises:
            DeviceError: no GPU, a driver that is too old, too little shared memory, or no memory left on the device.
            ArtifactError: there is no machine code for this GPU, and nothing to make it with.
            OptionError: blocks is no positive number, or more than one resident wave.
        """
        super().__init__(artifact)
        self.code = code or CudaCode(artifact)
        self.watchdog_seconds = watchdog_seconds
        self.workers = self._blocks(blocks)
        size = max(int(artifact.manifest["arena_bytes"]), 128)
        with device_memory(size, "activations"):
            self.arena = self.code.cupy.zeros(size, self.code.cupy.uint8)
            self.sync = self.code.cupy.zeros(self.sync_bytes, self.code.cupy.uint8)

    def _blocks(self, asked: int | None) -> int:
        runtime = self.code.cupy.cuda.runtime
        sms = int(runtime.deviceGetAttribute(runtime.cudaDevAttrMultiProcessorCount, runtime.getDevice()))
        if asked is None:
            return min(sms * int(self.artifact.manifest["blocks_per_sm"]), self.code.wave)
        if type(asked) is not int or asked < 1:
            raise OptionError(f"the number of blocks is {asked!r}; give a positive number, or None")
        if asked > self.code.wave:
            raise OptionError(
                f"{asked} blocks are more than the one wave of {self.code.wave} that {self.code.device.name} holds at "
                "once, and a barrier would wait for ever; give fewer, or None"
            )
        return asked

    def bind(
        self, inputs: Mapping[str, Any], outputs: Mapping[str, Any] | None = None, trace: np.ndarray | None = None
    ) -> CudaBinding:
        """As :meth:`BaseSession.bind`. What has ``__cuda_array_interface__``, or ``__dlpack__`` in device memory, is
        read and written in place; host arrays are copied to the device now (again by :meth:`CudaBinding.upload`)."""
        self.check_open()
        given = dict(outputs or {})
        self.choose(inputs, given, trace)
        cupy = self.code.cupy
        hosts = {n: np.ascontiguousarray(v) for n, v in inputs.items() if not on_device(v)}
        read, written = {}, {}
        with device_memory(sum(array.nbytes for array in hosts.values()), "inputs"):
            for name, info in self.inputs.items():
                value = hosts[name] if name in hosts else device_array(cupy, "input", name, inputs[name], info)
                check_type("input", name, value, info)
                read[name] = cupy.asarray(value)
            for name, info in self.outputs.items():
                made = device_array(cupy, "output", name, given[name], info) if name in given else None
                written[name] = cupy.empty(info.shape, info.dtype) if made is None else made
        check_apart(read, {name: written[name] for name in given}, overlap)
        return CudaBinding(self, read, written, hosts, trace)

    def clone(self) -> CudaSession:
        return CudaSession(self.artifact, self.workers, self.watchdog_seconds, self.code)


def import_cupy() -> Any:
    """CuPy with a GPU that it can use.

    Raises:
        DeviceError: it is not installed, or finds no GPU.
    """
    try:
        import cupy
    except ImportError as error:
        raise DeviceError(f"CuPy cannot be imported ({error}); install it: pip install 'mononn[cuda]'") from error
    with device_errors("asking for the GPU"):
        if cupy.cuda.runtime.getDeviceCount() < 1:
            raise DeviceError("CuPy finds no GPU; check nvidia-smi and CUDA_VISIBLE_DEVICES")
    return cupy


def check_driver(device: Present) -> Present:
    """``device``; raises DeviceError where its driver is older than the code needs."""
    if device.driver_cuda < OLDEST_DRIVER:
        have, need = (".".join(map(str, version)) for version in (device.driver_cuda, OLDEST_DRIVER))
        raise DeviceError(f"the NVIDIA driver is too old: it knows CUDA {have}, the code needs {need}; update it")
    return device


def choose_cubin(artifact: Artifact, device: Present) -> bytes:
    """The machine code for ``device``: its own, an older one of its generation, or one compiled now from the source.

    Raises:
        ArtifactError: there is none, and no compiler here that could make it.
    """
    code = artifact.cubins.get(device.arch)
    if code is not None:
        return code
    number = int(device.arch.removeprefix("sm_").rstrip("a"))
    plain = {int(a.removeprefix("sm_")): c for a, c in artifact.cubins.items() if not a.endswith("a")}
    older = [a for a in plain if a // 10 == number // 10 and a <= number]
    if older:
        return plain[max(older)]
    texts = artifact.texts
    headers = {n.removeprefix(INCLUDED): text for n, text in texts.items() if n.startswith(INCLUDED)}
    try:
        from mononn_core.runtime.cuda_toolchain import compile_cubin

        return bytes(compile_cubin(texts["source"], headers, device.arch).code)
    except Exception as error:
        raise ArtifactError(
            f"the file has code for {', '.join(sorted(artifact.cubins)) or 'no GPU'}, {device.name} needs "
            f"{device.arch}, and compiling it here failed ({error}); compile the model with --arch {device.arch}"
        ) from error


def on_device(value: Any) -> bool:
    """Whether a value lies in a GPU's memory."""
    if hasattr(value, "__cuda_array_interface__"):
        return True
    device = getattr(value, "__dlpack_device__", None)
    return device is not None and int(device()[0]) == 2  # kDLCUDA of dlpack.h


def device_array(cupy: Any, kind: str, name: str, value: Any, info: TensorInfo) -> Any:
    """A value in device memory as a CuPy array over the same memory; raises InputError where it does not fit."""
    if not on_device(value):
        raise InputError(f"{kind} {name!r} lies in host memory; give a device array, or leave it out")
    array = cupy.asarray(value) if hasattr(value, "__cuda_array_interface__") else cupy.from_dlpack(value)
    check_type(kind, name, array, info)
    if not array.flags.c_contiguous or array.data.ptr % abi.GPU_ALIGN:
        raise InputError(f"{kind} {name!r} is not C-contiguous from a multiple of {abi.GPU_ALIGN} bytes; copy it first")
    return array


def overlap(one: Any, other: Any) -> bool:
    """Whether two device arrays share memory."""
    first, second = one.data.ptr, other.data.ptr
    return bool(first < second + other.nbytes and second < first + one.nbytes)


@contextmanager
def device_errors(doing: str) -> Iterator[None]:
    """What CUDA answers with an error becomes a DeviceError with the next step."""
    try:
        yield
    except RuntimeError as error:
        kind = type(error).__name__
        if kind not in ("CUDARuntimeError", "CUDADriverError"):
            raise
        text = str(error)
        if any(name in text for name in WRONG_IMAGE):
            raise DeviceError(f"the code is for another GPU ({text}); compile the model for this one") from error
        if TOO_NEW_IMAGE in text:
            raise DeviceError(f"the NVIDIA driver is too old for the code ({text}); update it") from error
        raise DeviceError(
            f"{doing} failed ({text}); the GPU may be of no use to this process any more: start another, and if it "
            "fails again run the model on target cuda-emulated, which says where"
        ) from error


@contextmanager
def device_memory(nbytes: int, what: str) -> Iterator[None]:
    """A full GPU becomes a DeviceError that says what for."""
    try:
        yield
    except Exception as error:
        if type(error).__name__ != "OutOfMemoryError":
            raise
        raise DeviceError(
            f"the GPU has no memory for {nbytes / 1e6:.1f} MB of {what}; free some, or compile a smaller batch"
        ) from error
