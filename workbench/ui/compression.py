"""Compression of HTML pages and of answers to calls from pages; Gradio compresses only files with an extension."""

from __future__ import annotations

from typing import Any

from gradio.brotli_middleware import BrotliMiddleware
from starlette.datastructures import Headers

MIN_BYTES = 2_000
"""Minimum size in bytes of an HTTP answer that is compressed."""
QUALITY = 5
"""Quality of brotli compression, 0 to 11: quality 5 takes about 5 ms for the largest answer (311 kB to 17 kB)."""
FUNCTIONS = "/component_server"
"""End of the URL path at which Gradio answers calls of Python functions from pages."""


class CompressionMiddleware:
    """ASGI middleware that compresses HTML pages and the answers of the page's Python functions.

    All other answers pass unchanged: Gradio compresses files, and event streams must not wait in a buffer.
    """

    def __init__(self, app: Any) -> None:
        self.app = app
        self.compressing = AnyPath(app, quality=QUALITY, minimum_size=MIN_BYTES)

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Pass a request on. Compress an HTML page or a function's result if the client accepts compression."""
        app = self.compressing if scope["type"] == "http" and is_compressed(scope) else self.app
        await app(scope, receive, send)


class AnyPath(BrotliMiddleware):
    """Gradio's compression middleware, changed so that it also compresses answers at URLs without file extension."""

    def _is_compressible_file_type(self, scope: Any) -> bool:
        return True


def is_compressed(scope: Any) -> bool:
    """Return whether the answer to a request is compressed.

    It is if it is an HTML page, or the result of a Python function for a page.
    """
    return "text/html" in Headers(scope=scope).get("accept", "") or scope["path"].rstrip("/").endswith(FUNCTIONS)
