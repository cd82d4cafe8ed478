"""Rate of the updates that followers of a run receive."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from workbench.client import follow as following


class GrowingRun:
    """A run that has one more round at each call of `since`.

    Args:
        pace: tokens per second to which the run is slowed down.
    """

    def __init__(self, pace: float = 0.0) -> None:
        self.n, self.pace = 0, pace

    def since(self, n: int) -> dict[str, Any]:
        self.n += 1
        rounds = [{"index": i} for i in range(n, self.n)]
        news = {"state": "running", "message": "", "rounds": rounds, "seq": self.n, "header": {}, "footer": None}
        return news | {"pace": self.pace}


def messages_in_one_second(run: GrowingRun, monkeypatch: pytest.MonkeyPatch) -> list[list[int]]:
    """Return the rounds of each message in one second of requested sleep, so that machine load has no influence."""
    slept: list[float] = []

    async def sleep(seconds: float) -> None:
        slept.append(seconds)

    # This module's `asyncio` alone: other tests' servers sleep in this process too.
    monkeypatch.setattr(following, "asyncio", SimpleNamespace(sleep=sleep))

    async def messages() -> list[list[int]]:
        sent_rounds = []
        async for news in following.follow(run):
            sent_rounds.append([each["index"] for each in news["rounds"]])
            if sum(slept) >= 1:
                return sent_rounds
        raise AssertionError("the run does not end")

    return asyncio.run(messages())


def test_a_fast_run_sends_at_most_ten_messages_per_second(monkeypatch: pytest.MonkeyPatch) -> None:
    """More messages would slow the engine down, because server and browser use the same cores."""
    sent_rounds = messages_in_one_second(GrowingRun(), monkeypatch)
    assert 10 <= len(sent_rounds) <= 12
    assert [i for rounds in sent_rounds for i in rounds] == list(range(len(sent_rounds)))


def test_a_slowed_run_sends_each_round_in_its_own_message(monkeypatch: pytest.MonkeyPatch) -> None:
    """At the fastest pace of the form, 20 tokens per second, rounds of two tokens come ten times per second."""
    assert len(messages_in_one_second(GrowingRun(pace=20.0), monkeypatch)) >= 15
