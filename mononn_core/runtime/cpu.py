"""CPU: loads shared objects from memory and drives the host runner (runtime/host) through ctypes."""

from __future__ import annotations

import _ctypes
import ctypes
import functools
import mmap
import os
import tempfile
import weakref

import numpy as np

from mononn_core.errors import ArtifactError, MononnError
from mononn_core.program import abi
from mononn_core.runtime.artifact import Artifact, Buffer, digest, largest

SPIN_NANOSECONDS = 100_000


class Plan(ctypes.Structure):
    """``mononn_plan`` of host/mononn_host.h."""

    _fields_ = (
        ("abi_version", ctypes.c_uint32),
        ("workers", ctypes.c_uint32),
        ("arena_bytes", ctypes.c_uint64),
        ("scratch_bytes", ctypes.c_uint64),
        ("spin_nanoseconds", ctypes.c_uint64),
        ("functions", ctypes.c_uint64),
    )


class Function(ctypes.Structure):
    """``mononn_function`` of host/mononn_host.h."""

    _fields_ = (("entry", ctypes.c_void_p), ("steps", ctypes.c_void_p), ("counters", ctypes.c_uint64))


class BindingStruct(ctypes.Structure):
    """``mononn_binding`` of host/mononn_host.h."""

    _fields_ = (
        ("host", ctypes.c_void_p),
        ("inputs", ctypes.c_void_p),
        ("outputs", ctypes.c_void_p),
        ("trace", ctypes.c_void_p),
        ("function", ctypes.c_uint64),
    )


class Library:
    """A shared object loaded from its bytes; unloaded with the last reference to it."""

    def __init__(self, code: bytes, label: str) -> None:
        # The descriptor stays open: the loader knows an object by its name, and an open descriptor's is not reused.
        self._descriptor, path, temporary = _file_of(code)
        try:
            self.functions = ctypes.CDLL(path, mode=os.RTLD_NOW | os.RTLD_LOCAL)
        except OSError as error:
            os.close(self._descriptor)
            raise ArtifactError(f"the {label} cannot be loaded ({error}); compile the model again") from error
        finally:
            if temporary:
                os.unlink(temporary)  # noqa: PTH108
        weakref.finalize(self, _unload, self.functions._handle, self._descriptor)


def _file_of(code: bytes) -> tuple[int, str, str]:
    """Descriptor, path to load, and the temporary file to remove ("" for a file in memory)."""
    try:
        descriptor = os.memfd_create("mononn", os.MFD_CLOEXEC)
        path, temporary = f"/proc/self/fd/{descriptor}", ""
    except (AttributeError, OSError):
        descriptor, temporary = tempfile.mkstemp(prefix="mononn-", suffix=".so")
        path = temporary
    with os.fdopen(os.dup(descriptor), "wb") as stream:
        stream.write(code)
    return descriptor, path, temporary


def _unload(handle: int, descriptor: int) -> None:
    _ctypes.dlclose(handle)
    os.close(descriptor)


@functools.cache
def _host_library(code: bytes) -> Library:
    """One host runner for all sessions of a process; it is a few kilobytes and stays."""
    library = Library(code, "host runner")
    functions = library.functions
    functions.mononn_host_create.argtypes = (ctypes.POINTER(Plan), ctypes.c_void_p, ctypes.c_void_p)
    functions.mononn_host_create.restype = ctypes.c_void_p
    functions.mononn_host_run.restype = ctypes.c_uint64
    functions.mononn_host_stop.argtypes = functions.mononn_host_destroy.argtypes = (ctypes.c_void_p,)
    functions.mononn_memory_create.argtypes = (ctypes.c_uint64,)
    functions.mononn_memory_create.restype = ctypes.c_void_p
    functions.mononn_memory_destroy.argtypes = (ctypes.c_void_p, ctypes.c_uint64)
    for function in (functions.mononn_host_stop, functions.mononn_host_destroy, functions.mononn_memory_destroy):
        function.restype = None
    return library


