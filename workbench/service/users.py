"""Create opaque keys that identify users within this process and mean nothing outside of it."""

from __future__ import annotations

import hashlib
import secrets
from ipaddress import IPv4Address, IPv6Address, ip_address

LOCAL = "local"
"""Key of the user of a private backend, who has no limits."""
_SALT = secrets.token_hex(16)


def address_of(user: str) -> str:
    """Return the part of a user's key that stands for the client address; the client chooses the part after the dot."""
    return user.partition(".")[0]


def user_key(address: str = "", *client_parts: str | None) -> str:
    """Return an opaque user key with a part for the address and a part for the session.

    The address comes from the connection; the client chooses `client_parts`. A /64 network of IPv6 addresses
    counts as one address, because one client usually controls all of it.
    """
    address = network_of(address)
    parts = [address], [address, *map(str, client_parts)]
    return ".".join(hashlib.sha256(" ".join([_SALT, *part]).encode()).hexdigest()[:16] for part in parts)


def network_of(address: str) -> str:
    """Return the network that counts as one client address: an IPv4 address, or an IPv6 /64 network.

    Any other text is returned unchanged.

    Example:
        >>> network_of("2001:db8:1:2:3:4:5:6"), network_of("::ffff:1.2.3.4"), network_of("1.2.3.4")
        ('2001:db8:1:2::', '1.2.3.4', '1.2.3.4')
    """
    try:
        parsed = ip_address(address)
    except ValueError:
        return address
    if isinstance(parsed, IPv4Address):
        return str(parsed)
    if parsed.ipv4_mapped is not None:
        return str(parsed.ipv4_mapped)
    return str(IPv6Address(int(parsed) >> 64 << 64))
