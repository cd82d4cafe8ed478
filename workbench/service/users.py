"""Who asks, as opaque keys that are useless outside this process."""

from __future__ import annotations

import hashlib
import secrets
from ipaddress import IPv4Address, IPv6Address, ip_address

LOCAL = "local"
"""The user of a private backend, who has no limit of runs."""
_SALT = secrets.token_hex(16)


def address_of(user: str) -> str:
    """The part of a user's key that stands for the address: what they say of themselves is behind the dot."""
    return user.partition(".")[0]


def user_key(address: str = "", *who: str | None) -> str:
    """Who asks as an opaque key, useless outside this process: a part for the address, one for the session at it.

    Only the former is known, by the connection; the latter is what the caller says. A network of IPv6 addresses counts
    as one: whoever has one of 2^64 has all of them.
    """
    address = network_of(address)
    parts = [address], [address, *map(str, who)]
    return ".".join(hashlib.sha256(" ".join([_SALT, *part]).encode()).hexdigest()[:16] for part in parts)


def network_of(address: str) -> str:
    """What counts as one address: an IPv4 address, or the first 64 bits of an IPv6 one; anything else as it stands.

    Example:
        >>> network_of("2001:db8:1:2:3:4:5:6"), network_of("::ffff:1.2.3.4"), network_of("1.2.3.4")
        ('2001:db8:1:2::', '1.2.3.4', '1.2.3.4')
    """
    try:
        found = ip_address(address)
    except ValueError:
        return address
    if isinstance(found, IPv4Address):
        return str(found)
    if found.ipv4_mapped is not None:
        return str(found.ipv4_mapped)
    return str(IPv6Address(int(found) >> 64 << 64))
