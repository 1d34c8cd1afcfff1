"""The house rules that a reader should be able to rely on: who imports whom, and how long a file may get."""

import ast
import functools
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
LONGEST_FILE, LONGEST_FUNCTION = 400, 50

# Each layer may import those after it; names in one tuple are siblings that may not import each other.
CORE = (
    ("cli",),
    ("emit",),
    ("backend",),
    ("compiler",),
    ("runtime",),
    ("emulate",),
    ("lower", "decide"),
    ("templates",),
    ("codegen", "schedule"),
    ("cost",),
    ("importer", "passes"),
    ("ops",),
    ("graph", "program"),
    ("machine", "gpu", "host_compiler"),
    ("options",),
    ("element", "vocabulary"),
    ("errors", "files"),
)
SUITE = (
    ("cli", "gpu_suite"),
    ("start",),
    ("commands",),
    ("lengths_by_hand",),
    ("by_hand", "doctor"),
    ("workflow",),
    ("profile", "bricks", "lengths"),
    ("report", "measure"),
    ("analysis", "systems"),
    ("models", "profiled", "bricked", "started", "served"),
    ("record",),
    ("codec",),
    ("errors", "files"),
)
# Narrower than the order: all that these layers may import of their own package.
ONLY = {
    "mononn_core.codegen": {"program", "machine", "options", "element", "errors"},
    "mononn_core.runtime": {
        "emulate",
        "vocabulary",
        "program.abi",
        "machine",
        "gpu",
        "host_compiler",
        "options",
        "errors",
        "files",
    },
    "mononn_core.emulate": {"vocabulary", "program.abi", "machine", "host_compiler", "options", "errors"},
    "mononn_bench.analysis": {"record", "profiled", "bricked", "started", "served", "codec", "errors"},
}
IMPORTS_ONNX = ("mononn_core/importer/", "mononn_core/backend.py", "mononn_bench/", "tests/")
IMPORTS_CORE = ("mononn_core/", "mononn_bench/systems/mononn.py", "mononn_bench/systems/xla.py", "tests/")
IMPORTS_CORE += ("mononn_bench/lengths/serving.py",)
IMPORTS_CORE += ("mononn_bench/profile/trace.py", "mononn_bench/commands.py", "mononn_bench/gpu_suite/ours.py")
IMPORTS_CORE += ("mononn_bench/start/emitted.py",)


parsed = functools.cache(ast.parse)


def python_files(*folders):
    return sorted(p for folder in folders for p in (ROOT / folder).rglob("*.py"))


def running(tree):
    """The nodes under a tree, without what only type checkers read."""
    for node in ast.iter_child_nodes(tree):
        if not (isinstance(node, ast.If) and ast.unparse(node.test).endswith("TYPE_CHECKING")):
            yield node
            yield from running(node)


def imported(nodes):
    """Every module a file imports, `from a import b` as a.b, since b may be a module."""
    for node in nodes:
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def rank(order, layer):
    return next((i for i, siblings in enumerate(order) if layer in siblings), None)


def broken_layers(relative, text):
    """What the file at `relative` (a path under ROOT) imports against the rules."""
    package, *inner = Path(relative).with_suffix("").parts
    order = {"mononn_core": CORE, "mononn_bench": SUITE}[package]
    layer = inner[0]
    if layer in ("__init__", "__main__", "version"):
        return []
    own = rank(order, layer)
    if own is None:
        return [f"{relative} is in no layer"]
    found = []
    for name in imported(ast.walk(parsed(text))):
        top, *rest = name.split(".")
        if top != package or not rest or rest[0] == layer or rank(order, rest[0]) is None:
            continue
        allowed = ONLY.get(f"{package}.{layer}")
        if allowed is not None:
            legal = any(".".join(rest[: len(a.split("."))]) == a for a in allowed)
        else:
            legal = rank(order, rest[0]) > own
        if not legal:
            found.append(f"{relative} imports {name}")
    return found


def broken_bans(relative, text):
    """Imports of onnx, of the core by the suite, and of the suite by the core where they are not allowed."""
    found = []
    for name in imported(ast.walk(parsed(text))):
        top = name.split(".")[0]
        banned = (
            (top == "onnx" and not relative.startswith(IMPORTS_ONNX))
            or (top == "mononn_core" and not relative.startswith(IMPORTS_CORE))
            or (top == "mononn_core" and relative.startswith("mononn_bench/") and name.count(".") > 1)
            or (top == "mononn_bench" and relative.startswith("mononn_core/"))
        )
        if banned:
            found.append(f"{relative} imports {name}")
    return found


