"""Rollouts: lengths, the learnt format, the same texts with every drafter, and the board."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from workbench.core.errors import ParameterError
from workbench.models.bundle import bundled
from workbench.training.family.rollouts import (
    RolloutOptions,
    is_numbered,
    lengths,
    number_sentences,
    run_rollouts_study,
)
from workbench.training.family.rollouts_board import ADAPTIVE, FROZEN, PLAIN, figures, gain, page, tail_gain


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


def test_lengths_are_log_normal_and_bounded() -> None:
    options = RolloutOptions(batch=4000, median=40, spread=0.8, longest=150)
    drawn = np.array(lengths(options, 0))
    assert drawn.min() == 8
    assert drawn.max() == 150
    inside = np.log(drawn[(drawn > 8) & (drawn < 150)])
    assert np.median(drawn) == pytest.approx(40, rel=0.05)
    assert 0.5 < inside.std() < 0.8, "the distribution is truncated at both ends"
    assert lengths(options, 0) == lengths(options, 0) != lengths(options, 1)


def test_the_format_is_a_number_for_each_sentence() -> None:
    numbered_text = number_sentences("Tom ran. He fell! Why?")
    assert numbered_text == "1. Tom ran.\n2. He fell!\n3. Why?"
    assert is_numbered(numbered_text)
    assert is_numbered(numbered_text[:12]), "a truncated text counts as numbered"
    assert not is_numbered("Tom ran. He fell!")
    assert not is_numbered("1. Tom ran.\nHe fell!")


def test_settings_without_steps_to_adapt_are_refused() -> None:
    with pytest.raises(ParameterError, match="two or more steps"):
        run_rollouts_study(RolloutOptions(steps=1), print)


@pytest.mark.skipif("text-target" not in bundled(), reason="needs the bundled models")
def test_a_small_loop_writes_the_same_texts_and_its_board(tmp_path: Path) -> None:
    options = RolloutOptions(
        out=tmp_path, steps=2, batch=2, median=12, spread=0.4, longest=16, updates=1, rows=1, lessons=1, every=1,
        share=0.5, reads=16, target_rate=1e-3,
    )  # fmt: skip
    lines: list[str] = []
    found = run_rollouts_study(options, lines.append)
    report = json.loads((tmp_path / "rollouts.json").read_text())
    first, second = report["steps"]
    assert (first["loss"], second["loss"] > 0) == (None, True), "the target is trained between the steps"
    for step in report["steps"]:
        assert step[PLAIN]["rounds"] == step[PLAIN]["emitted"]
        assert step[FROZEN]["same"] == step[ADAPTIVE]["same"] == 2
        assert step["idle_lessons"] == 1
        assert step[PLAIN]["lessons_s"] == step[FROZEN]["lessons_s"] == 0
        assert (step[ADAPTIVE]["lessons_s"] > 0) == (step["tail_lessons"] > 0)
        assert all(0 <= step[name]["tail_s"] <= step[name]["seconds"] for name in (PLAIN, FROZEN, ADAPTIVE))
    assert first["tail_lessons"] + second["tail_lessons"] > 0
    given = sum(step["tail_lessons"] + step["idle_lessons"] for step in report["steps"])
    assert given == found["lessons"], "the training time counts in one step only"
    assert str([list(v) for v in found["figures"].values()]) == str(
        [list(v) for v in figures(report["steps"]).values()]
    )
    assert (tmp_path / "rollouts.md").read_text() == page(report)
    assert "--set longest=16" in page(report)
    assert str(tmp_path) not in page(report) + json.dumps(report)
    assert len(lines) == 2


def test_a_step_whose_sequences_end_together_has_no_tail() -> None:
    steps = [{PLAIN: {"tail_s": 0.4}, FROZEN: {"tail_s": tail}} for tail in (0.2, 0.2, 0.0)]
    assert tail_gain(steps[:2], FROZEN) == (2.0, 2.0, 2.0)
    assert all(map(math.isnan, tail_gain(steps, FROZEN)))
