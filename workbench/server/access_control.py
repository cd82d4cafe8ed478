"""Access control of a server: client addresses, host names, allowed origins, API key, and the local user.

The app and `workbench serve` use it with the same options: `AccessControl.wrap` wraps the ASGI application. The local
user is the person who uses the machine on which the server runs.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from contextvars import ContextVar
from dataclasses import dataclass, field
from ipaddress import ip_address
from typing import Any

from workbench.client.keys import KEY, is_loopback
from workbench.core.errors import ParameterError
from workbench.server import callers
from workbench.server.callers import ClientAddressMiddleware
from workbench.server.keys import SHORT, Keys
from workbench.server.origins import Allowlist, Origins, make_allowlist, split
from workbench.service.checks import set_error_option

_USER: ContextVar[bool] = ContextVar("workbench_user", default=True)
_PROXIES = (b"via", b"x-real-ip", b"cf-connecting-ip")
USER = "workbench.user"
"""Key in the ASGI scope of a request to an `open` server: whether the request may come from the local user."""


def is_user() -> bool:
    """Return whether the current request may come from the user of this machine; True outside of requests.

    Gradio's queue (runs, sweeps) executes calls outside of the request's context. There use `is_user_scope` with the
    request's ASGI scope.
    """
    return _USER.get()


def is_user_scope(scope: Mapping[str, Any]) -> bool:
    """Return whether a request may come from the user of this machine, according to its ASGI scope.

    The result is True if the scope has no entry for this.
    """
    return scope.get(USER, True)


@dataclass(frozen=True)
class AccessControl:
    """Access control of a server.

    Attributes:
        allow: host names of the server, and origins whose pages may call it.
        key: API key that every request must contain; None: requests need no key.
        open: whether other machines may reach a private server without a key. If so, the data of the user of this
            machine is shown only in answers to requests from this machine that did not come through a proxy.
        shared: whether host names or trusted proxies were configured for the server. Then a request from this machine
            may come from a proxy that sends no header. So a request counts as one of the local user only if it uses a
            loopback host name, and never if there are trusted proxies.
        trusted: addresses of proxies whose forwarding headers are trusted; see `workbench.server.callers`.
        public: whether the server is open to everybody.
    """

    allow: Allowlist = field(default_factory=Allowlist)
    key: str | None = None
    open: bool = False
    trusted: tuple[str, ...] = ()
    public: bool = False
    shared: bool = False

    def wrap(self, app: Any) -> Any:
        """Return an ASGI application wrapped in the middleware of the access control."""
        app = LocalUserMiddleware(app, self.is_from_user) if self.open else app
        app = Keys(app, self.key, self.allow.allows_frames) if self.key else app
        return ClientAddressMiddleware(Origins(app, self.allow, forms=self.key is not None), self.trusted)

    def is_from_user(self, scope: Any) -> bool:
        """Return whether a request may come from the user of this machine."""
        if not self.open:
            return True
        names = [value.decode("latin-1") for name, value in scope.get("headers", ()) if name.lower() == b"host"]
        is_local = len(names) == 1 and is_loopback(split(names[0])[0])
        return is_from_here(scope) and not (self.shared and (self.trusted or not is_local))

    def is_for_others(self, host: str) -> bool:
        """Return whether other people may reach a server at `host`; its logs must then omit prompts and texts."""
        return self.public or self.shared or self.key is not None or not is_loopback(host)

    def warnings(self, host: str) -> list[str]:
        """Return warnings about weak access control, for the person who starts the server."""
        if self.key is None and not self.public and not is_loopback(host):
            return [
                f"Everybody who can reach {host} can use this server; restrict access with --api-key or the "
                f"variable {KEY}."
            ]
        if self.key is None and not self.public and self.shared:
            return [
                f"Clients that come through a proxy or another host name need no API key; restrict access "
                f"with --api-key or the variable {KEY}."
            ]
        if self.key is not None and len(self.key) < SHORT:
            return [
                f"The API key has only {len(self.key)} characters and could be guessed. Use {SHORT} or more characters."
            ]
        return []


class LocalUserMiddleware:
    """ASGI middleware that records in a request's scope whether the request may come from the user of this machine.

    Args:
        app: next ASGI application.
        is_users: function from a request's scope to whether the request may come from the user of this machine.
    """

    def __init__(self, app: Any, is_users: Callable[[Any], bool]) -> None:
        self.app, self.is_users = app, is_users

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Record in the request's scope and context whether it may come from the local user, and pass it on."""
        is_from_user = self.is_users(scope)
        token = _USER.set(is_from_user)
        try:
            await self.app(scope | {USER: is_from_user}, receive, send)
        finally:
            _USER.reset(token)


def is_from_here(scope: Any) -> bool:
    """Return whether a request comes from this machine and has no header that a proxy adds.

    A proxy on this machine that adds no header and sends a loopback name as `Host` cannot be distinguished from the
    local user. Configure it to send `X-Forwarded-For`, or give the server a key.
    """
    names = {name.lower() for name, _ in scope.get("headers", ())}
    try:
        address = ip_address((scope.get("client") or ("",))[0])
    except ValueError:
        return False
    ipv4 = getattr(address, "ipv4_mapped", None)
    return (ipv4 or address).is_loopback and not any(b"forwarded" in name or name in _PROXIES for name in names)


def make_access_control(
    host: str,
    hosts: Iterable[str] = (),
    origins: Iterable[str] = (),
    key: str | None = None,
    trusted: Iterable[str] = (),
    env: Mapping[str, str] | None = None,
    public: bool = False,
) -> AccessControl:
    """Return the access control of a server, from its options.

    Args:
        host: address that the server listens on.
        hosts: additional allowed host names, see `workbench.server.origins.make_allowlist`.
        origins: additional origins whose pages may call the server.
        key: API key; None: the key in the environment variable, if it is set.
        trusted: trusted proxies; empty: the proxies in the environment variable.
        env: environment variables; by default this process's.
        public: whether the server is open to everybody; always true on a Hugging Face Space.

    Raises:
        ParameterError: a host name, origin, key or address is invalid; `option` names the option.
    """
    env = os.environ if env is None else env
    if key is not None and not key.strip():  # an unset shell variable must not open the server to everybody
        with set_error_option("api-key"):
            raise ParameterError("The API key is empty.", "Give a key, or leave out the option --api-key.")
    key = (env.get(KEY, "") if key is None else key).strip() or None
    proxies = tuple(trusted) or callers.from_environment(env)
    callers.networks(proxies)
    public = public or bool(env.get("SPACE_ID"))
    allow = make_allowlist(host, hosts, origins, env, public)
    shared = bool(proxies or allow.configured_hosts)  # `configured_hosts` excludes the names of Spaces and Colab
    # Colab's own proxy admits only its user; other host names or proxies may admit anybody.
    is_single_user = is_loopback(host) and bool(env.get("COLAB_RELEASE_TAG")) and not shared
    return AccessControl(
        allow, key, open=key is None and not (public or is_single_user), trusted=proxies, public=public, shared=shared
    )
