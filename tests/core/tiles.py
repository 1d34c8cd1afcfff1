"""Networks that multiply in tile registers: built for those where this machine has them, and in plain C."""

from __future__ import annotations

from dataclasses import replace

import pytest

from mononn_core import compiler
from mononn_core.machine import Machine
from mononn_core.runtime.artifact import Artifact

PLAIN = Machine.named("avx512")
TILED = replace(PLAIN, features=PLAIN.features | {"amx-tile", "amx-int8", "amx-bf16", "avx512vnni", "avx512bf16"})
IN_MEMORY = replace(Machine.named("avx2"), vector_bytes=64)
"""A processor whose tiles and vectors of 64 bytes are made of what others have too."""


def has(machine: Machine) -> bool:
    """Whether this processor is one."""
    return machine.features <= Machine.probe().features


def built(stages: compiler.CpuStages) -> list[Artifact]:
    """What runs here of a network lowered for :data:`TILED`; the test is skipped where nothing does."""
    assert any(phase.task.params.get("tile_groups") for phase in stages.program.phases())
    found = [compiler.build(replace(stages, machine=machine)) for machine in (IN_MEMORY, TILED) if has(machine)]
    return found or pytest.skip("neither tile registers nor what stands in for them")
