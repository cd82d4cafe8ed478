"""Allow-list of host names and origins of a server, as protection from DNS rebinding and CSRF.

A browser sends requests for any page that is open in it. The header `Host` is the name by which the page addressed the
server; in a DNS rebinding attack it is the attacker's name. The header `Origin` names the site whose page sends the
request. Programs send no `Origin` and are not affected.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from ipaddress import ip_address
from typing import Any
from urllib.parse import urlsplit

from starlette.responses import JSONResponse, PlainTextResponse, Response

from workbench.client.keys import is_loopback
from workbench.core.errors import ParameterError
from workbench.service.checks import set_error_option

ANY = "*"
HOSTS, ORIGINS = "WORKBENCH_ALLOWED_HOSTS", "WORKBENCH_ALLOWED_ORIGINS"
"""Environment variables with defaults of the options `--allowed-host` and `--allowed-origin`, separated by commas."""
READS = ("GET", "HEAD")
FORM = "application/x-www-form-urlencoded"
PORTS = {"http": "80", "https": "443", "ws": "80", "wss": "443"}


@dataclass(frozen=True)
class Allowlist:
    """Allowed host names of a server, and origins whose pages may call it.

    Attributes:
        hosts: allowed host names without ports, in lower case; `*.example.org` allows any subdomain, `*` any name.
        origins: allowed origins as `scheme://name[:port]`; `*` allows any. The server's own pages need no entry.
        any_address: whether every IP address is allowed as a host name, for a server that listens on all addresses. DNS
            rebinding needs a name, so an IP address as `Host` is safe.
        frames: whether pages of other origins may show the server's pages in a frame, at the risk of clickjacking.
        configured_hosts: entries of `hosts` from an option, an environment variable or the root path.
    """

    hosts: tuple[str, ...] = ("localhost", "127.0.0.1", "[::1]")
    origins: tuple[str, ...] = ()
    any_address: bool = False
    frames: bool = False
    configured_hosts: tuple[str, ...] = ()

    def allows_host(self, host: str) -> bool:
        """Return whether the host name in the `Host` header of a request is allowed."""
        name = split(host)[0]
        if ANY in self.hosts or name in self.hosts or (self.any_address and is_address(name)):
            return True
        return any(name.endswith(pattern[1:]) for pattern in self.hosts if pattern.startswith("*."))

    def allows_origin(self, origin: str, host: str) -> bool:
        """Return whether a page of `origin` may send requests to `host`.

        The server's own pages may, and so may pages of allowed origins.
        """
        if ANY in self.origins or origin in self.origins:
            return True
        scheme, _, rest = origin.partition("://")
        if scheme not in ("http", "https") or not rest:
            return False  # "null": a file, or a frame without an origin
        name, port = split(rest)
        own_name, own_port = split(host)
        default = PORTS[scheme]
        if name == own_name and (port or default) == (own_port or default):
            return True
        # A proxy may use another host name than the browser does, so the configured names count as well.
        return name in self.own_names and port in ("", default)

    @property
    def allows_frames(self) -> bool:
        """Return whether pages of other sites may show the server's pages in a frame.

        The entry `*` allows requests but no frames. An origin with the server's own name counts as the same site.
        """
        others = (page for page in self.origins if page != ANY)
        return self.frames or any(
            ANY in self.hosts or not self.allows_host(page.partition("://")[2]) for page in others
        )

    @property
    def own_names(self) -> tuple[str, ...]:
        """Return the configured host names that can only mean this server: no patterns, IP addresses or `localhost`.

        A proxy may serve these names on the default port.
        """
        return tuple(
            name for name in self.configured_hosts if name != "localhost" and "*" not in name and not is_address(name)
        )


def make_allowlist(
    listen_address: str,
    hosts: Iterable[str] = (),
    origins: Iterable[str] = (),
    env: Mapping[str, str] | None = None,
    public: bool = False,
) -> Allowlist:
    """Return the allow-list of a server.

    The list contains the names of this machine: `localhost`, the address that the server listens on, and the host name
    if other machines can reach the server. It also contains the names of a Hugging Face Space (`SPACE_HOST`), of a
    proxy (a full URL in `GRADIO_ROOT_PATH`) and of Colab's proxies. The proxy of a Space forwards the browser's `Host`
    (seen in a log in qdonnars/ohmywind#8).

    Args:
        listen_address: address that the server listens on.
        hosts: additional allowed host names.
        origins: additional origins whose pages may send requests.
        env: environment variables; by default this process's.
        public: whether the server is open to everybody. Then other sites may show its pages in a frame, as the Hub
            does.

    Raises:
        ParameterError: a host name or an origin is invalid; `option` names the option.
    """
    env = os.environ if env is None else env
    listen_address = listen_address.strip("[]").lower()
    names = ["localhost", "127.0.0.1", "[::1]", f"[{listen_address}]" if ":" in listen_address else listen_address]
    if not is_loopback(listen_address):
        names += [socket.gethostname().lower(), f"{socket.gethostname().lower()}.local"]
    space = [name.strip().lower() for name in env.get("SPACE_HOST", "").split(",") if name.strip()]
    if env.get("SPACE_ID") and not space:
        names.append(ANY)  # the Space's proxy routes by name, so only the Space's own name arrives here
    if env.get("COLAB_RELEASE_TAG"):
        names += ["*.googleusercontent.com", "*.colab.dev"]
    root = urlsplit(env.get("GRADIO_ROOT_PATH", ""))
    with set_error_option("allowed-host"):
        configured = [*map(_name, (*hosts, *_listed(env.get(HOSTS, "")))), *([root.hostname] if root.hostname else [])]
    with set_error_option("allowed-origin"):
        pages = [_origin(text) for text in (*origins, *_listed(env.get(ORIGINS, "")))]
    pages += [f"{root.scheme}://{root.netloc}".lower()] if root.hostname else []
    return Allowlist(
        hosts=tuple(dict.fromkeys([*names, *space, *configured])),
        origins=tuple(dict.fromkeys([*pages, *(f"https://{name}" for name in space)])),
        any_address=listen_address in ("0.0.0.0", "::", ""),
        frames=public,
        configured_hosts=tuple(dict.fromkeys([*space, *configured])),
    )


def is_address(name: str) -> bool:
    """Return whether a host name is an IP address. An IPv6 address is in brackets, as in URLs."""
    if ":" in name and not name.startswith("["):
        return False
    try:
        return bool(ip_address(name.strip("[]")))
    except ValueError:
        return False


def split(host: str) -> tuple[str, str]:
    """Split the value of a `Host` header into name and port; the port may be empty.

    Example:
        >>> split("LocalHost.:7860"), split("[::1]:80"), split("example.org")
        (('localhost', '7860'), ('[::1]', '80'), ('example.org', ''))
    """
    name, colon, port = host.lower().rpartition(":")
    if not colon or not (port.isdigit() or port == ""):
        name, port = host.lower(), ""
    return name.removesuffix("."), port


def _listed(text: str) -> list[str]:
    return [part.strip() for part in text.split(",") if part.strip()]


def _name(text: str) -> str:
    name, port = split(text.strip())
    if "/" in name or not name or " " in name or port:
        raise ParameterError(f"{text!r} is not a host name.", "For example: example.org, without http:// and port.")
    return name


def _origin(text: str) -> str:
    parts = urlsplit(text.strip().rstrip("/"))
    if text.strip() == ANY:
        return ANY
    if parts.scheme not in ("http", "https") or not parts.netloc or parts.path or parts.query:
        raise ParameterError(
            f"{text!r} is not a web origin.", "For example: https://example.org, or http://localhost:3000."
        )
    name, port = split(parts.netloc)
    return f"{parts.scheme}://{name}" + (f":{port}" if port and port != PORTS[parts.scheme] else "")


class Origins:
    """ASGI middleware that refuses requests from origins or for host names that are not allowed.

    It comes before the check of the API key and before Gradio's middleware. It removes the header `Origin` from the
    requests that it passes on, so that later code does not check origins again.

    Args:
        app: next ASGI application.
        allow: the allow-list.
        forms: whether HTML forms are allowed as bodies besides JSON, for the login form of `workbench.server.keys`.
    """

    def __init__(self, app: Any, allow: Allowlist, forms: bool = False) -> None:
        self.app = app
        self.allow = allow
        self.forms = forms

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Pass a request on if its host name and origin are allowed; otherwise refuse it with the reason."""
        if scope["type"] not in ("http", "websocket"):
            return await self.app(scope, receive, send)
        headers = _headers(scope)
        origin = headers.get("origin", [""])[0]
        refusal = self._refusal(scope, headers, origin)
        if scope["type"] == "websocket":
            if refusal is not None:
                return await send({"type": "websocket.close", "code": 1008})
            return await self.app(_without_origin(scope), receive, send)
        if refusal is None and scope["method"] == "OPTIONS" and "access-control-request-method" in headers:
            refusal = Response(status_code=204, headers=self._preflight(headers))
        extra_headers = self._answer_headers(headers, origin)

        async def answer(message: Any) -> None:
            if message["type"] == "http.response.start":
                pairs = [(name.encode(), value.encode("latin-1")) for name, value in extra_headers.items()]
                message = message | {"headers": [*message.get("headers", []), *pairs]}
            await send(message)

        await (refusal or self.app)(_without_origin(scope), receive, answer)
        return None

    def _refusal(self, scope: Any, headers: dict[str, list[str]], origin: str) -> Response | None:
        """Return the answer that refuses a request; None if it is allowed."""
        hosts = headers.get("host", [])
        host = hosts[0] if len(hosts) == 1 else ""
        if not self.allow.allows_host(host):
            name = split(host)[0][:100] or "no name"
            return refusal_response(
                scope,
                403,
                f"The host name {name} is not allowed for this workbench.",
                f"Start the server with --allowed-host {name}.",
            )
        method = scope.get("method", "GET")
        if origin and not self.allow.allows_origin(_tidy(origin), host):
            return _elsewhere(scope, origin)
        if not origin and _is_cross_origin(headers) and not _is_navigation(headers, method):
            return _elsewhere(scope, "another site")
        if scope["type"] == "http" and method not in (*READS, "OPTIONS") and not self._is_declared(headers):
            return refusal_response(
                scope, 415, "The request is not declared as JSON.", "Send content-type: application/json."
            )
        return None

    def _is_declared(self, headers: dict[str, list[str]]) -> bool:
        """Return whether the body of a request has an allowed content type.

        Pages of other sites cannot send this content type without a CORS preflight.
        """
        kind = headers.get("content-type", [""])[0].partition(";")[0].strip().lower()
        return kind == "application/json" or (kind == FORM and self.forms)

    def _answer_headers(self, headers: dict[str, list[str]], origin: str) -> dict[str, str]:
        """Return the headers of every HTTP answer: CORS for allowed origins, and the frame policy."""
        answer_headers = {}
        if not self.allow.frames:
            local = "http://localhost:* http://127.0.0.1:*"  # a notebook on this machine
            origins = "" if ANY in self.allow.origins else "".join(f" {page}" for page in self.allow.origins)
            answer_headers["content-security-policy"] = f"frame-ancestors 'self' {local}{origins}"
        tidy = _tidy(origin)
        if tidy in self.allow.origins:
            answer_headers |= {"access-control-allow-credentials": "true"}
        if origin and (tidy in self.allow.origins or ANY in self.allow.origins):
            answer_headers |= {"access-control-allow-origin": origin, "vary": "Origin"}
        return answer_headers

    def _preflight(self, headers: dict[str, list[str]]) -> dict[str, str]:
        """Return the CORS preflight headers for an allowed origin."""
        requested = ", ".join(headers.get("access-control-request-headers", []))
        return {
            "access-control-allow-methods": "GET, HEAD, POST, PUT, PATCH, DELETE",
            "access-control-allow-headers": requested,
            "access-control-max-age": "600",
        }


def refusal_response(
    scope: Any, status: int, message: str, remedy: str, code: str | None = None, headers: dict[str, str] | None = None
) -> Response:
    """Return the answer to a refused request: plain text for a browser, a JSON error for a program."""
    if "text/html" in "".join(_headers(scope).get("accept", [])):
        return PlainTextResponse(f"{message} {remedy}\n", status, headers)
    error = {"message": message, "type": "invalid_request_error", "param": None, "code": code, "remedy": remedy}
    return JSONResponse({"error": error, "detail": message}, status, headers)


def _elsewhere(scope: Any, origin: str) -> Response:
    return refusal_response(
        scope,
        403,
        f"Pages of {origin[:100]} may not send requests to this workbench.",
        "Start the server with --allowed-origin ORIGIN.",
    )


def _headers(scope: Any) -> dict[str, list[str]]:
    values: dict[str, list[str]] = {}
    for name, value in scope["headers"]:
        values.setdefault(name.decode("latin-1").lower(), []).append(value.decode("latin-1"))
    return values


def _without_origin(scope: Any) -> Any:
    return scope | {"headers": [(name, value) for name, value in scope["headers"] if name.lower() != b"origin"]}


def _tidy(origin: str) -> str:
    return origin.strip().lower()


def _is_cross_origin(headers: dict[str, list[str]]) -> bool:
    """Return whether the browser's header `Sec-Fetch-Site` marks a request as cross-origin.

    Requests for images and scripts have no header `Origin`.
    """
    return headers.get("sec-fetch-site", [""])[0] in ("cross-site", "same-site")


def _is_navigation(headers: dict[str, list[str]], method: str) -> bool:
    """Return whether a request is a navigation: a browser opens a page, by a link or in a frame."""
    return method in READS and headers.get("sec-fetch-mode", [""])[0] == "navigate"
