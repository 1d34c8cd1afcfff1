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
    Option,
    ReferenceRecord,
    Round,
    Settings,
    SystemResult,
    Tensor,
    Tuning,
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


def a_model(name, full_size=False, batch=1, flops=10**6, compulsory_bytes=8192):
    tensor = Tensor("x", "float32", (batch, 256))
    return ModelRecord(
        name,
        batch,
        full_size,
        "seeded",
        0,
        "zoo",
        "0" * 64,
        18,
        (tensor,),
        (tensor,),
        flops,
        4096,
        compulsory_bytes,
        {},
    )


def a_system(label, status="ok", reason="", slow=False, tuning=None, error=2e-7):
    check = AccuracyCheck("y", 0, "before", error, 1e-6, 1e-5, error < 1e-5)
    return SystemResult(
        label=label,
        system=label.partition("@")[0],
        status=status,
        reason=reason,
        version="1.0",
        versions={label: "1.0"},
        options=(Option("threads", "2", "the vendor's page"),),
        tuning=tuning,
        build_s=1.5,
        artifact_mb=8.0,
        load_ms=12.0,
        first_run_ms=3.0,
        peak_mb=50.0,
        identity_us=4.0,
        slow=slow,
        accuracy=(check,) if status in ("ok", "undertuned", "incorrect") else (),
    )


def a_block(label, seconds, accepted=True):
    """A block whose samples have a tail to the right, as real ones do; their median is its value."""
    samples = tuple(round(seconds * 1e9 * factor) for factor in (0.98, 0.985, 0.99, 0.995, 1, 1.01, 1.02, 1.05, 1.12))
    return Block(label, 0, accepted, True, seconds, seconds * 1.1, 9, 2, samples, QUIET)


def a_case(model, times, results=None, rounds=4, noise=0.01, seed=0, full_size=False, ceilings=True, **sizes):
    """A case in which each system of `times` (label to seconds) is measured with multiplicative noise by round.

    `sizes` are batch, flops and compulsory_bytes of the model.
    """
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
        model=a_model(model, full_size, **sizes),
        precision="fp32",
        target="cpu",
        machine=MACHINE,
        cores=(0, 1),
        settings=Settings(rounds=rounds, cycles=4),
        pairs_mode=False,
        systems=tuple(results.get(label) or a_system(label) for label in labels),
        rounds=tuple(measured),
        ceilings=Ceilings("c", 2.4e11, 2.3e11, 4.5e10, 2**20, 2**25) if ceilings else None,
        reference=ReferenceRecord("0" * 64, "PyTorch in float64", "torch", 4, 0, "0" * 64, {}),
        command=f"mononn-bench measure --model {model}",
        source_revision="0" * 40,
        versions={},
        wall_s=60.0,
    )


FULL_SIZE = {"bert-base": (0.105, 22e9, 344e6), "resnet50": (0.062, 8.2e9, 103e6), "vit-base": (0.190, 35e9, 347e6)}
FULL_SIZE["t5-small"] = (0.034, 6.5e9, 180e6)
RELATIVE = {"onnxruntime": 1.22, "openvino": 1.08, "torch-eager": 1.6, "torch-inductor": 1.14, "xla": 1.9, "tvm": 1.4}


def a_whole_run(seed=0):
    """Four full-size networks and eight systems, with every status somewhere among them, and our own twin."""
    tuned = Tuning(7200.0, 2, 4000)
    missing = a_system("tensorrt", "unavailable", "no NVIDIA GPU")
    rng = np.random.default_rng(seed)
    odd = {
        "bert-base": {"tvm": a_system("tvm", tuning=tuned, error=4e-7)},
        "resnet50": {"tvm": a_system("tvm", "undertuned", "12 of 34 tasks had no match in the database", tuning=tuned)},
        "vit-base": {
            "tvm": a_system("tvm", "timeout", "no answer for 120 s while it built the model"),
            "torch-inductor": a_system("torch-inductor", "disputed", "no independent system agrees with the reference"),
            "xla": a_system("xla", "incorrect", "relative L2 error 3e-2 of output y, above the limit 1e-5", error=3e-2),
        },
        "t5-small": {
            "tvm": a_system("tvm", "failed", 'OpNotImplemented: <Gather> is not supported & "quoted"'),
            "torch-eager": a_system("torch-eager", slow=True),
        },
    }
    records = []
    for i, (model, (ours, flops, size)) in enumerate(FULL_SIZE.items()):
        times = {"mononn": ours, "mononn@2": ours}
        times |= {name: ours * factor * rng.uniform(0.85, 1.15) for name, factor in RELATIVE.items()}
        if model == "t5-small":
            times["torch-eager"] = 2.4
        for label, result in odd[model].items():
            if result.status not in ("ok", "undertuned"):
                times.pop(label)
        results = {"mononn": a_system("mononn", error=3e-7), **odd[model], "tensorrt": missing}
        records.append(
            a_case(model, times, results, seed=seed + i, full_size=True, flops=int(flops), compulsory_bytes=int(size))
        )
    return records


def an_ablation(model, ours, seed=0):
    """Variants of our own system on one model."""
    slower = {"launch=phases": 1.3, "fuse=off": 1.21, "epilogues=off": 1.1, "prefetch=off": 1.0}
    times = {"mononn": ours, "mononn@2": ours} | {f"mononn[{k}]": ours * v for k, v in slower.items()}
    return a_case(model, times, seed=seed)


def same_system_runs(model, seconds, comparisons, seed=0, noise=0.02):
    """A system against itself, again and again."""
    return [
        a_case(model, {"mononn": seconds, "mononn@2": seconds}, seed=seed + i, noise=noise) for i in range(comparisons)
    ]
