"""A ``conv`` node as its templates see it: extents, and how the image lies that it reads."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial

from mononn_core.element import COMPUTE
from mononn_core.graph import Node, TensorType
from mononn_core.ops.common import integer, integers
from mononn_core.program.windows import Pair, Windows
from mononn_core.schedule.binder import TaskBuilder
from mononn_core.schedule.operands import ImageView
from mononn_core.schedule.stages import FusionGroup


@dataclass(frozen=True)
class Conv:
    """The extents of a ``conv`` node: images [N, H, W, C] of ``dtype`` and their windows, in ``group`` groups of
    channels; ``together`` of them lie side by side in the weights, across ``joined`` taps of a kernel row.
    ``seven_bits``: its weights are bytes that have no more, and it matters. ``dense``: the taps of a kernel row are
    neighbours. ``computed``: its weights are. ``tile_step``: of a run of so many terms, as
    :meth:`PhaseBuilder.tile_step`."""

    x: tuple[int, ...]
    out: tuple[int, ...]
    kernel: Pair
    strides: Pair
    dilations: Pair
    group: int
    dtype: str = COMPUTE
    together: int = 1
    joined: int = 1
    seven_bits: bool = False
    dense: bool = False
    computed: bool = False
    tile_step: Callable[[int], int] = field(default=lambda terms: 0, compare=False, repr=False)

    @staticmethod
    def of(stage: FusionGroup, builder: TaskBuilder) -> Conv:
        assert stage.root is not None
        dtype, conv = builder.multiplied(stage.root), Conv.of_node(stage.root, builder.types)
        together, channels = builder.terms(dtype), conv.x[3]
        dense = builder.dense(image_of(builder, stage).tensor, channels) and conv.group == conv.dilations[1] == 1
        joined = conv.kernel[1] if dense and channels % together else 1
        small = builder.in_pairs(stage.root) == "seven_bits"
        computed = not builder.views.graph.is_constant(stage.root.inputs[1])
        conv = replace(conv, dtype=dtype, together=together, joined=joined, seven_bits=small)
        conv = replace(conv, dense=dense, computed=computed)
        return replace(conv, tile_step=partial(builder.tile_step, stage.root))

    @staticmethod
    def of_node(node: Node, types: Mapping[str, TensorType]) -> Conv:
        x, w, out = types[node.inputs[0]].shape, types[node.inputs[1]].shape, types[node.output].shape
        pairs = (w[:2], integers(node.attrs, "strides"), integers(node.attrs, "dilations"))
        kernel, strides, dilations = ((v, h) for v, h in pairs)
        return Conv(x, out, kernel, strides, dilations, integer(node.attrs, "group"), types[node.inputs[0]].dtype)

    @property
    def channels(self) -> int:
        """Output channels."""
        return self.out[3]

    @property
    def of_group(self) -> Pair:
        """Input and output channels of a group."""
        return self.x[3] // self.group, self.out[3] // self.group

    @property
    def taps(self) -> int:
        return self.kernel[0] * self.kernel[1]

    @property
    def flops(self) -> int:
        """Of the direct algorithm."""
        n, height, width, channels = self.out
        return 2 * n * height * width * channels * self.taps * self.x[3] // self.group

    def step(self, reads: int) -> int:
        """Groups of terms that tile registers multiply together where a tap reads so many channels; 0: they do not."""
        return self.tile_step(reads * self.kernel[1] if self.dense else reads)

    def windows(self, pitch: int, rows: int) -> Windows:
        """Those of tasks of ``rows`` image rows, over an image with ``pitch`` pixels from row to row."""
        return Windows(self.kernel, self.strides, self.dilations, pitch, self.out[2], rows)

    def lanewise(self, lanes: int) -> bool:
        """Whether groups are so narrow, and as wide in as out, that channels are computed side by side in a vector."""
        mine, width = self.of_group
        return self.group > 1 and mine == width and (mine == 1 or (mine < lanes and lanes % mine == 0))


def image_of(builder: TaskBuilder, stage: FusionGroup) -> ImageView:
    """How the image that a convolution reads lies."""
    assert stage.root is not None
    name = stage.root.inputs[0]
    if name not in builder.images:
        builder.images[name] = ImageView.of(builder.views, name)
    view = builder.images[name]
    assert view is not None, f"{stage.root.origin}: the image was not stored"
    return view
