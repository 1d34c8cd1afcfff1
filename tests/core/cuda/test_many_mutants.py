"""The verifier over the GPU Programs of the tiny networks: hundreds of mutants of each kind, none accepted.

Long, and therefore outside the default tests: make test-mutants. It prints a table of the mutators.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator

import pytest

from mononn_bench.gpu_suite.case import Case, make_models
from mononn_core.gpu import Gpu
from mononn_core.importer import load
from mononn_core.options import Options
from mononn_core.passes import pipeline
from mononn_core.program.ir import Program
from mononn_core.program.text import to_text
from tests.core import mutate_memory, mutate_task  # noqa: F401 (they register their mutations)
from tests.core.cuda.lowered import lower
from tests.core.mutate import MUTATIONS, Mutation
from tests.core.neutral import rewrites
from tests.core.oracle import Oracle
from tests.core.test_program_mutants import refusal

NETWORKS = ("mlp-test", "bert-test", "t5-test", "vit-test")
BATCHES = (1, 2, 3)
FULL = (
    "barrier_dropped", "phase_moved_across_barrier", "phases_swapped", "phase_dropped", "arena_offset_shifted",
    "arena_offset_on_another_buffer", "operand_reads_another_buffer", "operand_writes_another_buffer", "box_shrunk",
    "box_does_not_follow_task", "domain_shrunk", "store_index_shifted", "load_index_shifted", "loop_lengthened",
    "prefetch_of_unstable", "temporary_read_too_early",
)  # fmt: skip
"""Mutators of which ``EACH`` mutants are tried; of the others ``FEW``, where there are so many."""
EACH, FEW, NEUTRAL = 500, 50, 1000
SHARE, ROUNDS = 12, 4
"""Sites of a mutation that are tried in a Program before the next one has its turn, and turns at most."""

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
            graph = pipeline.prepare(pipeline.run(load(case.folder / "model.onnx", {})), "cuda")
            for precision in ("fp32", "fp16", "bf16"):
                for gpu in Gpu.names():
                    program = lower(graph, Options(target="cuda", precision=precision), Gpu.named(gpu)).program
                    found.setdefault(to_text(program), (f"{case.label} {precision} {gpu}", program))
    return dict(found.values())


class Mutants:
    """The mutants of one Program, some at a time; sites that the oracle finds harmless are left out."""

    def __init__(self, name: str, program: Program, seed: int) -> None:
        self.name, self.program, self.seed = name, program, seed
        self.taken: Counter[str] = Counter()

    def more(self, mutation: Mutation, oracle: Oracle) -> Iterator[tuple[str, Program]]:
        """``SHARE`` sites that have not been tried yet."""
        sites = list(mutation.sites(self.program))
        random.Random(self.seed).shuffle(sites)
        first = self.taken[mutation.name]
        self.taken[mutation.name] += SHARE
        for site, changed in sites[first : first + SHARE]:
            if not mutation.ask or oracle.wrong(changed):
                yield f"{self.name}: {mutation.name} at {site}", changed


def test_hundreds_of_mutants_of_every_kind_are_refused(programs: dict[str, Program]) -> None:
    accepted: list[str] = []
    counted: Counter[str] = Counter()
    sources = [Mutants(name, program, number) for number, (name, program) in enumerate(programs.items())]
    for _ in range(ROUNDS):
        for source in sources:
            oracle = Oracle()
            for mutation in MUTATIONS.values():
                if counted[mutation.name] >= (EACH if mutation.name in FULL else FEW):
                    continue
                for site, changed in source.more(mutation, oracle):
                    counted[mutation.name] += 1
                    if not refusal(changed):
                        accepted.append(site)
    for mutation in MUTATIONS.values():
        print(f"{mutation.name:34}{counted[mutation.name]:6} mutants: {mutation.why}")
    print(f"{counted.total()} mutants of {len(programs)} Programs, {len(accepted)} accepted")
    assert accepted == []
    assert {name: counted[name] for name in FULL if counted[name] < EACH} == {}


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
