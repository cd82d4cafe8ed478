"""A key keeps strangers out: programs send it with each request, people type it once.

Nothing of the server is reached without it but whether it lives, `/health` and `/ready`, and that without figures.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
from html import escape
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs

from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response

from workbench.core.errors import CapacityError
from workbench.server.origins import FORM, READS, refused
from workbench.service.limits import Limits
from workbench.service.meter import Meter
from workbench.service.users import user_key

SHORT = 16
"""A key of fewer characters could be found by trying."""
WRONG = 10
"""Wrong keys of one address in a minute; further ones are not looked at."""
OPEN = ("/health", "/ready", "/gradio_api/startup-events")
"""What is answered without the key. The last one Gradio asks itself while it starts; it says true or false."""
FORM_BYTES = 4096
STAY_S = 30 * 24 * 3600
"""How long a browser that was let in stays so."""
STRANGER = "workbench.stranger"
"""Entry of the scope: the request came without the key."""
_SALT = secrets.token_bytes(32)


class Keys:
    """ASGI middleware: who does not send the key gets nothing.

    The key is sent as `Authorization: Bearer KEY`, as OpenAI's clients do, or as `X-Api-Key: KEY`. A browser is shown a
    form, and then holds a cookie that no script reads and no other site can use: see `_jar`. It follows from the key:
    it is worth nothing once that has changed, and does not tell it. That of a short key follows from a secret of this
    process as well and goes with it, or cookies could be made from guesses, which nobody counts.

    An address that has sent too many wrong keys is told to wait. A right one never has to where it is long: nobody
    finds it by trying, and whoever shares an address with somebody who tries is not locked out. A short one has to wait
    as well, or trying would go on; a browser that was let in does not.

    Args:
        app: what stands behind it.
        key: the key.
        framed: whether pages of others may show the server's in a frame.
    """

    def __init__(self, app: Any, key: str, framed: bool = False) -> None:
        self.app, self.framed = app, framed
        self.key = key.encode()
        self.is_long = len(key) >= SHORT
        self._seed = self.key if self.is_long else _SALT + self.key
        self.cookie = f"workbench-{self._derived('name')[:8]}"  # another app on this host has another
        self.wrong = Meter(Limits(requests_per_minute=WRONG))

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Let a request in that has the key, take a form with it, or ask for it."""
        if scope["type"] not in ("http", "websocket"):
            return await self.app(scope, receive, send)
        request = Request(scope, receive) if scope["type"] == "http" else None
        if request is not None and _kind(request) == FORM:  # no other form is taken here
            return await (await self._login(request))(scope, receive, send)
        given = _given(scope)
        known, late = self._holds(scope), None
        if not known and any(given):
            known, late = self._try(scope, *given)
        if known:
            return await self.app(scope, receive, send)
        if request is None:
            return await send({"type": "websocket.close", "code": 1008})
        if request.method in READS and _inside(scope) in OPEN:
            return await self.app(scope | {STRANGER: True}, receive, send)
        return await (_wait(scope, late) if late else self._ask(request))(scope, receive, send)

    def _holds(self, scope: Any) -> bool:
        """Whether a request has the cookie that follows from the key. Takes the same time, however wrong."""
        cookies = b";".join(value for name, value in scope["headers"] if name.lower() == b"cookie")
        crumbs = [crumb.strip().partition(b"=") for crumb in cookies.split(b";")]
        held = [value for name, _, value in crumbs if name == self.cookie.encode()]
        found = [hmac.compare_digest(value, self._derived("cookie").encode()) for value in held]
        return any(found)

    def _try(self, scope: Any, *given: bytes) -> tuple[bool, CapacityError | None]:
        """Whether one of these is the key, which takes the same time, however wrong; or that the address has to wait.

        Counts those that are wrong.
        """
        found = [self._is(each) for each in given]
        known = any(found)
        if known and self.is_long:
            return True, None
        try:
            self.wrong.let_in(user_key((scope.get("client") or ("",))[0]), counted=not known)
        except CapacityError as late:
            said = "Too many wrong keys came from your address."
            return False, CapacityError(said, late.remedy, late.retry_after_s)
        return known, None

    def _is(self, given: bytes) -> bool:
        """Whether these bytes are the key. Digests are compared: not even its length can be measured."""
        return hmac.compare_digest(hashlib.sha256(given).digest(), hashlib.sha256(self.key).digest())

    def _derived(self, purpose: str) -> str:
        return hmac.new(self._seed, f"workbench browser {purpose}".encode(), hashlib.sha256).hexdigest()

    async def _login(self, request: Request) -> Response:
        """What a form with a key gets: the page that was asked for and a cookie, or the form again."""
        body = b""
        async for chunk in request.stream():
            body += chunk
            if len(body) > FORM_BYTES:
                return self._ask(request)
        given = parse_qs(body.decode("utf-8", "replace")).get("key", [""])[0]
        known, late = self._try(request.scope, given.strip().encode())
        if not known:
            return _form(f"{late.message} {late.remedy}" if late else "That is not the key.", late)
        last = request.scope.get("raw_path", b"").decode("latin-1").rpartition("/")[2]
        query = f"?{request.url.query}" if request.url.query else ""
        answer = RedirectResponse(f"./{last}{query}", 303)  # to itself, under whatever path a proxy has it
        given = f"{self.cookie}={self._derived('cookie')}; HttpOnly; Max-Age={STAY_S}; Path=/; {self._jar(request)}"
        answer.headers.append("set-cookie", given)
        return answer

    def _jar(self, request: Request) -> str:
        """With which requests a browser sends the cookie: with those of this server's own pages.

        Where others may show these in a frame, as the Hub does a Space, also inside of such a frame, which only https
        makes possible; in a jar for each site around it ("Partitioned"), so that one who was let in inside of the Hub's
        page is not let in inside of another's. Browsers that know no such jars send it with requests from any site:
        what changes something is refused to those by its origin, see `workbench.server.origins`.
        """
        if request.url.scheme != "https":
            return "SameSite=Strict"
        return "SameSite=None; Secure; Partitioned" if self.framed else "SameSite=Strict; Secure"

    def _ask(self, request: Request) -> Response:
        if request.method in READS and "text/html" in request.headers.get("accept", ""):
            return _form("")
        return refused(
            request.scope,
            401,
            "This workbench needs a key.",
            "Send it as Authorization: Bearer KEY; the workbench's own clients, with Workbench(url, key=…).",
            code="invalid_api_key",
            headers={"www-authenticate": "Bearer"},
        )


