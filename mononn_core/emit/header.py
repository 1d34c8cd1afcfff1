"""The C header of an emitted network, and the tables behind it."""

from __future__ import annotations

import json
import keyword
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from string import Template
from typing import Any

from mononn_core.errors import OptionError
from mononn_core.runtime.artifact import Artifact, tensor_bytes
from mononn_core.runtime.base import Specialisation
from mononn_core.version import VERSION

HEADER = Path(__file__).parent / "network.h"
"""The header, with words in place of what is each network's own."""
C_WORDS = frozenset(
    """auto break case char const continue default do double else enum extern float for goto if inline int long register
    restrict return short signed sizeof static struct switch typedef union unsigned void volatile while bool true false
    class new delete this template typename namespace using public private protected virtual operator try catch throw fn
    let mut impl trait pub mod crate self use where loop match move ref type unsafe main mononn mn""".split()  # noqa: SIM905
)
"""What C, C++ and Rust keep for themselves."""


def check_name(name: str) -> str:
    """``name``, or OptionError where no program could be given functions that begin with it."""
    if not re.fullmatch(r"[A-Za-z][A-Za-z0-9_]*", name) or name in C_WORDS or keyword.iskeyword(name):
        raise OptionError(
            f"{name!r} cannot begin the names of C functions; name the output by letters, digits and _, as libbert.a"
        )
    return name


def header(name: str, artifact: Artifact, inside: bool) -> str:
    """Text of NAME.h."""
    manifest, shapes = artifact.manifest, artifact.specialisations
    words = {
        "name": name,
        "upper": name.upper(),
        "network": quoted(manifest["name"]),
        "version": VERSION,
        "target": target(manifest),
        "described": "\n * ".join(_described(shapes)),
        "memory": f"{sum(_memory(shapes)) / 1e6:.1f}",
        "weights": f"{int(manifest['weight_bytes']) / 1e6:.1f}",
        "where": "are inside the library" if inside else f"lie in {name}.weights, which `weights` names",
        "threads": manifest["threads"],
        "shapes": len(shapes),
        "inputs": len(manifest["inputs"]),
        "outputs": len(manifest["outputs"]),
        "indices": "".join(_indices(name, manifest)),
    }
    words |= {key: str(words[key]).replace("*/", "* /") for key in ("network", "described")}
    return Template(HEADER.read_text(encoding="utf-8")).substitute(words)


def target(manifest: Mapping[str, Any]) -> str:
    """The processors that a network is compiled for."""
    machine = manifest["machine"]
    named = ("amx", "avx512vnni", "avx512bf16", "avx512vbmi", "avxvnni")
    beyond = [f for f in machine["features"] if f.startswith(named)]
    return " with ".join([machine.get("level") or machine["arch"], *([", ".join(beyond)] if beyond else [])])


def tables(name: str, artifact: Artifact) -> str:
    """C++: tensors_, what ``NAME_input`` and ``NAME_output`` give."""
    lines, rows = [], []
    for index, manifest in enumerate(artifact.specialisations):
        entries = []
        for position, tensor in enumerate((*manifest["inputs"], *manifest["outputs"])):
            shape = f"shape_{index}_{position}_"
            lines.append(f"static const uint64_t {shape}[] = {{{', '.join(map(str, [*tensor['shape'], 0]))}}};")
            about = f"{quoted(tensor['name'])}, {quoted(tensor['dtype'])}, {len(tensor['shape'])}u"
            entries.append(f"{{{about}, {shape}, {tensor_bytes(tensor)}u}}")
        rows.append(f"  {{{', '.join(entries)}}},")
    return "\n".join(
        [*lines, f"static const {name}_tensor tensors_[][{name}_INPUTS + {name}_OUTPUTS] = {{", *rows, "};"]
    )


def quoted(text: str) -> str:
    """A C string of any text."""
    plain = json.dumps(text, ensure_ascii=True)
    return plain if "\\u" not in plain else '"' + "".join(f"\\{byte:03o}" for byte in text.encode()) + '"'


def _described(shapes: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    for index, manifest in enumerate(shapes):
        one = Specialisation.of(index, manifest)
        ends = ((kind, dict(which)) for kind, which in (("inputs", one.inputs), ("outputs", one.outputs)))
        text = "; ".join(f"{kind} {', '.join(f'{n} {info}' for n, info in some.items())}" for kind, some in ends)
        yield f"shape {index}: {text}"


def _memory(shapes: Sequence[Mapping[str, Any]]) -> tuple[int, int]:
    arena, scratch = (max(int(m[key]) for m in shapes) for key in ("arena_bytes", "scratch_bytes"))
    return arena, scratch * int(shapes[0]["threads"])


def _indices(name: str, manifest: Mapping[str, Any]) -> Iterator[str]:
    """A constant for the position of every input and output whose name makes one."""
    taken = {"SHAPES", "INPUTS", "OUTPUTS", "PRIVATE", "UNVERIFIED"}
    for kind in ("inputs", "outputs"):
        for index, tensor in enumerate(manifest[kind]):
            word = f"{kind[:-1].upper()}_{re.sub(r'[^A-Za-z0-9]', '_', tensor['name'])}"
            if word not in taken:
                taken.add(word)
                yield f"#define {name}_{word} {index}u\n"
