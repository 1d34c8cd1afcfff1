"""Where the files lie that belong to the packages and stand beside them: in a checkout, or where pip put them."""

from __future__ import annotations

from importlib import metadata
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
"""The folder of the packages: a checkout's own, or site-packages."""
PACKAGES = ("mononn_core", "mononn_bench")
INSTALLED = "share/mononn/workflows/config.yaml"
"""One of these files, as pyproject.toml has it installed."""


def _files() -> Path:
    if (ROOT / "envs").is_dir():
        return ROOT
    try:
        installed = metadata.files("mononn") or ()
    except metadata.PackageNotFoundError:
        return ROOT
    found = (Path(str(file.locate())).resolve() for file in installed if file.as_posix().endswith(INSTALLED))
    return next((path.parents[1] for path in found), ROOT)


FILES = _files()
"""The folder of `envs` and `workflows`."""


def import_path(cache: Path) -> Path:
    """A folder from which our packages, and none beside them, can be imported: a checkout's, or one of links under
    `cache`.
    """
    if FILES == ROOT:
        return ROOT
    folder = cache.absolute() / "packages"
    folder.mkdir(parents=True, exist_ok=True)
    for name in PACKAGES:
        link = folder / name
        if link.resolve() != ROOT / name:
            link.unlink(missing_ok=True)
            link.symlink_to(ROOT / name)
    return folder
