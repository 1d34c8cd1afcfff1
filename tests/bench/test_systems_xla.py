"""XLA's adapter. Needs JAX, which has its own environment: skipped with a reason where it is not."""

import importlib

import numpy as np
import pytest
from bench.small_networks import check_adapter, convolutional, make_task, product

from mononn_bench.systems import get_system
from mononn_core import importer, ops

jax = pytest.importorskip("jax", reason="JAX lives in the environment envs/xla.txt")
xla = importlib.import_module("mononn_bench.systems.xla")


@pytest.mark.parametrize("network", [convolutional, product])
def test_answers_follow_the_bound_arrays(network, tmp_path):
    assert get_system("xla")().probe()["jax"] == jax.__version__
    built = check_adapter(xla.Xla, make_task(network(), tmp_path))
    assert built.tuning is None
    assert not built.undertuned


def test_convolutions_and_poolings_are_xla_s_own(tmp_path):
    graph = importer.load(str(make_task(convolutional(), tmp_path).onnx), {})
    shape = jax.ShapeDtypeStruct((1, 4, 12, 12), np.float32)
    text = jax.jit(lambda x: xla.run_graph(graph, {"x": x})).lower(shape).as_text()
    assert text.count("stablehlo.convolution") == 2
    assert text.count('"stablehlo.reduce_window"') == 2
    assert "gather" not in text
    assert "xf64" not in text


@pytest.mark.parametrize("group", [1, 2, 4])
@pytest.mark.parametrize(("strides", "dilations"), [((1, 1), (1, 1)), ((2, 1), (1, 2)), ((3, 2), (2, 1))])
def test_a_convolution_means_what_ours_means(group, strides, dilations):
    random = np.random.default_rng(group)
    x = random.standard_normal((2, 11, 9, 8)).astype(np.float32)
    w = random.standard_normal((3, 2, 8 // group, 12)).astype(np.float32)
    attrs = {"group": group, "strides": strides, "dilations": dilations}
    (expected,) = ops.get("conv").evaluate(np, [x, w], attrs)
    np.testing.assert_allclose(xla.convolve(x, w, attrs), expected, rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("op", ["reduce_max", "reduce_sum", "reduce_mean"])
@pytest.mark.parametrize("dtype", [np.float32, np.int32])
def test_a_pooling_means_what_ours_means(op, dtype):
    if op == "reduce_mean" and dtype is np.int32:
        pytest.skip("a mean of integers is no pooling")
    x = (np.random.default_rng(0).standard_normal((2, 9, 7, 3)) * 9).astype(dtype)
    attrs = {"axis": 1, "kernel": (3, 2), "strides": (2, 1), "dilations": (1, 2)}
    (windows,) = ops.get("windows").evaluate(np, [x], attrs)
    (expected,) = ops.get(op).evaluate(np, [windows], {"axes": (1, 2), "keepdims": False})
    result = xla.pool(xla.Windows(x, attrs), op)
    assert result.dtype == expected.dtype
    np.testing.assert_allclose(result, expected, rtol=1e-6)
