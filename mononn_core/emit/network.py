"""A compiled network: ``Network().run({name: array, ...})`` gives its outputs by name.

Written by mononn; needs NumPy alone. ``SHAPES`` has, of every shape that it was compiled for, name -> (dtype, shape) of
the inputs and of the outputs.
"""

from __future__ import annotations

import ctypes
import threading
import weakref
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

__all__ = ["SHAPES", "Network"]


Tensors = dict[str, tuple[np.dtype[Any], tuple[int, ...]]]


class _Tensor(ctypes.Structure):
    _fields_ = (
        ("name", ctypes.c_char_p),
        ("dtype", ctypes.c_char_p),
        ("rank", ctypes.c_uint32),
        ("shape", ctypes.POINTER(ctypes.c_uint64)),
        ("bytes", ctypes.c_uint64),
    )


class _Options(ctypes.Structure):
    _fields_ = (("threads", ctypes.c_uint32), ("flags", ctypes.c_uint32), ("weights", ctypes.c_char_p))


_library = ctypes.CDLL(str(Path(__file__).resolve().parent / "libNAME.so"))
_create, _run, _problem, _destroy = (getattr(_library, f"NAME_{n}") for n in ("create", "run", "problem", "destroy"))
_create.restype, _create.argtypes = ctypes.c_void_p, (ctypes.POINTER(_Options), ctypes.POINTER(ctypes.c_char_p))
_run.restype, _run.argtypes = ctypes.c_uint64, (ctypes.c_void_p, ctypes.c_uint32, ctypes.c_void_p, ctypes.c_void_p)
_problem.restype, _problem.argtypes = ctypes.c_char_p, (ctypes.c_uint64,)
_destroy.restype, _destroy.argtypes = None, (ctypes.c_void_p,)


def _tensors(kind: str, shape: int) -> Tensors:
    """name -> (dtype, shape) of the inputs or outputs at a shape; empty where there is no such shape."""
    describe = getattr(_library, f"NAME_{kind}")
    describe.restype, describe.argtypes = ctypes.POINTER(_Tensor), (ctypes.c_uint32, ctypes.c_uint32)
    found: Tensors = {}
    while entry := describe(shape, len(found)):
        one = entry.contents
        found[one.name.decode()] = (np.dtype(one.dtype.decode()), tuple(one.shape[i] for i in range(one.rank)))
    return found


def _shapes() -> Iterator[tuple[Tensors, Tensors]]:
    number = 0
    while outputs := _tensors("output", number):  # there may be no inputs
        yield _tensors("input", number), outputs
        number += 1


SHAPES = list(_shapes())


class Network:
    """A session: threads and working memory. May be called from several threads, which take turns."""

    def __init__(self, threads: int = 0, private_weights: bool = False) -> None:
        """``threads``: 0 for as many as compiled for. ``private_weights``: a copy in huge pages, not shared with other
        processes: a slower start, often faster runs. Raises RuntimeError where the network cannot run here."""
        problem = ctypes.c_char_p()
        options = _Options(threads, int(private_weights), None)
        self._session = _create(ctypes.byref(options), ctypes.byref(problem))
        if not self._session:
            raise RuntimeError((problem.value or b"no session").decode())
        self._close = weakref.finalize(self, _destroy, self._session)
        self._turn = threading.Lock()

    def run(self, inputs: Mapping[str, Any]) -> dict[str, np.ndarray]:
        """Outputs by name. Raises ValueError where the inputs are of no shape in ``SHAPES`` or hold an index out of
        range, RuntimeError where the session is closed or a parent process's."""
        number, arrays, outputs = self._prepared(inputs)
        sent = (ctypes.c_void_p * len(arrays))(*(a.ctypes.data for a in arrays))
        received = (ctypes.c_void_p * len(outputs))(*(a.ctypes.data for a in outputs.values()))
        with self._turn:
            if not self._close.alive:
                raise RuntimeError("this network is closed; make another")
            error = _run(self._session, number, sent, received)
        if error:
            raise (ValueError if error & 0xFF == 1 else RuntimeError)(_problem(error).decode())
        return outputs

    def _prepared(self, inputs: Mapping[str, Any]) -> tuple[int, list[np.ndarray], dict[str, np.ndarray]]:
        given = {name: np.asarray(value) for name, value in inputs.items()}
        found = {name: (value.dtype, value.shape) for name, value in given.items()}
        for number, (wanted, outputs) in enumerate(SHAPES):
            if found == wanted:
                arrays = [np.ascontiguousarray(given[name]) for name in wanted]
                return number, arrays, {name: np.empty(shape, dtype) for name, (dtype, shape) in outputs.items()}
        there = " or ".join(_words(wanted) for wanted, _ in SHAPES)
        raise ValueError(f"inputs {_words(found)} are not what the network takes; give {there}")

    def close(self) -> None:
        """Ends the threads, after the run in progress; they end with the last reference anyway."""
        with self._turn:
            self._close()

    def __enter__(self) -> Network:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _words(tensors: Tensors) -> str:
    return ", ".join(f"{name} {dtype}{list(shape)}" for name, (dtype, shape) in tensors.items())
