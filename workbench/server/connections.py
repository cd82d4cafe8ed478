"""Connections: one whose request does not begin or whose headers do not end in time is closed.

uvicorn waits for a request's headers without end, so that half-open connections stay until the machine has no file
descriptors left. Bodies have a time of their own: `workbench.server.turns.BODY_S`.
"""

from __future__ import annotations

import asyncio
from typing import Any

from uvicorn.config import HTTP_PROTOCOLS
from uvicorn.protocols.http.auto import AutoHTTPProtocol

HEADERS_S = 20.0
"""Seconds from the opening of a connection, or from the first byte of a later request, to the end of its headers."""


class PunctualProtocol(AutoHTTPProtocol):  # type: ignore[misc, valid-type]
    """uvicorn's protocol for HTTP, with a time-out for headers."""

    headers_s = HEADERS_S
    cycle: Any
    transport: Any
    _late: asyncio.TimerHandle | None = None

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self._wait()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self._is_answering():
            self._wait_no_more()
        elif self._late is None:
            self._wait()

    def connection_lost(self, exc: Exception | None) -> None:
        self._wait_no_more()
        super().connection_lost(exc)

    def _is_answering(self) -> bool:
        """Whether a request's headers are here and its answer is not complete, or the connection has left HTTP."""
        cycle = self.cycle
        is_other = self.transport.get_protocol() is not self  # a web socket
        return is_other or (cycle is not None and not cycle.response_complete)

    def _wait(self) -> None:
        self._late = asyncio.get_running_loop().call_later(self.headers_s, self._give_up)

    def _wait_no_more(self) -> None:
        if self._late is not None:
            self._late.cancel()
            self._late = None

    def _give_up(self) -> None:
        self._late = None
        if not self._is_answering() and not self.transport.is_closing():
            self.transport.close()


def be_punctual() -> None:
    """Let servers that others start in this process, as Gradio does, have the time-out too: uvicorn's "auto" has it."""
    HTTP_PROTOCOLS["auto"] = f"{PunctualProtocol.__module__}:{PunctualProtocol.__qualname__}"
