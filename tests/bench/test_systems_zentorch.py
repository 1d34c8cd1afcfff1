"""zentorch's adapter, its library replaced by a fake: what it asks of Inductor, and when it cannot serve."""

import sys
from types import ModuleType, SimpleNamespace

import pytest
import torch
import torch._inductor.config
from bench.small_networks import make_task, product

from mononn_bench.errors import SystemUnavailableError
from mononn_bench.models.folder import write_catalogued_model
from mononn_bench.models.modules import load_module
from mononn_bench.models.zoo import get_model
from mononn_bench.record import ModelRecord, read_record
from mononn_bench.systems import REAL, get_system, torch_inductor
from mononn_bench.systems.base import Built, Task
from mononn_bench.systems.torch_eager import WEIGHTS
from mononn_bench.systems.torch_inductor import PACKAGE, TorchInductor
from mononn_bench.systems.zentorch import ZenTorch


@pytest.fixture
def zentorch(monkeypatch):
    """A zentorch whose passes are a word, beside a PyTorch that can be imported."""
    fake = ModuleType("zentorch")
    fake.__version__ = "2.13.0.2"
    fake.export_optimize_pass = "passes"
    fake._C = SimpleNamespace(is_avx512_supported=lambda: True)
    monkeypatch.setitem(sys.modules, "zentorch", fake)
    monkeypatch.setattr(torch_inductor, "probe_torch", lambda: {"torch": "2.13.0+cpu"})
    monkeypatch.setattr(torch_inductor, "import_module", lambda name: None)
    return fake


def test_it_belongs_to_the_default_comparison_and_to_pytorch_s_family():
    assert get_system("zentorch") is ZenTorch
    assert ZenTorch in REAL
    assert (ZenTorch.family, ZenTorch.environment, ZenTorch.on_cuda) == ("pytorch", "zentorch", ())


def test_inductor_gets_its_passes_beside_what_inductor_alone_gets(zentorch):
    alone = TorchInductor().compiler_settings()
    assert ZenTorch().compiler_settings() == {**alone, "max_autotune": False, "joint_custom_post_pass": "passes"}
    assert alone["freezing"] is True


def test_each_option_names_its_page(tmp_path):
    options = ZenTorch().options(make_task(product(), tmp_path))
    assert {"joint_custom_post_pass", "freezing", "set_num_threads"} <= {option.name for option in options}
    assert all(option.source for option in options)


def test_its_version_stands_first(zentorch):
    assert list(ZenTorch().probe().items()) == [("zentorch", "2.13.0.2"), ("torch", "2.13.0+cpu")]


def test_without_avx512_the_row_says_so(zentorch):
    zentorch._C.is_avx512_supported = lambda: False
    with pytest.raises(SystemUnavailableError, match="asks of AVX-512"):
        ZenTorch().probe()


def test_without_its_package_the_row_says_so(zentorch, monkeypatch):
    monkeypatch.setitem(sys.modules, "zentorch", None)
    with pytest.raises(SystemUnavailableError, match="zentorch cannot be imported"):
        ZenTorch().probe()


def test_a_gpu_is_refused(zentorch, tmp_path):
    with pytest.raises(SystemUnavailableError, match="set up here for fp32 on a CPU, not fp32 on cuda"):
        ZenTorch().build(make_task(product(), tmp_path, target="cuda"))


@pytest.fixture(scope="module")
def mlp_task(tmp_path_factory):
    folder = tmp_path_factory.mktemp("mlp")
    write_catalogued_model("mlp-test", "seeded", 0, folder / "model", folder)
    model = read_record(ModelRecord, folder / "model" / "model.json")
    (folder / "build").mkdir()
    return Task(model, folder / "model", folder / "build", 1, "fp32", "cpu")


class FromPackage(ZenTorch):
    """A package that answers as its module does, or keeps what it saw first for a weight."""

    stale = False

    def load(self, task):
        if not (task.build_folder / PACKAGE).exists():
            super().load(task)
            return
        module = load_module(get_model(task.model.name), task.model_folder / WEIGHTS, attention="sdpa")
        first = []

        def call(arguments):
            first[:] = first or [argument.clone() for argument in arguments]
            return module(*(first if self.stale else arguments))

        self._call, self._names = call, [tensor.name for tensor in task.model.outputs]


@pytest.mark.parametrize("stale", [False, True])
def test_a_package_that_takes_an_activation_for_a_weight_is_not_used(zentorch, mlp_task, monkeypatch, stale):
    compiled = []
    monkeypatch.setattr(torch, "compile", lambda module, backend: compiled.append(backend) or module)
    monkeypatch.setattr(torch_inductor.TorchInductor, "build", lambda self, task: Built(details={"kept": 1}))
    package = mlp_task.build_folder / PACKAGE
    package.touch()
    adapter = FromPackage()
    adapter.stale = stale
    with torch._inductor.config.patch(freezing=False):
        built = adapter.build(mlp_task)
        froze = torch._inductor.config.freezing
    assert package.exists() is not stale
    assert compiled == (["zentorch"] if stale else [])
    assert ("answers wrongly after the first input" in built.details.get("note", "")) is stale
    assert built.details["kept"] == 1 and froze is stale
