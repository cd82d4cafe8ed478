"""HTTP routes: `/health`, `/ready`, `/metrics` and OpenAI's `/v1`."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Callable
from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse, PlainTextResponse, Response, StreamingResponse
from starlette.requests import ClientDisconnect

import workbench
from workbench.client import Client
from workbench.core.errors import CapacityError, ModelError, OverdueError, ParameterError, WorkbenchError
from workbench.server import openai
from workbench.server.guard import BODY_BYTES, TooLargeError
from workbench.server.keys import UNAUTHENTICATED
from workbench.server.large_requests import BODY_S, RELEASE_SLOT, make_admit_request
from workbench.service.users import user_key
from workbench.trace.events import ABORT_REASONS, Trace

POLL_S = 0.01
PARTS = 500_000
"""Maximum number of commas and opening brackets in the JSON body of a request.

Parsing many small JSON values takes long and holds the interpreter's lock; texts and images have few values.
"""
CLIENT_LEFT = 499
"""HTTP status in the log for a request whose client has disconnected (the number that nginx uses)."""


def router(client: Client) -> APIRouter:
    """Return the routes for a `workbench.client.Workbench`, or another object with its methods."""
    routes = APIRouter()

    def doing() -> dict[str, Any]:
        return (client.health() if client.ready else {"status": "starting", "models": 0}) | {
            "version": workbench.__version__
        }

    @routes.get("/health")
    def health(request: Request) -> Response:
        """Return the state and load of the backend; 503 while it starts or does not work."""
        state = doing()
        return JSONResponse(_without_figures(request, state), 200 if state["status"] == "ok" else 503)

    @routes.get("/ready")
    def ready(request: Request) -> Response:
        """Return whether a model is loaded and the engine works; 503 until requests can be answered."""
        state = doing()
        problem = f"the backend is {state['status']}" if state["status"] != "ok" else "no model is loaded"
        is_ready = state["status"] == "ok" and state["models"] > 0
        answer = {"ready": is_ready, "reason": "" if is_ready else problem}
        return JSONResponse(answer | _without_figures(request, state), 200 if is_ready else 503)

    @routes.get("/metrics")
    def metrics() -> Response:
        """Return all metrics of the backend in Prometheus' text format."""
        return PlainTextResponse(client.metrics_text(), media_type="text/plain; version=0.0.4")

    @routes.get("/v1/models")
    def models() -> Response:
        """List the target models in OpenAI's format."""
        return _respond(lambda: {"object": "list", "data": [_model(entry) for entry in client.targets()]})

    @routes.get("/v1/models/{name:path}")
    def model(name: str) -> Response:
        """Return the description of one target model in OpenAI's format."""

        def find() -> dict[str, Any]:
            for entry in client.targets():
                if entry["name"] == name:
                    return _model(entry)
            raise ModelError("The server has no model of this name.", "GET /v1/models lists the models.")

        return _respond(find)

    @routes.post("/v1/completions")
    async def completions(request: Request) -> Response:
        """Complete a text, in the format of OpenAI's completions."""
        return await _complete(client, request, chat=False)

    @routes.post("/v1/chat/completions")
    async def chat_completions(request: Request) -> Response:
        """Answer a conversation, in the format of OpenAI's chat completions."""
        return await _complete(client, request, chat=True)

    return routes


def _without_figures(request: Request, state: dict[str, Any]) -> dict[str, Any]:
    """Return the full state of the backend; for a client that has not sent the API key, only its status."""
    return {"status": state["status"]} if request.scope.get(UNAUTHENTICATED) else state


def _model(entry: dict[str, Any]) -> dict[str, Any]:
    return {"id": entry["name"], "object": "model", "created": 0, "owned_by": entry["kind"]}


def _respond(work: Callable[[], Any]) -> Response:
    try:
        return JSONResponse(work())
    except Exception as problem:
        return _error_response(problem)


def _error_response(problem: BaseException) -> Response:
    status, body = openai.error(problem)
    retry_s = getattr(problem, "retry_after_s", None)
    return JSONResponse(body, status, None if retry_s is None else {"retry-after": str(retry_s)})


async def _complete(client: Client, request: Request, chat: bool) -> Response:
    user, let_in = user_of(request), make_admit_request(client)
    try:
        let_in(user, False)  # only a check: each run is counted when it starts
        body = await read_json(request)
        parsed, runs = await asyncio.to_thread(_begin, client, body, chat, user)
    except ClientDisconnect:
        return Response(status_code=CLIENT_LEFT)
    except Exception as problem:
        if not isinstance(problem, CapacityError):  # count a request that started no run
            with contextlib.suppress(CapacityError):
                let_in(user, True)
        return _error_response(problem)
    if RELEASE_SLOT in request.scope:
        await request.scope[RELEASE_SLOT]()
    is_streaming = False
    try:
        # A run that fails before its first token gets an error status, streamed or not.
        until_first = parsed.stream
        while any(not (run.ended or (until_first and run.trace is not None and run.trace.rounds)) for run in runs):
            if await request.is_disconnected():
                return Response(status_code=CLIENT_LEFT)
            await asyncio.sleep(POLL_S)
        for run in runs:
            if run.ended:
                await asyncio.to_thread(_wait_for_trace, run)
        if not parsed.stream:
            return JSONResponse(openai.full_answer(parsed, runs))
        is_streaming = True
        return Stream(parsed, runs)
    except Exception as problem:
        return _error_response(problem)
    finally:
        if not is_streaming:
            _cancel(runs)


