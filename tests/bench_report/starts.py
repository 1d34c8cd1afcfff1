"""First answers of a network, with times that can be divided by hand."""

from __future__ import annotations

from dataclasses import replace

from mononn_bench.measure.environment import describe_machine
from mononn_bench.started import FirstAnswer, Starter, StartRecord, StartSettings


def starts(warm: list[float], cold: list[float]) -> tuple[FirstAnswer, ...]:
    found = [FirstAnswer(i, "warm", ms / 2, ms, True) for i, ms in enumerate(warm)]
    return (*found, *(FirstAnswer(i, "cold", ms / 2, ms, i > 0) for i, ms in enumerate(cold)))


def starter(label: str, warm: list[float], cold: list[float]) -> Starter:
    host = "Python" if "Python" in label else "native"
    return Starter(
        label, label.split()[0], "Python" if host == "Python" else "native", "ok", "", "1", f"how {label}", 100.0,
        starts(warm, cold), 123.4, 20.0, 456.7,
    )  # fmt: skip


RECORD = StartRecord(
    created="now", model="net", batch=1, model_digest="0", precision="fp32",
    machine=replace(describe_machine(), name="here"), cores=(0, 1), settings=StartSettings(3, 2, 8, 2),
    starters=(
        starter("mononn native shared", [10.0, 20.0, 10.0], [100.0, 100.0]),
        starter("mononn native private", [20.0, 40.0, 20.0], [100.0, 100.0]),
        starter("mononn Python", [50.0, 50.0, 50.0], []),
        starter("rival native", [40.0, 80.0, 40.0], [300.0, 300.0]),
        replace(starter("rival Python", [100.0] * 3, []), status="incorrect", reason="output y is off"),
    ),
    command="again", source_revision="r", versions={}, wall_s=1.0,
)  # fmt: skip
