"""Fix for CPU use of an idle page: Gradio's loading screen requests animation frames even after it has disappeared.

Measured with Gradio 6.31 in Chromium without a GPU: 60 invisible frames per second took 7 % of a CPU core. The page
does not need the loading screen's timer, so a script drops its frame requests. The script runs before Gradio's own
modules are loaded.
"""

from __future__ import annotations

from typing import Any

from workbench.ui.addresses import BASE

SCRIPT = (
    b"<script>(() => { const ask = requestAnimationFrame.bind(window); window.requestAnimationFrame = (draw) =>"
    b' (new Error().stack.includes("/statustracker-") ? 0 : ask(draw)); })();</script>'
)


class IdlePageMiddleware:
    """ASGI middleware that adds the script `SCRIPT` to the head of every HTML page, and corrects its `<base>` URL."""

    def __init__(self, app: Any) -> None:
        self.app = app

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Pass a request on. An HTML answer is collected completely; then the script is added."""
        if scope["type"] != "http" or scope["method"] != "GET" or scope["path"].startswith("/gradio_api/"):
            return await self.app(scope, receive, send)
        start: Any = None
        body = b""

        async def answer(message: Any) -> None:
            nonlocal start, body
            if message["type"] == "http.response.start":
                kind = dict(message["headers"]).get(b"content-type", b"")
                start = message if kind.startswith(b"text/html") else None
            if start is None:
                return await send(message)
            if message["type"] == "http.response.body":
                body += message.get("body", b"")
                if not message.get("more_body", False):
                    body = body.replace(b"<head>", b"<head>" + SCRIPT, 1)
                    body = body.replace(b'<base href="./"', f'<base href="{scope.get(BASE, "./")}"'.encode(), 1)
                    length = [(b"content-length", str(len(body)).encode())]
                    other_headers = [(name, value) for name, value in start["headers"] if name != b"content-length"]
                    await send(start | {"headers": other_headers + length})
                    await send({"type": "http.response.body", "body": body})

        await self.app(scope, receive, answer)
