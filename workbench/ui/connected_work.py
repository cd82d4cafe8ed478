"""Run functions called through Gradio's queue, and stop them when their client has disconnected."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncGenerator, Awaitable, Callable
from typing import TypeVar

from workbench.client.follow import KEEP_ALIVE_S
from workbench.core.panics import convert_panics
from workbench.service.request_context import DISCONNECTED

T = TypeVar("T")


async def while_connected(
    work: Callable[[], T], keep_alive_message: Callable[[], T], run_in_thread: Callable[[Callable[[], T]], Awaitable[T]]
) -> AsyncGenerator[T, None]:
    """Run a function in a thread. Closing the generator signals the function that the client has disconnected.

    No middleware detects the disconnected client of a call through Gradio's queue. Gradio closes an endpoint's
    generator only when it fails to deliver a message, so this generator sends messages regularly.

    Args:
        work: the function to run.
        keep_alive_message: function that returns the message to send while the function is running.
        run_in_thread: function that runs another function in a thread.

    Yields:
        The messages of `keep_alive_message`, then the result of `work`.
    """
    disconnected = threading.Event()

    def work_in_context() -> T:
        token = DISCONNECTED.set(disconnected)
        try:
            with convert_panics():
                return work()
        finally:
            DISCONNECTED.reset(token)

    task = asyncio.ensure_future(run_in_thread(work_in_context))
    # avoids a warning about an unread exception if the caller has disconnected
    task.add_done_callback(lambda ended: ended.cancelled() or ended.exception())
    try:
        while not task.done():
            yield keep_alive_message()
            await asyncio.wait({task}, timeout=KEEP_ALIVE_S)
        yield task.result()
    finally:
        disconnected.set()
