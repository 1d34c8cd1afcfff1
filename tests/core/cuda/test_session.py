"""Sessions on a GPU: the CuPy runtime on a fake CuPy that runs its launches on the emulator, and the emulator's own."""

from __future__ import annotations

import sys
from dataclasses import replace

import numpy as np
import pytest

import mononn_core
from mononn_core import compiler
from mononn_core.errors import (
    ArtifactError,
    DeviceError,
    DeviceHangError,
    InputError,
    MononnError,
    OptionError,
)
from mononn_core.runtime import cuda, cuda_device
from mononn_core.runtime.artifact import Artifact
from mononn_core.runtime.cuda_device import Present
from mononn_core.runtime.emulated import EmulatedSession
from mononn_core.runtime.loading import load
from tests.core.cuda.fake_cupy import SMS, Array, FakeCupy, Torch
from tests.core.networks import MODELS

HERE = Present("a GPU", "sm_90a", (13, 0))


def artifact_of(name: str, launch: str, target: str = "cuda") -> Artifact:
    """Without machine code: a cubin is made up."""
    stages = compiler.lower(MODELS[name](), target="cuda-emulated", precision="fp32", launch=launch, arch=("sm_90a",))
    built = compiler.build(stages)
    return Artifact({**built.manifest, "target": target}, b"", b"", built.weights, built.texts, {"sm_90a": b"code"})


@pytest.fixture(scope="module")
def once() -> Artifact:
    return artifact_of("mixed", "once")


@pytest.fixture(scope="module")
def graph() -> Artifact:
    return artifact_of("mixed", "graph")


@pytest.fixture
def cupy(once, monkeypatch):
    fake = FakeCupy(once.texts["source"])
    monkeypatch.setitem(sys.modules, "cupy", fake)
    monkeypatch.setattr(cuda, "present", lambda: HERE)
    return fake


def feeds(seed: int = 0) -> dict[str, np.ndarray]:
    random = np.random.default_rng(seed)
    return {"x": random.standard_normal((5, 12)).astype(np.float32), "ids": np.array([0, 3, 11, 2])}


def expected(artifact: Artifact, inputs: dict[str, np.ndarray]) -> np.ndarray:
    return EmulatedSession(artifact, blocks=3).run(inputs)["y"]


def test_one_cooperative_launch_of_one_wave_a_run(once, cupy):
    with cuda.CudaSession(once) as session:
        for seed in range(3):
            np.testing.assert_array_equal(session.run(feeds(seed))["y"], expected(once, feeds(seed)))
    assert len(cupy.calls) == 3
    per_sm = min(once.manifest["blocks_per_sm"], cupy.occupancy)
    assert {(c.kernel, c.cooperative, c.blocks, c.stream) for c in cupy.calls} == {
        ("mononn_run", True, SMS * per_sm, cupy.stream.ptr)
    }
    assert cupy.loaded == [b"code"]


def test_a_graph_is_captured_once_and_replayed(graph, monkeypatch):
    fake = FakeCupy(graph.texts["source"])
    monkeypatch.setitem(sys.modules, "cupy", fake)
    monkeypatch.setattr(cuda, "present", lambda: HERE)
    with cuda.CudaSession(graph) as session:
        binding = session.bind(feeds())
        for seed in range(2):
            for name, value in feeds(seed).items():
                binding.inputs[name].set(value)
            binding.run()
            np.testing.assert_array_equal(binding.results()["y"], expected(graph, feeds(seed)))
    names = [kernel["name"] for kernel in graph.manifest["kernels"]]
    assert [call.kernel for call in fake.calls] == names * 2
    assert len(names) > 1 and not any(call.cooperative for call in fake.calls)


def test_device_arrays_are_used_in_place(once, cupy):
    given = feeds()
    x, ids, y = Array(given["x"]), Torch(given["ids"]), Array(np.zeros((16, 7), np.float32))
    with cuda.CudaSession(once) as session:
        binding = session.bind({"x": x, "ids": ids}, {"y": y})
        addresses = [array.data.ptr for array in (*binding.inputs.values(), *binding.outputs.values())]
        assert sorted(addresses) == sorted([x.data.ptr, ids.array.data.ptr, y.data.ptr])
        binding.run()
        assert binding.results()["y"] is y
    np.testing.assert_array_equal(y.get(), expected(once, given))


def test_host_inputs_are_copied_again_when_asked(once, cupy):
    arrays = feeds()
    with cuda.CudaSession(once) as session:
        binding = session.bind(arrays)
        arrays["x"] *= 2
        binding.upload()
        binding.run()
        np.testing.assert_array_equal(binding.results()["y"], expected(once, arrays))


