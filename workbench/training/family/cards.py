"""Cards of a chat model's drafters, from the figures that training and evaluation measured."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from workbench.engine.method import Promise
from workbench.engine.trimmed import KEY
from workbench.methods import registry
from workbench.trace.files import write_whole

_DRAFTER = "A draft model with the target's tokenizer, distilled from the target's laws over its own answers."
_AGREES = (
    "its likeliest token is the target's, of all tokens",
    "the first head's likeliest token is the one that the text has after next",
)


def write_card(folder: Path) -> None:
    """Write `README.md` beside the weights, from `config.json`, `training.json` and `evaluation.json`."""
    config, figures, measured = (
        json.loads((folder / f"{name}.json").read_text()) for name in ("config", "training", "evaluation")
    )
    write_whole(folder / "README.md", card(folder.name, config, figures, measured).encode())


def card(name: str, config: dict[str, Any], figures: dict[str, Any], measured: dict[str, Any]) -> str:
    """The text of a card."""
    kind, target = config.get("workbench_head", "drafter"), config["target"]
    recipe = "chat-drafter" if kind == "drafter" else f"chat-heads --set method={kind}"
    options = "".join(
        f" --set {key}={value}" for key, value in figures["options"].items() if key not in ("method", "resume")
    )
    losses = ", ".join(f"{key} {value:.3f}" for key, value in figures["losses"].items())
    idea = _DRAFTER if kind == "drafter" else registry.heads()[kind].idea.format(**config.get("net", {}))
    lines = [
        f"# {name}",
        "",
        f"Drafts for `{target}`. {idea} What it drafts never changes the output{_but(kind)}.",
        "",
        *([_vocabulary(config, figures)] if KEY in config else []),
        f"- **Data**: {figures['answer_tokens']:,} tokens of the target's own answers (half greedy, half at temperature"
        " 0.7 or 1), written by `workbench train answers` to prompts from public sets and from the project's own"
        " generators, read once by `workbench train readings`. No text of those sets is in this repository.",
        f"- **Training**: `workbench train {recipe}{options}`: {figures['steps']:,} steps over {figures['tokens']:,}"
        f" tokens, {figures['seconds'] / 60:.0f} minutes on a share of {figures['machine']['cores']} cores"
        f" ({figures['machine']['cpu']}). Losses at the end, smoothed: {losses}.",
        "- **Licence**: that of the target's weights, of which it is made (Apache-2.0 for SmolLM2).",
        "",
        "## Learning curve",
        "",
        f"Share of the places of held-out answers, true text before them, at which {_AGREES[kind == 'medusa']}.",
        "",
        "| tokens | agreement |",
        "|---:|---:|",
        *(f"| {tokens / 1e6:.2f} M | {value:.3f} |" for tokens, value in _thinned(figures["curve"])),
        "",
        "## On policy",
        "",
        f"Greedy decoding of {measured['prompts']} held-out prompts, up to {measured['tokens']} tokens each, target in"
        f" {measured['dtype']}. A place counts in the rounds that came to it; τ is the mean accepted length, the"
        " target's own token among it.",
        "",
    ]
    for form in ("chain", "tree"):
        if form in measured:
            lines += _table(form, measured[form])
    return "\n".join(lines) + "\n"


def _but(kind: str) -> str:
    """Which methods may change the output, though they draft with this."""
    loose = [m.name for m in registry.methods() if kind in m.needs and m.promise is Promise.APPROXIMATE]
    return f", unless an approximate rule judges it (`{'`, `'.join(loose)}`)" if loose else ""


def _vocabulary(config: dict[str, Any], figures: dict[str, Any]) -> str:
    return (
        f"- **Vocabulary**: it proposes {len(config[KEY]):,} tokens, those that the target says most (VocabTrim, Goel"
        f" et al. 2025, arXiv 2506.22694); they make up {figures['covered']:.1%} of what the target said in answers"
        " kept out of training."
    )


def _table(form: str, figures: dict[str, Any]) -> list[str]:
    params = ", ".join(f"{key}={value}" for key, value in figures["params"].items())
    rows = [f"| {depth} | {tried:,} | {kept / tried:.1%} |" for depth, tried, kept in figures["by_depth"]]
    groups = ", ".join(f"{group} {tau:.2f}" for group, tau in figures["groups"].items())
    return [
        f"### As a {form}: `{figures['method']}`, {params}",
        "",
        f"τ = {figures['tau']:.2f}. By kind of prompt: {groups}.",
        "",
        "| depth | rounds | accepted |",
        "|---:|---:|---:|",
        *rows,
        "",
    ]


def _thinned(curve: list[list[float]], most: int = 12) -> list[list[float]]:
    """A dozen points of a curve, the first and the last among them."""
    if len(curve) <= most:
        return curve
    return [curve[round(i * (len(curve) - 1) / (most - 1))] for i in range(most)]
