"""Element types: one place names the floats, and everything else asks it."""

from __future__ import annotations

import ast
from pathlib import Path

import numpy as np
import pytest

from mononn_core.element import C_TYPES, COMPUTE, CUDA_TYPES, FLOATS, NARROW, accumulator, computed, is_float, itemsize

CORE = Path(__file__).resolve().parents[2] / "mononn_core"
ASKING = ("codegen", "compiler", "cost", "decide", "lower", "ops", "passes", "program", "schedule", "templates")
"""Folders that are written for all element types. Importers name ONNX's, the runtime those of its interface."""


def named(text: str, file: str = "x.py") -> list[str]:
    """Where a file names a float type, as a string or as NumPy's attribute; docstrings may."""
    tree = ast.parse(text)
    told = {id(n.value) for n in ast.walk(tree) if isinstance(n, ast.Expr)}
    return [
        f"{file}:{n.lineno} names {name}"
        for n in ast.walk(tree)
        if id(n) not in told
        for name in [n.value if isinstance(n, ast.Constant) else n.attr if isinstance(n, ast.Attribute) else ""]
        if name in FLOATS
    ]


def test_only_element_names_floats() -> None:
    files = [p for folder in ASKING for p in sorted((CORE / folder).rglob("*.py"))]
    files += [p for p in sorted(CORE.glob("*.py")) if p.name != "element.py"]
    assert len(files) > 100
    assert [e for p in files for e in named(p.read_text(), str(p.relative_to(CORE.parent)))] == []


@pytest.mark.parametrize(
    "text", ['kind == "float32"', 'x = {"bfloat16": 2}', "x.astype(np.float64)", 'f(replace(e, dtype="float16"))']
)
def test_a_named_float_is_seen(text: str) -> None:
    (found,) = named(f'"""float32"""\n\n{text}\n', "a/b.py")
    assert found.startswith("a/b.py:3 names ")


def test_a_document_may_name_floats() -> None:
    assert not named('"""float32"""\nX = "bool"\n"""float16"""\n"of float32"\ny = f"convert to float32: {X}"')


@pytest.mark.parametrize("dtype", CUDA_TYPES)
def test_a_held_type_has_bytes_and_is_computed_with_in_a_type_of_c(dtype: str) -> None:
    assert itemsize(dtype) == np.dtype(dtype).itemsize
    assert computed(dtype) in C_TYPES
    assert accumulator(dtype) in C_TYPES
    assert (computed(dtype) == dtype) == (dtype not in NARROW)
    assert is_float(dtype) == (dtype in FLOATS)
    assert not is_float(dtype) or accumulator(dtype) == computed(dtype)


def test_narrow_floats_are_added_up_in_what_is_computed_with() -> None:
    assert {accumulator(dtype) for dtype in NARROW} == {COMPUTE}
    assert accumulator("int8") == accumulator("uint8") == "int32"
