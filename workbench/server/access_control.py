"""Access control of a server: client addresses, host names, allowed origins, API key, and the machine's own user.

The app and `serve` share it, with the same options: `AccessControl.wrap` wraps the application that is served.
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
"""Scope entry of a request to an `open` server: whether it may come from this machine's user."""


def is_user() -> bool:
    """Return whether the current request may come from this machine's user; true outside of requests.

    Gradio's queue (runs, sweeps) runs calls in another context, which counts as no request: there use `is_user_scope`
    with the request's scope.
    """
    return _USER.get()


def is_user_scope(scope: Mapping[str, Any]) -> bool:
    """Return whether a request may come from this machine's user, as its scope records; True without such a record."""
    return scope.get(USER, True)


@dataclass(frozen=True)
class AccessControl:
    """Access control of a server.

    Attributes:
        allow: host names of the server, and origins whose pages may call it.
        key: API key that requests need; None: requests need no key.
        open: whether other machines may reach the private server without a key. Then the data of
            this machine's user is shown only to requests from this machine that did not come through a proxy.
        shared: whether the user gave the server host names or trusted proxies. Then a request from this machine may be
            from a proxy that sends no header, so a request counts as the user's only if it uses a loopback host name,
            and never if there are trusted proxies.
        trusted: proxies whose forwarding headers are trusted; see `workbench.server.callers`.
        public: whether the server is open to everybody.
    """

    allow: Allowlist = field(default_factory=Allowlist)
    key: str | None = None
    open: bool = False
    trusted: tuple[str, ...] = ()
    public: bool = False
    shared: bool = False

    def wrap(self, app: Any) -> Any:
        """Return the ASGI application with the access control around it."""
        app = LocalUserMiddleware(app, self.is_from_user) if self.open else app
        app = Keys(app, self.key, self.allow.allows_frames) if self.key else app
        return ClientAddressMiddleware(Origins(app, self.allow, forms=self.key is not None), self.trusted)

    def is_from_user(self, scope: Any) -> bool:
        """Return whether a request may come from this machine's user."""
        if not self.open:
            return True
        names = [value.decode("latin-1") for name, value in scope.get("headers", ()) if name.lower() == b"host"]
        is_local = len(names) == 1 and is_loopback(split(names[0])[0])
        return is_from_here(scope) and not (self.shared and (self.trusted or not is_local))

    def is_for_others(self, host: str) -> bool:
        """Return whether other users may reach a server at `host`, so that its logs must omit prompts and texts."""
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
    """ASGI middleware that records whether a request may come from this machine's user.

    Args:
        app: next ASGI application.
        is_users: function that decides this from a request's scope.
    """

    def __init__(self, app: Any, is_users: Callable[[Any], bool]) -> None:
        self.app, self.is_users = app, is_users

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Record whether a request may come from this machine's user, in its scope and context; pass it on."""
        is_from_user = self.is_users(scope)
        token = _USER.set(is_from_user)
        try:
            await self.app(scope | {USER: is_from_user}, receive, send)
        finally:
            _USER.reset(token)


def is_from_here(scope: Any) -> bool:
    """Return whether a request comes from this machine and has no header of a proxy.

    A proxy on this machine that adds no header and sends a loopback name as `Host` looks like the user. Configure it to
    send `X-Forwarded-For`, or give the server a key.
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
        hosts: further host names, see `workbench.server.origins.make_allowlist`.
        origins: further origins whose pages may call the server.
        key: API key; None: the key in the environment, if set.
        trusted: trusted proxies; empty: the proxies in the environment.
        env: environment variables; by default this process's.
        public: whether the server is open to everybody; true on every Space.

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
