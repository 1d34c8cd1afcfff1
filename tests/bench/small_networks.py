"""Small ONNX networks for adapters whose environment has onnx and NumPy but no PyTorch."""

import numpy as np
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator

from mononn_bench.models.onnxfile import write_onnx
from mononn_bench.record import ModelRecord, Tensor
from mononn_bench.systems.base import Task

FLOAT = TensorProto.FLOAT


def convolutional():
    """Convolutions (strided, grouped, dilated), both poolings and a product: x [1, 4, 12, 12] -> y [1, 5]."""
    nodes = [
        helper.make_node("Conv", ["x", "w1", "b1"], ["c1"], pads=[1, 1, 1, 1], strides=[2, 2]),
        helper.make_node("Relu", ["c1"], ["r1"]),
        helper.make_node("MaxPool", ["r1"], ["p1"], kernel_shape=[3, 3], strides=[1, 1], pads=[1, 1, 1, 1]),
        helper.make_node("Conv", ["p1", "w2"], ["c2"], group=4, dilations=[2, 2], pads=[2, 2, 2, 2]),
        helper.make_node("AveragePool", ["c2"], ["p2"], kernel_shape=[2, 2], strides=[2, 2]),
        helper.make_node("Flatten", ["p2"], ["f"]),
        helper.make_node("Gemm", ["f", "w3"], ["y"]),
    ]
    shapes = {"w1": (8, 4, 3, 3), "b1": (8,), "w2": (8, 2, 3, 3), "w3": (72, 5)}
    return _model(nodes, {"x": (1, 4, 12, 12)}, {"y": (1, 5)}, shapes)


def product():
    """A product, an addition and a ReLU: x [1, 32] -> y [1, 32]."""
    nodes = [helper.make_node("Gemm", ["x", "w", "b"], ["g"]), helper.make_node("Relu", ["g"], ["y"])]
    return _model(nodes, {"x": (1, 32)}, {"y": (1, 32)}, {"w": (32, 32), "b": (32,)})


def make_task(model, folder, target="cpu"):
    """`model` as a task whose files are in `folder`, and its own build folder there."""
    (folder / "model").mkdir()
    (folder / "build").mkdir()
    write_onnx(model, folder / "model" / "model.onnx")
    inputs, outputs = ([_tensor(v) for v in values] for values in (model.graph.input, model.graph.output))
    record = ModelRecord(
        name="small", batch=1, full_size=False, weights="user", seed=0, source="", digest="", opset=18,
        inputs=tuple(inputs), outputs=tuple(outputs), flops=1, weight_bytes=1, compulsory_bytes=1, versions={},
    )  # fmt: skip
    return Task(record, folder / "model", folder / "build", 1, "fp32", target)


def check_adapter(adapter, task):
    """Build, load and run in turn on two sets of values in the same arrays; answers as onnx's own evaluator's."""
    built = adapter().build(task)
    system = adapter()
    system.load(task)
    arrays = {t.name: aligned(t.shape) for t in task.model.inputs}
    system.bind(arrays)
    system.warm_up()
    evaluator = ReferenceEvaluator(str(task.onnx))
    for seed in range(2):
        random = np.random.default_rng(seed)
        for array in arrays.values():
            array[...] = random.standard_normal(array.shape)
        system.upload()
        system.run()
        for name, expected in zip(evaluator.output_names, evaluator.run(None, arrays), strict=True):
            np.testing.assert_allclose(system.outputs()[name], expected, rtol=1e-5, atol=1e-5)
    return built


def aligned(shape):
    """Zeros that begin on a cache line, as the harness's arrays do."""
    from mononn_bench.measure.worker import aligned_copy

    return aligned_copy(np.zeros(shape, np.float32))


def _model(nodes, inputs, outputs, weights):
    random = np.random.default_rng(0)
    constants = [
        numpy_helper.from_array((random.standard_normal(s) * 0.3).astype(np.float32), n) for n, s in weights.items()
    ]
    inputs, outputs = (
        [helper.make_tensor_value_info(n, FLOAT, s) for n, s in values.items()] for values in (inputs, outputs)
    )
    graph = helper.make_graph(nodes, "small", inputs, outputs, constants)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10)


def _tensor(value):
    return Tensor(value.name, "float32", tuple(d.dim_value for d in value.type.tensor_type.shape.dim))
