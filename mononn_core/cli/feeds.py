"""What a command line says of a network's inputs: shapes, values from files, and seeded values for the rest."""

from __future__ import annotations

import argparse
import difflib
import tokenize
import zipfile
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path

import numpy as np

from mononn_core.cli.words import parse_shape
from mononn_core.errors import InputError, OptionError
from mononn_core.runtime.base import BaseSession, Specialisation, TensorInfo, fitting


def shapes_of(options: argparse.Namespace) -> dict[str, tuple[int, ...]]:
    """The --shape options, each input once."""
    given: dict[str, tuple[int, ...]] = {}
    for name, extents in options.shape:
        if name in given:
            raise OptionError(f"--shape gives {name!r} twice; give it once")
        given[name] = extents
    return given


def values_of(options: argparse.Namespace) -> dict[str, np.ndarray]:
    """The --value options; raises OptionError for an input that is given twice, InputError for a file without one."""
    given: dict[str, np.ndarray] = {}
    for name, value in options.value:
        if name in given:
            raise OptionError(f"--value gives {name!r} twice; give it once")
        given[name] = read_array(value) if isinstance(value, str) else np.asarray(value)
    return given


def read_shapes(path: str) -> list[dict[str, tuple[int, ...]]]:
    """The lines of a file, each as the --shape options of one call; "#" begins a comment.

    Raises:
        OptionError: no such file, or a line that is no shapes.
    """
    try:
        lines = Path(path).read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise OptionError(f"{path} cannot be read ({error}); give a file of shapes, a line for each") from error
    found = []
    for number, line in enumerate(lines, 1):
        words = line.partition("#")[0].split()
        try:
            pairs = [parse_shape(word) for word in words]
        except argparse.ArgumentTypeError as error:
            raise OptionError(f"{path}, line {number}: {error}; write as input_ids=1x128") from error
        if len(dict(pairs)) < len(pairs):
            raise OptionError(f"{path}, line {number} gives an input twice; give it once")
        found += [dict(pairs)] if pairs else []
    if not found:
        raise OptionError(f"{path} has no shapes; write a line for each, as input_ids=1x128 attention_mask=1x128")
    return found


def chosen(session: BaseSession, options: argparse.Namespace) -> tuple[Specialisation, dict[str, np.ndarray]]:
    """The specialisation that the --input files and --shape options fit, the first where several do, and a value for
    each of its inputs, see :func:`feeds`.

    Raises:
        InputError, OptionError: there is none, or no such input.
    """
    given = read_inputs(session.inputs, options.input)
    shapes = {**shapes_of(options), **{name: value.shape for name, value in given.items()}}
    if unknown := [name for name in shapes if name not in session.inputs]:
        raise OptionError(f"the network has no input {unknown[0]!r}; its inputs are {', '.join(session.inputs)}")
    several = len(session.specialisations) > 1 or options.shape or session.specialisations[0].shorter
    one = fitting(session.specialisations, shapes) if several else session.specialisations[0]
    return one, feeds(one.inputs, given, options.seed)


def feeds(tensors: Mapping[str, TensorInfo], given: Mapping[str, np.ndarray], seed: int) -> dict[str, np.ndarray]:
    """A value for every input: the one given, or drawn: floats standard normal, integers and bools 0 or 1 (an index of
    0 or 1 fits every table)."""
    random = np.random.default_rng(seed)
    return {name: given[name] if name in given else draw(info, random) for name, info in tensors.items()}


def read_inputs(known: Collection[str], files: Iterable[tuple[str, str]]) -> dict[str, np.ndarray]:
    """The values of the files that are given for inputs.

    Raises:
        InputError: an unknown name, or a file that holds no array.
    """
    given: dict[str, np.ndarray] = {}
    for name, path in files:
        if name not in known:
            near = difflib.get_close_matches(name, known, 1) or list(known)
            raise InputError(f"input {name!r} is unknown; did you mean {near[0]!r}?")
        given[name] = read_array(path)
    return given


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
    except (ValueError, EOFError, SyntaxError, tokenize.TokenError, zipfile.BadZipFile) as error:
        raise InputError(f"{path} holds no NumPy array ({error}); give a .npy file") from error
    if not isinstance(array, np.ndarray):
        raise InputError(f"{path} holds several arrays; give a .npy file with one")
    return array
