"""Compression of pages and of the answers to pages' calls; Gradio itself compresses only files with an extension."""

from __future__ import annotations

from typing import Any

from gradio.brotli_middleware import BrotliMiddleware
from starlette.datastructures import Headers

MIN_BYTES = 2_000
"""Size, in bytes, from which an answer is compressed."""
QUALITY = 5
"""Quality of brotli, 0 to 11: quality 5 takes about 5 ms for the largest answer (311 kB, compressed to 17 kB)."""
FUNCTIONS = "/component_server"
"""End of the path under which Gradio calls the page's Python functions."""


class CompressionMiddleware:
    """ASGI middleware that compresses HTML pages and the answers of the page's Python functions.

    All other answers pass unchanged: files, which Gradio compresses, and event streams, which must not wait in
    a buffer.
    """

    def __init__(self, app: Any) -> None:
        self.app = app
        self.compressing = AnyPath(app, quality=QUALITY, minimum_size=MIN_BYTES)

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Pass a request on; compress the answer if it is a page or a function's result and the client accepts that."""
        app = self.compressing if scope["type"] == "http" and is_compressed(scope) else self.app
        await app(scope, receive, send)


class AnyPath(BrotliMiddleware):
    """Gradio's compression middleware, which here also compresses answers at paths without a file extension."""

    def _is_compressible_file_type(self, scope: Any) -> bool:
        return True


def is_compressed(scope: Any) -> bool:
    """Return whether the answer to a request is compressed: a page, or the answer of a page's function."""
    return "text/html" in Headers(scope=scope).get("accept", "") or scope["path"].rstrip("/").endswith(FUNCTIONS)
