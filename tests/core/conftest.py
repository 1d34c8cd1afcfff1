"""Between the passes of every test in this folder the Graph is verified; each has the same random numbers."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

import pytest

from mononn_core.passes import pipeline
from tests.core.graphs import checked


@pytest.fixture(autouse=True, scope="session")
def verified_passes() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pipeline, "PIPELINE", tuple((name, checked(name, step)) for name, step in pipeline.PIPELINE))
        for lists in (pipeline.QUANTISED, pipeline.FORMS):
            for target, steps in lists.items():
                patch.setitem(lists, target, tuple((name, checked(name, step)) for name, step in steps))
        yield


FIRST: dict[str, Any] = {}
"""How the generator ``RANDOM`` of a module starts."""


@pytest.fixture(autouse=True)
def same_numbers(request: pytest.FixtureRequest) -> None:
    """Whichever tests ran before."""
    numbers = getattr(request.module, "RANDOM", None)
    if numbers is not None:
        name = request.module.__name__
        numbers.bit_generator.state = FIRST.setdefault(name, copy.deepcopy(numbers.bit_generator.state))
