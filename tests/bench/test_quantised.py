"""The 8-bit file of a model: how it is made, what its right answers are."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

from mononn_bench.codec import read_record
from mononn_bench.models.distance import relative_l2
from mononn_bench.models.evaluator import make_evaluator
from mononn_bench.models.folder import digest_model, write_user_model
from mononn_bench.models.inputs import CALIBRATION_SEED, CALIBRATION_SETS, make_inputs
from mononn_bench.models.quantise import _quantised, make_recipe, saturates, write_quantised_model
from mononn_bench.models.reference import evaluate_onnx, write_quantised_reference
from mononn_bench.models.spec import InputSpec
from mononn_bench.record import ModelRecord, ReferenceRecord
from tests.bench.conftest import linear_model


@pytest.fixture(scope="session")
def quantised_folder(linear_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The linear model's 8-bit file with its reference."""
    folder = tmp_path_factory.mktemp("quantised") / "model"
    write_quantised_model(linear_folder, folder)
    write_quantised_reference(folder, linear_folder)
    return folder


def test_the_file_is_quantised_and_says_how(quantised_folder: Path, linear_folder: Path) -> None:
    model = onnx.load(quantised_folder / "model.onnx")
    onnx.checker.check_model(model, full_check=True)
    kinds = {node.op_type for node in model.graph.node}
    assert {"QuantizeLinear", "DequantizeLinear", "Gemm"} <= kinds
    assert {o.domain for o in model.opset_import} == {""}
    weight = next(t for t in model.graph.initializer if tuple(t.dims) == (8, 8))
    assert weight.data_type == TensorProto.INT8, "eight bits, signed"
    scales = [t for t in model.graph.initializer if t.data_type == TensorProto.FLOAT and tuple(t.dims) == (8,)]
    assert scales, "a scale for each column"
    record, before = (read_record(ModelRecord, f / "model.json") for f in (quantised_folder, linear_folder))
    assert record.name == before.name and record.inputs == before.inputs and record.outputs == before.outputs
    assert record.flops == before.flops
    assert record.digest == digest_model(quantised_folder) != before.digest
    how = record.quantisation
    assert how is not None and before.quantisation is None
    assert how.unquantised_digest == before.digest
    assert how.versions["onnxruntime"] == onnxruntime.__version__
    assert (how.calibration_seed, how.calibration_sets) == (CALIBRATION_SEED, CALIBRATION_SETS)
    assert how.options["quant_format"] == "QDQ" and how.options["per_channel"] == "True"
    assert (quantised_folder / "identity" / "inputs.npz").exists()


def test_the_same_model_gives_the_same_file(quantised_folder: Path, linear_folder: Path, tmp_path: Path) -> None:
    write_quantised_model(linear_folder, tmp_path / "again")
    assert digest_model(tmp_path / "again") == digest_model(quantised_folder)
    assert not [path for path in (tmp_path / "again").iterdir() if path.name.startswith(".")], "nothing is left over"


def test_calibration_inputs_are_not_the_measured_ones(linear_folder: Path) -> None:
    from mononn_bench.models.user import describe_inputs

    specs = describe_inputs(onnx.load(linear_folder / "model.onnx"))
    drawn = make_inputs(specs, sets=CALIBRATION_SETS, seed=CALIBRATION_SEED)
    with np.load(linear_folder / "reference.npz") as stored:
        measured = [stored[key] for key in stored.files if key.endswith("/in/x")]
    assert not any(np.array_equal(one["x"], other) for one in drawn for other in measured)


def test_a_file_of_an_old_opset_is_converted_first(tmp_path: Path) -> None:
    model = linear_model()
    del model.opset_import[:]
    model.opset_import.append(helper.make_opsetid("", 9))
    onnx.save(model, tmp_path / "old.onnx")
    write_user_model("old", tmp_path / "old.onnx", {"x": (1, 8)}, tmp_path / "model")
    assert write_quantised_model(tmp_path / "model", tmp_path / "quantised").opset == 18


def test_the_reference_is_the_quantised_graph_in_float64(quantised_folder: Path, linear_folder: Path) -> None:
    record = read_record(ReferenceRecord, quantised_folder / "reference.json")
    before = read_record(ReferenceRecord, linear_folder / "reference.json")
    assert (record.family, record.sets, record.seed) == ("onnx", before.sets, before.seed)
    assert "quantised graph" in record.method
    session = onnxruntime.InferenceSession(str(quantised_folder / "model.onnx"), providers=["CPUExecutionProvider"])
    with np.load(quantised_folder / "reference.npz") as own, np.load(linear_folder / "reference.npz") as exact:
        for i in range(record.sets):
            assert np.array_equal(own[f"{i}/in/x"], exact[f"{i}/in/x"])
            assert np.array_equal(own[f"{i}/unquantised/y"], exact[f"{i}/out/y"])
            assert own[f"{i}/out/y"].dtype == np.float64
            assert 1e-4 < relative_l2(own[f"{i}/out/y"], exact[f"{i}/out/y"]) < 0.5, "eight bits cost something"
            (answer,) = session.run(None, {"x": own[f"{i}/in/x"]})
            assert relative_l2(answer, own[f"{i}/out/y"]) < 5e-3


