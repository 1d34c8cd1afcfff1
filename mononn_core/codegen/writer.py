"""Collects lines of C with indentation."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager


class Writer:
    """Lines of source text; ``block`` indents and closes its brace."""

    def __init__(self) -> None:
        self._lines: list[str] = []
        self._depth = 0

    @property
    def lines(self) -> tuple[str, ...]:
        """What was written so far."""
        return tuple(self._lines)

    def line(self, text: str = "") -> None:
        self._lines.append("  " * self._depth + text if text else "")

    @contextmanager
    def block(self, opening: str, closing: str = "}") -> Iterator[None]:
        self.line(opening)
        self._depth += 1
        yield
        self._depth -= 1
        self.line(closing)

    def text(self) -> str:
        return "\n".join(self._lines) + "\n"
