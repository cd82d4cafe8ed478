"""How often whoever shows a run is told of it."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from workbench.client import follow as following


class GrowingRun:
    """A run that has one more round whenever it is asked.

    Args:
        pace: tokens a second at which it is held back.
    """

    def __init__(self, pace: float = 0.0) -> None:
        self.n, self.pace = 0, pace

    def since(self, n: int) -> dict[str, Any]:
        self.n += 1
        rounds = [{"index": i} for i in range(n, self.n)]
        told = {"state": "running", "message": "", "rounds": rounds, "seq": self.n, "header": {}, "footer": None}
        return told | {"pace": self.pace}


def messages_in_one_second(run: GrowingRun, monkeypatch: pytest.MonkeyPatch) -> list[list[int]]:
    """Rounds by message, counted by the seconds that it asks to sleep for, so that no load of the machine comes in."""
    slept: list[float] = []

    async def sleep(seconds: float) -> None:
        slept.append(seconds)

    # This module's `asyncio` alone: other tests' servers sleep in this process too.
    monkeypatch.setattr(following, "asyncio", SimpleNamespace(sleep=sleep))

    async def messages() -> list[list[int]]:
        told = []
        async for news in following.follow(run):
            told.append([each["index"] for each in news["rounds"]])
            if sum(slept) >= 1:
                return told
        raise AssertionError("the run does not end")

    return asyncio.run(messages())


def test_a_fast_run_is_shown_ten_times_a_second_and_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    """More would be paid by the engine, whose cores the server's and the browser's work is done on."""
    told = messages_in_one_second(GrowingRun(), monkeypatch)
    assert 10 <= len(told) <= 12
    assert [i for rounds in told for i in rounds] == list(range(len(told)))


def test_of_a_run_that_is_held_back_each_round_comes_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """At the fastest pace that is offered, 20 tokens a second, a round of two tokens comes ten times a second."""
    assert len(messages_in_one_second(GrowingRun(pace=20.0), monkeypatch)) >= 15
