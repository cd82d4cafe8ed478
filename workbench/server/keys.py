"""A key keeps strangers out: programs send it with each request, people type it once.

Nothing of the server is reached without it but whether it lives, `/health` and `/ready`, and that without figures.
"""

from __future__ import annotations

import hashlib
import hmac
from html import escape
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs

from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response

from workbench.client.keys import CONNECT_KEY
from workbench.server.origins import FORM, READS, refused

SHORT = 16
"""A key of fewer characters could be found by trying."""
OPEN = ("/health", "/ready", "/gradio_api/startup-events")
"""What is answered without the key. The last one Gradio asks itself while it starts; it says true or false."""
FORM_BYTES = 4096
STAY_S = 30 * 24 * 3600
"""How long a browser that was let in stays so."""
STRANGER = "workbench.stranger"
"""Entry of the scope: the request came without the key."""


class Keys:
    """ASGI middleware: who does not send the key gets nothing.

    The key is sent as `Authorization: Bearer KEY`, as OpenAI's clients do, or as `X-Api-Key: KEY`. A browser is shown a
    form, and then holds a cookie that no script reads and no other site can use. The cookie follows from the key: it is
    worth nothing once that has changed, and does not tell it.

    Args:
        app: what stands behind it.
        key: the key.
    """

    def __init__(self, app: Any, key: str) -> None:
        self.app = app
        self.key = key.encode()
        self.cookie = f"workbench-{self._derived('name')[:8]}"  # another app on this host has another

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Let a request in that has the key, take a form with it, or ask for it."""
        if scope["type"] not in ("http", "websocket"):
            return await self.app(scope, receive, send)
        request = Request(scope, receive) if scope["type"] == "http" else None
        if request is not None and _kind(request) == FORM:  # no other form is taken here
            return await (await self._login(request))(scope, receive, send)
        if self.knows(scope):
            return await self.app(scope, receive, send)
        if request is None:
            return await send({"type": "websocket.close", "code": 1008})
        if request.method in READS and _inside(scope) in OPEN:
            return await self.app(scope | {STRANGER: True}, receive, send)
        return await self._ask(request)(scope, receive, send)

    def knows(self, scope: Any) -> bool:
        """Whether a request has the key, or the cookie that follows from it. Takes the same time, however wrong."""
        headers = {name.lower(): value for name, value in scope["headers"]}
        scheme, _, given = headers.get(b"authorization", b"").partition(b" ")
        bearer = given.strip() if scheme.lower() == b"bearer" else b""
        cookies = b";".join(value for name, value in scope["headers"] if name.lower() == b"cookie")
        crumbs = [crumb.strip().partition(b"=") for crumb in cookies.split(b";")]
        held = [value for name, _, value in crumbs if name == self.cookie.encode()]
        found = [self._is(bearer), self._is(headers.get(b"x-api-key", b"").strip())]
        found += [hmac.compare_digest(value, self._derived("cookie").encode()) for value in held]
        return any(found)

    def _is(self, given: bytes) -> bool:
        """Whether these bytes are the key. Digests are compared: not even its length can be measured."""
        return hmac.compare_digest(hashlib.sha256(given).digest(), hashlib.sha256(self.key).digest())

    def _derived(self, purpose: str) -> str:
        return hmac.new(self.key, f"workbench browser {purpose}".encode(), hashlib.sha256).hexdigest()

    async def _login(self, request: Request) -> Response:
        """What a form with a key gets: the page that was asked for and a cookie, or the form again."""
        body = b""
        async for chunk in request.stream():
            body += chunk
            if len(body) > FORM_BYTES:
                return self._ask(request)
        given = parse_qs(body.decode("utf-8", "replace")).get("key", [""])[0]
        if not self._is(given.strip().encode()):
            return _form("That is not the key.")
        last = request.scope.get("raw_path", b"").decode("latin-1").rpartition("/")[2]
        query = f"?{request.url.query}" if request.url.query else ""
        answer = RedirectResponse(f"./{last}{query}", 303)  # to itself, under whatever path a proxy has it
        secure = request.url.scheme == "https"
        answer.set_cookie(self.cookie, self._derived("cookie"), STAY_S, httponly=True, samesite="strict", secure=secure)
        return answer

    def _ask(self, request: Request) -> Response:
        if request.method in READS and "text/html" in request.headers.get("accept", ""):
            return _form("")
        return refused(
            request.scope,
            401,
            "This workbench needs a key.",
            f"Send it as Authorization: Bearer KEY; the workbench's own clients take it from {CONNECT_KEY}.",
            code="invalid_api_key",
            headers={"www-authenticate": "Bearer"},
        )


def _form(problem: str) -> Response:
    page = Path(__file__).with_name("key.html").read_text(encoding="utf-8")
    policy = "default-src 'none'; style-src 'unsafe-inline'; form-action 'self'; frame-ancestors 'self'"
    headers = {"content-security-policy": policy, "cache-control": "no-store", "referrer-policy": "same-origin"}
    return HTMLResponse(page.replace("%PROBLEM%", escape(problem)), 401, headers)


def _kind(request: Request) -> str:
    return request.headers.get("content-type", "").partition(";")[0].strip().lower()


def _inside(scope: Any) -> str:
    return scope["path"].removeprefix(scope.get("root_path", "")).rstrip("/")
