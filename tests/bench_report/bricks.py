"""A network of two convolutions as bricks, with times that can be added up by hand."""

from __future__ import annotations

from mononn_bench.bricked import EMPTY, WHOLE, Brick, BrickedModel, BrickTime, Cut, Layer, SystemBricks
from mononn_bench.record import Ceilings

CEILINGS = Ceilings("c", 1e9, 1e9, 1e8, 1 << 20, 1 << 25)


def brick(key: str, flops: int = 0, padded: str = "") -> Brick:
    return Brick(key, flops, 0, 1000, padded)


def times(ms: dict[str, float]) -> dict[str, BrickTime]:
    """Of three visits, the least being what is given."""
    return {key: BrickTime("ok", "", (value / 1e3, value / 5e2, value / 8e2), 1.0) for key, value in ms.items()}


# Two convolutions that do not need each other, each with a Relu; both are the same brick.
LAYERS = (Layer("a", "Conv", ()), Layer("b", "Relu", (0,)), Layer("c", "Conv", ()), Layer("d", "Relu", (2,)))
MODEL = BrickedModel(
    created="now", model="net", model_digest="0", precision="fp32", machine="here", cores=(0, 1), ceilings=CEILINGS,
    layers=LAYERS,
    bricks=(brick("net", 4_000_000), brick("conv", 2_000_000, "wide"), brick("relu"), brick("conv+relu", 2_000_000)),
    cuts=(
        Cut(WHOLE, ("net",), (4,)),
        Cut(1, ("conv", "relu", "conv", "relu"), (1, 2, 3, 4)),
        Cut(2, ("conv+relu", "conv+relu"), (2, 4)),
    ),
    systems=(
        SystemBricks("mononn", "1", "i", "here", times(
            {EMPTY: 0.5, "net": 10.5, "conv": 4.5, "relu": 1.5, "conv+relu": 5.3, "wide": 2.5})),
        SystemBricks("rival", "1", "i", "here", times(
            {EMPTY: 1.0, "net": 14.0, "conv": 3.0, "relu": 4.0, "conv+relu": 6.0})),
    ),
    command="again", source_revision="r",
)  # fmt: skip
