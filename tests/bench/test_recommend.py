"""Recommendations: who leaves, when it ends, what counts when it is stopped, and what is said."""

from __future__ import annotations

import dataclasses
from typing import Any

import model_helpers
import pytest

from workbench.bench import candidate_runs
from workbench.bench import recommend as measuring
from workbench.bench.contenders import EngineContender
from workbench.bench.recommend import PromptIds, recommend
from workbench.bench.recommendation import RankedMethod, Recommendation
from workbench.bench.sample import Sample
from workbench.core.errors import PromptError, WorkbenchError
from workbench.engine import Models
from workbench.methods import registry
from workbench.trace.speedup import Estimate

PROMPTS = [PromptIds(f"p{i}", [1, 2, 3, 4 + i]) for i in range(3)]
MS = {"autoregressive": 10.0, "suffix": 6.0, "prompt-lookup": 6.1, "token-recycling": 20.0}
"""Milliseconds a token, on a machine that does the same every time; one method likes the first prompt best."""
NAMES = [name for name in MS if name != "autoregressive"]


class Clock:
    """Seconds that pass while somebody writes."""

    def __init__(self) -> None:
        self.now, self.ran = 0.0, list[tuple[str, int, int]]()
        self.cold_s, self.warm = 0.0, set[str]()  # what a method's first run takes besides
        self.slowed = dict[tuple[str, int, int, int], float]()  # (method, prompt, repeat, tokens): how many times

    def __call__(self) -> float:
        return self.now


@pytest.fixture(scope="module")
def models() -> Models:
    return model_helpers.make_small_models(noise=None)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    found = Clock()

    def write(self: EngineContender, ids: Any, prompt: int = 0, repeat: int = 0) -> Sample:
        found.ran.append((self.name, prompt, repeat))
        n = self.max_new_tokens
        is_cold = self.name not in found.warm
        found.warm.add(self.name)
        seconds = n * MS[self.name] / 1e3 * (1 + 0.01 * prompt * (self.name == "suffix")) + found.cold_s * is_cold
        seconds *= found.slowed.pop((self.name, prompt, repeat, n), 1.0)
        found.now += seconds
        rounds = n if self.name == "autoregressive" else n // 2
        figures = {"accepted": n - rounds, "tested": n, "drafted": 2 * n, "decode_s": seconds, "verify_s": seconds / 2}
        return Sample(self.name, prompt, repeat, [5] * n, seconds, seconds, rounds, figures)

    monkeypatch.setattr(EngineContender, "run", write)
    return found


def ask(models: Models, clock: Clock, seconds: float = 60.0, **more: Any) -> Recommendation:
    chosen = [registry.get(name).with_params() for name in NAMES]
    return recommend(models, PROMPTS, seconds, methods=chosen, now=clock, **more)


def test_the_fastest_is_named_with_its_reason_and_its_command(models: Models, clock: Clock) -> None:
    found = ask(models, clock)
    assert [choice.method for choice in found.ranking] == ["suffix", "prompt-lookup", "token-recycling"]
    assert found.ranking[0].speedup is not None
    assert found.ranking[0].speedup.value == pytest.approx(10 / 6, rel=0.02)
    assert found.command == 'workbench generate --target tiny-llama --chat "…" --method suffix'
    assert found.answer.startswith("Suffix decoding: 1.65×: faster")
    assert "2.00 tokens per pass, 50% of its drafts accepted; a round costs 1.21 plain ones" in found.answer
    assert found.prompts == ["p0", "p1", "p2"]
    assert found.complete


def test_the_slow_leave_after_a_pass_and_the_time_goes_to_the_others(models: Models, clock: Clock) -> None:
    found = ask(models, clock, 20.0)
    assert {choice.method: choice.left for choice in found.ranking}["token-recycling"] == 1
    runs = [name for name, _, _ in clock.ran]
    assert runs.count("token-recycling") == 2 + len(PROMPTS)
    assert runs.count("suffix") > 3 * len(PROMPTS)
    assert abs(runs.count("autoregressive") - runs.count("suffix")) <= 1, "plain decoding stays to the end"


