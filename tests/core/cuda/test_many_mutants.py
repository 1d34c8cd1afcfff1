"""The verifier over the GPU Programs of the tiny networks: hundreds of mutants of each kind, none accepted.

Long, and therefore outside the default tests: make test-mutants. It prints a table of the mutators.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from itertools import zip_longest

import pytest

from mononn_bench.gpu_suite.case import Case, make_models
from mononn_core.gpu import Gpu
from mononn_core.importer import load
from mononn_core.options import Options
from mononn_core.passes import pipeline
from mononn_core.program.text import to_text
from mononn_core.program.tile import Program
from mononn_core.schedule.cuda.lower import lower
from tests.core import mutate_memory, mutate_task  # noqa: F401 (they register their mutations)
from tests.core.mutate import MUTATIONS, Mutation
from tests.core.neutral import rewrites
from tests.core.oracle import Oracle
from tests.core.test_program_mutants import refusal

NETWORKS = ("mlp-test", "bert-test", "t5-test", "vit-test")
BATCHES = (1, 2, 3, 4, 5, 6)
FULL = (
    "barrier_dropped", "phase_moved_across_barrier", "phases_swapped", "phase_dropped", "arena_offset_shifted",
    "arena_offset_on_another_buffer", "operand_reads_another_buffer", "operand_writes_another_buffer", "box_shrunk",
    "box_does_not_follow_task", "domain_shrunk", "store_index_shifted", "load_index_shifted", "loop_lengthened",
    "prefetch_of_unstable", "temporary_read_too_early",
)  # fmt: skip
"""Mutators of which ``EACH`` mutants are tried; of the others ``FEW``, where there are so many."""
EACH, FEW, NEUTRAL = 500, 50, 1000

pytestmark = pytest.mark.mutants


@pytest.fixture(scope="module")
def programs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Program]:
    """The tiny networks in some batches, in every precision for every GPU that is described, without doubles."""
    work = str(tmp_path_factory.mktemp("models"))
    found: dict[str, tuple[str, Program]] = {}
    for name in NETWORKS:
        cases = [Case(work, name, batch, "fp32", "cpu") for batch in BATCHES]
        make_models(cases, "cpu")
        for case in cases:
            graph = pipeline.run(load(case.folder / "model.onnx", {}))
            for precision in ("fp32", "fp16", "bf16"):
                for gpu in Gpu.names():
                    program = lower(graph, Options(target="cuda", precision=precision), Gpu.named(gpu)).program
                    found.setdefault(to_text(program), (f"{case.label} {precision} {gpu}", program))
    return dict(found.values())


def mutants(mutation: Mutation, programs: dict[str, Program], oracle: Oracle) -> Iterator[tuple[str, Program]]:
    """Known-wrong variants of all Programs, an equal share of each at first; sites that the oracle finds harmless are
    left out.
    """
    sites = [
        [(f"{name}: {mutation.name} at {at}", new) for at, new in mutation.sites(p)] for name, p in programs.items()
    ]
    for number, mine in enumerate(sites):
        random.Random(number).shuffle(mine)
    for turn in zip_longest(*sites):
        for site, changed in filter(None, turn):
            if not mutation.ask or oracle.wrong(changed):
                yield site, changed


def test_hundreds_of_mutants_of_every_kind_are_refused(programs: dict[str, Program]) -> None:
    accepted: list[str] = []
    counted: dict[str, int] = {}
    for mutation in MUTATIONS.values():
        oracle, most = Oracle(), EACH if mutation.name in FULL else FEW
        for site, changed in mutants(mutation, programs, oracle):
            counted[mutation.name] = counted.get(mutation.name, 0) + 1
            if not refusal(changed):
                accepted.append(site)
            if counted[mutation.name] == most:
                break
        print(f"{mutation.name:34}{counted.get(mutation.name, 0):6} mutants, {mutation.why}")
    print(f"{sum(counted.values())} mutants of {len(programs)} Programs, {len(accepted)} accepted")
    assert accepted == []
    assert {name: counted[name] for name in FULL} == dict.fromkeys(FULL, EACH)


def test_neutral_rewrites_are_accepted(programs: dict[str, Program]) -> None:
    assert {name: text for name, program in programs.items() if (text := refusal(program))} == {}
    refused: list[str] = []
    count = 0
    while count < NEUTRAL:
        before = count
        for number, (name, program) in enumerate(programs.items()):
            found = list(rewrites(program, 4))
            random.Random(number).shuffle(found)
            for site, changed in found[: NEUTRAL // len(programs) + 1]:
                count += 1
                if text := refusal(changed):
                    refused.append(f"{name}: {site}: {text}")
        assert count > before
    print(f"{count} neutral rewrites, {len(refused)} refused")
    assert refused == []
