"""mononn: a compiler that turns a whole static network into one function.

`compile`, `cost_constants`, `load`, `Session`, `TensorInfo`, `MononnError`, `conformance`, `preflight` and
`trace_report` are imported when first asked for: loading an artifact needs neither ONNX nor the compiler.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from mononn_core.version import VERSION

if TYPE_CHECKING:
    from mononn_core.compiler import compile as compile  # noqa: A004
    from mononn_core.compiler.constants import cost_constants as cost_constants
    from mononn_core.errors import MononnError as MononnError
    from mononn_core.runtime.base import TensorInfo as TensorInfo
    from mononn_core.runtime.conformance import conformance as conformance
    from mononn_core.runtime.loading import load as load
    from mononn_core.runtime.preflight import preflight as preflight
    from mononn_core.runtime.session import Session as Session
    from mononn_core.runtime.trace import trace_report as trace_report

__version__ = VERSION
_HOMES = {
    "compile": "mononn_core.compiler",
    "cost_constants": "mononn_core.compiler.constants",
    "load": "mononn_core.runtime.loading",
    "Session": "mononn_core.runtime.session",
    "TensorInfo": "mononn_core.runtime.base",
    "MononnError": "mononn_core.errors",
    "conformance": "mononn_core.runtime.conformance",
    "preflight": "mononn_core.runtime.preflight",
    "trace_report": "mononn_core.runtime.trace",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'mononn_core' has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *_HOMES])