def quantising(kind: type[np.generic], zero: int) -> onnx.ModelProto:
    """Quantise and dequantise x [n] with a scale of 0.5."""
    constants = [
        numpy_helper.from_array(np.float32(0.5), "s"),
        numpy_helper.from_array(np.array(zero, kind), "z"),
    ]
    nodes = [helper.make_node("QuantizeLinear", ["x", "s", "z"], ["q"])]
    nodes.append(helper.make_node("DequantizeLinear", ["q", "s", "z"], ["y"]))
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [6]) for name in ("x", "y")]
    graph = helper.make_graph(nodes, "q", [ends[0]], [ends[1]], constants)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10)


@pytest.mark.parametrize(("kind", "zero", "low", "high"), [(np.uint8, 128, -64, 63.5), (np.int8, 0, -64, 63.5)])
def test_rounding_is_half_to_even_and_numbers_out_of_range_saturate(
    kind: type[np.generic], zero: int, low: float, high: float, tmp_path: Path
) -> None:
    model = quantising(kind, zero)
    onnx.save(model, tmp_path / "q.onnx")
    x = np.array([0.25, 0.75, -0.25, 1e12, -1e12, 3.1], np.float32)
    ((found,),) = (answer.values() for answer in evaluate_onnx(tmp_path / "q.onnx", [{"x": x}]))
    assert found.tolist() == [0.0, 1.0, 0.0, high, low, 3.0]
    (again,) = onnxruntime.InferenceSession(model.SerializeToString()).run(None, {"x": x})
    assert again.tolist() == found.tolist()


def test_a_bias_of_32_bits_keeps_them_all() -> None:
    constants = [numpy_helper.from_array(np.array([2**30 + 1, 5], np.int32), "q")]
    constants.append(numpy_helper.from_array(np.array([2.0**-20, 0.5]), "s"))
    node = helper.make_node("DequantizeLinear", ["q", "s"], ["y"], axis=0)
    output = helper.make_tensor_value_info("y", TensorProto.DOUBLE, [2])
    graph = helper.make_graph([node], "bias", [], [output], constants)
    evaluator = make_evaluator(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)]))
    assert evaluator.run(None, {})[0].tolist() == [1024 + 2.0**-20, 2.5]


def test_a_convolutional_network_is_quantised_whole_any_other_in_its_products_by_weights(
    quantised_folder: Path,
) -> None:
    def graph(*kinds: str) -> onnx.ModelProto:
        return helper.make_model(
            helper.make_graph([helper.make_node(kind, ["x"], ["y"]) for kind in kinds], "g", [], [])
        )

    whole = make_recipe(graph("Conv", "Relu", "Conv", "Gemm"))
    assert (whole.kinds, whole.float_outputs, whole.weights_only) == ((), (), False)
    here = saturates(Path("/proc/cpuinfo").read_text())
    partly = make_recipe(graph("Conv", "MatMul", "Add", "Gemm"), reduce_range=here)
    assert partly.kinds == ("Conv", "MatMul", "Gemm", "Gather") and partly.weights_only
    how = read_record(ModelRecord, quantised_folder / "model.json").quantisation
    assert how is not None and how.options.items() >= partly.described().items()


@pytest.mark.parametrize(
    ("cpuinfo", "whether"),
    [
        ("processor : 0\nflags\t\t: fpu avx2 fma\n\nprocessor : 1\n", True),
        ("flags : avx2 avx512f avx512_vnni\n", False),
        ("flags : avx2 avx_vnni\n", False),
        ("Features : asimd asimddp\n", False),
        ("", False),
    ],
)
def test_weights_have_7_bits_where_sums_of_products_of_bytes_saturate(cpuinfo: str, whether: bool) -> None:
    assert saturates(cpuinfo) == whether


def test_7_bits_are_what_the_file_then_has(tmp_path: Path) -> None:
    source = tmp_path / "model.onnx"
    onnx.save(attention_model(), source)
    specs = (InputSpec("x", "float32", (4, 8), "dense"),)
    most = {}
    for reduce_range in (False, True):
        recipe = make_recipe(onnx.load(source), reduce_range=reduce_range)
        model = _quantised(source, tmp_path, specs, recipe, large=False)
        stored = (numpy_helper.to_array(t) for t in model.graph.initializer if t.data_type == TensorProto.INT8)
        most[reduce_range] = max(int(np.abs(a.astype(int)).max(initial=0)) for a in stored)
    assert most[False] == 127 and most[True] <= 64


