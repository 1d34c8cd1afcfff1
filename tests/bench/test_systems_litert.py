"""LiteRT's adapter, its packages replaced by fakes."""

import sys
from dataclasses import replace
from types import ModuleType

import numpy as np
import pytest
from bench.small_networks import make_task, product

from mononn_bench.errors import SystemUnavailableError
from mononn_bench.systems import REAL, get_system, litert
from mononn_bench.systems.litert import CONVERTED, LiteRt


class Interpreter:
    """ai_edge_litert's interpreter of a network that adds its inputs, tensor 3, 5 -> tensor 9; as LiteRT's own it takes
    an input in its type alone."""

    TYPES = {3: np.float32, 5: np.int32}  # noqa: RUF012

    def __init__(self, path, num_threads):
        self.path, self.num_threads, self.tensors, self.allocated = path, num_threads, {}, False

    def allocate_tensors(self):
        self.allocated = True

    def get_input_details(self):
        return [{"index": index, "dtype": dtype} for index, dtype in self.TYPES.items()]

    def get_output_details(self):
        return [{"index": 9}]

    def set_tensor(self, index, array):
        if array.dtype != self.TYPES[index]:
            raise ValueError(f"Cannot set tensor: Got value of type {array.dtype} for input {index}")
        self.tensors[index] = array.copy()

    def invoke(self):
        assert self.allocated
        self.tensors[9] = self.tensors[3] + 2 * self.tensors[5]

    def get_tensor(self, index):
        return self.tensors[index]


@pytest.fixture
def interpreter(monkeypatch):
    """The fake, where the adapter imports LiteRT from."""
    module = ModuleType("ai_edge_litert.interpreter")
    module.Interpreter = Interpreter
    monkeypatch.setitem(sys.modules, "ai_edge_litert", ModuleType("ai_edge_litert"))
    monkeypatch.setitem(sys.modules, "ai_edge_litert.interpreter", module)
    monkeypatch.setattr(litert, "version", {"ai-edge-litert": "2.3.0", "litert-torch": "0.10.0"}.get)


def test_it_is_for_suites():
    assert get_system("litert") is LiteRt
    assert LiteRt not in REAL


def test_without_its_package_the_row_says_so(monkeypatch):
    monkeypatch.setitem(sys.modules, "ai_edge_litert", None)
    with pytest.raises(SystemUnavailableError, match="LiteRT cannot be imported"):
        LiteRt().probe()


def test_its_version_stands_first(interpreter):
    assert list(LiteRt().probe()) == ["ai-edge-litert", "litert-torch"]


def test_an_onnx_file_alone_is_refused(tmp_path):
    task = make_task(product(), tmp_path)
    with pytest.raises(SystemUnavailableError, match="litert needs a PyTorch module"):
        LiteRt().build(task)
    with pytest.raises(SystemUnavailableError, match="set up here for fp32 on a CPU"):
        LiteRt().build(replace(task, target="cuda"))


def test_each_option_names_its_page(tmp_path):
    options = {option.name: option for option in LiteRt().options(make_task(product(), tmp_path))}
    assert options["num_threads"].value == "1"
    assert all(option.source for option in options.values())


def test_inputs_are_given_in_the_module_s_order_and_the_converter_s_types_anew_each_run(interpreter, tmp_path):
    system, task = LiteRt(), make_task(product(), tmp_path)
    system.load(task)
    assert system._interpreter.path == str(task.build_folder / CONVERTED)
    assert system._interpreter.num_threads == 1
    first, second = np.array([1.0], np.float32), np.array([10], np.int64)
    system.bind({"a": first, "b": second})
    system.run()
    assert system.outputs() == {"y": [21.0]}
    first[0] = 5.0
    system.run()
    assert system.outputs() == {"y": [25.0]}
