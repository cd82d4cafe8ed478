"""Who asks: the address a request comes from, as far as it is known and not claimed.

A connection has an address; a header says whatever its sender wrote. `X-Forwarded-For` is therefore read only where
the connection comes from a proxy that is trusted, and from its right: each proxy appends whom it heard, so the first
entry from the right that is no trusted proxy is the last one that somebody trusted has seen. What stands left of it is
the visitor's own invention.

On a Hugging Face Space the connection comes from the Space's own proxy, at an address of its private network (as
10.16.3.80 in embeddings-benchmark/mteb#4754), and nothing else reaches the container; so proxies at private addresses
are trusted there, and visitors have public ones. That the proxy appends, rather than passes a visitor's header on, we
have not seen with our own eyes: Hugging Face's chat-ui counts its proxies from the right too
(huggingface/chat-ui#1105).
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable, Mapping, Sequence
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network
from typing import Any

from workbench.core.errors import ParameterError

logger = logging.getLogger("workbench.server")

VARIABLE = "WORKBENCH_TRUSTED_PROXY"
"""Environment variable with trusted proxies, commas between them: the default of `--trusted-proxy`."""
PRIVATE = ("10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "100.64.0.0/10", "127.0.0.0/8", "::1", "fc00::/7")
"""Where a Space's own proxy is."""
UVICORNS = "FORWARDED_ALLOW_IPS"
"""uvicorn's own variable for the same. It believes every process of this machine by default, and with "*" what stands
leftmost; whoever starts a server empties it."""

Network = IPv4Network | IPv6Network


def from_environment(env: Mapping[str, str] | None = None) -> tuple[str, ...]:
    """The proxies that the environment names; those of a Space where it is one."""
    env = os.environ if env is None else env
    named = tuple(name.strip() for name in env.get(VARIABLE, "").split(",") if name.strip())
    return named or (PRIVATE if env.get("SPACE_ID") else ())


def networks(proxies: Iterable[str]) -> tuple[Network, ...]:
    """Addresses and networks, as they are written for `--trusted-proxy`.

    Raises:
        ParameterError: one is neither.

    Example:
        >>> networks(["10.0.0.0/8", "::1"])
        (IPv4Network('10.0.0.0/8'), IPv6Network('::1/128'))
    """
    return tuple(_network(proxy.strip()) for proxy in proxies)


def _network(proxy: str) -> Network:
    try:
        return ip_network(proxy, strict=False)
    except ValueError:
        problem = ParameterError(f"{proxy!r} is not an address.", "For example: 127.0.0.1, or 10.0.0.0/8.")
        problem.option = "trusted-proxy"
        raise problem from None


def caller_of(peer: str, forwarded: Sequence[str], trusted: Sequence[Network]) -> str:
    """The address that a request comes from: the peer's, or what trusted proxies say about it.

    Args:
        peer: other end of the connection.
        forwarded: the values of all `X-Forwarded-For` headers, in their order.
        trusted: proxies that are believed.

    Example:
        >>> near = networks(["10.0.0.0/8"])
        >>> caller_of("10.0.0.7", ["6.6.6.6, 1.2.3.4, 10.0.0.9"], near)
        '1.2.3.4'
        >>> caller_of("1.2.3.4", ["6.6.6.6"], near)
        '1.2.3.4'
    """
    said = [entry.strip() for value in forwarded for entry in value.split(",") if entry.strip()]
    seen = peer
    while said and _is_in(seen, trusted):
        entry = _bare(said.pop())
        if _address(entry) is None:
            break  # a trusted proxy names nobody: the proxy itself is all that is known
        seen = entry
    return seen


class Callers:
    """ASGI middleware that gives every request the address it comes from, for everybody behind it.

    Args:
        app: what is behind it.
        trusted: proxies that are believed, as addresses or networks.
    """

    def __init__(self, app: Any, trusted: Sequence[str] = ()) -> None:
        self.app = app
        self.trusted = networks(trusted)
        self._warned = False

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Pass a request on with its address."""
        if scope["type"] in ("http", "websocket") and scope.get("client"):
            peer, port = scope["client"]
            said = [value.decode("latin-1") for name, value in scope["headers"] if name == b"x-forwarded-for"]
            if said and not self._warned and not _is_in(peer, self.trusted):
                self._warned = True
                logger.warning(
                    "A proxy that is not trusted sends X-Forwarded-For: all its visitors count as one address. "
                    "--trusted-proxy names one that is."
                )
            address = caller_of(peer, said, self.trusted)
            scope = scope | {"client": (address, port if address == peer else 0)}
            if _is_in(peer, self.trusted):
                scope |= _scheme(scope)
        await self.app(scope, receive, send)


def _scheme(scope: Any) -> dict[str, str]:
    """The scheme that a trusted proxy was asked by, for links to the app itself."""
    said = dict(scope["headers"]).get(b"x-forwarded-proto", b"").decode("latin-1").strip()
    if said not in ("http", "https"):
        return {}
    return {"scheme": said.replace("http", "ws") if scope["type"] == "websocket" else said}


def _bare(entry: str) -> str:
    """An entry of the header without its port: `1.2.3.4:5`, `[2001:db8::1]:5`."""
    if entry.startswith("["):
        return entry[1:].partition("]")[0]
    return entry.partition(":")[0] if entry.count(":") == 1 else entry


def _address(text: str) -> IPv4Address | IPv6Address | None:
    """An address; of an IPv4 one inside an IPv6 one, the former. None: it is no address."""
    try:
        found = ip_address(text)
    except ValueError:
        return None
    return (isinstance(found, IPv6Address) and found.ipv4_mapped) or found


def _is_in(text: str, trusted: Sequence[Network]) -> bool:
    found = _address(text)
    return found is not None and any(found in network for network in trusted)
