"""Between the passes of every test in this folder the Graph is verified."""

from __future__ import annotations

from collections.abc import Iterator

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
