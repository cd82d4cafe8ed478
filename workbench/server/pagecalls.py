"""Limits for calls from the app's pages: a few at once per client address, and a budget of CPU time.

A call whose client has disconnected is dropped.

A call from a page is small, but some take much time: the board of all claims once took seven seconds of CPU time.
Thirty loops of calls from one address slowed a completion from 0.15 s to 39 s, because its decoding rounds and the
calls compete for Python's interpreter lock. So an address has a budget of CPU seconds per minute, and only a few of its
calls run at once.
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
from workbench.service.request_context import CPU_TIME_CALLBACK, DISCONNECTED
from workbench.service.users import address_of, user_key

AT_ONCE, WAITING = 3, 16
"""Maximum numbers of running and of waiting calls from pages, per client address.

Opening a page makes about six calls.
"""
LEAST_S = 0.01
"""Minimum charge for a call from a page in CPU seconds, for handling its request, JSON and answer."""
RETRY_AFTER_S = 2
"""Time in seconds after which a client address with too many calls from pages may retry."""
ChargeCall = Callable[[str, float], None]
"""Function (user, seconds) that charges a user's client address for CPU time.

With 0 seconds it raises an error if the address has exceeded its budget; see
`workbench.client.protocol.Client.charge_call`.
"""


@dataclass(slots=True)
class _AddressCalls:
    """Number `n` of running and waiting calls of one client address, and the semaphore that limits running calls."""

    turns: asyncio.Semaphore
    n: int = 0


@dataclass(slots=True)
class CallLimiter:
    """Limit the running and the waiting calls from pages of each client address, and refuse further calls.

    It may be used in only one event loop.

    Attributes:
        at_once: maximum number of running calls of one client address.
        waiting: maximum number of waiting calls of one client address.
    """

    at_once: int = AT_ONCE
    waiting: int = WAITING
    _lines: dict[str, _AddressCalls] = field(default_factory=dict)

    @contextlib.asynccontextmanager
    async def hold(self, user: str) -> AsyncIterator[None]:
        """Context manager that waits until a page's call from the user's address may run, and counts it as running.

        Raises:
            CapacityError: too many calls of the user's address are waiting.
        """
        address = address_of(user)
        line = self._lines.setdefault(address, _AddressCalls(asyncio.Semaphore(self.at_once)))
        if line.n >= self.at_once + self.waiting:
            raise CapacityError(
                f"{self.waiting} calls of the page from your address are already waiting.",
                f"Try again in {RETRY_AFTER_S} s.",
                RETRY_AFTER_S,
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


class CallCharges:
    """Charge the CPU time of calls from pages to the client addresses from which they come.

    Args:
        charge_call: function that charges a client address, or refuses it if it is over its budget.
    """

    def __init__(self, charge_call: ChargeCall) -> None:
        self._let_call = charge_call

    @contextlib.asynccontextmanager
    async def charge(self, user: str) -> AsyncIterator[None]:
        """Context manager that charges the user's client address for the CPU time within it.

        If the address has exceeded its budget, an error is raised before.

        The charge is at least `LEAST_S` seconds.

        Raises:
            CapacityError: the address has exceeded its budget.
        """
        self._let_call(user, 0.0)
        seconds: list[float] = []
        token = CPU_TIME_CALLBACK.set(seconds.append)
        try:
            yield
        finally:
            CPU_TIME_CALLBACK.reset(token)
            self._let_call(user, max(LEAST_S, sum(seconds)))


class PageCalls:
    """ASGI middleware that limits calls from the app's pages.

    Put it inside `LargeRequests`, which detects disconnected clients.

    Args:
        app: next ASGI application.
        charge_call: function that charges a client address, or refuses it if it is over its budget.
        limiter: limits of the running and waiting calls of each client address.
    """

    def __init__(self, app: Any, charge_call: ChargeCall = lambda *_: None, limiter: CallLimiter | None = None) -> None:
        self.app, self.bill, self.limiter = app, CallCharges(charge_call), limiter or CallLimiter()

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Pass a request on. A page's call first waits for its body and its turn; it is dropped on a disconnect."""
        if scope["type"] != "http" or not is_call(scope):
            await self.app(scope, receive, send)
            return
        user = user_key((scope.get("client") or ("",))[0])
        async with self.bill.charge(user):
            messages = await _read_request(receive)
            permit = contextlib.AsyncExitStack()
            async with permit:
                if not await _wait_unless_disconnected(permit.enter_async_context(self.limiter.hold(user)), receive):
                    return
                await self.app(scope, _replayed(messages, receive), send)


async def _read_request(receive: Any) -> list[Any]:
    """Receive the ASGI messages of a request up to the end of its body."""
    messages = [await receive()]
    while messages[-1].get("more_body", False):
        messages.append(await receive())
    return messages


def _replayed(messages: list[Any], receive: Any) -> Callable[[], Any]:
    """Return an ASGI `receive` function that first returns the given messages, then the results of `receive`."""

    async def replay() -> Any:
        return messages.pop(0) if messages else await receive()

    return replay


async def _wait_unless_disconnected(work: Any, receive: Any) -> bool:
    """Wait until `work` is finished or the client disconnects, and return whether `work` is finished.

    The request's body must have been received before. Then `receive` returns only when the client disconnects.
    """
    disconnected = DISCONNECTED.get()
    if disconnected is not None and disconnected.is_set():
        work.close()
        return False
    work_task, disconnect_task = asyncio.ensure_future(work), asyncio.ensure_future(receive())
    try:
        await asyncio.wait({work_task, disconnect_task}, return_when=asyncio.FIRST_COMPLETED)
        if work_task.done():
            work_task.result()
            return True
        return False
    finally:
        for task in (work_task, disconnect_task):
            task.cancel()
        await asyncio.gather(work_task, disconnect_task, return_exceptions=True)


def make_charge_call(client: Client) -> ChargeCall:
    """Return a function that charges the CPU time of a page's call to its client address (`Client.charge_call`)."""

    def charge_call(user: str, seconds: float) -> None:
        if client.ready:  # before the client has started, its calls would block the event loop
            client.charge_call(user, seconds)

    return charge_call
