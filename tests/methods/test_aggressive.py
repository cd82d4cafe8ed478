"""Aggressive decoding: alignment of the output with the input by hand, and a target that copies its prompt."""

from __future__ import annotations

import model_helpers
import pytest
import torch
from transformers import LogitsProcessor

from workbench.core.sampling import SamplingParams
from workbench.engine import Engine, Request
from workbench.methods import registry
from workbench.methods.aggressive.drafter import Alignment
from workbench.methods.suffix.drafter import Text


def alignment_positions(source: list[int], output: list[int], longest: int = 4) -> list[int | None]:
    """Return the position to copy from after each token of the output; None where the alignment is lost."""
    state, positions = Alignment(Text()), []
    state.source.extend(source)
    for end in range(1, len(output) + 1):
        state.follow(output[max(0, end - longest) : end], longest)
        positions.append(None if state.is_lost else state.at)
    return positions


@pytest.mark.parametrize(
    ("output", "positions"),
    [
        ([1, 2, 3], [1, 2, 3]),
        ([1, 9, 3, 4], [1, None, 3, 4]),  # token replaced
        ([1, 3, 4], [1, 3, 4]),  # token deleted
        ([1, 9, 9, 2, 3], [1, None, None, 2, 3]),  # tokens inserted
        ([8, 8], [None, None]),  # no token of the input
        ([1, 2, 3, 1, 2], [1, 2, 3, 1, 2]),  # starts again at the beginning
    ],
)
def test_alignment_follows_edits(output: list[int], positions: list[int | None]) -> None:
    assert alignment_positions([1, 2, 3, 4, 5, 6], output) == positions


def test_repeated_token_alone_does_not_align() -> None:
    source = [1, 7, 2, 7, 3, 4]
    assert alignment_positions(source, [9, 7]) == [None, None]
    assert alignment_positions(source, [9, 7, 3]) == [None, None, 5]
    assert alignment_positions([5, 1, 7, 2, 1, 7, 3], [9, 1, 7], longest=2) == [None, None, 3], (
        "of equal matches, the next one ahead is chosen"
    )


class CopyingDecoder(LogitsProcessor):
    """Force the first ten tokens of the prompt, the fifth one changed."""

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        position = (input_ids.shape[1] - 10) % 10
        token = 19 if position == 4 else int(input_ids[0, position])
        return torch.full_like(scores, -20.0).index_fill(1, torch.tensor([token], device=scores.device), 20.0)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_an_edit_costs_one_plain_round(temperature: float, device: str) -> None:
    """The rounds emit: the first four tokens and the change; one token without a draft, to align; the rest."""
    models, prompt = model_helpers.make_models("llama", noise=None, device=device), list(range(1, 11))
    sampling = SamplingParams(temperature, processors=(CopyingDecoder(),))
    trace = Engine(models).generate(Request(prompt, registry.get("aggressive"), sampling, 10, stop_at_eos=False))
    assert trace.token_ids == [1, 2, 3, 4, 19, 6, 7, 8, 9, 10]
    assert [len(r.emitted) for r in trace.rounds] == [5, 1, 4]
    assert [r.signals["aligned"] for r in trace.rounds] == [1, 0, 1]


def test_tokens_before_begin_are_not_copied(device: str) -> None:
    """The prompt begins with an instruction of two tokens; parameter `begin` gives its length."""
    models, prompt = model_helpers.make_models("llama", noise=None, device=device), [17, 18, *range(1, 9)]
    for begin in (0, 2):
        method = registry.get("aggressive").with_params(begin=begin, depth=4)
        trace = Engine(models).generate(Request(prompt, method, max_new_tokens=6, stop_at_eos=False))
        assert trace.rounds[0].nodes.tokens == prompt[begin : begin + 4]
