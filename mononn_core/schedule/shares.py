"""What an owner has of the matrix of a tensor that loops compute, and how its rows and columns fall into runs."""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil, gcd, prod

from mononn_core.program.expr import Const, Expr, Var
from mononn_core.program.rules import IN_TURN
from mononn_core.program.simplify import linear
from mononn_core.schedule.binder import OWNER
from mononn_core.schedule.schedule import Partition
from mononn_core.schedule.views import matrix_shape


@dataclass(frozen=True)
class Share:
    """What an owner has of a matrix: ``extents`` (rows, columns) from (y0, x0) on; ``ends``: how many of them there are
    for the last owner, where its share is cut off."""

    extents: tuple[int, int]
    y0: Expr
    x0: Expr
    ends: tuple[Expr | None, Expr | None]


def owners_of(partition: Partition) -> int:
    return partition.owners if partition.kind in ("rows", "columns") else 1


def share_of(shape: tuple[int, ...], partition: Partition) -> Share:
    """An owner's share of the matrix of a tensor of ``shape``."""
    (total, width), owners, bands = matrix_shape(shape), owners_of(partition), partition.bands
    owner: Expr = Var(OWNER) if owners > 1 else Const(0)
    if partition.kind == "columns":
        columns = ceil(width / owners)
        end = Const(width) + owner * -columns if columns * owners > width else None
        return Share((total, columns), Const(0), owner * columns, (None, end))
    rows = step = rows_of_an_owner(shape, owners)
    first = 0
    if bands is not None:
        rows, step, first = bands.size, bands.step, bands.first
    y0 = owner * step + first
    end = Const(total) + y0 * -1 if first + step * (owners - 1) + rows > total else None
    return Share((rows, width), y0, Const(0), (end, None))


def rows_of_an_owner(shape: tuple[int, ...], owners: int) -> int:
    """Rows of the matrix of a tensor of ``shape`` that an owner gets: whole runs of the last axes but the columns, as
    long as can be, such as whole rows of images, as a convolution deals them, where that is no worse than a tenth."""
    total, _ = matrix_shape(shape)
    for first in range(1, len(shape) - 1):
        run = prod(shape[first:-1])
        if run and (share := ceil(total // run / owners) * run) * owners <= 1.1 * total:
            return share
    return ceil(total / owners)


def inner_axes(shape: tuple[int, ...], share: Share, parts: bool = True) -> tuple[int, ...]:
    """The last axes of a tensor's rows, all but the first, of which every owner has whole runs; with ``parts`` of the
    next one the equal parts, if any, of which it has whole runs."""
    terms, constant = linear(share.y0)
    found: tuple[int, ...] = ()
    for extent in reversed(shape[1:-1]):
        inside = prod(found)
        part = gcd(inside * extent, share.extents[0], constant, *terms.values()) // inside
        if part < extent and (part == 1 or not parts):
            break
        found = (part, *found)
        if part < extent:
            break
    return found if prod(found) > 1 else ()


def run_of(share: Share, divisors: set[int], lanes: int) -> int:
    """Columns of a run within which no number that is divided passes a multiple of its divisor; 0 where runs would be
    shorter than a vector, but for those of few columns of which there are many, or an owner has no whole runs."""
    terms, constant = linear(share.x0)
    run = gcd(*divisors, share.extents[1], constant, *terms.values())
    few = 1 < run <= IN_TURN and share.extents[1] // run >= lanes
    return run if divisors and share.ends[1] is None and (few or lanes <= run < share.extents[1]) else 0
