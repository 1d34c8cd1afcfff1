"""What a report leaves, by name, for whoever must know it without drawing anything."""

from __future__ import annotations

import re
from collections.abc import Sequence

PAGE = "report.html"
SPEED = "speedup.md"
TABLES = ("cells.csv", SPEED, "speedup.tex")
BRICKS = ("bricks.md", "bricks.csv", "machine.md")
FIGURES = ("speedup", "latency", "roofline", "accuracy")
"""Drawn wherever systems are compared. A/A comparisons (aa) and variants of our own (ablation) are drawn where they
were measured.
"""
FORMATS = ("pdf", "svg", "png")
REPEATED = re.compile(r"\.\d+$")
"""The end of a case's name where it is measured several times: `mlp.01`, `mlp.02`."""


def network_files(cases: Sequence[str]) -> list[str]:
    """The file names of the tables of each case; repetitions of a case share one."""
    names = dict.fromkeys(REPEATED.sub("", case) for case in cases)
    return [f"{name}.{suffix}" for name in names for suffix in ("md", "tex")]


def has_rivals(systems: Sequence[str]) -> bool:
    """Whether systems are compared at all, or one is measured against itself alone."""
    return len({system.partition("@")[0] for system in systems}) > 1


def report_files(
    cases: Sequence[str], systems: Sequence[str], bricks: bool = False, studies: Sequence[str] = ()
) -> list[str]:
    """Every file that a report of these cases and systems leaves for certain, relative to its folder; `bricks`: models
    were cut into bricks too; `studies`: what else was measured.
    """
    tables = [f"tables/{name}" for name in (*(TABLES if cases else ()), *network_files(cases))]
    tables += [f"tables/{name}" for name in BRICKS if bricks]
    tables += [f"tables/{name}.{suffix}" for name in studies for suffix in ("md", "csv", "tex")]
    figures = [*(FIGURES if cases and has_rivals(systems) else ()), *(["bricks"] if bricks else []), *studies]
    return [PAGE, *tables, *(f"figures/{name}.{suffix}" for name in figures for suffix in FORMATS)]
