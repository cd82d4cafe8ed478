"""Several questions about one image, packed into one sequence of a batch.

A sequence is the image followed by turns. Each turn attends to the image and to itself, but not to other turns. So the
vision tokens are processed once for all questions, and no answer can be copied from another. Some sequences are
conversations instead, in which every turn attends to the turns before it.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from transformers import PreTrainedTokenizerFast

from workbench.models.chat_markers import ASSISTANT, END, IMAGE, USER
from workbench.training.scenes.model import VISION_TOKENS
from workbench.training.tokenizer import token_id

NO_IMAGE_ANSWER = "There is no picture."
ChatTurn = tuple[str, str | list[int]]
"""Type of a question with its answer, as text or as token ids. Token ids are used unchanged; a text gets EOS."""


@dataclass(frozen=True)
class Packed:
    """A batch of packed sequences.

    Attributes:
        ids: Token ids, int64 [B, T]; vision tokens have the id of the image placeholder.
        positions: Position of every token in its own conversation, int64 [B, T].
        mask: Tokens that each token attends to, bool [B, 1, T, T].
        labels: The next token if it belongs to an answer, else -100, int64 [B, T].
        weights: Weight of each label, float32 [B, T].
        is_image: Whether a token is a vision token, bool [B, T].
    """

    ids: Tensor
    positions: Tensor
    mask: Tensor
    labels: Tensor
    weights: Tensor
    is_image: Tensor


class Packer:
    """Packs questions and answers into batches.

    Args:
        tokenizer: Tokenizer of the model.
        vision_tokens: Vision tokens per image; 0 leaves the image out, for a text-only model.
        short_weight: Weight of the tokens in short answers; tokens in captions have weight 1.
    """

    def __init__(
        self,
        tokenizer: PreTrainedTokenizerFast,
        vision_tokens: int = VISION_TOKENS,
        short_weight: float = 2.0,
    ) -> None:
        self.vision_tokens, self.short_weight = vision_tokens, short_weight
        self._tokenizer = tokenizer
        self._user, self._answer, self._end, self._image = (
            token_id(tokenizer, token) for token in (USER, ASSISTANT, END, IMAGE)
        )
        self._cache: dict[str, list[int]] = {}

    def encode(self, text: str) -> list[int]:
        """Return the token ids of a text; results for short texts are cached."""
        ids = self._cache.get(text)
        if ids is None:
            ids = self._tokenizer.encode(text, add_special_tokens=False)
            if len(text) < 60:
                self._cache[text] = ids
        return ids

    def pack(
        self, conversations: Sequence[Sequence[ChatTurn]], chained: Sequence[bool], with_image: Sequence[bool]
    ) -> Packed:
        """Pack questions and answers about images into one batch of sequences.

        Args:
            conversations: Questions and answers of each sequence.
            chained: For each sequence, whether its turns are one conversation.
            with_image: For each sequence, whether it has an image.
        """
        parts = [
            self._pack_sequence(turns, is_chained, has_image)
            for turns, is_chained, has_image in zip(conversations, chained, with_image, strict=True)
        ]
        size = -(-max(len(part[0]) for part in parts) // 8) * 8
        shape = (len(parts), size)
        ids, positions = np.ones(shape, dtype=np.int64), np.zeros(shape, dtype=np.int64)
        labels, weights = np.full(shape, -100, dtype=np.int64), np.zeros(shape, dtype=np.float32)
        blocks = np.full(shape, -1, dtype=np.int64)
        for i, (row, position, label, weight, block) in enumerate(parts):
            n = len(row)
            ids[i, :n], positions[i, :n], blocks[i, :n] = row, position, block
            labels[i, : n - 1], weights[i, : n - 1] = label[1:], weight[1:]
        same_block = blocks[:, :, None] == blocks[:, None, :]
        shared = (blocks == 0)[:, None, :]
        mask = (same_block | shared) & np.tril(np.ones((size, size), dtype=bool))
        return Packed(
            torch.from_numpy(ids),
            torch.from_numpy(positions),
            torch.from_numpy(mask[:, None]),
            torch.from_numpy(labels),
            torch.from_numpy(weights),
            torch.from_numpy(ids == self._image),
        )

    def agree(self, turns: Sequence[ChatTurn], differs: Sequence[bool]) -> list[bool]:
        """Return for each turn of a sequence whether the model predicts the turn's whole answer, token by token.

        The sequence has an image, and its turns do not attend to each other.

        Args:
            turns: The sequence's questions and answers.
            differs: For each token of the sequence, whether the next token differs from the model's prediction.
        """
        blocks = self._pack_sequence(turns, False, True)[-1]
        wrong = {block for block, different in zip(blocks, differs, strict=False) if different}
        return [number not in wrong for number in range(1, len(turns) + 1)]

    def _pack_sequence(
        self, turns: Sequence[ChatTurn], chained: bool, with_image: bool
    ) -> tuple[list[int], list[int], list[int], list[float], list[int]]:
        ids = [self._user] + [self._image] * (self.vision_tokens if with_image else 0)
        positions, labels, weights, blocks = list(range(len(ids))), [-100] * len(ids), [0.0] * len(ids), [0] * len(ids)
        first = len(ids)
        for number, (question, answer) in enumerate(turns, 1):
            question_ids = [*self.encode(question), self._answer]
            if chained and number > 1:
                question_ids = [self._user, *question_ids]
            answer_ids = answer if isinstance(answer, list) else [*self.encode(answer), self._end]
            start = len(ids) if chained else first
            ids += question_ids + answer_ids
            positions += range(start, start + len(question_ids) + len(answer_ids))
            labels += [-100] * len(question_ids) + answer_ids
            weight = self.short_weight if len(answer_ids) < 16 else 1.0
            weights += [0.0] * len(question_ids) + [weight] * len(answer_ids)
            blocks += [0 if chained else number] * (len(question_ids) + len(answer_ids))
        return ids, positions, labels, weights, blocks


def vary_wording(question: str, rng: random.Random) -> str:
    """Return a question with random changes: leading newline, no final mark, lowercase start, all capitals."""
    if rng.random() < 0.12:
        question = "\n" + question
    if rng.random() < 0.08:
        question = question.rstrip("?.")
    if rng.random() < 0.08:
        question = question[:1].lower() + question[1:]
    return question.upper() if rng.random() < 0.02 else question