def test_nothing_begins_after_the_time_is_up(models: Models, clock: Clock) -> None:
    begun: list[float] = []
    found = ask(models, clock, 4.0, progress=lambda spent, done, what: begun.append(spent))
    assert found.complete
    assert max(begun) < 4.0
    assert found.seconds < 4.0 + 64 * max(MS.values()) / 1e3


def test_runs_are_interleaved_in_changing_order(models: Models, clock: Clock) -> None:
    ask(models, clock, 12.0)
    timed = [name for name, _, _ in clock.ran[2 * len(MS) :]]
    passes = [timed[i : i + len(MS)] for i in range(0, 3 * len(MS), len(MS))]
    assert all(sorted(p) == sorted(MS) for p in passes), "all take their turn before anybody's second"
    assert len({p[0] for p in passes}) > 1


@pytest.mark.parametrize("at", [1, 10, 13, 24])
@pytest.mark.parametrize("how", ["ctrl-c", "stopped"])
def test_a_stop_gives_what_was_measured(at: int, how: str, models: Models, clock: Clock) -> None:
    """In the warm-up (1), before plain decoding's pass is whole (10), and later."""

    def told(spent: float, done: int, what: str) -> None:
        if how == "ctrl-c" and done == at:
            raise KeyboardInterrupt

    found = ask(models, clock, progress=told, stopped=lambda: how == "stopped" and len(clock.ran) >= at)
    assert not found.complete
    assert len(clock.ran) == at
    measured = {name for name, *_ in clock.ran[2 * len(MS) :]} - {"autoregressive"}
    assert {choice.method for choice in found.ranking} == measured
    assert "Plain decoding" in found.answer or at == 24


def test_every_contender_is_warmed_up_before_anything_counts(models: Models, clock: Clock) -> None:
    """A first run that takes seconds more, for compiling and loading, is in no figure."""
    clock.cold_s = 2.0
    found = ask(models, clock)
    assert {name for name, *_ in clock.ran[: 2 * len(MS)]} == set(MS)
    assert found.ranking[0].speedup is not None
    assert found.ranking[0].speedup.value == pytest.approx(10 / 6, rel=0.02)
    assert not found.limits


def test_a_speed_up_that_no_method_can_reach_is_no_result(models: Models, clock: Clock) -> None:
    """A plain run that something else slowed 60 times made every method beside it come out 100 times faster at τ 2."""
    clock.slowed["autoregressive", 1, 0, 64] = 60.0
    found = ask(models, clock)
    assert all(c.speedup is not None and c.tau is not None and c.speedup.value <= c.tau for c in found.ranking)
    assert found.ranking[0].speedup is not None
    assert found.ranking[0].speedup.value == pytest.approx(10 / 6, rel=0.02)
    assert found.disturbed == 1
    assert "1 plain run is left out" in found.limits


