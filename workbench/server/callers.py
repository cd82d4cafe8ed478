"""Determine the client address of a request from the connection and from trusted proxies only.

A client can write anything into a header, so `X-Forwarded-For` is read only if the connection comes from a trusted
proxy, and from the right: each proxy appends the address of its peer. So the first entry from the right that is not a
trusted proxy is the last address that a trusted proxy has seen; it counts as the address of the client. Entries to the
left of it may be forged.

On a Hugging Face Space the connection comes from the Space's proxy, at an address of its private network (such as
10.16.3.80 in embeddings-benchmark/mteb#4754), and nothing else reaches the container. So proxies at private addresses
are trusted there; visitors have public addresses. We have not verified that this proxy appends to the header rather
than passing on a visitor's; Hugging Face's chat-ui counts its proxies from the right too (huggingface/chat-ui#1105).
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
"""Environment variable with the default of the option `--trusted-proxy`: addresses, separated by commas."""
PRIVATE = ("10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "100.64.0.0/10", "127.0.0.0/8", "::1", "fc00::/7")
"""Address ranges of private networks; the proxy of a Hugging Face Space has such an address."""
UVICORNS = "FORWARDED_ALLOW_IPS"
"""Environment variable of uvicorn for trusted proxies, which our servers set to an empty value.

By default uvicorn trusts every process on this machine. With "*" it uses the leftmost entry of the header, which may be
forged.
"""

Network = IPv4Network | IPv6Network


def from_environment(env: Mapping[str, str] | None = None) -> tuple[str, ...]:
    """Return the trusted proxies that an environment variable lists; on a Space by default the Space's proxies."""
    env = os.environ if env is None else env
    proxies = tuple(name.strip() for name in env.get(VARIABLE, "").split(",") if name.strip())
    return proxies or (PRIVATE if env.get("SPACE_ID") else ())


def networks(proxies: Iterable[str]) -> tuple[Network, ...]:
    """Parse the IP addresses and networks in the option `--trusted-proxy`.

    Raises:
        ParameterError: an entry is neither an address nor a network.

    Example:
        >>> networks(["10.0.0.0/8", "::1"])
        (IPv4Network('10.0.0.0/8'), IPv6Network('::1/128'))
    """
    return tuple(_network(proxy.strip()) for proxy in proxies)


def _network(proxy: str) -> Network:
    try:
        return ip_network(proxy, strict=False)
    except ValueError:
        problem = ParameterError(
            f"The trusted proxy {proxy!r} is not an IP address.", "For example: 127.0.0.1, or 10.0.0.0/8."
        )
        problem.option = "trusted-proxy"
        raise problem from None


def caller_of(peer: str, forwarded: Sequence[str], trusted: Sequence[Network]) -> str:
    """Return the client address of a request: the peer's address, or the address that trusted proxies report.

    Args:
        peer: address of the client or proxy that opened the connection.
        forwarded: values of all `X-Forwarded-For` headers, in order.
        trusted: trusted proxies.

    Example:
        >>> near = networks(["10.0.0.0/8"])
        >>> caller_of("10.0.0.7", ["6.6.6.6, 1.2.3.4, 10.0.0.9"], near)
        '1.2.3.4'
        >>> caller_of("1.2.3.4", ["6.6.6.6"], near)
        '1.2.3.4'
    """
    entries = [entry.strip() for value in forwarded for entry in value.split(",") if entry.strip()]
    client = peer
    while entries and _is_in(client, trusted):
        entry = _bare(entries.pop())
        if _address(entry) is None:
            break  # not an address: the proxy itself is the last known one
        client = entry
    return client


class ClientAddressMiddleware:
    """ASGI middleware that sets the client address of every request.

    Args:
        app: next ASGI application.
        trusted: trusted proxies, as addresses or networks.
    """

    def __init__(self, app: Any, trusted: Sequence[str] = ()) -> None:
        self.app = app
        self.trusted = networks(trusted)
        self._warned = False

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Set the client address in a request's scope, and pass the request on."""
        if scope["type"] in ("http", "websocket") and scope.get("client"):
            peer, port = scope["client"]
            forwarded = [value.decode("latin-1") for name, value in scope["headers"] if name == b"x-forwarded-for"]
            if forwarded and not self._warned and not _is_in(peer, self.trusted):
                self._warned = True
                logger.warning(
                    "A proxy that is not trusted sends X-Forwarded-For, so all clients behind it count as one address. "
                    "If you trust the proxy, add its address with --trusted-proxy."
                )
            address = caller_of(peer, forwarded, self.trusted)
            scope = scope | {"client": (address, port if address == peer else 0)}
            if _is_in(peer, self.trusted):
                scope |= _scheme(scope)
        await self.app(scope, receive, send)


def _scheme(scope: Any) -> dict[str, str]:
    """Return the scheme (http or https) with which the client reached a trusted proxy, for links to the app."""
    proto = dict(scope["headers"]).get(b"x-forwarded-proto", b"").decode("latin-1").strip()
    if proto not in ("http", "https"):
        return {}
    return {"scheme": proto.replace("http", "ws") if scope["type"] == "websocket" else proto}


def _bare(entry: str) -> str:
    """Remove the port from an address in the header `X-Forwarded-For`, such as `1.2.3.4:5`."""
    if entry.startswith("["):
        return entry[1:].partition("]")[0]
    return entry.partition(":")[0] if entry.count(":") == 1 else entry


def _address(text: str) -> IPv4Address | IPv6Address | None:
    """Parse an IP address, converting an IPv4 address mapped into IPv6; return None if the text is no address."""
    try:
        address = ip_address(text)
    except ValueError:
        return None
    return (isinstance(address, IPv6Address) and address.ipv4_mapped) or address


def _is_in(text: str, trusted: Sequence[Network]) -> bool:
    address = _address(text)
    return address is not None and any(address in network for network in trusted)
