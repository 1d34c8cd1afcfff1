"""Winograd's F(4x4, 3x3): see :mod:`mononn_core.templates.winograd`."""

from __future__ import annotations

from typing import ClassVar

from mononn_core.schedule.phases import PhaseBuilder
from mononn_core.schedule.stages import FusionGroup
from mononn_core.templates import winograd
from mononn_core.templates.conv_node import Conv
from mononn_core.templates.toom import Toom, toom_cook
from mononn_core.templates.winograd import Winograd


class Winograd4(Winograd):
    """Tiles of 4 x 4 pixels."""

    name = "winograd4"
    toom: ClassVar[Toom] = toom_cook(0, 0.625, -0.625, 1.5, -1.5)
    row_step = 4

    def preference(self, stage: FusionGroup, builder: PhaseBuilder) -> int | None:
        """Above tiles of 2 x 2 pixels where those pay and these are faster."""
        found, conv = super().preference(stage, builder), Conv.of(stage, builder)
        if found is None:
            return None
        constants = sum(c.nbytes for c in builder.views.graph.constants.values())
        small, large = (winograd.seconds(conv, toom, builder.machine, constants) for toom in (Winograd.toom, self.toom))
        return 2 if found > 0 and large < small else -2


TEMPLATE = Winograd4()