@pytest.mark.parametrize(
    ("inputs", "outputs", "text"),
    [
        ({"x": np.zeros((5, 12))}, {}, "'x' is float64"),
        ({"x": Array(np.zeros((12, 5), np.float32))}, {}, "'x' is float32"),
        ({"z": 0}, {}, "'z' is unknown"),
        ({}, {"y": np.zeros((16, 7), np.float32)}, "'y' lies in host memory"),
        ({"x": Array.over(np.zeros((12, 5), np.float32).T)}, {}, "not C-contiguous"),
    ],
)
def test_wrong_buffers_are_named(once, cupy, inputs, outputs, text):
    with cuda.CudaSession(once) as session, pytest.raises(InputError, match=text):
        session.bind({**feeds(), **inputs}, outputs)


def test_outputs_that_overlap_inputs_are_refused(once, cupy):
    room = np.zeros(5 * 12 + 16 * 7, np.float32)
    x, y = Array.over(room[: 5 * 12].reshape(5, 12)), Array.over(room[8 : 8 + 16 * 7].reshape(16, 7))
    with cuda.CudaSession(once) as session, pytest.raises(InputError, match="shares memory with 'x'"):
        session.bind({**feeds(), "x": x}, {"y": y})


def test_an_index_out_of_range_is_the_input_s_fault(once, cupy):
    wrong = {**feeds(), "ids": np.array([0, 3, 99, 2])}
    with cuda.CudaSession(once) as session:
        binding = session.bind(wrong)
        with pytest.raises(InputError, match=r"out of range in .* node .*it is 99"):
            binding.run()
        binding.inputs["ids"].set(feeds()["ids"])
        binding.run()
    with pytest.raises(InputError, match="it is 99"):
        EmulatedSession(once).run(wrong)


def test_no_driver(monkeypatch):
    monkeypatch.setattr(cuda_device.ctypes, "CDLL", lambda name: (_ for _ in ()).throw(OSError("no such file")))
    with pytest.raises(DeviceError, match=r"no NVIDIA driver is here .*cuda-emulated"):
        cuda_device.present()
    assert cuda_device.present_gpu() is None


def test_cupy_that_is_not_there(once, cupy, monkeypatch):
    monkeypatch.setitem(sys.modules, "cupy", None)
    with pytest.raises(DeviceError, match=r"pip install 'mononn\[cuda\]'"):
        cuda.CudaSession(once)


def test_a_driver_that_is_too_old(once, cupy, monkeypatch):
    monkeypatch.setattr(cuda, "present", lambda: replace(HERE, driver_cuda=(11, 8)))
    with pytest.raises(DeviceError, match=r"too old: it knows CUDA 11\.8, the code needs 12\.0"):
        cuda.CudaSession(once)


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"shared": 1 << 10}, r"bytes of shared memory a block, a GPU has 1024; compile for it: --arch sm_90a"),
        ({"occupancy": 0}, "no block of .* threads fits an SM"),
        ({"memory": 100}, "the GPU has no memory for"),
        ({"fails": "CUDA_ERROR_NO_BINARY_FOR_GPU"}, "the code is for another GPU"),
        ({"fails": "CUDA_ERROR_UNSUPPORTED_PTX_VERSION"}, "driver is too old for the code"),
    ],
)
def test_what_a_gpu_cannot_run_is_one_sentence(once, cupy, change, text):
    for name, value in change.items():
        setattr(cupy, name, value)
    if "shared" in change:
        changed = {**once.manifest, "shared_bytes": max(once.manifest["shared_bytes"], 2048)}
        once = Artifact(changed, b"", b"", once.weights, once.texts, once.cubins)
    with pytest.raises(DeviceError, match=text):
        cuda.CudaSession(once)


def test_no_more_blocks_than_one_wave(once, cupy):
    assert cuda.CudaSession(once, blocks=1).workers == 1
    with pytest.raises(OptionError, match=r"7 blocks are more than the one wave of 6"):
        cuda.CudaSession(once, blocks=7)
    with pytest.raises(OptionError, match="give a positive number"):
        cuda.CudaSession(once, blocks=0)


def test_a_kernel_that_hangs_is_an_error(once, cupy):
    cupy.hangs = True
    with cuda.CudaSession(once, watchdog_seconds=0.05) as session, pytest.raises(DeviceHangError, match=r"0\.05 s"):
        session.run(feeds())


def test_an_illegal_address_is_no_hang(once, cupy):
    """The event's status is the first to know of what a kernel did after its launch."""
    cupy.crashes = 700
    with cuda.CudaSession(once, watchdog_seconds=30) as session:
        binding = session.bind(feeds())
        with pytest.raises(DeviceError, match=r"running the kernel failed \(cudaError 700\).* start another") as caught:
            binding.run()
    assert not isinstance(caught.value, DeviceHangError)


def test_a_kernel_that_the_gpu_ends_is_an_error(once, cupy):
    with cuda.CudaSession(once) as session:
        binding = session.bind(feeds())
        cupy.fails = "CUDA_ERROR_ILLEGAL_ADDRESS"
        with pytest.raises(DeviceError, match=r"launching the kernel failed .* cuda-emulated, which says where"):
            binding.run()


