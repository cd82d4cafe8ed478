"""Greedy answers to held-out problems and their grades: the evaluation of every bundled target.

Recipes generate texts in different ways: left to right, about images, or by filling in masks. All recipes use this
code for batches of prompts, for grading answers, and for the share of right answers.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import torch

from workbench.training.generators import TASKS, Instance

P = TypeVar("P")


@dataclass(frozen=True, slots=True)
class GradedAnswer(Generic[P]):
    """A model's answer to a problem, with its grade.

    Attributes:
        problem: problem that the model answers.
        text: text of the answer.
        is_right: whether the answer is right.
    """

    problem: P
    text: str
    is_right: bool


def grade(problems: Sequence[P], texts: Sequence[str], is_right: Callable[[P, str], bool]) -> list[GradedAnswer[P]]:
    """Return each problem with its answer, and whether `is_right` accepts the answer."""
    return [GradedAnswer(problem, text, is_right(problem, text)) for problem, text in zip(problems, texts, strict=True)]


def is_right_for_task(problem: Instance, text: str) -> bool:
    """Return whether an answer passes the check of the problem's task."""
    return TASKS[problem.task].check(problem, text)


def share_right(answers: Sequence[GradedAnswer[Any]]) -> float:
    """Return the share of graded answers that are right."""
    return sum(answer.is_right for answer in answers) / len(answers)


@torch.inference_mode()
def generate_batch(
    model: Any, prompts: Sequence[Sequence[int]], max_new_tokens: int, end: int, pad: int, **inputs: torch.Tensor
) -> list[list[int]]:
    """Return a model's greedy answers to a batch of prompts, as token ids without padding.

    An answer includes `end` if the model generated it.

    Args:
        model: a model of transformers.
        prompts: token ids; shorter ones are padded on the left.
        max_new_tokens: maximum length of an answer, in tokens.
        end: token that ends an answer.
        pad: token id for padding.
        inputs: further inputs of the model, such as `pixel_values`.
    """
    size = max(map(len, prompts))
    ids = torch.tensor([[pad] * (size - len(prompt)) + list(prompt) for prompt in prompts])
    mask = torch.tensor([[0] * (size - len(prompt)) + [1] * len(prompt) for prompt in prompts])
    output = model.generate(
        input_ids=ids, attention_mask=mask, max_new_tokens=max_new_tokens, do_sample=False, eos_token_id=end,
        pad_token_id=pad, **inputs,
    )  # fmt: skip
    answers = output[:, size:].tolist()
    return [answer[: answer.index(end) + 1] if end in answer else answer for answer in answers]
