"""Access keys protect every route of the app and of `serve`; saved runs are shown only to this machine's user."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import serving
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.routing import Route
from ui.fake_client import FakeWorkbench

from workbench.client.keys import KEY
from workbench.core.errors import ParameterError, WorkbenchError
from workbench.server import keys
from workbench.server.access_control import AccessControl, is_user, make_access_control
from workbench.server.app import make
from workbench.server.keys import MAX_WRONG_KEYS, OPEN_PATHS, Keys
from workbench.ui import build, space, sweep
from workbench.ui.saved_runs import SavedRunsView

SECRET = "a key of some length"
BEARER = {"authorization": f"Bearer {SECRET}"}


class Loaded(FakeWorkbench):
    """A client that reports a given number of loaded models."""

    def __init__(self, models: int = 1, status: str = "ok") -> None:
        super().__init__()
        self.said = {"status": status, "models": models, "rows": 3}

    def health(self) -> dict[str, Any]:
        return self.said


def ask(app: Any, verb: str = "GET", path: str = "/", peer: str = "127.0.0.1", **more: Any) -> httpx.Response:
    async def once() -> httpx.Response:
        transport = httpx.ASGITransport(app, client=(peer, 1))
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost:7860") as http:
            return await http.request(verb, path, **more)

    return asyncio.run(once())


@pytest.fixture(scope="module")
def app() -> Iterator[tuple[str, Any]]:
    """Yield the address and the Gradio app of a page with a key."""
    demo = build(FakeWorkbench())
    port = serving.free_port()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(keys, "MAX_WRONG_KEYS", 10_000)
        demo.launch(server_port=port, quiet=True, **space.launch_options(Loaded(), AccessControl(key=SECRET)))
        httpx.get(f"http://127.0.0.1:{port}/health")  # access control is built at the first request
    yield f"http://127.0.0.1:{port}", demo.app
    demo.close()


def flat(routes: Any) -> Iterator[Any]:
    """Yield all routes, including those of nested routers."""
    for route in routes:
        inner = getattr(route, "original_router", None)
        yield from flat(inner.routes) if inner is not None else [route]


def test_no_route_of_the_app_answers_without_the_key(app: tuple[str, Any]) -> None:
    url, gradio = app
    places = {
        (verb, route.path) for route in flat(gradio.routes) for verb in getattr(route, "methods", None) or {"GET"}
    }
    assert {("POST", "/gradio_api/component_server"), ("POST", "/gradio_api/queue/join")} <= places
    assert len(places) > 80
    with httpx.Client(base_url=url, headers={"content-type": "application/json"}) as http:
        for verb, path in sorted(places):
            answer = http.request(verb, path, headers={"authorization": "Bearer another"})
            if path in OPEN_PATHS and verb in ("GET", "HEAD"):
                assert len(answer.content) < 100, path
            else:
                assert answer.status_code == 401, (verb, path)


def test_the_key_opens_the_app_to_programs_and_to_its_own_clients(app: tuple[str, Any]) -> None:
    from workbench import Workbench

    assert httpx.get(f"{app[0]}/config", headers=BEARER).status_code == 200
    assert httpx.get(f"{app[0]}/config", headers={"x-api-key": SECRET}).status_code == 200
    with Workbench(app[0], key=SECRET) as bench:
        assert bench.targets()


def test_clients_take_the_key_from_the_environment_and_report_a_missing_one(
    app: tuple[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    from workbench import Workbench

    monkeypatch.setenv(KEY, SECRET)
    with Workbench(app[0]) as bench:
        assert bench.targets()
    monkeypatch.setenv(KEY, "another")
    with pytest.raises(WorkbenchError, match="needs an API key") as caught:
        Workbench(app[0])
    assert KEY in caught.value.remedy


def test_a_typed_key_gives_a_cookie_that_does_not_reveal_it(app: tuple[str, Any]) -> None:
    with httpx.Client(base_url=app[0], headers={"accept": "text/html"}) as browser:
        asked = browser.get("/r/20261122-180000-0a1b2c3d?view=tree")
        assert (asked.status_code, 'type="password"' in asked.text) == (401, True)
        assert browser.post(asked.url, data={"key": "another"}).status_code == 401
        assert not browser.cookies
        let_in = browser.post(asked.url, data={"key": SECRET})
        assert (let_in.status_code, let_in.headers["location"]) == (303, "./20261122-180000-0a1b2c3d?view=tree")
        kept = let_in.headers["set-cookie"].lower()
        assert "httponly" in kept
        assert "samesite=strict" in kept
        assert SECRET not in kept
        assert browser.get("/config").status_code == 200
        [(name, value)] = browser.cookies.items()
    assert httpx.get(f"{app[0]}/config", cookies={name: value[:-1] + "x"}).status_code == 401
    again = ask(make(FakeWorkbench(), AccessControl(key=SECRET + "2")), path="/v1/models", cookies={name: value})
    assert again.status_code == 401, "another key, another cookie"


@pytest.mark.parametrize(
    ("url", "more", "jar"),
    [
        ("http://localhost:7860", {}, "SameSite=Strict"),
        ("https://localhost:7860", {}, "SameSite=Strict; Secure"),
        ("https://localhost:7860", {"public": True}, "SameSite=None; Secure; Partitioned"),
        ("https://localhost:7860", {"origins": ["https://hub.example.org"]}, "SameSite=None; Secure; Partitioned"),
        ("https://localhost:7860", {"origins": ["https://localhost"]}, "SameSite=Strict; Secure"),
        ("https://localhost:7860", {"origins": ["*"]}, "SameSite=Strict; Secure"),
        (
            "https://localhost:7860",
            {"hosts": ["*"], "origins": ["https://a.org"]},
            "SameSite=None; Secure; Partitioned",
        ),
        ("http://localhost:7860", {"public": True}, "SameSite=Strict"),
    ],
)
def test_the_cookie_is_sent_in_frames_only_if_they_are_allowed_over_https(
    url: str, more: dict[str, Any], jar: str
) -> None:
    front = make(Loaded(), make_access_control("127.0.0.1", key=SECRET, env={}, **more))
    form = {"content-type": "application/x-www-form-urlencoded", "accept": "text/html"}
    kept = ask(front, "POST", f"{url}/", headers=form, content=f"key={SECRET}".encode()).headers["set-cookie"]
    assert kept.endswith(f"; Path=/; {jar}")
    policies = ask(front, path=f"{url}/", headers=form).headers.get_list("content-security-policy")
    ancestors = [policy for policy in policies if "frame-ancestors" in policy]
    assert len(ancestors) == (0 if more.get("public") else 1), "only one header names the allowed ancestors"
    assert all(page in ancestors[0] for page in more.get("origins", ()) if page != "*")


def tries(front: Any, key: str, n: int = 1, peer: str = "203.0.113.7", path: str = "/v1/models") -> list[int]:
    """Return the statuses of `n` requests of an address with a key."""
    headers = {"authorization": f"Bearer {key}"}
    return [ask(front, path=path, peer=peer, headers=headers).status_code for _ in range(n)]


def test_wrong_keys_are_delayed_and_the_right_one_never_is() -> None:
    front = make(Loaded(), AccessControl(key=SECRET))
    assert tries(front, "wrong", MAX_WRONG_KEYS + 2) == [401] * MAX_WRONG_KEYS + [429] * 2
    late = ask(front, path="/v1/models", peer="203.0.113.7", headers={"x-api-key": "wrong"})
    assert (late.status_code, late.headers["retry-after"]) == (429, "6")
    assert "wrong API keys" in late.json()["error"]["message"]
    form = {"content-type": "application/x-www-form-urlencoded"}
    page = ask(front, "POST", "/", peer="203.0.113.7", headers=form, content=b"key=wrong")
    assert (page.status_code, "Too many wrong API keys" in page.text) == (429, True)
    assert tries(front, SECRET, 3) == [200] * 3, "other users of the address are not locked out"
    assert tries(front, "wrong", peer="198.51.100.9") == [401], "other addresses are not affected"
    assert ask(front, path="/v1/models", peer="203.0.113.7").status_code == 401, "a missing key does not count as wrong"


def test_a_short_key_cannot_be_found_by_trying() -> None:
    front = make(Loaded(), AccessControl(key="1234"))
    assert tries(front, "1234", 2) == [200, 200]
    cookie = ask(front, "POST", "/", peer="203.0.113.7", headers={"content-type": "application/x-www-form-urlencoded"},
                 content=b"key=1234").cookies  # fmt: skip
    assert tries(front, "0000", MAX_WRONG_KEYS) == [401] * MAX_WRONG_KEYS
    assert tries(front, "1234") == [429], "a short key is not checked while its address is blocked"
    response = ask(front, path="/health", peer="203.0.113.7", headers={"x-api-key": "1234"})
    assert (response.status_code, response.json()) == (200, {"status": "ok"}), (
        "the public health route does not reveal whether the key is right"
    )
    assert tries(front, "1234", peer="198.51.100.9") == [200]
    assert ask(front, path="/v1/models", peer="203.0.113.7", cookies=dict(cookie)).status_code == 200


@pytest.mark.parametrize(("key", "status"), [("1234", 401), (SECRET, 200)])
def test_the_cookie_of_a_short_key_cannot_be_derived_from_it_and_that_of_a_long_key_survives_a_restart(
    key: str, status: int
) -> None:
    def derived(purpose: str) -> str:
        return hmac.new(key.encode(), f"workbench browser {purpose}".encode(), hashlib.sha256).hexdigest()

    for name in (f"workbench-{derived('name')[:8]}", Keys(None, key).cookie):
        front = make(Loaded(), AccessControl(key=key))
        assert ask(front, path="/v1/models", cookies={name: derived("cookie")}).status_code == status


def test_forms_do_not_bypass_the_key_and_long_ones_are_not_read() -> None:
    app = make(FakeWorkbench(), AccessControl(key=SECRET))
    form = {"content-type": "application/x-www-form-urlencoded"}
    assert ask(app, "POST", "/v1/completions", headers=form | BEARER, content=b"{}").status_code == 401
    assert ask(app, "POST", "/", headers=form, content=b"key=" + b"x" * 9000).status_code == 401
    assert ask(app, "POST", "/", headers=form | {"origin": "http://evil.test"}, content=b"key=x").status_code == 403


@pytest.mark.parametrize("sent", [
    {}, {"authorization": SECRET}, {"authorization": f"Basic {SECRET}"}, {"authorization": "Bearer"},
    {"authorization": f"Bearer {SECRET[:-1]}"}, {"authorization": f"Bearer {SECRET}x"}, {"x-api-key": ""},
    {"cookie": "x"}, {"cookie": f"key={SECRET}"},
])  # fmt: skip
def test_serve_refuses_wrong_and_missing_keys(sent: dict[str, str]) -> None:
    answer = ask(make(FakeWorkbench(), AccessControl(key=SECRET)), path="/v1/models", headers=sent)
    assert (answer.status_code, answer.headers["www-authenticate"]) == (401, "Bearer")
    assert answer.json()["error"]["code"] == "invalid_api_key"


def test_keys_are_compared_as_digests_in_constant_time(monkeypatch: pytest.MonkeyPatch) -> None:
    compared: list[tuple[int, int]] = []

    def compare(one: Any, other: Any) -> bool:
        compared.append((len(one), len(other)))
        return one == other

    app = make(FakeWorkbench(), AccessControl(key=SECRET))
    ask(app, path="/v1/models")  # builds the app
    monkeypatch.setattr(hmac, "compare_digest", compare)
    ask(app, path="/v1/models", headers={"authorization": "Bearer x"})
    assert set(compared) == {(32, 32)}, "digests have the same length for any key"


def test_health_without_a_key_reports_no_figures() -> None:
    app = make(Loaded(), AccessControl(key=SECRET))
    assert ask(app, path="/health").json() == {"status": "ok"}
    assert ask(app, path="/ready").json() == {"ready": True, "reason": "", "status": "ok"}
    assert ask(app, path="/health", headers=BEARER).json()["rows"] == 3
    assert ask(app, path="/metrics").status_code == 401


@pytest.mark.parametrize(("client", "status", "reason"), [
    (Loaded(), 200, ""),
    (Loaded(models=0), 503, "no model is loaded"),
    (Loaded(status="stalled"), 503, "the backend is stalled"),
])  # fmt: skip
def test_ready_reports_whether_requests_can_be_answered(client: Any, status: int, reason: str) -> None:
    answer = ask(make(client), path="/ready")
    assert (answer.status_code, answer.json()["reason"]) == (status, reason)
    assert ask(make(client), path="/health").status_code == (200 if client.said["status"] == "ok" else 503)


def test_an_empty_key_is_an_error_and_a_short_or_missing_one_on_the_network_a_warning() -> None:
    with pytest.raises(ParameterError) as caught:
        make_access_control("127.0.0.1", key=" ")
    assert caught.value.option == "api-key"
    assert make_access_control("127.0.0.1", env={KEY: ""}).key is None
    assert make_access_control("127.0.0.1", env={KEY: SECRET}).key == SECRET
    assert make_access_control("127.0.0.1", env={}).warnings("127.0.0.1") == []
    assert make_access_control("0.0.0.0", key=SECRET, env={}).warnings("0.0.0.0") == []
    assert "--api-key" in make_access_control("0.0.0.0", env={}).warnings("0.0.0.0")[0]
    assert make_access_control("0.0.0.0", env={"SPACE_ID": "a/b"}).warnings("0.0.0.0") == [], (
        "a Space is public by design"
    )
    assert "8 characters" in make_access_control("0.0.0.0", key="x" * 8, env={}).warnings("0.0.0.0")[0]


# -- errors ------------------------------------------------------------------------------------------------------------


def test_an_invalid_gradio_call_is_reported_and_logged_without_its_content(
    app: tuple[str, Any], capfd: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    secret = "a very private sentence"
    with httpx.Client(base_url=f"{app[0]}/gradio_api/call", headers=BEARER, timeout=30) as http:
        for data in ([secret, 5], [{"a": secret}]):
            event = http.post("/generate", json={"data": data}).json()["event_id"]
            response = http.get(f"/generate/{event}").text
            assert "The request is invalid." in response
            assert " object at 0x" not in response
    assert secret not in "".join(capfd.readouterr()) + caplog.text
    assert "ValueError at blocks.py:" in caplog.text


# -- saved runs --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("host", "key", "peer", "forwarded", "theirs"), [
    ("0.0.0.0", None, "192.168.1.9", False, False),
    ("0.0.0.0", None, "::ffff:192.168.1.9", False, False),
    ("0.0.0.0", None, "127.0.0.1", False, True),
    ("0.0.0.0", None, "127.0.0.1", True, False),
    ("0.0.0.0", SECRET, "192.168.1.9", False, True),  # a visitor with the key
    ("127.0.0.1", None, "127.0.0.1", False, True),
    ("127.0.0.1", None, "127.0.0.1", True, False),  # a proxy on this machine, though the app is not on the network
])  # fmt: skip
def test_saved_runs_are_for_this_machines_user(
    host: str, key: str | None, peer: str, forwarded: bool, theirs: bool
) -> None:
    kept = SavedRunsView(allowed=True)

    def answer(_: Request) -> PlainTextResponse:  # in a thread, as Gradio calls the page's own functions
        return PlainTextResponse(str(kept.is_allowed))

    front = make_access_control(host, key=key, env={}).wrap(Starlette(routes=[Route("/", answer)]))
    headers = BEARER | ({"x-forwarded-for": "10.0.0.1"} if forwarded else {})
    assert ask(front, peer=peer, headers=headers).text == str(theirs)
    assert is_user(), "code outside of requests has access"


@pytest.mark.parametrize("host", ["127.0.0.1", "0.0.0.0"])
def test_a_proxy_without_headers_is_not_the_user(host: str) -> None:
    def users(name: str, **options: Any) -> bool:
        scope = {"client": ("127.0.0.1", 1), "headers": [(b"host", name.encode())]}
        return make_access_control(host, env={}, **options).is_from_user(scope)

    named = ["lab.example.org"]
    assert users("localhost:7860")
    assert users("localhost:7860", hosts=named)
    assert not users("lab.example.org", hosts=named)
    assert not users("localhost:7860", hosts=named, trusted=["127.0.0.1"])
    assert users("lab.example.org", hosts=named, trusted=["127.0.0.1"], key=SECRET)
    forwarded = {"client": ("127.0.0.1", 1), "headers": [(b"host", b"x.colab.dev"), (b"x-forwarded-for", b"10.0.0.1")]}
    colab = make_access_control(host, env={"COLAB_RELEASE_TAG": "1"})
    assert colab.is_from_user(forwarded) == (host == "127.0.0.1"), "on Colab only its user has access"
    for more in ({"hosts": named}, {"trusted": ["127.0.0.1"]}):
        tunnel = make_access_control(host, env={"COLAB_RELEASE_TAG": "1"}, **more)  # pyright: ignore[reportArgumentType]
        assert not tunnel.is_from_user(forwarded), "requests through a tunnel are not the user's"
    assert "--api-key" in make_access_control(host, named, env={}).warnings(host)[0]
    assert "--api-key" in make_access_control(host, trusted=["127.0.0.1"], env={}).warnings(host)[0]


@pytest.mark.parametrize("header", [
    "forwarded", "via", "x-real-ip", "cf-connecting-ip", "x-forwarded-for", "x-forwarded-host", "X-Forwarded-Proto",
    "x-original-forwarded-for",
])  # fmt: skip
def test_a_proxy_is_recognised_by_any_usual_header(header: str) -> None:
    host = (b"host", b"localhost:7860")
    users = make_access_control("127.0.0.1", env={}).is_from_user
    assert users({"client": ("127.0.0.1", 1), "headers": [host, (b"user-agent", b"x")]})
    assert not users({"client": ("127.0.0.1", 1), "headers": [host, (header.encode(), b"203.0.113.7")]})


def test_every_call_refuses_visitors_other_than_the_user(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("workbench.ui.saved_runs.is_user", lambda: False)
    kept = SavedRunsView(allowed=True)
    assert kept.kept({}) == {"allowed": False}
    for call in (kept.keep, kept.mark, kept.forget):
        with pytest.raises(WorkbenchError, match="user of this machine"):
            call({})
    with pytest.raises(WorkbenchError, match="user of this machine"):
        kept.recording("20261122-180000-0a1b2c3d")


def test_saved_sweeps_are_not_listed_and_not_opened_for_others(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "one").mkdir()
    (tmp_path / "one" / "sweep.json").write_text("{}")
    monkeypatch.setattr(sweep, "folder", lambda: tmp_path)
    monkeypatch.setattr(sweep, "lines_of", lambda place: [{"id": place.folder.name, "date": ""}])
    view = sweep.SweepView(FakeWorkbench())
    assert [line["id"] for line in view.kept({})["kept"]] == ["one"]
    monkeypatch.setattr(sweep, "is_user", lambda: False)
    assert view.kept({}) == {"kept": []}
    with pytest.raises(WorkbenchError, match="no longer stored here"):
        view.open({"id": "one/0"})


# -- documentation ----------------------------------------------------------------------------------------------------


def test_the_docs_page_loads_no_external_resources_and_lists_all_routes() -> None:
    app = make(FakeWorkbench())
    answer = ask(app, path="/docs")
    assert answer.status_code == 200
    for part in ("src=", "http:", "https:", "<script", "//"):
        assert part not in answer.text
    for path in ("/health", "/ready", "/metrics", "/v1/models", "/v1/completions", "/v1/chat/completions"):
        assert path in answer.text
    for field, effect in (
        ("max_tokens", "maximum number"),
        ("tools", "refused: tool calls"),
        ("user", "accepted but ignored"),
    ):
        assert f"<dt><code>{field}</code></dt><dd>{effect}" in answer.text
    assert ask(app, path="/redoc").status_code == 404
