"""Golden files: a test compares text with a committed file, ``--update-golden`` rewrites the file."""

from __future__ import annotations

import gc
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path

import pytest

GOLDEN = Path(__file__).parent / "golden"


LONGEST = "workflow"

# A collection goes through all that PyTorch and ONNX have imported, and finds little: fewer take a tenth less time.
gc.set_threshold(200_000, 50, 100)


@pytest.hookimpl(tryfirst=True)  # pytest-xdist reads the groups in the same hook
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Processes of pytest-xdist take whole files, which share fixtures; the longest folder whole, and first."""
    for item in items:
        folder, file = item.path.parent.name, item.path.relative_to(GOLDEN.parent)
        item.add_marker(pytest.mark.xdist_group(LONGEST if folder == LONGEST else str(file)))
    items.sort(key=lambda item: item.path.parent.name != LONGEST)
    leave_to_the_slow_tier(items)


def leave_to_the_slow_tier(items: list[pytest.Item]) -> None:
    """Of a test ``@pytest.mark.in_turn("a", "b", "c")`` each pair of b and c has one value of a, in turn; with the
    other values it is slow."""
    turns = []
    values: defaultdict[tuple[str, str], list[object]] = defaultdict(list)
    for item in items:
        if not (mark := item.get_closest_marker("in_turn")):
            continue
        assert isinstance(item, pytest.Function)
        seen = [values[item.nodeid.partition("[")[0], name] for name in mark.args]
        given = [item.callspec.params[name] for name in mark.args]
        for known, value in zip(seen, given, strict=True):
            if value not in known:
                known.append(value)
        turns.append((item, seen, given))
    for item, seen, given in turns:
        if sum(known.index(value) for known, value in zip(seen, given, strict=True)) % len(seen[0]):
            item.add_marker(pytest.mark.slow)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--update-golden", action="store_true", help="rewrite the golden files with what the tests print")


@pytest.fixture
def golden(request: pytest.FixtureRequest) -> Callable[[str, str], None]:
    """``golden(name, text)``: assert that ``text`` is what tests/golden/NAME holds."""

    def check(name: str, text: str) -> None:
        path = GOLDEN / name
        if request.config.getoption("--update-golden"):
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
        assert path.exists(), f"{path} is missing: make golden"
        assert text == path.read_text(encoding="utf-8"), f"{path.name} differs: look, then make golden"

    return check
