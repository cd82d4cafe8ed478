"""Recommendations on a shared backend: other runs have priority, the time budget holds, errors are readable."""

from __future__ import annotations

from typing import Any

import pytest
from ui.fake_client import FakeRun, FakeWorkbench

from workbench.bench import advice, backend_run
from workbench.bench.advice import Advice, advise
from workbench.bench.prompts import BenchPrompt
from workbench.core.errors import (
    ContextError,
    MethodUnavailableError,
    ParameterError,
    PromptError,
    UnknownNameError,
    WorkbenchError,
)


class Host(FakeWorkbench):
    """A backend over synthetic rounds that records its requests."""

    def __init__(self) -> None:
        super().__init__(pace=0.0)
        self.asked: list[dict[str, Any]] = []
        self.made: list[FakeRun] = []
        self.busy: list[bool] = []
        self.broken: dict[str, Exception] = {}

    def start(self, prompt: Any, method: str = "", **asked: Any) -> FakeRun:
        assert asked.pop("is_timed")
        self.asked.append({"prompt": prompt, "method": method, **asked})
        if method in self.broken and (method != "autoregressive" or prompt == "long"):
            raise self.broken[method]
        self.made.append(super().start(prompt, method, **asked))
        return self.made[-1]

    def drop_run(self, run: Any) -> None:
        pass

    def has_other_runs(self, excluding: Any = None) -> bool:
        return self.busy.pop(0) if self.busy else False


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backend_run, "POLL_S", 0.01)
    monkeypatch.setattr(advice, "SHORTEST_S", 0)


def collect_advice(host: Host, prompts: Any = ("Once", "Twice"), seconds: float = 1.2, **more: Any) -> list[Advice]:
    return list(advise(host, prompts, seconds=seconds, max_new_tokens=16, **more))


def test_methods_are_measured_in_turn_until_the_time_is_up() -> None:
    host = Host()
    said = collect_advice(host)
    assert [step.last for step in said] == [False] * (len(said) - 1) + [True]
    assert said[-1].text == "done"
    assert said[-1].spent >= 1.2
    assert all(run.background for run in host.made)  # type: ignore[attr-defined]
    order = [(asked["method"], asked["prompt"], asked["max_new_tokens"]) for asked in host.asked]
    assert order.pop(0) == ("autoregressive", advice.LOADING_PROMPT, 1), (
        "the first run loads the models and reports progress"
    )
    assert order[:2] == [("autoregressive", "Once", 12), ("autoregressive", "Twice", 12)], "each prompt is tried first"
    warm_up = ["autoregressive", "autoregressive", "draft-model", "draft-model", "draft-tree", "draft-tree"]
    assert [method for method, _, _ in order[2:8]] == warm_up
    assert {n for _, _, n in order[8:]} == {16}
    assert {asked["params"]["temperature"] for asked in host.asked} == {0.0}
    found = said[-1].found
    assert found is not None
    assert found["target"] == "synthetic-target"
    assert {choice["method"] for choice in found["ranking"]} == {"draft-model", "draft-tree"}
    assert found["prompts"][0] == "prompt 1"
    assert found["complete"]
    assert Advice(**said[-1].to_wire()) == said[-1]


def test_other_runs_have_priority_and_waiting_does_not_count() -> None:
    host = Host()
    host.busy = [False, True] + [True] * 40 + [False]  # taken while the first run goes on, then for a while
    said = collect_advice(host, ["Once"], 0.5)
    waiting = [step for step in said if step.waiting == "waiting: another run is using the device"]
    assert len(waiting) > 20
    assert host.made[0].stopped, "the current run is stopped for the other run"
    assert host.asked[0] == host.asked[1], "the interrupted run is repeated"
    assert {step.spent for step in waiting} == {0.0}
    assert said[-1].found is not None


def test_a_stop_returns_the_measurements_so_far() -> None:
    seen = [Advice(0, 0)]
    for step in advise(Host(), ["Once"], seconds=60, max_new_tokens=16, stopped=lambda: seen[-1].done >= 10):
        seen.append(step)  # noqa: PERF402  (the condition reads it)
    assert (seen[-1].text, seen[-1].last) == ("stopped", True)
    assert seen[-1].found is not None
    assert not seen[-1].found["complete"]


def test_a_failed_method_is_named_and_the_others_continue() -> None:
    host = Host()
    host.broken = {"draft-model": WorkbenchError("It broke.", "Mend it.")}
    found = collect_advice(host, ["Once"], 0.8)[-1].found
    assert found is not None
    assert found["failed"] == {"draft-model": "It broke. Mend it."}
    assert [choice["method"] for choice in found["ranking"]] == ["draft-tree"]


def test_a_prompt_that_does_not_fit_is_named_before_anything_is_measured() -> None:
    host = Host()
    host.broken = {"autoregressive": ContextError("It has 9,000 tokens.", "Shorten it.")}
    with pytest.raises(ContextError, match=r"mine: It has 9,000 tokens\. Shorten it\."):
        collect_advice(host, ["Once", BenchPrompt("mine", "long")])
    assert {asked["method"] for asked in host.asked} == {"autoregressive"}
    with pytest.raises(ContextError, match=r"^It has 9,000 tokens\."):
        collect_advice(host, ["long"])


def test_token_ids_of_a_run_are_sent_unchanged() -> None:
    host = Host()
    found = collect_advice(host, [("run-1", [3, 4, 5])], 0.5, methods=["draft-tree"])[-1].found
    assert found is not None
    assert found["prompts"] == ["run-1"]
    assert {tuple(asked["prompt"]) for asked in host.asked[1:]} == {(3, 4, 5)}
    assert {asked["method"] for asked in host.asked} == {"autoregressive", "draft-tree"}


@pytest.mark.parametrize(
    ("prompts", "more", "error", "says"),
    [
        ([], {}, PromptError, "number of prompts, 0,"),
        (["a"] * 33, {}, PromptError, "number of prompts, 33,"),
        (["a", " "], {}, PromptError, "Prompt 2 is empty"),
        ([("run", [])], {}, PromptError, "Prompt 1 is empty"),
        (["a"], {"seconds": 1e9}, ParameterError, "out of range"),
        (["a"], {"methods": ["sufix"]}, UnknownNameError, "suffix"),
        (["a"], {"methods": ["medusa"]}, MethodUnavailableError, "needs Medusa heads"),
        (["a"], {"methods": ["oracle"]}, MethodUnavailableError, "No speculative method"),
    ],
)
def test_invalid_requests_are_refused_before_the_first_step(prompts: Any, more: Any, error: type, says: str) -> None:
    with pytest.raises(error, match=says):
        advise(Host(), prompts, **more)
