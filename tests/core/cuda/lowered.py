"""From a prepared Graph, or a hand-written Program, to what follows on a GPU."""

from __future__ import annotations

from mononn_core.codegen.cuda import CudaSource, print_program
from mononn_core.decide.cuda import CudaScheduler
from mononn_core.gpu import Gpu
from mononn_core.graph import Graph
from mononn_core.lower.cuda import lower as lower_groups
from mononn_core.lower.shared import place
from mononn_core.lower.steps import Lowered
from mononn_core.options import Options
from mononn_core.program.ir import Program
from mononn_core.schedule.cuda.groups import CudaGroups
from mononn_core.schedule.cuda.schedule import CudaSchedule


def lower(graph: Graph, options: Options, gpu: Gpu) -> Lowered[CudaSchedule]:
    """The Program of the cheapest Schedule."""
    groups = CudaGroups(graph, options, gpu)
    return lower_groups(groups, CudaScheduler(groups).legal(None))


def printed(program: Program, threads: int, launch: str = "once", comment: str = "") -> CudaSource:
    """The source of a Program written without places in shared memory."""
    return print_program(place(program, threads), threads, launch, comment)
