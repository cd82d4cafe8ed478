"""Comparison of saved runs: paired differences, and why runs are not comparable."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from workbench.bench.run_comparison import NOT_ALTERNATED, compare_runs
from workbench.trace.events import Trace
from workbench.trace.metrics import summary
from workbench.views import recorded_runs


def run(name: str, prompt: int = 0, slower: float = 1.0, **header: Any) -> Trace:
    """Return a recording with another prompt and other speed."""
    trace = copy.deepcopy(recorded_runs.trace(name))
    trace.header.prompt_tokens = [*trace.header.prompt_tokens, prompt]
    for field, value in {"created": "2026-11-30T10:00:00+0000", "hardware": "box"}.items():
        setattr(trace.header, field, value)
    for field, value in header.items():
        setattr(trace.header, field, value)
    for one in trace.rounds:
        one.seconds *= slower
        one.started_s *= slower
    return trace


def test_a_group_that_is_slower_on_every_prompt_is_slower_with_an_interval() -> None:
    first = [run("draft-model", prompt, 2 + prompt / 50) for prompt in range(6)]
    found = compare_runs(first, [run("draft-model", prompt) for prompt in range(6)])
    assert (found["problems"], found["prompts"]) == ([], 6)
    speed = found["figures"]["speed"]
    assert speed["high"] < 1
    assert speed["verdict"] == "slower"
    assert speed["value"] == pytest.approx(1 / 2.05, rel=0.01)
    assert speed["basis"] == "n = 6 prompts"
    tau = found["figures"]["tau"]
    assert (tau["value"], tau["n"], tau["verdict"]) == (0, 6, "no significant difference yet")
    assert NOT_ALTERNATED in found["notes"]


def test_the_difference_of_tau_is_that_of_quotients_of_sums_over_the_common_prompts() -> None:
    first = [run("draft-model", prompt) for prompt in range(4)]
    second = [run("prompt-lookup", prompt, prompt_tokens=[*first[prompt].header.prompt_tokens]) for prompt in range(4)]
    alone = run("prompt-lookup", 99)
    found = compare_runs(first, [*second, alone])
    expected = summary(first[0])["tau"] - summary(second[0])["tau"]
    assert found["figures"]["tau"]["value"] == pytest.approx(expected)
    assert found["figures"]["tau"]["verdict"] in ("higher", "lower")
    assert any("Not used: 1 runs" in note for note in found["notes"])


def test_a_single_pair_has_no_interval_and_no_verdict() -> None:
    found = compare_runs([run("draft-model")], [run("draft-model", slower=3)])
    assert found["figures"]["speed"]["low"] is None
    assert found["figures"]["speed"]["verdict"] == "one run"
    assert found["figures"]["tau"]["verdict"] == "n = 1: no interval"


def test_repeats_of_one_prompt_give_an_interval_of_the_speed_for_this_prompt_only() -> None:
    first = [run("draft-model", slower=2 + i / 100) for i in range(4)]
    speed = compare_runs(first, [run("draft-model") for _ in range(4)])["figures"]["speed"]
    assert speed["high"] < 1
    assert speed["basis"] == "n = 4, this prompt only"


@pytest.mark.parametrize(
    ("header", "problem"),
    [
        ({"target": "other"}, "The targets differ: other and text-target."),
        ({"prompt_tokens": [1, 2]}, "The two groups of runs have no prompt in common."),
    ],
)
def test_other_targets_and_prompts_are_not_comparable(header: dict[str, Any], problem: str) -> None:
    found = compare_runs([run("draft-model")], [run("draft-model", **header)])
    assert found["problems"] == [problem]
    assert found["figures"] == {}


def test_speeds_of_different_machines_are_not_compared_but_tau_is() -> None:
    found = compare_runs([run("draft-model")], [run("draft-model", hardware="another box", device="cuda")])
    assert set(found["figures"]) == {"tau", "acceptance_rate"}
    note = next(note for note in found["notes"] if note.startswith("Speeds are not comparable."))
    assert "another box and box" in note
    assert "cpu and cuda" in note


def test_a_method_without_drafts_has_no_acceptance_rate_to_compare() -> None:
    plain = run("autoregressive")
    plain.header.prompt_tokens = run("draft-model").header.prompt_tokens
    assert set(compare_runs([plain], [run("draft-model")])["figures"]) == {"tau", "speed"}
