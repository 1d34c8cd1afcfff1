"""What may be given in place of a family's shapes, found by a process beside the compiler or in this one."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from mononn_core import compiler
from mononn_core.compiler import shorter
from mononn_core.errors import MononnError
from mononn_core.importer import Imported
from tests.core.test_padding_length import LOWEST, masked, model, shapes

LENGTHS = [shapes(n) for n in (8, 12, 15)]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    found = tmp_path / "model.onnx"
    found.write_bytes(model(masked(LOWEST)))
    return found


@pytest.fixture
def beside(monkeypatch: pytest.MonkeyPatch) -> list[int | None]:
    """A process beside for every network; how each ended."""
    ended: list[int | None] = []
    found = shorter.Proofs.found

    def watched(proofs: shorter.Proofs) -> list[shorter.Replacements]:
        seen = found(proofs)
        ended.append(proofs.prover.returncode if proofs.prover else None)
        return seen

    monkeypatch.setattr(shorter, "BESIDE", 1)
    monkeypatch.setattr(shorter.Proofs, "found", watched)
    return ended


def test_a_process_beside_finds_the_same(path: Path, beside: list[int | None]) -> None:
    """Sequences may be 9 to 11, and 13 or 14 long, and as short as 1."""
    here = shorter.prove(Imported(path), LENGTHS)
    assert [[about["least"] for about in each if 1 in about["inputs"]["x"]] for each in here] == [[1], [9], [13]]
    there = compiler.build_family(path, LENGTHS, threads=2)
    known = [about.get("shorter") for about in (there.manifest, *there.manifest["further"])]
    assert json.dumps(known) == json.dumps(here)
    assert beside == [0]


@pytest.mark.parametrize(
    ("program", "ended"), [("python", 1), ("deaf/python", 1), ("nowhere/python", None), ("studio", None)]
)
@pytest.mark.parametrize("patience", [0, 0.2])
def test_where_there_is_none_this_one_proves(
    patience: float,
    program: str,
    ended: int | None,
    path: Path,
    beside: list[int | None],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """One that fails, or ends before it is told anything; none at all; an application's own program."""
    (path.parent / "deaf").mkdir()
    for name, text in (("python", "cat > /dev/null; exit 1"), ("deaf/python", "exec <&-; exit 1"), ("studio", "")):
        (path.parent / name).write_text(f"#!/bin/sh\n{text}\n")
        (path.parent / name).chmod(0o755)
    started = subprocess.Popen

    def slowly(*arguments: Any, **options: Any) -> Any:
        process = started(*arguments, **options)
        time.sleep(patience)
        return process

    monkeypatch.setattr(subprocess, "Popen", slowly)
    monkeypatch.setattr(sys, "executable", str(path.parent / program))
    with shorter.Proofs(Imported(path), LENGTHS) as proofs:
        found = proofs.found()
    assert found == shorter.prove(Imported(path), LENGTHS)
    assert beside == [ended]


def test_it_ends_where_the_compiler_fails(
    path: Path, beside: list[int | None], monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[shorter.Proofs] = []
    entered = shorter.Proofs.__enter__
    monkeypatch.setattr(shorter.Proofs, "__enter__", lambda proofs: (seen.append(proofs), entered(proofs))[1])
    with pytest.raises(MononnError, match="at "):
        compiler.build_family(path, [*LENGTHS, {"x": (2, 8, 31), "mask": (2, 8)}], threads=2)
    (proofs,) = seen
    assert proofs.prover is not None and proofs.prover.returncode is not None and not beside
