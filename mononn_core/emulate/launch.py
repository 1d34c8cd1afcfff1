"""Builds and launches an emulated kernel; see the package's docstring."""

from __future__ import annotations

import ctypes
import re
import tempfile
import threading
import weakref
from collections.abc import Iterable, Mapping, Sequence

from mononn_core.emulate.compile import compile_kernel, vocabulary
from mononn_core.emulate.interface import CONSTANT, Range, Request, Result
from mononn_core.emulate.report import Describer, Report, Watch
from mononn_core.emulate.symbols import Lines
from mononn_core.errors import OptionError

KERNEL = re.compile(r'extern\s+"C"\s+__global__\s+void\s+(?:__launch_bounds__\s*\([^)]*\)\s*)?(\w+)\s*\(')
SCHEDULES = ("random:SEED", "block-first", "reversed", "starve:BLOCK", "starve-warp:WARP")
RELAXED = {"atomic_add": "RELAXED_ADD", "load_acquire": "RELAXED_LOAD", "store_release": "RELAXED_STORE"}
MILLISECONDS = 300_000


def build(source: str, *, headers: Mapping[str, str] | None = None, sanitize: bool = True) -> Emulated:
    """Compiles CUDA C++ for the emulator.

    Args:
        source: text with kernels ``extern "C" __global__ void NAME(const __grid_constant__ STRUCT call)``, optionally
            with a second parameter ``uint32_t iteration``. It uses "mononn_ptx.cuh" and what stands above it only.
        headers: texts that replace or join those of the vocabulary, by name.
        sanitize: look for races, poison, bounds and alignment of plain accesses; slower.

    Raises:
        ToolchainError: no host compiler, or it refused the source.
    """
    kernels = tuple(dict.fromkeys(KERNEL.findall(source)))
    entries = "".join(f"\nMN_EMU_ENTRY({name})" for name in kernels)
    code = compile_kernel(source + entries + "\n", vocabulary(headers), sanitize=sanitize)
    return Emulated(code, kernels, sanitize=sanitize)


