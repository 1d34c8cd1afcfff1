"""GSPC's adapter: answers of single convolutions in both layouts, and the refusal of anything else."""

from dataclasses import replace
from importlib.metadata import PackageNotFoundError

import numpy as np
import pytest
from bench.small_networks import check_adapter, convolutional, make_task, product
from onnx import TensorProto, helper, numpy_helper

from mononn_bench.errors import SystemUnavailableError
from mononn_bench.systems import REAL, built_as, get_system
from mononn_bench.systems.gspc import KERNELS, CompilationError, Gspc, compile_kernel

PACKED = "gspc[layout=packed]"


def layer(x, weights, *, bias=False, y=None, kind=TensorProto.FLOAT, stored=True, **attributes):
    """A model of one Conv: x of that shape with random weights [k, c / groups, kh, kw]; `y` is its result's shape."""
    random, type_ = np.random.default_rng(0), helper.tensor_dtype_to_np_dtype(kind)
    shapes = {"w": weights, **({"b": weights[:1]} if bias else {})}
    arrays = [numpy_helper.from_array(random.standard_normal(s).astype(type_) / 4, n) for n, s in shapes.items()]
    given = {"x": x, **({} if stored else shapes)}
    inputs = [helper.make_tensor_value_info(name, kind, shape) for name, shape in given.items()]
    outputs = [helper.make_tensor_value_info("y", kind, y or x)]
    nodes = [helper.make_node("Conv", ["x", *shapes], ["y"], **attributes)]
    graph = helper.make_graph(nodes, "layer", inputs, outputs, arrays if stored else [])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10)


PADDED = {"pads": [1, 1, 1, 1]}
LAYERS = {
    "2 groups": (layer((1, 32, 14, 14), (32, 16, 3, 3), group=2, **PADDED), 16, 16),
    "4 groups of two images": (layer((2, 32, 9, 9), (32, 8, 3, 3), group=4, **PADDED), 8, 8),
    "16 groups": (layer((1, 64, 7, 7), (64, 4, 3, 3), group=16, **PADDED), 4, 4),
    "6 from 4 channels": (layer((1, 8, 10, 10), (12, 4, 3, 3), y=(1, 12, 10, 10), group=2, **PADDED), 4, 6),
    "12 from 24 channels": (layer((1, 48, 8, 8), (24, 24, 3, 3), y=(1, 24, 8, 8), group=2, **PADDED), 24, 12),
    "11 channels": (layer((1, 22, 6, 6), (22, 11, 3, 3), group=2, **PADDED), 11, 11),
    "2 channels": (layer((1, 8, 6, 6), (8, 2, 3, 3), group=4, **PADDED), 2, 2),
    "strides": (
        layer((2, 16, 15, 12), (16, 8, 3, 3), y=(2, 16, 8, 6), group=2, strides=[2, 2], **PADDED), 8, 8,
    ),
    "bias, one group, kernel 5x2, uneven padding": (
        layer((1, 3, 11, 9), (8, 3, 5, 2), y=(1, 8, 5, 12), bias=True, pads=[1, 3, 2, 1], strides=[2, 1]), 3, 8,
    ),
}  # fmt: skip
"""Models, and channels of a group in and out."""


def divisor(number, most):
    return max(d for d in range(1, most + 1) if number % d == 0)


def test_without_a_compiler_the_row_says_so(monkeypatch):
    assert list(Gspc().probe()) == ["gspc", "ziglang"]

    def missing(name):
        raise PackageNotFoundError(name)

    monkeypatch.setattr("mononn_bench.systems.gspc.version", missing)
    with pytest.raises(SystemUnavailableError, match="ziglang"):
        Gspc().probe()


def test_it_is_for_suites():
    assert get_system("gspc") is Gspc
    assert Gspc not in REAL
    assert built_as(PACKED) == "gspc", "both layouts run one build"
    assert Gspc.data == KERNELS and (KERNELS / "gspc.cpp").is_file()


