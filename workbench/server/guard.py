"""Outermost middleware of the servers: it limits the size of request bodies and hides internal errors."""

from __future__ import annotations

import logging
from typing import Any

from starlette.responses import JSONResponse

from workbench.core.errors import CapacityError, WorkbenchError

logger = logging.getLogger("workbench.server")

BODY_BYTES = 12 << 20
"""Maximum size of a request's body in bytes.

An image of `workbench.service.image_decoding.MAX_BYTES` in base64 and a long prompt fit into it.
"""
CALLS, CALL_BYTES = "/gradio_api/component_server", 4 << 20
"""URL path of calls from the app's pages, and the maximum size of such a call's body in a public app, in bytes.

A trace of a thousand tokens has 3 MB. Pages scale images down before they send them.
"""

FILE_BYTES = CALL_BYTES * 3 // 4 - (256 << 10)
"""Maximum size in bytes of a file that a page can send.

In base64 it must fit into the body of a call together with the call's other arguments.
"""


class TooLargeError(WorkbenchError):
    """Raised if the body of an HTTP request is larger than allowed."""

    def __init__(self, most: int) -> None:
        super().__init__(
            f"The request is larger than {most >> 20} MiB.",
            "Send a shorter prompt, a smaller file of a run, or smaller images.",
        )


class LateError(WorkbenchError):
    """Raised if the body of an HTTP request does not arrive within the time limit."""

    def __init__(self) -> None:
        super().__init__("The request did not arrive in time.", "Send the whole request without delay.")


class Guard:
    """ASGI middleware that limits request bodies and replaces internal errors by short answers.

    Args:
        app: next ASGI application.
        body_bytes: maximum size of a request's body, in bytes.
        call_bytes: maximum size of the body of a call from a page, in bytes; None: `body_bytes`.
    """

    def __init__(self, app: Any, body_bytes: int = BODY_BYTES, call_bytes: int | None = None) -> None:
        self.app = app
        self.body_bytes, self.call_bytes = body_bytes, call_bytes or body_bytes

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Pass a request on, count the bytes of its body, and turn an exception into a short error answer."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        size, has_started = 0, False
        limit = self.call_bytes if is_call(scope) else self.body_bytes

        async def counted() -> Any:
            nonlocal size
            message = await receive()
            size += len(message.get("body", b""))
            if size > limit:
                raise TooLargeError(limit)
            return message

        async def send_watched(message: Any) -> None:
            nonlocal has_started
            has_started = has_started or message["type"] == "http.response.start"
            await send(message)

        try:
            if declared_size(scope) > limit:
                raise TooLargeError(limit)
            await self.app(scope, counted, send_watched)
        except Exception as problem:
            if has_started:  # the answer is partly sent, so it can only be aborted
                raise
            await _answer(scope, problem)(scope, receive, send)


def declared_size(scope: Any) -> int:
    """Return the size of a request's body in bytes as its headers declare it; 0 if they do not."""
    value = dict(scope["headers"]).get(b"content-length", b"")
    return int(value) if value.isdigit() else 0


def is_call(scope: Any) -> bool:
    """Return whether an HTTP request is a call from one of the app's pages."""
    return scope["path"].rstrip("/").endswith(CALLS)


def _answer(scope: Any, problem: Exception) -> JSONResponse:
    if isinstance(problem, TooLargeError | CapacityError | LateError):
        if is_call(scope):  # a page shows the message of an answer with status 200 only
            return _error(200, problem.message, problem.remedy)
        status = 413 if isinstance(problem, TooLargeError) else 408 if isinstance(problem, LateError) else 429
        return _error(status, problem.message, problem.remedy)
    logger.error("a request to %s failed", scope["path"], exc_info=problem)
    if scope["path"].startswith("/gradio_api/"):  # Gradio raises exceptions for malformed requests
        return _error(400, "The request is malformed.", "The app's API page (/?view=api) documents the calls.")
    return _error(500, "An internal error occurred.", "The server's log has the details.")


def _error(status: int, message: str, remedy: str) -> JSONResponse:
    return JSONResponse({"error": {"message": message, "remedy": remedy}, "detail": message}, status)
