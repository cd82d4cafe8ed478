"""A door in front of everything: no body is larger than allowed, and no error tells what is inside."""

from __future__ import annotations

import logging
from typing import Any

from starlette.responses import JSONResponse

from workbench.core.errors import WorkbenchError

logger = logging.getLogger("workbench.server")

BODY_BYTES = 12 << 20
"""Largest body of a request: a picture of `workbench.service.pictures.MAX_BYTES` in base64, and a long prompt. Uploads
have a limit of their own."""
UPLOAD = "/gradio_api/upload"


class TooLargeError(WorkbenchError):
    """The body of a request is larger than allowed."""

    def __init__(self, most: int) -> None:
        super().__init__(f"The request is larger than {most >> 20} MiB.", "Send a shorter prompt, or smaller pictures.")


class Guard:
    """ASGI middleware.

    Args:
        app: what stands behind the door.
        body_bytes: largest body of a request.
    """

    def __init__(self, app: Any, body_bytes: int = BODY_BYTES) -> None:
        self.app = app
        self.body_bytes = body_bytes

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Let a request in, count its bytes, and turn what is raised into a short answer."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        size, began = 0, False
        most = float("inf") if scope["path"].startswith(UPLOAD) else self.body_bytes

        async def counted() -> Any:
            nonlocal size
            message = await receive()
            size += len(message.get("body", b""))
            if size > most:
                raise TooLargeError(self.body_bytes)
            return message

        async def watched(message: Any) -> None:
            nonlocal began
            began = began or message["type"] == "http.response.start"
            await send(message)

        try:
            if declared(scope) > most:
                raise TooLargeError(self.body_bytes)
            await self.app(scope, counted, watched)
        except Exception as problem:
            if began:  # the answer is on its way: all that is left is to break it off
                raise
            await _answer(scope, problem)(scope, receive, send)


def declared(scope: Any) -> int:
    """The size of the body as the request declares it; 0 where it does not."""
    value = dict(scope["headers"]).get(b"content-length", b"")
    return int(value) if value.isdigit() else 0


def _answer(scope: Any, problem: Exception) -> JSONResponse:
    if isinstance(problem, TooLargeError):
        return _told(413, problem.message, problem.remedy)
    logger.error("a request to %s failed", scope["path"], exc_info=problem)
    if scope["path"].startswith("/gradio_api/"):  # Gradio raises about requests that it does not understand
        return _told(400, "The request was not understood.", "The API page (/?view=api) shows how to ask.")
    return _told(500, "Something went wrong inside the workbench.", "The log of the server has the details.")


def _told(status: int, message: str, remedy: str) -> JSONResponse:
    return JSONResponse({"error": {"message": message, "remedy": remedy}, "detail": message}, status)
