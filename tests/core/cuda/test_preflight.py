"""The preflight: on the emulator, over the fake CuPy, and on GPUs that fail it."""

from __future__ import annotations

import sys
from types import SimpleNamespace

import numpy as np
import pytest

import mononn_core
from mononn_core.emulate.errors import RaceError
from mononn_core.errors import DeviceError
from mononn_core.runtime import preflight
from mononn_core.runtime.cuda_device import Present
from tests.core.cuda.fake_cupy import SMS, FakeCupy


def test_on_the_emulator() -> None:
    found = mononn_core.preflight(on_gpu=False)
    assert found["blocks"] == preflight.EMULATED_BLOCKS
    assert "address 0x10, in no buffer" in found["fault"] and min(found["load_s"], found["run_s"]) > 0


def test_over_cupy(monkeypatch: pytest.MonkeyPatch) -> None:
    fake = FakeCupy(preflight.source())
    monkeypatch.setitem(sys.modules, "cupy", fake)
    monkeypatch.setattr(preflight, "present", lambda: Present("a GPU", "sm_90a", (13, 0)))
    asked = []

    def compiled(source: str, headers: dict[str, str], arch: str) -> SimpleNamespace:
        asked.append((arch, "mononn_cuda.cuh" in headers))
        return SimpleNamespace(code=b"code")

    monkeypatch.setattr(preflight, "compile_cubin", compiled)
    assert mononn_core.preflight(on_gpu=True)["blocks"] == SMS
    assert asked == [("sm_90a", True)] and fake.loaded == [b"code"]
    assert [(call.cooperative, call.iteration) for call in fake.calls] == [(True, 0), (True, preflight.NOWHERE)]


def test_a_barrier_that_is_missing_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = preflight.source()
    assert whole.count("  barrier(call.sync);\n") == 1
    monkeypatch.setattr(preflight, "source", lambda: whole.replace("  barrier(call.sync);\n", ""))
    with pytest.raises(RaceError):
        mononn_core.preflight(on_gpu=False)


@pytest.mark.parametrize(
    ("sums", "reason"), [([1, 3], "went through a barrier"), ([5, 5], "address 16 was not reported")]
)
def test_a_gpu_that_fails_it(sums: list[int], reason: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(preflight, "_on_gpu", lambda: (lambda address: np.array([1, 4, *sums], np.uint32), 2))
    with pytest.raises(DeviceError, match=reason):
        mononn_core.preflight(on_gpu=True)
