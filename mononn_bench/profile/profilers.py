"""One system's own profiler each: what it needs switched on, and its report of some runs as spans.

Adapters know nothing of this: an option that must stand before a session is made is put in where the library makes it.
"""

from __future__ import annotations

import gzip
import json
import re
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from tempfile import mkdtemp
from typing import Any
from unittest.mock import patch

from mononn_bench.profile.subject import Seen, Subject
from mononn_bench.profiled import Span

MARK = "mononn-bench: run"
"""The name of the profiled run where a profiler lets its user set one."""
AFFIXES = re.compile(r"^fused |_nchwc(_token_\d+)?$|_token_\d+$|/.*$")
"""What ONNX Runtime adds to the name of a node or tensor when it makes a node of its own for it."""
GO_ON = 0
"""TVM's VMInstrumentReturnKind.NO_OP: run the call."""


def profile_mononn(subject: Subject) -> Seen:
    """Time stamps from inside the function (trace.py), which only this system's environment can import."""
    from mononn_bench.profile import trace

    return trace.profile_mononn(subject)


def profile_onnxruntime(subject: Subject) -> Seen:
    """The session's own profile (enable_profiling): one span a node of the optimised graph."""
    import onnxruntime

    make, made = onnxruntime.InferenceSession, []

    def profiled(model: Any, settings: Any, **options: Any) -> Any:
        settings.enable_profiling = True
        settings.profile_file_prefix = str(subject.scratch / "onnxruntime")
        made.append(make(model, settings, **options))
        return made[-1]

    with patch.object(onnxruntime, "InferenceSession", profiled):
        subject.ready()
    for _ in range(subject.count):
        subject.run()
    runs = onnxruntime_spans(json.loads(Path(made[-1].end_profiling()).read_text()), subject.count)
    return Seen(runs, {span.name: (span.name, _named_after(span.name)) for span in runs[-1]})


def _named_after(name: str) -> str:
    """The node or tensor that ONNX Runtime has named a node of its own after."""
    while (shorter := AFFIXES.sub("", name)) != name:
        name = shorter
    return name


def onnxruntime_spans(events: Iterable[dict[str, Any]], count: int) -> list[list[Span]]:
    """The nodes of the last so many of a profile's `model_run`s."""
    events = list(events)
    runs = [event for event in events if event.get("name") == "model_run"][-count:]
    nodes = [e for e in events if e.get("cat") == "Node" and e["name"].endswith("_kernel_time")]
    return [
        [
            _span(e["name"].removesuffix("_kernel_time"), e["args"].get("op_name", ""), "caller", e["ts"], e["dur"])
            for e in nodes
            if run["ts"] <= e["ts"] <= run["ts"] + run["dur"]
        ]
        for run in runs
    ]


def profile_openvino(subject: Subject) -> Seen:
    """Performance counters (PERF_COUNT) of each inference: durations without starts, laid end to end. The graph that
    it runs names the layers that became one (`originalLayersNames`).
    """
    import openvino

    compile_model, create = openvino.Core.compile_model, openvino.CompiledModel.create_infer_request
    requests: list[Any] = []

    def compile_counting(core: Any, model: Any, device: str, config: dict[str, Any]) -> Any:
        return compile_model(core, model, device, {**config, "PERF_COUNT": True, "CACHE_DIR": ""})

    def create_and_keep(compiled: Any) -> Any:
        requests.append(create(compiled))
        return requests[-1]

    with (
        patch.object(openvino.Core, "compile_model", compile_counting),
        patch.object(openvino.CompiledModel, "create_infer_request", create_and_keep),
    ):
        subject.ready()
    runs = []
    for _ in range(subject.count):
        subject.run()
        runs.append(_end_to_end(requests[-1].profiling_info))
    graph = requests[-1].get_compiled_model().get_runtime_model()
    return Seen(runs, {node.get_friendly_name(): _layers(node.get_rt_info()) for node in graph.get_ops()})


def _end_to_end(counters: Iterable[Any]) -> list[Span]:
    spans, at = [], 0.0
    for info in counters:
        if (length := info.real_time.total_seconds() * 1e6) > 0:
            spans.append(_span(info.node_name, info.node_type, "in order, end to end", at, length))
            at += length
    return spans


