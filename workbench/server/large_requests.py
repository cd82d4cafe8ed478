"""Limits for large requests: only a few are processed at once, and client addresses take turns.

A request is cancelled if its client disconnects.

A trace that a browser sends for analysis takes many times its size as Python objects, and parsing its JSON blocks the
event loop for all requests. So a large body is read only when one of a few slots is free. No client address can occupy
all slots. A request whose body arrives too slowly loses its slot, so that a slow client does not delay others.
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
from workbench.server.guard import LateError, declared_size, is_call
from workbench.service.fairqueue import FairQueue
from workbench.service.request_context import DISCONNECTED
from workbench.service.users import address_of, user_key

LARGE_BYTES = 64 << 10
MAX_CONCURRENT, WAITING = 2, 8
"""Maximum number of large requests that are processed at once, and of waiting large requests of one client address.

One address may occupy all slots but one.
"""
BODY_S = 30.0
"""Time limit in seconds for receiving the body of a request of any size."""
RELEASE_SLOT = "workbench.read"
"""Key in the ASGI scope of a large request: function that frees the request's slot.

It is called after the body is parsed if the answer takes long.
"""
AdmitRequest = Callable[[str, bool], None]
"""Function (user, counted) that counts a user's request, or only checks the rate limit.

It raises an error if the limit is exceeded.
"""
RETRY_AFTER_S = 2
"""Time in seconds after which a client address with too many waiting requests may retry."""


class LargeRequests:
    """ASGI middleware that limits how many large requests are processed at once.

    Args:
        app: next ASGI application.
        admit_request: function that counts a large call from a page toward the rate limit. For other requests it only
            checks the rate limit, because they are counted when they start a run.
        max_concurrent: maximum number of large requests that are processed at once.
        waiting: maximum number of waiting large requests of one client address.
        body_s: time limit for the arrival of a body, in seconds.
    """

    def __init__(
        self,
        app: Any,
        admit_request: AdmitRequest = lambda *_: None,
        max_concurrent: int = MAX_CONCURRENT,
        waiting: int = WAITING,
        body_s: float = BODY_S,
    ) -> None:
        self.app, self.admit_request, self.body_s = app, admit_request, body_s
        self.free, self.most, self.each = max_concurrent, waiting, max(1, max_concurrent - 1)
        self.queue: FairQueue[tuple[str, asyncio.Future[None]]] = FairQueue()
        self.waiting: Counter[str] = Counter()
        self.n_running: Counter[str] = Counter()

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Pass a request on. A large request first waits for a free slot."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        user, call = user_key((scope.get("client") or ("",))[0]), is_call(scope)
        async with contextlib.AsyncExitStack() as place:
            if is_large(scope):
                self.admit_request(user, call)
                await place.enter_async_context(self._hold_slot(user))
                scope |= {RELEASE_SLOT: place.aclose}
            receive = self._with_deadline(receive)
            await (self._answer_watched if call else self.app)(scope, receive, send)

    @contextlib.asynccontextmanager
    async def _hold_slot(self, user: str) -> AsyncIterator[None]:
        """Context manager that waits for the user's turn and a free slot for large requests, and occupies it."""
        address = address_of(user)
        if self._may_occupy(address):
            self._occupy_slot(address)
        else:
            if self.waiting[address] >= self.most:
                raise CapacityError(
                    f"{self.most} large requests from your address are already waiting.",
                    f"Try again in {RETRY_AFTER_S} s.",
                    RETRY_AFTER_S,
                )
            self.waiting[address] += 1
            ticket = address, asyncio.get_running_loop().create_future()
            self.queue.put(user, ticket)
            try:
                await ticket[1]
            except asyncio.CancelledError:
                if not self.queue.remove(ticket):  # a slot was already assigned to it
                    self._free_slot(address)
                raise
            finally:
                _decrement(self.waiting, address)
        try:
            yield
        finally:
            self._free_slot(address)

    def _may_occupy(self, address: str) -> bool:
        """Return whether a client address may occupy a slot for large requests now."""
        return self.free > 0 and self.n_running[address] < self.each

    def _occupy_slot(self, address: str) -> None:
        self.free -= 1
        self.n_running[address] += 1

    def _free_slot(self, address: str) -> None:
        """Free a slot for large requests of a client address, and assign it to the next waiting request."""
        self.free += 1
        _decrement(self.n_running, address)
        while (ticket := self.queue.pop(self._may_occupy)) is not None:
            if not ticket[1].done():
                self._occupy_slot(ticket[0])
                ticket[1].set_result(None)

    def _with_deadline(self, receive: Callable[[], Awaitable[Any]]) -> Callable[[], Awaitable[Any]]:
        """Return an ASGI `receive` function that raises `LateError` if the request's body does not arrive in time."""
        loop = asyncio.get_running_loop()
        deadline, is_complete = loop.time() + self.body_s, False

        async def receive_in_time() -> Any:
            nonlocal is_complete
            if is_complete:
                return await receive()
            try:
                message = await asyncio.wait_for(receive(), max(0.0, deadline - loop.time()))
            except asyncio.TimeoutError:
                raise LateError from None
            is_complete = not message.get("more_body", False)
            return message

        return receive_in_time

    async def _answer_watched(self, scope: Any, receive: Any, send: Any) -> None:
        """Answer a request; after its body has arrived, set the event in `DISCONNECTED` if the client disconnects."""
        disconnected, is_complete = threading.Event(), asyncio.Event()

        async def receive_body() -> Any:
            if is_complete.is_set():  # the application waits for a disconnect, which only `until_gone` may receive
                await asyncio.shield(waiting_task)
                return {"type": "http.disconnect"}
            message = await receive()
            if message["type"] == "http.disconnect":
                disconnected.set()
            if not message.get("more_body", False):
                is_complete.set()
            return message

        async def until_gone() -> None:
            await is_complete.wait()
            while not disconnected.is_set():
                if (await receive())["type"] == "http.disconnect":
                    disconnected.set()

        token = DISCONNECTED.set(disconnected)
        waiting_task = asyncio.ensure_future(until_gone())
        try:
            await self.app(scope, receive_body, send)
        finally:
            DISCONNECTED.reset(token)
            waiting_task.cancel()


def is_large(scope: Any) -> bool:
    """Return whether a request has a large body, or a body whose size is not declared."""
    names = {name for name, _ in scope["headers"]}
    return scope["method"] == "POST" and (declared_size(scope) > LARGE_BYTES or b"content-length" not in names)


def make_admit_request(client: Client) -> AdmitRequest:
    """Return a function that counts the requests of users toward a client's rate limit (`Client.admit_request`)."""

    def admit(user: str, counted: bool) -> None:
        if client.ready:  # before the client has started, its calls would block the event loop
            client.admit_request(user, counted)

    return admit


def _decrement(counts: Counter[str], name: str) -> None:
    """Decrement the count of a key in a dict, and delete the key if the count becomes 0."""
    counts[name] -= 1
    if not counts[name]:
        del counts[name]
