"""Stopping criteria and logits processors with a rule per row of a batch, or one for the whole batch."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any

import pytest
import torch
from model_helpers import family, noisy_copy, repeating_prompt
from transformers import LogitsProcessor, LogitsProcessorList, StoppingCriteria, StoppingCriteriaList

from workbench.interop import speculative
from workbench.trace.metrics import summary

LENGTHS, N = (5, 12, 9), 18
LONGEST = max(LENGTHS)


@lru_cache
def models() -> tuple[Any, Any]:
    model = family("llama")
    return model, noisy_copy(model, 0.2, 1)


def written(spec: Any = None, **options: Any) -> torch.Tensor:
    """Return the output of `generate` for a batch padded on the left, [3, 12 + new]."""
    ids = torch.tensor([[0] * (LONGEST - n) + repeating_prompt(n, seed=i) for i, n in enumerate(LENGTHS)])
    options = {"max_new_tokens": N, "do_sample": False, "eos_token_id": None, "pad_token_id": 0} | options
    return models()[0].generate(ids, attention_mask=(ids != 0).long(), custom_generate=spec, **options)


@lru_cache
def free() -> list[list[int]]:
    """Return the new tokens of each row without any rule."""
    return written()[:, LONGEST:].tolist()


class OwnToken(StoppingCriteria):
    """Ends row b after token `ends[b]`."""

    def __init__(self, ends: list[int]) -> None:
        self.ends = torch.tensor(ends)

    def __call__(self, input_ids: Any, scores: Any, **_: Any) -> Any:
        return input_ids[:, -1] == self.ends


class OwnTokenByIndex(StoppingCriteria):
    """The same, with a list of one entry per row as state."""

    def __init__(self, ends: list[int]) -> None:
        self.ends, self.seen = ends, [0] * len(ends)

    def __call__(self, input_ids: Any, scores: Any, **_: Any) -> Any:
        for b, end in enumerate(self.ends):
            self.seen[b] += int(input_ids[b, -1]) == end
        return torch.tensor([seen > 0 for seen in self.seen])


class AnyRow(StoppingCriteria):
    """Ends the whole batch when any row contains a token."""

    def __init__(self, ends: list[int]) -> None:
        self.end = ends[0]

    def __call__(self, input_ids: Any, scores: Any, **_: Any) -> Any:
        return torch.full((len(input_ids),), bool((input_ids[:, LONGEST:] == self.end).any()))


class AfterCalls(StoppingCriteria):
    """Ends row b after a number of calls of its own; there is one call per step."""

    def __init__(self, ends: list[int]) -> None:
        self.calls = 0

    def __call__(self, input_ids: Any, scores: Any, **_: Any) -> Any:
        self.calls += 1
        assert input_ids.shape[1] == LONGEST + self.calls
        return torch.tensor([self.calls >= 4, self.calls >= 11, self.calls >= 7])


class Never(StoppingCriteria):
    def __init__(self, ends: list[int]) -> None:
        pass

    def __call__(self, input_ids: Any, scores: Any, **_: Any) -> Any:
        return torch.zeros(len(input_ids), dtype=torch.bool)


@pytest.mark.parametrize("is_eos_known", [False, True], ids=["no eos", "eos"])
@pytest.mark.parametrize("kind", [OwnToken, OwnTokenByIndex, AnyRow, AfterCalls, Never])
def test_criteria_get_the_same_batch_as_from_generate(
    kind: Callable[[list[int]], StoppingCriteria], is_eos_known: bool
) -> None:
    """Without an EOS token, a finished row continues until all have finished; with one it is padded."""
    rows = free()
    ends = [rows[0][9], rows[1][4], rows[2][6]]
    eos = rows[2][12] if is_eos_known else None
    wanted = written(stopping_criteria=StoppingCriteriaList([kind(ends)]), eos_token_id=eos)
    spec = speculative("draft-model", assistant=models()[1])
    ours = written(spec, stopping_criteria=StoppingCriteriaList([kind(ends)]), eos_token_id=eos)
    assert ours.tolist() == wanted.tolist()
    if kind is not Never and not is_eos_known:
        assert wanted.shape[1] < LONGEST + N, "the criterion had no effect"
    for trace in spec.traces:
        assert summary(trace)["tokens"] == len(trace.token_ids) <= ours.shape[1] - LONGEST
        assert summary(trace)["accepted"] == sum(e.kind == "accepted" for r in trace.rounds for e in r.emitted)


class OwnBans(LogitsProcessor):
    """Forbids different tokens in each row, and requires that rows keep their places."""

    def __init__(self, banned: list[list[int]]) -> None:
        self.banned = banned

    def __call__(self, input_ids: Any, scores: Any) -> Any:
        for b, banned in enumerate(self.banned):
            assert input_ids[b, LONGEST - LENGTHS[b] : LONGEST].tolist() == repeating_prompt(LENGTHS[b], seed=b)
            assert not set(input_ids[b, LONGEST:].tolist()) & set(banned)
            scores[b, banned] = -torch.inf
        return scores


@pytest.mark.parametrize("sampled", [False, True], ids=["greedy", "sampled"])
def test_processors_get_every_row_in_its_place(sampled: bool) -> None:
    banned = [sorted({token for token in row[:8] if token}) for row in free()]
    spec = speculative("draft-model", assistant=models()[1], seed=1)
    options: dict[str, Any] = {"logits_processor": LogitsProcessorList([OwnBans(banned)]), "do_sample": sampled}
    ours = written(spec, **options)
    assert all(not set(row) & set(ban) for row, ban in zip(ours[:, LONGEST:].tolist(), banned, strict=True))
    if not sampled:
        assert ours.tolist() == written(**options).tolist()
