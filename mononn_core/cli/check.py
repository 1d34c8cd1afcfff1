"""``mononn check``: for each operator of a model, whether the compiler has a form for it, and whether they all fit;
of a quantised model, which products are none of its integers; in a lower precision, which multiply float32."""

from __future__ import annotations

import argparse
import json

from mononn_core.cli.feeds import shapes_of, values_of
from mononn_core.compiler import lower
from mononn_core.compiler.cpu import groups_of, rounding
from mononn_core.errors import MononnError
from mononn_core.importer.survey import Report, check
from mononn_core.machine import Machine
from mononn_core.options import Given
from mononn_core.passes.pipeline import real_products, rounded_products

UNSUPPORTED = 1
KEYS = ("node", "op_type", "status", "reason")


def run(options: argparse.Namespace) -> int:
    """Prints one line an operator type and status and every reason; returns 1 if anything is unsupported."""
    nodes = check(options.model, shapes_of(options), values_of(options))
    problem, real, rounded, wide = (
        ("", {}, {}, {}) if any(reason for *_, reason in nodes) else lowering_problem(options)
    )
    unsupported = [node for node in nodes if node[2] == "unsupported"]
    if options.json:
        rows = [dict(zip(KEYS, node, strict=True)) for node in nodes]
        products = {"real_products": real, "rounded_products": rounded, "wide_products": wide}
        print(json.dumps({"nodes": rows, "problem": problem, **products}))
    else:
        reals = (f"{node}: multiplied as float32, {why}" for node, why in (*real.items(), *wide.items()))
        for line in (*lines(nodes), *reals, *(f"{node}: its left side becomes {to}" for node, to in rounded.items())):
            print(line)
        verdict = f"{len(unsupported)} are unsupported" if unsupported else "all have a form in this compiler"
        print(f"{len(nodes)} nodes: {verdict}" + (f", but {problem}" if problem else ""))
    return UNSUPPORTED if unsupported or problem else 0


def lowering_problem(options: argparse.Namespace) -> tuple[str, dict[str, str], dict[str, str], dict[str, str]]:
    """Why the model cannot be lowered although every node was imported, "" when it can; of a quantised model the
    products that are none of its integers, with the reason, and of these the type that left sides are rounded to; in a
    lower precision the products of float32, with the reason."""
    try:
        shapes, values, machine = shapes_of(options), values_of(options), Machine.probe()
        chosen: Given = {"activations": options.activations, "precision": options.precision}
        stages = lower(options.model, shapes=shapes, values=values, **chosen)
    except MononnError as error:
        return str(error), {}, {}, {}
    rounded = rounded_products(stages.graph, rounding(stages.options, machine))
    reals = {n: why for n, why in real_products(stages.graph).items() if n not in rounded}
    if stages.options.precision == "fp32":
        return "", reals, rounded, {}
    return "", reals, rounded, groups_of(stages.optimized, stages.options, machine).wide_products()


def lines(nodes: list[Report]) -> list[str]:
    """Counts by operator and status, then every node that has a reason."""
    counts: dict[tuple[str, str], int] = {}
    for _, op_type, status, _ in nodes:
        counts[op_type, status] = counts.get((op_type, status), 0) + 1
    width = max((len(op_type) for op_type, _ in counts), default=0)
    table = [f"{op_type:{width}}  {status:11}  {count}" for (op_type, status), count in sorted(counts.items())]
    reasons = [
        reason if name in reason else f"{op_type} node {name!r}: {reason}"
        for name, op_type, _, reason in nodes
        if reason
    ]
    return table + reasons
