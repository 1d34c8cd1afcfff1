"""Published weights come from the hub the user names; a hub out of reach, a missing and an altered file are named."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import httpx2
import huggingface_hub
import pytest

from mononn_bench.errors import HubUnreachableError
from mononn_bench.models.hub import fetch_weights, find_cache
from mononn_bench.models.modules import load_pretrained_module
from mononn_bench.models.zoo import HubSource, get_model
from tests.bench.test_checkpoints import SMALL, publish

REVISION = "0123456789abcdef0123456789abcdef01234567"
NOWHERE = "http://127.0.0.1:9"
FETCH = """
import sys
import time
from pathlib import Path
from mononn_bench.errors import BenchError
from mononn_bench.models.hub import fetch_weights
from mononn_bench.models.zoo import HubSource
time.sleep = lambda _: None  # between attempts
try:
    print(fetch_weights(HubSource(*sys.argv[1:5], 1_000_000, "MIT"), Path(sys.argv[5])))
except BenchError as error:
    print(type(error).__name__, error)
"""


@dataclass
class Hub:
    """A local server that answers HEAD and GET of /REPO/resolve/REVISION/FILE as the hub does. Its next `breaks` bodies
    break off in the middle; where `down` is set, it has no bodies.
    """

    endpoint: str
    files: dict[str, bytes] = field(default_factory=dict)
    asked: list[str] = field(default_factory=list)
    breaks: int = 0
    down: bool = False


@pytest.fixture
def hub() -> Iterator[Hub]:
    state = Hub("")

    class Handler(BaseHTTPRequestHandler):
        def answer(self, body: bool) -> None:
            state.asked.append(f"{self.command} {self.path}")
            content = state.files.get(self.path)
            if content is None or (body and state.down):
                self.send_response(404 if content is None else 503)
                self.send_header("X-Error-Code", "EntryNotFound" if content is None else "")
                content = b""
            else:
                self.send_response(200)
                self.send_header("X-Repo-Commit", REVISION)
                self.send_header("ETag", f'"{hashlib.sha256(content).hexdigest()}"')
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            if body:
                broken = state.breaks > 0
                state.breaks -= broken
                self.wfile.write(content[: len(content) // 2] if broken else content)

        def do_HEAD(self) -> None:
            self.answer(body=False)

        def do_GET(self) -> None:
            self.answer(body=True)

        def log_message(self, *_: object) -> None:
            return

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    state.endpoint = f"http://127.0.0.1:{server.server_port}"
    yield state
    server.shutdown()
    server.server_close()


def fetch(endpoint: str, source: HubSource, cache: Path) -> str:
    """In a process of its own: huggingface_hub reads HF_ENDPOINT when it is imported."""
    arguments = [source.repo_id, source.revision, source.filename, source.sha256, str(cache)]
    done = subprocess.run(
        [sys.executable, "-c", FETCH, *arguments],
        env={**os.environ, "HF_ENDPOINT": endpoint, "HF_HUB_DISABLE_XET": "1"},
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    return done.stdout.strip()


def source_of(content: bytes) -> HubSource:
    digest = hashlib.sha256(content).hexdigest()
    return HubSource("someone/bert", REVISION, "model.safetensors", digest, len(content), "MIT")


def offer(hub: Hub, content: bytes) -> None:
    hub.files[f"/someone/bert/resolve/{REVISION}/model.safetensors"] = content


@pytest.mark.parametrize("family", sorted(SMALL))
def test_weights_are_downloaded_checked_and_loaded(family: str, hub: Hub, tmp_path: Path) -> None:
    publish(SMALL[family], tmp_path / "published")
    content = (tmp_path / "published").read_bytes()
    offer(hub, content)
    path = Path(fetch(hub.endpoint, source_of(content), tmp_path / "cache"))
    assert path.read_bytes() == content
    assert any(line.startswith("GET") for line in hub.asked)
    load_pretrained_module(get_model(SMALL[family]), path)


def test_a_second_run_needs_no_hub(hub: Hub, tmp_path: Path) -> None:
    offer(hub, b"weights")
    path = fetch(hub.endpoint, source_of(b"weights"), tmp_path)
    assert fetch(NOWHERE, source_of(b"weights"), tmp_path) == path


def test_a_download_that_breaks_off_is_taken_up_again(hub: Hub, tmp_path: Path) -> None:
    content, hub.breaks = b"0123456789" * 1000, 1
    offer(hub, content)
    assert Path(fetch(hub.endpoint, source_of(content), tmp_path)).read_bytes() == content
    assert sum(line.startswith("GET") for line in hub.asked) == 2


def test_a_hub_that_stops_answering_leaves_nothing_half_done(hub: Hub, tmp_path: Path) -> None:
    offer(hub, b"weights")
    hub.down = True
    assert fetch(hub.endpoint, source_of(b"weights"), tmp_path).startswith("HubUnreachableError")
    hub.down = False
    assert Path(fetch(hub.endpoint, source_of(b"weights"), tmp_path)).read_bytes() == b"weights"


@pytest.mark.parametrize("error", [httpx2.ReadError("reset"), RuntimeError("xet"), OSError("too few bytes")])
def test_a_connection_that_is_lost_is_said_clearly(
    error: Exception, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def lose(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr(huggingface_hub, "hf_hub_download", lose)
    with pytest.raises(HubUnreachableError, match="weights: seeded"):
        fetch_weights(source_of(b"weights"), tmp_path)


def test_an_altered_file_is_refused(hub: Hub, tmp_path: Path) -> None:
    offer(hub, b"other bytes")
    said = fetch(hub.endpoint, source_of(b"the pinned bytes"), tmp_path)
    assert said.startswith("ModelError")
    assert "not the pinned" in said


def test_a_file_damaged_in_the_cache_is_downloaded_anew(hub: Hub, tmp_path: Path) -> None:
    offer(hub, b"weights")
    path = Path(fetch(hub.endpoint, source_of(b"weights"), tmp_path))
    path.write_bytes(b"weigh")
    said = fetch(hub.endpoint, source_of(b"weights"), tmp_path)
    assert said.startswith("ModelError")
    assert "damaged" in said
    assert Path(fetch(hub.endpoint, source_of(b"weights"), tmp_path)).read_bytes() == b"weights"


def test_a_missing_file_is_named(hub: Hub, tmp_path: Path) -> None:
    said = fetch(hub.endpoint, source_of(b""), tmp_path)
    assert said.startswith("ModelError The model hub refuses someone/bert/model.safetensors")


def test_a_cache_that_cannot_be_written_is_named(hub: Hub, tmp_path: Path) -> None:
    offer(hub, b"weights")
    (tmp_path / "file").write_text("")
    said = fetch(hub.endpoint, source_of(b"weights"), tmp_path / "file" / "cache")
    assert said.startswith("ModelError")
    assert "cannot be stored in" in said


def test_a_hub_out_of_reach_is_said_clearly(tmp_path: Path) -> None:
    said = fetch(NOWHERE, source_of(b""), tmp_path)
    assert said.startswith("HubUnreachableError The model hub cannot be reached for someone/bert/model.safetensors")
    assert "weights: seeded" in said


def test_the_cache_is_the_one_that_the_user_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HF_HUB_CACHE", "HF_HOME"):
        monkeypatch.delenv(name, raising=False)
    assert find_cache(tmp_path) == tmp_path
    monkeypatch.setenv("HF_HOME", "/home")
    assert find_cache(tmp_path) == Path("/home/hub")
    monkeypatch.setenv("HF_HUB_CACHE", "/cache")
    assert find_cache(tmp_path) == Path("/cache")
