"""Our adapter on a GPU: a fake CuPy runs its launches on the emulator."""

import sys

import numpy as np
import pytest
from bench.small_networks import check_adapter, make_task, product

from mononn_bench.systems import get_system
from mononn_core import compiler
from mononn_core.runtime import cuda
from mononn_core.runtime.cuda_device import Present
from tests.core.cuda.fake_cupy import FakeCupy


@pytest.mark.parametrize("name", ["mononn", "mononn[launch=graph]"])
def test_our_kernels_between_device_buffers(name, tmp_path, monkeypatch):
    task = make_task(product(), tmp_path, target="cuda")
    launch = "graph" if "graph" in name else "once"
    here = Present("a GPU", "sm_80", (13, 0))
    monkeypatch.setattr("mononn_core.compiler.cuda.present_gpu", lambda: here)
    monkeypatch.setattr(cuda, "present", lambda: here)
    fake = FakeCupy(compiler.lower(str(task.onnx), target="cuda", launch=launch).source)
    monkeypatch.setitem(sys.modules, "cupy", fake)
    check_adapter(get_system(name), task)
    assert fake.calls
    assert all(call.cooperative == (launch == "once") for call in fake.calls)
    system = get_system(name)()
    system.load(task)
    system.bind({t.name: np.zeros(t.shape, t.dtype) for t in task.model.inputs})
    system.warm_up()
    system.run()
    call, before = system.device_call(), len(fake.calls)
    system.run()
    after_one = len(fake.calls)
    call.enqueue()
    assert len(fake.calls) - after_one == after_one - before > 0
    assert call.stream == fake.stream.ptr
    assert not [option for option in system.options(task) if option.name == "threads"]
