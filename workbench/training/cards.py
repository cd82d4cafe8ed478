"""Shared code of all model cards: `README.md` files beside the weights, with measured metrics only.

A module beside each recipe writes the text of its card; this module has the code for metrics, runs and tables.
"""

from __future__ import annotations

import json
import platform
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from workbench.models.int8_checkpoint import STORED
from workbench.models.shared_embeddings import ROWS
from workbench.trace.files import write_atomically

Figures = dict[str, Any]
BITS = "bits"
"""Key of evaluation metrics that were measured with int8 weights: bits per stored weight."""
SECTION = "## Stored as int8"
"""Title of a model card's last section, which has the measured metrics of the int8 checkpoint."""
_OPENING = """\
`from_pretrained` of transformers does not read this format. The following code writes a folder that it can read:

```python
import torch
from workbench.models.pretrained import load_model

load_model("{name}", torch.device("cpu"), torch.float16).save_pretrained("{name}-float16")
```"""


@dataclass(frozen=True)
class TrainedModel:
    """A trained model with its metrics, from which its model card is written.

    Attributes:
        name: name of the model's folder, and title of the card.
        config: content of the model's `config.json`.
        figures: `training.json`: metrics measured during training.
        evaluation: `evaluation.json`; empty if there is none.
    """

    name: str
    config: Figures
    figures: Figures
    evaluation: Figures

    @classmethod
    def load(cls, folder: Path) -> TrainedModel:
        """Read the configuration and the metrics of the trained model in a folder.

        Raises:
            OSError: the folder has no configuration, or the model's training has not ended.
        """
        measured = folder / "evaluation.json"
        return cls(
            folder.name,
            json.loads((folder / "config.json").read_text(encoding="utf-8")),
            json.loads((folder / "training.json").read_text(encoding="utf-8")),
            json.loads(measured.read_text(encoding="utf-8")) if measured.exists() else {},
        )


ResultsCard = Callable[[TrainedModel, Figures, str], str]
"""Type of a function (model, results of a recipe, hardware) that returns the text of the model's card."""


def write_card(folder: Path, card: Callable[[TrainedModel], str]) -> None:
    """Write the model card of the model in a folder; `card` returns the text below the title.

    Raises:
        OSError: the folder has no configuration, or the model's training has not ended.
    """
    model = TrainedModel.load(folder)
    text = f"# {model.name}\n\n{card(model).rstrip()}\n{storage_section(model)}"
    write_atomically(folder / "README.md", text.encode())


def write_storage_section(folder: Path) -> None:
    """Rewrite the section on the int8 checkpoint in a model's card; do nothing if the folder has no card."""
    path = folder / "README.md"
    if path.is_file() and (folder / "training.json").is_file():
        text = path.read_text(encoding="utf-8").partition(SECTION)[0].rstrip()
        write_atomically(path, f"{text}\n{storage_section(TrainedModel.load(folder))}".encode())


def storage_section(model: TrainedModel) -> str:
    """Return the last section of a model's card: measured metrics of the int8 checkpoint; empty if there are none."""
    stored = model.config.get(STORED, {})
    if not (measured := stored.get("measured")):
        return ""
    lines = [
        SECTION,
        "",
        f"Matrices have {stored['bits']} bits per weight and a scale per 64 or 32 inputs, which changed the weights by"
        f" {stored['error']:.2%} of their norm. {_comparison(measured)} Measured by"
        f" `workbench heads shrink {model.name} FOLDER --measure {_count(measured)}` from the float16 weights, on"
        f" {measured['machine']}."
        f"{'' if BITS in model.evaluation else ' The figures above were measured with float16 weights.'}",
    ]
    if "model_type" in model.config and ROWS not in model.config:
        lines += ["", _OPENING.format(name=model.name)]
    return "\n" + "\n".join(lines) + "\n"


def _count(measured: Figures) -> int:
    """Return the number of prompts on which evaluation metrics were measured: the value of the option `--measure`."""
    return measured["prompts"] if "tau" in measured else measured["each"]


