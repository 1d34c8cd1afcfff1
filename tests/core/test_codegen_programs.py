"""The hand-written Programs as generated code: the same answers as the virtual machine and NumPy, for any workers."""

from __future__ import annotations

import numpy as np
import pytest

from mononn_core import compiler
from mononn_core.codegen.cpu import print_program
from mononn_core.graph import TensorType
from mononn_core.lower.cpu import with_scratch
from mononn_core.machine import Machine
from mononn_core.options import Options
from mononn_core.program import interpret
from mononn_core.program.verify import verify
from mononn_core.runtime.session import Session
from tests.core.entry import Entry
from tests.core.programs import CASES


@pytest.mark.parametrize("name", sorted(CASES))
def test_generated_code_agrees_with_the_virtual_machine(name: str) -> None:
    case = CASES[name]()
    machine = Machine.probe()
    program = with_scratch(case.program, machine.lanes("float32"))
    verify(program)
    types = {b.id: TensorType(b.dtype, b.shape) for b in program.buffers}
    about = compiler.manifest(program, types, Options(threads=2), machine)
    artifact = compiler.assemble(program, case.weights, print_program(program), about, machine, {})
    machine_answers = interpret.run(program, dict(case.inputs), dict(case.weights))
    first = None
    for workers in (1, 2, 3, 4):
        with Session(artifact, threads=workers) as session:
            for _ in range(3):  # epochs: flags and counters only grow
                answers = session.run(case.inputs)
        first = first or answers
        for output, expected in case.expected.items():
            np.testing.assert_allclose(answers[output], expected, rtol=1e-5, atol=1e-5)
            np.testing.assert_allclose(answers[output], machine_answers[output], rtol=1e-5, atol=1e-5)
            np.testing.assert_array_equal(answers[output], first[output])


@pytest.mark.parametrize("name", sorted(CASES))
def test_a_worker_takes_the_shares_of_those_that_do_not_come(name: str) -> None:
    """Three workers enter, one after the other, the caller first or last: nobody waits for one that is not there, and
    who comes late does nothing again."""
    case = CASES[name]()
    machine = Machine.probe()
    program = with_scratch(case.program, machine.lanes("float32"))
    if any(phase.waits for phase in program.phases()):
        pytest.skip("shares that wait inside for one another are begun by different workers")
    types = {b.id: TensorType(b.dtype, b.shape) for b in program.buffers}
    about = compiler.manifest(program, types, Options(threads=3), machine)
    artifact = compiler.assemble(program, case.weights, print_program(program), about, machine, {})
    entry = Entry(artifact, workers=3)
    for order in (0, 1, 2), (2, 1, 0), (1, 0, 2):
        outputs = entry.prepare(case.inputs)
        for worker in order:
            assert entry(worker) == 0
            if worker == 0:
                for output, expected in case.expected.items():
                    np.testing.assert_allclose(outputs[output], expected, rtol=1e-5, atol=1e-5)
                    outputs[output].fill(0)
        assert not any(array.any() for array in outputs.values())  # nothing is written after the caller has left
