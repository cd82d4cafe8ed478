"""Keys that clients send: to whom, and which."""

from __future__ import annotations

import os
import warnings
from collections.abc import Mapping
from ipaddress import ip_address

KEY = "WORKBENCH_API_KEY"
"""Environment variable with the key that servers of this machine ask for: other users of the machine cannot read it, as
they can a command line."""
CONNECT_KEY = "WORKBENCH_CONNECT_KEY"
"""Environment variable with the key of a server elsewhere that one means to connect to."""


def is_loopback(host: str) -> bool:
    """Whether a host's name or address is this machine's own: only this machine can reach what listens there.

    Example:
        >>> is_loopback("LocalHost"), is_loopback("127.0.0.1"), is_loopback("[::1]"), is_loopback("10.0.0.1")
        (True, True, True, False)
    """
    if host.lower() == "localhost":
        return True
    try:
        return ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def key_for(url: str, given: str | None = None, env: Mapping[str, str] | None = None) -> str | None:
    """The key to send to a server: what was given for it, or for servers elsewhere; this machine's own stays here.

    Warns where it would go to another machine unencrypted.

    Args:
        url: address of the server, or name of a Space.
        given: on purpose, for this server.
        env: the environment; by default this process's.

    Example:
        >>> key_for("https://lab.example.org", env={KEY: "of my own server"}) is None
        True
    """
    from httpx import URL  # as the client itself reads it; the command line's start need not wait for it

    env = os.environ if env is None else env
    parts = URL(url) if "://" in url else None  # else a Space, which is asked over https
    is_here = parts is not None and is_loopback(parts.host)
    key = (given or env.get(CONNECT_KEY) or (env.get(KEY) if is_here else None) or "").strip() or None
    if key is not None and parts is not None and parts.scheme == "http" and not is_here:
        warnings.warn(
            f"The key goes to {parts.host} unencrypted: whoever is on the way can read it. Use https.", stacklevel=2
        )
    return key
