"""Every value on the road from an ONNX file to an artifact, the same for all targets."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from mononn_core.graph import Graph
from mononn_core.graph.text import to_text as graph_text
from mononn_core.options import Options
from mononn_core.program.ir import Program
from mononn_core.program.text import to_text as program_text
from mononn_core.runtime.artifact import Artifact
from mononn_core.schedule.cuda.schedule import CudaSchedule
from mononn_core.schedule.schedule import Schedule

if TYPE_CHECKING:
    from mononn_core.lower.steps import Lowered

S = TypeVar("S", Schedule, CudaSchedule)


@dataclass(frozen=True)
class Stages(ABC, Generic[S]):
    """The imported and the optimised Graph, the Program with its constants and Schedule, the source."""

    graph: Graph
    optimized: Graph
    lowered: Lowered[S]
    source: str
    options: Options

    @property
    def program(self) -> Program:
        return self.lowered.program

    @property
    @abstractmethod
    def manifest(self) -> dict[str, Any]:
        """What the artifact says about itself (see :class:`mononn_core.runtime.artifact.Artifact`)."""

    @property
    def texts(self) -> dict[str, str]:
        """Every value on the road as text, by name."""
        return {
            "graph": graph_text(self.optimized),
            "schedule": self.lowered.schedule.to_text(),
            "program": program_text(self.program),
            "source": self.source,
        }

    @abstractmethod
    def build(self) -> Artifact:
        """Machine code and packed weights. The same stages give the same bytes.

        Raises:
            ToolchainError: there is no C++ or CUDA compiler, or it refused the source.
        """
