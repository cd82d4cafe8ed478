"""A Hugging Face Hub on localhost: serves folders as model repositories with the part of the API needed for loading."""

from __future__ import annotations

import hashlib
import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import pytest
from huggingface_hub import constants

SHA = "0123456789abcdef0123456789abcdef01234567"


def use_hub_at(url: str, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Make the Hub's library use this address and this download folder."""
    monkeypatch.setattr(constants, "ENDPOINT", url)
    monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", url + "/{repo_id}/resolve/{revision}/{filename}")
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(cache))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(constants, "HF_HUB_DISABLE_XET", True)


class FakeHub:
    """Serves `repos` (id → folder) at `url`; requests are in `requested_paths`, their tokens in `tokens`.

    With `xet` it claims that Xet has every file, but no Xet server exists. A `gate` delays all files
    until it is set.
    """

    def __init__(self, repos: dict[str, Path], gated: tuple[str, ...] = ()) -> None:
        self.repos, self.gated = repos, gated
        self.requested_paths: list[str] = []
        self.tokens: set[str] = set()
        self.xet = False
        self.gate: threading.Event | None = None
        hub = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                hub.answer(self, body=True)

            def do_HEAD(self) -> None:
                hub.answer(self, body=False)

            def log_message(self, *args: Any) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}"
        self._thread = threading.Thread(target=self.server.serve_forever, daemon=True)
        self._thread.start()

    def answer(self, request: BaseHTTPRequestHandler, body: bool) -> None:
        path = unquote(urlsplit(request.path).path)
        self.requested_paths.append(path)
        if token := request.headers.get("Authorization"):
            self.tokens.add(token.removeprefix("Bearer "))
        parts = path.strip("/").split("/")
        if parts[:2] == ["api", "models"]:
            repo, rest = "/".join(parts[2:4]), parts[4:]
        else:
            repo, rest = "/".join(parts[:2]), parts[2:]
        if repo in self.gated:
            return self._send(request, 403, b"{}", {"X-Error-Code": "GatedRepo"}, body)
        if repo not in self.repos:
            return self._send(request, 404, b"{}", {"X-Error-Code": "RepoNotFound"}, body)
        folder = self.repos[repo]
        files = sorted(p for p in folder.rglob("*") if p.is_file())
        if rest[:1] == ["resolve"]:
            if body and self.gate is not None:
                self.gate.wait(30)
            data = (folder / "/".join(rest[2:])).read_bytes()
            etag = hashlib.sha256(data).hexdigest()
            also = {"X-Xet-Hash": etag, "X-Xet-Refresh-Route": f"{self.url}/xet"} if self.xet else {}
            return self._send(request, 200, data, {"ETag": f'"{etag}"', "X-Repo-Commit": SHA, **also}, body)
        if rest[:1] == ["tree"]:
            found: Any = [
                {"type": "file", "path": str(p.relative_to(folder)), "size": p.stat().st_size, "oid": _oid(p)}
                for p in files
            ]
        else:
            siblings = [{"rfilename": str(p.relative_to(folder)), "size": p.stat().st_size} for p in files]
            found = {"id": repo, "modelId": repo, "sha": SHA, "siblings": siblings, "private": False}
        return self._send(request, 200, json.dumps(found).encode(), {"Content-Type": "application/json"}, body)

    @staticmethod
    def _send(request: BaseHTTPRequestHandler, status: int, data: bytes, headers: dict[str, str], body: bool) -> None:
        request.send_response(status)
        for name, value in {**headers, "Content-Length": str(len(data))}.items():
            request.send_header(name, value)
        request.end_headers()
        if body:
            request.wfile.write(data)

    def close(self) -> None:
        self.server.shutdown()
        self.server.server_close()


def _oid(path: Path) -> str:
    data = path.read_bytes()
    return hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()
