"""Model cards of the feature drafters, from the figures that their training measured."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from workbench.methods import registry
from workbench.trace.files import write_whole
from workbench.training.cards import runs_of


def write_card(folder: Path) -> None:
    """Write `README.md` beside the weights, from `config.json` and `training.json`."""
    config = json.loads((folder / "config.json").read_text())
    figures = json.loads((folder / "training.json").read_text())
    write_whole(folder / "README.md", card(folder.name, config, figures).encode())


def card(name: str, config: dict[str, Any], figures: dict[str, Any]) -> str:
    """The text of a card."""
    net, held = config["net"], figures["held"]
    shape = ", ".join(f"{key} {value}" for key, value in net.items())
    rows = [f"| {int(key.split()[1])} | {100 * value:.1f} % |" for key, value in held.items()]
    losses = ", ".join(f"{key} {value:.3f}" for key, value in figures["losses"].items())
    lines = [
        f"# {name}",
        "",
        f"A feature drafter of one decoder layer for the frozen `{config['target']}`."
        f" {registry.heads()[config['workbench_head']].idea.format(**net)}",
        "",
        f"- **Shape**: {config['parameters']:,} parameters ({shape}); embedding and LM head are the target's and not"
        " stored here.",
        f"- **Training**: `workbench train vision-heads --set method={config['workbench_head']}`, on questions about"
        " rendered scenes and on the target's features over the answers. " + " Then ".join(map(_run, runs_of(figures))),
        f"- **Loss**: {config['loss']}; at the end (smoothed): {losses}.",
        "",
        "## Measured on scenes kept out of training",
        "",
        "Share of the places of an answer at which the drafter's likeliest token is the target's, with true features"
        " before it:",
        "",
        "| features ahead | agreement |",
        "|---:|---:|",
        *rows,
        "",
        "Acceptance and τ in use stand in the repository's README and in `assets/boards/vision.md`.",
        "",
        "## Limits",
        "",
        "It fits this target only, and drafts well only what the target says about scenes like those it was trained on."
        " What it drafts never changes the output.",
    ]
    return "\n".join(lines) + "\n"


def _run(figures: dict[str, Any]) -> str:
    minutes = figures["seconds"] / 60
    return (
        f"{figures['steps']:,} steps over {figures['tokens']:,} tokens on {figures['answers']},"
        f" {minutes:.0f} minutes of a core shared with much else."
    )
