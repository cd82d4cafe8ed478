"""Time limit for the headers of a request; connections that exceed it are closed.

uvicorn waits for headers without limit, so half-open connections stay until the machine runs out of file descriptors.
The time limit for the bodies of requests is `workbench.server.large_requests.BODY_S`.
"""

from __future__ import annotations

import asyncio
from typing import Any

from uvicorn.config import HTTP_PROTOCOLS
from uvicorn.protocols.http.auto import AutoHTTPProtocol

HEADERS_S = 20.0
"""Time limit in seconds for receiving the headers of a request.

It starts with the connection, or with the first byte of a later request on the same connection.
"""


class HeaderTimeoutProtocol(AutoHTTPProtocol):  # type: ignore[misc, valid-type]
    """uvicorn's HTTP protocol, with a time limit for headers."""

    headers_s = HEADERS_S
    cycle: Any
    transport: Any
    _late: asyncio.TimerHandle | None = None

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self._start_timer()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self._is_answering():
            self._cancel_timer()
        elif self._late is None:
            self._start_timer()

    def connection_lost(self, exc: Exception | None) -> None:
        self._cancel_timer()
        super().connection_lost(exc)

    def _is_answering(self) -> bool:
        """Return whether the server is answering a request, or the connection has become a web socket."""
        cycle = self.cycle
        is_other = self.transport.get_protocol() is not self  # a web socket
        return is_other or (cycle is not None and not cycle.response_complete)

    def _start_timer(self) -> None:
        self._late = asyncio.get_running_loop().call_later(self.headers_s, self._close_late)

    def _cancel_timer(self) -> None:
        if self._late is not None:
            self._late.cancel()
            self._late = None

    def _close_late(self) -> None:
        self._late = None
        if not self._is_answering() and not self.transport.is_closing():
            self.transport.close()


def install_header_timeout() -> None:
    """Apply the time limit for request headers to all servers of this process, including Gradio's.

    For this, uvicorn's HTTP protocol "auto" is replaced.
    """
    HTTP_PROTOCOLS["auto"] = f"{HeaderTimeoutProtocol.__module__}:{HeaderTimeoutProtocol.__qualname__}"
