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

import pytest
import torch
from safetensors.torch import save

from mononn_bench.models.modules import build_module, load_pretrained_module
from mononn_bench.models.zoo import HubSource, get_model

REVISION = "0123456789abcdef0123456789abcdef01234567"
FETCH = """
import sys
from pathlib import Path
from mononn_bench.errors import BenchError
from mononn_bench.models.hub import fetch_weights
from mononn_bench.models.zoo import HubSource
try:
    print(fetch_weights(HubSource(*sys.argv[1:5]), Path(sys.argv[5])))
except BenchError as error:
    print(type(error).__name__, error)
"""


@dataclass
class Hub:
    """A local server that answers HEAD and GET of /REPO/resolve/REVISION/FILE as the hub does."""

    endpoint: str
    files: dict[str, bytes] = field(default_factory=dict)
    asked: list[str] = field(default_factory=list)


@pytest.fixture
def hub() -> Iterator[Hub]:
    state = Hub("")

    class Handler(BaseHTTPRequestHandler):
        def answer(self, body: bool) -> None:
            state.asked.append(f"{self.command} {self.path}")
            content = state.files.get(self.path)
            self.send_response(404 if content is None else 200)
            if content is None:
                self.send_header("X-Error-Code", "EntryNotFound")
                content = b""
            else:
                self.send_header("X-Repo-Commit", REVISION)
                self.send_header("ETag", f'"{hashlib.sha256(content).hexdigest()}"')
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            if body:
                self.wfile.write(content)

        def do_HEAD(self) -> None:
            self.answer(body=False)

        def do_GET(self) -> None:
            self.answer(body=True)

        def log_message(self, *_: object) -> None:
            return

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
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
    return HubSource("someone/bert", REVISION, "model.safetensors", hashlib.sha256(content).hexdigest())


def hub_names(name: str) -> str:
    """As the published BERT files call them."""
    return name.replace("LayerNorm.weight", "LayerNorm.gamma").replace("LayerNorm.bias", "LayerNorm.beta")


def test_weights_are_downloaded_checked_and_loaded(hub: Hub, tmp_path: Path) -> None:
    spec = get_model("bert-test")
    module = build_module(spec, seed=5)
    content = save({hub_names(n): t.clone().contiguous() for n, t in module.named_parameters()})
    hub.files[f"/someone/bert/resolve/{REVISION}/model.safetensors"] = content
    path = Path(fetch(hub.endpoint, source_of(content), tmp_path))
    assert path.read_bytes() == content
    assert any(line.startswith("GET") for line in hub.asked)
    loaded = load_pretrained_module(spec, path)
    for (name, a), (_, b) in zip(module.named_parameters(), loaded.named_parameters(), strict=True):
        assert torch.equal(a, b), name


def test_an_altered_file_is_refused(hub: Hub, tmp_path: Path) -> None:
    hub.files[f"/someone/bert/resolve/{REVISION}/model.safetensors"] = b"other bytes"
    said = fetch(hub.endpoint, source_of(b"the pinned bytes"), tmp_path)
    assert said.startswith("ModelError")
    assert "not the pinned" in said


def test_a_missing_file_is_named(hub: Hub, tmp_path: Path) -> None:
    said = fetch(hub.endpoint, source_of(b""), tmp_path)
    assert said.startswith("ModelError The model hub refuses someone/bert/model.safetensors")


def test_a_hub_out_of_reach_is_said_clearly(tmp_path: Path) -> None:
    said = fetch("http://127.0.0.1:9", source_of(b""), tmp_path)
    assert said.startswith("HubUnreachableError The model hub cannot be reached for someone/bert/model.safetensors")
    assert "weights: seeded" in said
