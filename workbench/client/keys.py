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
"""Environment variable with the key of a server elsewhere that one means to connect to; no Space of the Hub gets it."""
HUB = (".hf.space", ".huggingface.co", ".hf.co")


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
    """The key to send to a server: what was given for it, or what the environment has for it, see `variables`.

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
    found = (given or "", *(env.get(name, "") for name in variables(url)))
    key = next((stripped for each in found if (stripped := each.strip())), None)
    parts = URL(url) if "://" in url else None  # else a Space, which is asked over https
    if key is not None and parts is not None and parts.scheme == "http" and not is_loopback(parts.host):
        warnings.warn(
            f"The key goes to {parts.host} unencrypted: whoever is on the way can read it. Use https.", stacklevel=2
        )
    return key


def variables(url: str) -> tuple[str, ...]:
    """The environment variables whose key a server may get, the first that is set.

    This machine's own key stays on it. A Space of the Hub gets none of them: it is somebody's among thousands, and its
    name is quickly mistyped.

    Example:
        >>> variables("http://localhost:7860"), variables("https://lab.example.org"), variables("owner/space")
        (('WORKBENCH_API_KEY', 'WORKBENCH_CONNECT_KEY'), ('WORKBENCH_CONNECT_KEY',), ())
    """
    from httpx import URL

    host = URL(url).host.lower().rstrip(".") if "://" in url else ""
    if not host or f".{host}".endswith(HUB):
        return ()
    return (KEY, CONNECT_KEY) if is_loopback(host) else (CONNECT_KEY,)
