"""The board of the rollouts study: gains with their intervals, and its page from the saved report."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest

from workbench.bench.boardfiles import folder
from workbench.bench.rolloutsboard import ADAPTIVE, BOARD, FROZEN, PLAIN, figures, gain, page, tail_gain


def arm(emitted: list[int], rounds: list[int], tail_s: float, lessons_s: float = 0.0) -> dict[str, Any]:
    return {"emitted": emitted, "rounds": rounds, "tail_s": tail_s, "lessons_s": lessons_s, "same": len(emitted)}


def steps() -> list[dict[str, Any]]:
    """Return three steps of two prompts each."""
    return [
        {
            PLAIN: arm([30, 10], [30, 10], 2.0), FROZEN: arm([30, 10], [15, 5], 1.0),
            ADAPTIVE: arm([30, 10], [10 - i, 6], 1.0, 0.5), "in_format": i, "tail_lessons": 1, "idle_lessons": 2,
        }
        for i in range(3)
    ]  # fmt: skip


def test_a_gain_is_a_ratio_of_sums_with_an_interval_over_prompts() -> None:
    value, low, high = gain(steps()[1:])
    assert value == pytest.approx((80 / (9 + 6 + 8 + 6)) / 2)
    assert low < value < high
    assert low == pytest.approx(10 / 6 / 2), "the worst resample has short prompts only"
    assert gain(steps()[:1])[0] == pytest.approx(40 / 16 / 2)


def test_the_gain_in_the_tail_is_given_with_and_without_training_time() -> None:
    assert tail_gain(steps(), FROZEN) == (2.0, 2.0, 2.0)
    assert tail_gain(steps(), ADAPTIVE) == (2.0, 2.0, 2.0)
    assert tail_gain(steps(), ADAPTIVE, net=True) == (4.0, 4.0, 4.0)


def test_a_step_whose_sequences_end_together_has_no_tail() -> None:
    steps = [{PLAIN: {"tail_s": 0.4}, FROZEN: {"tail_s": tail}} for tail in (0.2, 0.2, 0.0)]
    assert tail_gain(steps[:2], FROZEN) == (2.0, 2.0, 2.0)
    assert all(map(math.isnan, tail_gain(steps, FROZEN)))


def test_the_page_has_the_figures_of_the_saved_report() -> None:
    report = json.loads((folder() / BOARD).read_text(encoding="utf-8"))
    text = page(report)
    assert (folder() / BOARD).with_suffix(".md").read_text(encoding="utf-8") == text
    for value, low, high in figures(report["steps"]).values():
        assert f"| {value:.2f} | {low:.2f} to {high:.2f} |" in text
    report["steps"][0][FROZEN]["tail_s"] = 0
    assert "| – | a step had no tail |" in page(report)