class Weights:
    """Packed constants in memory: where the file is mapped, or a copy in anonymous huge pages.

    Attributes:
        address: of the first byte, 64-byte aligned.
    """

    def __init__(self, artifact: Artifact, share: bool) -> None:
        """Raises ArtifactError where the weights are not the file's, MononnError where there is no memory for them."""
        data, unchecked = artifact.weights, artifact.unchecked
        self._data = np.frombuffer(data, dtype=np.uint8) if len(data) else np.zeros(64, np.uint8)
        if share and self._data.ctypes.data % 64 == 0:
            if unchecked is not None:
                unchecked.check(digest(data))
            self.address = self._data.ctypes.data
            return
        functions = _host_library(artifact.host).functions
        size = self._data.nbytes
        self.address = functions.mononn_memory_create(size)
        if not self.address:
            raise MononnError(f"there is no memory for {size} bytes of weights; free some, or share the file's pages")
        weakref.finalize(self, functions.mononn_memory_destroy, self.address, size)
        copy = _Copy(self.address, data)
        self._data = np.zeros(0, np.uint8)
        if unchecked is None:
            copy.take(0, memoryview(data))
        else:
            unchecked.check(digest(data, copy.take))


class _Copy:
    """Copies pieces of ``data`` to where they lie from ``address`` on. Pages of a mapped file are given back one piece
    after the other, so that they never count beside the copy."""

    def __init__(self, address: int, data: Buffer) -> None:
        size = len(data)
        self.target = np.ctypeslib.as_array((ctypes.c_uint8 * size).from_address(address))
        self.file = data.obj if isinstance(data, memoryview) and isinstance(data.obj, mmap.mmap) else None
        self.first = 0
        if self.file is not None and size:
            self.first = np.frombuffer(data, np.uint8).ctypes.data - np.frombuffer(self.file, np.uint8).ctypes.data

    def take(self, start: int, piece: memoryview) -> memoryview:
        """The copy of ``piece``, which starts at ``start``."""
        copy = self.target[start : start + len(piece)]
        np.copyto(copy, np.frombuffer(piece, np.uint8))
        first = self.first + start
        if self.file is not None and first % mmap.PAGESIZE == 0:
            self.file.madvise(mmap.MADV_DONTNEED, first, len(piece))
        return copy.data


class Code:
    """What clones share: the loaded functions, one a specialisation, the host runner and the weights."""

    def __init__(self, artifact: Artifact, share_weights: bool) -> None:
        self.artifact = artifact
        self.libraries = [Library(code, "compiled function") for code in (artifact.code, *artifact.further)]
        self.host = _host_library(artifact.host).functions
        self.weights = Weights(artifact, share_weights)
        pairs = zip(self.libraries, artifact.specialisations, strict=True)
        self.functions = [_function(library, manifest["counters"]) for library, manifest in pairs]


def _function(library: Library, counters: int) -> Function:
    """What the host needs to know of a loaded function; raises ArtifactError where it is not there."""
    try:
        entry = getattr(library.functions, abi.ENTRY)
    except AttributeError as error:
        raise ArtifactError(f"the code does not export {abi.ENTRY}; compile the model again") from error
    try:
        steps = ctypes.addressof(ctypes.c_uint32.in_dll(library.functions, abi.STEPS))
    except ValueError:  # one launch runs the whole network
        steps = 0
    return Function(ctypes.cast(entry, ctypes.c_void_p).value, steps or None, counters)


class Host:
    """Workers, arena and scratch of one session. Freed with the last reference (its session's or a binding's)."""

    def __init__(self, code: Code, workers: int) -> None:
        self.code = code
        self.workers = workers
        sizes = tuple(largest(code.artifact.specialisations, key) for key in ("arena_bytes", "scratch_bytes"))
        functions = (Function * len(code.functions))(*code.functions)
        plan = Plan(abi.ABI_VERSION, workers, *sizes, SPIN_NANOSECONDS, len(functions))
        self.address = code.host.mononn_host_create(ctypes.byref(plan), functions, code.weights.address)
        if not self.address:
            raise MononnError(
                f"{workers} workers with {sizes[0] + workers * sizes[1]} bytes of working memory cannot be started; "
                "use fewer threads or free memory"
            )
        weakref.finalize(self, _destroy, code, self.address)
        self.run = code.host.mononn_host_run

    def stop(self) -> None:
        """Waits for the run in progress and ends the workers; later runs return ``STOPPED``."""
        self.code.host.mononn_host_stop(self.address)


def _destroy(code: Code, address: int) -> None:
    """Ends the workers first; ``code`` is held until here so that their function stays loaded."""
    code.host.mononn_host_destroy(address)