def attention_model(width: int = 8) -> onnx.ModelProto:
    """y = softmax((x q) (x k)^T) (x v), its nodes without names as those of some tools."""
    random = np.random.default_rng(0)
    weights = [numpy_helper.from_array(random.standard_normal((width, width)).astype(np.float32), n) for n in "qkv"]
    nodes = [helper.make_node("MatMul", ["x", name], [f"x{name}"]) for name in "qkv"]
    nodes += [
        helper.make_node("Transpose", ["xk"], ["xkt"], perm=[1, 0]),
        helper.make_node("MatMul", ["xq", "xkt"], ["scores"]),
        helper.make_node("Softmax", ["scores"], ["p"]),
        helper.make_node("MatMul", ["p", "xv"], ["y"]),
    ]
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [4, width]) for name in ("x", "y")]
    graph = helper.make_graph(nodes, "attention", [ends[0]], [ends[1]], weights)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10)


def test_attention_and_results_of_products_stay_float32(tmp_path: Path) -> None:
    onnx.save(attention_model(), tmp_path / "mine.onnx")
    write_user_model("attention", tmp_path / "mine.onnx", {"x": (4, 8)}, tmp_path / "model")
    write_quantised_model(tmp_path / "model", tmp_path / "quantised")
    graph = onnx.load(tmp_path / "quantised" / "model.onnx").graph
    maker = {out: node.op_type for node in graph.node for out in node.output}
    sides = [[maker[i] == "DequantizeLinear" for i in n.input] for n in graph.node if n.op_type == "MatMul"]
    assert sorted(sides) == [[False, False]] * 2 + [[True, True]] * 3
    assert [maker.get(n.input[0]) for n in graph.node if n.op_type == "QuantizeLinear"] == [None], "the input alone"


def layers(rows: int = 4, width: int = 8, depth: int = 3) -> onnx.ModelProto:
    """Products of a stack of rows and sums, which ONNX Runtime's optimiser makes matrices of."""
    rng, nodes, constants = np.random.default_rng(0), [], []
    for i in range(depth):
        for name, shape in ((f"w{i}", (width, width)), (f"b{i}", (width,))):
            constants.append(numpy_helper.from_array(rng.normal(size=shape).astype(np.float32), name))
        nodes.append(helper.make_node("MatMul", [f"x{i}", f"w{i}"], [f"p{i}"], name=f"p{i}"))
        nodes.append(helper.make_node("Add", [f"p{i}", f"b{i}"], [f"x{i + 1}"], name=f"a{i}"))
    ends = [helper.make_tensor_value_info(n, TensorProto.FLOAT, [1, rows, width]) for n in ("x0", f"x{depth}")]
    graph = helper.make_graph(nodes, "layers", [ends[0]], [ends[1]], constants)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10)


def test_onnxruntime_makes_no_constant_of_a_name_that_the_file_has(tmp_path: Path) -> None:
    """It gives what its optimiser makes the same names each time, and refuses a file where one is taken."""
    onnx.save(layers(), tmp_path / "mine.onnx")
    write_user_model("layers", tmp_path / "mine.onnx", {"x0": (1, 4, 8)}, tmp_path / "model")
    write_quantised_model(tmp_path / "model", tmp_path / "quantised")
    graph = onnx.load(tmp_path / "quantised" / "model.onnx").graph
    made = [t.name for t in graph.initializer if t.name.startswith("gemm_")]
    assert made and all(name.endswith("_prepared") for name in made)
    x = np.ones((1, 4, 8), np.float32)
    (found,) = onnxruntime.InferenceSession(tmp_path / "quantised" / "model.onnx").run(None, {"x0": x})
    assert np.isfinite(found).all() and found.shape == x.shape


def test_numbers_may_be_moved_before_they_are_quantised(tmp_path: Path) -> None:
    """Those near the middle between two steps round the other way, and no other."""
    onnx.save(quantising(np.uint8, 128), tmp_path / "q.onnx")
    x = np.array([0.25, 0.75, -0.25, 7.26, 3.1, 0.2500001], np.float32)
    ((exact,), (moved,)) = (
        list(evaluate_onnx(tmp_path / "q.onnx", [{"x": x}], moved=by)[0].values()) for by in (0.0, 1e-3)
    )
    assert exact.tolist() == [0.0, 1.0, 0.0, 7.5, 3.0, 0.5]
    assert set(np.abs(moved - exact)[[0, 1, 2, 5]]) == {0.0, 0.5} and (moved == exact)[[3, 4]].all()
