"""Prompts to start with: one for each kind of text that a drafter likes or dislikes."""

from __future__ import annotations

from typing import Any


def _ask(question: str) -> str:
    return f"<|user|>{question}<|assistant|>"


_PRESETS = {
    "story": "Once upon a time, there was a little fox called Pip.",
    "copy ×3": _ask("Repeat this text three times:\nThe little fox found a red kite in the tall grass"),
    "code": _ask("Write a Python function larger_than_7(values) that returns the values that are larger than 7."),
    "maths": _ask("What is 47 + 38?"),
    "JSON": _ask("Write this record as JSON: name: Mia, age: 34, city: Paris, pet: rabbit"),
    "sort": _ask("Put these words in order from A to Z: pear, milk, apple, table, nut, grape"),
    "chat": _ask("Write a short story about a boy called Ben and a boat."),
}


def presets() -> list[dict[str, Any]]:
    """Name, title and prompt of each preset. Chat prompts carry the tokenizer's markers as text."""
    return [{"name": name, "title": name, "prompt": prompt} for name, prompt in _PRESETS.items()]
