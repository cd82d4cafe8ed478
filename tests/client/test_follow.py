"""How often whoever shows a run is told of it."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from workbench.client import follow as following


class Writes:
    """A run that has one more round whenever it is asked."""

    def __init__(self) -> None:
        self.n = 0

    def since(self, n: int) -> dict[str, Any]:
        self.n += 1
        rounds = [{"index": i} for i in range(n, self.n)]
        return {"state": "running", "message": "", "rounds": rounds, "seq": self.n, "header": {}, "footer": None}


def test_a_fast_run_is_shown_ten_times_a_second_or_more(monkeypatch: pytest.MonkeyPatch) -> None:
    """Counted by the seconds that it asks to sleep for, so that no load of the machine comes in."""
    slept: list[float] = []

    async def sleep(seconds: float) -> None:
        slept.append(seconds)

    # This module's `asyncio` alone: other tests' servers sleep in this process too.
    monkeypatch.setattr(following, "asyncio", SimpleNamespace(sleep=sleep))

    async def told_in_a_second() -> int:
        told = 0
        async for news in following.follow(Writes()):
            told += bool(news["rounds"])
            if sum(slept) >= 1:
                return told
        raise AssertionError("the run does not end")

    assert asyncio.run(told_in_a_second()) >= 10