@pytest.mark.in_turn("threads", "system", "name")
@pytest.mark.parametrize("name", LAYERS)
@pytest.mark.parametrize("system", ["gspc", PACKED])
@pytest.mark.parametrize("threads", [1, 2])
def test_answers_follow_the_bound_arrays(name, system, threads, tmp_path):
    model, inputs, outputs = LAYERS[name]
    task = replace(make_task(model, tmp_path), threads=threads)
    details = check_adapter(get_system(system), task).details
    width = task.model.outputs[0].shape[-1]
    assert details["oc"] == divisor(outputs, details["lanes"])
    assert details["ic"] == divisor(inputs, details["oc"])
    assert width % details["tile"] == 0 and divisor(width, 14) <= details["tile"] <= 30


def test_what_packs_and_unpacks_is_no_part_of_a_packed_run(tmp_path):
    model, *_ = LAYERS["4 groups of two images"]
    task = make_task(model, tmp_path)
    Gspc().build(task)
    answers = {}
    for name in ("gspc", PACKED):
        system, x = get_system(name)(), np.ones(task.model.inputs[0].shape, np.float32)
        system.load(task)
        system.bind({"x": x})
        before = system._outputs["y"].copy()
        system.run()
        answers[name] = system._outputs["y"].copy(), system.outputs()["y"].copy()
        x[...] = 2.0
        system.run()
        answers[name] += (system.outputs()["y"].copy(),)
        assert not before.any()
    run, asked, rewritten = answers["gspc"]
    assert np.array_equal(run, asked)
    np.testing.assert_allclose(rewritten, 2 * asked, rtol=1e-5, atol=1e-5)
    run, asked, rewritten = answers[PACKED]
    assert not run.any(), "unpacked when outputs are asked for"
    np.testing.assert_allclose(asked, answers["gspc"][1], rtol=1e-5, atol=1e-5)
    assert np.array_equal(rewritten, asked), "packed by upload alone"


@pytest.mark.parametrize(
    ("model", "words"),
    [
        (convolutional(), "not one Conv node"),
        (product(), "not one Conv node"),
        (layer((1, 4, 8), (4, 2, 3), group=2, pads=[1, 1]), "two dimensions"),
        (layer((1, 4, 8, 8), (4, 4, 3, 3), pads=[2, 2, 2, 2], dilations=[2, 2]), "no dilation"),
        (layer((1, 4, 8, 8), (4, 4, 3, 3), auto_pad="SAME_UPPER"), "explicit padding"),
        (layer((1, 4, 8, 8), (4, 4, 3, 3), kind=TensorProto.DOUBLE, **PADDED), "float32"),
        (layer((1, 4, 8, 8), (4, 4, 3, 3), stored=False, **PADDED), "stored weights"),
    ],
)
def test_any_other_model_is_refused(model, words, tmp_path):
    with pytest.raises(SystemUnavailableError, match=words):
        Gspc().build(make_task(model, tmp_path))


@pytest.mark.parametrize(("said", "words"), [({"target": "cuda"}, "on a CPU"), ({"precision": "bf16"}, "fp32 alone")])
def test_another_target_or_precision_is_refused(said, words, tmp_path):
    model, *_ = LAYERS["2 groups"]
    with pytest.raises(SystemUnavailableError, match=words):
        Gspc().build(replace(make_task(model, tmp_path), **said))


def test_each_option_names_its_page(tmp_path):
    task = make_task(LAYERS["2 groups"][0], tmp_path)
    plain, packed = ({o.name: o for o in get_system(name)().options(task)} for name in ("gspc", PACKED))
    assert plain["layout"].value != packed["layout"].value
    assert plain["threads"].value == "1"
    assert all(option.source for option in plain.values())


def test_a_kernel_that_does_not_compile_says_why(tmp_path):
    with pytest.raises(CompilationError, match="GSPC_"):
        compile_kernel({"N": 1}, tmp_path / "layer.so")
