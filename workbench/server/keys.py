"""API key of a server: programs send it with each request, people type it once into a form.

Without the key, only `/health` and `/ready` answer, and only with the status.
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
from workbench.server.origins import FORM, READS, refusal_response
from workbench.service.limits import Limits
from workbench.service.rate_limiter import RateLimiter
from workbench.service.users import user_key

SHORT = 16
"""Minimum length of a key that cannot be guessed, in characters."""
MAX_WRONG_KEYS = 10
"""Maximum number of wrong keys of one address per minute; further ones are refused unchecked."""
OPEN_PATHS = ("/health", "/ready", "/gradio_api/startup-events")
"""Paths that need no key. Gradio itself calls the last one while it starts; its answer is true or false."""
FORM_BYTES = 4096
STAY_S = 30 * 24 * 3600
"""Lifetime of a browser's cookie, in seconds."""
UNAUTHENTICATED = "workbench.stranger"
"""Scope entry of a request that came without the key."""
_SALT = secrets.token_bytes(32)


class Keys:
    """ASGI middleware that refuses requests without the key.

    The key is sent as `Authorization: Bearer KEY`, as by OpenAI's clients, or as `X-Api-Key: KEY`. A browser gets a
    form and then a cookie, which scripts cannot read and other sites cannot use: see `_cookie_flags`. The cookie is an
    HMAC derived from the key: it becomes invalid when the key changes, and does not reveal it. For a short key it also
    depends on a secret of this process; otherwise cookies could be computed from guessed keys, with no limit on tries.

    An address that has sent too many wrong keys has to wait. A long correct key is always accepted: it cannot be
    guessed, and a client that shares its address with an attacker must not be locked out. A short correct key has to
    wait as well, or guessing could continue; a browser with the cookie does not have to wait.

    Args:
        app: next ASGI application.
        key: the API key.
        framed: whether pages of other sites may show the server's pages in a frame.
    """

    def __init__(self, app: Any, key: str, framed: bool = False) -> None:
        self.app, self.framed = app, framed
        self.key = key.encode()
        self.is_long = len(key) >= SHORT
        self._seed = self.key if self.is_long else _SALT + self.key
        self.cookie = f"workbench-{self._derived('name')[:8]}"  # another app on this host gets another cookie name
        self.wrong_key_limiter = RateLimiter(Limits(requests_per_minute=MAX_WRONG_KEYS))

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Pass on a request with the key or cookie, process a login form, or ask for the key."""
        if scope["type"] not in ("http", "websocket"):
            return await self.app(scope, receive, send)
        request = Request(scope, receive) if scope["type"] == "http" else None
        if request is not None and _kind(request) == FORM:  # the login form is the only one
            return await (await self._login(request))(scope, receive, send)
        keys = _sent_keys(scope)
        is_authorised, limit_error = self._holds(scope), None
        if not is_authorised and any(keys):
            is_authorised, limit_error = self._try(scope, *keys)
        if is_authorised:
            return await self.app(scope, receive, send)
        if request is None:
            return await send({"type": "websocket.close", "code": 1008})
        if request.method in READS and _inside(scope) in OPEN_PATHS:
            return await self.app(scope | {UNAUTHENTICATED: True}, receive, send)
        return await (_wait(scope, limit_error) if limit_error else self._ask(request))(scope, receive, send)

    def _holds(self, scope: Any) -> bool:
        """Return whether a request has the cookie derived from the key. The comparison takes constant time."""
        cookies = b";".join(value for name, value in scope["headers"] if name.lower() == b"cookie")
        cookie_parts = [crumb.strip().partition(b"=") for crumb in cookies.split(b";")]
        values = [value for name, _, value in cookie_parts if name == self.cookie.encode()]
        matches = [hmac.compare_digest(value, self._derived("cookie").encode()) for value in values]
        return any(matches)

    def _try(self, scope: Any, *given: bytes) -> tuple[bool, CapacityError | None]:
        """Check keys in constant time, and count wrong ones.

        Returns:
            Whether one of the given keys is the server's key; and the error, if the address has to wait.
        """
        matches = [self._is(candidate) for candidate in given]
        is_known = any(matches)
        if is_known and self.is_long:
            return True, None
        try:
            self.wrong_key_limiter.admit_request(user_key((scope.get("client") or ("",))[0]), counted=not is_known)
        except CapacityError as late:
            message = "Too many wrong API keys came from your address."
            return False, CapacityError(message, late.remedy, late.retry_after_s)
        return is_known, None

    def _is(self, given: bytes) -> bool:
        """Return whether a text equals the key. Comparing digests hides even the key's length from timing attacks."""
        return hmac.compare_digest(hashlib.sha256(given).digest(), hashlib.sha256(self.key).digest())

    def _derived(self, purpose: str) -> str:
        return hmac.new(self._seed, f"workbench browser {purpose}".encode(), hashlib.sha256).hexdigest()

    async def _login(self, request: Request) -> Response:
        """Answer a login form: redirect to the requested page with a cookie, or show the form again."""
        body = b""
        async for chunk in request.stream():
            body += chunk
            if len(body) > FORM_BYTES:
                return self._ask(request)
        key = parse_qs(body.decode("utf-8", "replace")).get("key", [""])[0]
        is_known, limit_error = self._try(request.scope, key.strip().encode())
        if not is_known:
            return _form(
                f"{limit_error.message} {limit_error.remedy}" if limit_error else "This API key is wrong.", limit_error
            )
        last_segment = request.scope.get("raw_path", b"").decode("latin-1").rpartition("/")[2]
        query = f"?{request.url.query}" if request.url.query else ""
        answer = RedirectResponse(f"./{last_segment}{query}", 303)  # relative, because a proxy may add a path prefix
        flags = f"HttpOnly; Max-Age={STAY_S}; Path=/; {self._cookie_flags(request)}"
        answer.headers.append("set-cookie", f"{self.cookie}={self._derived('cookie')}; {flags}")
        return answer

    def _cookie_flags(self, request: Request) -> str:
        """Return the cookie attributes that decide with which requests a browser sends the cookie.

        It is sent with requests of the server's own pages. If other sites may show these in a frame (as the Hub shows a
        Space), it is also sent inside such a frame, which needs https. "Partitioned" gives each embedding site its
        own cookie, so that a login inside the Hub's page is not valid inside another site's. Browsers without
        partitioned cookies send it with requests of any site; `workbench.server.origins` refuses such requests if they
        could change something.
        """
        if request.url.scheme != "https":
            return "SameSite=Strict"
        return "SameSite=None; Secure; Partitioned" if self.framed else "SameSite=Strict; Secure"

    def _ask(self, request: Request) -> Response:
        if request.method in READS and "text/html" in request.headers.get("accept", ""):
            return _form("")
        return refusal_response(
            request.scope,
            401,
            "This workbench needs an API key.",
            "Send the key as Authorization: Bearer KEY; in Python, use Workbench(url, key=…).",
            code="invalid_api_key",
            headers={"www-authenticate": "Bearer"},
        )