def _given(scope: Any) -> tuple[bytes, bytes]:
    """The keys that a request brings: as its bearer's, and as the workbench's own clients do."""
    headers = {name.lower(): value for name, value in scope["headers"]}
    scheme, _, given = headers.get(b"authorization", b"").partition(b" ")
    bearer = given.strip() if scheme.lower() == b"bearer" else b""
    return bearer, headers.get(b"x-api-key", b"").strip()


def _wait(scope: Any, late: CapacityError) -> Response:
    return refused(scope, 429, late.message, late.remedy, code="rate_limit_exceeded", headers=_later(late))


def _later(late: CapacityError) -> dict[str, str]:
    return {"retry-after": str(late.retry_after_s)}


def _form(problem: str, late: CapacityError | None = None) -> Response:
    """The page that asks for the key. Whose pages may show it in a frame `Origins` says, which is in front of this."""
    page = Path(__file__).with_name("key.html").read_text(encoding="utf-8")
    policy = "default-src 'none'; style-src 'unsafe-inline'; form-action 'self'"
    headers = {"content-security-policy": policy, "cache-control": "no-store", "referrer-policy": "same-origin"}
    headers |= _later(late) if late else {}
    return HTMLResponse(page.replace("%PROBLEM%", escape(problem)), 429 if late else 401, headers)


def _kind(request: Request) -> str:
    return request.headers.get("content-type", "").partition(";")[0].strip().lower()


def _inside(scope: Any) -> str:
    return scope["path"].removeprefix(scope.get("root_path", "")).rstrip("/")
