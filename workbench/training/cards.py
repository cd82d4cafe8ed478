"""The writer of all model cards: `README.md` beside the weights, from measured figures only.

A module beside each recipe says what its card tells; how figures, runs and tables are told is here.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from workbench.trace.files import write_whole

Figures = dict[str, Any]


@dataclass(frozen=True)
class Trained:
    """A trained model, as its card is written from it.

    Attributes:
        name: of its folder, and the card's title.
        config: `config.json`.
        figures: `training.json`: what its training measured.
        measured: `evaluation.json`; empty where there is none.
    """

    name: str
    config: Figures
    figures: Figures
    measured: Figures

    @classmethod
    def at(cls, folder: Path) -> Trained:
        """What a folder holds.

        Raises:
            OSError: it has no configuration, or its training has not ended.
        """
        measured = folder / "evaluation.json"
        return cls(
            folder.name,
            json.loads((folder / "config.json").read_text(encoding="utf-8")),
            json.loads((folder / "training.json").read_text(encoding="utf-8")),
            json.loads(measured.read_text(encoding="utf-8")) if measured.exists() else {},
        )


def write_card(folder: Path, card: Callable[[Trained], str]) -> None:
    """Write the card of the model in a folder; `card` is its text below the title.

    Raises:
        OSError: see `Trained.at`.
    """
    model = Trained.at(folder)
    write_whole(folder / "README.md", f"# {model.name}\n\n{card(model).rstrip()}\n".encode())


def write_cards(models: Path, cards: dict[str, Callable[[Trained], str]]) -> None:
    """Write the cards of those models in a folder, by their names, whose training has ended."""
    for name, card in cards.items():
        if (models / name / "training.json").exists():
            write_card(models / name, card)


def runs_of(figures: Figures) -> list[Figures]:
    """Figures of all runs that made a model, the first one first: a run that went on from another one holds it."""
    runs = [figures]
    while "begun" in runs[0]:
        runs.insert(0, runs[0]["begun"])
    return runs


def losses_of(figures: Figures) -> str:
    """Smoothed figures at the end of a run: "loss 1.234, exit 2.345"."""
    return ", ".join(f"{name} {value:.3f}" for name, value in figures["losses"].items())


def steps_of(figures: Figures) -> str:
    """How much a run read."""
    return f"{figures['steps']:,} steps over {figures['tokens']:,} tokens"


def minutes_of(figures: Figures) -> str:
    """How long it took, in whole minutes."""
    return f"{figures['seconds'] / 60:.0f} minutes"


def told_runs(figures: Figures, hardware: str, counted: str = "") -> str:
    """The section about the runs that made a model.

    Args:
        figures: of the last one.
        hardware: on which a run was made that says nothing of its machine.
        counted: what its tokens include, in brackets behind them; empty: nothing unusual.
    """
    runs = runs_of(figures)
    if len(runs) == 1:
        return f"\n## Training run\n\n{_told_run(figures, hardware, '', counted)}"
    told = (_told_run(run, hardware, f"**Run {n}**: ", counted) for n, run in enumerate(runs, 1))
    return "\n## Training runs\n\nEach went on from the weights of the one before.\n\n" + "".join(told)


def _told_run(figures: Figures, hardware: str, number: str, counted: str) -> str:
    chosen = " ".join(f"`{name}={value}`" for name, value in figures.get("options", {}).items())
    if machine := figures.get("machine"):
        hardware = f"{machine['threads']} of {machine['cores']} cores of an {machine['cpu']} processor"
    return (
        f"- {number}{figures['steps']:,} steps, {figures['tokens']:,} tokens{counted}, {minutes_of(figures)} by the"
        f" clock on {hardware}.\n"
        f"- Training figures at the end (smoothed): {losses_of(figures)}.\n"
        + (f"- Options: {chosen}.\n" if chosen else "")
        + "".join(f"- {note}\n" for note in figures.get("notes", []))
    )


def table(header: Sequence[str], rows: Iterable[Sequence[str]], left: int = 1) -> str:
    """A table in Markdown, without a line break at its end; all columns but the first `left` stand on the right."""
    rule = "|" + "|".join("---" if i < left else "---:" for i in range(len(header))) + "|"
    lines = [f"| {' | '.join(header)} |", rule, *(f"| {' | '.join(row)} |" for row in rows)]
    return "\n".join(lines)
