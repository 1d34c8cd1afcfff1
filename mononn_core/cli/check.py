"""``mononn check``: for each operator of a model, whether the compiler has a form for it."""

from __future__ import annotations

import argparse
import json

from mononn_core.cli.main import shapes_of
from mononn_core.importer import check

UNSUPPORTED = 1


def run(options: argparse.Namespace) -> int:
    """Prints one line an operator type and status, every unsupported node with its reason; 1 if there is any."""
    nodes = check(options.model, shapes_of(options))
    unsupported = [node for node in nodes if node[2] == "unsupported"]
    if options.json:
        keys = ("node", "op_type", "status", "reason")
        print(json.dumps([dict(zip(keys, node, strict=True)) for node in nodes]))
        return UNSUPPORTED if unsupported else 0
    counts: dict[tuple[str, str], int] = {}
    for _, op_type, status, _ in nodes:
        counts[op_type, status] = counts.get((op_type, status), 0) + 1
    width = max((len(op_type) for op_type, _ in counts), default=0)
    for (op_type, status), count in sorted(counts.items()):
        print(f"{op_type:{width}}  {status:11}  {count}")
    for name, op_type, _, reason in unsupported:
        print(f"{op_type} node {name!r}: {reason}")
    verdict = f"{len(unsupported)} are unsupported" if unsupported else "all have a form in this compiler"
    print(f"{len(nodes)} nodes: {verdict}")
    return UNSUPPORTED if unsupported else 0
