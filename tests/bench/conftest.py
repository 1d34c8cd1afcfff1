"""Small models made without PyTorch, and helpers to build and measure them with systems of the driver's interpreter."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from mononn_bench.by_hand import make_contestants
from mononn_bench.measure import environment
from mononn_bench.measure.build import build_system
from mononn_bench.measure.case import measure_case
from mononn_bench.measure.process import Limits
from mononn_bench.measure.runner import Contestant, Course
from mononn_bench.models.folder import write_catalogued_model, write_user_model
from mononn_bench.models.reference import write_reference
from mononn_bench.record import CaseRecord, Settings
from mononn_bench.systems.environment import adopt_environment
from mononn_bench.workflow.parts import slug

ROOT = Path(__file__).parents[2]
QUICK = Settings(
    rounds=1, cycles=2, block_s=0.01, warm_up_s=0.0, repeats=0, threads=1, answer_limit_s=20.0, memory_limit_mb=600
)


LAST_LEVEL_KIB = 32 << 10
"""No cache is larger for a test: what goes through a multiple of 260 MiB takes its time."""


@pytest.fixture(autouse=True, scope="session")
def caches() -> Iterator[None]:
    found = {name: min(size, LAST_LEVEL_KIB) for name, size in environment.cache_sizes_kib().items()}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(environment, "cache_sizes_kib", lambda: dict(found))
        yield


def linear_model(width: int = 8) -> onnx.ModelProto:
    """y = relu(x w + b), x of shape [1, width]."""
    random = np.random.default_rng(0)
    weight = numpy_helper.from_array(random.standard_normal((width, width)).astype(np.float32), "w")
    bias = numpy_helper.from_array(random.standard_normal(width).astype(np.float32), "b")
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["xw"]),
        helper.make_node("Add", ["xw", "b"], ["z"]),
        helper.make_node("Relu", ["z"], ["y"]),
    ]
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["batch", width]) for name in ("x", "y")]
    graph = helper.make_graph(nodes, "linear", [ends[0]], [ends[1]], [weight, bias])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10)


@pytest.fixture(scope="session")
def linear_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The linear model as a user's own: a model folder with its reference."""
    folder = tmp_path_factory.mktemp("linear")
    onnx.save(linear_model(), folder / "mine.onnx")
    write_user_model("linear", folder / "mine.onnx", {"x": (1, 8)}, folder / "model")
    write_reference(folder / "model", seed=0)
    return folder / "model"


@pytest.fixture(scope="session")
def driver_environment(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """This interpreter, described as an environment."""
    folder = tmp_path_factory.mktemp("environment")
    adopt_environment(Path(sys.executable), ROOT / "envs" / "mononn.txt", folder)
    return folder


Measure = Callable[[Sequence[str], Settings], CaseRecord]
Contestants = Callable[[Sequence[str]], tuple[Path, list[Contestant]]]


@pytest.fixture
def contestants(linear_folder: Path, driver_environment: Path, tmp_path: Path) -> Contestants:
    """Build the linear model with each named system, for one core; the model's folder and who takes part."""

    def make(systems: Sequence[str]) -> tuple[Path, list[Contestant]]:
        builds = {name: tmp_path / "builds" / slug(name) for name in systems}
        for name, folder in builds.items():
            build_system(
                name,
                environment=driver_environment,
                model_folder=linear_folder,
                output=folder,
                threads=1,
                precision="fp32",
                target="cpu",
                limits=Limits(20, QUICK.memory_limit_mb),
                lock=tmp_path / "lock",
            )
        return linear_folder, make_contestants(systems, builds, dict.fromkeys(systems, driver_environment))

    return make


@pytest.fixture
def measure(contestants: Contestants, tmp_path: Path) -> Measure:
    """Build the linear model with each named system and measure the case."""

    def run(systems: Sequence[str], settings: Settings = QUICK) -> CaseRecord:
        folder, made = contestants(systems)
        course = Course(folder, folder / "reference.npz", "fp32", "cpu", settings, (0,), tmp_path / "scratch")
        return measure_case(made, course, machine_name="here", command="", say=lambda _: None, lock=tmp_path / "lock")

    return run


@pytest.fixture(scope="session")
def bert_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The exported bert-test model with its reference."""
    folder = tmp_path_factory.mktemp("bert")
    write_catalogued_model("bert-test", "seeded", 0, folder, folder)
    write_reference(folder, seed=0)
    return folder
