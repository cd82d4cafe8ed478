"""Calls of pages: few per address at once, charged by CPU time, and not computed for callers who have left."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from typing import Any

import gradio as gr
import pytest

from workbench.core.errors import CapacityError
from workbench.server.guard import CALLS, Guard
from workbench.server.large_requests import LargeRequests
from workbench.server.pagecalls import AT_ONCE, LEAST_S, WAITING, PageCalls
from workbench.service.limits import Limits
from workbench.service.rate_limiter import SECONDS, RateLimiter
from workbench.service.request_context import measure_cpu_time
from workbench.service.users import user_key
from workbench.ui.api import Endpoints
from workbench.ui.space import PUBLIC_LIMITS

ONE, OTHER = "203.0.113.7", "198.51.100.9"


class Call:
    """A small call of a page that records its answer, with a caller who may leave."""

    def __init__(self, address: str) -> None:
        self.scope = {"type": "http", "method": "POST", "path": CALLS, "client": (address, 1), "headers": [
            (b"content-length", b"2")]}  # fmt: skip
        self.sent, self.left, self.body = False, asyncio.Event(), b""

    async def receive(self) -> dict[str, Any]:
        if not self.sent:
            self.sent = True
            return {"type": "http.request", "body": b"{}", "more_body": False}
        await self.left.wait()
        return {"type": "http.disconnect"}

    async def send(self, message: dict[str, Any]) -> None:
        self.body += message.get("body", b"")

    @property
    def answer_text(self) -> str:
        return json.loads(self.body)["error"]["message"] if self.body else ""


class App:
    """Answers calls on request, after work of the given duration in a thread."""

    def __init__(self, seconds: float = 0.0) -> None:
        self.seconds, self.go = seconds, asyncio.Event()
        self.now: dict[str, int] = {}
        self.most: dict[str, int] = {}
        self.served: list[str] = []

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        address = scope["client"][0]
        assert (await receive())["body"] == b"{}"
        self.served.append(address)
        self.now[address] = self.now.get(address, 0) + 1
        self.most[address] = max(self.most.get(address, 0), self.now[address])
        await self.go.wait()
        await asyncio.to_thread(self._work)
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b""})
        self.now[address] -= 1

    def _work(self) -> None:
        with measure_cpu_time():
            until = time.thread_time() + self.seconds
            while time.thread_time() < until:
                pass


def front(app: App, meter: RateLimiter) -> Any:
    def let_call(user: str, seconds: float) -> None:
        if seconds:
            meter.charge(user, seconds, SECONDS)
        else:
            meter.check(user, SECONDS)

    return Guard(LargeRequests(PageCalls(app, let_call)))


async def start_calls(calls: list[Call], app: Any) -> list[asyncio.Task[None]]:
    tasks = [asyncio.create_task(app(call.scope, call.receive, call.send)) for call in calls]
    for _ in range(100):
        await asyncio.sleep(0)
    return tasks


def test_thirty_calls_of_one_address_run_a_few_at_once_and_do_not_delay_another() -> None:
    async def scene() -> None:
        app = App()
        whole = front(app, RateLimiter(Limits()))
        many = [Call(ONE) for _ in range(30)]
        tasks = await start_calls(many, whole)
        tasks += await start_calls([Call(OTHER)], whole)
        assert app.served == [ONE] * AT_ONCE + [OTHER]
        refused = [call.answer_text for call in many if call.body]
        assert len(refused) == 30 - AT_ONCE - WAITING
        assert "from your address are already waiting" in refused[0]
        app.go.set()
        await asyncio.gather(*tasks)
        assert app.most == {ONE: AT_ONCE, OTHER: 1}
        assert len(app.served) == AT_ONCE + WAITING + 1

    asyncio.run(scene())


def test_an_address_is_charged_the_cpu_time_of_its_calls() -> None:
    async def scene() -> None:
        app, now = App(seconds=0.05), 0.0
        app.go.set()
        whole = front(app, RateLimiter(Limits(call_seconds_per_minute=0.04), clock=lambda: now))
        first, second, other = Call(ONE), Call(ONE), Call(OTHER)
        for call in (first, second, other):
            await whole(call.scope, call.receive, call.send)
        assert app.served == [ONE, OTHER]
        assert (first.answer_text, other.answer_text) == ("", "")
        assert "CPU seconds per minute" in second.answer_text
        now = 60.0  # the debt of 10 ms and more is paid
        late = Call(ONE)
        await whole(late.scope, late.receive, late.send)
        assert app.served == [ONE, OTHER, ONE]

    asyncio.run(scene())


def test_every_call_is_charged_a_minimum() -> None:
    async def scene() -> None:
        app, meter = App(), RateLimiter(Limits(call_seconds_per_minute=3.5 * LEAST_S), clock=lambda: 0.0)
        app.go.set()
        for _ in range(6):
            call = Call(ONE)
            await front(app, meter)(call.scope, call.receive, call.send)
        assert len(app.served) == 4  # the fourth leaves a debt

    asyncio.run(scene())


def test_nothing_is_computed_for_a_caller_who_left_while_waiting() -> None:
    async def scene() -> None:
        app = App()
        pages = PageCalls(app)
        calls = [Call(ONE) for _ in range(AT_ONCE + 3)]
        tasks = await start_calls(calls, LargeRequests(pages))
        for call in calls[AT_ONCE:]:
            call.left.set()
        await asyncio.gather(*tasks[AT_ONCE:])
        assert len(pages.limiter) == AT_ONCE
        app.go.set()
        await asyncio.gather(*tasks)
        assert len(app.served) == AT_ONCE
        assert len(pages.limiter) == 0

    asyncio.run(scene())


def test_a_body_that_never_arrives_times_out_at_any_size() -> None:
    async def scene() -> None:
        call = Call(ONE)
        call.sent = True  # the client sends no body
        app = App()
        await Guard(LargeRequests(PageCalls(app), body_s=0.01))(call.scope, call.receive, call.send)
        assert "did not arrive in time" in call.answer_text
        assert not app.served

    asyncio.run(scene())


class ConcurrencyClient:
    """A client whose `presets` counts concurrent calls."""

    ready = True

    def __init__(self) -> None:
        self.meter = RateLimiter(Limits(call_seconds_per_minute=3.5 * LEAST_S), clock=lambda: 0.0)
        self.now = self.most = 0
        self.lock = threading.Lock()

    def charge_call(self, user: str, seconds: float = 0.0) -> None:
        if seconds:
            self.meter.charge(user, seconds, SECONDS)
        else:
            self.meter.check(user, SECONDS)

    def presets(self) -> list[Any]:
        with self.lock:
            self.now += 1
            self.most = max(self.most, self.now)
        time.sleep(0.005)
        with self.lock:
            self.now -= 1
        return []


def make_request(address: str) -> gr.Request:
    return gr.Request(client={"host": address}, headers={}, session_hash="s")  # pyright: ignore[reportCallIssue]


def test_calls_of_the_api_are_counted_too() -> None:
    async def scene() -> None:
        asked = ConcurrencyClient()
        endpoints = Endpoints(asked)  # type: ignore[arg-type]
        answers = await asyncio.gather(*(endpoints.presets(request=make_request(ONE)) for _ in range(30)))
        refused = [answer["error"]["message"] for answer in answers if "error" in answer]
        assert len(refused) == 30 - AT_ONCE - WAITING
        assert asked.most <= AT_ONCE
        assert "CPU seconds" in (await endpoints.presets(request=make_request(ONE)))["error"]["message"]
        assert await endpoints.presets(request=make_request(OTHER)) == {"presets": []}

    asyncio.run(scene())


def test_a_public_app_counts_calls() -> None:
    limits = Limits(**PUBLIC_LIMITS)
    meter = RateLimiter(limits, clock=lambda: 0.0)
    user = user_key(ONE)
    meter.charge(user, limits.call_seconds_per_minute or 0.0, SECONDS)
    meter.check(user, SECONDS)
    meter.charge(user, LEAST_S, SECONDS)
    with pytest.raises(CapacityError, match=r"10\.0 CPU seconds per minute"):
        meter.check(user, SECONDS)
