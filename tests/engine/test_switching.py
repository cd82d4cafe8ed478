"""Random schedules that switch among all exact drafters without training during a run keep the greedy text.

Many sequences share a batch, so that a schedule takes hundredths of a second; the reference is Hugging Face's text.
"""

from __future__ import annotations

from random import Random
from typing import Any

import model_helpers
import pytest

from workbench.core.errors import WorkbenchError
from workbench.core.promise import Promise
from workbench.decoders import Method
from workbench.engine import Engine, Models, Request, Sequence
from workbench.engine.request import FINISHED
from workbench.methods import registry

pytestmark = pytest.mark.unchecked
N, ROWS, PROMPTS, OFTEN = 20, 50, 10, 0.5
"""Tokens per text, sequences at a time, prompts, and the probability of a switch before a round."""
NAMES = (
    "prompt-lookup", "suffix", "aggressive", "stand", "adaptive-trigram", "token-recycling", "lookahead-trie", "rest",
    "rasd", "jacobi", "lookahead", "early-exit", "swift", "del", "unified-skip", "online", "autoregressive",
)  # fmt: skip
"""The drafters of issue 18 that need no training, including plain decoding."""


@pytest.fixture(scope="module")
def models(device: str) -> Models:
    """Models in float64; the draft model is for RASD."""
    return model_helpers.make_models("llama", noise=0.2, device=device)


def prompts() -> list[list[int]]:
    """Return texts with and without repetition, of several lengths."""
    return [
        model_helpers.repeating_prompt(9 + 3 * i, seed=i, period=3 + i)
        if i % 2
        else model_helpers.random_prompt(7 + 4 * i, seed=i)
        for i in range(PROMPTS)
    ]


def random_setting(random: Random) -> tuple[Method, dict[str, Any]]:
    """Return a random method and some random parameters, including shared memory."""
    method = registry.get(random.choice(NAMES))
    values: dict[str, Any] = {}
    for name, spec in method.params.items():
        if (
            random.random() > 0.3 or spec.when or name in ("verifier", "exit_layer")
        ):  # with three layers, few would be left
            continue
        if spec.choices:
            values[name] = random.choice(spec.choices)
        elif spec.kind == "bool":
            values[name] = random.random() < 0.5
        elif spec.kind == "int" and spec.ge is not None and spec.le is not None:
            values[name] = random.randint(int(spec.ge), min(int(spec.le), int(spec.ge) + 12))
    return method, values


class Schedule:
    """A sequence with its random numbers and its changes so far."""

    def __init__(self, seed: int, begin: list[list[int]]) -> None:
        self.random, self.seed = Random(seed), seed
        self.prompt = seed % len(begin)
        method, values = random_setting(self.random)
        self.changes = [(0, method.name, values)]
        self.request = Request(begin[self.prompt], method.with_params(**values), max_new_tokens=N, stop_at_eos=False)
        self.row: Sequence | None = None

    def maybe_switch(self) -> None:
        """Switch to another method for the next round, with some probability."""
        assert self.row is not None
        if self.row.is_open and self.random.random() < OFTEN:
            method, values = random_setting(self.random)
            assert self.row.trace is not None
            self.changes.append((len(self.row.trace.rounds), method.name, values))
            self.row.change(method=method, params=values)


def failing_schedules(models: Models, seeds: range) -> dict[int, str]:
    """Return the seeds of schedules with a wrong text, an error or a refused change, and the reasons."""
    begin = prompts()
    wanted = [model_helpers.hf_greedy(models.target.model, prompt, N) for prompt in begin]
    found: dict[int, str] = {}
    for first in range(seeds.start, seeds.stop, ROWS):
        engine = Engine(models, max_sequences=ROWS, record=False)
        running = [Schedule(seed, begin) for seed in range(first, min(first + ROWS, seeds.stop))]
        for schedule in running:
            schedule.row = engine.submit(schedule.request)
        while not engine.is_idle:
            engine.step()
            for schedule in running:
                schedule.maybe_switch()
        for schedule in running:
            row = schedule.row
            assert row is not None
            assert row.trace is not None
            refusals = [note for note in row.trace.footer.warnings if "cannot be" in note]
            if row.status != FINISHED or row.trace.token_ids != wanted[schedule.prompt] or refusals:
                found[schedule.seed] = f"{row.status} {row.trace.footer.error} {refusals} {schedule.changes}"
    return found


def test_schedules_contain_every_exact_drafter_without_training() -> None:
    trained = {"draft-model", "medusa", "eagle", "kangaroo"}
    assert not trained & set(NAMES)
    for name in NAMES:
        method = registry.get(name)
        assert method.promise in (Promise.EXACT, Promise.GREEDY_EXACT), name
        assert method.head is None, name
    seen = {name for seed in range(100) for _, name, _ in Schedule(seed, prompts()).changes}
    assert seen == set(NAMES)


def test_a_hundred_random_schedules_write_the_same_text(models: Models, caplog: pytest.LogCaptureFixture) -> None:
    assert failing_schedules(models, range(100)) == {}
    assert not caplog.records, "no inactive drafter failed"


@pytest.mark.slow
@pytest.mark.on_demand
def test_a_thousand_random_schedules_write_the_same_text(models: Models, caplog: pytest.LogCaptureFixture) -> None:
    assert failing_schedules(models, range(100, 1000)) == {}
    assert not caplog.records


def test_schedule_that_changes_the_text_is_detected(models: Models, monkeypatch: pytest.MonkeyPatch) -> None:
    """Here a round's last token is wrong whenever more than four tokens were drafted."""
    from workbench.decoders.draft_verify.round_state import RoundState

    whole = RoundState.walk

    def wrong_once(self: RoundState) -> None:
        whole(self)
        if self.verified_tree is not None and len(self.verified_tree.acceptance.walk.tokens) > 4:
            object.__setattr__(self.verified_tree.result, "bonus", self.verified_tree.result.bonus ^ 1)

    monkeypatch.setattr(RoundState, "walk", wrong_once)
    with pytest.raises((AssertionError, WorkbenchError)):
        assert failing_schedules(models, range(12)) == {}
