"""One system's own profiler each: what it needs switched on, and its report of one run as spans.

Adapters know nothing of this: an option that must stand before a session is made is put in where the library makes it.
"""

from __future__ import annotations

import gzip
import json
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any
from unittest.mock import patch

from mononn_bench.profile.subject import Subject
from mononn_bench.profiled import Span

MARK = "mononn-bench: run"
"""The name of the profiled run where a profiler lets its user set one."""
GO_ON = 0
"""TVM's VMInstrumentReturnKind.NO_OP: run the call."""


def profile_mononn(subject: Subject) -> list[Span]:
    """Time stamps from inside the function (trace.py): what each worker waited, and its phases."""
    from mononn_bench.profile.trace import spans_of_a_run

    return spans_of_a_run(subject)


def profile_onnxruntime(subject: Subject) -> list[Span]:
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
    subject.run()
    return onnxruntime_spans(json.loads(Path(made[-1].end_profiling()).read_text()))


def onnxruntime_spans(events: Iterable[dict[str, Any]]) -> list[Span]:
    """The nodes of the last `model_run` of a profile."""
    events = list(events)
    run = [event for event in events if event.get("name") == "model_run"][-1]
    nodes = [e for e in events if e.get("cat") == "Node" and e["name"].endswith("_kernel_time")]
    return [
        _span(e["name"].removesuffix("_kernel_time"), e["args"].get("op_name", ""), "caller", e["ts"], e["dur"])
        for e in nodes
        if run["ts"] <= e["ts"] <= run["ts"] + run["dur"]
    ]


def profile_openvino(subject: Subject) -> list[Span]:
    """Performance counters (PERF_COUNT) of the last inference: durations without starts, laid end to end."""
    import openvino

    compile_model, create, requests = openvino.Core.compile_model, openvino.CompiledModel.create_infer_request, []

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
    subject.run()
    spans, at = [], 0.0
    for info in requests[-1].profiling_info:
        if (length := info.real_time.total_seconds() * 1e6) > 0:
            spans.append(_span(info.node_name, info.node_type, "in order, end to end", at, length))
            at += length
    return spans


def profile_torch(subject: Subject) -> list[Span]:
    """torch.profiler on the CPU, and on CUDA where it is; spans nest as calls do."""
    import torch
    from torch.profiler import ProfilerActivity, profile, record_function

    subject.ready()
    activities = [ProfilerActivity.CPU]
    if torch.cuda.is_available():
        activities.append(ProfilerActivity.CUDA)
    with profile(activities=activities) as found:
        subject.run()  # the first run under the profiler pays for starting it
        with record_function(MARK):
            subject.run()
    events = list(found.events())
    begin = max(e.time_range.start for e in events if e.name == MARK)
    return [
        _span(e.name, e.name.partition("::")[0], f"thread {e.thread}", e.time_range.start, e.time_range.elapsed_us())
        for e in events
        if e.time_range.start >= begin and e.name != MARK
    ]


def profile_xla(subject: Subject) -> list[Span]:
    """jax.profiler's trace of the runtime's threads."""
    import jax

    subject.ready()
    with jax.profiler.trace(str(subject.scratch), create_perfetto_trace=True):
        subject.run()
    (path,) = subject.scratch.rglob("perfetto_trace.json.gz")
    return chrome_spans(json.loads(gzip.decompress(path.read_bytes()))["traceEvents"])


def chrome_spans(events: Iterable[dict[str, Any]]) -> list[Span]:
    """Complete events of a Chrome trace but those of Python's own functions."""
    events = list(events)
    names = {(e["pid"], e["tid"]): e["args"]["name"] for e in events if e.get("name") == "thread_name"}
    return [
        _span(e["name"], e["name"].partition(".")[0], names.get((e["pid"], e["tid"]), str(e["tid"])), e["ts"], e["dur"])
        for e in events
        if e.get("ph") == "X" and not e["name"].startswith("$") and e.get("dur", 0) > 0
    ]


def profile_tvm(subject: Subject) -> list[Span]:
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
    spans.clear()
    subject.run()
    return spans


def _span(name: str, kind: str, track: str, start_us: float, length_us: float) -> Span:
    return Span(name, kind, track, round(start_us * 1e3), round(length_us * 1e3))


PROFILERS: dict[str, tuple[str, Callable[[Subject], list[Span]]]] = {
    "mononn": ("mononn trace", profile_mononn),
    "onnxruntime": ("ONNX Runtime profiling", profile_onnxruntime),
    "openvino": ("OpenVINO PERF_COUNT", profile_openvino),
    "pytorch": ("torch.profiler", profile_torch),
    "xla": ("jax.profiler", profile_xla),
    "tvm": ("TVM instrument", profile_tvm),
}
"""By code base: the profiler's name, and how it is used."""
