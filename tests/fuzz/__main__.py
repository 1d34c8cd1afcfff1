"""``python -m tests.fuzz``: thousands of damaged models through the compiler; ends with 1 where one finds a bug."""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter
from pathlib import Path

from tests.fuzz.judge import FINE, verdicts
from tests.fuzz.mutate import model_of

parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
parser.add_argument("--models", type=int, default=20_000, metavar="N")
parser.add_argument("--first", type=int, default=0, metavar="NUMBER", help="number of the first model")
parser.add_argument("--seed", type=int, default=0)
parser.add_argument("--processes", type=int, default=2, choices=(1, 2))
parser.add_argument("--keep", type=Path, metavar="DIR", help="where models that find a bug are written")
options = parser.parse_args()
found, started = Counter[str](), time.monotonic()
numbers = range(options.first, options.first + options.models)
for number, verdict, why in verdicts(numbers, options.seed, options.processes):
    found[verdict] += 1
    if verdict not in FINE:
        print(f"model {number} of seed {options.seed}: {verdict}\n{why}", flush=True)
        if options.keep:
            options.keep.mkdir(parents=True, exist_ok=True)
            (options.keep / f"{options.seed}-{number}.onnx").write_bytes(model_of(number, options.seed))
    if sum(found.values()) % 1000 == 0:
        print(f"{sum(found.values())} models, {time.monotonic() - started:.0f} s: {dict(found)}", flush=True)
print(f"{sum(found.values())} models of seed {options.seed} in {time.monotonic() - started:.0f} s: {dict(found)}")
sys.exit(any(verdict not in FINE for verdict in found))
