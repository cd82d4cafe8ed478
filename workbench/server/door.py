"""The door of a server: who asks, names it answers to, pages that may ask, a key, who is this machine's user.

The app and `serve` have the same, from the same options: whatever is served stands behind `Door.before`.
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
from workbench.server.callers import Callers
from workbench.server.keys import SHORT, Keys
from workbench.server.origins import Allowed, Origins, allowed, split
from workbench.service.checks import about

_USER: ContextVar[bool] = ContextVar("workbench_user", default=True)
_PROXIES = (b"via", b"x-real-ip", b"cf-connecting-ip")
USER = "workbench.user"
"""Entry of the scope of a request that came through an open door: whether it may come from this machine's user."""


def is_user() -> bool:
    """Whether the request that is being answered may come from this machine's user; true outside of requests.

    What Gradio answers from its queue (runs, sweeps) is in another context, and counts as outside: ask `marked` there,
    with the request's scope.
    """
    return _USER.get()


def marked(scope: Mapping[str, Any]) -> bool:
    """The same of a request by its scope, wherever it is answered; true where no open door stands in front."""
    return scope.get(USER, True)


@dataclass(frozen=True)
class Door:
    """What stands in front of a server.

    Attributes:
        allow: names it answers to, pages that may ask.
        key: what a request has to bring; None: nothing.
        open: others may reach it and need no key, though it is not made for them: what belongs to this machine's user
            is shown to requests from this machine only, and to those of a proxy never.
        shared: it has names that somebody gave it, or proxies: requests from this machine may be a proxy's that says
            nothing of itself, so none counts as the user's that comes under another name than this machine's, and with
            trusted proxies none at all.
        trusted: proxies that are believed when they say who asks; see `workbench.server.callers`.
        public: strangers are meant to use it.
    """

    allow: Allowed = field(default_factory=Allowed)
    key: str | None = None
    open: bool = False
    trusted: tuple[str, ...] = ()
    public: bool = False
    shared: bool = False

    def before(self, app: Any) -> Any:
        """The same ASGI application behind this door."""
        app = Users(app, self.is_users) if self.open else app
        app = Keys(app, self.key, self.allow.framed) if self.key else app
        return Callers(Origins(app, self.allow, forms=self.key is not None), self.trusted)

    def is_users(self, scope: Any) -> bool:
        """Whether a request may come from this machine's user."""
        if not self.open:
            return True
        names = [value.decode("latin-1") for name, value in scope.get("headers", ()) if name.lower() == b"host"]
        is_local = len(names) == 1 and is_loopback(split(names[0])[0])
        return is_from_here(scope) and not (self.shared and (self.trusted or not is_local))

    def is_for_others(self, host: str) -> bool:
        """Whether others than this machine's user may ask a server that listens there: its logs then hold no words."""
        return self.public or self.shared or self.key is not None or not is_loopback(host)

    def warnings(self, host: str) -> list[str]:
        """What whoever starts a server should know of it."""
        if self.key is None and not self.public and not is_loopback(host):
            return [f"Everybody who can reach {host} can use this server; --api-key or {KEY} keeps strangers out."]
        if self.key is None and not self.public and self.shared:
            return [f"Who comes by another name or a proxy needs no key; --api-key or {KEY} keeps strangers out."]
        if self.key is not None and len(self.key) < SHORT:
            return [f"The key has {len(self.key)} characters: it could be found by trying. Use {SHORT} or more."]
        return []


class Users:
    """ASGI middleware: notes whether a request comes from this machine's user, as `is_users` says."""

    def __init__(self, app: Any, is_users: Callable[[Any], bool]) -> None:
        self.app, self.is_users = app, is_users

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Pass a request on."""
        mine = self.is_users(scope)
        token = _USER.set(mine)
        try:
            await self.app(scope | {USER: mine}, receive, send)
        finally:
            _USER.reset(token)


def is_from_here(scope: Any) -> bool:
    """Whether a request comes from the machine that serves, and not through a proxy that says so in any usual way.

    A proxy on this machine that adds no header and passes on one of this machine's names as `Host` looks like its user:
    it has to be set up to say who asks, or the server needs a key.
    """
    names = {name.lower() for name, _ in scope.get("headers", ())}
    try:
        address = ip_address((scope.get("client") or ("",))[0])
    except ValueError:
        return False
    mapped = getattr(address, "ipv4_mapped", None)
    return (mapped or address).is_loopback and not any(b"forwarded" in name or name in _PROXIES for name in names)


def door(
    host: str,
    hosts: Iterable[str] = (),
    origins: Iterable[str] = (),
    key: str | None = None,
    trusted: Iterable[str] = (),
    env: Mapping[str, str] | None = None,
    public: bool = False,
) -> Door:
    """The door of a server, from its options.

    Args:
        host: the address it listens on.
        hosts: see `workbench.server.origins.allowed`, as for `origins` and `public`.
        origins: pages of other servers that may ask.
        key: the key; None: that of the environment, if there is one.
        trusted: proxies that may say who asks; none: those of the environment.
        env: the environment; by default this process's.
        public: strangers are meant to use it, as they are on every Space.

    Raises:
        ParameterError: something is no name, no origin, no key or no address; `option` says which.
    """
    env = os.environ if env is None else env
    if key is not None and not key.strip():  # as from a variable that is not set: no reason to let everybody in
        with about("api-key"):
            raise ParameterError("The key is empty.", "Give one, or leave the option out.")
    key = (env.get(KEY, "") if key is None else key).strip() or None
    proxies = tuple(trusted) or callers.from_environment(env)
    callers.networks(proxies)
    public = public or bool(env.get("SPACE_ID"))
    allow = allowed(host, hosts, origins, env, public)
    shared = bool(proxies or allow.given)  # "any" of a Space and Colab's names are not given
    # Colab's own proxy lets its user in only; who comes by another name or through another proxy is anybody.
    mine = is_loopback(host) and bool(env.get("COLAB_RELEASE_TAG")) and not shared
    return Door(allow, key, open=key is None and not (public or mine), trusted=proxies, public=public, shared=shared)
