"""Large requests of pages: few at once, addresses in turn, unread until their turn, dropped if the caller leaves."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Callable
from typing import Any

import pytest

from workbench.core.errors import CapacityError
from workbench.server.guard import CALL_BYTES, CALLS, Guard
from workbench.server.large_requests import LARGE_BYTES, MAX_CONCURRENT, RELEASE_SLOT, LargeRequests
from workbench.service.request_context import DisconnectedError, make_disconnect_check

ONE, OTHER = "203.0.113.7", "198.51.100.9"


class Post:
    """A large request that records the bytes read and the answer."""

    def __init__(self, address: str, size: int = LARGE_BYTES + 1, declared: bool = True, names: str = "") -> None:
        length = [(b"content-length", str(size).encode())] if declared else []
        headers = [*length, (b"x-workbench-user", names.encode())]
        self.scope = {"type": "http", "method": "POST", "path": CALLS, "headers": headers, "client": (address, 1)}
        self.address, self.size, self.read = address, size, 0
        self.left = asyncio.Event()
        self.status, self.body = 0, b""

    async def receive(self) -> dict[str, Any]:
        if self.read < self.size:
            n = min(1 << 20, self.size - self.read)
            self.read += n
            return {"type": "http.request", "body": b"x" * n, "more_body": self.read < self.size}
        await self.left.wait()
        return {"type": "http.disconnect"}

    async def send(self, message: dict[str, Any]) -> None:
        self.status = message.get("status", self.status)
        self.body += message.get("body", b"")

    async def to(self, app: Any) -> None:
        await app(self.scope, self.receive, self.send)


class Slow:
    """An app that reads the body and answers on request; it records the addresses served and the number at once."""

    def __init__(self) -> None:
        self.served: list[str] = []
        self.now = self.most = 0
        self.go = asyncio.Event()

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        self.now += 1
        self.most = max(self.most, self.now)
        while (await receive()).get("more_body"):
            pass
        self.served.append(scope["client"][0])
        await self.go.wait()
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"{}"})
        self.now -= 1


async def let_tasks_run() -> None:
    for _ in range(200):
        await asyncio.sleep(0)


@pytest.mark.parametrize("declared", [True, False])
def test_forty_large_posts_of_one_address_do_not_delay_another_address(declared: bool) -> None:
    async def scene() -> None:
        slow = Slow()
        app = Guard(LargeRequests(slow, max_concurrent=2, waiting=8))
        many = [Post(ONE, declared=declared, names=str(i)) for i in range(40)]
        asked = [asyncio.ensure_future(post.to(app)) for post in many]
        await let_tasks_run()
        other = Post(OTHER)
        asked.append(asyncio.ensure_future(other.to(app)))
        await let_tasks_run()
        assert slow.now == 2  # one of each address
        assert sum(post.read > 0 for post in many) == 1  # a body is not read before its turn
        refused = [post for post in many if post.status]
        assert len(refused) == 40 - 1 - 8
        assert "from your address" in json.loads(refused[0].body)["error"]["message"]
        slow.go.set()
        await asyncio.gather(*asked)
        assert slow.most == 2
        assert slow.served.index(OTHER) <= 1  # at the same time as the first address
        assert (len(slow.served), other.status) == (10, 200)

    asyncio.run(scene())


def test_a_caller_who_leaves_frees_the_slot() -> None:
    async def scene() -> None:
        slow = Slow()
        turns = LargeRequests(slow, max_concurrent=1)
        first, second, third = (asyncio.ensure_future(Post(ONE).to(turns)) for _ in range(3))
        await let_tasks_run()
        second.cancel()
        first.cancel()
        await let_tasks_run()
        slow.go.set()
        await third
        assert len(slow.served) == 2
        assert (turns.free, len(turns.queue), turns.waiting, turns.n_running) == (1, 0, {}, {})

    asyncio.run(scene())


def test_work_for_a_caller_who_has_left_is_cancelled() -> None:
    ended: list[type[BaseException]] = []

    def work(check: Callable[[], None], begun: threading.Event) -> None:
        begun.set()
        try:
            while True:
                check()
        except DisconnectedError as error:
            ended.append(type(error))

    async def app(scope: Any, receive: Any, send: Any) -> None:
        while (await receive()).get("more_body"):
            pass
        begun = threading.Event()
        done = asyncio.ensure_future(asyncio.to_thread(work, make_disconnect_check(), begun))
        await asyncio.to_thread(begun.wait)
        post.left.set()
        await done

    post = Post(ONE, size=10)
    asyncio.run(post.to(LargeRequests(app)))
    assert ended == [DisconnectedError]
    make_disconnect_check()()  # outside of a request the check never cancels


@pytest.mark.parametrize("declared", [True, False])
def test_a_body_far_larger_than_a_trace_is_not_read_to_its_end(declared: bool) -> None:
    async def scene() -> Post:
        slow = Slow()
        post = Post(ONE, size=11 << 20, declared=declared)
        await post.to(Guard(LargeRequests(slow), call_bytes=CALL_BYTES))
        assert not slow.served
        return post

    post = asyncio.run(scene())
    assert post.read <= (0 if declared else CALL_BYTES + (1 << 20))
    assert "4 MiB" in json.loads(post.body)["error"]["message"]


def test_large_calls_count_as_requests_and_small_ones_do_not() -> None:
    counted: list[str] = []

    def let_in(user: str, _: bool) -> None:
        if len(counted) == 1:
            raise CapacityError("Too many.", "Try again in 3 s.", 3)
        counted.append(user)

    async def scene() -> list[Post]:
        slow = Slow()
        slow.go.set()
        app = Guard(LargeRequests(slow, let_in))
        posts = [Post(ONE), Post(ONE, size=10), Post(ONE)]
        for post in posts:
            await post.to(app)
        assert len(slow.served) == 2
        return posts

    posts = asyncio.run(scene())
    assert len(counted) == 1
    assert b"Try again in 3 s" in posts[2].body


def test_a_slowly_sent_body_does_not_block_others_and_times_out() -> None:
    async def scene() -> None:
        slow = Slow()
        slow.go.set()
        turns = LargeRequests(slow, body_s=0.05)
        stuck = [Post(ONE) for _ in range(3)]
        for post in stuck:
            post.scope["path"], post.size = "/v1/completions", 0  # its body never arrives
        asked = [asyncio.ensure_future(post.to(Guard(turns))) for post in stuck]
        await let_tasks_run()
        other = Post(OTHER)
        await other.to(Guard(turns))
        assert (other.status, slow.served) == (200, [OTHER])
        await asyncio.gather(*asked)  # one after the other: each has its own time limit
        assert [post.status for post in stuck] == [408] * 3
        assert (turns.free, turns.n_running, turns.waiting) == (2, {}, {})

    asyncio.run(scene())


def test_addresses_take_turns_and_none_can_use_all_slots() -> None:
    async def scene() -> None:
        slow = Slow()
        turns = LargeRequests(slow, max_concurrent=2)
        third = "192.0.2.5"
        asked = [asyncio.ensure_future(Post(address).to(turns)) for address in (ONE, ONE, ONE, OTHER, third)]
        await let_tasks_run()
        assert slow.served == [ONE, OTHER]
        slow.go.set()
        await asyncio.gather(*asked)
        assert slow.served.index(third) < 4  # not after all requests of the first address
        assert (turns.free, turns.n_running) == (2, {})

    asyncio.run(scene())


def test_a_large_request_frees_its_slot_when_its_run_has_started() -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        await scope[RELEASE_SLOT]()
        assert turns.free == MAX_CONCURRENT
        await send({"type": "http.response.start", "status": 200, "headers": []})

    turns, post = LargeRequests(app), Post(ONE)
    post.scope["path"] = "/v1/completions"
    asyncio.run(post.to(turns))
    assert (post.status, turns.free) == (200, MAX_CONCURRENT)
