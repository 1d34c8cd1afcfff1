"""The pages and their fenced blocks; run as a program, the blocks of one page in order.

``python`` blocks run in one namespace, ``sh`` blocks with bash, both in the folder at hand; of ``c`` blocks the
declarations are compiled after those of the headers that lie there by then. ``yaml`` is a configuration, or a part of
one; ``text`` is nothing that runs. Lines that only call mononn run in a fork of this process, which has imported it.
"""

from __future__ import annotations

import importlib
import re
import shlex
import subprocess
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import groupby
from multiprocessing import get_context
from pathlib import Path

import numpy as np
from markdown_it import MarkdownIt

from mononn_core.cli.main import main

ROOT = Path(__file__).resolve().parents[2]
PAGES = (
    "README.md",
    "config/README.md",
    "results/README.md",
    *sorted(f"docs/{p.name}" for p in ROOT.glob("docs/*.md")),
)
ONLY_READ = ("README.md", "config/README.md", "docs/gpu.md")
"""Pages whose commands are read and not run: they stand on other pages too, or are for a GPU."""
RUN = ("python", "sh", "c")
REST = ("yaml", "text", "{toctree}", "{eval-rst}", "{commands}")
PLAIN = re.compile(r"mononn [^|&;<>$*\\`]*")


@dataclass(frozen=True)
class Block:
    """A fenced block: its language ("" of an indented one), its text and the line of the page that it starts in."""

    language: str
    text: str
    line: int


def blocks(page: str) -> list[Block]:
    """Those of a page, in order."""
    tokens = MarkdownIt().parse((ROOT / page).read_text(encoding="utf-8"))
    found = [token for token in tokens if token.type in ("fence", "code_block")]
    return [Block(t.info.partition(" ")[0], t.content, (t.map or [0])[0] + 1) for t in found]


def spans(page: str) -> list[str]:
    """The code spans in a page's sentences and tables."""
    tokens = MarkdownIt().enable("table").parse((ROOT / page).read_text(encoding="utf-8"))
    inner = (child for token in tokens for child in token.children or ())
    return [child.content for child in inner if child.type == "code_inline"]


def run(page: str) -> None:
    """Runs a page's blocks, or fails with the place of the first that fails."""
    namespace: dict[str, object] = {"__name__": "__main__", "ids": np.load("ids.npy"), "mask": np.load("mask.npy")}
    for block in blocks(page):
        if block.language == "python":
            exec(compile("\n" * block.line + block.text, page, "exec"), namespace)
        elif block.language == "sh":
            status = script(block.text.splitlines(), page in ONLY_READ)
            assert status == 0, f"{page}, line {block.line}: exit status {status}"
        elif block.language == "c":
            assert declares(block.text), f"{page}, line {block.line}: it is not C, or not what a header says"


def script(lines: Iterable[str], only_read: bool) -> int:
    """The exit status of a shell's lines: that of the first command that fails."""
    for plain, some in groupby(lines, lambda line: not only_read and bool(PLAIN.fullmatch(line))):
        call = mononn if plain else bash
        if status := call(list(some)):
            return status
    return 0


def bash(lines: list[str]) -> int:
    return subprocess.run(["bash", "-euo", "pipefail", "-c", "\n".join(lines)], check=False).returncode


def mononn(lines: list[str]) -> int:
    importlib.import_module("mononn_core.compiler")
    for line in lines:
        words = shlex.split(line, comments=True)[1:]
        process = get_context("fork").Process(target=lambda words: sys.exit(main(words)), args=(words,))
        process.start()
        process.join()
        if process.exitcode:
            return process.exitcode
    return 0


def declares(text: str) -> bool:
    """Whether C compiles behind the headers that lie here, as what they declare."""
    included = "".join(f'#include "{path}"\n' for path in sorted(Path.cwd().glob("*.h")))
    command = ["cc", "-fsyntax-only", "-Wall", "-Werror", "-x", "c", "-"]
    return not subprocess.run(command, input=included + text, text=True, check=False).returncode


if __name__ == "__main__":
    run(sys.argv[1])
