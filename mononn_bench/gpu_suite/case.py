"""A case of the comparison: a network of the catalogue with a batch and a precision, and the files that it has."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path

import numpy as np

from mononn_bench.codec import read_record, write_record, write_text
from mononn_bench.measure.accuracy import Array, When, check, rel_l2_limits
from mononn_bench.measure.process import PACKAGE
from mononn_bench.models.distance import largest_errors
from mononn_bench.models.inputs import Arrays, make_inputs
from mononn_bench.models.zoo import ModelSpec, get_model
from mononn_bench.record import AccuracyCheck, ModelRecord, Tensor

SEED = 0
SETS, UNSEEN = 3, 1
"""Input sets that rotate in timed runs, and those only looked at after the last of these."""
PRECISIONS = ("fp32", "fp16", "bf16")
SOURCES = (".py", ".cuh", ".h", ".hpp", ".cpp")
Checks = list[AccuracyCheck]


@dataclass(frozen=True)
class Case:
    """`work` is the suite's folder for files that may be made again; `target` is "cuda", or "cpu" in a rehearsal."""

    work: str
    model: str
    batch: int
    precision: str
    target: str

    @property
    def spec(self) -> ModelSpec:
        return get_model(f"{self.model}-b{self.batch}")

    @property
    def label(self) -> str:
        return f"{self.model}-b{self.batch}-{self.precision}"

    @property
    def models(self) -> Path:
        return Path(self.work) / "models"

    @property
    def tensors(self) -> Path:
        """The network's tensors, float32, by name (npz)."""
        return self.models / self.model / "tensors.npz"

    @property
    def reference(self) -> Path:
        """`<set>/in/<name>`, in float64 `<set>/out/<name>`, and `fp32/<name>`, the largest relative L2 error of
        PyTorch in float32 on a CPU (npz).
        """
        return self.models / f"{self.model}-b{self.batch}" / "reference.npz"

    @property
    def folder(self) -> Path:
        """Holds model.onnx in the case's precision, its weights and model.json."""
        return self.reference.parent / self.precision

    def limits(self, stored: Mapping[str, Array]) -> dict[str, float]:
        """The largest relative L2 error of each output; `stored` is what `reference` holds."""
        errors = {name: float(stored[f"fp32/{name}"]) for name in self.spec.outputs if f"fp32/{name}" in stored}
        return rel_l2_limits(self.precision, self.spec.outputs, {}, errors)

    def check(self, stored: Mapping[str, Array], index: int, answers: Mapping[str, Array], when: When) -> Checks:
        """Judge the answers to one input set; an output that is missing fails."""
        limits, checks = self.limits(stored), []
        for name in self.spec.outputs:
            exact = stored[f"{index}/out/{name}"]
            answer = answers[name] if name in answers else np.full(exact.shape, np.nan)
            checks.append(check(name, index, when, answer, exact, precision=self.precision, limit=limits[name]))
        return checks

    def sets(self) -> list[Arrays]:
        """The input sets, unseen ones last."""
        return make_inputs(self.spec.inputs, sets=SETS + UNSEEN, seed=SEED)

    def build_folder(self, system: str) -> Path:
        """Where a system leaves what it builds."""
        return Path(self.work) / "builds" / self.label / system

    def to_json(self) -> dict[str, str | int]:
        return asdict(self)


def make_models(cases: Sequence[Case], device: str) -> dict[str, float]:
    """Tensors, ONNX files and float64 references of cases of one model; bytes of the weights by precision.

    Tensors and references that stand are left as they are, unless other sources made them. Needs torch and onnx;
    references are computed on torch's `device`.
    """
    from mononn_bench.gpu_suite.torch_network import reference

    sizes, tensors = make_files(cases)
    for case in cases:
        if not case.reference.exists():
            sets = case.sets()
            answers = reference(case.spec, tensors, sets, device)
            rounded = reference(case.spec, tensors, sets, "cpu", "fp32")
            stored_sets = {f"{i}/in/{n}": a for i, given in enumerate(sets) for n, a in given.items()}
            stored_sets |= {f"{i}/out/{n}": a for i, answer in enumerate(answers) for n, a in answer.items()}
            stored_sets |= {f"fp32/{n}": np.array(e) for n, e in largest_errors(rounded, answers).items()}
            partial = case.reference.with_name(".reference.npz")
            np.savez(partial, **stored_sets)  # type: ignore[arg-type]
            partial.replace(case.reference)
    return sizes


