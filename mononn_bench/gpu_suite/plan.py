"""What the suite does, in order: the most important first, so that a run that is cut off has it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mononn_bench.gpu_suite.case import PRECISIONS, Case

LARGE = ("bert-base", "vit-base", "t5-small", "resnet50")
SMALL = ("mlp", "bert-tiny")
TINY = ("mlp-test", "bert-test", "vit-test", "t5-test", "resnet-test")
BATCHES = (1, 8, 16, 32)
LAUNCHES = ("once", "graph")
RIVALS = ("torch-graph", "torch-inductor", "xla")
"""What Nsight Compute looks at beside ours."""
Arguments = Mapping[str, Any]


@dataclass(frozen=True)
class Step:
    """One process: its name in the record, the function of steps.py, what that is told, and seconds at most."""

    name: str
    kind: str
    arguments: Arguments
    seconds: float


def plan(work: Path, emulate: bool, contenders: tuple[str, ...]) -> list[Step]:
    """All steps; a rehearsal has every kind of them, on networks that an emulator can run."""
    steps = [Step("machine", "machine", {}, 120), Step("ceilings", "ceilings", {}, 400)]
    steps += [Step("conformance", "conformance", {}, 300)]
    steps += list(_rehearsal(work, contenders) if emulate else _full(work, contenders))
    return steps


def _full(work: Path, contenders: tuple[str, ...]) -> Iterator[Step]:
    def case(model: str, batch: int, precision: str) -> Case:
        return Case(str(work), model, batch, precision, "cuda")

    small = [(case(model, 1, p), launch) for model in (*TINY, *SMALL) for p in PRECISIONS for launch in LAUNCHES]
    large = [(case(model, 1, p), "once") for p in ("fp16", "fp32", "bf16") for model in LARGE]
    large += [(case(model, 1, "fp16"), "graph") for model in LARGE]
    batches = [(case(model, b, "fp16"), launch) for b in BATCHES[1:] for model in LARGE for launch in LAUNCHES]
    batches += [(case(model, 1, p), "graph") for p in ("fp32", "bf16") for model in LARGE]
    yield from (_models(model, (1,)) for model in (*TINY, *SMALL))
    yield _build("small", small)
    for model in (*TINY, *SMALL):
        yield from (_correct(case(model, 1, p), launch) for p in PRECISIONS for launch in LAUNCHES)
    yield from (_sanitize(case(model, 1, "fp16"), "once", "memcheck") for model in TINY)
    yield from (_sanitize(case("bert-test", 1, "fp16"), "once", tool) for tool in ("racecheck", "synccheck"))
    yield from (_models(model, BATCHES) for model in LARGE)
    yield _build("large", large)
    for model in LARGE:
        yield from (_correct(case(model, 1, p), "once") for p in ("fp16", "fp32", "bf16"))
    yield from (_compare(case(model, 1, "fp16"), contenders) for model in LARGE)
    for model in LARGE:
        yield from (_trace(case(model, 1, "fp16"), launch) for launch in LAUNCHES)
    yield from (_ncu(case("bert-base", 1, "fp16"), name) for name in ("mononn", *RIVALS))
    yield _build("batches", batches)
    for batch in BATCHES[1:]:
        yield from (_compare(case(model, batch, "fp16"), contenders) for model in LARGE)
    yield from (_compare(case(model, 1, p), contenders) for p in ("fp32", "bf16") for model in LARGE)
    yield from (_compare(case(model, 1, "fp16"), contenders) for model in SMALL)


def _rehearsal(work: Path, contenders: tuple[str, ...]) -> Iterator[Step]:
    def case(model: str, batch: int, precision: str) -> Case:
        return Case(str(work), model, batch, precision, "cpu")

    yield from (_models(model, (1, 2)) for model in TINY)
    yield _build("tiny", [(case("mlp-test", 1, p), launch) for p in PRECISIONS for launch in LAUNCHES])
    for model in TINY:
        yield from (_correct(case(model, 1, p), "once") for p in PRECISIONS)
        yield _correct(case(model, 1, "fp16"), "graph")
    yield _sanitize(case("mlp-test", 1, "fp16"), "once", "memcheck")
    yield _compare(case("mlp-test", 1, "fp32"), contenders)
    quick = tuple(name for name in contenders if name != "torch-inductor")  # it compiles for a minute on a CPU
    yield from (_compare(case(model, 1, "fp32"), quick) for model in TINY[1:])
    yield _compare(case("bert-test", 2, "fp16"), quick)
    yield _trace(case("bert-test", 1, "fp16"), "once")
    yield from (_ncu(case("bert-test", 1, "fp16"), name) for name in ("mononn", RIVALS[0]))


def _models(model: str, batches: tuple[int, ...]) -> Step:
    arguments = {"model": model, "batches": list(batches), "precisions": list(PRECISIONS)}
    return Step(f"model:{model}", "models", arguments, 400)


def _build(name: str, builds: Sequence[tuple[Case, str]]) -> Step:
    return Step(f"build:{name}", "build", {"builds": [[case.to_json(), launch] for case, launch in builds]}, 600)


def _correct(case: Case, launch: str) -> Step:
    return Step(f"correct:{case.label}:{launch}", "correctness", {"case": case.to_json(), "launch": launch}, 400)


def _sanitize(case: Case, launch: str, tool: str) -> Step:
    arguments = {"case": case.to_json(), "launch": launch, "tool": tool}
    return Step(f"sanitize:{case.label}:{tool}", "sanitizer", arguments, 300)


def _compare(case: Case, contenders: tuple[str, ...]) -> Step:
    arguments = {"case": case.to_json(), "contenders": list(contenders)}
    return Step(f"compare:{case.label}", "compare", arguments, 1200)


def _trace(case: Case, launch: str) -> Step:
    return Step(f"trace:{case.label}:{launch}", "trace", {"case": case.to_json(), "launch": launch}, 300)


def _ncu(case: Case, contender: str) -> Step:
    return Step(f"ncu:{case.label}:{contender}", "ncu", {"case": case.to_json(), "contender": contender}, 300)
