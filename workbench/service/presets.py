"""Provide example prompts, one for each kind of text that is easy or hard to draft."""

from __future__ import annotations

import re
from collections.abc import Collection
from typing import Any

from workbench.models.model_index import SMOLLM2

_MESSAGE = re.compile(r"<\|user\|>(.*)<\|assistant\|>", re.DOTALL)


def message_in(prompt: str) -> str | None:
    """Return the user's message in a chat prompt that has the format of the example prompts; None for other prompts."""
    match = _MESSAGE.fullmatch(prompt)
    return match and match[1]


def _ask(question: str) -> str:
    return f"<|user|>{question}<|assistant|>"


_PRESETS = {
    "story": _ask("Write a story about Mia and Tom. Put a red kite in it."),
    "copy ×3": _ask("Repeat this text three times:\nThe little fox found a red kite"),
    "code": _ask("Write a Python function times_7(count) that returns count times 7."),
    "maths": _ask("What is 47 + 38?"),
    "JSON": _ask("Write this record as JSON: name: Mia, age: 34, city: Paris, pet: rabbit"),
    "sort": _ask("Sort these words from A to Z: milk, van, ice, leaf"),
    "chat": _ask("Write a story about a boy called Ben. Put a blue boat in it."),
}


_FOR_SMOLLM2 = {
    "Python, twice": "Write a Python function that returns the n-th Fibonacci number with a loop. "
    "Then write the same function again with type hints and a docstring.",
    "lines to JSON": "Format this as JSON:\n\nMia: age 34, city Paris\nTom: age 29, city Oslo",
    "quoting": "What is this text about? Answer in one sentence and quote the words that show it.\n\n"
    "The old lighthouse at Saltmarsh Point has been dark since the harbour moved north. Each spring a group of "
    "neighbours paints its door, oils the hinges and winds the clock that no ship will ever read again. They say that "
    "a light is kept by those who remember it.",
    "word for word": "Repeat this text exactly:\n\nThe train to the coast leaves at seven, and tickets are cheaper on "
    "Sundays. Children under ten travel free.",
    "tale": "Tell a short story about a lighthouse keeper who finds a message in a bottle.",
}
"""Prompts by title that a chat model of 135 million parameters answers well: copying, rewriting, quoting, prose.

There are no prompts for translations or tables of several columns, because such a model answers them wrongly.
"""


def presets(targets: Collection[str] = ()) -> list[dict[str, Any]]:
    """Return name, title and prompt of each example prompt.

    Chat prompts contain the special tokens of the bundled tokenizer as text.

    Args:
        targets: names of the available targets. An example prompt for one certain target is included only if that
            target is available.
    """
    entries = [{"name": name, "title": name, "prompt": prompt} for name, prompt in _PRESETS.items()]
    if SMOLLM2.name in targets:
        tasks = _FOR_SMOLLM2.items()
        entries += [{"name": name, "title": name, "prompt": _ask(text), "target": SMOLLM2.name} for name, text in tasks]
    return entries
