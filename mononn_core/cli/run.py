"""``mononn run``: one or more inferences of a .mono file, with a summary of every output."""

from __future__ import annotations

import argparse
import io
import json
import math
import time
from pathlib import Path
from typing import Any

import numpy as np

from mononn_core.cli.feeds import chosen
from mononn_core.errors import OptionError
from mononn_core.files import write_atomically
from mononn_core.runtime.base import BaseBinding
from mononn_core.runtime.loading import load

SHOWN = 6


def run(options: argparse.Namespace) -> int:
    """Runs, prints each output's summary, writes the outputs if a folder is given."""
    if options.repeat < 1:
        raise OptionError(f"--repeat {options.repeat} runs nothing; give a positive number")
    with load(options.artifact, options.threads) as session:
        binding = session.bind(chosen(session, options)[1])
        binding.run()
        results = binding.results()
        times = _times(binding, options.repeat) if options.repeat > 1 else {}
        outputs = {name: summary(value) for name, value in results.items()}
        if options.output:
            write_outputs(Path(options.output), results)
    if options.json:
        print(json.dumps(to_json({"outputs": outputs, **times}), allow_nan=False))
        return 0
    for name, about in outputs.items():
        spread = f"mean {about['mean']:.6g}  min {about['min']:.6g}  max {about['max']:.6g}  " if about["first"] else ""
        first = " ".join(f"{value:.6g}" for value in about["first"])
        print(f"{name}  {about['dtype']}{about['shape']}  {spread}first {first}")
    if times:
        print(f"{times['runs']} runs: " + "  ".join(f"{key} {value:.4g} ms" for key, value in times["ms"].items()))
    return 0


def _times(binding: BaseBinding, repeat: int) -> dict[str, Any]:
    """Milliseconds of ``repeat`` runs."""
    seconds = np.zeros(repeat)
    for index in range(repeat):
        started = time.perf_counter()
        binding.run()
        seconds[index] = time.perf_counter() - started
    low, median, high = np.percentile(seconds * 1e3, [0, 50, 90])
    return {"runs": repeat, "ms": {"median": float(median), "p90": float(high), "min": float(low)}}


def summary(value: np.ndarray) -> dict[str, Any]:
    """What people look at first; NaN counts as NaN."""
    numbers = value.astype(np.float64).reshape(-1)
    about: dict[str, Any] = {"dtype": value.dtype.name, "shape": list(value.shape)}
    about["first"] = numbers[:SHOWN].tolist()
    if numbers.size:
        about.update(mean=float(numbers.mean()), min=float(numbers.min()), max=float(numbers.max()))
    return about


def to_json(value: Any) -> Any:
    """``value`` with null for what JSON has no number for."""
    if isinstance(value, dict):
        return {key: to_json(entry) for key, entry in value.items()}
    if isinstance(value, list):
        return [to_json(entry) for entry in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def write_outputs(folder: Path, outputs: dict[str, np.ndarray]) -> None:
    """FOLDER/NAME.npy for every output; characters that a file name cannot hold become "_", and a name that is there
    already gets a number.

    Raises:
        OptionError: the folder cannot be written.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        safe: dict[str, np.ndarray] = {}
        for name, value in outputs.items():
            plain = "".join(c if c.isalnum() or c in "-_." else "_" for c in name).lstrip(".")
            safe[plain if plain not in safe else f"{plain}.{len(safe)}"] = value
        for name, value in safe.items():
            stream = io.BytesIO()
            np.save(stream, value, allow_pickle=False)
            write_atomically(folder / f"{name}.npy", [stream.getvalue()])
    except OSError as error:
        raise OptionError(f"{folder} cannot be written ({error.strerror}); choose another --output") from error
