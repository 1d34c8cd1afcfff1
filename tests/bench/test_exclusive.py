"""One measurement or build a machine at a time."""

import threading
from pathlib import Path

from mononn_bench.measure.build import build_system
from mononn_bench.measure.exclusive import exclusive_machine
from mononn_bench.measure.process import Limits


def test_a_build_waits_for_whoever_holds_the_machine(
    linear_folder: Path, driver_environment: Path, tmp_path: Path
) -> None:
    lock, output = tmp_path / "lock", tmp_path / "build"
    said: list[str] = []
    waiting = threading.Event()

    def say(text: str) -> None:
        said.append(text)
        waiting.set()

    building = threading.Thread(
        target=build_system,
        args=("fake-ok",),
        kwargs={
            "environment": driver_environment, "model_folder": linear_folder, "output": output, "threads": 1,
            "precision": "fp32", "target": "cpu", "limits": Limits(20, 600), "say": say, "lock": lock,
        },
    )  # fmt: skip
    with exclusive_machine(said.append, lock):
        building.start()
        assert waiting.wait(20), "the build did not wait"
        building.join(0.5)
        assert building.is_alive() and not (output / "build.json").exists()
    building.join(20)
    assert (output / "build.json").exists()
    assert said == ["another measurement or build holds this machine; waiting for it to end"]
