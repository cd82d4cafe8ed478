"""What studies have in common: cells that are done once, and what has to be there before the first."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from workbench.core.errors import ParameterError
from workbench.trace import metrics
from workbench.trace.events import Round
from workbench.training.answers import ANSWERS
from workbench.training.family.evaluate import held_prompts

CELL = "cell.json"


def asked_prompts(target: str, answers: Path, readings: Path, each: int) -> list[tuple[str, list[int]]]:
    """(group, tokens) of the held-out prompts that each cell of a study is measured on.

    Raises:
        ParameterError: there are no answers or no readings, or no held-out prompt.
    """
    for folder, file, recipe in ((answers, ANSWERS, "answers"), (readings, "readings.json", "readings")):
        if not (folder / file).is_file():
            raise ParameterError(
                f"{folder} holds no {recipe}.",
                f"Make them: workbench train {recipe} --set target={target} --set out={folder}.",
            )
    prompts = list(held_prompts(answers / ANSWERS, each))
    if not prompts:
        raise ParameterError(f"{answers} has no held-out prompt.", "Make more: workbench train answers.")
    return prompts


def sum_of(prompts: list[tuple[str, list[int]]]) -> str:
    """By which other prompts are known."""
    return hashlib.sha256(json.dumps(prompts).encode()).hexdigest()[:16]


def tallies(answers: Sequence[Sequence[Round]]) -> dict[str, list[int]]:
    """Of each answer the tokens that were accepted, tested and emitted, and the target's rounds."""
    figures = {"accepted": metrics.accepted, "tested": metrics.tested, "emitted": metrics.emitted, "rounds": len}
    return {name: [of(rounds) for rounds in answers] for name, of in figures.items()}


def done(folder: Path, settings: dict[str, Any]) -> dict[str, Any] | None:
    """A cell that was finished; None where there is none.

    Raises:
        ParameterError: it is of other settings.
    """
    path = folder / CELL
    if not path.exists():
        return None
    cell = json.loads(path.read_text(encoding="utf-8"))
    changed = [f"{name}={was}" for name, was in cell["settings"].items() if settings.get(name) != was]
    if changed:
        raise ParameterError(
            f"{folder} was made with {', '.join(changed)}.", "Give the same again to go on, or another out."
        )
    return cell
