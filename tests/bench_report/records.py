"""Case records made of known times, so that what analysis finds can be checked."""

import numpy as np

from mononn_bench.record import (
    AccuracyCheck,
    Block,
    CaseRecord,
    Ceilings,
    Cycle,
    Disturbance,
    Machine,
    ModelRecord,
    ReferenceRecord,
    Round,
    Settings,
    SystemResult,
    Tensor,
)

QUIET = Disturbance(0.2, 0.0, 0.0, 0, 0)
MACHINE = Machine(
    name="some-machine-2c",
    cpu="Some CPU",
    architecture="x86_64",
    flags=("avx2",),
    cores=2,
    caches_kib={"L2": 1024, "L3": 32768},
    memory_mb=24000,
    kernel="6.1",
    libc="glibc 2.36",
    hypervisor="none",
    clock="not exposed",
    governor="not exposed",
)


def a_model(name, full_size=False):
    tensor = Tensor("x", "float32", (1, 256))
    return ModelRecord(
        name, 1, full_size, "seeded", 0, "zoo", "0" * 64, 18, (tensor,), (tensor,), 10**6, 4096, 8192, {}
    )


def a_system(label, status="ok", reason="", slow=False):
    check = AccuracyCheck("y", 0, "before", 2e-7, 1e-6, 1e-5, True)
    return SystemResult(
        label=label,
        system=label.partition("@")[0],
        status=status,
        reason=reason,
        version="1.0",
        versions={label: "1.0"},
        options=(),
        tuning=None,
        build_s=1.5,
        artifact_mb=8.0,
        load_ms=12.0,
        first_run_ms=3.0,
        peak_mb=50.0,
        identity_us=4.0,
        slow=slow,
        accuracy=(check,) if status == "ok" else (),
    )


def a_block(label, seconds, accepted=True):
    nanoseconds = round(seconds * 1e9)
    return Block(label, 0, accepted, True, seconds, seconds * 1.1, 9, 2, (nanoseconds,) * 9, QUIET)


def a_case(model, times, results=None, rounds=4, noise=0.01, seed=0, full_size=False, ceilings=True):
    """A case in which each system of `times` (label to seconds) is measured with multiplicative noise by round."""
    rng = np.random.default_rng(seed)
    results = results or {}
    measured = []
    for index in range(rounds):
        drift = rng.uniform(0.8, 1.25)
        factors = {label: drift * np.exp(rng.normal(0, noise)) for label in times}
        cycles = []
        for cycle in range(4):
            order = tuple(rng.permutation(list(times)).tolist())
            blocks = [a_block(label, times[label] * factors[label]) for label in order]
            blocks.insert(0, a_block(order[0], 1.0, accepted=False))
            cycles.append(Cycle(cycle, order, tuple(blocks), None))
        measured.append(Round(index, 0, tuple(times), tuple(cycles), 0.01, 0.0, ()))
    labels = list(dict.fromkeys([*times, *results]))
    return CaseRecord(
        run_id=f"run-{model}",
        created="2026-01-01T00:00:00Z",
        model=a_model(model, full_size),
        precision="fp32",
        target="cpu",
        machine=MACHINE,
        cores=(0, 1),
        settings=Settings(rounds=rounds),
        pairs_mode=False,
        systems=tuple(results.get(label) or a_system(label) for label in labels),
        rounds=tuple(measured),
        ceilings=Ceilings("c", 2e11, 1e11, 2e10, 2**20, 2**25) if ceilings else None,
        reference=ReferenceRecord("0" * 64, "PyTorch in float64", "torch", 4, 0, "0" * 64, {}),
        command=f"mononn-bench measure --model {model}",
        source_revision="0" * 40,
        versions={},
        wall_s=60.0,
    )
