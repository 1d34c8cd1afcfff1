"""Between the passes of every test in this folder the Graph is verified; each has the same random numbers."""

from __future__ import annotations

import copy
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from mononn_core.passes import pipeline
from tests.core.graphs import checked


@pytest.fixture(autouse=True, scope="session")
def verified_passes() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        for listed in ("PIPELINE", "IN_FLOATS"):
            found = getattr(pipeline, listed)
            patch.setattr(pipeline, listed, tuple((name, checked(name, step)) for name, step in found))
        for lists in (pipeline.QUANTISED, pipeline.FORMS):
            for target, steps in lists.items():
                patch.setitem(lists, target, tuple((name, checked(name, step)) for name, step in steps))
        yield


FIRST: dict[str, Any] = {}
"""How the generator ``RANDOM`` of a module starts."""


@pytest.fixture(autouse=True)
def same_numbers() -> None:
    """Whichever tests ran before, and whichever module's helper draws them."""
    for name, module in [*sys.modules.items()]:
        numbers = getattr(module, "RANDOM", None) if name.startswith("tests.core.") else None
        if numbers is not None:
            numbers.bit_generator.state = FIRST.setdefault(name, copy.deepcopy(numbers.bit_generator.state))
