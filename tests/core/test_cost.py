"""The cost model on CPUs: how what it says of a phase depends on the phase, and what it knows of processor families."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from onnx import TensorProto

from mononn_core import compiler
from mononn_core.cost.analytic import Cost
from mononn_core.machine import FAMILIES, Machine, family_of
from mononn_core.schedule.decisions import exposed
from mononn_core.schedule.schedule import Partition
from mononn_core.schedule.template import scheduled
from tests.core.networks import Builder

FLOATS = Machine.named("avx512")
BYTES = replace(FLOATS, features=FLOATS.features | {"avx512vnni"})


@pytest.mark.parametrize(
    ("vendor", "number", "expected"),
    [("AuthenticAMD", "26", 0), ("AuthenticAMD", "25", 2), ("GenuineIntel", "6", 4), ("CentaurHauls", "7", 5)],
)
def test_a_family_is_the_first_that_fits(vendor: str, number: str, expected: int):
    assert family_of({"vendor_id": vendor, "cpu family": number}) == FAMILIES[expected]


def test_streams_are_left_to_the_hardware_and_multiplications_saved_on_zen_4_alone():
    """Of the two families under one number the flags tell."""
    older = {"vendor_id": "AuthenticAMD", "cpu family": "25", "flags": "fma avx2"}
    found = [family_of({**older, "flags": older["flags"] + more}) for more in ("", " avx512f")]
    assert [(f.streams, f.splits) for f in found] == [(False, False), (True, True)]
    assert sum(f.streams for f in FAMILIES) == sum(f.strassen for f in FAMILIES) == found[1].strassen == 1


def test_bf16_is_slow_in_vectors_of_processors_that_have_it_in_tiles():
    """Of the two Intel families under one number the flags tell; vectors of the older one add two products."""
    info = {"vendor_id": "GenuineIntel", "cpu family": "6", "flags": "fma avx2 avx512f avx512_bf16"}
    newer = {**info, "flags": info["flags"] + " avx_vnni"}
    assert [family_of(i).bf16 for i in (info, newer)] == [0, 0.5]
    machine = replace(FLOATS, features=FLOATS.features | {"avx512bf16"})
    slow = replace(machine, product_peaks=(("bfloat16", machine.peak_flops_per_core / 2),))
    found = [m.faster_than_floats("bfloat16") for m in (FLOATS, machine, slow)]
    assert found == [False, True, False]


def test_a_processor_that_names_no_family_has_the_defaults():
    assert family_of({"CPU implementer": "0x41"}) == FAMILIES[-1]
    assert family_of({"vendor_id": "AuthenticAMD", "cpu family": ""}) == FAMILIES[2]


def product(rows: int, after: str = "") -> bytes:
    """[rows, 256] times weights, then ``after`` of each element."""
    b = Builder("product")
    y = b.add("MatMul", "x", b.weight(256, 256))
    y = b.add("Mul", y, b.add(after, y)) if after else y
    b.add("Neg", y, output="y")
    return b.model({"x": (TensorProto.FLOAT, (rows, 256))}, {"y": (rows, 256)})


def bytes_product(rows: int) -> bytes:
    b = Builder("bytes")
    weights = b.constant(b.random.integers(-127, 128, (256, 256)).astype(np.int8))
    b.add("Cast", b.add("MatMulInteger", "x", weights), output="y", to=TensorProto.FLOAT)
    return b.model({"x": (TensorProto.UINT8, (rows, 256))}, {"y": (rows, 256)})


def seconds(model: bytes, kind: str = "rows", machine: Machine = FLOATS, weights: int = 8 << 20) -> float:
    """Of one of two owners of the network's only product with weights, in a network of so many bytes of constants."""
    program = compiler.lower(model, threads=2, machine=machine).program
    (found,) = (p for p in program.phases() if any(o.role == "b" for o in p.task.operands))
    cost, template = Cost(machine, weights, lambda name: program.buffer(name).dtype), scheduled(found.task.template)
    return cost.phase_seconds(found, Partition(kind, 2), 0.5, template.rate(found), template.exposed(found.task))


def test_few_rows_do_not_hide_that_all_weights_are_fetched():
    """Each owner of rows reads all of them, an owner of columns half; many rows pass over them again."""
    few, many = product(28), product(1024)
    assert seconds(few, "rows") > 1.1 * seconds(few, "columns")
    assert seconds(many, "rows") < 1.05 * seconds(many, "columns")


def test_the_first_of_the_passes_over_weights_is_what_is_not_hidden():
    assert [exposed(rows, 14) for rows in (1, 14, 15, 28, 56)] == [1, 1, 0.5, 0.5, 0.25]
    assert exposed(3, 0) == 1 / 3, "rows one at a time"


def test_what_is_computed_of_each_sum_takes_its_time():
    plain, gated = seconds(product(512)), seconds(product(512, "Sigmoid"))
    assert 1.02 * plain < gated < 2 * plain


def test_bytes_are_multiplied_at_the_rate_of_their_instruction():
    slow, fast = (seconds(bytes_product(512), machine=m) for m in (FLOATS, BYTES))
    assert fast < 0.5 * slow


@pytest.mark.parametrize("channels", [32, 48, 64])
def test_all_owners_sum_up_an_image_of_few_channels(channels: int):
    """A vector of channels each is enough where there is one row of sums."""
    b = Builder("means")
    b.add("ReduceMean", "x", b.ints(1, 2), output="y", keepdims=1)
    model = b.model({"x": (TensorProto.FLOAT, (1, 64, 64, channels))}, {"y": (1, 1, 1, channels)})
    (group,) = compiler.lower(model, threads=2, machine=FLOATS).lowered.schedule.groups
    assert group.partition == Partition("columns", 2)


def test_owners_that_meet_within_lines_wait_for_each_other() -> None:
    """Halves of 100 rows: of two rows a line, of more than a line a row, and such that no line is torn."""
    cost = Cost(Machine.named("avx512"), 0, str)

    def seconds(columns: int, dtype: str) -> float:
        half = columns // 2
        return cost.torn_seconds([(0, 100, 0, half), (0, 100, half, columns)], columns, dtype)

    assert seconds(32, "uint8") > 2 * seconds(96, "uint8") > 0
    assert seconds(96, "uint8") == seconds(48, "bfloat16")
    assert seconds(128, "uint8") == seconds(32, "float32") == 0
    assert cost.torn_seconds([(0, 50, 0, 32), (50, 100, 0, 32)], 32, "uint8") == 0, "by rows"
