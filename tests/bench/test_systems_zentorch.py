"""zentorch's adapter, its library replaced by a fake: what it asks of Inductor, and when it cannot serve."""

import sys
from types import ModuleType, SimpleNamespace

import pytest
from bench.small_networks import make_task, product

from mononn_bench.errors import SystemUnavailableError
from mononn_bench.systems import REAL, get_system, torch_inductor
from mononn_bench.systems.torch_inductor import TorchInductor
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
    assert ZenTorch().compiler_settings() == {**alone, "joint_custom_post_pass": "passes"}
    assert alone["freezing"] is True


def test_each_option_names_its_page(tmp_path):
    options = ZenTorch().options(make_task(product(), tmp_path))
    assert {"joint_custom_post_pass", "freezing", "set_num_threads"} <= {option.name for option in options}
    assert all(option.source for option in options)


def test_its_version_stands_first(zentorch):
    assert list(ZenTorch().probe().items()) == [("zentorch", "2.13.0.2"), ("torch", "2.13.0+cpu")]


def test_without_avx512_the_row_says_so(zentorch):
    zentorch._C.is_avx512_supported = lambda: False
    with pytest.raises(SystemUnavailableError, match="without AVX-512"):
        ZenTorch().probe()


def test_without_its_package_the_row_says_so(zentorch, monkeypatch):
    monkeypatch.setitem(sys.modules, "zentorch", None)
    with pytest.raises(SystemUnavailableError, match="zentorch cannot be imported"):
        ZenTorch().probe()


def test_a_gpu_is_refused(zentorch, tmp_path):
    with pytest.raises(SystemUnavailableError, match="set up here for fp32 on a CPU, not fp32 on cuda"):
        ZenTorch().build(make_task(product(), tmp_path, target="cuda"))
