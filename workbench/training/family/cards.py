"""Model cards of a chat model's drafters, from metrics measured during training and evaluation."""

from __future__ import annotations

from workbench.core.promise import Promise
from workbench.decoders.declarations import DEFAULT_AGREEMENT
from workbench.kernels.reduced_vocabulary import KEY
from workbench.methods import registry
from workbench.models.int8_checkpoint import STORED
from workbench.models.model_index import MODEL_INDEX
from workbench.training.cards import BITS, Figures, TrainedModel, losses_of, minutes_of, steps_of, table

RANKED, BEST = "head_accuracy", (1, 3, 10)
"""`RANKED`: key in the configuration of heads with a static draft tree; the entry says how often the r-th most probable
token of each head is right. `BEST`: numbers r for which a model card shows the share of positions at which one of the r
most probable tokens is right."""
_DRAFTER = "A draft model with the target's tokenizer, distilled from the target's distributions over its own answers."


def card(model: TrainedModel) -> str:
    """Return the text of the model card of a head or a draft model, as Markdown."""
    config, figures, measured = model.config, model.figures, model.evaluation
    kind, machine = config.get("workbench_head", "drafter"), figures["machine"]
    head = registry.heads().get(kind)
    idea = (
        _DRAFTER if head is None else head.idea.format(**config.get("net", {})) + _lm_head_text(config.get("net", {}))
    )
    agrees = DEFAULT_AGREEMENT if head is None else head.agreement
    curve = [(f"{tokens / 1e6:.2f} M", f"{value:.3f}") for tokens, value in _thin_curve(figures["curve"])]
    lines = [
        f"Drafts for `{config['target']}`. {idea} Drafts do not change the output{_approximate_text(kind)}.",
        "",
        *([_vocabulary(config, figures)] if KEY in config else []),
        f"- **Data**: {figures['answer_tokens']:,} tokens of the target's own answers (half greedy, half at temperature"
        f" 0.7 or 1), written by `workbench train answers`{_rate(figures)} to prompts from {_sources(measured)}"
        f"{_text_answers_text(figures)}, with hidden states computed by `workbench train readings`. No text of public"
        " data sets is in this repository.",
        f"- **Training**: {_command(kind, figures)}: {steps_of(figures)}, {minutes_of(figures)} on a share of"
        f" {machine['cores']} cores ({machine['cpu']}). Losses at the end, smoothed: {losses_of(figures)}"
        f"{_loss_sum_text(config, figures)}.",
        *([_start_text(figures["begun"], figures["options"].get("average"))] if "begun" in figures else []),
        *([_storage_text(config[STORED], measured)] if _lacks_storage_section(config) else []),
        f"- **Licence**: that of the target's weights, from which it is derived{_licence(config['target'])}.",
        "",
        "## Learning curve",
        "",
        f"Share of the positions of held-out answers at which {agrees}, with the true text as context.",
        "",
        table(["tokens", "agreement"], curve, left=0),
        "",
        *_ranks(config, agrees),
        "## On policy",
        "",
        f"Greedy decoding of {measured['prompts']} held-out prompts, up to {measured['tokens']} tokens each, target in"
        f" {measured['dtype']}. The acceptance rate of a position is over the rounds that reached the position. "
        f"τ is the mean accepted length, including the token that the target adds in each round.",
    ]
    for name, section in measured.items():
        if isinstance(section, dict):
            lines += ["", *_evaluation_section(name, section)]
    return "\n".join(lines)


def _command(kind: str, figures: Figures) -> str:
    """Return the command line that trained the drafter, for its model card."""
    head = registry.heads().get(kind)
    settings, is_single = figures.get("asked", figures["options"]), "recipe" in figures
    recipe = figures.get("recipe") or ("chat-drafter" if head is None else f"{head.recipe} --set method={kind}")
    options = "".join(f" --set {key}={value}" for key, value in settings.items() if key not in ("method", "resume"))
    return f"`workbench train {recipe}{options}`{'' if is_single else ' in the folders of these answers and readings'}"


def _lm_head_text(net: Figures) -> str:
    """Return a model card's sentence on whether a head has its own LM head; empty for kinds without this option."""
    if "draft_vocab_size" not in net:
        return ""
    n_tokens = net["draft_vocab_size"]
    return (
        f" The head has an LM head of its own for {n_tokens:,} tokens."
        if n_tokens
        else " The head has no LM head of its own and uses the target's LM head."
    )


def _sources(measured: Figures) -> str:
    """Return the sources of a drafter's training prompts as text: the project's generators and public data sets."""
    groups = {group for section in measured.values() if isinstance(section, dict) for group in section["groups"]}
    generators = "the project's own generators"
    has_public = any(not group.startswith("own ") for group in groups)
    return f"public data sets and from {generators}" if has_public else generators


