"""Choose the API key that a client sends to a server."""

from __future__ import annotations

import os
import warnings
from collections.abc import Mapping
from ipaddress import ip_address

KEY = "WORKBENCH_API_KEY"
"""Environment variable with the API key of servers on this machine.

Unlike a command line, other users of the machine cannot read it.
"""
CONNECT_KEY = "WORKBENCH_CONNECT_KEY"
"""Environment variable with the API key of a server on another machine. The key is never sent to a Space of the Hub."""
HUB = (".hf.space", ".huggingface.co", ".hf.co")


def is_loopback(host: str) -> bool:
    """Return whether a host name or address is a loopback address, which only this machine can reach.

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


def key_for(url: str, explicit_key: str | None = None, env: Mapping[str, str] | None = None) -> str | None:
    """Return the API key for a server: `explicit_key`, or that of an environment variable for this kind of server.

    The result is None if neither is set; `variables` returns the environment variables.

    A warning is given if the key would be sent to another machine without encryption.

    Args:
        url: address of the server, or name of a Space.
        explicit_key: API key that the user gave for this server.
        env: environment variables; by default this process's.

    Example:
        >>> key_for("https://lab.example.org", env={CONNECT_KEY: "for other machines"})
        'for other machines'
        >>> key_for("https://lab.example.org", env={KEY: "for this machine"}) is None
        True
    """
    from httpx import URL  # the client's own parser; imported late for a fast start of the command line

    env = os.environ if env is None else env
    candidates = (explicit_key or "", *(env.get(name, "") for name in variables(url)))
    key = next((stripped for candidate in candidates if (stripped := candidate.strip())), None)
    parts = URL(url) if "://" in url else None  # else a Space, which uses https
    if key is not None and parts is not None and parts.scheme == "http" and not is_loopback(parts.host):
        warnings.warn(
            f"The API key is sent to {parts.host} unencrypted, so others on the network can read it. Use https.",
            stacklevel=2,
        )
    return key


def variables(url: str) -> tuple[str, ...]:
    """Return the environment variables whose keys may be sent to a server, in order of precedence.

    The key of servers on this machine is sent only to this machine. A Space of the Hub gets no key: a mistyped name
    would send the key to somebody else.

    Example:
        >>> variables("http://localhost:7860"), variables("https://lab.example.org"), variables("owner/space")
        (('WORKBENCH_API_KEY', 'WORKBENCH_CONNECT_KEY'), ('WORKBENCH_CONNECT_KEY',), ())
    """
    from httpx import URL

    host = URL(url).host.lower().rstrip(".") if "://" in url else ""
    if not host or f".{host}".endswith(HUB):
        return ()
    return (KEY, CONNECT_KEY) if is_loopback(host) else (CONNECT_KEY,)
