"""Large requests: few at a time, addresses take turns, and nothing goes on for a caller who has left.

A trace that the browser sends to have it analysed takes many times its size as Python objects, and its JSON is read
where all requests are answered. So no large body is read before it has a place; until then it waits with its sender.
No address has all places, and a body that does not arrive gives its place back: who sends slowly stops nobody else.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

from workbench.client import Client
from workbench.core.errors import CapacityError
from workbench.server.guard import LateError, declared, is_call
from workbench.service.caller import LEFT
from workbench.service.fairqueue import FairQueue
from workbench.service.users import address_of, user_key

LARGE_BYTES = 64 << 10
PLACES, WAITING = 2, 8
"""Large requests that are read and answered at once, at most all but one of them of one address; those of one address
that wait for that."""
BODY_S = 30.0
"""A request whose body takes longer to arrive is given up, large or small."""
READ = "workbench.read"
"""Entry of the scope of a large request: gives its place to the next one, where its body has been read and understood
and the answer takes long."""
LetIn = Callable[[str, bool], None]
"""Counts a request of a user (True), or only asks whether there is room for one; refuses one too many."""
SOON_S = 2
"""Seconds after which an address whose requests wait may ask again."""


class LargeRequests:
    """ASGI middleware in front of everything that is sent a body.

    Args:
        app: what is behind it.
        let_in: counts a large call of a page; of other requests, which count when they begin a run, it asks only.
        places: large requests at once.
        waiting: large requests of one address that may wait.
        body_s: seconds a large body may take to arrive.
    """

    def __init__(
        self,
        app: Any,
        let_in: LetIn = lambda *_: None,
        places: int = PLACES,
        waiting: int = WAITING,
        body_s: float = BODY_S,
    ) -> None:
        self.app, self.let_in, self.body_s = app, let_in, body_s
        self.free, self.most, self.each = places, waiting, max(1, places - 1)
        self.queue: FairQueue[tuple[str, asyncio.Future[None]]] = FairQueue()
        self.waiting: Counter[str] = Counter()
        self.held: Counter[str] = Counter()

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Pass a request on, a large one once it is its turn."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        user, call = user_key((scope.get("client") or ("",))[0]), is_call(scope)
        async with contextlib.AsyncExitStack() as place:
            if is_large(scope):
                self.let_in(user, call)
                await place.enter_async_context(self._place(user))
                scope |= {READ: place.aclose}
            receive = self._punctual(receive)
            await (self._watched if call else self.app)(scope, receive, send)

    @contextlib.asynccontextmanager
    async def _place(self, user: str) -> AsyncIterator[None]:
        """A place, once it is the user's turn."""
        address = address_of(user)
        if self._may(address):
            self._take(address)
        else:
            if self.waiting[address] >= self.most:
                raise CapacityError(
                    f"{self.most} large requests of your address wait already.", f"Try again in {SOON_S} s.", SOON_S
                )
            self.waiting[address] += 1
            turn = address, asyncio.get_running_loop().create_future()
            self.queue.put(user, turn)
            try:
                await turn[1]
            except asyncio.CancelledError:
                if not self.queue.remove(turn):  # its turn had come
                    self._give(address)
                raise
            finally:
                _less(self.waiting, address)
        try:
            yield
        finally:
            self._give(address)

    def _may(self, address: str) -> bool:
        """Whether a place is free for an address."""
        return self.free > 0 and self.held[address] < self.each

    def _take(self, address: str) -> None:
        self.free -= 1
        self.held[address] += 1

    def _give(self, address: str) -> None:
        """A place of an address goes to whoever is next."""
        self.free += 1
        _less(self.held, address)
        while (turn := self.queue.pop(self._may)) is not None:
            if not turn[1].done():
                self._take(turn[0])
                turn[1].set_result(None)

    def _punctual(self, receive: Callable[[], Awaitable[Any]]) -> Callable[[], Awaitable[Any]]:
        """What hears a request, until its body is here and no longer than a body may take."""
        loop = asyncio.get_running_loop()
        until, whole = loop.time() + self.body_s, False

        async def heard() -> Any:
            nonlocal whole
            if whole:
                return await receive()
            try:
                message = await asyncio.wait_for(receive(), max(0.0, until - loop.time()))
            except asyncio.TimeoutError:
                raise LateError from None
            whole = not message.get("more_body", False)
            return message

        return heard

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
    """Whether a request has a large body, or one that does not say how large it is."""
    names = {name for name, _ in scope["headers"]}
    return scope["method"] == "POST" and (declared(scope) > LARGE_BYTES or b"content-length" not in names)


def counter(client: Client) -> LetIn:
    """What counts the requests of a client's users; see `workbench.client.Workbench.let_in`."""

    def let_in(user: str, counted: bool) -> None:
        if client.ready:  # while it is in the making, asking it would hold up everybody
            client.let_in(user, counted)

    return let_in


def _less(counts: Counter[str], name: str) -> None:
    """One less; what is 0 is forgotten."""
    counts[name] -= 1
    if not counts[name]:
        del counts[name]
