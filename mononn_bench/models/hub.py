"""Published weights from a model hub: one file, its revision and SHA-256 pinned."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

from mononn_bench.errors import HubUnreachableError, ModelError
from mononn_bench.models.zoo import HubSource

REFUSED = (401, 403, 404)
"""HTTP statuses that asking again does not change."""


def find_cache(own: Path) -> Path:
    """The hub's cache that the user named (HF_HUB_CACHE, or the one in HF_HOME), else `own`."""
    if "HF_HUB_CACHE" in os.environ:
        return Path(os.environ["HF_HUB_CACHE"]).expanduser()
    return Path(os.environ["HF_HOME"]).expanduser() / "hub" if "HF_HOME" in os.environ else own


def fetch_weights(source: HubSource, cache: Path) -> Path:
    """The downloaded file, checked against its digest; kept in `cache`, from where it is taken without a hub later.

    The hub's address is huggingface_hub's (HF_ENDPOINT). Raises HubUnreachableError when the hub does not answer or
    stops doing so, ModelError when it has no such file, the file's digest is another, or it cannot be stored.
    """
    path = _download(source, cache)
    with path.open("rb") as stream:
        found = hashlib.file_digest(stream, "sha256").hexdigest()
    if found == source.sha256:
        return path
    if path.resolve().name == source.sha256:  # the hub's own name for the right file
        path.resolve().unlink()
        raise ModelError(f"{_name(source)} is damaged in {cache} and now deleted there: run again to download it anew.")
    raise ModelError(
        f"{_name(source)} has SHA-256 {found}, not the pinned {source.sha256}: it is not used; correct HF_ENDPOINT if "
        "it names another hub, or use 'weights: seeded'."
    )


def _name(source: HubSource) -> str:
    return f"{source.repo_id}/{source.filename} at revision {source.revision}"


def _download(source: HubSource, cache: Path) -> Path:
    from httpx2 import HTTPError
    from huggingface_hub import hf_hub_download
    from huggingface_hub.errors import HfHubHTTPError, LocalEntryNotFoundError

    unreachable = HubUnreachableError(
        f"The model hub cannot be reached for {_name(source)} ({source.size_bytes / 1e6:.0f} MB): run where it can be, "
        f"copy a filled cache to {cache}, or use 'weights: seeded'."
    )
    try:
        return Path(hf_hub_download(source.repo_id, source.filename, revision=source.revision, cache_dir=cache))
    except HfHubHTTPError as error:
        if error.response.status_code not in REFUSED:
            raise unreachable from error
        raise ModelError(
            f"The model hub refuses {_name(source)} ({type(error).__name__}): correct HF_ENDPOINT or the catalogue."
        ) from error
    except (LocalEntryNotFoundError, ConnectionError, TimeoutError, HTTPError, RuntimeError) as error:
        raise unreachable from error
    except OSError as error:
        if error.errno is None:  # fewer bytes came than were announced
            raise unreachable from error
        raise ModelError(
            f"{_name(source)} cannot be stored in {cache} ({error.strerror}): make room there, or set HF_HUB_CACHE."
        ) from error
