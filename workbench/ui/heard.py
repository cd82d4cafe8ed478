"""Work behind Gradio's queue that nobody needs any more once its caller has left."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncGenerator, Awaitable, Callable
from typing import TypeVar

from workbench.client.follow import SIGN_OF_LIFE_S
from workbench.core.panics import no_panic
from workbench.service.caller import LEFT

T = TypeVar("T")


async def while_heard(
    work: Callable[[], T], say: Callable[[], T], do: Callable[[Callable[[], T]], Awaitable[T]]
) -> AsyncGenerator[T, None]:
    """Do something in a thread. Closing the generator tells it that the caller has left; see `service.caller`.

    No middleware watches what is asked through the queue: Gradio closes the generator of an endpoint once it cannot
    say something to whoever listens, so something is said all the time.

    Args:
        work: what is done.
        say: what is said meanwhile.
        do: does it in a thread.

    Yields:
        what `say` says, then what came of the work.
    """
    left = threading.Event()

    def watched() -> T:
        token = LEFT.set(left)
        try:
            with no_panic():
                return work()
        finally:
            LEFT.reset(token)

    working = asyncio.ensure_future(do(watched))
    working.add_done_callback(lambda ended: ended.cancelled() or ended.exception())  # nobody may be left to hear it
    try:
        while not working.done():
            yield say()
            await asyncio.wait({working}, timeout=SIGN_OF_LIFE_S)
        yield working.result()
    finally:
        left.set()
