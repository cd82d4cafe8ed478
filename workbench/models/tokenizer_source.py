"""Whose words a model in a folder speaks: by the tokenizer that lies there, or that of the target it borrows from.

A draft model has its target's tokenizer, which for a published target is as large as many a drafter and always comes
with the target. So its configuration names the `target`, and says which tokens and ids it learnt with; no copy is kept.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from workbench.models.bundle import config_of
from workbench.models.names import folder_of
from workbench.models.published import PUBLISHED, vocabulary_of, words_sum

VOCABULARY = "target_vocabulary"
"""In a draft model's configuration: `words_sum` of the tokens that it learnt with. It brings no tokenizer then."""
FILES = ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja")
"""What a tokenizer's folder holds of it."""


@dataclass(frozen=True, slots=True)
class Lender:
    """Of whom a draft model borrows its tokenizer.

    Attributes:
        target: a published model: no folder of this machine, and nothing else that a stranger's file could name.
        vocabulary: SHA-256 of the tokens that its tokenizer must have; see `words_sum`.
    """

    target: str
    vocabulary: str

    def lends(self, tokenizer: Any) -> bool:
        """Whether a tokenizer gives every id the meaning that the draft model learnt."""
        return words_sum(tokenizer.get_vocab()) == self.vocabulary


def lender(folder: Path) -> Lender | None:
    """Of whom the model in a folder borrows its tokenizer; None where it has one of its own, or says nobody."""
    if (folder / FILES[0]).is_file():
        return None
    target, vocabulary = (config_of(folder).get(key) for key in ("target", VOCABULARY))
    is_named = isinstance(target, str) and isinstance(vocabulary, str)
    return Lender(target, vocabulary) if is_named and target in PUBLISHED and vocabulary else None


def lender_to(name: str) -> Lender | None:
    """`lender` of a model that lies on this machine; None for any other."""
    folder = folder_of(name)
    return None if folder is None else lender(folder)


def spoken(folder: Path) -> str:
    """SHA-256 of the tokens and ids that the model in a folder speaks, from files alone; empty where they tell none."""
    if (found := lender(folder)) is not None:
        return found.vocabulary
    file = folder / FILES[0]
    return _read(str(file), file.stat().st_mtime_ns) if file.is_file() else ""


@lru_cache(maxsize=16)
def _read(file: str, changed: int) -> str:
    """`vocabulary_of` a file; its date decides when it is read anew."""
    return vocabulary_of(json.loads(Path(file).read_text(encoding="utf-8")))
