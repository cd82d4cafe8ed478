"""What a target makes of right and wrong answers: the states that a judge of drafts learns from."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from workbench.core.errors import ParameterError
from workbench.engine.models import Models
from workbench.engine.segment import Segment
from workbench.methods.growers.chain import fit_vocabulary
from workbench.training.acceptance import said
from workbench.training.loop import Report
from workbench.training.mistakes import DRAFTED, KINDS, Graded, Mistake, is_wrong


@dataclass(frozen=True)
class Tokens:
    """Tokens as the judge sees them.

    Attributes:
        right: states behind tokens of right answers.
        likeliest: whether each is the target's likeliest there.
        wrong: states behind tokens of mistakes.
        kinds: of these, as indices into `KINDS`.
        answers: right answers.
        mistakes: answers with a mistake.
        read: tokens that the target read for it.
    """

    right: Float[Tensor, "R D"]
    likeliest: Bool[Tensor, " R"]
    wrong: Float[Tensor, "W D"]
    kinds: Int[Tensor, " W"]
    answers: int
    mistakes: int
    read: int


def read_answers(models: Models, groups: dict[str, list[Graded]], report: Report) -> Tokens:
    """What the target makes of answers, right and wrong.

    Raises:
        ParameterError: none of them has a mistake.
    """
    right, likeliest, wrong, kinds, n_read, n_mistakes = [], [], [], [], 0, 0
    for group, answers in groups.items():
        for each in answers:
            asked = ask(models.tokenizer, each.prompt)
            own = list(models.tokenizer(each.answer, add_special_tokens=False)["input_ids"])
            made = [(*spoilt(models.tokenizer, own, mistake), mistake.kind) for mistake in each.mistakes]
            own.append(models.tokenizer.eos_token_id)
            made += [(*found, DRAFTED) for found in drafted(models, group, asked, own, len(made))]
            logits, states, spans = read_one(models, asked, own, [(tokens, first) for tokens, first, _ in made])
            right.append(states)
            likeliest.append(logits.argmax(1) == torch.tensor(own))
            wrong += spans
            kinds += [KINDS.index(kind) for (_, _, kind), span in zip(made, spans, strict=True) for _ in span]
            n_read, n_mistakes = n_read + len(asked) + len(own) + sum(map(len, spans)), n_mistakes + len(spans)
        report(f"judge: {group} read, {n_read:,} tokens in all")
    if not n_mistakes:
        raise ParameterError("No answer could be made wrong.", "Ask for more answers: count=…, held=….")
    n_answers = sum(map(len, groups.values()))
    return Tokens(
        torch.cat(right), torch.cat(likeliest), torch.cat(wrong), torch.tensor(kinds), n_answers, n_mistakes, n_read
    )


def read_one(
    models: Models, asked: Sequence[int], own: Sequence[int], wrong: Sequence[tuple[Sequence[int], int]]
) -> tuple[Float[Tensor, "n V"], Float[Tensor, "n D"], list[Float[Tensor, "w D"]]]:
    """The target's logits before each token of a right answer, the states behind them, and those behind mistakes.

    What a wrong answer has in common with the right one is read once.

    Args:
        models: with the target.
        asked: the question.
        own: the right answer.
        wrong: answers up to the end of their mistake, and the index at which it begins.
    """
    target = models.target
    slot, spans = target.open(), dict[int, Tensor]()
    try:
        target.prefill(slot, asked[:-1])
        out = target.forward([Segment(slot, torch.tensor([asked[-1], *own]))])
        logits, states = out.logits[0].float().clone(), out.hidden[0].float().clone()
        target.commit(slot, range(1 + len(own)))
        for i in sorted(range(len(wrong)), key=lambda i: -wrong[i][1]):
            tokens, first = wrong[i]
            target.rewind(slot, len(asked) + first)
            spans[i] = target.forward([Segment(slot, torch.tensor(tokens[first:]))]).hidden[0].float().clone()
    finally:
        target.close(slot)
    return logits[:-1], states[1:], [spans[i] for i in range(len(wrong))]


def drafted(
    models: Models, group: str, asked: Sequence[int], own: Sequence[int], n: int
) -> list[tuple[list[int], int]]:
    """Right answers up to a token of the draft model's that is certainly wrong, and its index; spread over the answer.

    Args:
        models: without a draft model there are none.
        group: the answer's.
        asked: the question.
        own: the right answer, with its end.
        n: how many, at most.
    """
    if models.drafter is None or not n:
        return []
    logits = said(models.drafter, [*asked, *own])[0][len(asked) - 1 : -1]
    best = fit_vocabulary(logits, models.target.vocab_size).argmax(1).tolist()
    end, tokenizer, found = models.tokenizer.eos_token_id, models.tokenizer, list[tuple[list[int], int]]()
    for i, token in enumerate(best):
        rest = tokenizer.decode(own[i:], skip_special_tokens=True) if token != own[i] else ""
        if rest and is_wrong(group, rest, tokenizer.decode([token]), token == end):
            found.append(([*own[:i], token], i))
    return found[:: -(-len(found) // n)] if found else []


def ask(tokenizer: Any, prompt: str) -> list[int]:
    """A question in the target's chat format, up to where the answer begins."""
    chat = [{"role": "user", "content": prompt}]
    return [int(t) for t in tokenizer.apply_chat_template(chat, add_generation_prompt=True, return_dict=False)]


def spoilt(tokenizer: Any, own: Sequence[int], mistake: Mistake) -> tuple[list[int], int]:
    """Tokens of a wrong answer up to the end of its mistake, and the index of the first wrong one.

    Args:
        tokenizer: the target's.
        own: tokens of the right answer.
        mistake: see `Mistake`.
    """
    found = tokenizer(mistake.text, add_special_tokens=False, return_offsets_mapping=True)
    ids = list(found["input_ids"])
    if mistake.begin == mistake.end:
        return [*ids, tokenizer.eos_token_id], len(ids)
    last = max(i for i, (begin, _) in enumerate(found["offset_mapping"]) if begin < mistake.end)
    first = next(i for i, (a, b) in enumerate(itertools.zip_longest(ids, own)) if a != b)
    return ids[: last + 1], min(first, last)
