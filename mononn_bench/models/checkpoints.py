"""How published checkpoints name their tensors, and what our networks (models/networks.py) call the same ones."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TypeVar

from mononn_bench.models.spec import Family

T = TypeVar("T")
Replacement = str | Callable[[re.Match[str]], str]


@dataclass(frozen=True)
class Layout:
    """`renames`: regular expressions and what takes their place, one after another, turn a published name into ours.
    `unused`: names that our network has no place for, heads of other tasks and tensors that no computation reads.
    """

    renames: tuple[tuple[str, Replacement], ...]
    unused: str = ""


def _stage(found: re.Match[str]) -> str:
    return f"resnet.encoder.stages.{int(found[1]) - 1}.layers.{found[2]}."


def _unit(found: re.Match[str]) -> str:
    kind = {"conv": "convolution", "bn": "normalization"}[found[1]]
    return f".layer.{int(found[2]) - 1}.{kind}."


LAYOUTS: Mapping[Family, Layout] = {
    "bert": Layout(
        renames=((r"LayerNorm\.gamma$", "LayerNorm.weight"), (r"LayerNorm\.beta$", "LayerNorm.bias")),
        unused=r"cls\..*",
    ),
    "vit": Layout(
        renames=(
            (r"^vit\.encoder\.layer\.", "vit.layers."),
            (r"\.attention\.attention\.query\.", ".attention.q_proj."),
            (r"\.attention\.attention\.key\.", ".attention.k_proj."),
            (r"\.attention\.attention\.value\.", ".attention.v_proj."),
            (r"\.attention\.output\.dense\.", ".attention.o_proj."),
            (r"\.intermediate\.dense\.", ".mlp.fc1."),
            (r"\.output\.dense\.", ".mlp.fc2."),
            (r"^", "network."),
        ),
    ),
    "t5": Layout(
        renames=((r"^", "t5."),),
        unused=r"decoder\.block\.0\.layer\.1\.EncDecAttention\.relative_attention_bias\.weight",
    ),
    "resnet": Layout(  # timm's and torchvision's names
        renames=(
            (r"^conv1\.", "resnet.embedder.embedder.convolution."),
            (r"^bn1\.", "resnet.embedder.embedder.normalization."),
            (r"^layer(\d)\.(\d+)\.", _stage),
            (r"\.(conv|bn)(\d)\.", _unit),
            (r"\.downsample\.0\.", ".shortcut.convolution."),
            (r"\.downsample\.1\.", ".shortcut.normalization."),
            (r"^fc\.", "classifier.1."),
            (r"^", "network."),
        ),
    ),
}
"""Of the families with a model that has published weights."""


def rename_tensors(family: Family, published: Mapping[str, T]) -> dict[str, T]:
    """A published file's tensors by our names, the unused ones left out; a name of no rule stays as it is."""
    layout = LAYOUTS[family]
    renamed = {}
    for name, tensor in published.items():
        if re.fullmatch(layout.unused, name):
            continue
        for pattern, replacement in layout.renames:
            name = re.sub(pattern, replacement, name)
        renamed[name] = tensor
    return renamed