def _sent_keys(scope: Any) -> tuple[bytes, bytes]:
    """Return the keys of a request: from `Authorization: Bearer`, and from `X-Api-Key`."""
    headers = {name.lower(): value for name, value in scope["headers"]}
    scheme, _, value = headers.get(b"authorization", b"").partition(b" ")
    bearer = value.strip() if scheme.lower() == b"bearer" else b""
    return bearer, headers.get(b"x-api-key", b"").strip()


def _wait(scope: Any, late: CapacityError) -> Response:
    return refusal_response(scope, 429, late.message, late.remedy, code="rate_limit_exceeded", headers=_later(late))


def _later(late: CapacityError) -> dict[str, str]:
    return {"retry-after": str(late.retry_after_s)}


def _form(problem: str, late: CapacityError | None = None) -> Response:
    """Return the login page. The outer middleware `Origins` sets which pages may show it in a frame."""
    page = Path(__file__).with_name("key.html").read_text(encoding="utf-8")
    policy = "default-src 'none'; style-src 'unsafe-inline'; form-action 'self'"
    headers = {"content-security-policy": policy, "cache-control": "no-store", "referrer-policy": "same-origin"}
    headers |= _later(late) if late else {}
    return HTMLResponse(page.replace("%PROBLEM%", escape(problem)), 429 if late else 401, headers)


def _kind(request: Request) -> str:
    return request.headers.get("content-type", "").partition(";")[0].strip().lower()


def _inside(scope: Any) -> str:
    return scope["path"].removeprefix(scope.get("root_path", "")).rstrip("/")
