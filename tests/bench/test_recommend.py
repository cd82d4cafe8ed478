"""Recommendations: which methods are dropped, when it ends, which runs count after a stop, and the answer's text."""

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
"""Milliseconds per token on a machine without noise; one method is fastest on the first prompt."""
NAMES = [name for name in MS if name != "autoregressive"]


class Clock:
    """A simulated clock, advanced by each run."""

    def __init__(self) -> None:
        self.now, self.ran = 0.0, list[tuple[str, int, int]]()
        self.cold_s, self.warm = 0.0, set[str]()  # extra time of a method's first run
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
    assert (
        "2.00 tokens per pass, 50% of its tested draft tokens accepted; a round takes as long as 1.21 plain"
        in found.answer
    )
    assert found.prompts == ["p0", "p1", "p2"]
    assert found.complete


def test_slow_methods_are_dropped_after_a_pass_and_the_others_get_the_time(models: Models, clock: Clock) -> None:
    found = ask(models, clock, 20.0)
    assert {choice.method: choice.left for choice in found.ranking}["token-recycling"] == 1
    runs = [name for name, _, _ in clock.ran]
    assert runs.count("token-recycling") == 2 + len(PROMPTS)
    assert runs.count("suffix") > 3 * len(PROMPTS)
    assert abs(runs.count("autoregressive") - runs.count("suffix")) <= 1, "plain decoding is measured to the end"


def test_no_run_starts_after_the_time_is_up(models: Models, clock: Clock) -> None:
    begun: list[float] = []
    found = ask(models, clock, 4.0, progress=lambda spent, done, what: begun.append(spent))
    assert found.complete
    assert max(begun) < 4.0
    assert found.seconds < 4.0 + 64 * max(MS.values()) / 1e3


def test_runs_are_interleaved_in_changing_order(models: Models, clock: Clock) -> None:
    ask(models, clock, 12.0)
    timed = [name for name, _, _ in clock.ran[2 * len(MS) :]]
    passes = [timed[i : i + len(MS)] for i in range(0, 3 * len(MS), len(MS))]
    assert all(sorted(p) == sorted(MS) for p in passes), "every method runs once before any runs twice"
    assert len({p[0] for p in passes}) > 1


@pytest.mark.parametrize("at", [1, 10, 13, 24])
@pytest.mark.parametrize("how", ["ctrl-c", "stopped"])
def test_a_stop_returns_the_measurements_so_far(at: int, how: str, models: Models, clock: Clock) -> None:
    """Stopped in the warm-up (1), before plain decoding's pass is complete (10), and later."""

    def on_progress(spent: float, done: int, what: str) -> None:
        if how == "ctrl-c" and done == at:
            raise KeyboardInterrupt

    found = ask(models, clock, progress=on_progress, stopped=lambda: how == "stopped" and len(clock.ran) >= at)
    assert not found.complete
    assert len(clock.ran) == at
    measured = {name for name, *_ in clock.ran[2 * len(MS) :]} - {"autoregressive"}
    assert {choice.method for choice in found.ranking} == measured
    assert "Plain decoding" in found.answer or at == 24


def test_every_contender_is_warmed_up_before_anything_counts(models: Models, clock: Clock) -> None:
    """The first run, slower by compiling and loading, is not part of any figure."""
    clock.cold_s = 2.0
    found = ask(models, clock)
    assert {name for name, *_ in clock.ran[: 2 * len(MS)]} == set(MS)
    assert found.ranking[0].speedup is not None
    assert found.ranking[0].speedup.value == pytest.approx(10 / 6, rel=0.02)
    assert not found.limits


def test_a_speed_up_that_no_method_can_reach_is_no_result(models: Models, clock: Clock) -> None:
    """One plain run slowed down 60 times made every method paired with it 100 times faster at τ 2."""
    clock.slowed["autoregressive", 1, 0, 64] = 60.0
    found = ask(models, clock)
    assert all(c.speedup is not None and c.tau is not None and c.speedup.value <= c.tau for c in found.ranking)
    assert found.ranking[0].speedup is not None
    assert found.ranking[0].speedup.value == pytest.approx(10 / 6, rel=0.02)
    assert found.disturbed == 1
    assert "1 plain decoding run is left out" in found.limits