def _layers(facts: Any) -> tuple[str, ...]:
    found = facts["originalLayersNames"].astype(str) if "originalLayersNames" in facts else ""
    return tuple(name for name in found.split(",") if name)


def profile_torch(subject: Subject) -> Seen:
    """torch.profiler on the CPU, and on CUDA where it is; spans nest as calls do."""
    import torch
    from torch.profiler import ProfilerActivity, profile, record_function

    activities = [ProfilerActivity.CPU]
    if torch.cuda.is_available():
        activities.append(ProfilerActivity.CUDA)
    with profile(activities=activities) as found:
        subject.run()  # the first run under the profiler pays for starting it
        for _ in range(subject.count):
            with record_function(MARK):
                subject.run()
    events = list(found.events())
    ranges = [e.time_range for e in events if e.name == MARK]
    return Seen(
        [
            [_of_torch(e) for e in events if mark.start <= e.time_range.start <= mark.end and e.name != MARK]
            for mark in ranges
        ]
    )


def _of_torch(event: Any) -> Span:
    when = event.time_range
    kind = event.name.partition("::")[0]
    return _span(event.name, kind, f"thread {event.thread}", when.start, when.elapsed_us())


def profile_xla(subject: Subject) -> Seen:
    """jax.profiler's trace of the runtime's threads."""
    import jax

    folder = Path(mkdtemp(dir=subject.scratch))
    with jax.profiler.trace(str(folder), create_perfetto_trace=True):
        subject.run()
    (path,) = folder.rglob("perfetto_trace.json.gz")
    spans = chrome_spans(json.loads(gzip.decompress(path.read_bytes()))["traceEvents"])
    return Seen([spans], in_order=False)


def chrome_spans(events: Iterable[dict[str, Any]]) -> list[Span]:
    """Complete events of a Chrome trace but those of Python's own functions."""
    events = list(events)
    names = {(e["pid"], e["tid"]): e["args"]["name"] for e in events if e.get("name") == "thread_name"}
    return [
        _span(e["name"], e["name"].partition(".")[0], names.get((e["pid"], e["tid"]), str(e["tid"])), e["ts"], e["dur"])
        for e in events
        if e.get("ph") == "X" and not e["name"].startswith("$") and e.get("dur", 0) > 0
    ]


def profile_tvm(subject: Subject) -> Seen:
    """The Relax virtual machine's instrument: called before and after every call it makes."""
    from tvm import relax

    make, machines = relax.VirtualMachine.__init__, []

    def keep(machine: Any, *arguments: Any, **options: Any) -> None:
        make(machine, *arguments, **options)
        machines.append(machine)

    with patch.object(relax.VirtualMachine, "__init__", keep):
        subject.ready()
    begun: list[int] = []
    spans: list[Span] = []

    def instrument(_: Any, name: str, before: bool, *rest: Any) -> int:
        if before:
            begun.append(time.perf_counter_ns())
        else:
            start = begun.pop()
            spans.append(Span(name, name.rstrip("0123456789_"), "caller", start, time.perf_counter_ns() - start))
        return GO_ON

    machines[-1].set_instrument(instrument)
    subject.run()  # the first run under the instrument pays for starting it
    runs = []
    for _ in range(subject.count):
        spans.clear()
        subject.run()
        runs.append(list(spans))
    return Seen(runs)


def _span(name: str, kind: str, track: str, start_us: float, length_us: float) -> Span:
    return Span(name, kind, track, round(start_us * 1e3), round(length_us * 1e3))


PROFILERS: dict[str, tuple[str, Callable[[Subject], Seen]]] = {
    "mononn": ("mononn trace", profile_mononn),
    "onnxruntime": ("ONNX Runtime profiling", profile_onnxruntime),
    "openvino": ("OpenVINO PERF_COUNT", profile_openvino),
    "pytorch": ("torch.profiler", profile_torch),
    "xla": ("jax.profiler", profile_xla),
    "tvm": ("TVM instrument", profile_tvm),
}
"""By code base: the profiler's name, and how it is used."""
