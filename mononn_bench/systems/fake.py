"""Systems for tests: one that works, and one for each way a rival can fail. They run in the driver's interpreter."""

from __future__ import annotations

import ctypes
import time
from typing import Any, ClassVar

import numpy as np

from mononn_bench.errors import SystemUnavailableError
from mononn_bench.models.zoo import IDENTITY
from mononn_bench.record import Option
from mononn_bench.systems.base import Arrays, Built, System, Task

DRIVER = "driver"
"""The environment of these systems: the interpreter that runs the suite."""


class FakeOk(System):
    """Right answers, from onnx's reference evaluator."""

    name: ClassVar[str] = "fake-ok"
    environment: ClassVar[str] = DRIVER
    family: ClassVar[str] = "onnx"

    def __init__(self) -> None:
        self._evaluator: Any = None
        self._inputs: Arrays = {}
        self._outputs: Arrays = {}

    def probe(self) -> dict[str, str]:
        import onnx

        return {self.name: "1", "onnx": onnx.__version__}

    def options(self, task: Task) -> tuple[Option, ...]:
        return ()

    def build(self, task: Task) -> Built:
        (task.build_folder / "model.onnx").write_bytes(task.onnx.read_bytes())
        return Built()

    def load(self, task: Task) -> None:
        import onnx

        from mononn_bench.models.evaluator import make_evaluator

        print("a library that talks on standard output")
        self._evaluator = make_evaluator(onnx.load(task.build_folder / "model.onnx"))

    def bind(self, inputs: Arrays) -> None:
        self._inputs = inputs

    def run(self) -> None:
        results = self._evaluator.run(None, self._inputs)
        self._outputs = dict(zip(self._evaluator.output_names, results, strict=True))

    def outputs(self) -> Arrays:
        return self._outputs


class FakeMissing(FakeOk):
    """A library that is not installed."""

    name: ClassVar[str] = "fake-missing"

    def probe(self) -> dict[str, str]:
        raise SystemUnavailableError("the library fake is not installed")


class FakeBroken(FakeOk):
    """A build that raises."""

    name: ClassVar[str] = "fake-broken"

    def build(self, task: Task) -> Built:
        raise ValueError("operator Softmax is not supported")


class FakeNoIdentity(FakeOk):
    """A library that reads address zero when it builds the one-node model."""

    name: ClassVar[str] = "fake-no-identity"

    def build(self, task: Task) -> Built:
        if task.model.name == IDENTITY.name:
            ctypes.string_at(0)
        return super().build(task)


class FakeTuned(FakeOk):
    """A build that times what it chooses from."""

    name: ClassVar[str] = "fake-tuned"
    tunes_by_timing: ClassVar[bool] = True


class FakeCrash(FakeOk):
    """A library that reads address zero in its first run."""

    name: ClassVar[str] = "fake-crash"

    def run(self) -> None:
        ctypes.string_at(0)


class FakeHang(FakeOk):
    """A run that does not come back."""

    name: ClassVar[str] = "fake-hang"

    def run(self) -> None:
        time.sleep(3600)


class FakeMemory(FakeOk):
    """A load that takes ever more memory."""

    name: ClassVar[str] = "fake-memory"

    def load(self, task: Task) -> None:
        held = []
        while True:
            held.append(np.ones(2_000_000))
            time.sleep(0.005)


class FakeWrong(FakeOk):
    """Answers that are wrong by a thousandth."""

    name: ClassVar[str] = "fake-wrong"

    def outputs(self) -> Arrays:
        return {name: array * np.float32(1.001) for name, array in self._outputs.items()}


class FakeNan(FakeOk):
    """Answers that are not numbers."""

    name: ClassVar[str] = "fake-nan"

    def outputs(self) -> Arrays:
        return {name: array * np.float32("nan") for name, array in self._outputs.items()}


class FakeLate(FakeOk):
    """Right answers until it has run a while, wrong ones after: only the check after the last block sees it."""

    name: ClassVar[str] = "fake-late"
    _runs = 0

    def run(self) -> None:
        super().run()
        self._runs += 1
        if self._runs > 20:
            self._outputs = {name: array + np.float32(0.5) for name, array in self._outputs.items()}


class FakeSlow(FakeOk):
    """A run of more than a fifth of a second."""

    name: ClassVar[str] = "fake-slow"

    def run(self) -> None:
        super().run()
        time.sleep(0.2)


FAKES: tuple[type[System], ...] = (
    FakeOk, FakeMissing, FakeBroken, FakeCrash, FakeHang, FakeMemory, FakeWrong, FakeNan, FakeLate, FakeSlow,
    FakeNoIdentity, FakeTuned,
)  # fmt: skip
