"""What the suite does, in order: the most important first, so that a run that is cut off has it.

Steps of the lane "gpu" run one after the other; those of the lane "host" make models and code beside them, on cores of
their own. A step waits until those it needs have ended.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from mononn_bench.gpu_suite.case import PRECISIONS, Case

FIRST = "bert-base"
LARGE = (FIRST, "vit-base", "t5-small", "resnet50")
SMALL = ("mlp", "bert-tiny")
TINY = ("mlp-test", "bert-test", "vit-test", "t5-test", "resnet-test")
BATCHES = (1, 8, 16, 32)
LAUNCHES = ("once", "graph")
RIVALS = ("torch-graph", "torch-inductor", "xla")
"""What Nsight Compute looks at beside ours."""
LEADERS = ("mononn", "mononn-graph", "torch-graph", "torch-inductor")
"""Compared first."""
CALL_S = 600.0
"""Where a machine is lent by calls of so long, a printed plan is cut there."""
KEPT = {
    "machine": "GPU, driver, clocks, packages",
    "preflight": "code loads, a grid's barrier holds, a fault is reported",
    "conformance": "each primitive confirmed on hardware; the emulator replays it",
    "ceilings": "what copies, products, barriers and launches can reach",
    "build": "registers, spills, sizes",
    "correctness": "right or wrong against float64, every input set",
    "trace": "where the kernel's time goes",
    "compare": "speed beside rivals, warm and cold",
    "sanitizer": "compute-sanitizer's verdict",
    "ncu": "hardware counters",
    "fit": "the cost model's constants",
    "variants": "the fastest launch and tiles of each phase",
}
"""What stands in the record once a step of a kind has ended."""
LANES = ("gpu", "host")
Arguments = Mapping[str, Any]
Built = tuple[Case, str]


@dataclass(frozen=True)
class Step:
    """One process: its name in the record, the function of steps.py, what that is told, seconds at most and as expected
    beforehand, the steps that must have ended, and the lane it runs in.
    """

    name: str
    kind: str
    arguments: Arguments
    seconds: float
    expected: float = 10.0
    needs: tuple[str, ...] = ()
    lane: Literal["gpu", "host"] = "gpu"


def next_step(pending: Sequence[Step], running: Collection[str], lane: str) -> Step | None:
    """The first pending step of a lane that needs no pending and no running one."""
    open_names = {step.name for step in pending} | set(running)
    return next((s for s in pending if s.lane == lane and open_names.isdisjoint(s.needs)), None)


def plan(work: Path, emulate: bool, contenders: tuple[str, ...]) -> list[Step]:
    """All steps; a rehearsal has every kind of them, on networks that an emulator can run."""
    steps = [Step("machine", "machine", {}, 120, 6), Step("preflight", "preflight", {}, 120, 20)]
    steps += [Step("conformance", "conformance", {}, 100, 25), Step("ceilings", "ceilings", {}, 80, 60)]
    steps += list(_rehearsal(work, contenders) if emulate else _full(work, contenders))
    return steps


def timetable(steps: Sequence[Step]) -> list[tuple[float, float, Step]]:
    """(begin, end, step) in seconds, if each takes as long as expected; in the order in which they begin."""
    pending, found, now = list(steps), [], 0.0
    busy: dict[str, tuple[float, str]] = {}
    while pending or busy:
        for lane in LANES:
            step = None if lane in busy else next_step(pending, [name for _, name in busy.values()], lane)
            if step is not None:
                pending.remove(step)
                busy[lane] = (now + step.expected, step.name)
                found.append((now, now + step.expected, step))
        now, _ = busy.pop(min(busy, key=lambda lane: busy[lane]))
    return found


def describe(steps: Sequence[Step], minutes: float | None) -> str:
    """The plan for people: when each step is expected to begin, how long it takes, what is kept if all ends after it.

    Lines mark where calls of ten minutes, and `minutes`, end.
    """
    lines = [f"{'begins':>7} {'takes':>7}  step"]
    marks = [CALL_S * number for number in range(1, 1 + int((minutes or 30.0) * 60 // CALL_S))]
    if minutes:
        marks = [mark for mark in marks if mark < minutes * 60] + [minutes * 60]
    for begin, end, step in timetable(steps):
        while marks and begin >= marks[0]:
            lines.append(f"{'-' * 16} {marks.pop(0) / 60:g} min")
        beside = "  (beside)" if step.lane == "host" else ""
        kept = f": {KEPT[step.kind]}" if step.kind in KEPT else ""
        lines.append(f"{_clock(begin):>7} {end - begin:>5.0f} s  {step.name}{beside}{kept}")
    return "\n".join(lines)


def _clock(seconds: float) -> str:
    return f"{int(seconds) // 60}:{int(seconds) % 60:02d}"


def _full(work: Path, contenders: tuple[str, ...]) -> Iterator[Step]:
    def case(model: str, batch: int, precision: str) -> Case:
        return Case(str(work), model, batch, precision, "cuda")

    early = [(case("bert-test", 1, "fp16"), "once")]
    early += [(case("bert-tiny", 1, p), launch) for p in PRECISIONS for launch in LAUNCHES]
    small = [(case(m, 1, p), launch) for m in (*TINY, *SMALL) for p in PRECISIONS for launch in LAUNCHES]
    small = [built for built in small if built not in early]
    leaders = tuple(name for name in contenders if name in LEADERS)
    others = ("mononn", *(name for name in contenders if name not in LEADERS))

    yield _models("early", ("bert-test", "bert-tiny"), (1,), 15)
    yield _build("early", early, 40)
    yield _models(FIRST, (FIRST,), (1,), 30)
    yield _build(FIRST, _launches(case, FIRST), 60)
    yield _correct("early", early, 25)
    yield _correct(FIRST, _launches(case, FIRST), 20)
    yield from (_trace(case(FIRST, 1, "fp16"), launch) for launch in LAUNCHES)
    yield _compare(case(FIRST, 1, "fp16"), leaders, "", 180)
    yield _models("small", tuple(m for m in (*TINY, *SMALL) if m not in ("bert-test", "bert-tiny")), (1,), 20)
    for model in LARGE[1:]:
        yield _models(model, (model,), (1,), 30)
        yield _build(model, _launches(case, model), 60)
    yield _build("small", small, 60)
    yield _compare(case(FIRST, 1, "fp16"), others, ":others", 150)
    for model in LARGE[1:]:
        yield _correct(model, _launches(case, model), 20)
        yield from (_trace(case(model, 1, "fp16"), launch) for launch in LAUNCHES)
        yield _compare(case(model, 1, "fp16"), contenders, "", 240)
    yield _fit([(case(model, 1, "fp16"), "once") for model in LARGE])
    yield _correct("small", small, 60)
    yield from (_sanitize(case(model, 1, "fp16"), "once", "memcheck") for model in TINY)
    yield from (_sanitize(case("bert-test", 1, "fp16"), "once", tool) for tool in ("racecheck", "synccheck"))
    yield _build("variants", _variants(case(FIRST, 1, "fp16")), 90, FIRST)
    yield _variant_step(case(FIRST, 1, "fp16"), 30)
    yield from (_ncu(case(FIRST, 1, "fp16"), name) for name in ("mononn", *RIVALS))
    for model in LARGE:
        yield _models(f"{model}:batches", (model,), BATCHES[1:], 60)
        batches = [(case(model, b, "fp16"), launch) for b in BATCHES[1:] for launch in LAUNCHES]
        batches += [(case(model, 1, p), "graph") for p in ("fp32", "bf16")]
        yield _build(f"{model}:batches", batches, 60, f"{model}:batches", model)
    for batch in BATCHES[1:]:
        yield from (_compare(case(model, batch, "fp16"), contenders, "", 240) for model in LARGE)
    yield from (_compare(case(model, 1, p), contenders, "", 240) for p in ("fp32", "bf16") for model in LARGE)
    yield from (_compare(case(model, 1, "fp16"), contenders, "", 120) for model in SMALL)


def _launches(case: Any, model: str) -> list[Built]:
    """What is built of a large network at batch 1 first."""
    return [(case(model, 1, p), "once") for p in ("fp16", "fp32", "bf16")] + [(case(model, 1, "fp16"), "graph")]


def _rehearsal(work: Path, contenders: tuple[str, ...]) -> Iterator[Step]:
    def case(model: str, batch: int, precision: str) -> Case:
        return Case(str(work), model, batch, precision, "cpu")

    built = [(case(model, 1, p), "once") for model in TINY for p in PRECISIONS]
    built += [(case(model, 1, "fp16"), "graph") for model in TINY]
    yield _models("tiny", TINY, (1, 2), 60)
    yield _build("tiny", built, 240)
    yield _correct("tiny", built, 120)
    yield _trace(case("bert-test", 1, "fp16"), "once", "tiny")
    yield _compare(case("mlp-test", 1, "fp32"), contenders, "", 120, "tiny")
    yield _sanitize(case("mlp-test", 1, "fp16"), "once", "memcheck", "tiny")
    quick = tuple(name for name in contenders if name != "torch-inductor")  # it compiles for a minute on a CPU
    yield from (_compare(case(model, 1, "fp32"), quick, "", 40, "tiny") for model in TINY[1:])
    yield _compare(case("bert-test", 2, "fp16"), quick, "", 40, "tiny")
    yield _fit([(case("bert-test", 1, "fp16"), "once")])
    yield _build("variants", _variants(case("bert-test", 1, "fp16")), 60, "tiny")
    yield _variant_step(case("bert-test", 1, "fp16"), 30)
    yield from (_ncu(case("bert-test", 1, "fp16"), name, "tiny") for name in ("mononn", RIVALS[0]))


def _models(name: str, models: Sequence[str], batches: Sequence[int], expected: float) -> Step:
    arguments = {"models": list(models), "batches": list(batches), "precisions": list(PRECISIONS)}
    return Step(f"models:{name}", "models", arguments, 600, expected, lane="host")


def _build(name: str, builds: Sequence[Built], expected: float, *models: str) -> Step:
    """`models`: names of the steps that make what it compiles, its own where there are none."""
    arguments = {"builds": [[case.to_json(), launch] for case, launch in builds]}
    needs = tuple(f"models:{one}" for one in models or (name,))
    return Step(f"build:{name}", "build", arguments, 600, expected, needs, "host")


def _correct(name: str, builds: Sequence[Built], expected: float) -> Step:
    arguments = {"builds": [[case.to_json(), launch] for case, launch in builds]}
    return Step(f"correct:{name}", "correctness", arguments, 400, expected, (f"build:{name}",))


def _sanitize(case: Case, launch: str, tool: str, built: str = "") -> Step:
    arguments = {"case": case.to_json(), "launch": launch, "tool": tool}
    return Step(f"sanitize:{case.label}:{tool}", "sanitizer", arguments, 300, 30, _built(case, built))


def _compare(case: Case, contenders: Sequence[str], part: str, expected: float, built: str = "") -> Step:
    arguments = {"case": case.to_json(), "contenders": list(contenders)}
    return Step(f"compare:{case.label}{part}", "compare", arguments, 1200, expected, _built(case, built))


def _trace(case: Case, launch: str, built: str = "") -> Step:
    arguments = {"case": case.to_json(), "launch": launch}
    return Step(f"trace:{case.label}:{launch}", "trace", arguments, 300, 8, _built(case, built))


def _ncu(case: Case, contender: str, built: str = "") -> Step:
    arguments = {"case": case.to_json(), "contender": contender}
    return Step(f"ncu:{case.label}:{contender}", "ncu", arguments, 300, 45, _built(case, built))


def _fit(traced: Sequence[Built]) -> Step:
    """Needs what it fits to, and its step's record."""
    needs = tuple(f"trace:{case.label}:{launch}" for case, launch in traced)
    arguments = {"traced": [[step, case.to_json(), launch] for step, (case, launch) in zip(needs, traced, strict=True)]}
    return Step("fit", "fit", arguments, 300, 40, needs, "host")


def _variants(case: Case) -> list[Built]:
    """A build for each launch and rank of tile."""
    from mononn_bench.gpu_suite.ours import variants

    return [(case, f"once:{name}") for name in variants()]


def _variant_step(case: Case, expected: float) -> Step:
    arguments = {"case": case.to_json(), "launches": [launch for _, launch in _variants(case)]}
    return Step(f"variants:{case.label}", "variants", arguments, 300, expected, ("build:variants",))


def _built(case: Case, name: str) -> tuple[str, ...]:
    """What a step over a case waits for: the case's models and code."""
    if name:
        return (f"build:{name}",)
    if case.model in LARGE:
        late = case.batch > 1 or case.precision != "fp16"
        return (f"build:{case.model}", *([f"build:{case.model}:batches"] if late else []))
    early = case.model == "bert-tiny" or (case.model, case.precision) == ("bert-test", "fp16")
    return ("build:early" if early else "build:small",)
