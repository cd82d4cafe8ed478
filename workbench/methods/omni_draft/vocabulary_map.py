"""Mapping between two vocabularies: from a draft model's tokens to the target's."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import takewhile
from typing import Any

import torch

from workbench.methods.omni_draft.online_training import SharedTokens
from workbench.models.loading import Models
from workbench.models.other_vocabulary import OtherVocabularyDrafter

BROKEN = "\ufffd"
"""Character that a tokenizer decodes in place of the bytes of an incomplete character."""
LONGEST = 64
"""Maximum length in characters of a target token to which drafted text is mapped. Longer tokens are white space or
lines of punctuation."""
BEFORE = 48
"""Maximum number of characters of the committed text that are used as context when a draft is tokenised."""


def token_texts(tokenizer: Any, n: int) -> list[str]:
    """Return the texts of a vocabulary's first n tokens: "" for special tokens and for parts of characters."""
    anchor = tokenizer("a", add_special_tokens=False)["input_ids"]
    sequences = [anchor, *([*anchor, token] for token in range(n))]
    base, *texts = tokenizer.batch_decode(sequences, skip_special_tokens=True, clean_up_tokenization_spaces=False)
    return [text[len(base) :] if text.startswith(base) and BROKEN not in text else "" for text in texts]


@dataclass(frozen=True)
class VocabularyMap:
    """Mapping between a draft model's vocabulary and the target's, by the texts of their tokens.

    Attributes:
        drafter_texts: text of each drafter token, by id.
        token_of: id of the target's token by the token's text.
        drafter_eos: the drafter's end-of-text tokens.
        target_eos: the target's end-of-text token.
        tokenizer: the target's tokenizer, if it returns token offsets.
    """

    drafter_texts: Sequence[str]
    token_of: dict[str, int]
    drafter_eos: frozenset[int]
    target_eos: int
    tokenizer: Any = None

    @classmethod
    def of(cls, models: Models, drafter: OtherVocabularyDrafter) -> VocabularyMap:
        """Build the mapping between the vocabularies of two tokenizers.

        This takes more than half a second for 50,000 tokens.
        """
        token_of: dict[str, int] = {}
        for token, text in enumerate(
            token_texts(models.tokenizer, min(len(models.tokenizer), models.target.vocab_size))
        ):
            if text and len(text) <= LONGEST:
                token_of.setdefault(text, token)
        texts = token_texts(drafter.tokenizer, len(drafter.tokenizer))
        drafter_eos, target_eos = (
            Models(drafter.runner, drafter.tokenizer).eos | {drafter.tokenizer.eos_token_id},
            models.eos,
        )
        eos = models.tokenizer.eos_token_id  # if there are several, the one that ends an answer
        offset_tokenizer = models.tokenizer if getattr(models.tokenizer, "is_fast", False) else None
        end = eos if eos in target_eos else min(target_eos, default=-1)
        return cls(
            texts, token_of, frozenset(drafter_eos - {None}) if target_eos else frozenset(), end, offset_tokenizer
        )

    @classmethod
    def get_or_build(cls, models: Models, drafter: OtherVocabularyDrafter) -> VocabularyMap:
        """Return the mapping between the vocabularies of two tokenizers.

        It is built once and stored with the target.
        """
        key = ("omnidraft", models.target_name, drafter.name)
        dictionary, tokenizer = models.shared.get(key, (None, None))
        if dictionary is None or tokenizer is not drafter.tokenizer:  # another draft model of the same name
            dictionary = cls.of(models, drafter)
            models.shared[key] = dictionary, drafter.tokenizer
        return dictionary

    @cached_property
    def shared(self) -> SharedTokens:
        """Return the tokens with equal text in both vocabularies, including the end-of-text token."""
        drafter_id_of: dict[int, int] = {}
        for drafter_id, text in enumerate(self.drafter_texts):
            if text in self.token_of:
                drafter_id_of.setdefault(self.token_of[text], drafter_id)
        if self.drafter_eos and self.target_eos >= 0:
            drafter_id_of.setdefault(self.target_eos, min(self.drafter_eos))
        return SharedTokens(
            torch.tensor(list(drafter_id_of.values()), dtype=torch.long),
            torch.tensor(list(drafter_id_of), dtype=torch.long),
        )

    def text(self, token: int) -> str:
        """Return the text of a drafter token."""
        return self.drafter_texts[token] if token < len(self.drafter_texts) else ""

    def has_no_text(self, token: int) -> bool:
        """Return whether a drafter token has no text, like an end-of-text token, and so cannot be translated."""
        return not self.text(token)

    def translate(self, drafter_ids: Sequence[int], merge: bool, before: str = "") -> list[int]:
        """Return the target's tokens for the text of drafter tokens, including an end-of-text token.

        A target token that ends within the last drafter token is left out, because more text might lengthen it, unless
        it is the only one.

        Args:
            drafter_ids: the drafter's tokens, at least one.
            merge: whether several drafter tokens may become one target token. If not, each drafter token must have the
                text of a target token.
            before: text before the drafter tokens.
        """
        texts = [self.text(token) for token in drafter_ids]
        if not merge:
            ids = [self.token_of[text] for text in takewhile(self.token_of.__contains__, texts)]
            return (
                [*ids, self.target_eos]
                if len(ids) + 1 == len(drafter_ids) and drafter_ids[-1] in self.drafter_eos
                else ids
            )
        full_text = "".join(texts)
        matches = self.tokenise_after(before, full_text)
        matches = self.longest_matches(full_text) if matches is None else matches
        ends = drafter_ids[-1] in self.drafter_eos
        if ends and (matches[-1][1] if matches else 0) == len(full_text):
            return [*(token for token, _ in matches), self.target_eos]
        n_safe = len(full_text) - len(texts[-1])
        return [token for token, end in matches if end <= n_safe] or [token for token, _ in matches[:1]]

    def tokenise_after(self, before: str, text: str) -> list[tuple[int, int]] | None:
        """Tokenise a text with the target's tokenizer, in the context of the text before it.

        Returns:
            (token, its end in the text) of each token. None if the target's tokenizer returns no offsets, or if a token
            spans the border between the two texts.
        """
        if self.tokenizer is None:
            return None
        begin = before.find(" ", max(0, len(before) - BEFORE))  # at a word border, where tokenizers split texts
        before = before[begin:] if begin >= 0 else before[-BEFORE:]
        encoding = self.tokenizer(before + text, add_special_tokens=False, return_offsets_mapping=True)
        spans = list(zip(encoding["input_ids"], encoding["offset_mapping"], strict=True))
        inside = [(token, end - len(before)) for token, (start, end) in spans if start >= len(before)]
        if any(start < len(before) < end for _, (start, end) in spans):
            return None
        return inside

    def longest_matches(self, text: str) -> list[tuple[int, int]]:
        """Split a text into the longest matching tokens of the target. Return (token id, end index) of each token.

        The result ends before the first character with which no token begins.
        """
        tokens, at = list[tuple[int, int]](), 0
        while at < len(text):
            ends = range(min(len(text), at + LONGEST), at, -1)
            end = next((end for end in ends if text[at:end] in self.token_of), None)
            if end is None:
                break
            tokens.append((self.token_of[text[at:end]], end))
            at = end
        return tokens
