"""What a command line says of a network's inputs: shapes, values from files, and seeded values for the rest."""

from __future__ import annotations

import argparse
import difflib
import zipfile
from collections.abc import Iterable, Mapping

import numpy as np

from mononn_core.errors import InputError, OptionError
from mononn_core.runtime.base import TensorInfo


def shapes_of(options: argparse.Namespace) -> dict[str, tuple[int, ...]]:
    """The --shape options, each input once."""
    given: dict[str, tuple[int, ...]] = {}
    for name, extents in options.shape:
        if name in given:
            raise OptionError(f"--shape gives {name!r} twice; give it once")
        given[name] = extents
    return given


def feeds(tensors: Mapping[str, TensorInfo], files: Iterable[tuple[str, str]], seed: int) -> dict[str, np.ndarray]:
    """A value for every input: from its file, or drawn: floats standard normal, integers and bools 0 or 1 (an index of
    0 or 1 fits every table).

    Raises:
        InputError: an unknown name, or a file that holds no array.
    """
    given: dict[str, np.ndarray] = {}
    for name, path in files:
        if name not in tensors:
            near = difflib.get_close_matches(name, tensors, 1) or list(tensors)
            raise InputError(f"input {name!r} is unknown; did you mean {near[0]!r}?")
        given[name] = read_array(path)
    random = np.random.default_rng(seed)
    return {name: given[name] if name in given else draw(info, random) for name, info in tensors.items()}


def draw(info: TensorInfo, random: np.random.Generator) -> np.ndarray:
    """A seeded value of the tensor's dtype and shape."""
    dtype = np.dtype(info.dtype)
    if dtype.kind in "biu":
        return random.integers(0, 2, info.shape).astype(dtype)
    return random.standard_normal(info.shape).astype(dtype)


def read_array(path: str) -> np.ndarray:
    """One array of a .npy file; never runs a pickle."""
    try:
        array = np.load(path, allow_pickle=False)
    except OSError as error:
        raise InputError(f"{path} cannot be read ({error.strerror or error}); give a .npy file") from error
    except (ValueError, EOFError, zipfile.BadZipFile) as error:
        raise InputError(f"{path} holds no NumPy array ({error}); give a .npy file") from error
    if not isinstance(array, np.ndarray):
        raise InputError(f"{path} holds several arrays; give a .npy file with one")
    return array
