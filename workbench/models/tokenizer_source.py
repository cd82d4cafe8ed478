"""Find the tokenizer of a model in a local folder: its own, or that of the target for which it was trained.

A draft model uses its target's tokenizer. A published target's tokenizer is as large as many draft models, and is
always available with the target. So the draft model's folder has no copy; its configuration names the `target` and the
hash of the tokens and ids with which it was trained.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from workbench.models.bundle import config_of
from workbench.models.model_index import MODEL_INDEX, vocabulary_hash, vocabulary_of
from workbench.models.names import folder_of

VOCABULARY = "target_vocabulary"
"""Key in the configuration of a draft model without its own tokenizer, for the hash of the vocabulary with which it was
trained (`vocabulary_hash`)."""
FILES = ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja")
"""Names of tokenizer files in a model's folder."""


@dataclass(frozen=True, slots=True)
class TokenizerSource:
    """Target whose tokenizer a draft model uses, because its folder has none.

    Attributes:
        target: name of a published model; a configuration may not name anything else, such as a local folder.
        vocabulary: SHA-256 of the tokens that the tokenizer must have; see `vocabulary_hash`.
    """

    target: str
    vocabulary: str

    def matches(self, tokenizer: Any) -> bool:
        """Return whether a tokenizer has the tokens and ids that the draft model was trained with."""
        return vocabulary_hash(tokenizer.get_vocab()) == self.vocabulary


def tokenizer_source_of(folder: Path) -> TokenizerSource | None:
    """Return the target whose tokenizer a local model uses; None if it has its own, or names no valid target."""
    if (folder / FILES[0]).is_file():
        return None
    target, vocabulary = (config_of(folder).get(key) for key in ("target", VOCABULARY))
    is_named = isinstance(target, str) and isinstance(vocabulary, str)
    return TokenizerSource(target, vocabulary) if is_named and target in MODEL_INDEX and vocabulary else None


def tokenizer_source_for(name: str) -> TokenizerSource | None:
    """Return the target whose tokenizer a model uses; None if it has its own, or is not on this machine."""
    folder = folder_of(name)
    return None if folder is None else tokenizer_source_of(folder)


def vocabulary_hash_of(folder: Path) -> str:
    """Return the SHA-256 of the tokens and ids of a local model, without loading its tokenizer; empty if unknown."""
    if (source := tokenizer_source_of(folder)) is not None:
        return source.vocabulary
    file = folder / FILES[0]
    return _read(str(file), file.stat().st_mtime_ns) if file.is_file() else ""


@lru_cache(maxsize=16)
def _read(file: str, changed: int) -> str:
    """Return the hash of the vocabulary in a tokenizer.json, cached by path and modification time (`changed`)."""
    return vocabulary_of(json.loads(Path(file).read_text(encoding="utf-8")))
