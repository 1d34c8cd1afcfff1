"""Networks of the catalogue that have operators of their own: windows of attention, groups of channels, excitations,
group norms, three-dimensional and causal convolutions, recurrences. Nothing here imports a framework.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mononn_bench.models.spec import InputSpec, ModelSpec, image_classifier

SAMPLE_STD = 0.25
"""Of sound whose samples lie between -1 and 1."""
RATE = 16_000
"""Samples a second."""
STEPS = 1000
"""Of a diffusion."""

Block = Mapping[str, Any]


def _swin(name: str, *, size: int, width: int, depths: tuple[int, ...], heads: tuple[int, ...], window: int,
          labels: int, full_size: bool = False) -> ModelSpec:  # fmt: skip
    config = {
        "image_size": size,
        "embed_dim": width,
        "depths": list(depths),
        "num_heads": list(heads),
        "window_size": window,
        "drop_path_rate": 0.0,
        "num_labels": labels,
    }
    summary = f"Swin transformer, {sum(depths)} layers of shifted windows of {window}x{window} patches"
    return image_classifier(name, "swin", config, size, summary, full_size)


def _regnet(name: str, *, size: int, kind: str, stem: int, widths: tuple[int, ...], depths: tuple[int, ...],
            group_width: int, labels: int, full_size: bool = False) -> ModelSpec:  # fmt: skip
    config = {
        "layer_type": kind,
        "embedding_size": stem,
        "hidden_sizes": list(widths),
        "depths": list(depths),
        "groups_width": group_width,
        "num_labels": labels,
    }
    summary = f"RegNet{kind.upper()} of {sum(depths)} blocks up to {widths[-1]} wide, groups of {group_width} channels"
    return image_classifier(name, "regnet", config, size, summary, full_size)


def _efficientnet(name: str, *, size: int, width: float, last: int, labels: int,
                  stages: Mapping[str, tuple[int, ...]] | None = None,
                  full_size: bool = False) -> ModelSpec:  # fmt: skip
    config: dict[str, Any] = {
        "image_size": size,
        "width_coefficient": width,
        "depth_coefficient": 1.0,
        "hidden_dim": last,
        "dropout_rate": 0.0,
        "drop_connect_rate": 0.0,
        "num_labels": labels,
        **{part: list(numbers) for part, numbers in (stages or {}).items()},
    }
    summary = f"EfficientNet of width {width:g}, inverted residuals, excitations, SiLU"
    return image_classifier(name, "efficientnet", config, size, summary, full_size)


def _blocks(*rows: tuple[int, int, int, bool, str, int]) -> list[Block]:
    """Rows of the MobileNetV3 paper's tables."""
    return [dict(zip(("kernel", "inner", "outputs", "excites", "kind", "stride"), row, strict=True)) for row in rows]


RELU, HARD = "relu", "hard_swish"
MOBILENET_V3_LARGE = _blocks(
    (3, 16, 16, False, RELU, 1),
    (3, 64, 24, False, RELU, 2),
    (3, 72, 24, False, RELU, 1),
    (5, 72, 40, True, RELU, 2),
    (5, 120, 40, True, RELU, 1),
    (5, 120, 40, True, RELU, 1),
    (3, 240, 80, False, HARD, 2),
    (3, 200, 80, False, HARD, 1),
    (3, 184, 80, False, HARD, 1),
    (3, 184, 80, False, HARD, 1),
    (3, 480, 112, True, HARD, 1),
    (3, 672, 112, True, HARD, 1),
    (5, 672, 160, True, HARD, 2),
    (5, 960, 160, True, HARD, 1),
    (5, 960, 160, True, HARD, 1),
)
SMALL_BLOCKS = _blocks(
    (3, 8, 8, True, RELU, 1), (5, 24, 16, True, RELU, 2), (3, 40, 16, True, HARD, 1), (5, 48, 16, True, HARD, 1)
)


def _mobilenetv3(name: str, *, size: int, stem: int, blocks: list[Block], last: int, hidden: int, labels: int,
                 full_size: bool = False) -> ModelSpec:  # fmt: skip
    config = {"stem": stem, "blocks": blocks, "last": last, "hidden": hidden, "labels": labels}
    summary = f"MobileNetV3 of {len(blocks)} inverted residuals, excitations, hard swish"
    return image_classifier(name, "mobilenetv3", config, size, summary, full_size)


def _unet(name: str, *, size: int, width: int, multiples: tuple[int, ...], depth: int, attends: int, groups: int,
          full_size: bool = False) -> ModelSpec:  # fmt: skip
    config = {"width": width, "multiples": multiples, "depth": depth, "attends": attends, "groups": groups,
              "steps": STEPS}  # fmt: skip
    return ModelSpec(
        name=name,
        family="unet",
        config=config,
        inputs=(
            InputSpec("image", "float32", (1, 3, size, size), "image"),
            InputSpec("step", "int64", (1,), "dense", STEPS),
        ),
        outputs=("noise",),
        full_size=full_size,
        summary=f"U-Net of a diffusion, {len(multiples)} levels of {depth} blocks, {width} to {width * max(multiples)} "
        f"channels, group norms, attention at {size >> attends}x{size >> attends}, {size}x{size} image",
    )


