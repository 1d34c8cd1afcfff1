"""Weights in 16 bits: neighbours of what they were, and sums that are kept."""

from __future__ import annotations

import ml_dtypes  # noqa: F401 (NumPy learns bfloat16)
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from mononn_core.lower import rounding
from mononn_core.lower.rounding import rounded


def neighbours(values: np.ndarray, dtype: str) -> tuple[np.ndarray, np.ndarray]:
    """(the largest number of ``dtype`` that is not above, the smallest that is not below) each value."""
    nearest = values.astype(dtype)
    bits, exact = nearest.view(np.int16), nearest.astype(np.float64)
    away = np.where(exact > values, -1, 1) * np.where(bits < 0, -1, 1)
    away = np.where((bits & 0x7FFF) == 0, 0, away)
    other = np.where(exact == values, bits, bits + away).astype(np.int16).view(dtype).astype(np.float64)
    return np.minimum(exact, other), np.maximum(exact, other)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@given(st.data())
def test_every_weight_is_a_neighbour_of_what_it_was(dtype: str, data: st.DataObject) -> None:
    limit = 2.0**127 if dtype == "bfloat16" else 2.0**15
    shape = data.draw(st.tuples(st.integers(0, 20), st.integers(0, 5)))
    values = data.draw(arrays.arrays(np.float32, shape, elements=st.floats(-limit, limit, width=32)))
    found, nearest = rounded(values, dtype).astype(np.float64), values.astype(dtype).astype(np.float64)
    low, high = neighbours(values, dtype)
    normal = np.abs(values) > 1e-4  # where a number below is none of the smallest
    assert ((found == low) | (found == high) | ~normal).all()
    wide = values.astype(np.float64)
    assert (np.abs((found - wide).sum(0)) <= np.abs((nearest - wide).sum(0)) * (1 + 1e-5) + 1e-30).all()


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize("terms", [9, 49, 576, 3072])
def test_sums_are_kept_and_hardly_an_error_grows(dtype: str, terms: int) -> None:
    values = np.random.default_rng(terms).normal(size=(terms, 64)).astype(np.float32)
    nearest, found = values.astype(dtype).astype(np.float64), rounded(values, dtype).astype(np.float64)
    spacing = np.abs(values).max() * (2.0**-7 if dtype == "bfloat16" else 2.0**-10)
    assert (np.abs((found - values).sum(0)) <= spacing / 2).all()
    if terms >= 49:
        assert np.square(found - values).sum() < 1.05 * np.square(nearest - values).sum()
        assert np.abs((found - values).sum(0)).mean() < np.abs((nearest - values).sum(0)).mean() / 3


def test_a_mean_stays_a_mean() -> None:
    """49 times the nearest number to 1 / 49 is 0.1 % below 1."""
    values = np.full((49, 3), 1 / 49, np.float32)
    assert np.abs(values.astype("bfloat16").astype(float).sum(0) - 1).min() > 1e-3
    assert np.abs(rounded(values, "bfloat16").astype(float).sum(0) - 1).max() < 1e-4


def test_what_is_no_number_or_too_large_stays_so(monkeypatch: pytest.MonkeyPatch) -> None:
    values = np.random.default_rng(0).normal(size=(40, 6)).astype(np.float32)
    plain = rounded(values, "float16")
    values[3, 1], values[5, 2], values[7, 3] = np.nan, np.inf, 1e6
    found = rounded(values, "float16")
    assert np.isnan(found[3, 1]) and found[5, 2] == np.inf and found[7, 3] == np.inf
    np.testing.assert_array_equal(found[:, [0, 4, 5]], plain[:, [0, 4, 5]])
    monkeypatch.setattr(rounding, "AT_ONCE", 1)
    np.testing.assert_array_equal(rounded(values, "float16"), found)
