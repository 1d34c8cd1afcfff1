"""The process of one step: python -m mononn_bench.gpu_suite.child REQUEST.json, which names where the answer goes."""

from __future__ import annotations

import json
import os
import sys
import traceback
from pathlib import Path
from typing import Any

from mononn_bench.codec import to_plain
from mononn_bench.errors import SystemUnavailableError
from mononn_bench.gpu_suite.case import write_json
from mononn_bench.gpu_suite.steps import STEPS, Context, IncorrectError
from mononn_bench.measure.worker import die_with_parent


def main(path: str) -> None:
    """Run the step; its answer is {status, reason, result}, rewritten whenever the step tells what it has.

    The process leaves as soon as the last answer is written, without unwinding: whoever gives back what a kernel that
    hangs still holds waits for it.
    """
    request = json.loads(Path(path).read_text())
    die_with_parent(request["parent"])
    os.sched_setaffinity(0, request["cores"] or os.sched_getaffinity(0))
    answer = Path(request["answer"])

    def tell(result: dict[str, Any]) -> None:
        write_json(answer, {"status": "under way", "reason": "", "result": to_plain(result)})

    context = Context(
        Path(request["out"]), Path(request["work"]), request["emulate"], float(request["seconds"]), tell
    )  # fmt: skip

    def leave(status: str, reason: str, result: dict[str, Any]) -> None:
        write_json(answer, {"status": status, "reason": reason, "result": to_plain(result)})
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(0)

    try:
        leave("ok", "", STEPS[request["kind"]](context, request["arguments"]))
    except SystemUnavailableError as error:
        leave("unavailable", str(error), {})
    except IncorrectError as error:
        leave("incorrect", str(error), error.result)
    except Exception as error:
        traceback.print_exc()
        line = " ".join(str(error).split())[:600]
        told = json.loads(answer.read_text())["result"] if answer.exists() else {}
        leave("failed", f"{type(error).__name__}: {line}" if line else type(error).__name__, told)


if __name__ == "__main__":
    main(sys.argv[1])
