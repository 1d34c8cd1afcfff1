"""Content identities: what stands in the path of an environment, a model, a build and a record.

A file touched, or a comment changed, leaves an identity as it was; a change that could change a result does not.
"""

from __future__ import annotations

import ast
import hashlib
import json
import os
import platform
import re
import sys
from collections.abc import Callable, Iterable
from functools import cache
from pathlib import Path
from typing import Any

from mononn_bench.models.spec import QUANTISED, data_files, is_quantised

LENGTH = 12
C_SUFFIXES = {".c", ".h", ".cc", ".cpp", ".hpp", ".cuh"}
_C_COMMENT = re.compile(r"//[^\n]*|/\*.*?\*/|(\"(?:\\.|[^\"\\])*\")", re.DOTALL)


def digest(*parts: Any) -> str:
    """The short hexadecimal identity of `parts`, each of which must be JSON or have a fixed `repr`."""
    text = json.dumps(parts, sort_keys=True, default=repr)
    return hashlib.sha256(text.encode()).hexdigest()[:LENGTH]


def source_id(paths: Iterable[Path], cache: Path) -> str:
    """The identity of source files, folders taken whole: comments, layout and docstrings do not count. It is remembered
    in `cache` by the files' names and bytes.
    """
    files: list[Path] = []
    for path in paths:
        found = [path] if path.is_file() else [p for p in path.rglob("*") if p.suffix in {".py", *C_SUFFIXES}]
        files += sorted(found)
    written = [[path.name, hashlib.sha256(path.read_bytes()).hexdigest()] for path in files]
    key = digest("sources", sys.version, Path(__file__).read_text(), written)
    return _remembered(
        cache, key, lambda: digest(*([path.name, _meaning(path.suffix, path.read_text())] for path in files))
    )


def adapter_sources(module: str, root: Path) -> list[Path]:
    """The files that make a system: its adapter, what it imports of its own package, and the compiler if it does.

    `module` is the adapter's dotted name, `root` the folder of the packages. The package's own __init__ lists every
    system and makes none.
    """
    package = module.rpartition(".")[0]
    found: dict[str, Path] = {}
    waiting = [module]
    while waiting:
        name = waiting.pop()
        path = root / Path(*name.split(".")).with_suffix(".py")
        if name in found or not path.is_file():
            continue
        found[name] = path
        for imported in _imported(ast.parse(path.read_text())):
            if imported.partition(".")[0] == "mononn_core":
                found["mononn_core"] = root / "mononn_core"
            elif imported.startswith(f"{package}."):
                waiting.append(imported)
    return [found[name] for name in sorted(found)]


def _imported(tree: ast.AST) -> Iterable[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module


def requirements_id(path: Path) -> str:
    """The identity of an environment file: its meaningful lines, the Python version and the machine type."""
    lines = (line.partition(" #")[0].strip() for line in path.read_text().splitlines())
    meaningful = sorted(line for line in lines if line and not line.startswith("#"))
    return digest(meaningful, sys.version_info[:2], platform.machine(), platform.libc_ver()[0])


def file_digest(path: Path, cache: Path) -> str:
    """The SHA-256 of a file's bytes, remembered in `cache` by path, size and time of change."""
    status = path.stat()
    key = digest(str(path.resolve()), status.st_size, status.st_mtime_ns)
    return _remembered(cache, key, lambda: _sha256(path))


def model_files(path: Path, cache: Path) -> tuple[Path, ...]:
    """An ONNX file, and those beside it that hold its weights; which these are is remembered as in `file_digest`."""
    status = path.stat()
    key = digest("data files", str(path.resolve()), status.st_size, status.st_mtime_ns)
    names = _remembered(cache, key, lambda: "\n".join(data_files(path))).splitlines()
    return (path, *(path.parent / name for name in names if (path.parent / name).is_file()))


def holds_quantised(path: Path, cache: Path) -> bool:
    """As `is_quantised`, remembered as `file_digest` is."""
    status = path.stat()
    key = digest("quantised", QUANTISED, str(path.resolve()), status.st_size, status.st_mtime_ns)
    return bool(_remembered(cache, key, lambda: "yes" if is_quantised(path) else ""))


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _remembered(cache: Path, key: str, make: Callable[[], str]) -> str:
    """The value that an earlier call made for `key`."""
    remembered = cache / "digests" / key
    if remembered.is_file():
        return remembered.read_text()
    value = make()
    remembered.parent.mkdir(parents=True, exist_ok=True)
    temporary = remembered.with_suffix(f".{os.getpid()}")
    temporary.write_text(value)
    temporary.rename(remembered)
    return value


def machine_name(cpuinfo: str, cores: int) -> str:
    """A folder name for a machine: its processor in words, its cores, and a short hash of what else tells it apart.

    `cpuinfo` is the text of /proc/cpuinfo, `cores` how many cores this process may use.
    """
    fields = dict(re.findall(r"^([^:\t]+?)\s*:\s*(.*)$", cpuinfo.split("\n\n")[0], re.MULTILINE))
    model = fields.get("model name") or fields.get("CPU part") or platform.machine()
    words = re.sub(r"\((r|tm)\)|processor|cpu|@.*|\d+-core", " ", model.lower())
    slug = re.sub(r"[^a-z0-9]+", "-", words).strip("-") or "machine"
    told_apart = {k: fields.get(k) for k in ("model", "stepping", "flags", "Features", "cache size")}
    return f"{slug}-{cores}c-{digest(told_apart, platform.system())[:6]}"


@cache
def _meaning(suffix: str, text: str) -> str:
    """What of a source file can change a result."""
    if suffix in C_SUFFIXES:
        return " ".join(_C_COMMENT.sub(lambda m: m.group(1) or " ", text).split())
    if suffix != ".py":
        return text
    tree = ast.parse(text)
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            node.body = [s for s in node.body if not (isinstance(s, ast.Expr) and isinstance(s.value, ast.Constant))]
    return ast.dump(tree)
