"""What transformers' `generate` says of a row, in the engine's words: its prompt, its law, when it stops."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor
from transformers import GenerationConfig
from transformers.generation.logits_process import (
    LogitNormalization,
    LogitsProcessorList,
    MinPLogitsWarper,
    PrefixConstrainedLogitsProcessor,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)
from transformers.generation.stopping_criteria import MaxLengthCriteria, StoppingCriteriaList

from workbench.core.errors import ParameterError
from workbench.core.sampling import SamplingParams

ROW_BY_ROW = ("RepetitionPenaltyLogitsProcessor", "Encoder", "PrefixConstrained")
"""Beginnings of the names of transformers' own processors that keep something for each row of the batch."""


@dataclass(frozen=True)
class History:
    """A row's tokens as `generate`'s own loop would show them: prompts padded on the left to one length."""

    prompts: Int[Tensor, "B L"]
    row: int
    skipped: int

    @property
    def prompt(self) -> list[int]:
        """Its tokens, without padding."""
        return self.prompts[self.row, self.skipped :].tolist()

    def padded(self, ids: Int[Tensor, "1 n"]) -> Int[Tensor, "1 n_plus_skipped"]:
        """Tokens of its text behind the padding before its prompt."""
        left = self.prompts[self.row : self.row + 1, : self.skipped]
        return torch.cat([left, ids.to(left.device)], dim=1)


@dataclass(frozen=True)
class Processor:
    """A logits processor for one row.

    One that may keep something for each row of the batch sees as many rows as `generate` has, all of them this row's.
    """

    processor: Any
    history: History

    def __call__(self, ids: Int[Tensor, "1 n"], scores: Float[Tensor, "1 V"]) -> Float[Tensor, "1 V"]:
        n_rows, row = len(self.history.prompts), self.history.row
        if not _knows_rows(self.processor):
            n_rows, row = 1, 0
        ids = self.history.padded(ids)
        found = self.processor(ids.repeat(n_rows, 1), scores.to(ids.device).repeat(n_rows, 1))
        return found[row : row + 1].to(scores.device)


def _knows_rows(processor: Any) -> bool:
    kind = type(processor)
    return kind.__module__ != LogitNormalization.__module__ or kind.__name__.startswith(ROW_BY_ROW)


def histories(prompts: Int[Tensor, "B L"], mask: Tensor | None) -> list[History]:
    """One a row.

    Raises:
        ParameterError: padding anywhere but on the left.
    """
    if mask is None:
        return [History(prompts, row, 0) for row in range(len(prompts))]
    skipped = mask.long().argmax(1)
    if not torch.equal(mask.bool(), torch.arange(mask.shape[1], device=mask.device) >= skipped.unsqueeze(1)):
        raise ParameterError("A prompt is masked elsewhere than on its left.", "Set tokenizer.padding_side to 'left'.")
    return [History(prompts, row, n) for row, n in enumerate(skipped.tolist())]


def sampling(processors: LogitsProcessorList, config: GenerationConfig, history: History) -> SamplingParams:
    """The law of the configuration.

    The usual filters at the end of the list become the engine's own, which drafters share; what stands before them,
    and filters in any other order, are applied as they are.
    """
    left = [p for p in processors if not isinstance(p, LogitNormalization)]
    values: dict[str, Any] = {"temperature": 1.0 if config.do_sample else 0.0}
    if config.do_sample:
        for kind, name in ((MinPLogitsWarper, "min_p"), (TopPLogitsWarper, "top_p"), (TopKLogitsWarper, "top_k"),
                           (TemperatureLogitsWarper, "temperature")):  # fmt: skip
            if left and type(left[-1]) is kind and getattr(left[-1], "min_tokens_to_keep", 1) == 1:
                values[name] = getattr(left.pop(), name)
    return SamplingParams(**values, processors=tuple(Processor(_of_row(p, history.row), history) for p in left))


def _of_row(processor: Any, row: int) -> Any:
    """The same processor; one that asks a function by the row's number asks it for this row only."""
    if not isinstance(processor, PrefixConstrainedLogitsProcessor):
        return processor
    allowed = processor._prefix_allowed_tokens_fn
    return PrefixConstrainedLogitsProcessor(lambda _, sent: allowed(row, sent), num_beams=1)


class Stop:
    """Stopping criteria for one row, asked after every token. The length is the engine's business."""

    def __init__(self, criteria: StoppingCriteriaList, history: History) -> None:
        self._history = history
        self._eos: set[int] = set()
        self._others = StoppingCriteriaList()
        for criterion in criteria:
            eos = getattr(criterion, "eos_token_id", None)
            if isinstance(eos, Tensor):
                self._eos |= set(eos.flatten().tolist())
            elif not isinstance(criterion, MaxLengthCriteria):
                self._others.append(criterion)

    def __call__(self, tokens: list[int]) -> bool:
        if tokens[-1] in self._eos:
            return True
        if not self._others:
            return False
        ids = self._history.padded(torch.tensor([tokens]))
        return bool(self._others(ids, None).any())  # type: ignore[arg-type]
