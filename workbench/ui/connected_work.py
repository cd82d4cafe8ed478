"""Work called through Gradio's queue that stops when its caller has disconnected."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncGenerator, Awaitable, Callable
from typing import TypeVar

from workbench.client.follow import SIGN_OF_LIFE_S
from workbench.core.panics import no_panic
from workbench.service.caller import LEFT

T = TypeVar("T")


async def while_connected(
    work: Callable[[], T], say: Callable[[], T], do: Callable[[Callable[[], T]], Awaitable[T]]
) -> AsyncGenerator[T, None]:
    """Run a function in a thread. Closing the generator signals it that the caller has left; see `service.caller`.

    No middleware watches calls through the queue. Gradio closes an endpoint's generator only when it fails to deliver
    a message to the client, so this generator sends messages regularly.

    Args:
        work: the function to run.
        say: returns the message to send while the work continues.
        do: runs a function in a thread.

    Yields:
        the messages of `say`, then the result of the work.
    """
    disconnected = threading.Event()

    def watched() -> T:
        token = LEFT.set(disconnected)
        try:
            with no_panic():
                return work()
        finally:
            LEFT.reset(token)

    task = asyncio.ensure_future(do(watched))
    # avoids a warning about an unread exception if the caller has left
    task.add_done_callback(lambda ended: ended.cancelled() or ended.exception())
    try:
        while not task.done():
            yield say()
            await asyncio.wait({task}, timeout=SIGN_OF_LIFE_S)
        yield task.result()
    finally:
        disconnected.set()
