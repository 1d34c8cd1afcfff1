"""Our own network as a library that programs link."""

from __future__ import annotations

from pathlib import Path

import mononn_core as mononn
import mononn_core.emit


def emit_static(artifact: Path, library: Path) -> None:
    """Write the network of a `.mono` file as a static library, its header beside it."""
    session = mononn.load(artifact, weights="shared")
    mononn_core.emit.emit(session.artifact, "static", library)
