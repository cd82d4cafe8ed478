"""Half-open connections are closed after a time limit; answered and kept-alive ones stay open."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

import uvicorn
from uvicorn.config import HTTP_PROTOCOLS

from workbench.server.connections import HeaderTimeoutProtocol, install_header_timeout


class Quick(HeaderTimeoutProtocol):
    headers_s = 0.15


async def slow(scope: Any, receive: Any, send: Any) -> None:
    """Answer after twice the time limit for headers."""
    await asyncio.sleep(0.3)
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"2")]})
    await send({"type": "http.response.body", "body": b"ok"})


@contextlib.asynccontextmanager
async def run_server() -> AsyncIterator[int]:
    server = uvicorn.Server(uvicorn.Config(slow, port=0, http=Quick, log_level="critical", lifespan="off"))
    task = asyncio.create_task(server.serve())
    while not server.started:
        await asyncio.sleep(0.005)
    try:
        yield server.servers[0].sockets[0].getsockname()[1]
    finally:
        server.should_exit = True
        await task


REQUEST = b"GET / HTTP/1.1\r\nhost: x\r\n\r\n"


def test_half_open_connections_are_closed_and_others_answered() -> None:
    async def scene() -> None:
        async with run_server() as port:
            silent, half, whole = [await asyncio.open_connection("127.0.0.1", port) for _ in range(3)]
            half[1].write(REQUEST[:20])
            whole[1].write(REQUEST)
            for reader, _ in (silent, half):
                assert await asyncio.wait_for(reader.read(), 10) == b""  # closed by the server
            assert (await asyncio.wait_for(whole[0].readuntil(b"ok"), 10)).startswith(b"HTTP/1.1 200")
            whole[1].write(REQUEST[:20])  # a kept-alive connection whose next request stays half-open
            assert await asyncio.wait_for(whole[0].read(), 10) == b""
            for _, writer in (silent, half, whole):
                writer.close()

    asyncio.run(scene())


def test_a_server_started_by_gradio_has_the_time_limit_too() -> None:
    before = dict(HTTP_PROTOCOLS)
    try:
        install_header_timeout()
        config = uvicorn.Config(slow, log_level="critical", lifespan="off")
        config.load()
        assert config.http_protocol_class is HeaderTimeoutProtocol
    finally:
        HTTP_PROTOCOLS.update(before)
