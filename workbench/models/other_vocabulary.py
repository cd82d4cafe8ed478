"""Describe a draft model whose vocabulary differs from the target's."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from workbench.models.runner import Runner


@dataclass(frozen=True)
class OtherVocabularyDrafter:
    """Draft model whose vocabulary differs from the target's, so that drafts must be decoded to text and encoded again.

    Attributes:
        runner: runner of the draft model.
        tokenizer: tokenizer of the draft model.
        name: bundled name, folder or Hub id of the draft model.
    """

    runner: Runner
    tokenizer: Any
    name: str