def _comparison(measured: Figures) -> str:
    """Return sentences that compare int8 weights with float16 weights: τ or right answers, and equal texts."""
    if "tau" in measured:
        before, after = measured["tau"]
        value, *bounds = measured["ratio"]
        interval = f" (95 % interval {bounds[0]:.3f} to {bounds[1]:.3f})" if bounds else ""
        same, n = measured["same_text"], measured["prompts"]
        return (
            f"τ of `{measured['method']}` on {n} prompts, greedy: {before:.3f} with float16 weights, {after:.3f} with"
            f" these weights; ratio {value:.3f}{interval}. {same} of {n} texts are the same."
        )
    before, after = measured["right"]
    return (
        f"Of {measured['answers']:,} greedy answers to held-out problems, {measured['same_text']:,} have the same text"
        f" as with float16 weights; {before:,} are correct with float16 weights and {after:,} with these"
        f" ({measured['gained']} gained, {measured['lost']} lost)."
    )


def write_results(
    path: Path, models: Path, cards: Mapping[str, ResultsCard], results: Figures, hardware: str = ""
) -> None:
    """Write the results of a recipe that measured bundled models, and the cards of the models.

    Args:
        path: JSON file of the results.
        models: folder of the models; models that were not measured or whose training has not ended get no card.
        cards: functions that return cards, by the model's name.
        results: metrics; `parameters` has the measured models by name.
        hardware: description of the machine; the processor's name by default.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, (json.dumps(results, indent=2, ensure_ascii=False) + "\n").encode())
    hardware = hardware or f"{platform.machine()} CPU, {results.get('threads', 2)} threads"
    for name, card in cards.items():
        if name in results["parameters"] and (models / name / "training.json").exists():
            write_card(models / name, lambda model, card=card: card(model, results, hardware))


def runs_of(figures: Figures) -> list[Figures]:
    """Return the metrics of all training runs of a model, oldest first.

    The metrics of a run that continues an earlier run contain the metrics of the earlier run.
    """
    runs = [figures]
    while "begun" in runs[0]:
        runs.insert(0, runs[0]["begun"])
    return runs


def losses_of(figures: Figures) -> str:
    """Return the smoothed losses at the end of a training run as text, for example "loss 1.234, exit 2.345"."""
    return ", ".join(f"{name} {value:.3f}" for name, value in figures["losses"].items())


def steps_of(figures: Figures) -> str:
    """Return the numbers of steps and tokens of a training run as text."""
    return f"{figures['steps']:,} steps over {figures['tokens']:,} tokens"


def minutes_of(figures: Figures) -> str:
    """Return the duration of a training run in whole minutes, as text."""
    return f"{figures['seconds'] / 60:.0f} minutes"


def training_runs(figures: Figures, hardware: str, token_note: str = "") -> str:
    """Return the section of a model card about the runs that trained the model.

    Args:
        figures: metrics of the last run.
        hardware: description of the machine, for runs whose metrics do not have one.
        token_note: note in brackets that says which tokens the number of tokens includes; empty: no note.
    """
    runs = runs_of(figures)
    if len(runs) == 1:
        return f"\n## Training run\n\n{_training_run(figures, hardware, '', token_note)}"
    sections = (_training_run(run, hardware, f"**Run {n}**: ", token_note) for n, run in enumerate(runs, 1))
    return "\n## Training runs\n\nEach run continued from the weights of the previous one.\n\n" + "".join(sections)


def _training_run(figures: Figures, hardware: str, number: str, token_note: str) -> str:
    options = " ".join(f"`{name}={value}`" for name, value in figures.get("options", {}).items())
    if machine := figures.get("machine"):
        hardware = f"{machine['threads']} of {machine['cores']} cores of an {machine['cpu']} processor"
    return (
        f"- {number}{figures['steps']:,} training steps, {figures['tokens']:,} tokens{token_note}, "
        f"{minutes_of(figures)} of wall"
        f" time on {hardware}.\n"
        f"- Metrics at the end of training (smoothed): {losses_of(figures)}.\n"
        + (f"- Options: {options}.\n" if options else "")
        + "".join(f"- {note}\n" for note in figures.get("notes", []))
    )


def table(header: Sequence[str], rows: Iterable[Sequence[str]], left: int = 1) -> str:
    """Return a table in Markdown without a final line break; the first `left` columns are left-aligned."""
    rule = "|" + "|".join("---" if i < left else "---:" for i in range(len(header))) + "|"
    lines = [f"| {' | '.join(header)} |", rule, *(f"| {' | '.join(row)} |" for row in rows)]
    return "\n".join(lines)
