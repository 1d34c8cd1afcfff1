"""A few runs of one contender, for tools that watch a process: python -m mononn_bench.gpu_suite.once NAME CASE RUNS."""

from __future__ import annotations

import json
import sys

from mononn_bench.gpu_suite.case import Case
from mononn_bench.gpu_suite.contenders import CONTENDERS


def main(name: str, case: str, runs: str) -> None:
    """Build or load, bind, run."""
    made = Case(**json.loads(case))
    contender = CONTENDERS[name](made)
    contender.probe()
    contender.prepare()
    contender.bind(made.sets()[0])
    contender.upload()
    for _ in range(int(runs)):
        contender.run()
    print(sorted(contender.outputs()))


if __name__ == "__main__":
    main(*sys.argv[1:])
