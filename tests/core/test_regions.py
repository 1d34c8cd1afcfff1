"""Samples of regions (RoiAlign) against ONNX Runtime: regions in, across and outside the image, and of no extent."""

from __future__ import annotations

import numpy as np
import onnxruntime
import pytest
from onnx import TensorProto, helper

from mononn_core import compiler
from mononn_core.errors import UnsupportedError
from mononn_core.importer import load
from mononn_core.ops.evaluate import run as evaluate
from mononn_core.runtime.session import Session

ROIS = [
    [1, 1, 6, 4],
    [0, 0, 9, 7],
    [-3, -2, 4, 3],
    [7, 5, 14, 12],
    [2.5, 3.25, 2.5, 3.25],
    [4, 6, 1, 2],
    [-30, -30, -20, -20],
]


def aligned(**attributes: object) -> bytes:
    node = helper.make_node("RoiAlign", ["x", "rois", "batch"], ["y"], "align", spatial_scale=0.75, **attributes)
    ends = [
        helper.make_tensor_value_info("x", TensorProto.FLOAT, (2, 5, 8, 10)),
        helper.make_tensor_value_info("rois", TensorProto.FLOAT, (len(ROIS), 4)),
        helper.make_tensor_value_info("batch", TensorProto.INT64, (len(ROIS),)),
    ]
    graph = helper.make_graph([node], "regions", ends, [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 16)], ir_version=8).SerializeToString()


def inputs() -> dict[str, np.ndarray]:
    random = np.random.default_rng(4)
    x = random.standard_normal((2, 5, 8, 10)).astype(np.float32)
    return {"x": x, "rois": np.array(ROIS, np.float32), "batch": random.integers(0, 2, len(ROIS))}


@pytest.mark.parametrize("mode", ["avg", "max"])
@pytest.mark.parametrize("coordinates", ["half_pixel", "output_half_pixel"])
@pytest.mark.parametrize(("down", "right", "grid"), [(3, 4, 2), (1, 2, 3)])
def test_as_onnx_runtime_samples(mode: str, coordinates: str, down: int, right: int, grid: int) -> None:
    sizes = {"output_height": down, "output_width": right, "sampling_ratio": grid}
    model = aligned(mode=mode, coordinate_transformation_mode=coordinates, **sizes)
    session = onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"])
    (want,) = session.run(None, inputs())
    np.testing.assert_allclose(evaluate(load(model), inputs())["y"], want, rtol=1e-4, atol=1e-5)


def test_compiled_too() -> None:
    model = aligned(output_height=2, output_width=3, sampling_ratio=2)
    stages = compiler.lower(model, threads=2)
    with Session(compiler.build(stages), threads=2) as session:
        found = session.run(inputs())["y"]
    np.testing.assert_allclose(found, evaluate(stages.graph, inputs())["y"], rtol=1e-5, atol=1e-6)


def test_a_sampling_that_depends_on_the_regions_is_refused() -> None:
    with pytest.raises(UnsupportedError, match="give a sampling_ratio"):
        load(aligned(output_height=2))
