"""Which nodes a hand-written template computes, as the schedule asks."""

from __future__ import annotations

from mononn_core.ops.registry import is_template

__all__ = ["is_template"]
