"""Shared code of studies: finished cells on disk, held-out prompts, and counts per answer."""

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
from workbench.training.family.evaluate import read_held_out_prompts

CELL = "cell.json"


def load_study_prompts(target: str, answers: Path, readings: Path, each: int) -> list[tuple[str, list[int]]]:
    """Return (group, tokens) of the held-out prompts on which each cell of a study is measured.

    Raises:
        ParameterError: there are no answers, no readings or no held-out prompts.
    """
    for folder, file, recipe in ((answers, ANSWERS, "answers"), (readings, "readings.json", "readings")):
        if not (folder / file).is_file():
            raise ParameterError(
                f"{folder} has no {recipe}.",
                f"Create them: workbench train {recipe} --set target={target} --set out={folder}.",
            )
    prompts = list(read_held_out_prompts(answers / ANSWERS, each))
    if not prompts:
        raise ParameterError(f"{answers} has no held-out prompt.", "Generate more answers: workbench train answers.")
    return prompts


def hash_prompts(prompts: list[tuple[str, list[int]]]) -> str:
    """Return a hash that identifies a list of prompts."""
    return hashlib.sha256(json.dumps(prompts).encode()).hexdigest()[:16]


def tallies(answers: Sequence[Sequence[Round]]) -> dict[str, list[int]]:
    """Return per answer the accepted, tested and emitted tokens, and the target's rounds."""
    figures = {
        "accepted": metrics.count_accepted,
        "tested": metrics.count_tested,
        "emitted": metrics.count_emitted,
        "rounds": len,
    }
    return {name: [count(rounds) for rounds in answers] for name, count in figures.items()}


def load_finished_cell(folder: Path, settings: dict[str, Any]) -> dict[str, Any] | None:
    """Return a finished cell; None if there is none.

    Raises:
        ParameterError: the cell was made with other settings.
    """
    path = folder / CELL
    if not path.exists():
        return None
    cell = json.loads(path.read_text(encoding="utf-8"))
    changed = [f"{name}={value}" for name, value in cell["settings"].items() if settings.get(name) != value]
    if changed:
        raise ParameterError(
            f"{folder} was made with {', '.join(changed)}.", "Use the same options to continue, or set another out."
        )
    return cell
