"""Converter of Einsum: diagonals, then pairwise products as one batched matmul each, then a sum and a transpose."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from math import prod

import numpy as np

from mononn_core.errors import ShapeError
from mononn_core.importer.context import Context, converts

ELLIPSIS_LABELS = "⓪①②③④⑤⑥⑦⑧⑨"
"""Labels of the axes an ellipsis stands for, right-aligned."""


@dataclass(frozen=True)
class Term:
    """A tensor and one label an axis."""

    name: str
    labels: str


def parse(ctx: Context) -> tuple[list[Term], str]:
    """The operands with ellipses spelled out, and the output's labels."""
    equation = str(ctx.attr("equation")).replace(" ", "")
    left, arrow, right = equation.partition("->")
    terms = []
    widest = 0
    for name, labels in zip(ctx.inputs(), left.split(","), strict=True):
        hidden = ctx.type(name).rank - len(labels.replace("...", ""))
        widest = max(widest, hidden if "..." in labels else 0)
        terms.append(Term(name, labels.replace("...", ELLIPSIS_LABELS[:hidden][::-1])))
        if len(terms[-1].labels) != ctx.type(name).rank:
            raise ShapeError(f"{ctx.origin}: {labels!r} does not fit {ctx.type(name)}; check the shapes given")
    spelled = ELLIPSIS_LABELS[:widest][::-1]
    if not arrow:
        counts = Counter(c for t in terms for c in t.labels if c not in ELLIPSIS_LABELS)
        return terms, spelled + "".join(sorted(c for c, n in counts.items() if n == 1))
    return terms, right.replace("...", spelled)


def without_diagonals(ctx: Context, term: Term) -> Term:
    """A label standing twice selects a diagonal."""
    labels, name = term.labels, term.name
    for label in dict.fromkeys(labels):
        while labels.count(label) > 1:
            i = labels.index(label)
            j = labels.index(label, i + 1)
            t = ctx.type(name)
            order = [i, j, *(d for d in range(t.rank) if d not in (i, j))]
            moved = ctx.add("transpose", name, perm=tuple(order))
            n = t.shape[i]
            positions = ctx.make(np.stack([np.arange(n)] * 2, axis=-1).astype("int64"))
            name = ctx.add("gather_nd", moved, positions, batch_dims=0)
            labels = label + "".join(labels[d] for d in order[2:])
    return Term(name, labels)


def summed(ctx: Context, term: Term, keep: set[str]) -> Term:
    """Labels nobody needs are summed away."""
    axes = tuple(d for d, c in enumerate(term.labels) if c not in keep)
    if not axes:
        return term
    name = ctx.add("reduce_sum", term.name, axes=axes, keepdims=False)
    return Term(name, "".join(c for c in term.labels if c in keep))


def arranged(ctx: Context, term: Term, labels: str) -> str:
    """The tensor with its axes in another order."""
    perm = tuple(term.labels.index(c) for c in labels)
    return term.name if perm == tuple(range(len(perm))) else ctx.add("transpose", term.name, perm=perm)


def multiply(ctx: Context, a: Term, b: Term, keep: set[str]) -> Term:
    """One product: shared kept labels are the batch, shared others are contracted."""
    a, b = (summed(ctx, t, keep | set(o.labels)) for t, o in ((a, b), (b, a)))
    sizes: dict[str, int] = {}
    for term in (a, b):
        for label, n in zip(term.labels, ctx.type(term.name).shape, strict=True):
            sizes[label] = max(sizes.get(label, 1), n)
    batch = "".join(c for c in a.labels if c in b.labels and c in keep)
    inner = "".join(c for c in a.labels if c in b.labels and c not in keep)
    rows = "".join(c for c in a.labels if c not in b.labels)
    columns = "".join(c for c in b.labels if c not in a.labels)
    left = _matrix(ctx, a, batch, rows, inner, sizes)
    right = _matrix(ctx, b, batch, inner, columns, sizes)
    labels = batch + rows + columns
    product = ctx.add("matmul", left, right)
    if ctx.type(product).dtype != ctx.type(left).dtype:  # of bytes
        product = ctx.add("cast", product, to=ctx.type(left).dtype)
    return Term(ctx.reshape(product, (sizes[c] for c in labels)), labels)


def _matrix(ctx: Context, term: Term, batch: str, first: str, second: str, sizes: dict[str, int]) -> str:
    labels = batch + first + second
    name = arranged(ctx, term, labels)
    full = tuple(sizes[c] for c in labels)
    if ctx.type(name).shape != full:
        name = ctx.add("expand", name, shape=full)
    return ctx.reshape(name, (prod(sizes[c] for c in group) for group in (batch, first, second)))


@converts("Einsum")
def einsum(ctx: Context) -> str:
    terms, output = parse(ctx)
    terms = [without_diagonals(ctx, t) for t in terms]
    while len(terms) > 1:
        rest = terms[2:]
        keep = set(output).union(*(set(t.labels) for t in rest)) if rest else set(output)
        terms = [multiply(ctx, terms[0], terms[1], keep), *rest]
    return arranged(ctx, summed(ctx, terms[0], set(output)), output)