class _Stacks:
    """The stacks of all emulated threads of this process, grown as needed; a launch has them alone."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.address, self.bytes, self.threads = 0, 0, 0

    def run(self, library: ctypes.CDLL, request: Request, result: Result) -> None:
        """One launch.

        Raises:
            MemoryError: there is none for its threads.
        """
        with self._lock:
            self._grow(library, request.blocks * request.threads)
            request.stacks, request.stacks_bytes = self.address, self.bytes
            if library.mn_emu_launch(ctypes.byref(request), ctypes.byref(result)):
                raise MemoryError(f"no memory to emulate {request.blocks} blocks of {request.threads} threads")

    def _grow(self, library: ctypes.CDLL, threads: int) -> None:
        if threads <= self.threads:
            return
        if self.address:
            library.mn_emu_free_stacks(ctypes.c_uint64(self.address), ctypes.c_uint64(self.bytes))
        size = ctypes.c_uint64()
        library.mn_emu_new_stacks.restype = ctypes.c_uint64
        self.address = library.mn_emu_new_stacks(ctypes.c_uint64(threads), ctypes.byref(size))
        self.bytes, self.threads = (size.value, threads) if self.address else (0, 0)
        if not self.address:
            raise MemoryError(f"no memory for the stacks of {threads} emulated threads")


_STACKS = _Stacks()


class Emulated:
    """A compiled source whose kernels can be launched.

    Attributes:
        kernels: names of its kernels.
        sanitize: whether it looks for races.
    """

    def __init__(self, code: bytes, kernels: tuple[str, ...], *, sanitize: bool) -> None:
        self.kernels, self.sanitize = kernels, sanitize
        with tempfile.NamedTemporaryFile(prefix="mononn-", suffix=".so") as file:
            file.write(code)
            file.flush()
            self._library = ctypes.CDLL(file.name)
        weakref.finalize(self, self._library.mn_emu_reset)
        self._lines = Lines(code)
        self._library.mn_emu_launch.argtypes = (ctypes.POINTER(Request), ctypes.POINTER(Result))

    def call_bytes(self, kernel: str) -> int:
        """Size of the struct that a kernel takes."""
        return ctypes.c_uint64.in_dll(self._library, f"mn_emu_call_bytes_{kernel}").value

    def reset(self) -> None:
        """Forgets what earlier launches have written: memory watched as ``unwritten`` is so again."""
        self._library.mn_emu_reset()

    def launch(
        self,
        kernel: str,
        call_words: bytes,
        blocks: int,
        threads: int,
        shared_bytes: int = 0,
        *,
        iteration: int = 0,
        schedule: str = "random:0",
        watch: Iterable[Watch | tuple[int, int, str]] = (),
        copies: str = "mixed",
        relaxed: Iterable[str] = (),
        banks: bool = False,
        milliseconds: int = MILLISECONDS,
        check: bool = True,
    ) -> Report:
        """Runs one kernel over a whole cooperative grid.

        Args:
            kernel: its name.
            call_words: the bytes of its first parameter.
            blocks, threads: of the grid; threads a multiple of 32, at most 1024.
            shared_bytes: dynamic shared memory of a block.
            iteration: its second parameter.
            schedule: one of :data:`SCHEDULES`.
            watch: every buffer in global memory that it may touch.
            copies: when cp.async reads its source: "late" (when waited for), "early" (at issue), "mixed" (seeded).
            relaxed: primitives that are to order nothing (keys of :data:`RELAXED`), to see whether fences would do.
            banks: count bank conflicts of plain accesses to shared memory.
            milliseconds: of processor time.
            check: raise what was found; else it is only in the report.

        Raises:
            EmulationError: what was found first (a subclass a kind).
            OptionError: an argument makes no sense.
            MemoryError: no memory for stacks.
        """
        watched = [item if isinstance(item, Watch) else Watch(*item) for item in watch]
        self._check_shape(kernel, len(call_words), blocks, threads)
        words, ranges, result = ctypes.create_string_buffer(call_words, len(call_words)), _ranges(watched), Result()
        request = Request(
            entry=ctypes.cast(self._library[f"mn_emu_entry_{kernel}"], ctypes.c_void_p).value or 0,
            words=ctypes.addressof(words), word_bytes=len(call_words), iteration=iteration, milliseconds=milliseconds,
            blocks=blocks, threads=threads, shared_bytes=shared_bytes, **_schedule(schedule),
            flags=self._flags(copies, relaxed, banks), ranges=len(watched), range=ctypes.addressof(ranges),
        )  # fmt: skip
        _STACKS.run(self._library, request, result)
        report = Describer(result, watched, shared_bytes, blocks, self._lines).report()
        return report.check() if check else report

    def _check_shape(self, kernel: str, given: int, blocks: int, threads: int) -> None:
        if kernel not in self.kernels:
            raise OptionError(f"the source has no kernel {kernel!r}; it has {', '.join(self.kernels) or 'none'}")
        if (expected := self.call_bytes(kernel)) != given:
            raise OptionError(f"{kernel} takes a struct of {expected} bytes, not {given}; pack it as its source says")
        if not (1 <= blocks <= 1024 and 32 <= threads <= 1024 and threads % 32 == 0):
            raise OptionError(
                f"a grid of {blocks} blocks of {threads} threads cannot be emulated; "
                "use 1 to 1024 blocks of whole warps of at most 1024 threads"
            )

    def _flags(self, copies: str, relaxed: Iterable[str], banks: bool) -> int:
        modes = {"mixed": 0, "early": CONSTANT["EARLY_COPIES"], "late": CONSTANT["LATE_COPIES"]}
        wrong = [name for name in relaxed if name not in RELAXED] + ([] if copies in modes else [copies])
        if wrong:
            known = f"copies are {', '.join(modes)}, relaxed may be {', '.join(RELAXED)}"
            raise OptionError(f"{wrong[0]!r} is not known; {known}")
        flags = modes[copies] | self.sanitize * CONSTANT["SANITIZED"] | banks * CONSTANT["BANKS"]
        return flags | sum(CONSTANT[RELAXED[name]] for name in set(relaxed))


def _ranges(watched: Sequence[Watch]) -> ctypes.Array[Range]:
    """The watched buffers as the runtime wants them: sorted by address."""
    flags = [w.read_only * CONSTANT["READ_ONLY"] | w.unwritten * CONSTANT["UNWRITTEN"] for w in watched]
    order = sorted(range(len(watched)), key=lambda i: watched[i].address)
    return (Range * max(len(watched), 1))(*(Range(watched[i].address, watched[i].bytes, flags[i], i) for i in order))


def _schedule(text: str) -> dict[str, int]:
    """The request's fields for one of :data:`SCHEDULES`."""
    modes = {
        "random": CONSTANT["RANDOM"],
        "block-first": CONSTANT["BLOCK_FIRST"],
        "reversed": CONSTANT["REVERSED"],
        "starve": CONSTANT["STARVE_BLOCK"],
        "starve-warp": CONSTANT["STARVE_WARP"],
    }
    name, _, number = text.partition(":")
    if name not in modes or (number and not number.isdigit()):
        raise OptionError(f"{text!r} is no schedule; one of {', '.join(SCHEDULES)}")
    return {"schedule": modes[name], "seed": int(number or 0), "starved": int(number or 0)}
