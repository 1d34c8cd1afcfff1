"""Single convolutions in groups, named by their shape: grouped-128x56-g32 has 128 channels in and out, 56x56 pixels and
32 groups. Nothing here imports a framework.
"""

from __future__ import annotations

import re

from mononn_bench.errors import ModelError
from mononn_bench.models.spec import InputSpec, ModelSpec

GROUPED = re.compile(r"grouped-(?P<channels>[1-9]\d*)x(?P<size>[1-9]\d*)-g(?P<groups>[1-9]\d*)")


def grouped_model(name: str) -> ModelSpec | None:
    """The layer of that name, or None where it is no such name: 3x3, unit stride, padding of 1, no bias; y [1, c, h, h]
    of x [1, c, h, h] in float32. Raises ModelError where the groups do not divide the channels.
    """
    found = GROUPED.fullmatch(name)
    if not found:
        return None
    channels, size, groups = (int(number) for number in found.groups())
    if channels % groups:
        raise ModelError(f"{name}: {groups} groups do not divide {channels} channels; take a divisor of them.")
    ends = {"in_channels": channels, "out_channels": channels}
    return ModelSpec(
        name=name,
        family="grouped",
        config={**ends, "kernel_size": 3, "padding": 1, "groups": groups, "bias": False},
        inputs=(InputSpec("x", "float32", (1, channels, size, size), "image"),),
        outputs=("y",),
        full_size=False,
        summary=f"one 3x3 convolution, {channels} channels in {groups} groups, {size}x{size} pixels",
    )
