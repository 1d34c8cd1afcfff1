"""`targets: auto`: a probed GPU adds its cells to the same DAG; without one there is a row that says so."""

import os
import stat

import pytest

from mononn_bench.files import ROOT
from mononn_bench.systems import cuda, get_system
from mononn_bench.workflow.plan import make_plan

SYSTEMS = ["mononn", "onnxruntime", "openvino", "torch-eager", "torch-inductor", "xla", "tvm", "tensorrt"]
ON_GPU = ["mononn", "mononn[launch=graph]", "onnxruntime-cuda", "onnxruntime-tensorrt"]
ON_GPU += ["torch-eager", "torch-inductor", "xla", "tvm", "tensorrt"]
CONFIG = {"models": {"mlp-test": {}, "bert-test": {}}, "systems": SYSTEMS}
GPU = cuda.Gpu("NVIDIA A10", "570.86.15", "8.6", 23028)


@pytest.fixture
def gpu(monkeypatch):
    """A machine whose driver lists one GPU."""
    for module in ("mononn_bench.systems.cuda", "mononn_bench.workflow.machine"):
        monkeypatch.setattr(f"{module}.find_gpus", lambda: (GPU,))


@pytest.fixture
def no_gpu(monkeypatch):
    """A machine without one."""
    for module in ("mononn_bench.systems.cuda", "mononn_bench.workflow.machine"):
        monkeypatch.setattr(f"{module}.find_gpus", tuple)


def systems_of(plan, group):
    return [build.system for build in plan.groups[group]]


def test_without_a_gpu_there_are_cpu_cases_alone(no_gpu):
    plan = make_plan(CONFIG)
    assert list(plan.cases) == ["mlp-test", "bert-test"]
    assert systems_of(plan, "mlp-test") == SYSTEMS
    tensorrt = plan.builds["mlp-test", "tensorrt"]
    assert tensorrt.environment.name == "driver"
    assert tensorrt.environment.existing


def test_a_gpu_adds_a_case_of_its_own_to_each_model(gpu, no_gpu_name):
    plan = make_plan(CONFIG)
    assert list(plan.cases) == ["mlp-test", "bert-test", "mlp-test-cuda", "bert-test-cuda"]
    assert systems_of(plan, "mlp-test") == SYSTEMS[:-1]
    assert systems_of(plan, "mlp-test-cuda") == ON_GPU
    for build in plan.groups["bert-test-cuda"]:
        assert build.environment.name == get_system(build.system).cuda_environment
        assert not build.environment.existing
        assert "--target=cuda" in build.options
    assert plan.machine.startswith(f"{no_gpu_name}-nvidia-a10-")
    assert "--target=cuda" in plan.cases["mlp-test-cuda"].options
    folders = [build.folder for build in plan.builds.values()]
    assert len(set(folders)) == len(folders) == 2 * (len(SYSTEMS) - 1 + len(ON_GPU))


@pytest.fixture
def no_gpu_name(gpu):
    return make_plan({**CONFIG, "targets": ["cpu"]}).machine


def test_another_driver_is_another_machine(gpu, monkeypatch):
    before = make_plan(CONFIG).machine
    newer = (cuda.Gpu(GPU.name, "580.1", GPU.compute_capability, GPU.memory_mib),)
    monkeypatch.setattr("mononn_bench.workflow.machine.find_gpus", lambda: newer)
    assert make_plan(CONFIG).machine != before


def test_every_environment_of_every_system_has_a_file(gpu):
    plan = make_plan(CONFIG)
    assert {"torch-cuda", "xla-cuda", "tvm-cuda", "tensorrt", "onnxruntime-gpu"} <= set(plan.environments)
    for environment in plan.environments.values():
        assert (ROOT / "envs" / f"{environment.name}.txt").read_text()


def test_the_driver_is_asked_for_its_gpus(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", f"{fake_driver(tmp_path)}{os.pathsep}{os.environ['PATH']}")
    assert cuda.find_gpus() == (GPU,)
    monkeypatch.setenv("PATH", str(tmp_path / "empty"))
    assert cuda.find_gpus() == ()


def test_the_dag_of_a_machine_with_a_gpu(checkout, monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", f"{fake_driver(tmp_path)}{os.pathsep}{os.environ['PATH']}")
    config = tmp_path / "config.yaml"
    config.write_text(f"models: {{mlp-test: }}\nsystems: [{', '.join(SYSTEMS)}]\nenvironments: {{torch: driver}}\n")
    planned = checkout.planned(config)
    assert planned["build"] == len(SYSTEMS) - 1 + len(ON_GPU)
    assert planned["measure"] == planned["profile"] == 2
    assert planned["export"] == planned["reference"] == 1


def fake_driver(folder):
    """A folder with an nvidia-smi that lists one GPU."""
    tool = folder / "driver" / "nvidia-smi"
    tool.parent.mkdir()
    row = f"{GPU.name}, {GPU.driver}, {GPU.compute_capability}, {GPU.memory_mib}"
    tool.write_text(f"#!/bin/sh\necho '{row}'\n")
    tool.chmod(tool.stat().st_mode | stat.S_IXUSR)
    return tool.parent
