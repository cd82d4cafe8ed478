"""A server with a key in another site's frame, like a Space in the Hub's page, in a real browser over https."""

from __future__ import annotations

import subprocess
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
import serving
import uvicorn
from ui.conftest import chromium
from ui.fake_client import FakeWorkbench

from workbench.server.access_control import make_access_control
from workbench.server.app import make

pytestmark = [pytest.mark.browser, pytest.mark.slow]

SECRET = "a key of some length"


class FramePage(BaseHTTPRequestHandler):
    """Serves a page that shows the address after its `?` in a frame."""

    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("content-type", "text/html")
        self.end_headers()
        self.wfile.write(f'<!doctype html><iframe src="{self.path.partition("?")[2]}"></iframe>'.encode())

    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture(scope="module")
def ports(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[int, int]]:
    """Yield the ports of a public https server with a key, and of the page that frames it."""
    folder: Path = tmp_path_factory.mktemp("tls")
    command = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes",
               "-days", "2", "-subj", "/CN=space.test", "-keyout", folder / "key", "-out", folder / "cert"]  # fmt: skip
    try:
        subprocess.run(command, check=True, capture_output=True)
    except FileNotFoundError:
        pytest.skip("no openssl here")
    app, port = (
        make(FakeWorkbench(), make_access_control("127.0.0.1", ["space.test"], key=SECRET, public=True)),
        serving.free_port(),
    )
    https: dict[str, Any] = {"ssl_certfile": folder / "cert", "ssl_keyfile": folder / "key"}
    inner = uvicorn.Server(uvicorn.Config(app, port=port, log_level="critical", **https))
    around = ThreadingHTTPServer(("127.0.0.1", 0), FramePage)
    for work in (inner.run, around.serve_forever):
        threading.Thread(target=work, daemon=True).start()
    assert serving.wait_until(lambda: inner.started)
    yield port, around.server_port
    around.shutdown()
    inner.should_exit = True


def test_a_key_typed_in_a_frame_grants_access_on_that_site_only(ports: tuple[int, int]) -> None:
    inner, around = ports
    with chromium("--host-resolver-rules=MAP *.test 127.0.0.1") as browser:
        context = browser.new_context(ignore_https_errors=True)
        page = context.new_page()
        page.goto(f"http://hub.test:{around}/?https://space.test:{inner}/v1/models")
        frame = page.frame_locator("iframe")
        frame.locator("[type=password]").fill(SECRET)
        frame.locator("[type=password]").press("Enter")
        frame.get_by_text("synthetic-target").first.wait_for()  # shown after a request with the cookie
        other = context.new_page()
        other.goto(f"http://evil.test:{around}/?https://space.test:{inner}/v1/models")
        other.frame_locator("iframe").locator("[type=password]").wait_for()  # the other site needs the key again
        context.close()
