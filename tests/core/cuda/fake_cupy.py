"""CuPy as far as the runtime uses it, over host memory: launches run on the emulator, every call is written down."""

from __future__ import annotations

import ctypes
import struct
from types import ModuleType, SimpleNamespace

import numpy as np

from mononn_core.emulate import build

SMS, BLOCKS_PER_SM, SHARED = 2, 3, 227 << 10
ROOMS: dict[int, int] = {}
"""Bytes from each address that was ever handed out: what a kernel given that address may touch."""


class CUDADriverError(RuntimeError):
    """The driver's."""


class CUDARuntimeError(RuntimeError):
    """The runtime's."""


class OutOfMemoryError(Exception):
    """The allocator's."""


class Array:
    """A device array; nothing but the methods below is to be used of it."""

    def __init__(self, value):
        room = np.zeros(value.nbytes + 256, np.uint8)
        start = -room.ctypes.data % 256
        self.value = room[start : start + value.nbytes].view(value.dtype).reshape(value.shape)
        self.value[...] = value
        self._describe()

    @classmethod
    def over(cls, view):
        """The same memory as `view`."""
        array = cls.__new__(cls)
        array.value = view
        array._describe()
        return array

    def _describe(self):
        self.dtype, self.shape, self.nbytes = self.value.dtype, self.value.shape, self.value.nbytes
        self.data = SimpleNamespace(ptr=self.value.ctypes.data)
        ROOMS[self.data.ptr] = self.nbytes
        self.flags = SimpleNamespace(c_contiguous=self.value.flags.c_contiguous)
        self.__cuda_array_interface__ = self.value.__array_interface__

    def get(self):
        return self.value.copy()

    def set(self, host):
        self.value[...] = host


class Torch:
    """Another library's device tensor: DLPack alone."""

    def __init__(self, value):
        self.array = Array(value)

    def __dlpack_device__(self):
        return (2, 0)

    def __dlpack__(self, **_):
        return self.array


class FakeCupy(ModuleType):
    """The module. `calls` are the launches, in order; `memory` is what is free."""

    uint8, uint32, uint64 = np.uint8, np.uint32, np.uint64

    def __init__(self, source):
        super().__init__("cupy")
        self.emulated = build(source)
        self.calls, self.captured, self.memory = [], None, 1 << 40
        self.occupancy, self.shared, self.hangs, self.loaded = BLOCKS_PER_SM, SHARED, False, []
        self.fails, self.crashes = "", 0
        self.stream = SimpleNamespace(ptr=7, synchronize=lambda: None)
        self.cuda = SimpleNamespace(
            driver=self._driver(), runtime=self._runtime(), get_current_stream=lambda: self.stream,
            alloc_pinned_memory=self._pinned, get_elapsed_time=lambda start, end: 2.5, Event=self._event,
            Stream=self._stream, function=SimpleNamespace(Module=self._module),
        )  # fmt: skip

    def asarray(self, value):
        if isinstance(value, np.ndarray):
            return self._room(Array(value))
        return value if isinstance(value, Array) else Array.over(value.value)

    def from_dlpack(self, value):
        return value.__dlpack__()

    def zeros(self, shape, dtype):
        return self._room(Array(np.zeros(shape, dtype)))

    def empty(self, shape, dtype):
        return self._room(Array(np.ones(shape, dtype)))

    def _room(self, array):
        self.memory -= array.nbytes
        if self.memory < 0:
            raise OutOfMemoryError
        return array

    def _driver(self):
        def launch(pointer, *rest):
            grid, block, shared, stream, parameters = rest[:3], rest[3:6], rest[6], rest[7], rest[8]
            assert len(rest) in (9, 10)
            words, iteration = (ctypes.c_void_p * 2).from_address(parameters)
            size = self.emulated.call_bytes(pointer)
            call = SimpleNamespace(
                kernel=pointer, words=ctypes.string_at(words, size), blocks=grid[0], threads=block[0], shared=shared,
                iteration=ctypes.c_uint32.from_address(iteration).value, cooperative=len(rest) == 9, stream=stream,
            )  # fmt: skip
            assert grid[1:] == block[1:] == (1, 1)
            if self.captured is not None:
                assert stream == 9
                self.captured.append(call)
            else:
                self._launch(call)

        return SimpleNamespace(
            CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES=1, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES=8,
            funcGetAttribute=lambda attribute, pointer: 0, funcSetAttribute=lambda *_: None,
            occupancyMaxActiveBlocksPerMultiprocessor=lambda *_: self.occupancy,
            launchKernel=launch, launchCooperativeKernel=launch,
        )  # fmt: skip

    def _launch(self, call):
        if self.fails:
            raise CUDADriverError(self.fails)
        self.calls.append(call)
        if not self.hangs:
            addresses = dict.fromkeys(word for (word,) in struct.iter_unpack("<Q", call.words) if word)
            watch = [(address, ROOMS[address], f"word {i}") for i, address in enumerate(addresses)]
            self.emulated.launch(
                call.kernel, call.words, call.blocks, call.threads, call.shared, iteration=call.iteration, watch=watch
            )

    def _runtime(self):
        attributes = {"optin": self.shared, "sms": SMS}
        return SimpleNamespace(
            cudaDevAttrMaxSharedMemoryPerBlockOptin="optin", cudaDevAttrMultiProcessorCount="sms",
            getDevice=lambda: 0, getDeviceCount=lambda: 1, eventQuery=self._query, check_status=self._check_status,
            deviceGetAttribute=lambda name, device: self.shared if name == "optin" else attributes[name],
        )  # fmt: skip

    def _pinned(self, size):
        class Pinned(bytearray):
            ptr = 0

        pinned = Pinned(size)
        pinned.ptr = ctypes.addressof((ctypes.c_char * size).from_buffer(pinned))
        ROOMS[pinned.ptr] = size
        return pinned

    def _event(self, disable_timing=False):
        return SimpleNamespace(record=lambda stream: None, ptr=11, synchronize=lambda: None)

    def _query(self, event):
        """As cudaEventQuery: it answers with a status and raises nothing, whatever the kernel did."""
        assert event == 11
        return self.crashes or (600 if self.hangs else 0)

    @staticmethod
    def _check_status(status):
        if status:
            raise CUDARuntimeError(f"cudaError {status}")

    def _stream(self, non_blocking):
        cupy = self

        class Stream:
            ptr = 9

            def __enter__(self):
                return self

            def __exit__(self, *_):
                return None

            def begin_capture(self):
                cupy.captured = []

            def end_capture(self):
                calls, cupy.captured = cupy.captured, None
                return SimpleNamespace(launch=lambda stream: [cupy._launch(call) for call in calls])

        return Stream()

    def _module(self):
        def load(code):
            if self.fails:
                raise CUDADriverError(self.fails)
            self.loaded.append(code)

        return SimpleNamespace(load=load, get_function=lambda name: SimpleNamespace(ptr=name))