def _loss_sum_text(config: Figures, figures: Figures) -> str:
    """Return a note that the losses in the model card are weighted sums; empty if there is only one loss."""
    has_several = any(name.startswith(("head ", "step ")) for name in figures["losses"])
    return f" (each is the weighted sum `{config['loss']}`)" if has_several and "+" in config.get("loss", "") else ""


def _licence(target: str) -> str:
    return f" ({MODEL_INDEX[target].licence})" if target in MODEL_INDEX else ""


def _ranks(config: Figures, agrees: str) -> list[str]:
    """Return the model card's section on how often each head's most probable tokens are right.

    Only heads with a static draft tree have this section.
    """
    if not config.get(RANKED):
        return []
    rows = [(str(k + 1), *(f"{sum(row[:best]):.3f}" for best in BEST)) for k, row in enumerate(config[RANKED])]
    correct_token = "the next token of the text" if "the text has" in agrees else "the target's most probable token"
    caption = (
        "Share of the positions of held-out answers at which one of the most probable tokens of a head is "
        f"{correct_token}:"
    )
    return ["## By rank", "", caption, "", table(["head", *(f"top {best}" for best in BEST)], rows, left=0), ""]


def _lacks_storage_section(config: Figures) -> bool:
    """Return whether a model with int8 weights lacks the measurements for its model card's section on storage."""
    return STORED in config and "measured" not in config[STORED]


def _storage_text(stored: Figures, measured: Figures) -> str:
    """Return a model card's note on how weights are stored, and whether the stored weights were measured."""
    when = "with these stored weights" if BITS in measured else "with 16-bit weights, before this conversion"
    return (
        f"- **Stored** with {stored['bits']} bits per weight (`workbench heads shrink`), which changed the weights by"
        f" {stored['error']:.2%} of their norm. The metrics below were measured {when}."
    )


def _start_text(before: Figures, average: str | None) -> str:
    """Return a text on the earlier training runs from which a run started, and their share in the final weights."""
    share = float(average or 0)
    average_note = (
        f" The final weights are the average of these weights ({share:.0%}) and those of the last run." if share else ""
    )
    losses = losses_of(before)
    line = f"- **Started** from finished weights {_run_text(before)}. Losses of that run: {losses}.{average_note}"
    while "begun" in before:
        before = before["begun"]
        line += f" The earlier run had started from weights {_run_text(before)}."
    return line


def _run_text(figures: Figures) -> str:
    kind = figures["options"].get("method")
    return (
        f"{f'of {kind}, ' if kind else ''}trained in {steps_of(figures)}, {minutes_of(figures)}, on"
        f" {figures['answer_tokens']:,} tokens of answers"
    )


def _rate(figures: Figures) -> str:
    """Return a note on the speed at which the training answers were generated; empty if it was not recorded."""
    return f", {figures['answer_rate']:,} tokens per second," if "answer_rate" in figures else ""


def _text_answers_text(figures: Figures) -> str:
    """Return a model card's note on the amount of training text that the target did not generate."""
    n_tokens = figures.get("given_tokens", 0)
    return f", and {n_tokens:,} tokens of answers from those data sets (`--set given=true`)" if n_tokens else ""


def _approximate_text(kind: str) -> str:
    """Return a model card's note on the approximate methods that use a drafter and may change the output."""
    approximate = [m.name for m in registry.methods() if kind in m.needs and m.promise is Promise.APPROXIMATE]
    return f", except with an approximate method (`{'`, `'.join(approximate)}`)" if approximate else ""


def _vocabulary(config: Figures, figures: Figures) -> str:
    return (
        f"- **Vocabulary**: it proposes only {len(config[KEY]):,} tokens, the target's most frequent tokens "
        f"(VocabTrim, Goel et al. 2025, arXiv 2506.22694); they make up {figures['covered']:.1%} of the target's "
        "tokens in answers to held-out prompts."
    )


def _evaluation_section(name: str, figures: Figures) -> list[str]:
    params = ", ".join(f"{key}={value}" for key, value in figures["params"].items())
    rows = [
        (str(depth), f"{n_tested:,}", f"{n_accepted / n_tested:.1%}")
        for depth, n_tested, n_accepted in figures["by_depth"]
    ]
    groups = ", ".join(f"{group} {tau:.2f}" for group, tau in figures["groups"].items())
    return [
        f"### As a {name}: `{figures['method']}`, {params or 'default parameters'}",
        "",
        f"τ = {figures['tau']:.2f}. By kind of prompt: {groups}.",
        "",
        table(["depth", "rounds", "accepted"], rows, left=0),
    ]


def _thin_curve(curve: list[list[float]], most: int = 12) -> list[list[float]]:
    """Return at most `most` points of a learning curve, including the first and the last."""
    if len(curve) <= most:
        return curve
    return [curve[round(i * (len(curve) - 1) / (most - 1))] for i in range(most)]
