"""Models as PyTorch's exporter writes them: imported, optimised, and compared with ONNX Runtime."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from mononn_core.graph import Graph
from mononn_core.importer import load
from mononn_core.passes import pipeline
from tests.core.graphs import operators
from tests.core.models import assert_agrees

torch = pytest.importorskip("torch", reason="the exporter is PyTorch's (envs/torch.txt)")
nn, functional = torch.nn, torch.nn.functional

Inputs = tuple[Any, ...]


class Heads(nn.Module):
    """Multi-head attention as models write it, around scaled_dot_product_attention or written out."""

    def __init__(self, written_out: bool = False, causal: bool = False) -> None:
        super().__init__()
        self.query, self.key, self.value, self.out = (nn.Linear(32, 32) for _ in range(4))
        self.written_out, self.causal = written_out, causal

    def forward(self, x: Any, mask: Any = None) -> Any:
        q, k, v = (f(x).view(*x.shape[:2], 4, 8).transpose(1, 2) for f in (self.query, self.key, self.value))
        if self.written_out:
            scores = q @ k.transpose(-1, -2) / 8**0.5
            if mask is not None:
                scores = scores + (1.0 - mask[:, None, None, :]) * torch.finfo(torch.float32).min
            y = functional.dropout(scores.softmax(-1), 0.1, self.training) @ v
        else:
            seen = None if mask is None else mask[:, None, None, :].bool()
            y = functional.scaled_dot_product_attention(q, k, v, attn_mask=seen, is_causal=self.causal)
        return self.out(y.transpose(1, 2).reshape(x.shape))


class Unscaled(nn.Module):
    """Attention of one sequence to another as T5 has it: no scale, a bias for each pair of positions, a mask."""

    def __init__(self, causal: bool = False) -> None:
        super().__init__()
        self.query, self.key, self.value, self.out = (nn.Linear(32, 32, False) for _ in range(4))
        self.bias, self.causal = nn.Embedding(6, 4), causal

    def forward(self, x: Any, memory: Any, mask: Any) -> Any:
        q, k, v = (
            f(y).view(y.shape[0], -1, 4, 8).transpose(1, 2)
            for f, y in ((self.query, x), (self.key, memory), (self.value, memory))
        )
        rows, columns = torch.arange(x.shape[1])[:, None], torch.arange(memory.shape[1])[None, :]
        bias = self.bias((rows - columns).abs().clamp(max=5)).permute(2, 0, 1).unsqueeze(0)
        bias = bias + (1.0 - mask[:, None, None, :]) * torch.finfo(torch.float32).min
        if self.causal:
            bias = bias.masked_fill(columns > rows, torch.finfo(torch.float32).min)
        y = (torch.matmul(q, k.transpose(3, 2)) + bias).float().softmax(-1) @ v
        return self.out(y.transpose(1, 2).reshape(x.shape))


class Layer(nn.Module):
    """A transformer layer; ``approximate`` chooses the GELU."""

    def __init__(self, attention: Heads, approximate: str = "none") -> None:
        super().__init__()
        self.attention, self.norm1, self.norm2 = attention, nn.LayerNorm(32), nn.LayerNorm(32)
        self.up, self.down, self.act = nn.Linear(32, 64), nn.Linear(64, 32), nn.GELU(approximate)

    def forward(self, x: Any, mask: Any = None) -> Any:
        x = self.norm1(x + self.attention(x, mask))
        return self.norm2(x + self.down(self.act(self.up(x))))


class Gated(nn.Module):
    """RMS norm and a gated feed-forward network, as decoders have them."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.linspace(0.5, 1.5, 32))
        self.gate, self.up, self.down = nn.Linear(32, 48, False), nn.Linear(32, 48, False), nn.Linear(48, 32, False)

    def forward(self, x: Any) -> Any:
        y = self.weight * (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6))
        return x + self.down(functional.silu(self.gate(y)) * self.up(y))


class Packed(nn.Module):
    """nn.MultiheadAttention: one product for q, k and v, sequence first inside."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.MultiheadAttention(32, 4, batch_first=True)

    def forward(self, x: Any) -> Any:
        return self.inner(x, x, x, need_weights=False)[0]


class Image(nn.Module):
    """Convolutions, batch norm and poolings."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm = nn.Conv2d(3, 8, 5, 2, 2), nn.BatchNorm2d(8)
        self.second, self.head = nn.Conv2d(8, 8, 3, padding=1, groups=8), nn.Linear(8, 5)

    def forward(self, x: Any) -> Any:
        x = functional.max_pool2d(functional.relu(self.norm(self.first(x))), 3, 2, 1)
        x = functional.hardswish(self.second(x)) + x
        return self.head(functional.adaptive_avg_pool2d(x, 1).flatten(1))


def mask() -> Any:
    return torch.tensor([[1.0] * 5 + [0.0] * 2, [1.0] * 7])


X = (2, 7, 32)
CASES: dict[str, tuple[Callable[[], Any], Callable[[], Inputs], dict[str, int]]] = {
    "fused attention": (
        lambda: Layer(Heads()),
        lambda: (torch.randn(X), mask()),
        {"attention": 1, "layer_norm": 2, "gelu": 1, "matmul": 4, "softmax": 0},
    ),
    "causal attention": (lambda: Heads(causal=True), lambda: (torch.randn(X),), {"attention": 1, "matmul": 2}),
    "attention written out": (
        lambda: Layer(Heads(written_out=True), "tanh"),
        lambda: (torch.randn(X), mask()),
        {"attention": 1, "layer_norm": 2, "gelu": 1, "matmul": 4, "softmax": 0},
    ),
    "packed attention": (Packed, lambda: (torch.randn(X),), {"attention": 1, "matmul": 2, "slice": 3}),
    "attention to another sequence": (
        Unscaled,
        lambda: (torch.randn(2, 3, 32), torch.randn(X), mask()),
        {"attention": 1, "matmul": 3, "softmax": 0},
    ),
    "causal attention with a bias": (
        lambda: Unscaled(causal=True),
        lambda: (torch.randn(X), torch.randn(X), mask()),
        {"attention": 1, "matmul": 3, "softmax": 0},
    ),
    "gated": (Gated, lambda: (torch.randn(X),), {"rms_norm": 1, "matmul": 2, "slice": 2}),
    "image": (Image, lambda: (torch.randn(1, 3, 20, 20),), {"conv": 2, "matmul": 1, "transpose": 1, "mul": 2}),
}


def exported(module: Any, inputs: Inputs, path: Path) -> onnx.ModelProto:
    """The module through torch.onnx.export(dynamo=True); weights inside the file."""
    logging.getLogger("torch.onnx").setLevel(logging.ERROR)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        program = torch.onnx.export(module.eval(), inputs, dynamo=True, opset_version=18, verbose=False)
    assert program is not None
    program.save(str(path))
    return onnx.load(str(path))


@pytest.mark.parametrize("name", CASES)
def test_exported(name: str, tmp_path: Path) -> None:
    make, arguments, wanted = CASES[name]
    torch.manual_seed(0)
    inputs = arguments()
    proto = exported(make(), inputs, tmp_path / "model.onnx")
    values = {i.name: np.asarray(v) for i, v in zip(proto.graph.input, inputs, strict=True)}
    assert_agrees(proto, values)
    graph: Graph = pipeline.run(load(tmp_path / "model.onnx"))
    assert {op: operators(graph).get(op, 0) for op in wanted} == wanted
