"""The vocabulary of generated code: C++ and CUDA C++ headers, the templates' kernels among them."""

from collections.abc import Mapping
from pathlib import Path

FOLDER = Path(__file__).parent


def cuda_headers() -> Mapping[str, str]:
    """What generated CUDA sources include: file name -> text."""
    return {path.name: path.read_text(encoding="utf-8") for path in sorted(FOLDER.glob("*.cuh"))}
