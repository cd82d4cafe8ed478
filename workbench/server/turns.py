"""Large requests: few at a time, addresses take turns, and nothing goes on for a caller who has left.

A trace that the browser sends to have it analysed takes many times its size as Python objects, and its JSON is read
where all requests are answered. So no large body is read before it has a place; until then it waits with its sender.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import AsyncIterator, Callable
from typing import Any

from workbench.client import wire
from workbench.core.errors import CapacityError
from workbench.server.guard import declared, is_call
from workbench.service.caller import LEFT
from workbench.service.fairqueue import FairQueue
from workbench.service.limits import address_of

LARGE_BYTES = 64 << 10
PLACES, WAITING = 2, 8
"""Large requests that are read and answered at once; of one address, that wait for that."""
SOON_S = 2
"""Seconds after which an address whose requests wait may ask again."""


class Turns:
    """ASGI middleware in front of the pages' calls.

    Args:
        app: what is behind it.
        let_in: counts a large request of a user, and refuses one too many.
        places: large requests at once.
        waiting: large requests of one address that may wait.
    """

    def __init__(
        self, app: Any, let_in: Callable[[str], None] = lambda _: None, places: int = PLACES, waiting: int = WAITING
    ) -> None:
        self.app, self.let_in = app, let_in
        self.free, self.most = places, waiting
        self.queue: FairQueue[asyncio.Future[None]] = FairQueue()
        self.users: dict[str, int] = {}

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Pass a request on, a large one once it is its turn."""
        if scope["type"] != "http" or not is_call(scope):
            await self.app(scope, receive, send)
            return
        user = wire.user_key((scope.get("client") or ("",))[0])
        async with contextlib.AsyncExitStack() as place:
            if is_large(scope):
                self.let_in(user)
                await place.enter_async_context(self._place(user))
            await self._watched(scope, receive, send)

    @contextlib.asynccontextmanager
    async def _place(self, user: str) -> AsyncIterator[None]:
        """A place, once it is the user's turn."""
        if self.free:
            self.free -= 1
        else:
            address = address_of(user)
            if self.users.get(address, 0) >= self.most:
                raise CapacityError(
                    f"{self.most} large requests of your address wait already.", f"Try again in {SOON_S} s.", SOON_S
                )
            self.users[address] = self.users.get(address, 0) + 1
            turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self.queue.put(user, turn)
            try:
                await turn
            except asyncio.CancelledError:
                if not self.queue.remove(turn):  # its turn had come
                    self._next()
                raise
            finally:
                self.users[address] -= 1
                if not self.users[address]:
                    del self.users[address]
        try:
            yield
        finally:
            self._next()

    def _next(self) -> None:
        """The place goes to whoever is next."""
        while (turn := self.queue.pop()) is not None:
            if not turn.done():
                turn.set_result(None)
                return
        self.free += 1

    async def _watched(self, scope: Any, receive: Any, send: Any) -> None:
        """Answer a request; once its body is here, notice when the caller leaves."""
        left, whole = threading.Event(), asyncio.Event()

        async def heard() -> Any:
            if whole.is_set():  # somebody else asks whether the caller is there: it is known from the watcher
                await asyncio.shield(gone)
                return {"type": "http.disconnect"}
            message = await receive()
            if message["type"] == "http.disconnect":
                left.set()
            if not message.get("more_body", False):
                whole.set()
            return message

        async def until_gone() -> None:
            await whole.wait()
            while not left.is_set():
                if (await receive())["type"] == "http.disconnect":
                    left.set()

        token = LEFT.set(left)
        gone = asyncio.ensure_future(until_gone())
        try:
            await self.app(scope, heard, send)
        finally:
            LEFT.reset(token)
            gone.cancel()


def is_large(scope: Any) -> bool:
    """Whether a request has a large body, or does not say how large it is."""
    names = {name for name, _ in scope["headers"]}
    return declared(scope) > LARGE_BYTES or b"content-length" not in names
