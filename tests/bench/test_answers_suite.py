"""The answers suite: every rule answers the same problems, and correct answers are counted."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from workbench.bench import answers_suite
from workbench.bench.answers_suite import Scale, page, run_suite, verifiers_of
from workbench.bench.prompts import ARITHMETIC, BenchPrompt, load_prompts
from workbench.models.loading import load_models

pytestmark = pytest.mark.unchecked


def test_every_rule_answers_the_same_problems_and_correct_ones_are_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two problems; only the answer to the first one counts as correct."""
    models = load_models("text-target", "auto", "cpu")
    names = verifiers_of(models)
    assert names[0] == "lossless"
    assert {"typical", "lenient", "nearest", "judge"} < set(names)
    assert "block" not in names, "it is exact"
    first = load_prompts(ARITHMETIC)[0]
    sums = [first, dataclasses.replace(first, answer="-99")]
    asked = list[str]()
    monkeypatch.setattr(BenchPrompt, "is_right", lambda self, text: bool(text) and self.answer != "-99")
    monkeypatch.setattr(answers_suite, "all_problems", lambda: [*sums, *sums])
    monkeypatch.setattr(answers_suite, "verifiers_of", lambda models: ["lossless", "lenient"])
    report = run_suite(models, Scale(2, 0.0, 24, 0), asked.append, tmp_path / "answers.jsonl")
    assert asked == ["lossless: 2 problems", "lenient: 2 problems"]
    assert [row["right"] for row in report["rows"]] == [{first.group: [1, 0]}] * 2, "greedy text is the target's"
    assert all(row["tau"] > 1 for row in report["rows"])
    text = page([report])
    assert "| `lenient` |" in text
    assert "| 1 | 1 | 1.00 |" in text, "a resample of two may contain no correct answer, so there is no interval"
    assert "--target text-target --max-new-tokens 24 --temperature 0 --per-group 2" in text
    lines = (tmp_path / "answers.jsonl").read_text().splitlines(keepends=True)
    assert len(lines) == 4
    (tmp_path / "answers.jsonl").write_text("".join(lines[:3]))
    asked.clear()
    again = run_suite(models, Scale(2, 0.0, 24, 0), asked.append, tmp_path / "answers.jsonl")
    assert asked == ["lenient: 2 problems"], "only the missing answer is generated"
    assert again["rows"] == report["rows"]
    assert (tmp_path / "answers.jsonl").read_text() == "".join(lines)