def circle(texts):
    """Modules that import each other in a circle, the first named again at its end; "" where none do.

    `texts`: each module's code by its name. An import inside a function counts, one for type checkers does not.
    """
    needs = {}
    for module, text in texts.items():
        names = imported(running(parsed(text)))
        needs[module] = {name if name in texts else name.rpartition(".")[0] for name in names} & texts.keys()
    try:
        TopologicalSorter(needs).prepare()
    except CycleError as error:
        return " imported by ".join(error.args[1])
    return ""


def module_texts(package):
    """The code of a package's modules, by name."""
    named = {".".join(p.relative_to(ROOT).with_suffix("").parts): p for p in python_files(package)}
    return {name.removesuffix(".__init__"): path.read_text() for name, path in named.items()}


def too_long(relative, text):
    """The file, and functions in it, that are longer than allowed."""
    lines = len(text.splitlines())
    found = [f"{relative}: {lines} lines"] if lines > LONGEST_FILE else []
    for node in ast.walk(parsed(text)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            length = node.end_lineno - node.lineno + 1
            if length > LONGEST_FUNCTION:
                found.append(f"{relative}: {node.name} has {length} lines")
    return found


@pytest.mark.parametrize("package", ["mononn_core", "mononn_bench"])
def test_layers_import_only_what_stands_below_them(package):
    files = python_files(package)
    assert files
    assert [e for p in files for e in broken_layers(str(p.relative_to(ROOT)), p.read_text())] == []


@pytest.mark.parametrize("package", ["mononn_core", "mononn_bench"])
def test_no_modules_import_each_other_in_a_circle(package):
    assert circle(module_texts(package)) == ""


def test_import_bans():
    files = python_files("mononn_core", "mononn_bench", "tests")
    assert [e for p in files for e in broken_bans(str(p.relative_to(ROOT)), p.read_text())] == []


def test_files_and_functions_are_short():
    files = python_files("mononn_core", "mononn_bench", "tests")
    assert [e for p in files for e in too_long(str(p.relative_to(ROOT)), p.read_text())] == []


@pytest.mark.parametrize(
    ("relative", "text"),
    [
        ("mononn_core/graph/graph.py", "from mononn_core.ops import registry"),
        ("mononn_core/graph/graph.py", "import mononn_core.program.ir"),
        ("mononn_core/codegen/cpu.py", "from mononn_core.graph import graph"),
        ("mononn_core/runtime/session.py", "from mononn_core.program import ir"),
        ("mononn_bench/analysis/stats.py", "from mononn_bench.measure import rounds"),
        ("mononn_core/stray.py", ""),
    ],
)
def test_a_broken_layer_is_seen(relative, text):
    assert broken_layers(relative, text)


@pytest.mark.parametrize(
    ("relative", "text"),
    [
        ("mononn_core/passes/fold.py", "import onnx"),
        ("mononn_core/errors.py", "from mononn_bench import record"),
        ("mononn_bench/measure/rounds.py", "import mononn_core"),
        ("mononn_bench/systems/mononn.py", "from mononn_core.runtime.session import Session"),
    ],
)
def test_a_banned_import_is_seen(relative, text):
    assert broken_bans(relative, text)


@pytest.mark.parametrize(
    "texts",
    [
        {"p.a": "import p.b", "p.b": "from p.a import f"},
        {"p.a": "from p import b", "p.b": "def f():\n    from p.c import g", "p.c": "if 1:\n    import p.a"},
        {"p": "from p.a import f", "p.a": "from p import g"},
    ],
)
def test_a_circle_is_seen(texts):
    assert circle(texts)


def test_an_import_for_type_checkers_makes_no_circle():
    assert not circle({"p.a": "if TYPE_CHECKING:\n    from p.b import g", "p.b": "from p.a import f"})


def test_an_allowed_import_is_not_complained_about():
    assert not broken_layers("mononn_core/runtime/cpu.py", "from mononn_core.program.abi import VERSION")
    assert not broken_layers("mononn_core/compiler.py", "from mononn_core.runtime import session")
    assert not broken_bans("mononn_bench/systems/mononn.py", "import mononn_core as mononn")


def test_length_is_seen():
    body = "\n    pass" * LONGEST_FUNCTION
    assert too_long("x.py", f"def f():{body}")
    assert not too_long("x.py", f"def f():{body[: -len('    pass') - 1]}")
    assert too_long("x.py", "\n" * (LONGEST_FILE + 1))


def test_every_package_says_what_it_is():
    """Also: a folder without a package's file would be left out of what is installed."""
    folders = {p.parent for p in python_files("mononn_core", "mononn_bench")}
    assert [
        f for f in folders if not (ast.get_docstring(ast.parse((f / "__init__.py").read_text())) or "").strip()
    ] == []


def test_a_process_of_pytest_xdist_takes_whole_files(request):
    """The groups of conftest.py hold: without them each process makes every fixture of a file, some of them minutes."""
    if request.config.getoption("loadgroup", False):
        assert request.node.nodeid.endswith("@test_layers.py")