def test_where_all_plain_runs_are_slowed_impossible_figures_are_refused_by_name(
    models: Models, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(MS, "autoregressive", 100.0)  # suffix then comes out 16.7 times as fast at τ 2
    found = ask(models, clock)
    assert (found.ranking, sorted(found.refused)) == ([], sorted(NAMES))
    assert "Left out of the ranking: suffix, prompt-lookup, token-recycling" in found.limits


def test_methods_that_do_not_fit_the_time_are_left_out_by_name(
    models: Models, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The warm-up takes 1 s; a pass over the prompts 8.1 s of all four, and 4.2 s without the slowest."""
    monkeypatch.setattr(candidate_runs, "MIN_CONTENDERS", 1)
    found = ask(models, clock, 6.0)
    assert found.unreached == ["token-recycling"]
    assert "It did not suffice for 1 method: token-recycling." in found.limits
    assert found.prompts == ["p0", "p1", "p2"]
    assert (found.asked, ask(models, clock, 10.0).unreached) == (3, [])


def test_what_the_time_did_not_suffice_for_is_said(models: Models, clock: Clock) -> None:
    """Room for the warm-up and about one prompt: the answer says how many were reached."""
    found = ask(models, clock, 3.5)
    assert found.complete
    assert found.prompts == ["p0"]
    assert "The time sufficed for 1 of 3 prompts." in found.limits


def test_one_that_fails_is_named_and_the_others_go_on(
    models: Models, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    write = EngineContender.run

    def fail(self: EngineContender, ids: Any, prompt: int = 0, repeat: int = 0) -> Sample:
        if self.name == "suffix" and len(clock.ran) > 9:
            raise WorkbenchError("It broke.", "Mend it.")
        return write(self, ids, prompt, repeat)

    monkeypatch.setattr(EngineContender, "run", fail)
    found = ask(models, clock, 10.0)
    assert found.failed == {"suffix": "It broke. Mend it."}
    assert found.best is not None
    assert found.best.method == "prompt-lookup"


def test_where_nothing_is_surely_faster_plain_decoding_is_the_answer() -> None:
    def choice(low: float, high: float) -> RankedMethod:
        return RankedMethod(
            "suffix", "Suffix", {}, Estimate((low * high) ** 0.5, low, high, 9, 3), 1.5, 0.5, 1.4, 1.0, 9.0
        )

    def made(*choices: RankedMethod, repeats: float | None = None) -> Recommendation:
        return Recommendation("t", ["a"], list(choices), repeats, 1.0, 1, True, {})

    assert made(choice(0.9, 1.3)).answer.startswith("Plain decoding: no method is surely faster yet.")
    assert made(choice(0.5, 0.9)).answer == "Plain decoding: every method was slower."
    assert made(choice(0.5, 0.9)).command.endswith("--method autoregressive")
    assert "there is little to copy" in made(choice(0.5, 0.9), repeats=0.1).answer
    other = dataclasses.replace(choice(1.0, 1.6), method="rest")
    assert made(choice(1.2, 1.5), other, repeats=0.5).rivals == ["rest"]
    assert "Of the text, 50% repeats what stood before: what copies has something to copy." in made(
        choice(1.2, 1.5), repeats=0.5
    ).answer  # fmt: skip


def test_repeats_are_counted_by_hand() -> None:
    """Behind [1 2 3 4 1 2 3]: 4 was told, 9 was not, then [4 9 7] and the like never stood before."""
    prompts = {0: [1, 2, 3, 4, 1, 2, 3]}
    sample = Sample("autoregressive", 0, 0, [4, 9, 7, 7], 1.0, 1.0, 4)
    assert candidate_runs.repeated_share(prompts, [sample]) == 1 / 4
    assert candidate_runs.repeated_share(prompts, []) is None


def test_no_prompt_and_no_method_are_said() -> None:
    models = model_helpers.make_small_models(noise=None)
    with pytest.raises(PromptError, match="--prompts"):
        recommend(models, [], 1.0)
    assert {c.name for c in measuring.candidates(models)} >= {"suffix", "rest", "prompt-lookup"}
    assert not {"autoregressive", "draft-model", "oracle", "medusa"} & {c.name for c in measuring.candidates(models)}


def test_all_that_run_are_measured() -> None:
    """For real, on a tiny target: two passes. Runs of four tokens vary so much that a figure may be refused."""
    models = model_helpers.make_small_models(noise=None)
    n = len(measuring.candidates(models)) + 1
    many = iter([*[0.0] * 10 * n, *[99.0] * 99])
    found = recommend(models, PROMPTS[:1], 50.0, max_new_tokens=4, now=lambda: next(many))
    assert not found.failed
    assert {*(c.method for c in found.ranking), *found.refused} == {c.name for c in measuring.candidates(models)}
    wire = found.to_wire()
    speedups = [c["speedup"]["value"] for c in wire["ranking"]]
    assert speedups == sorted(speedups, reverse=True)
