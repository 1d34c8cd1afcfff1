"""Products of few rows. (Nothing emits it yet: a CPU's register tile of few rows spans more columns instead.)"""

from __future__ import annotations

from mononn_core.templates.matmul import Matmul


class Gemv(Matmul):
    """A product like any other."""

    name, op = "gemv", ""


TEMPLATE = Gemv()
