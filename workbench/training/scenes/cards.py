"""Model cards of the vision models, from measured metrics only."""

from __future__ import annotations

from math import nan

from workbench.scenes.scene import COLOURS, SHAPES, WORDS
from workbench.training.cards import Figures, ResultsCard, TrainedModel, runs_of, table, training_runs

AIMS = {"caption: colour": 0.95, "caption: shape": 0.95, "caption: relation": 0.9, "relation": 0.9}

WEAK = 0.9
"""Share of right answers below which a model card lists a kind of question among the model's limits."""

_TARGET = """\
The bundled vision-language target of the Speculative Decoding Workbench: {parameters:,} parameters in the layout of
LLaVA, trained from scratch by `workbench train vision-tower` and `workbench train vision-target`. It is a teaching
aid: it was trained on images of coloured shapes only.

- **Image**: 64 × 64 pixels, 8 × 8 patches of 8 × 8 pixels, 64 vision tokens; SigLIP-type tower of {tower_layers}
  layers × {tower_hidden}, without pooling; projector of two layers.
- **Language model**: Llama type, {layers} layers × {hidden}, tied embeddings, the tokenizer of `text-target`.
- **Format**: `<|user|><|image|>question<|assistant|>answer<|endoftext|>`; the processor expands the
  placeholder to 64 tokens. `apply_chat_template` inserts it, images first.
- **Content**: up to six shapes ({shapes}), small or large, in {colours}; nine positions; above, below, beside,
  overlapping; one number up to 99 or one of the words {words}. Exact or hand-drawn shapes: filled, outlined, scribbled.
"""

_DATA = """
## Data

Scenes drawn by `workbench/scenes`, with answers from their geometry. The tower was trained first, to predict the
content of every patch (colour, shape, size, place, rank from the left, relation to the previous shape, writing, centre,
pixels). With `pointing`, the default since the third run, two attention heads of the language model's middle layer were
also trained to attend to the objects that a question names or a caption describes. Held-out scenes are selected by a
hash of their contents. No images or texts from elsewhere were used.
"""

_LIMITS = """
## Known limits

- For colours, shapes and words outside these lists, it answers with the most similar one in the lists.
- White, grey and brown shapes, thick frames, photographs and more than six shapes are not in the training data.
- Answers have one style; questions worded differently from the generators' are often mistaken for other questions.
- It also answers questions about the position or colour of an object that is not in the image. Questions in
  capitals are often answered wrongly.
- {weak}
- The last shapes of crowded scenes are sometimes missing; thin lines (under one of 64 pixels) cause errors.
"""

_DRAFTERS = {
    "vision-text-drafter": """\
The text-only drafter of `vision-target` (Gagrani et al. 2024, arXiv 2404.08856): a Llama-type language model of
{parameters:,} parameters that gets the text of the prompt without the image; its tokenizer is the target's. It
was first trained on questions and answers of three styles (ground truth), then tuned on answers that the target
generated, by `workbench train vision-text-drafter`.
""",
    "vision-drafter": """\
The drafter with image input for `vision-target` (MASSV, Ganesan et al. 2025, arXiv 2505.10526), {parameters:,}
parameters in the layout of LLaVA: the target's own vision tower, unchanged, a new projector and the small language
model from which the text-only drafter started. First the projector alone was trained on captions of three styles
(ground truth), then projector and language model on answers that the target generated, by
`workbench train vision-drafter`.
""",
}


_COUNTED = " (vision tokens and padding included)"


def _target_table(results: Figures) -> str:
    columns = [results["exact_match"][name] for name in ("rendered", "sketch", "freehand")]
    rows = [
        (
            name,
            *(f"{column.get(name, nan):.1%}" for column in columns),
            f"{AIMS[name]:.0%}" if name in AIMS else "",
        )
        for name in sorted(columns[0])
    ]
    return (
        f"\n## Measured on held-out scenes\n\nGreedy decoding, float32, {results['count']} exact drawings, as many"
        " sketches, and as many freehand sheets: one to four shapes as drawn by a user on an empty sheet, up to seven"
        " eighths of its width, crosses of two strokes. Captions are compared object by object from the left (a missing"
        " object is wrong in everything); `caption: caption` is an exact match of the whole text, `caption: objects`"
        " the number of objects; the other rows"
        " are exact match of a short answer.\n\n"
        f"{table(['what', 'exact', 'sketch', 'freehand', 'aim'], rows)}\n"
    )


def _weakest(results: Figures) -> str:
    """Return a sentence for the model card on the kinds of question with the most wrong answers."""
    lowest = {
        kind: min(scores[kind] for scores in results["exact_match"].values())
        for kind in results["exact_match"]["rendered"]
        if not kind.startswith("caption")
    }
    weak = sorted((kind for kind, share in lowest.items() if share < WEAK), key=lambda kind: lowest[kind])
    names = ", ".join(f"`{kind}`" for kind in weak)
    return (
        f"Kinds of question answered worst: {names}."
        if weak
        else f"The exact match is at least {WEAK:.0%} for every kind of question."
    )


def _drafter_table(figures: Figures, results: Figures, name: str) -> str:
    rows = [(kind, f"{rate:.3f}") for kind, rate in results["acceptance"][name].items()]
    text = (
        "\n## Greedy acceptance\n\nShare of the tokens of the target's greedy answers about"
        f" {results['drafter_count']} held-out scenes at which the drafter's most probable token is the target's.\n\n"
        f"{table(['question', 'acceptance'], rows)}\n"
    )
    measured = [pair for run in runs_of(figures) for pair in run.get("held", {}).items()]
    phases = [(key, f"{value:.3f}") for key, value in dict(measured).items() if key.endswith((": caption", ": all"))]
    if phases:
        text += "\nAcceptance by training phase, measured during training on fewer scenes:\n\n"
        text += f"{table(['phase', 'acceptance'], phases)}\n"
    return text


def _target(model: TrainedModel, results: Figures, hardware: str) -> str:
    vision, text = model.config["vision_config"], model.config["text_config"]
    card_text = _TARGET.format(
        parameters=results["parameters"][model.name],
        tower_layers=vision["num_hidden_layers"],
        tower_hidden=vision["hidden_size"],
        layers=text["num_hidden_layers"],
        hidden=text["hidden_size"],
        shapes=", ".join(SHAPES),
        colours=", ".join(COLOURS),
        words=", ".join(WORDS),
    )
    card_text += training_runs(model.figures, hardware, _COUNTED) + _DATA + _target_table(results)
    return card_text + _LIMITS.format(weak=_weakest(results))


def _drafter(model: TrainedModel, results: Figures, hardware: str) -> str:
    return (
        _DRAFTERS[model.name].format(parameters=results["parameters"][model.name])
        + training_runs(model.figures, hardware, _COUNTED)
        + _drafter_table(model.figures, results, model.name)
        + "\nThis model was trained to draft for `vision-target`; used alone, it gives poor answers.\n"
    )


CARDS: dict[str, ResultsCard] = {"vision-target": _target} | dict.fromkeys(_DRAFTERS, _drafter)
"""Functions that return the text of a bundled vision model's card, by the model's name."""
