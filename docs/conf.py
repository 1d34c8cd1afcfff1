"""The site: `make docs` builds README.md, docs/ and the pages beside them with Sphinx and MyST into build/site."""

from __future__ import annotations

import argparse
import importlib
import os
import sys
from itertools import chain
from pathlib import Path
from urllib.parse import unquote

from docutils import nodes
from docutils.parsers.rst import Directive
from sphinx.application import Sphinx

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))  # the checkout's packages, whatever is installed
os.environ["COLUMNS"] = "100"  # of what a parser prints

project = "mononn"
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
root_doc = "docs/index"
include_patterns = ["README.md", "CHANGELOG.md", "config/README.md", "results/README.md", "docs/*.md"]
exclude_patterns = [
    ".*", "build", "*.egg-info", "mononn_*", "tests", "envs", "examples", "profiles", "workflows", "results/[!R]*",
    "results-*",
]  # fmt: skip
html_theme = "alabaster"
html_theme_options = {
    "description": "Compiles a neural network into one function, and measures it against its rivals",
    "page_width": "75em",
    "body_max_width": "none",
    "fixed_sidebar": True,
}
html_sidebars = {"**": ["about.html", "searchfield.html", "navigation.html"]}
html_copy_source = html_show_copyright = False
html_extra_path = ["index.html"]
myst_heading_anchors = 4
autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_typehints_format = "short"


class Commands(Directive):
    """``{commands} module:function``: the help of the parser that the function makes, and of each sub-command."""

    required_arguments = 1

    def run(self) -> list[nodes.Node]:
        module, _, function = self.arguments[0].partition(":")
        top: argparse.ArgumentParser = getattr(importlib.import_module(module), function)()
        steps = [a.choices.values() for a in top._actions if isinstance(a, argparse._SubParsersAction)]
        return [_help(top), *map(_section, chain(*steps))]


def _help(parser: argparse.ArgumentParser) -> nodes.Node:
    text = parser.format_help()
    return nodes.literal_block(text, text, language="text")


def _section(parser: argparse.ArgumentParser) -> nodes.Node:
    title = nodes.title(parser.prog, parser.prog)
    return nodes.section("", title, _help(parser), ids=[nodes.make_id(parser.prog)], names=[parser.prog])


def _without_folders(app: Sphinx, doctree: nodes.document) -> None:
    """A link to a folder of the repository, which the site lacks, becomes its text."""
    here = Path(doctree["source"]).parent
    for link in list(doctree.findall(lambda n: isinstance(n, nodes.reference | nodes.Inline))):
        target = unquote(str(link.get("reftarget", "")))
        if target and (here / target).is_dir():
            link.replace_self(link.children)


def setup(app: Sphinx) -> None:
    """Called by Sphinx."""
    app.add_directive("commands", Commands)
    app.connect("doctree-read", _without_folders)
