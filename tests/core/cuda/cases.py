"""Every hand-written CUDA Program in every kind of arithmetic: name -> Case."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from tests.core.build import Case
from tests.core.cuda import programs, programs_nests, programs_windows
from tests.core.cuda.programs import HALF

CASES: dict[str, Callable[[], Case]] = {
    f"{family.__name__}-{kind}": partial(family, kind)
    for family in (*programs.FAMILIES, *programs_nests.FAMILIES, *programs_windows.FAMILIES)
    for kind in HALF
} | {
    f"{family.__name__}-{kind}": partial(family, kind)
    for family in programs.STAGED_FAMILIES
    for kind in HALF
    if kind != "tf32x3"
}