def make_files(cases: Sequence[Case]) -> tuple[dict[str, float], dict[str, Array]]:
    """The part of `make_models` that a build needs, tensors and ONNX files; returns the weights' bytes by precision and
    the tensors by name.
    """
    from mononn_bench.gpu_suite.onnx_network import WeightFile, write_network
    from mononn_bench.gpu_suite.torch_network import seeded_tensors

    first = cases[0]
    _drop_stale(first)
    if not first.tensors.exists():
        drawn = seeded_tensors(first.spec, SEED)
        first.tensors.parent.mkdir(parents=True, exist_ok=True)
        partial = first.tensors.with_name(".tensors.npz")
        np.savez(partial, **drawn)  # type: ignore[arg-type]
        partial.replace(first.tensors)
    with np.load(first.tensors) as stored:
        tensors = {name: stored[name] for name in stored.files}
    sizes = {}
    for precision in dict.fromkeys(case.precision for case in cases):
        weights = WeightFile(first.models / first.model / f"{precision}.bin", precision)
        for case in (c for c in cases if c.precision == precision):
            case.folder.mkdir(parents=True, exist_ok=True)
            write_network(case.spec, tensors, weights, case.folder / "model.onnx")
        for case in (c for c in cases if c.precision == precision):
            _link(weights.path, case.folder / weights.path.name)
            write_record(model_record(case), case.folder / "model.json")
        sizes[precision] = float(weights.path.stat().st_size)
    return sizes, tensors


def _drop_stale(case: Case) -> None:
    """Remove what other sources than today's made of the case's network."""
    stamp, today = case.tensors.with_name("sources.txt"), source_digest("mononn_bench/gpu_suite", "mononn_bench/models")
    if not stamp.exists() or stamp.read_text() != today:
        case.tensors.unlink(missing_ok=True)
        for path in case.models.glob(f"{case.model}-b*/reference.npz"):
            path.unlink()
        write_text(stamp, today)


@cache
def source_digest(*folders: str) -> str:
    """Of every source file under folders of the checkout."""
    total = hashlib.sha256()
    for path in sorted(p for folder in folders for p in (PACKAGE.parent / folder).rglob("*") if p.suffix in SOURCES):
        total.update(path.read_bytes())
    return total.hexdigest()[:12]


def _link(source: Path, path: Path) -> None:
    """`path` as another name of `source`."""
    path.unlink(missing_ok=True)
    path.hardlink_to(source)


def link_weights(case: Case, folder: Path) -> None:
    """The case's weights beside a copy of its model in `folder`."""
    _link(case.folder / f"{case.precision}.bin", folder / f"{case.precision}.bin")


def model_record(case: Case) -> ModelRecord:
    """What the adapters of the suite for CPUs and GPUs read; arithmetic is counted there and not here."""
    spec = case.spec
    types = {name: Tensor(name, "float32", _output_shape(case, name)) for name in spec.outputs}
    return ModelRecord(
        name=case.model, batch=case.batch, full_size=spec.full_size, weights="seeded", seed=SEED,
        source=f"gpu_suite, seed {SEED}", digest="", opset=18,
        inputs=tuple(Tensor(i.name, i.dtype, i.shape) for i in spec.inputs), outputs=tuple(types.values()),
        flops=0, weight_bytes=0, compulsory_bytes=0, versions={},
    )  # fmt: skip


def _output_shape(case: Case, name: str) -> tuple[int, ...]:
    import onnx

    graph = onnx.load(case.folder / "model.onnx", load_external_data=False).graph
    value = next(v for v in graph.output if v.name == name)
    return tuple(d.dim_value for d in value.type.tensor_type.shape.dim)


def read_model(case: Case) -> ModelRecord:
    """The record that `make_models` left."""
    return read_record(ModelRecord, case.folder / "model.json")


def write_json(path: Path, value: object) -> None:
    """JSON, written under a temporary name and renamed."""
    write_text(path, json.dumps(value, indent=1, allow_nan=False))
