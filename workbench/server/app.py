"""FastAPI application of `workbench serve`."""

from __future__ import annotations

from typing import Any

from fastapi import FastAPI, Request
from fastapi.responses import HTMLResponse, JSONResponse
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware

import workbench
from workbench.client import Client
from workbench.server.access_control import AccessControl
from workbench.server.guard import Guard
from workbench.server.large_requests import LargeRequests, make_admit_request
from workbench.server.reference import page
from workbench.server.routes import router


def make(client: Client, access_control: AccessControl | None = None) -> FastAPI:
    """Return the ASGI application that serves a `Workbench`. By default only this machine has access."""
    app = FastAPI(
        title="Speculative Decoding Workbench",
        version=workbench.__version__,
        middleware=[
            Middleware((access_control or AccessControl()).wrap),
            Middleware(Guard),
            Middleware(LargeRequests, admit_request=make_admit_request(client)),
        ],
        docs_url=None,  # FastAPI's own pages load scripts from a CDN
        redoc_url=None,
    )
    app.include_router(router(client))

    @app.get("/docs", include_in_schema=False)
    def docs() -> HTMLResponse:
        """Return an HTML page that lists the routes of the server."""
        return HTMLResponse(page(app.openapi()))

    @app.exception_handler(HTTPException)
    async def refused(_: Request, problem: HTTPException) -> JSONResponse:
        """Answer a request for an unknown route with an error in OpenAI's format."""
        body = {"message": str(problem.detail), "type": "invalid_request_error", "param": None, "code": None}
        return JSONResponse({"error": body | {"remedy": "GET /docs lists the routes."}}, problem.status_code)

    return app


def serve(client: Client, host: str, port: int, access_control: AccessControl | None = None, **https: Any) -> None:
    """Serve the HTTP API until the process is interrupted.

    `https` has the https options that `workbench.server.tls.certificate` returns.
    """
    import uvicorn

    from workbench.server.connections import HeaderTimeoutProtocol

    uvicorn.run(
        make(client, access_control), host=host, port=port, log_level="warning", timeout_graceful_shutdown=5,
        proxy_headers=False, http=HeaderTimeoutProtocol, **https,
    )  # fmt: skip
