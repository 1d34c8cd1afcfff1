"""Every one of ONNX's single-operator tests compiled and run: ``make test-backend``, some twenty minutes on two cores.

``onnx_backend_compiled.txt`` has a line for each: "name", of one whose compiled code gives the right answer, or
"name: why not". ``--update-golden`` rewrites it.
"""

from __future__ import annotations

import os
import warnings
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from mononn_core.errors import MononnError, UnsupportedError, VerifyError
from tests.core.test_backend import answer, node_tests

RECORD = Path(__file__).parent / "onnx_backend_compiled.txt"
LEAST = 1600
"""ONNX Runtime's own count of these tests is 1,454."""


def compiled(name: str) -> str:
    """Why the compiled code of a test does not give its answer; "" where it does."""
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        try:
            answer(node_tests()[name], "compile")
        except VerifyError:
            raise
        except UnsupportedError as error:
            return f"refused: {' '.join(str(error).split())}"
        except MononnError as error:
            return f"{type(error).__name__}: {' '.join(str(error).split())}"
        except AssertionError as error:
            return f"another answer: {' '.join(str(error).split())[:120]}"
    return ""


@pytest.mark.backend
def test_every_node_test_compiled(request: pytest.FixtureRequest) -> None:
    names = sorted(node_tests())
    with ProcessPoolExecutor(os.cpu_count()) as pool:
        found = dict(zip(names, pool.map(compiled, names, chunksize=4), strict=True))
    lines = [f"{name}: {why}" if why else name for name, why in found.items()]
    if request.config.getoption("--update-golden"):
        RECORD.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    wanted = {line for line in RECORD.read_text(encoding="utf-8").splitlines() if line in found}
    assert {name: found[name] for name in wanted if found[name]} == {}
    assert sum(not why for why in found.values()) >= LEAST


def test_the_record_counts_enough() -> None:
    lines = RECORD.read_text(encoding="utf-8").splitlines()
    assert sum(":" not in line for line in lines) >= LEAST
    assert not [line for line in lines if "another answer" in line and "dft_inverse" not in line]