class Stream(StreamingResponse):
    """Streamed answer whose runs are cancelled when the connection closes, even before the first token."""

    def __init__(self, request: openai.CompletionRequest, runs: list[Any]) -> None:
        super().__init__(_events(request, runs), media_type="text/event-stream")
        self.runs = runs

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Send the streamed answer, then cancel its runs."""
        try:
            await super().__call__(scope, receive, send)
        finally:
            _cancel(self.runs)


def _begin(client: Client, body: Any, chat: bool, user: str) -> tuple[openai.CompletionRequest, list[Any]]:
    parsed = openai.parse_request(client, body, chat)
    runs: list[Any] = []
    try:
        for options in parsed.start_options:
            runs.append(client.start(**options, user=user))  # noqa: PERF401  on an error, cancel the runs started so far
    except BaseException:
        _cancel(runs)
        raise
    return parsed, runs


def _cancel(runs: list[Any]) -> None:
    for run in runs:
        run.cancel()


def _wait_for_trace(run: Any) -> Trace:
    """Wait for the end of a run, and return its trace if the run ended normally.

    Raises:
        OverdueError: the run reached its time limit.
        WorkbenchError: the run failed or was cancelled.
    """
    trace = run.wait(timeout=10)
    if trace.footer.reason == "limit":
        raise OverdueError(run.message, "Request fewer tokens, or use a faster method.")
    if trace.footer.reason in ABORT_REASONS:
        raise WorkbenchError("The run was cancelled by the server.", "Try again.")
    return trace


class _AnswerStream:
    """One of the answers in a stream, with the number of characters that were already sent."""

    def __init__(self, request: openai.CompletionRequest, index: int, run: Any) -> None:
        self.request, self.index, self.run = request, index, run
        self.trace: Trace = run.trace
        self.least = (
            request.start_options[index]["extras"].min_tokens if "extras" in request.start_options[index] else 0
        )
        self.logprobs = openai.LogprobStream(request, run)
        self.seen, self.text, self.n_sent, self.n_tokens, self.since = 0, "", 0, 0, 0
        self.over = False

    def first(self) -> str:
        """Return the event to send before the text: the role in a chat, or the prompt if `echo` is set."""
        if self.request.chat:
            return _event(openai.stream_chunk(self.request, self.index, self.trace, "", first=True))
        prefix = openai.echo_text(self.request, self.trace)
        return _event(openai.stream_chunk(self.request, self.index, self.trace, prefix)) if prefix else ""

    def more(self) -> str:
        """Return an event with the new text of the answer; "" if there is no new text."""
        ended = self.run.ended
        rounds = self.trace.rounds[self.seen :]
        self.seen += len(rounds)
        for token in (token for r in rounds for token in r.emitted):
            self.text += token.text
            self.n_tokens += 1
            if self.n_tokens <= self.least:
                self.since = len(self.text)
        stable = (
            _wait_for_trace(self.run).text if ended else openai.stable_prefix(self.text, self.request.stop, self.since)
        )
        if len(stable) <= self.n_sent and not ended:
            return ""
        new, self.n_sent, self.over = stable[self.n_sent :], len(stable), ended
        scores = self.logprobs.more()
        return _event(openai.stream_chunk(self.request, self.index, self.trace, new, last=ended, token_logprobs=scores))


async def _events(request: openai.CompletionRequest, runs: list[Any]) -> AsyncIterator[str]:
    """Yield the server-sent events of a streamed response; chunks of several answers follow as they arrive."""
    try:
        lines = [_AnswerStream(request, i, run) for i, run in enumerate(runs)]
        for line in lines:
            if start := line.first():
                yield start
        while not all(line.over for line in lines):
            for line in lines:
                if not line.over and (new := line.more()):
                    yield new
            if not all(line.over for line in lines):
                await asyncio.sleep(POLL_S)
        if request.include_usage:
            yield _event(openai.usage_chunk(request, [line.trace for line in lines]))
        yield "data: [DONE]\n\n"
    except Exception as problem:
        yield _event(openai.error(problem)[1])


def _event(data: dict[str, Any]) -> str:
    return f"data: {json.dumps(data, ensure_ascii=False, separators=(',', ':'))}\n\n"


async def read_json(request: Request) -> Any:
    """Read the JSON body of a request.

    Raises:
        TooLargeError: the body is larger than `BODY_BYTES`.
        ParameterError: the body is not declared as JSON, or is not JSON.
    """
    # Browsers let a page of another origin send other content types without a CORS preflight request.
    if request.headers.get("content-type", "").partition(";")[0].strip().lower() != "application/json":
        raise ParameterError("The request is not declared as JSON.", "Send content-type: application/json.")
    try:
        body = await asyncio.wait_for(_body(request), BODY_S)
        if sum(body.count(mark) for mark in b",[{") > PARTS:
            raise ParameterError("The request has too many values.", f"Send at most {PARTS:,} values.")
        return json.loads(body, parse_constant=_no_constant)
    except asyncio.TimeoutError:
        raise ParameterError("The request did not arrive in time.", "Send the whole request without delay.") from None
    except (ValueError, RecursionError):
        raise ParameterError(
            "The request is not JSON.", "Check the quotes, commas and numbers of the JSON text."
        ) from None


async def _body(request: Request) -> bytes:
    body = bytearray()
    async for chunk in request.stream():
        body += chunk
        if len(body) > BODY_BYTES:
            raise TooLargeError(BODY_BYTES)
    return bytes(body)


def _no_constant(name: str) -> Any:
    raise ValueError(f"the value of {name} is not JSON")


def user_of(request: Request) -> str:
    """Return the opaque user key of a request, from its client address and its `Authorization` header."""
    address = request.client.host if request.client else ""
    return user_key(address, request.headers.get("authorization"))
