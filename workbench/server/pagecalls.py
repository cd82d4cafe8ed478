"""Calls of the pages: few at once for each address, charged by the processor time they take, none for who has left.

A page's call is small, and some of them are dear: a board of all claims took seven seconds of a processor once. Thirty
loops of one address took a completion from .15 to 39 s, because a completion's rounds share the interpreter with them.
So an address has a budget of processor seconds a minute, and few of its calls run at once.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from typing import Any

from workbench.client import Client
from workbench.core.errors import CapacityError
from workbench.server.guard import is_call
from workbench.service.caller import COST, LEFT
from workbench.service.users import address_of, user_key

AT_ONCE, WAITING = 3, 16
"""Calls of one address that run at once, and that wait for that. A page that opens makes about six calls."""
LEAST_S = 0.01
"""Processor seconds that a call is charged at least: for its request, its JSON and its answer."""
SOON_S = 2
"""Seconds after which an address with too many calls may ask again."""
LetCall = Callable[[str, float], None]
"""Charges a user's address (seconds), or refuses it (0): see `workbench.client.protocol.Client.let_call`."""


@dataclass(slots=True)
class _Line:
    """The calls of one address: `n` that run or wait, and the turns among them."""

    turns: asyncio.Semaphore
    n: int = 0


@dataclass(slots=True)
class Turns:
    """Turns of the calls of each address: a few run at once, others wait, and more are refused. For one event loop.

    Attributes:
        at_once: calls of one address that run at once.
        waiting: calls of one address that wait.
    """

    at_once: int = AT_ONCE
    waiting: int = WAITING
    _lines: dict[str, _Line] = field(default_factory=dict)

    @contextlib.asynccontextmanager
    async def hold(self, user: str) -> AsyncIterator[None]:
        """Wait for a turn and hold it.

        Raises:
            CapacityError: too many calls of the user's address wait already.
        """
        address = address_of(user)
        line = self._lines.setdefault(address, _Line(asyncio.Semaphore(self.at_once)))
        if line.n >= self.at_once + self.waiting:
            raise CapacityError(
                f"{self.waiting} calls of your address wait already.", f"Try again in {SOON_S} s.", SOON_S
            )
        line.n += 1
        try:
            async with line.turns:
                yield
        finally:
            line.n -= 1
            if not line.n:
                self._lines.pop(address, None)

    def __len__(self) -> int:
        return sum(line.n for line in self._lines.values())


class Bill:
    """What calls cost their addresses.

    Args:
        let_call: charges an address, or refuses it.
    """

    def __init__(self, let_call: LetCall) -> None:
        self._let_call = let_call

    @contextlib.asynccontextmanager
    async def charged(self, user: str) -> AsyncIterator[None]:
        """Refuse a user whose address owes time; charge the block's work to them otherwise, `LEAST_S` at least.

        Raises:
            CapacityError: the address owes time.
        """
        self._let_call(user, 0.0)
        seconds: list[float] = []
        token = COST.set(seconds.append)
        try:
            yield
        finally:
            COST.reset(token)
            self._let_call(user, max(LEAST_S, sum(seconds)))


class PageCalls:
    """ASGI middleware for calls of the pages. Stands behind `turns.LargeRequests`, which notices callers that leave.

    Args:
        app: what is behind it.
        let_call: charges an address, or refuses it.
        turns: of each address's calls.
    """

    def __init__(self, app: Any, let_call: LetCall = lambda *_: None, turns: Turns | None = None) -> None:
        self.app, self.bill, self.turns = app, Bill(let_call), turns or Turns()

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Pass a request on; a call once its body is here and it is its turn, if its caller is still there."""
        if scope["type"] != "http" or not is_call(scope):
            await self.app(scope, receive, send)
            return
        user = user_key((scope.get("client") or ("",))[0])
        async with self.bill.charged(user):
            messages = await _whole(receive)
            turn = contextlib.AsyncExitStack()
            async with turn:
                if not await _unless_left(turn.enter_async_context(self.turns.hold(user)), receive):
                    return
                await self.app(scope, _replayed(messages, receive), send)


async def _whole(receive: Any) -> list[Any]:
    """The messages of a request up to the end of its body."""
    messages = [await receive()]
    while messages[-1].get("more_body", False):
        messages.append(await receive())
    return messages


def _replayed(messages: list[Any], receive: Any) -> Callable[[], Any]:
    """A `receive` that gives these messages first."""

    async def heard() -> Any:
        return messages.pop(0) if messages else await receive()

    return heard


async def _unless_left(work: Any, receive: Any) -> bool:
    """Wait for something unless the caller leaves before; returns whether it came. Reads a disconnect only."""
    left = LEFT.get()
    if left is not None and left.is_set():
        work.close()
        return False
    working, leaving = asyncio.ensure_future(work), asyncio.ensure_future(receive())
    try:
        await asyncio.wait({working, leaving}, return_when=asyncio.FIRST_COMPLETED)
        if working.done():
            working.result()
            return True
        return False
    finally:
        for task in (working, leaving):
            task.cancel()
        await asyncio.gather(working, leaving, return_exceptions=True)


def call_counter(client: Client) -> LetCall:
    """What charges addresses for calls; see `workbench.client.protocol.Client.let_call`."""

    def let_call(user: str, seconds: float) -> None:
        if client.ready:  # while it is in the making, asking it would hold up everybody
            client.let_call(user, seconds)

    return let_call
