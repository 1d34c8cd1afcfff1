"""Records that several tests read."""

import pytest
from bench_report.records import a_case, a_system, a_whole_run


@pytest.fixture
def records():
    """Three models and five systems; on one model two of them have no speed."""
    crashed = a_system(
        "torch-inductor", "failed", "the worker ended with signal 11 (SIGSEGV) while it loaded the model"
    )
    wrong = a_system("torch-eager", "incorrect", "relative L2 error 3e-2 of output y, above the limit 1e-5")
    base = {"mononn": 0.105, "onnxruntime": 0.123, "openvino": 0.108, "torch-eager": 0.151, "torch-inductor": 0.142}
    tiny = {"mononn": 130e-6, "onnxruntime": 309e-6, "openvino": 273e-6, "torch-eager": 900e-6}
    tiny["torch-inductor"] = 700e-6
    mlp = {"mononn": 13e-6, "onnxruntime": 31e-6, "openvino": 111e-6}
    return [
        a_case("bert-base", base, seed=1, full_size=True),
        a_case("bert-tiny", tiny, seed=2, noise=0.03),
        a_case("mlp", mlp, {"torch-eager": wrong, "torch-inductor": crashed}, seed=3),
    ]


@pytest.fixture
def whole_run():
    """Four full-size networks, eight systems, every status."""
    return a_whole_run()
