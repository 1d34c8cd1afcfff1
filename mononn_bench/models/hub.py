"""Published weights from a model hub: one file, its revision and SHA-256 pinned."""

from __future__ import annotations

import hashlib
from pathlib import Path

from mononn_bench.errors import HubUnreachableError, ModelError
from mononn_bench.models.zoo import HubSource


def fetch_weights(source: HubSource, cache: Path) -> Path:
    """The downloaded file, checked against its digest; kept in `cache`, where huggingface_hub finds it again.

    The hub's address is huggingface_hub's (HF_ENDPOINT). Raises HubUnreachableError when the hub does not answer,
    ModelError when it has no such file or the file's digest is another.
    """
    from huggingface_hub import hf_hub_download
    from huggingface_hub.errors import EntryNotFoundError, HfHubHTTPError, LocalEntryNotFoundError

    name = f"{source.repo_id}/{source.filename} at revision {source.revision}"
    try:
        path = Path(hf_hub_download(source.repo_id, source.filename, revision=source.revision, cache_dir=cache))
    except (LocalEntryNotFoundError, ConnectionError, TimeoutError) as error:
        raise HubUnreachableError(
            f"The model hub cannot be reached for {name}: use 'weights: seeded', or run once where it can be."
        ) from error
    except (EntryNotFoundError, HfHubHTTPError) as error:
        raise ModelError(f"The model hub refuses {name} ({type(error).__name__}): correct the catalogue.") from error
    with path.open("rb") as stream:
        found = hashlib.file_digest(stream, "sha256").hexdigest()
    if found != source.sha256:
        raise ModelError(f"{name} has SHA-256 {found}, not the pinned {source.sha256}: it is not used.")
    return path
