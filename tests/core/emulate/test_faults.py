"""Correct kernels pass in every schedule; each planted fault is found by a catcher that its table names."""

import functools

import pytest

from mononn_core.emulate import build
from tests.core.emulate.faults import FAULTS, NUMBERS, all_planted
from tests.core.emulate.kernels import CASES, SCHEDULES


@pytest.mark.parametrize("sanitize", [True, False])
@pytest.mark.parametrize("name", sorted(CASES))
def test_a_correct_kernel_passes_in_every_schedule(name, sanitize):
    case = CASES[name]
    emulated = build(case.source, sanitize=sanitize)
    for schedule in SCHEDULES:
        for copies in ("early", "late"):
            report, right = case.run(emulated, schedule, copies=copies)
            assert report.found == () and right, schedule


@functools.cache
def with_faults(where):
    """One object with a copy of the kernel for each of its faults."""
    case = CASES[where]
    return build(all_planted(case.source, [fault for fault in FAULTS if fault.where == where]))


def number(fault):
    return [other for other in FAULTS if other.where == fault.where].index(fault)


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: f"{fault.where}: {fault.name}")
def test_a_planted_fault_is_caught(fault):
    emulated, by, found = with_faults(fault.where), [], {}
    for schedule in SCHEDULES:
        options = {"suffix": f"_{number(fault)}", "check": False, **dict(fault.options)}
        report, right = CASES[fault.where].run(emulated, schedule, **options)
        found[schedule] = {f.kind for f in report.found} | (set() if right else {NUMBERS})
        if found[schedule] & set(fault.catchers):
            by.append(schedule)
    assert by if fault.scheduled else len(by) == len(SCHEDULES), found


def test_the_table_is_long_enough():
    assert len({fault.name for fault in FAULTS}) == len(FAULTS) >= 30
