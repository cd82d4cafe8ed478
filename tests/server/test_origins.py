"""Host names and origins: every kind of route refuses pages of other origins and rebound names."""

from __future__ import annotations

import asyncio
from typing import Any

import httpx
import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.routing import Route, WebSocketRoute
from starlette.testclient import TestClient
from starlette.websockets import WebSocket, WebSocketDisconnect

from workbench.core.errors import ParameterError
from workbench.server.access_control import AccessControl, make_access_control
from workbench.server.origins import Allowlist, make_allowlist

HERE = "http://localhost:7860"
JSON = {"content-type": "application/json"}


async def secret(request: Request) -> PlainTextResponse:
    return PlainTextResponse("secret " + request.headers.get("origin", "none"))


async def socket(socket: WebSocket) -> None:
    await socket.accept()
    await socket.send_text("secret")
    await socket.close()


def access_controlled_app(allow: Allowlist) -> Any:
    routes = [Route("/{path:path}", secret, methods=["GET", "POST", "DELETE"]), WebSocketRoute("/socket", socket)]
    return AccessControl(allow).wrap(Starlette(routes=routes[::-1]))


def ask(app: Any, verb: str = "GET", path: str = "/", base: str = HERE, **headers: str) -> httpx.Response:
    sent = {name.replace("_", "-"): value for name, value in headers.items()}

    async def once() -> httpx.Response:
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url=base) as http:
            return await http.request(verb, path, headers=sent)

    return asyncio.run(once())


@pytest.fixture
def local() -> Any:
    return access_controlled_app(make_allowlist("127.0.0.1", env={}))


@pytest.mark.parametrize("host", ["evil.test", "evil.test:7860", "localhost.evil.test", "evil.localhost", "10.0.0.1",
                                  "127.0.0.1.nip.io", "", "localhost:x", "[::2]"])  # fmt: skip
@pytest.mark.parametrize("verb", ["GET", "POST", "DELETE", "OPTIONS"])
def test_requests_to_an_unknown_host_name_are_refused(local: Any, host: str, verb: str) -> None:
    answer = ask(local, verb, host=host, **JSON)
    assert (answer.status_code, "secret" in answer.text) == (403, False)


@pytest.mark.parametrize("host", ["localhost", "LOCALHOST:7860", "localhost.", "127.0.0.1:1", "[::1]:7860"])
def test_the_servers_own_host_names_are_accepted(local: Any, host: str) -> None:
    assert ask(local, host=host).text == "secret none"


ELSEWHERE = ["http://evil.test", "http://localhost", "http://localhost:7861", "null",
             "http://127.0.0.1:7860", "http://localhost:7860.evil.test", "ftp://localhost:7860", "x"]  # fmt: skip


@pytest.mark.parametrize("origin", ELSEWHERE)
def test_a_page_of_another_origin_is_refused_and_cannot_read_the_answer(local: Any, origin: str) -> None:
    for verb in ("GET", "POST"):
        answer = ask(local, verb, origin=origin, **JSON)
        assert (answer.status_code, "secret" in answer.text) == (403, False)
        assert not [name for name in answer.headers if name.startswith("access-control")]
    asked = ask(local, "OPTIONS", origin=origin, access_control_request_method="POST")
    assert (asked.status_code, "access-control-allow-origin" in asked.headers) == (403, False)


def test_the_servers_own_pages_are_accepted_and_origins_are_checked_only_once(local: Any) -> None:
    assert ask(local, "POST", origin=HERE, **JSON).text == "secret none"
    assert (
        ask(access_controlled_app(Allowlist()), base="http://localhost", origin="http://localhost:80").text
        == "secret none"
    )


@pytest.mark.parametrize("kind", ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data; boundary=x",
                                  "", "text/plain; application/json"])  # fmt: skip
def test_requests_that_change_something_must_be_json(local: Any, kind: str) -> None:
    for path in ("/gradio_api/component_server", "/gradio_api/queue/join", "/gradio_api/call/start", "/v1/completions"):
        assert ask(local, "POST", path, content_type=kind).status_code == 415
        assert ask(local, "POST", path, content_type="Application/JSON; charset=utf-8").status_code == 200


def test_forms_with_files_are_refused_everywhere(local: Any) -> None:
    form = {"content_type": "multipart/form-data; boundary=x"}
    assert ask(local, "POST", "/gradio_api/upload", origin=HERE, **form).status_code == 415


def fetch_headers(site: str, mode: str) -> dict[str, str]:
    return {"sec_fetch_site": site, "sec_fetch_mode": mode}


@pytest.mark.parametrize("site", ["cross-site", "same-site"])
def test_links_from_other_sites_work_but_embedded_resources_are_refused(local: Any, site: str) -> None:
    assert ask(local, **fetch_headers(site, "navigate")).status_code == 200
    assert ask(local, **fetch_headers(site, "no-cors")).status_code == 403
    assert ask(local, "POST", **fetch_headers(site, "navigate"), **JSON).status_code == 403
    assert ask(local, **fetch_headers("same-origin", "no-cors")).status_code == 200
    assert ask(local, **fetch_headers("none", "navigate")).status_code == 200


def test_a_private_app_cannot_be_framed_by_other_sites(local: Any) -> None:
    assert "frame-ancestors 'self'" in ask(local).headers["content-security-policy"]
    public = access_controlled_app(make_allowlist("0.0.0.0", env={}, public=True))
    assert "content-security-policy" not in ask(public).headers


