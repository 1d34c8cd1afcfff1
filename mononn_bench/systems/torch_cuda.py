"""A PyTorch call on an NVIDIA GPU: static device inputs, captured as a CUDA graph."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from mononn_bench.systems.base import Arrays, DeviceCall

WARM_UPS = 3


class CapturedCall:
    """`call` of the arrays' device copies as one CUDA graph; `result` holds what it returned, in device memory."""

    def __init__(self, call: Callable[..., Any], inputs: Arrays) -> None:
        import torch

        self._hosts = [torch.from_numpy(array) for array in inputs.values()]
        self._arguments = [tensor.cuda() for tensor in self._hosts]
        self._stream = torch.cuda.Stream()
        self._graph = torch.cuda.CUDAGraph()
        self._stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self._stream):
            for _ in range(WARM_UPS):
                call(*self._arguments)
        self._stream.synchronize()
        with torch.cuda.graph(self._graph, stream=self._stream):
            self.result = call(*self._arguments)

    def upload(self) -> None:
        """Copy the arrays' present values to the device."""
        import torch

        for argument, host in zip(self._arguments, self._hosts, strict=True):
            argument.copy_(host)
        torch.cuda.synchronize()

    def run(self) -> None:
        """Replay the graph, and wait for it."""
        self._graph.replay()
        wait_for_stream()

    def on_device(self) -> DeviceCall:
        """The current stream, and the replay without its end."""
        return DeviceCall(current_stream(), self._graph.replay)


def current_stream() -> int:
    """The driver's handle of PyTorch's current stream."""
    import torch

    return int(torch.cuda.current_stream().cuda_stream)


def wait_for_stream() -> None:
    """Wait for everything on PyTorch's current stream."""
    import torch

    torch.cuda.current_stream().synchronize()


def exact_fp32() -> None:
    """Products and convolutions in full fp32, the fastest convolution chosen by measurement."""
    import torch

    torch.backends.cuda.matmul.allow_tf32 = False
    torch.backends.cudnn.allow_tf32 = False
    torch.backends.cudnn.benchmark = True
