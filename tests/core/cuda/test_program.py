"""The verifier over what is new in CUDA Programs: every mutant refused, and the text form tells of it."""

from __future__ import annotations

from functools import cache

import pytest

from mononn_core.errors import VerifyError
from mononn_core.program.ir import Program
from mononn_core.program.text import to_text
from mononn_core.program.verify import verify
from tests.core.cuda.mutations import MUTATIONS
from tests.core.cuda.test_schedule import lowered

NAMES = ("mlp", "encoder", "wide encoder", "translator", "patches", "mobile")


@cache
def programs() -> dict[str, Program]:
    return {name: lowered(name).program for name in NAMES}


@pytest.mark.parametrize("name", MUTATIONS)
def test_wrong_programs_are_refused(name: str) -> None:
    sites = [(model, site, changed) for model, p in programs().items() for site, changed in MUTATIONS[name](p)]
    assert sites
    accepted = [(model, site) for model, site, changed in sites[:: len(sites) // 4 + 1] if not _refused(changed)]
    assert accepted == []


def _refused(program: Program) -> bool:
    try:
        verify(program)
    except VerifyError:
        return True
    return False


def test_the_text_shows_bodies_bounds_and_parts() -> None:
    text = to_text(programs()["wide encoder"])
    assert "float16(" in text
    assert "for m, n while m < r * -16 + 20: out[" in text
    assert "write fill = left[16x32]" in text
    assert "@parts" in text and "held[1x32]" in text