def test_an_allowed_origin_may_send_requests_and_read_answers() -> None:
    app = access_controlled_app(make_allowlist("127.0.0.1", origins=["https://lab.example.org/"], env={}))
    origin = "https://lab.example.org"
    asked = ask(app, "OPTIONS", origin=origin, access_control_request_method="POST",
                access_control_request_headers="content-type")  # fmt: skip
    assert (asked.status_code, asked.headers["access-control-allow-headers"]) == (204, "content-type")
    answer = ask(app, "POST", origin=origin, **JSON)
    assert (answer.text, answer.headers.get_list("access-control-allow-origin")) == ("secret none", [origin])
    assert "Origin" in answer.headers["vary"]
    assert ask(app, origin="https://lab.example.org.evil.test").status_code == 403
    everybody = ask(access_controlled_app(Allowlist(origins=("*",))), origin="http://evil.test")
    assert everybody.headers["access-control-allow-origin"] == "http://evil.test"
    assert "access-control-allow-credentials" not in everybody.headers


def test_a_proxy_may_use_another_host_name_than_the_browser() -> None:
    app = access_controlled_app(make_allowlist("127.0.0.1", ["bench.example.org"], env={}))
    for host in ("127.0.0.1:7860", "bench.example.org"):
        assert ask(app, "POST", host=host, origin="https://bench.example.org", **JSON).status_code == 200
        assert ask(app, "POST", host=host, origin="https://bench.example.org:8443", **JSON).status_code == 403


def test_a_websocket_is_refused_for_pages_of_other_origins(local: Any) -> None:
    with TestClient(local, base_url=HERE) as http:
        with http.websocket_connect("/socket", headers={"origin": HERE, "host": "localhost:7860"}) as mine:
            assert mine.receive_text() == "secret"
        for headers in ({"origin": "http://evil.test", "host": "localhost:7860"}, {"host": "evil.test"}):
            with pytest.raises(WebSocketDisconnect), http.websocket_connect("/socket", headers=headers):
                pass


def test_listening_on_all_addresses_accepts_any_ip_address_but_no_other_names(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("socket.gethostname", lambda: "Mill")
    app = access_controlled_app(make_allowlist("0.0.0.0", env={}))
    for host in ("192.168.1.5:7860", "[fe80::1]:7860", "mill", "mill.local"):
        assert ask(app, host=host).status_code == 200, host
    for host in ("evil.test", "1.2.3.4.evil.test", "[evil]", "1.2.3"):
        assert ask(app, host=host).status_code == 403, host
    only = access_controlled_app(make_allowlist("192.168.1.5", env={}))
    assert [ask(only, host=host).status_code for host in ("192.168.1.5", "192.168.1.6")] == [200, 403]


def test_host_names_come_from_spaces_proxies_colab_and_the_environment() -> None:
    space = make_allowlist("0.0.0.0", env={"SPACE_ID": "a/b", "SPACE_HOST": "a-b.hf.space,bench.example.org"})
    assert make_access_control("0.0.0.0", env={"SPACE_ID": "a/b"}).allow.frames, "the Hub shows a Space in a frame"
    assert space.allows_host("a-b.hf.space")
    assert space.allows_host("bench.example.org")
    assert not space.allows_host("evil.test")
    assert space.allows_origin("https://a-b.hf.space", "10.0.0.7:7860"), "for any host name that the Space's proxy uses"
    assert not space.allows_origin("https://c-d.hf.space", "a-b.hf.space")
    assert make_allowlist("0.0.0.0", env={"SPACE_ID": "a/b"}).allows_host("a-b.hf.space"), (
        "an old Space does not set its host name"
    )
    root = make_allowlist("127.0.0.1", env={"GRADIO_ROOT_PATH": "https://example.org:8443/bench"})
    assert root.allows_host("example.org:8443")
    assert root.allows_origin("https://example.org:8443", "127.0.0.1:7860")
    assert make_allowlist("127.0.0.1", env={"COLAB_RELEASE_TAG": "x"}).allows_host("a-7860-colab.googleusercontent.com")
    given = make_allowlist(
        "127.0.0.1", env={"WORKBENCH_ALLOWED_HOSTS": "a.test, *.b.test", "WORKBENCH_ALLOWED_ORIGINS": "*"}
    )
    assert [given.allows_host(name) for name in ("a.test", "x.b.test", "b.test", "xb.test")] == [
        True,
        True,
        False,
        False,
    ]
    assert given.allows_origin("http://evil.test", "localhost")


@pytest.mark.parametrize(("option", "wrong"), [("allowed-host", "http://a.test"), ("allowed-host", "a.test:80"),
                                               ("allowed-host", ""), ("allowed-origin", "a.test"),
                                               ("allowed-origin", "https://a.test/page")])  # fmt: skip
def test_invalid_host_names_and_origins_are_refused(option: str, wrong: str) -> None:
    given = {"hosts" if option == "allowed-host" else "origins": [wrong]}
    with pytest.raises(ParameterError) as caught:
        make_allowlist("127.0.0.1", env={}, **given)
    assert caught.value.option == option


def test_a_refused_visitor_gets_a_page_and_a_program_gets_json(local: Any) -> None:
    assert "--allowed-host evil.test." in ask(local, host="evil.test", accept="text/html").text
    assert ask(local, host="evil.test").json()["error"]["remedy"] == "Start the server with --allowed-host evil.test."


def test_a_page_on_this_machines_default_port_has_another_origin(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("socket.gethostname", lambda: "mill")
    allow = make_allowlist("0.0.0.0", ["bench.example.org"], env={})
    assert allow.allows_origin("http://bench.example.org", "bench.example.org:7860")
    assert not allow.allows_origin("http://mill", "mill:7860")
    assert not allow.allows_origin("http://mill.local", "mill:7860")
    assert allow.allows_origin("http://mill:7860", "mill:7860")
