"""Compression of pages and of the answers of their functions."""

from __future__ import annotations

import brotli
import pytest
from starlette.applications import Starlette
from starlette.responses import HTMLResponse, JSONResponse, StreamingResponse
from starlette.routing import Route
from starlette.testclient import TestClient

from workbench.ui.compression import MIN_BYTES, CompressionMiddleware

TEXT = "<p>draft</p>" * MIN_BYTES
CALL = "/gradio_api/component_server/"


@pytest.fixture(scope="module")
def client() -> TestClient:
    async def events(_: object) -> StreamingResponse:
        return StreamingResponse(iter([b"data: 1\n\n" * MIN_BYTES]), media_type="text/event-stream")

    routes = [
        Route("/", lambda _: HTMLResponse(TEXT)),
        Route("/small", lambda _: HTMLResponse("<p>")),
        Route(CALL, lambda _: JSONResponse({"text": TEXT}), methods=["POST"]),
        Route("/v1/models", lambda _: JSONResponse({"text": TEXT})),
        Route("/gradio_api/queue/data", events),
    ]
    return TestClient(CompressionMiddleware(Starlette(routes=routes)))


def encoding(client: TestClient, method: str, path: str, **headers: str) -> str | None:
    with client.stream(method, path, headers={"accept-encoding": "br", **headers}) as answer:
        return answer.headers.get("content-encoding")


def test_pages_and_answers_of_functions_are_compressed_and_hold_the_same(client: TestClient) -> None:
    with client.stream("GET", "/", headers={"accept": "text/html", "accept-encoding": "br"}) as page:
        raw = b"".join(page.iter_raw())
    assert page.headers["content-encoding"] == "br"
    assert len(raw) < len(TEXT) / 20
    assert brotli.decompress(raw).decode() == TEXT
    assert encoding(client, "POST", CALL) == "br"


def test_other_answers_pass_unchanged(client: TestClient) -> None:
    assert encoding(client, "GET", "/v1/models", accept="application/json") is None
    assert encoding(client, "GET", "/gradio_api/queue/data", accept="text/event-stream") is None, "it would wait"
    assert encoding(client, "GET", "/small", accept="text/html") is None
    with client.stream("GET", "/", headers={"accept": "text/html", "accept-encoding": "identity"}) as page:
        assert page.headers.get("content-encoding") is None
        assert b"".join(page.iter_raw()).decode() == TEXT


def test_a_caller_without_brotli_gets_gzip(client: TestClient) -> None:
    with client.stream("GET", "/", headers={"accept": "text/html", "accept-encoding": "gzip"}) as page:
        assert page.headers["content-encoding"] == "gzip"
        assert page.read().decode() == TEXT
