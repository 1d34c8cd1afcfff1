"""Recurrences by weights of 8 bits: stored as they are, states rounded where the model or a rule says so."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import helper, numpy_helper

from mononn_core.compiler import lower_imported
from mononn_core.element import COMPUTE
from mononn_core.errors import ShapeError
from mononn_core.graph import Graph
from mononn_core.importer.reader import load
from mononn_core.machine import Machine
from mononn_core.ops.evaluate import run as evaluate
from mononn_core.ops.recurrent import ROUNDED
from mononn_core.options import Options
from mononn_core.passes import pipeline
from mononn_core.program.ir import Phase
from mononn_core.schedule.groups import CpuGroups
from mononn_core.schedule.schedule import GroupSchedule, Partition
from tests.core.test_recurrent import RUNNABLE, Array, lowered, net_of, reach, recurrent, session, small, values_of


def quantised(scale: Array, zero: int, kind: str = "uint8", reach: int = 100) -> bytes:
    """An LSTM of 32 units whose recurrent weights are of 8 bits, ``reach`` around a zero point, on a scale [4 * 32] or
    one for all."""
    model = onnx.load_from_string(recurrent("LSTM", (4, 1, 8, 32))[0])
    graph = model.graph
    (stored,) = (t for t in graph.initializer if t.name == "r")
    whole = np.random.default_rng(0).integers(zero - reach, zero + reach, (1, 128, 32))
    whole = whole.clip(np.iinfo(kind).min, np.iinfo(kind).max).astype(kind)
    stored.CopyFrom(numpy_helper.from_array(whole, "q"))
    graph.initializer.append(numpy_helper.from_array(scale, "scale"))
    graph.initializer.append(numpy_helper.from_array(np.full(scale.shape, zero, kind), "zero"))
    graph.node.insert(0, helper.make_node("DequantizeLinear", ["q", "scale", "zero"], ["r"], axis=1))
    return model.SerializeToString()


def test_weights_of_8_bits_stay_as_they_are() -> None:
    scale = np.random.default_rng(1).uniform(0.001, 0.002, 128).astype(np.float32)
    for model in (quantised(scale, 3, "int8"), quantised(scale, 120), quantised(scale[:1].reshape(()), 0, "int8")):
        graph, given = load(model), recurrent("LSTM", (4, 1, 8, 32))[1]
        stages = lower_imported(graph, Options(threads=2), small("avx2"))
        assert [b.dtype for b in stages.program.buffers if b.shape == (32, 128) and b.space == "weight"] == ["int8"]
        wanted = onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"]).run(None, given)
        for value, want in zip(session(stages).run(given).values(), wanted, strict=True):
            np.testing.assert_allclose(value, want, rtol=1e-5, atol=1e-6)


def test_owners_who_share_the_weights_of_8_bits_may_have_room_for_floats() -> None:
    net = net_of("lstm", (3, 2, 64, 0), (0,), ("8",))  # 64 KiB of floats
    groups = CpuGroups(pipeline.prepare(pipeline.run(net), "cpu"), Options(threads=2), small("avx2", 40 << 10))
    own = next(s.own for s in groups.stages if s.root is not None and s.root.op == "recurrence")
    for kind, dtype in (("columns", "float32"), ("rows", "int8"), ("columns", "float32")):
        items = groups.items(GroupSchedule(own, "recurrence", Partition(kind, 2)))
        weights = {o.buffer for p in items if isinstance(p, Phase) for o in p.task.operands if o.role == "b"}
        assert {groups.builder.packed[name][0].dtype for name in map(str, weights)} == {dtype}


def test_weights_of_8_bits_are_floats_where_a_cache_holds_them_or_bytes_do_not() -> None:
    scale = np.full(128, 0.001, np.float32)
    roomy = lowered(load(quantised(scale, 128)))
    far = lower_imported(load(quantised(scale, 150, reach=140)), Options(), small("avx2"))
    for stages in (roomy, far):
        assert {b.dtype for b in stages.program.buffers if b.space == "weight"} == {"float32"}


@pytest.mark.parametrize("machine", RUNNABLE)
@pytest.mark.parametrize("rounded", ROUNDED)
def test_what_is_not_finite_spoils_its_own_row_and_a_state_of_zeros_is_none(rounded: str, machine: str) -> None:
    graph = net_of("rnn", (3, 4, 40, 0), (0,), (rounded,))
    given = values_of(graph, 5)
    first = next(name for name in graph.inputs if graph.types[name].shape == (1, 4, 40))
    given[first][0, 1, 7], given[first][0, 2, 39], given[first][0, 3] = np.nan, np.inf, 0
    (found,) = session(lower_imported(graph, Options(threads=2), Machine.named(machine))).run(given).values()
    assert np.isnan(found[0, :, 1:3]).all()
    (want,) = evaluate(graph, {**given, first: np.nan_to_num(given[first], posinf=0)}).values()
    np.testing.assert_allclose(found[0, :, ::3], want[0, :, ::3], rtol=1e-4, atol=reach((rounded,)))


@pytest.mark.parametrize(("level", "feature"), [("avx512", "avx512vnni"), ("avx2", "avxvnni")])
@pytest.mark.parametrize("rounded", ROUNDED)
def test_an_instruction_for_products_of_bytes_changes_no_bit(level: str, feature: str, rounded: str) -> None:
    plain = Machine.named(level)
    machine = replace(plain, features=plain.features | {feature})
    if not machine.features <= Machine.probe().features:
        pytest.skip(f"this processor has no {feature}")
    graph = net_of("lstm", (6, 3, 75, 0), (0, 1), ("b", rounded))
    given, found = values_of(graph, 2), []
    for one in (plain, machine):
        stages = lower_imported(graph, Options(threads=2), one)
        assert (feature in stages.manifest["machine"]["features"]) == (one is machine)
        found.append(next(iter(session(stages).run(given).values())))
    np.testing.assert_array_equal(*found)


def rounding_of(graph: Graph) -> list[object]:
    """What the recurrences of a Graph round their states to."""
    return [node.attrs.get("rounded") for node in graph.nodes if node.op == "recurrence"]


@pytest.mark.parametrize(("rule", "found"), [("auto", "int16"), ("int8", "int8"), ("int16", "int16"), (COMPUTE, None)])
def test_states_are_rounded_by_a_rule(rule: str, found: str | None) -> None:
    graph = load(quantised(np.full(128, 0.001, np.float32), 128))
    after = pipeline.run(graph, "cpu", rule)
    assert rounding_of(after) == [found]
    origin = next(str(node.origin) for node in graph.nodes if node.op == "recurrence")
    assert pipeline.rounded_products(graph, rule).get(origin) == found
    given = recurrent("LSTM", (4, 1, 8, 32))[1]
    for value, want in zip(evaluate(after, given).values(), evaluate(graph, given).values(), strict=True):
        error = np.linalg.norm(value - want) / np.linalg.norm(want)
        assert error < {"int8": 2e-2, "int16": 1e-4, None: 1e-6}[found] and (found is None or error > 1e-7)


@pytest.mark.parametrize(("rule", "found"), [("auto", "int8"), ("int16", "int16"), (COMPUTE, None)])
def test_a_rule_comes_before_what_a_model_says_and_real_weights_round_nothing(rule: str, found: str | None) -> None:
    weights, real = (
        load(m) for m in (quantised(np.full(128, 0.001, np.float32), 128), recurrent("LSTM", (4, 1, 8, 32))[0])
    )
    for graph, wanted in ((weights, found), (real, None)):
        said = [replace(n, attrs={**n.attrs, "rounded": "int8"}) if n.op == "recurrence" else n for n in graph.nodes]
        assert rounding_of(pipeline.run(replace(graph, nodes=tuple(said)), "cpu", rule)) == [wanted]


def test_states_are_rounded_to_integers_of_8_or_16_bits_only() -> None:
    with pytest.raises(ShapeError, match="a recurrence rounds states to int8 or int16, not int4"):
        net_of("rnn", (2, 1, 8, 0), (0,), ("int4",))


def test_digits_are_bytes_whatever_a_cache_holds() -> None:
    for optional, kind in ((("int8",), "uint8"), (("8",), "float32")):
        program = lowered(net_of("lstm", (3, 2, 64, 0), (0,), optional)).program
        (dtype,) = {b.dtype for b in program.buffers if b.space == "weight" and len(b.shape) == 2 and b.shape[0] == 64}
        assert dtype == kind
