"""API key of a server: programs send it with each request, people enter it once into a form.

Requests without the key get only the status of the server, from `/health` and `/ready`.
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
"""Minimum length of an API key that cannot be guessed, in characters."""
MAX_WRONG_KEYS = 10
"""Maximum number of wrong API keys from one client address per minute; further keys are refused unchecked."""
OPEN_PATHS = ("/health", "/ready", "/gradio_api/startup-events")
"""URL paths that need no API key. Gradio calls the last one while it starts; its answer is true or false."""
FORM_BYTES = 4096
STAY_S = 30 * 24 * 3600
"""Lifetime in seconds of the cookie that a browser gets after the API key was entered."""
UNAUTHENTICATED = "workbench.stranger"
"""Key in the ASGI scope that marks a request without the API key."""
_SALT = secrets.token_bytes(32)


class Keys:
    """ASGI middleware that refuses requests without the server's API key.

    A program sends the key as `Authorization: Bearer KEY`, as OpenAI's clients do, or as `X-Api-Key: KEY`. A browser
    gets a form and then a cookie, which scripts cannot read and other sites cannot use (`_cookie_flags`). The cookie is
    an HMAC derived from the key: it does not reveal the key, and becomes invalid when the key changes. For a short key
    it also depends on a secret of this process. Otherwise an attacker could compute cookies from guessed keys and try
    them without limit.

    A client address that has sent too many wrong keys has to wait. A long correct key is always accepted: it cannot be
    guessed, and a client that has the same address as an attacker must not be locked out. A short correct key is
    refused during the wait, because otherwise guessing could continue. A browser with the cookie never has to wait.

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
        """Pass on a request that has the API key or the cookie, process a login form, or ask for the key."""
        if scope["type"] not in ("http", "websocket"):
            return await self.app(scope, receive, send)
        request = Request(scope, receive) if scope["type"] == "http" else None
        if request is not None and _kind(request) == FORM:  # the login form is the only one
            return await (await self._login(request))(scope, receive, send)
        keys = _sent_keys(scope)
        is_authorised, limit_error = self._has_cookie(scope), None
        if not is_authorised and any(keys):
            is_authorised, limit_error = self._check_keys(scope, *keys)
        if is_authorised:
            return await self.app(scope, receive, send)
        if request is None:
            return await send({"type": "websocket.close", "code": 1008})
        if request.method in READS and _inside(scope) in OPEN_PATHS:
            return await self.app(scope | {UNAUTHENTICATED: True}, receive, send)
        return await (_wait(scope, limit_error) if limit_error else self._ask(request))(scope, receive, send)

    def _has_cookie(self, scope: Any) -> bool:
        """Return whether a request has the cookie derived from the API key. The comparison takes constant time."""
        cookies = b";".join(value for name, value in scope["headers"] if name.lower() == b"cookie")
        cookie_parts = [crumb.strip().partition(b"=") for crumb in cookies.split(b";")]
        values = [value for name, _, value in cookie_parts if name == self.cookie.encode()]
        matches = [hmac.compare_digest(value, self._derived("cookie").encode()) for value in values]
        return any(matches)

    def _check_keys(self, scope: Any, *given: bytes) -> tuple[bool, CapacityError | None]:
        """Check API keys in constant time, and count wrong keys of the client's address.

        Returns:
            Whether one of the given keys is the server's key; and the error if the address has to wait, else None.
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
        """Return whether a text equals the API key.

        Digests are compared, so that timing reveals nothing about the key, not even its length.
        """
        return hmac.compare_digest(hashlib.sha256(given).digest(), hashlib.sha256(self.key).digest())

    def _derived(self, purpose: str) -> str:
        return hmac.new(self._seed, f"workbench browser {purpose}".encode(), hashlib.sha256).hexdigest()

    async def _login(self, request: Request) -> Response:
        """Answer a submitted login form: set a cookie and redirect to the requested page, or show the form again."""
        body = b""
        async for chunk in request.stream():
            body += chunk
            if len(body) > FORM_BYTES:
                return self._ask(request)
        key = parse_qs(body.decode("utf-8", "replace")).get("key", [""])[0]
        is_known, limit_error = self._check_keys(request.scope, key.strip().encode())
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
        """Return the attributes of the login cookie that decide with which requests a browser sends it.

        The cookie is sent with requests of the server's own pages. If other sites may show these pages in a frame (as
        the Hub shows a Space), the cookie is also sent inside such a frame, which needs https. The attribute
        "Partitioned" gives each embedding site its own cookie, so a login inside the Hub's page is not valid inside
        other sites. Browsers without partitioned cookies send the cookie with requests of any site;
        `workbench.server.origins` refuses such requests if they could change something.
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
    """Return the API keys in a request's headers `Authorization: Bearer` and `X-Api-Key`."""
    headers = {name.lower(): value for name, value in scope["headers"]}
    scheme, _, value = headers.get(b"authorization", b"").partition(b" ")
    bearer = value.strip() if scheme.lower() == b"bearer" else b""
    return bearer, headers.get(b"x-api-key", b"").strip()


def _wait(scope: Any, late: CapacityError) -> Response:
    return refusal_response(scope, 429, late.message, late.remedy, code="rate_limit_exceeded", headers=_later(late))


def _later(late: CapacityError) -> dict[str, str]:
    return {"retry-after": str(late.retry_after_s)}


def _form(problem: str, late: CapacityError | None = None) -> Response:
    """Return the login page. The middleware `Origins` sets which other sites may show it in a frame."""
    page = Path(__file__).with_name("key.html").read_text(encoding="utf-8")
    policy = "default-src 'none'; style-src 'unsafe-inline'; form-action 'self'"
    headers = {"content-security-policy": policy, "cache-control": "no-store", "referrer-policy": "same-origin"}
    headers |= _later(late) if late else {}
    return HTMLResponse(page.replace("%PROBLEM%", escape(problem)), 429 if late else 401, headers)


def _kind(request: Request) -> str:
    return request.headers.get("content-type", "").partition(";")[0].strip().lower()


def _inside(scope: Any) -> str:
    return scope["path"].removeprefix(scope.get("root_path", "")).rstrip("/")
