"""A precision as a case's dimension: what each adapter sets, what it lacks, and how answers are judged."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import ml_dtypes
import numpy as np
import onnx
import pytest
import torch
from bench.small_networks import make_task, product
from onnx import helper, numpy_helper

from mononn_bench.by_hand import _command, make_contestants
from mononn_bench.errors import SystemUnavailableError
from mononn_bench.measure.build import build_system
from mononn_bench.measure.case import measure_case
from mononn_bench.measure.process import Limits
from mononn_bench.measure.runner import Course
from mononn_bench.measure.worker import Server
from mononn_bench.models.folder import write_catalogued_model
from mononn_bench.models.inputs import make_inputs
from mononn_bench.models.modules import Bf16, build_module, load_module
from mononn_bench.models.quantise import write_quantised_model
from mononn_bench.models.reference import write_quantised_reference
from mononn_bench.models.zoo import get_model
from mononn_bench.record import CaseRecord, ModelRecord, read_record
from mononn_bench.systems import get_system, torch_inductor
from mononn_bench.systems.base import Task
from mononn_bench.systems.torch_inductor import TorchInductor, quantised
from tests.bench.conftest import QUICK

LACKING = {
    "bf16": {
        "onnxruntime": "no bf16 kernels for CPUs", "mnn": "computes in fp32", "litert": "no recipe", "tvm": "no recipe",
        "xla": "no recipe",
    },
    "int8": {
        "torch-eager": "through Inductor alone", "zentorch": "torchao", "mnn": "quantised",
        "litert": "recipe", "tvm": "recipe", "xla": "recipe",
    },
}  # fmt: skip


@pytest.mark.parametrize(("precision", "system"), [(p, s) for p, found in LACKING.items() for s in found])
def test_what_a_system_lacks_is_a_sentence(precision: str, system: str, tmp_path: Path) -> None:
    task = replace(make_task(product(), tmp_path), precision=precision)
    with pytest.raises(SystemUnavailableError, match=LACKING[precision][system]):
        get_system(system)().build(task)


@pytest.mark.parametrize("system", ["torch-eager", "torch-inductor", "tvm", "xla"])
def test_on_a_gpu_these_adapters_serve_fp32_alone(system: str, tmp_path: Path) -> None:
    task = replace(make_task(product(), tmp_path, target="cuda"), precision="bf16")
    with pytest.raises(SystemUnavailableError, match="for fp32, not bf16"):
        get_system(system)().build(task)


def options(system: str, task: Task) -> dict[str, str]:
    return {option.name: option.value for option in get_system(system)().options(task)}


def test_onnxruntime_multiplies_bytes_where_a_sum_follows(tmp_path: Path) -> None:
    """Its own optimiser would join the two into a float32 Gemm."""
    random = np.random.default_rng(0)
    weights = {
        "w": random.integers(-127, 128, (32, 32)).astype(np.int8), "bias": random.normal(size=32).astype(np.float32),
        "s": np.float32(0.02), "z": np.uint8(128), "ws": np.full(32, 0.01, np.float32), "wz": np.zeros(32, np.int8),
    }  # fmt: skip
    nodes = [
        helper.make_node("QuantizeLinear", ["x", "s", "z"], ["q"]),
        helper.make_node("DequantizeLinear", ["q", "s", "z"], ["a"]),
        helper.make_node("DequantizeLinear", ["w", "ws", "wz"], ["b"], axis=1),
        helper.make_node("MatMul", ["a", "b"], ["product"]),
        helper.make_node("Add", ["product", "bias"], ["y"]),
    ]
    ends = ([helper.make_tensor_value_info(n, onnx.TensorProto.FLOAT, [1, 8, 32])] for n in ("x", "y"))
    graph = helper.make_graph(
        nodes, "g", *ends, [numpy_helper.from_array(np.asarray(v), n) for n, v in weights.items()]
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)
    task = replace(make_task(model, tmp_path), precision="int8")
    get_system("onnxruntime")().build(task)
    kinds = {node.op_type for node in onnx.load(task.build_folder / "model.onnx").graph.node}
    assert "MatMulIntegerToFloat" in kinds and not kinds & {"MatMul", "Gemm"}
    assert options("onnxruntime", task)["disabled_optimizers"] == "MatMulAddFusion"
    assert "disabled_optimizers" not in options("onnxruntime", replace(task, precision="fp32"))


def test_each_precision_has_its_options(tmp_path: Path) -> None:
    task = make_task(product(), tmp_path)
    for precision, hint in (("fp32", "f32"), ("bf16", "bf16"), ("int8", "f32")):
        assert options("openvino", replace(task, precision=precision))["INFERENCE_PRECISION_HINT"] == hint
    for precision, asked in (("fp32", "fp32"), ("bf16", "bf16"), ("int8", "fp32")):
        assert options("mononn", replace(task, precision=precision))["precision"] == asked
    for system in ("torch-eager", "torch-inductor", "zentorch"):
        assert options(system, replace(task, precision="bf16"))["autocast"] == "bfloat16"
        assert "autocast" not in options(system, task)
    assert "X86InductorQuantizer" in options("torch-inductor", replace(task, precision="int8"))["quantizer"]


def test_bf16_in_pytorch_takes_and_gives_float32(bert_folder: Path) -> None:
    model = read_record(ModelRecord, bert_folder / "model.json")
    module = load_module(get_model("bert-test"), bert_folder / "weights.safetensors", attention="sdpa")
    half = Bf16(load_module(get_model("bert-test"), bert_folder / "weights.safetensors", attention="sdpa"))
    kinds = {name.rpartition(".")[0]: p.dtype for name, p in half.named_parameters()}
    assert {dtype for name, dtype in kinds.items() if name.endswith("dense")} == {torch.bfloat16}
    assert {dtype for name, dtype in kinds.items() if "LayerNorm" in name or "embeddings" in name} == {torch.float32}
    with np.load(bert_folder / "reference.npz") as stored, torch.inference_mode():
        given = [torch.from_numpy(stored[f"0/in/{t.name}"]) for t in model.inputs]
        for exact, found in zip(module(*given), half(*given), strict=True):
            assert found.dtype == torch.float32
            assert 1e-4 < float((found - exact).norm() / exact.norm()) < 2e-2


def test_pytorch_quantises_a_module_its_own_way(tmp_path: Path) -> None:
    spec = get_model("mlp-test")
    module = build_module(spec, seed=0)
    given = make_inputs(spec.inputs, sets=2, seed=0)[1]
    arguments = tuple(torch.from_numpy(array) for array in given.values())
    with torch.no_grad():
        found = quantised(module, spec.inputs, arguments)
        exact, answer = module(*arguments), found(*arguments)
    kinds = [str(node.target) for node in found.graph.nodes]
    products = sum(isinstance(part, torch.nn.Linear) for part in module.modules())
    assert kinds.count("aten.linear.default") == products == 3
    assert sum("quantize_per_tensor" in kind for kind in kinds) == 2 * products, "activations, there and back"
    assert sum("dequantize_per_channel" in kind for kind in kinds) == products
    assert 1e-3 < float((answer - exact).norm() / exact.norm()) < 0.1
    task = replace(make_task(product(), tmp_path), precision="int8", defaults=True)
    with pytest.raises(SystemUnavailableError, match="no default"):
        get_system("torch-inductor")().build(task)


@pytest.mark.parametrize("wrong", [False, True])
def test_an_8_bit_package_with_wrong_answers_is_compiled_without_autotuning(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, wrong: bool
) -> None:
    write_catalogued_model("mlp-test", "seeded", 0, tmp_path / "model", tmp_path)
    (tmp_path / "build").mkdir()
    model = read_record(ModelRecord, tmp_path / "model" / "model.json")
    task = Task(model, tmp_path / "model", tmp_path / "build", 1, "int8", "cpu")
    module = build_module(get_model("mlp-test"), seed=0)
    autotuned = []

    def answers(task: Task) -> torch_inductor.Answer:
        scale = -1 if wrong and autotuned[-1] else 1
        return lambda given: [scale * module(*map(torch.from_numpy, given.values())).numpy()]

    def compile_ahead(task: Task, program: object, settings: Mapping[str, bool]) -> None:
        autotuned.append(settings["max_autotune"])

    monkeypatch.setattr(torch_inductor, "_compile_ahead", compile_ahead)
    monkeypatch.setattr(torch_inductor, "_answers", answers)
    built = TorchInductor().build(task)
    assert autotuned == ([True, False] if wrong else [True])
    assert ("without max_autotune" in built.details.get("note", "")) is wrong
    assert built.details["precision"] == "own int8"


def test_weights_that_are_shared_stay_float32_where_no_product_reads_them() -> None:
    network = torch.nn.ModuleDict({"table": torch.nn.Embedding(4, 4), "head": torch.nn.Linear(4, 4, bias=False)})
    network["head"].weight = network["table"].weight
    Bf16(network)
    assert network["table"].weight.dtype == torch.float32
    assert network["head"].weight.dtype == torch.bfloat16


def test_answers_in_bf16_are_kept_in_a_type_that_a_file_keeps(tmp_path: Path) -> None:
    answers = {"y": np.array([1.5, -2], ml_dtypes.bfloat16), "z": np.float64([0.1]), "i": np.int64([3])}
    server = Server("fake-ok")
    server._system = SimpleNamespace(run=lambda: None, upload=lambda: None, outputs=lambda: answers)  # type: ignore[assignment]
    server._sets = [{}]
    server.check([0], str(tmp_path / "answers.npz"))
    with np.load(tmp_path / "answers.npz") as stored:
        found = {name.rpartition("/")[2]: (str(stored[name].dtype), stored[name].tolist()) for name in stored.files}
    assert found == {"y": ("float32", [1.5, -2]), "z": ("float64", [0.1]), "i": ("int64", [3])}


def measured(systems: Sequence[str], precision: str, model: Path, environment: Path, folder: Path) -> CaseRecord:
    """One case of a model folder in one precision."""
    builds = {name: folder / "builds" / name for name in systems}
    for name, output in builds.items():
        build_system(
            name, environment=environment, model_folder=model, output=output, threads=1, precision=precision,
            target="cpu", limits=Limits(60, 2000), lock=folder / "lock",
        )  # fmt: skip
    made = make_contestants(systems, builds, dict.fromkeys(systems, environment))
    settings = replace(QUICK, memory_limit_mb=2000)
    course = Course(model, model / "reference.npz", precision, "cpu", settings, (0,), folder / "scratch")
    return measure_case(made, course, machine_name="here", command="", say=lambda _: None, lock=folder / "lock")


def test_an_8_bit_file_is_measured_like_any_other(
    linear_folder: Path, driver_environment: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "quantised"
    write_quantised_model(linear_folder, folder)
    write_quantised_reference(folder, linear_folder)
    systems = ("mononn", "onnxruntime", "openvino", "fake-ok")
    record = measured(systems, "int8", folder, driver_environment, tmp_path)
    found = {r.label: (r.status, r.reason, r.computes) for r in record.systems}
    assert found == dict.fromkeys(systems, ("ok", "", "int8"))
    assert record.precision == "int8" and record.model.quantisation is not None
    for result in record.systems:
        for check in result.accuracy:
            assert 1e-5 <= check.limit <= 5e-2
            assert check.rel_l2 is not None and check.unquantised_l2 is not None
            assert check.rel_l2 < check.unquantised_l2, "nearer to its own graph than to the unquantised model"
    assert "--precision int8" in _command(record)


def test_bf16_without_it_is_a_row_and_no_stop(linear_folder: Path, driver_environment: Path, tmp_path: Path) -> None:
    record = measured(("onnxruntime", "openvino", "fake-ok"), "bf16", linear_folder, driver_environment, tmp_path)
    found = {result.label: result for result in record.systems}
    assert (found["onnxruntime"].status, found["onnxruntime"].reason) == (
        "unavailable", "ONNX Runtime has no bf16 kernels for CPUs",
    )  # fmt: skip
    assert found["openvino"].status == found["fake-ok"].status == "ok"
    assert {check.limit for check in found["fake-ok"].accuracy} == {2e-2}


@pytest.mark.parametrize(("precision", "multiplies", "noted"), [
    ("fp32", "", False), ("bf16", "", True), ("bf16", "bfloat16", False)
])  # fmt: skip
def test_products_that_stay_float32_in_bf16_are_noted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, precision: str, multiplies: str, noted: bool
) -> None:
    import mononn_core

    phases = [{"template": "matmul", "multiplies": kind} for kind in ("", multiplies)]
    session = SimpleNamespace(save=lambda _: None, info={"phases": phases})
    monkeypatch.setattr(mononn_core, "compile", lambda *_, **__: session, raising=False)
    built = get_system("mononn")().build(replace(make_task(product(), tmp_path), precision=precision))
    assert ("float32" in built.details.get("note", "")) == noted


def test_a_compiler_without_bf16_on_cpus_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import mononn_core
    from mononn_core.errors import OptionError

    def refuse(*_: object, **__: object) -> None:
        raise OptionError("precision 'bf16' is a GPU's; choose fp32, or target cuda")

    monkeypatch.setattr(mononn_core, "compile", refuse, raising=False)
    task = make_task(product(), tmp_path)
    with pytest.raises(SystemUnavailableError, match="'bf16' is a GPU's"):
        get_system("mononn")().build(replace(task, precision="bf16"))
    with pytest.raises(OptionError):
        get_system("mononn")().build(task)