def test_a_closed_session_runs_no_more(once, cupy):
    session = cuda.CudaSession(once)
    binding, other = session.bind(feeds()), session.clone()
    session.close()
    with pytest.raises(MononnError, match="closed"):
        binding.run()
    np.testing.assert_array_equal(other.run(feeds())["y"], expected(once, feeds()))
    assert len(cupy.loaded) == 1


@pytest.mark.parametrize(
    ("cubins", "arch", "chosen"),
    [
        ({"sm_80": b"80", "sm_90a": b"90"}, "sm_90a", b"90"),
        ({"sm_80": b"80", "sm_86": b"86", "sm_90a": b"90"}, "sm_89", b"86"),
        ({"sm_100": b"100"}, "sm_103", b"100"),
    ],
)
def test_the_cubin_of_the_gpu_or_an_older_one_of_its_generation(once, cubins, arch, chosen):
    artifact = Artifact(once.manifest, b"", b"", once.weights, once.texts, cubins)
    assert cuda.choose_cubin(artifact, replace(HERE, arch=arch)) == chosen


def test_without_a_cubin_and_a_compiler_the_architectures_are_named(once, monkeypatch):
    monkeypatch.setenv("MONONN_NVCC", "no-such-compiler")
    artifact = Artifact(once.manifest, b"", b"", once.weights, once.texts, {"sm_90a": b"90"})
    with pytest.raises(ArtifactError, match=r"has code for sm_90a, a GPU needs sm_80, .* --arch sm_80"):
        cuda.choose_cubin(artifact, replace(HERE, arch="sm_80"))


def test_a_gpu_s_file_comes_back_as_it_was(once, cupy, tmp_path):
    path = tmp_path / "x.mono"
    several = Artifact(once.manifest, b"", b"", once.weights, once.texts, {"sm_90a": b"ninety", "sm_80": b"eighty"})
    several.save(path)
    back = Artifact.load(path)
    assert (back.manifest, back.texts, back.cubins) == (several.manifest, several.texts, several.cubins)
    assert bytes(back.weights) == bytes(several.weights)
    back.save(tmp_path / "y.mono")
    assert (tmp_path / "y.mono").read_bytes() == path.read_bytes()
    data = bytearray(path.read_bytes())
    data[data.index(b"eighty")] ^= 1
    path.write_bytes(data)
    with pytest.raises(ArtifactError, match="altered"):
        Artifact.load(path)


def test_the_file_says_where_it_runs(once, cupy, tmp_path):
    once.save(tmp_path / "gpu.mono")
    assert isinstance(load(tmp_path / "gpu.mono"), cuda.CudaSession)
    emulated = Artifact({**once.manifest, "target": "cuda-emulated"}, b"", b"", once.weights, once.texts)
    emulated.save(tmp_path / "emulated.mono")
    with mononn_core.load(tmp_path / "emulated.mono", threads=2) as session:
        assert isinstance(session, EmulatedSession) and session.workers == 2
        np.testing.assert_array_equal(session.run(feeds())["y"], expected(once, feeds()))


def test_time_stamps_of_every_block_and_phase(once, cupy):
    phases = len(once.manifest["phases"])
    with cuda.CudaSession(once) as session:
        stamps = np.zeros((session.workers, phases, 3), np.uint64)
        session.bind(feeds(), trace=stamps).run()
        assert stamps.all()
        rows, timeline = mononn_core.trace_report(session, feeds(), runs=1)
    assert [row["id"] for row in rows] == [phase["id"] for phase in once.manifest["phases"]]
    assert '"traceEvents"' in timeline


@pytest.mark.parametrize("blocks", [0, 2000, "two"])
def test_a_number_of_blocks_that_makes_no_sense(once, blocks):
    with pytest.raises(OptionError, match="number of blocks"):
        EmulatedSession(once, blocks=blocks)


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"target": "cpu", "precision": "fp16"}, "precision 'fp16' is a GPU's"),
        ({"target": "cpu", "launch": "graph"}, 'launch "graph" is a GPU'),
        ({"target": "cpu", "arch": ("sm_80",)}, "for target cpu"),
        ({"target": "cuda", "launch": "phases"}, "phases"),
        ({"target": "cuda", "arch": ("sm_70",)}, "architecture 'sm_70' is unknown"),
        ({"target": "cuda", "gpu": "H1000"}, "GPU 'H1000' is unknown"),
    ],
)
def test_options_that_make_no_sense(options, text):
    with pytest.raises(OptionError, match=text):
        compiler.lower(MODELS["mlp"](), **options)


def test_without_a_gpu_an_architecture_has_to_be_named(monkeypatch):
    monkeypatch.setattr("mononn_core.compiler.cuda.present_gpu", lambda: None)
    with pytest.raises(OptionError, match="--arch sm_90a"):
        compiler.lower(MODELS["mlp"](), target="cuda")