def _r3d(name: str, *, frames: int, size: int, depths: tuple[int, ...], stem: int, labels: int,
         full_size: bool = False) -> ModelSpec:  # fmt: skip
    return ModelSpec(
        name=name,
        family="r3d",
        config={"depths": depths, "stem": stem, "labels": labels},
        inputs=(InputSpec("clip", "float32", (1, 3, frames, size, size), "image"),),
        outputs=("logits",),
        full_size=full_size,
        summary=f"three-dimensional residual network of {2 * sum(depths) + 2} layers, "
        f"{frames} frames of {size}x{size} pixels",
    )


def _wavenet(name: str, *, samples: int, stacks: int, depth: int, channels: int, skip: int, levels: int,
             full_size: bool = False) -> ModelSpec:  # fmt: skip
    return ModelSpec(
        name=name,
        family="wavenet",
        config={"stacks": stacks, "depth": depth, "channels": channels, "skip": skip, "levels": levels},
        inputs=(InputSpec("sound", "float32", (1, 1, samples), "image", scale=SAMPLE_STD),),
        outputs=("logits",),
        full_size=full_size,
        summary=f"WaveNet, {stacks} times dilations of 1 to {1 << depth - 1}, {channels} channels, "
        f"{samples / RATE:g} s of sound at {RATE // 1000} kHz",
    )


def _lstm(name: str, *, tokens: int, vocabulary: int, embedding: int, hidden: int, layers: int, labels: int,
          full_size: bool = False) -> ModelSpec:  # fmt: skip
    sizes = {"vocabulary": vocabulary, "embedding": embedding, "hidden": hidden, "layers": layers, "labels": labels}
    return ModelSpec(
        name=name,
        family="lstm",
        config=sizes,
        inputs=(InputSpec("input_ids", "int64", (1, tokens), "tokens", vocabulary),),
        outputs=("logits",),
        full_size=full_size,
        summary=f"text classifier of {layers} bidirectional LSTMs, {hidden} wide each way, {tokens} tokens",
    )


WIDE = (
    _swin("swin-tiny", size=224, width=96, depths=(2, 2, 6, 2), heads=(3, 6, 12, 24), window=7, labels=1000,
          full_size=True),
    _regnet("regnetx-3.2gf", size=224, kind="x", stem=32, widths=(96, 192, 432, 1008), depths=(2, 6, 15, 2),
            group_width=48, labels=1000, full_size=True),
    _efficientnet("efficientnet-b0", size=224, width=1.0, last=1280, labels=1000, full_size=True),
    _mobilenetv3("mobilenet-v3", size=224, stem=16, blocks=MOBILENET_V3_LARGE, last=960, hidden=1280, labels=1000,
                 full_size=True),
    _unet("unet", size=256, width=32, multiples=(1, 1, 2, 2, 4, 4), depth=2, attends=4, groups=8, full_size=True),
    _r3d("r3d-18", frames=16, size=112, depths=(2, 2, 2, 2), stem=64, labels=400, full_size=True),
    _wavenet("wavenet", samples=8000, stacks=3, depth=10, channels=64, skip=256, levels=256, full_size=True),
    _lstm("lstm", tokens=128, vocabulary=30522, embedding=300, hidden=512, layers=2, labels=20, full_size=True),
    _swin("swin-test", size=64, width=16, depths=(2, 2), heads=(2, 4), window=4, labels=10),
    _regnet("regnet-test", size=64, kind="y", stem=8, widths=(16, 32), depths=(1, 2), group_width=8, labels=10),
    _efficientnet("efficientnet-test", size=64, width=0.25, last=320, labels=10, stages={
        "in_channels": (32, 16), "out_channels": (16, 24), "kernel_sizes": (3, 5), "strides": (1, 2),
        "num_block_repeats": (2, 2), "expand_ratios": (1, 4)}),
    _mobilenetv3("mobilenetv3-test", size=64, stem=8, blocks=SMALL_BLOCKS, last=48, hidden=32, labels=10),
    _unet("unet-test", size=16, width=8, multiples=(1, 2), depth=1, attends=1, groups=4),
    _r3d("r3d-test", frames=4, size=32, depths=(1, 1), stem=8, labels=10),
    _wavenet("wavenet-test", samples=200, stacks=2, depth=4, channels=8, skip=16, levels=16),
    _lstm("lstm-test", tokens=16, vocabulary=99, embedding=24, hidden=16, layers=2, labels=10),
)  # fmt: skip
"""Each at the size of its paper, where `full_size` says so: Swin-T (Liu et al. 2021), RegNetX-3.2GF (Radosavovic et al.
2020), EfficientNet-B0 (Tan and Le 2019), MobileNetV3-Large (Howard et al. 2019), the U-Net of Ho et al. (2020) for
256x256 pixels at a quarter of its width, R3D-18 (Tran et al. 2018), WaveNet (van den Oord et al. 2016) with 64 and 256
channels (Arik et al. 2017), and a classifier of LSTMs over word vectors of 300 numbers (Conneau et al. 2017).
"""
