"""Stored hidden states (readings) of a few short answers of the bundled target, for tests of training."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from workbench.training.answers import AnswersOptions, write_answers
from workbench.training.family.readings import ReadingsOptions, make_readings


def quiet(line: str) -> None:
    """Discard a progress line."""


def write_readings(out: Path, tokens: int = 600, longest: int = 16, given: bool = True) -> ReadingsOptions:
    """Generate answers and their readings in a folder; with `given`, also readings of the training text's
    answers."""
    answers = AnswersOptions("text-target", out / "none", out / "answers", tokens, max_new_tokens=longest, per_task=12,
                             rows=8, dtype="float32", threads=1)  # fmt: skip
    write_answers(answers, quiet)
    made = ReadingsOptions("text-target", answers.out, out / "readings", dtype="float32", threads=1)
    make_readings(made, quiet)
    if given:
        write_answers(replace(answers, out=out / "given", given=True, tokens=tokens // 2), quiet)
        make_readings(replace(made, answers=out / "given"), quiet)
    return made
