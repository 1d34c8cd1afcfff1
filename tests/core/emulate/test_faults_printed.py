"""Each fault planted in the vocabulary or in a printed Program is caught."""

import functools

import pytest

from mononn_core.emulate import build
from mononn_core.emulate.compile import vocabulary
from tests.core.cuda.cases import CASES
from tests.core.cuda.lowered import printed
from tests.core.cuda.programs import TOLERANCE
from tests.core.emulate import faults, faults_printed
from tests.core.emulate.faults import NUMBERS, planted
from tests.core.emulate.printed import THREADS, Run

FEW = ("random:1", "block-first", "reversed")
"""Schedules; sound Programs run in all of them, see tests/core/cuda."""


@functools.cache
def run_of(name):
    case = CASES[name]()
    return Run(case, printed(case.program, THREADS, "once"))


def outcome(emulated, run, name, schedule, **options):
    """Kinds of what was found, with NUMBERS where the answers are wrong."""
    reports, outputs = run.launch(emulated, schedule, check=False, **options)
    kinds = {found.kind for report in reports for found in report.found}
    return kinds | (set() if run.right(outputs, TOLERANCE[name.split("-")[1]]) else {NUMBERS})


def check_fault(fault):
    name, file = fault.where.split("/")
    run = run_of(name)
    text, headers = run.source.text, {}
    if file == "source":
        text = planted(text, fault) if fault.times else text
    else:
        headers = {file: planted(vocabulary()[file], fault)}
    emulated, found = build(text, headers=headers), {}
    for schedule in FEW:
        found[schedule] = outcome(emulated, run, name, schedule, milliseconds=5_000, **dict(fault.options))
    by = [schedule for schedule, kinds in found.items() if kinds & set(fault.catchers)]
    assert by if fault.scheduled else len(by) == len(FEW), found


QUICK_FAULTS = [
    part[1] for part in (faults_printed.BARRIERS, faults_printed.PRODUCTS, faults_printed.LANDED, faults_printed.KEYED)
]


@pytest.mark.parametrize("fault", QUICK_FAULTS, ids=lambda fault: fault.name)
def test_a_fault_in_the_vocabulary_is_caught(fault):
    check_fault(fault)


@pytest.mark.emulated
@pytest.mark.parametrize("fault", faults_printed.FAULTS, ids=lambda fault: f"{fault.where}: {fault.name}")
def test_every_fault_of_the_table_is_caught(fault):
    check_fault(fault)


def test_names_tell_faults_apart():
    names = [fault.name for fault in (*faults.FAULTS, *faults_printed.FAULTS)]
    assert len(set(names)) == len(names)
