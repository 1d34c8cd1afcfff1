"""The documentation site: it builds without a warning, every link in it leads somewhere, every public name is on it."""

from __future__ import annotations

import os
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest

import mononn_core

ROOT = Path(__file__).resolve().parents[2]


class Page(HTMLParser):
    """What a page links to, and what in it can be linked to."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.links: list[str] = []
        self.anchors = {""}
        self.feed(path.read_text(encoding="utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        self.links += [given[name] or "" for name in ("href", "src") if name in given]
        self.anchors |= {given[name] or "" for name in ("id", "name") if name in given}


def broken(site: Path) -> list[str]:
    """Each link within the site to a file or anchor that is not there."""
    pages = {path.resolve(): Page(path) for path in site.rglob("*.html")}
    found = []
    for path, page in pages.items():
        for link in page.links:
            to = urlsplit(link)
            if to.scheme or to.netloc:
                continue
            target = (path.parent / unquote(to.path)).resolve() if to.path else path
            there = target.is_file() and (target not in pages or unquote(to.fragment) in pages[target].anchors)
            if not there:
                found.append(f"{path.relative_to(site)}: {link}")
    return found


def build(source: Path, site: Path, *more: str) -> subprocess.CompletedProcess[str]:
    """Sphinx over a source tree, as `make docs` calls it."""
    command = [sys.executable, "-m", "sphinx", "-W", "--keep-going", "-q", *more, str(source), str(site)]
    return subprocess.run(command, capture_output=True, text=True, check=False, env={**os.environ, "LC_ALL": "C.UTF-8"})


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    done = build(ROOT, folder, "-c", str(ROOT / "docs"), "-d", str(tmp_path_factory.mktemp("read")))
    assert done.returncode == 0, done.stderr
    return folder.resolve()


@pytest.mark.slow
def test_no_link_is_broken(site: Path) -> None:
    assert len(list(site.rglob("*.html"))) > len(list((ROOT / "docs").glob("*.md")))
    assert broken(site) == []


@pytest.mark.slow
def test_every_public_name_and_command_is_described(site: Path) -> None:
    assert {f"mononn_core.{name}" for name in mononn_core._HOMES} <= Page(site / "docs" / "api.html").anchors
    commands = Page(site / "docs" / "command-line.html").anchors
    assert {"mononn-compile", "mononn-trace", "mononn-bench-measure", "mononn-bench-tune"} <= commands


def test_broken_links_are_found(tmp_path: Path) -> None:
    links = ("b.html#there", "b.html#gone", "#here", "#no", "https://example.org/x", "c.html")
    (tmp_path / "a.html").write_text('<p id="here">' + "".join(f'<a href="{link}">' for link in links))
    (tmp_path / "b.html").write_text('<p id="there"><img src="c.png"><a href="a.html">')
    assert set(broken(tmp_path)) == {"a.html: b.html#gone", "a.html: #no", "a.html: c.html", "b.html: c.png"}


@pytest.mark.slow
def test_a_page_with_a_broken_link_does_not_build(tmp_path: Path) -> None:
    docs = tmp_path / "docs"
    docs.mkdir()
    (docs / "conf.py").write_text((ROOT / "docs" / "conf.py").read_text().replace("docs/index", "docs/page"))
    (docs / "index.html").touch()
    links = ("[1](gone.md)", "[2](#gone)", "![3](gone.png)", "[4](../gone.txt)", "[5](../gone)")
    (docs / "page.md").write_text("# Page\n\n[a folder](../docs)\n" + "\n".join(links) + "\n")
    done = build(tmp_path, tmp_path / "site", "-c", str(docs))
    assert done.returncode and len(done.stderr.splitlines()) == len(links), done.stderr
