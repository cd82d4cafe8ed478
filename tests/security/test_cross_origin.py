"""Pages of another origin or under a rebound name, in a real browser: app and `serve` send them nothing."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, NamedTuple

import pytest
import serving
import uvicorn
from ui.conftest import chromium
from ui.fake_client import FakeWorkbench

from workbench.server.app import make
from workbench.trace.store import RunStore
from workbench.ui import build, space
from workbench.views import recorded_runs

pytestmark = [pytest.mark.browser, pytest.mark.slow]

ATTACK = """async ({ url, posts, gets }) => {
  const got = {};
  const tried = async (name, act) => {
    try { got[name] = await act(); } catch (problem) { got[name] = 'nothing'; }
  };
  const read = (answer) => answer.text().then((text) => `${answer.status} ${text}`);
  for (const [path, body] of posts) for (const type of ['text/plain', 'application/json']) {
    await tried(`${path} as ${type}`, () => fetch(url + path, { method: 'POST', body, headers: { 'content-type': type } }).then(read));
    await tried(`${path} unseen`, () => fetch(url + path, { method: 'POST', body, mode: 'no-cors', headers: { 'content-type': 'text/plain' } }).then(read));
  }
  for (const path of gets) {
    await tried(path, () => fetch(url + path).then(read));
    await tried(`${path} as a picture`, () => new Promise((yes, no) => Object.assign(new Image(), { onload: yes, onerror: no, src: url + path })));
    await tried(`${path} as a script`, () => new Promise((yes, no) => document.body.append(Object.assign(document.createElement('script'), { onload: () => yes('a script'), onerror: no, src: url + path }))));
  }
  return got;
}"""  # noqa: E501


class Servers(NamedTuple):
    """Ports of an app with one saved run, of `serve`, and of a third-party page."""

    app: int
    serve: int
    other: int
    run: str
    components: dict[str, int]


class Page(BaseHTTPRequestHandler):
    """Serves a third-party page."""

    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("content-type", "text/html")
        self.end_headers()
        self.wfile.write(b"<!doctype html><title>elsewhere</title><body>")

    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Servers]:
    folder = tmp_path_factory.mktemp("kept")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("WORKBENCH_RUNS", str(folder))
        run = RunStore().save(recorded_runs.trace("draft-model"))
        demo, client = build(FakeWorkbench(), can_save_runs=True), FakeWorkbench()
        ports = [serving.free_port() for _ in range(3)]
        demo.launch(server_port=ports[0], quiet=True, **space.launch_options(client))
        api = uvicorn.Server(uvicorn.Config(make(client), port=ports[1], log_level="warning"))
        other = ThreadingHTTPServer(("127.0.0.1", ports[2]), Page)
        for work in (api.run, other.serve_forever):
            threading.Thread(target=work, daemon=True).start()
        assert serving.wait_until(lambda: api.started)
        ids = {name: n for n, block in demo.blocks.items() for name in ("forget", "keep") if hasattr(block, name)}
        yield Servers(*ports, run, ids)
        other.shutdown()
        api.should_exit = True
        demo.close()


@pytest.fixture(scope="module")
def rebound() -> Iterator[Any]:
    """Return a Chromium that resolves evil.test to this machine."""
    with chromium("--host-resolver-rules=MAP evil.test 127.0.0.1") as opened:
        yield opened


def attack(page: Any, servers: Servers, url: str, port: int) -> dict[str, str]:
    """Return the responses that a page can read when it tries every route of a server."""
    wanted = {
        servers.app: (
            [("/gradio_api/component_server", _call(servers, "forget", {"id": servers.run})),
             ("/gradio_api/queue/join", json.dumps({"data": [], "fn_index": 0, "session_hash": "s"}))],
            ["/config", "/gradio_api/info", "/health", "/v1/models", f"/r/{servers.run}"],
        ),
        servers.serve: ([("/v1/completions", '{"prompt": "x"}')], ["/v1/models", "/health", "/openapi.json", "/docs"]),
    }  # fmt: skip
    posts, gets = wanted[port]
    return page.evaluate(ATTACK, {"url": url, "posts": posts, "gets": gets})


def _call(servers: Servers, name: str, data: dict[str, Any]) -> str:
    return json.dumps({"session_hash": "s", "component_id": servers.components[name], "fn_name": name, "data": data})


@pytest.mark.parametrize("which", ["app", "serve"])
def test_a_page_of_another_origin_gets_nothing(rebound: Any, servers: Servers, which: str) -> None:
    port = getattr(servers, which)
    for name in ("evil.test", "127.0.0.1"):  # another site, and another port of this machine
        page = rebound.new_page()
        page.goto(f"http://{name}:{servers.other}/")
        got = attack(page, servers, f"http://127.0.0.1:{port}", port)
        assert {what: said for what, said in got.items() if said not in ("nothing", "0 ")} == {}
        page.close()
    assert RunStore().has(servers.run)


@pytest.mark.parametrize("which", ["app", "serve"])
def test_a_page_under_a_rebound_name_gets_nothing(rebound: Any, servers: Servers, which: str) -> None:
    port = getattr(servers, which)
    page = rebound.new_page()
    page.goto(f"http://evil.test:{port}/")
    assert "The host name evil.test is not allowed" in page.inner_text("body")
    got = attack(page, servers, f"http://evil.test:{port}", port)
    refused = {what: said for what, said in got.items() if said.startswith("403 ") and "is not allowed for" in said}
    assert {what: said for what, said in got.items() if what not in refused and said != "nothing"} == {}
    assert len(refused) >= len(got) / 3
    assert RunStore().has(servers.run)
    page.close()


def test_the_servers_own_page_gets_all_responses(rebound: Any, servers: Servers) -> None:
    page = rebound.new_page()
    page.goto(f"http://127.0.0.1:{servers.app}/health")
    got = attack(page, servers, f"http://127.0.0.1:{servers.app}", servers.app)
    assert got["/gradio_api/component_server as text/plain"].startswith("415 ")
    assert got["/gradio_api/component_server as application/json"].startswith("200 ")
    assert got["/config"].startswith("200 ")
    assert not RunStore().has(servers.run)
    page.close()
