"""The tiny networks on the emulator: in every schedule the same bits, no race, near float64 and the Program's VM."""

import numpy as np
import pytest

from mononn_bench.gpu_suite.case import Case, make_models
from mononn_core import compiler
from mononn_core.program import interpret
from mononn_core.runtime.emulated import EmulatedSession
from tests.core.emulate.kernels import SCHEDULES
from tests.core.networks import encoder

NETWORKS = ("mlp-test", "bert-test", "t5-test", "vit-test")
REFERENCE = {"fp32": 1e-5, "fp16": 5e-3, "bf16": 4e-2}
"""Largest error against float64, of the largest value."""
MACHINE = {"fp32": 1e-5, "fp16": 5e-3, "bf16": 4e-2}
"""The same against the VM, which rounds where the code does but sums in another order."""
BLOCKS = (1, 4, 7)

pytestmark = pytest.mark.emulated


@pytest.fixture(scope="module")
def work(tmp_path_factory):
    return str(tmp_path_factory.mktemp("models"))


def error(answers, expected):
    """Of all outputs: the largest difference, of the largest value."""
    return max(
        float(np.abs(answers[name].astype(np.float64) - value).max() / np.abs(value).max())
        for name, value in expected.items()
    )


def run_machine(program, weights, feeds, exact):
    """The VM's answers, shaped as ``exact``."""
    shaped = {n: f.reshape(program.buffer(n).shape) for n, f in zip(program.inputs, feeds, strict=True)}
    answers = interpret.run(program, shaped, dict(weights))
    ordered = [answers[name].astype(np.float64) for name in program.outputs]
    return {name: array.reshape(exact[name].shape) for name, array in zip(exact, ordered, strict=True)}


@pytest.mark.parametrize("launch", ["once", "graph"])
@pytest.mark.parametrize("precision", list(REFERENCE))
@pytest.mark.parametrize("network", NETWORKS)
def test_a_network_agrees_in_every_schedule(network, precision, launch, work):
    case = Case(work, network, 1, "fp32", "cpu")
    make_models([case], "cpu")
    with np.load(case.reference) as stored:
        feeds = {name[5:]: stored[name] for name in stored.files if name.startswith("0/in/")}
        exact = {name[6:]: stored[name] for name in stored.files if name.startswith("0/out/")}
    stages = compiler.lower(case.folder / "model.onnx", target="cuda-emulated", precision=precision, launch=launch)
    artifact = compiler.build(stages)
    machine = run_machine(stages.program, stages.lowered.weights, list(feeds.values()), exact)
    session, first = EmulatedSession(artifact), {}
    for schedule in SCHEDULES:
        for blocks in BLOCKS:
            session.schedule, session.workers = schedule, blocks
            binding = session.bind(feeds)
            binding.run()
            answers = {name: array.copy() for name, array in binding.results().items()}
            first = first or answers
            assert all(np.array_equal(answers[name], first[name]) for name in exact), (schedule, blocks)
    assert error(first, exact) < REFERENCE[precision]
    assert error(first, machine) < MACHINE[precision]


def test_a_layer_of_full_width_on_a_whole_gpu():
    """BERT-base's layer as an H100 runs it, 132 blocks of it, under the race detector; beside the CPU's answer."""
    model = encoder(layers=1, tokens=128, width=768, heads=12, hidden=3072)
    random = np.random.default_rng(1)
    feeds = {"ids": random.integers(0, 11, (1, 128)), "mask": (np.arange(128) < 100).astype(np.int64)[None]}
    stages = compiler.lower(model, target="cuda-emulated", precision="fp16", gpu="H100")
    assert max(phase["tasks"] for phase in stages.manifest["phases"]) > 100
    with EmulatedSession(compiler.build(stages), blocks=stages.gpu.sms, schedule="random:5") as session:
        answers = session.run(feeds)
    with compiler.compile(model) as session:
        exact = session.run(feeds)
    assert error(answers, exact) < REFERENCE["fp16"]
