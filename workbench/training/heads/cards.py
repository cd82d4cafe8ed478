"""Model cards of the feature drafters, from metrics measured during training."""

from __future__ import annotations

from workbench.methods import registry
from workbench.training.cards import Figures, TrainedModel, losses_of, minutes_of, runs_of, steps_of, table


def card(model: TrainedModel) -> str:
    """Return the text of a feature drafter's model card, as Markdown."""
    config, figures = model.config, model.figures
    kind, net = config["workbench_head"], config["net"]
    shape = ", ".join(f"{key} {value}" for key, value in net.items())
    rows = [(key.split()[1], f"{100 * value:.1f} %") for key, value in figures["held"].items()]
    lines = [
        f"A feature drafter of one decoder layer for the frozen `{config['target']}`."
        f" {registry.heads()[kind].idea.format(**net)}",
        "",
        f"- **Shape**: {config['parameters']:,} parameters ({shape}); embedding and LM head are the target's "
        f"and are not part of these files.",
        f"- **Training**: `workbench train vision-heads --set method={kind}`, on questions about"
        " rendered scenes and on the target's features over the answers. " + " Then ".join(map(_run, runs_of(figures))),
        f"- **Loss**: {config['loss']}; at the end of training (smoothed): {losses_of(figures)}.",
        "",
        "## Measured on held-out scenes",
        "",
        "Share of the positions of an answer at which the drafter's most probable token is the target's, with true"
        " features as context:",
        "",
        table(["features ahead", "agreement"], rows, left=0),
        "",
        "Acceptance and τ in decoding are in `assets/boards/vision.md`.",
        "",
        "## Limits",
        "",
        "The head fits only this target, and drafts well only for answers about scenes like those in its "
        "training data. Drafts never change the output.",
    ]
    return "\n".join(lines)


def _run(figures: Figures) -> str:
    return f"{steps_of(figures)} on {figures['answers']}, {minutes_of(figures)} on one core shared with other work."
