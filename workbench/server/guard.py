"""A door in front of everything: no body is larger than allowed, and no error tells what is inside."""

from __future__ import annotations

import logging
from typing import Any

from starlette.responses import JSONResponse

from workbench.core.errors import CapacityError, WorkbenchError

logger = logging.getLogger("workbench.server")

BODY_BYTES = 12 << 20
"""Largest body of a request: a picture of `workbench.service.pictures.MAX_BYTES` in base64, and a long prompt."""
CALLS, CALL_BYTES = "/gradio_api/component_server", 4 << 20
"""Where the pages ask for what is computed from a body, and the largest body there of a public app: a trace of a
thousand tokens has 3 MB, and the pages scale pictures down before they send them."""

FILE_BYTES = CALL_BYTES * 3 // 4 - (256 << 10)
"""Largest file that such a body holds in base64, beside what else is asked."""


class TooLargeError(WorkbenchError):
    """The body of a request is larger than allowed."""

    def __init__(self, most: int) -> None:
        super().__init__(
            f"The request is larger than {most >> 20} MiB.", "Send a shorter prompt or run, or smaller pictures."
        )


class LateError(WorkbenchError):
    """The body of a request does not arrive."""

    def __init__(self) -> None:
        super().__init__("The request did not arrive in time.", "Send it at once.")


class Guard:
    """ASGI middleware.

    Args:
        app: what stands behind the door.
        body_bytes: largest body of a request.
        call_bytes: the same for the pages' calls.
    """

    def __init__(self, app: Any, body_bytes: int = BODY_BYTES, call_bytes: int | None = None) -> None:
        self.app = app
        self.body_bytes, self.call_bytes = body_bytes, call_bytes or body_bytes

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Let a request in, count its bytes, and turn what is raised into a short answer."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        size, began = 0, False
        most = self.call_bytes if is_call(scope) else self.body_bytes

        async def counted() -> Any:
            nonlocal size
            message = await receive()
            size += len(message.get("body", b""))
            if size > most:
                raise TooLargeError(most)
            return message

        async def watched(message: Any) -> None:
            nonlocal began
            began = began or message["type"] == "http.response.start"
            await send(message)

        try:
            if declared(scope) > most:
                raise TooLargeError(most)
            await self.app(scope, counted, watched)
        except Exception as problem:
            if began:  # the answer is on its way: all that is left is to break it off
                raise
            await _answer(scope, problem)(scope, receive, send)


def declared(scope: Any) -> int:
    """The size of the body as the request declares it; 0 where it does not."""
    value = dict(scope["headers"]).get(b"content-length", b"")
    return int(value) if value.isdigit() else 0


def is_call(scope: Any) -> bool:
    """Whether a request is one of the pages' calls."""
    return scope["path"].rstrip("/").endswith(CALLS)


def _answer(scope: Any, problem: Exception) -> JSONResponse:
    if isinstance(problem, TooLargeError | CapacityError | LateError):
        if is_call(scope):  # a page shows the words of an answer, and of a refusal none
            return _told(200, problem.message, problem.remedy)
        status = 413 if isinstance(problem, TooLargeError) else 408 if isinstance(problem, LateError) else 429
        return _told(status, problem.message, problem.remedy)
    logger.error("a request to %s failed", scope["path"], exc_info=problem)
    if scope["path"].startswith("/gradio_api/"):  # Gradio raises about requests that it does not understand
        return _told(400, "The request was not understood.", "The API page (/?view=api) shows how to ask.")
    return _told(500, "An internal error occurred.", "The server's log has the details.")


def _told(status: int, message: str, remedy: str) -> JSONResponse:
    return JSONResponse({"error": {"message": message, "remedy": remedy}, "detail": message}, status)
