"""Prompts to start with: one for each kind of text that a drafter likes or dislikes."""

from __future__ import annotations

import re
from typing import Any

_MESSAGE = re.compile(r"<\|user\|>(.*)<\|assistant\|>", re.DOTALL)


def message_in(prompt: str) -> str | None:
    """The words of a prompt that is a user's message between the markers of `presets`; None where it is none."""
    found = _MESSAGE.fullmatch(prompt)
    return found and found[1]


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


def presets() -> list[dict[str, Any]]:
    """Name, title and prompt of each preset. Chat prompts carry the tokenizer's markers as text."""
    return [{"name": name, "title": name, "prompt": prompt} for name, prompt in _PRESETS.items()]
