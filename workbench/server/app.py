"""`workbench serve`: the backend over HTTP, without pages."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware

import workbench
from workbench.server.callers import Callers
from workbench.server.guard import Guard
from workbench.server.routes import router


def make(client: Any, trusted: Sequence[str] = ()) -> FastAPI:
    """The ASGI application over a `Workbench`.

    Args:
        client: the workbench.
        trusted: proxies that are believed when they say who asks; see `workbench.server.callers`.
    """
    front = [Middleware(Callers, trusted=trusted), Middleware(Guard)]
    app = FastAPI(title="Speculative Decoding Workbench", version=workbench.__version__, middleware=front)
    app.include_router(router(client))

    @app.exception_handler(HTTPException)
    async def refused(_: Request, problem: HTTPException) -> JSONResponse:
        """What no route took, in the shape of all other errors."""
        body = {"message": str(problem.detail), "type": "invalid_request_error", "param": None, "code": None}
        return JSONResponse({"error": body | {"remedy": "GET /openapi.json lists the routes."}}, problem.status_code)

    return app


def serve(client: Any, host: str, port: int, trusted: Sequence[str] = ()) -> None:
    """Serve until interrupted."""
    import uvicorn

    uvicorn.run(
        make(client, trusted), host=host, port=port, log_level="warning", timeout_graceful_shutdown=5,
        proxy_headers=False,
    )  # fmt: skip
