"""Map between two vocabularies: a draft model's tokens to the target's."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import takewhile
from typing import Any

import torch

from workbench.methods.drafters.omni_online_training import Shared
from workbench.models.loading import Models
from workbench.models.other_vocabulary import OtherVocabularyDrafter

BROKEN = "\ufffd"
"""Replacement for bytes of an incomplete character."""
LONGEST = 64
"""Greatest length, in characters, of a token that is looked up; longer ones are white space or rules of punctuation."""
BEFORE = 48
"""Largest number of characters of the committed text used as context when a draft is tokenised."""


def pieces(tokenizer: Any, n: int) -> list[str]:
    """Return the text that each of the first n tokens adds; "" for special tokens and parts of characters."""
    anchor = tokenizer("a", add_special_tokens=False)["input_ids"]
    asked = [anchor, *([*anchor, token] for token in range(n))]
    base, *texts = tokenizer.batch_decode(asked, skip_special_tokens=True, clean_up_tokenization_spaces=False)
    return [text[len(base) :] if text.startswith(base) and BROKEN not in text else "" for text in texts]


@dataclass(frozen=True)
class Dictionary:
    """Mapping between a draft model's vocabulary and the target's, by the texts of their tokens.

    Attributes:
        said: text of each of the drafter's tokens.
        token_of: the target's token by its text.
        ends: the drafter's end tokens.
        end: the target's end token.
        tokenizer: the target's tokenizer, if it returns token offsets.
    """

    said: Sequence[str]
    token_of: dict[str, int]
    ends: frozenset[int]
    end: int
    tokenizer: Any = None

    @classmethod
    def of(cls, models: Models, stranger: OtherVocabularyDrafter) -> Dictionary:
        """Build the mapping for two tokenizers: more than half a second for 50,000 tokens."""
        token_of: dict[str, int] = {}
        for token, text in enumerate(pieces(models.tokenizer, min(len(models.tokenizer), models.target.vocab_size))):
            if text and len(text) <= LONGEST:
                token_of.setdefault(text, token)
        said = pieces(stranger.tokenizer, len(stranger.tokenizer))
        theirs, ours = Models(stranger.runner, stranger.tokenizer).eos | {stranger.tokenizer.eos_token_id}, models.eos
        own = models.tokenizer.eos_token_id  # if there are several, the one that ends an answer
        cuts = models.tokenizer if getattr(models.tokenizer, "is_fast", False) else None
        end = own if own in ours else min(ours, default=-1)
        return cls(said, token_of, frozenset(theirs - {None}) if ours else frozenset(), end, cuts)

    @classmethod
    def known(cls, models: Models, writer: OtherVocabularyDrafter) -> Dictionary:
        """Return the mapping, built once for two tokenizers and stored with the target."""
        key = ("omnidraft", models.target_name, writer.name)
        kept, of = models.shared.get(key, (None, None))
        if kept is None or of is not writer.tokenizer:  # another draft model, of the same name
            kept = cls.of(models, writer)
            models.shared[key] = kept, writer.tokenizer
        return kept

    @cached_property
    def shared(self) -> Shared:
        """Return tokens with the same text in both vocabularies, the first of several; the end token is included."""
        ours: dict[int, int] = {}
        for theirs, text in enumerate(self.said):
            if text in self.token_of:
                ours.setdefault(self.token_of[text], theirs)
        if self.ends and self.end >= 0:
            ours.setdefault(self.end, min(self.ends))
        return Shared(torch.tensor(list(ours.values()), dtype=torch.long), torch.tensor(list(ours), dtype=torch.long))

    def text(self, token: int) -> str:
        """Return the text of a drafter's token."""
        return self.said[token] if token < len(self.said) else ""

    def is_over(self, token: int) -> bool:
        """Return whether a drafter's token ends the text, or has no text to translate."""
        return not self.text(token)

    def drafted(self, said: Sequence[int], merge: bool, before: str = "") -> list[int]:
        """Return the target's tokens for the drafter's text, including an end token.

        A target token completed only by the last drafter token is left out unless it is the only one: more text might
        lengthen it.

        Args:
            said: the drafter's tokens, at least one.
            merge: whether several may become one of the target's; if not, each has to be one by itself.
            before: the text before them.
        """
        texts = [self.text(token) for token in said]
        if not merge:
            same = [self.token_of[text] for text in takewhile(self.token_of.__contains__, texts)]
            return [*same, self.end] if len(same) + 1 == len(said) and said[-1] in self.ends else same
        whole = "".join(texts)
        found = self.cut(before, whole)
        found = self.translated(whole) if found is None else found
        ends = said[-1] in self.ends
        if ends and (found[-1][1] if found else 0) == len(whole):
            return [*(token for token, _ in found), self.end]
        sure = len(whole) - len(texts[-1])
        return [token for token, end in found if end <= sure] or [token for token, _ in found[:1]]

    def cut(self, before: str, text: str) -> list[tuple[int, int]] | None:
        """Return the target tokenizer's tokens of a text after another one, and the end of each in it.

        None if it returns no offsets, or if a token spans the border: the target has already split there.
        """
        if self.tokenizer is None:
            return None
        begin = before.find(" ", max(0, len(before) - BEFORE))  # a word starts there, for tokenizers with words
        before = before[begin:] if begin >= 0 else before[-BEFORE:]
        read = self.tokenizer(before + text, add_special_tokens=False, return_offsets_mapping=True)
        places = list(zip(read["input_ids"], read["offset_mapping"], strict=True))
        inside = [(token, end - len(before)) for token, (start, end) in places if start >= len(before)]
        if any(start < len(before) < end for _, (start, end) in places):
            return None
        return inside

    def translated(self, text: str) -> list[tuple[int, int]]:
        """Return the target's tokens of a text, each the longest match, and the characters read up to its end.

        It ends before the first character that no token begins with.
        """
        found, at = list[tuple[int, int]](), 0
        while at < len(text):
            ends = range(min(len(text), at + LONGEST), at, -1)
            end = next((end for end in ends if text[at:end] in self.token_of), None)
            if end is None:
                break
            found.append((self.token_of[text[at:end]], end))
            at = end
        return found
