"""`workbench serve` as a separate process, and the guard of every app."""

from __future__ import annotations

import asyncio
import json
import signal
import subprocess
import sys
from types import SimpleNamespace
from typing import Any

import httpx
import pytest
import serving
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.routing import Route

from workbench.core.errors import CapacityError
from workbench.server.app import make
from workbench.server.guard import Guard
from workbench.server.large_requests import LARGE_BYTES
from workbench.server.routes import PARTS
from workbench.service import Limits
from workbench.service.rate_limiter import RateLimiter


@pytest.mark.slow
def test_serve_answers_with_its_limits_and_ends_on_a_signal() -> None:
    port = serving.free_port()
    options = ["--port", str(port), "--limit-new-tokens", "8", "--device", "cpu"]
    with subprocess.Popen([sys.executable, "-m", "workbench", "serve", *options], stderr=subprocess.PIPE) as server:
        assert server.stderr is not None
        assert f"http://127.0.0.1:{port}/v1" in server.stderr.readline().decode()
        with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=60) as http:
            assert serving.wait_until(lambda: _answers(http), 30)
            health = http.get("/health").json()
            assert (health["status"], health["rows"]) == ("ok", 0)
            body = {"model": "text-target", "prompt": "Once upon a time", "temperature": 0, "max_tokens": 8}
            assert http.post("/v1/completions", json=body).json()["usage"]["completion_tokens"] == 8
            refused = http.post("/v1/completions", json=body | {"max_tokens": 9})
            assert (refused.status_code, refused.json()["error"]["remedy"]) == (400, "Use 1 to 8.")
            assert http.get("/").status_code == 404
            assert http.get("/").json()["error"]["remedy"]
        server.send_signal(signal.SIGINT)
        assert server.wait(timeout=30) in (0, 130)


def _answers(http: httpx.Client) -> bool:
    try:
        return http.get("/health").status_code == 200
    except httpx.TransportError:
        return False


# -- without models ---------------------------------------------------------------------------------------------------


class Starting:
    """A client whose backend is still starting."""

    ready = False


def ask(app: Any, verb: str, place: str, **more: Any) -> httpx.Response:
    async def once() -> httpx.Response:
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://localhost") as http:
            return await http.request(verb, place, **more)

    return asyncio.run(once())


def test_health_reports_that_the_backend_is_starting() -> None:
    answer = ask(make(Starting()), "GET", "/health")
    assert (answer.status_code, answer.json()["status"]) == (503, "starting")


class Limited:
    """A client that refuses all runs, or whose runs were ended by a limit."""

    ready, hub_only = True, False

    def __init__(self, problem: Exception | None = None) -> None:
        self.problem = problem

    def admit_request(self, user: str, counted: bool = True) -> None:
        """Accept requests that start no run."""

    def targets(self) -> list[dict[str, Any]]:
        return [{"name": "text-target", "kind": "bundled"}]

    drafters = targets

    def start(self, *_: Any, **__: Any) -> Any:
        if self.problem is not None:
            raise self.problem
        ended = SimpleNamespace(footer=SimpleNamespace(reason="limit"))
        said = "The run took longer than this server's time limit of 5 s."
        return SimpleNamespace(ended=True, message=said, wait=lambda timeout: ended, cancel=lambda: None)


ORDINARY = {"model": "text-target", "prompt": "x", "speculation": {"method": "autoregressive"}}


def test_a_rate_limited_request_gets_a_retry_after_header() -> None:
    answer = ask(
        make(Limited(CapacityError("Too many.", "Try again in 7 s.", 7))), "POST", "/v1/completions", json=ORDINARY
    )
    assert (answer.status_code, answer.headers["retry-after"]) == (429, "7")
    answer = ask(make(Limited(CapacityError("It never fits."))), "POST", "/v1/completions", json=ORDINARY)
    assert "retry-after" not in answer.headers


class Metered(Limited):
    """A client that counts requests."""

    def __init__(self) -> None:
        super().__init__()
        self.meter = RateLimiter(Limits(requests_per_minute=3))

    def admit_request(self, user: str, counted: bool = True) -> None:
        self.meter.admit_request(user, counted=counted)


def test_refused_requests_count_towards_the_limit() -> None:
    app = make(Metered())
    wrong = ORDINARY | {"no_such_field": 1}
    answers = [ask(app, "POST", "/v1/completions", json=wrong).status_code for _ in range(5)]
    assert answers == [400, 400, 400, 429, 429]
    body, kind = b"x" * (LARGE_BYTES + 1), {"content-type": "application/json"}
    late = ask(app, "POST", "/v1/completions", content=body, headers=kind)
    assert "per minute" in late.json()["error"]["message"], "the limit applies before the body is read"


def test_a_body_of_very_many_parts_is_refused_before_it_becomes_objects(monkeypatch: pytest.MonkeyPatch) -> None:
    never = SimpleNamespace(dumps=json.dumps, loads=lambda *_, **__: pytest.fail("it was read"))
    monkeypatch.setattr(
        "workbench.server.routes.json", never
    )  # only in this module: other threads of this process parse JSON, too
    body, kind = b'{"prompt":[' + b"[]," * PARTS + b"[]]}", {"content-type": "application/json"}
    answer = ask(make(Metered()), "POST", "/v1/completions", content=body, headers=kind)
    monkeypatch.undo()
    assert answer.status_code == 400
    assert "too many values" in answer.text


def test_a_run_ended_by_the_time_limit_is_answered_with_the_reason() -> None:
    answer = ask(make(Limited()), "POST", "/v1/completions", json=ORDINARY)
    assert answer.status_code == 504
    assert "time limit of 5 s" in answer.json()["error"]["message"]


@pytest.fixture
def guarded() -> Starlette:
    async def echo(request: Request) -> PlainTextResponse:
        return PlainTextResponse(str(len(await request.body())))

    async def explode(request: Request) -> PlainTextResponse:
        raise RuntimeError("/srv/secret/path")

    routes = [Route("/echo", echo, methods=["POST"]), Route("/gradio_api/explode", explode), Route("/explode", explode)]
    return Starlette(routes=routes, middleware=[Middleware(Guard, body_bytes=1 << 20)])


def test_the_guard_accepts_small_bodies(guarded: Starlette) -> None:
    assert ask(guarded, "POST", "/echo", content=b"x" * (1 << 20)).text == str(1 << 20)


@pytest.mark.parametrize("declared", [True, False])
def test_the_guard_refuses_large_bodies(guarded: Starlette, declared: bool) -> None:
    async def parts() -> Any:
        for _ in range(5):
            yield b"x" * (1 << 18)

    content = b"x" * (5 << 18) if declared else parts()
    answer = ask(guarded, "POST", "/echo", content=content)
    assert answer.status_code == 413
    assert answer.json()["error"]["remedy"]


@pytest.mark.parametrize(("place", "status"), [("/gradio_api/explode", 400), ("/explode", 500)])
def test_the_guard_hides_internals_of_errors(guarded: Starlette, place: str, status: int) -> None:
    answer = ask(guarded, "GET", place)
    assert answer.status_code == status
    assert "secret" not in json.dumps(answer.json())
    assert answer.json()["error"]["message"]