def test_impossible_speed_ups_are_refused_by_name_if_all_plain_runs_are_slow(
    models: Models, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(MS, "autoregressive", 100.0)  # the measured speed-up of suffix is then 16.7 at τ 2
    found = ask(models, clock)
    assert (found.ranking, sorted(found.refused)) == ([], sorted(NAMES))
    assert "Left out of the ranking: suffix, prompt-lookup, token-recycling" in found.limits


def test_methods_that_exceed_the_time_are_left_out_by_name(
    models: Models, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The warm-up takes 1 s; a pass over the prompts 8.1 s for all four methods, 4.2 s without the slowest."""
    monkeypatch.setattr(candidate_runs, "MIN_CONTENDERS", 1)
    found = ask(models, clock, 6.0)
    assert found.unreached == ["token-recycling"]
    assert "The time limit left 1 method unmeasured: token-recycling." in found.limits
    assert found.prompts == ["p0", "p1", "p2"]
    assert (found.asked, ask(models, clock, 10.0).unreached) == (3, [])


def test_prompts_that_were_not_reached_are_reported(models: Models, clock: Clock) -> None:
    """Time for the warm-up and about one prompt: the answer gives the number of prompts reached."""
    found = ask(models, clock, 3.5)
    assert found.complete
    assert found.prompts == ["p0"]
    assert "The time limit allowed only 1 of 3 prompts." in found.limits


def test_a_failed_method_is_named_and_the_others_continue(
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


def test_plain_decoding_is_recommended_if_no_method_is_clearly_faster() -> None:
    def choice(low: float, high: float) -> RankedMethod:
        return RankedMethod(
            "suffix", "Suffix", {}, Estimate((low * high) ** 0.5, low, high, 9, 3), 1.5, 0.5, 1.4, 1.0, 9.0
        )

    def made(*choices: RankedMethod, repeats: float | None = None) -> Recommendation:
        return Recommendation("t", ["a"], list(choices), repeats, 1.0, 1, True, {})

    assert made(choice(0.9, 1.3)).answer.startswith("Plain decoding: no method is significantly faster yet.")
    assert made(choice(0.5, 0.9)).answer == "Plain decoding: every other method was slower."
    assert made(choice(0.5, 0.9)).command.endswith("--method autoregressive")
    assert "methods that copy find little to copy" in made(choice(0.5, 0.9), repeats=0.1).answer
    other = dataclasses.replace(choice(1.0, 1.6), method="rest")
    assert made(choice(1.2, 1.5), other, repeats=0.5).rivals == ["rest"]
    assert "50% of the text repeats earlier text: methods that copy can benefit." in made(
        choice(1.2, 1.5), repeats=0.5
    ).answer  # fmt: skip


def test_repeats_are_counted_by_hand() -> None:
    """After [1 2 3 4 1 2 3]: token 4 repeats what followed before; 9, and tokens after [4 9 7] and so on, do not."""
    prompts = {0: [1, 2, 3, 4, 1, 2, 3]}
    sample = Sample("autoregressive", 0, 0, [4, 9, 7, 7], 1.0, 1.0, 4)
    assert candidate_runs.repeated_share(prompts, [sample]) == 1 / 4
    assert candidate_runs.repeated_share(prompts, []) is None


def test_missing_prompts_are_refused_and_candidates_exclude_unsuitable_methods() -> None:
    models = model_helpers.make_small_models(noise=None)
    with pytest.raises(PromptError, match="--prompts"):
        recommend(models, [], 1.0)
    assert {c.name for c in measuring.candidates(models)} >= {"suffix", "rest", "prompt-lookup"}
    assert not {"autoregressive", "draft-model", "oracle", "medusa"} & {c.name for c in measuring.candidates(models)}


def test_all_runnable_methods_are_measured() -> None:
    """A real measurement of a tiny target, two passes. Runs of four tokens vary, so a figure may be refused."""
    models = model_helpers.make_small_models(noise=None)
    n = len(measuring.candidates(models)) + 1
    many = iter([*[0.0] * 10 * n, *[99.0] * 99])
    found = recommend(models, PROMPTS[:1], 50.0, max_new_tokens=4, now=lambda: next(many))
    assert not found.failed
    assert {*(c.method for c in found.ranking), *found.refused} == {c.name for c in measuring.candidates(models)}
    wire = found.to_wire()
    speedups = [c["speedup"]["value"] for c in wire["ranking"]]
    assert speedups == sorted(speedups, reverse=True)
