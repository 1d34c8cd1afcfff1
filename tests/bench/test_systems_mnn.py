"""MNN's adapter: with MNN where it is installed, and with a fake of its interfaces anywhere."""

import importlib.util
import sys
from types import ModuleType, SimpleNamespace

import numpy as np
import pytest
from bench.small_networks import check_adapter, convolutional, make_task, product
from onnx.reference import ReferenceEvaluator

from mononn_bench.errors import SystemUnavailableError
from mononn_bench.systems import REAL, get_system
from mononn_bench.systems.mnn import ConversionError, Mnn

needs_mnn = pytest.mark.skipif(
    importlib.util.find_spec("MNN") is None, reason="MNN lives in the environment envs/mnn.txt"
)


class Variable:
    """MNN.expr.Var: a value that can be written and read."""

    def __init__(self, shape, layout, kind):
        self.shape, self.kind, self.value = tuple(shape), kind, None

    def write(self, array):
        assert array.shape == self.shape
        assert array.dtype == self.kind
        self.value = array.copy()

    def read(self):
        return self.value


class FakeMnn:
    """MNN whose every module is onnx's own evaluator of the file that was converted."""

    def __init__(self):
        self.arguments, self.settings, self.hints, self.converts = [], {}, {}, True

    def mnnconvert(self, arguments):
        self.arguments = arguments
        given = dict(zip(arguments[1::2], arguments[2::2], strict=True))
        if self.converts:
            with open(given["--modelFile"], "rb") as source, open(given["--MNNModel"], "wb") as target:  # noqa: PTH123
                target.write(source.read())
            open(".__convert_external_data.bin", "wb").close()  # noqa: PTH123

    def create_runtime_manager(self, settings):
        (self.settings,) = settings
        return SimpleNamespace(set_hint=self.hints.__setitem__)

    def load_module_from_file(self, path, inputs, outputs, *, runtime_manager, shape_mutable):
        evaluator = ReferenceEvaluator(path)
        assert (inputs, outputs) == (list(evaluator.input_names), list(evaluator.output_names))

        def forward(variables):
            answers = evaluator.run(None, dict(zip(inputs, [v.value for v in variables], strict=True)))
            return [SimpleNamespace(read=lambda answer=answer: answer) for answer in answers]

        return SimpleNamespace(forward=forward)


@pytest.fixture
def mnn(monkeypatch):
    """The fake, where the adapter imports MNN from."""
    fake, package = FakeMnn(), ModuleType("MNN")
    package.version = lambda: "3.6.1"
    package.nn = SimpleNamespace(
        create_runtime_manager=fake.create_runtime_manager, load_module_from_file=fake.load_module_from_file
    )
    package.expr = SimpleNamespace(placeholder=Variable, NCHW="NCHW", float=np.float32, int=np.int32)
    monkeypatch.setitem(sys.modules, "MNN", package)
    monkeypatch.setitem(sys.modules, "_tools", fake)
    return fake


def test_it_is_for_suites():
    assert get_system("mnn") is Mnn
    assert Mnn not in REAL


def test_without_its_package_the_row_says_so(monkeypatch):
    monkeypatch.setitem(sys.modules, "MNN", None)
    with pytest.raises(SystemUnavailableError, match="MNN cannot be imported"):
        Mnn().probe()


def test_another_target_is_refused(tmp_path):
    with pytest.raises(SystemUnavailableError, match="set up here for fp32 on a CPU"):
        Mnn().build(make_task(product(), tmp_path, target="cuda"))


def test_each_option_names_its_page(tmp_path):
    options = {option.name: option for option in Mnn().options(make_task(product(), tmp_path))}
    assert (options["precision"].value, options["numThread"].value) == ("high", "1")
    assert all(option.source for option in options.values())


def test_the_whole_road(mnn, tmp_path):
    assert Mnn().probe() == {"MNN": "3.6.1"}
    task = make_task(product(), tmp_path)
    check_adapter(Mnn, task)
    assert [path.name for path in task.build_folder.iterdir()] == ["model.mnn"]
    assert mnn.settings == {"backend": "CPU", "numThread": 1, "precision": "high", "power": "high", "memory": "high"}
    assert mnn.hints == {3: 2}
    assert mnn.arguments[-2:] == ["--optimizePrefer", "2"]


def test_integers_become_the_32_bits_that_mnn_computes_with(mnn):
    system, ids = Mnn(), np.array([[5, 7]], np.int64)
    system.bind({"ids": ids})
    system._module = SimpleNamespace(forward=lambda variables: variables)
    system.run()
    assert system._results[0].tolist() == [[5, 7]]
    assert system._results[0].dtype == np.int32


def test_a_model_that_cannot_be_converted_says_so(mnn, tmp_path):
    mnn.converts = False
    with pytest.raises(ConversionError, match=r"cannot convert model\.onnx"):
        Mnn().build(make_task(product(), tmp_path))


@needs_mnn
@pytest.mark.parametrize("network", [convolutional, product])
def test_answers_follow_the_bound_arrays(network, tmp_path):
    check_adapter(Mnn, make_task(network(), tmp_path))
