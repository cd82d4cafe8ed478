"""Convert arguments of Transformers' `generate` for the engine: prompts, sampling parameters, stop conditions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
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
from workbench.trace.events import Round, Trace
from workbench.trace.nodes import DISCARDED

PER_SEQUENCE = ("RepetitionPenaltyLogitsProcessor", "Encoder", "PrefixConstrained")
"""Prefixes of class names of Transformers' logits processors that have a state for each sequence of the batch."""


@dataclass(frozen=True)
class History:
    """Tokens of a sequence in the form of Transformers' `generate`: all prompts are padded on the left to one length.

    Attributes:
        prompts: padded prompts of the whole batch.
        row: index of the sequence in the batch.
        skipped: number of padding tokens before the prompt.
        texts: new tokens of all sequences so far, shared by the batch.
    """

    prompts: Int[Tensor, "B L"]
    row: int
    skipped: int
    texts: list[Sequence[int]] = field(default_factory=list[Sequence[int]])

    @property
    def prompt(self) -> list[int]:
        """Return the tokens of the sequence's prompt, without padding."""
        return self.prompts[self.row, self.skipped :].tolist()

    def padded(self, ids: Int[Tensor, "1 n"]) -> Int[Tensor, "1 n_plus_skipped"]:
        """Return the tokens of the sequence, with the padding of its prompt before them."""
        padding = self.prompts[self.row : self.row + 1, : self.skipped]
        return torch.cat([padding, ids.to(padding.device)], dim=1)


@dataclass(frozen=True)
class Processor:
    """Logits processor of Transformers, applied to one sequence of a batch.

    If the processor may have a state for each sequence, it gets the whole batch: this sequence up to the evaluated
    position, and the other sequences as far as they are generated, padded on the right.
    """

    processor: Any
    history: History
    pad: int = 0

    def __call__(self, ids: Int[Tensor, "1 n"], scores: Float[Tensor, "1 V"]) -> Float[Tensor, "1 V"]:
        n_rows, row, ids = len(self.history.prompts), self.history.row, self.history.padded(ids)
        if n_rows == 1 or not _needs_batch(self.processor):
            return self.processor(ids, scores.to(ids.device)).to(scores.device)
        history = self.history
        new = ids.shape[1] - history.prompts.shape[1]
        batch = with_texts(history.prompts, [list(text)[:new] for text in history.texts], new, self.pad)
        batch[row] = ids[0]
        processed = self.processor(batch, scores.to(ids.device).repeat(n_rows, 1))
        return processed[row : row + 1].to(scores.device)


def with_texts(
    prompts: Int[Tensor, "B L"], texts: Sequence[Sequence[int]], n: int, pad: int
) -> Int[Tensor, "B L_plus_n"]:
    """Return all prompts, each followed by up to n new tokens; shorter sequences are padded on the right.

    Args:
        prompts: prompts of all sequences, padded on the left.
        texts: new tokens of each sequence.
        n: number of new tokens to include.
        pad: id of the padding token.
    """
    new = [[*text, *[pad] * (n - len(text))] for text in texts]
    tail = torch.tensor(new, dtype=prompts.dtype, device=prompts.device).view(len(prompts), n)
    return torch.cat([prompts, tail], dim=1)


def _needs_batch(processor: Any) -> bool:
    kind = type(processor)
    return kind.__module__ != LogitNormalization.__module__ or kind.__name__.startswith(PER_SEQUENCE)


def histories(prompts: Int[Tensor, "B L"], mask: Tensor | None) -> list[History]:
    """Return a `History` for each sequence of the batch.

    Args:
        prompts: prompts of all sequences, padded on the left.
        mask: attention mask [B, L] of the prompts; None: no padding.

    Raises:
        ParameterError: a prompt has padding that is not on its left.
    """
    texts: list[Sequence[int]] = [()] * len(prompts)
    if mask is None:
        return [History(prompts, row, 0, texts) for row in range(len(prompts))]
    skipped = mask.long().argmax(1)
    if not torch.equal(mask.bool(), torch.arange(mask.shape[1], device=mask.device) >= skipped.unsqueeze(1)):
        raise ParameterError(
            "A prompt's attention mask has zeros after its first 1; only left padding is supported.",
            "Set tokenizer.padding_side to 'left'.",
        )
    return [History(prompts, row, n, texts) for row, n in enumerate(skipped.tolist())]


def sampling(processors: LogitsProcessorList, config: GenerationConfig, history: History) -> SamplingParams:
    """Convert a generation's configuration and processors to the engine's sampling parameters.

    Filters (temperature, top-k, top-p, …) in the usual order at the end of the list become the engine's sampling
    parameters, which also apply to drafters. Processors before them, and filters in another order, are applied
    unchanged.

    Args:
        processors: logits processors that `generate` has prepared.
        config: configuration of the generation.
        history: tokens of the sequence.
    """
    remaining = [p for p in processors if not isinstance(p, LogitNormalization)]
    values: dict[str, Any] = {"temperature": 1.0 if config.do_sample else 0.0}
    if config.do_sample:
        for kind, name in ((MinPLogitsWarper, "min_p"), (TopPLogitsWarper, "top_p"), (TopKLogitsWarper, "top_k"),
                           (TemperatureLogitsWarper, "temperature")):  # fmt: skip
            if remaining and type(remaining[-1]) is kind and getattr(remaining[-1], "min_tokens_to_keep", 1) == 1:
                values[name] = getattr(remaining.pop(), name)
    pad = pad_of(config) or 0
    return SamplingParams(
        **values, processors=tuple(Processor(_for_sequence(p, history.row), history, pad) for p in remaining)
    )


def pad_of(config: GenerationConfig) -> int | None:
    """Return the padding token's id that `generate` has chosen; None if there is no padding token."""
    pad = getattr(config, "_pad_token_tensor", None)
    return None if pad is None else int(pad)


def _for_sequence(processor: Any, row: int) -> Any:
    """Return a logits processor for only the sequence with index `row` in the batch.

    If the processor calls a function with the index of a sequence in the batch, the function gets `row`.
    """
    if not isinstance(processor, PrefixConstrainedLogitsProcessor):
        return processor
    allowed = processor._prefix_allowed_tokens_fn
    return PrefixConstrainedLogitsProcessor(lambda _, sent: allowed(row, sent), num_beams=1)


class Stop:
    """Stop conditions of one sequence, checked after every token. The engine checks the maximum length.

    EOS tokens end the sequence. Other criteria are checked here only if the batch has one sequence; see `BatchStop`.
    """

    def __init__(self, criteria: StoppingCriteriaList, history: History) -> None:
        self._history = history
        self._eos, self._others = _split(criteria)

    def __call__(self, tokens: list[int]) -> bool:
        if tokens[-1] in self._eos:
            return True
        if not self._others or len(self._history.prompts) > 1:
            return False
        ids = self._history.padded(torch.tensor([tokens]))
        return bool(self._others(ids, None).any())  # type: ignore[arg-type]


class BatchStop:
    """Stopping criteria for several sequences, called once per step with the batch as Transformers' `generate` has it.

    In the engine, sequences advance by different numbers of tokens. The criteria for a step are evaluated when every
    active sequence has reached it; tokens after the end of a sequence are dropped (`first_tokens`). Without an EOS
    token, `generate` continues an ended sequence until all sequences have ended, and so does this class.

    Args:
        criteria: stopping criteria of `generate`.
        prompts: prompts, padded on the left.
        pad: padding token for ended sequences.
        most: maximum number of new tokens per sequence.

    Attributes:
        ends: final number of new tokens of each sequence; None while the sequence has not ended.
    """

    def __init__(self, criteria: StoppingCriteriaList, prompts: Int[Tensor, "B L"], pad: int, most: int) -> None:
        self.ends: list[int | None] = [None] * len(prompts)
        self._found: list[int | None] = [None] * len(prompts)
        self._eos, self._others = _split(criteria)
        self._prompts, self._pad, self._most, self._step = prompts, pad, most, 0
        self._pads = any(hasattr(criterion, "eos_token_id") for criterion in criteria)
        self.is_needed = bool(self._others) and len(prompts) > 1

    def decide(self, texts: Sequence[Sequence[int]]) -> None:
        """Evaluate the stopping criteria for all steps that every active sequence has reached, and end sequences.

        Args:
            texts: new tokens of each sequence so far.
        """
        ends = self._found
        while any(end is None for end in ends):
            step = self._step + 1
            active = [row for row, end in enumerate(ends) if end is None or not self._pads]
            if any(len(texts[row]) < step for row in active):
                break
            current_texts = [text[: step if row in active else ends[row]] for row, text in enumerate(texts)]
            is_done = self._others(with_texts(self._prompts, current_texts, step, self._pad), None).tolist()  # type: ignore[arg-type]
            for row in [row for row, end in enumerate(ends) if end is None]:
                if is_done[row] or current_texts[row][-1] in self._eos or step >= self._most:
                    ends[row] = step
            self._step = step
        if self._pads:
            self.ends = list(ends)
        elif all(end is not None for end in ends):
            self.ends = [self._step] * len(ends)


def _split(criteria: StoppingCriteriaList) -> tuple[set[int], StoppingCriteriaList]:
    """Return the EOS tokens, and the stopping criteria other than EOS and maximum length."""
    eos, others = set[int](), StoppingCriteriaList()
    for criterion in criteria:
        tokens = getattr(criterion, "eos_token_id", None)
        if isinstance(tokens, Tensor):
            eos |= set(tokens.flatten().tolist())
        elif not isinstance(criterion, MaxLengthCriteria):
            others.append(criterion)
    return eos, others


def first_tokens(trace: Trace, n: int) -> None:
    """Drop all new tokens after the first n (n ≥ 1) from a trace."""
    rounds, n_remaining = list[Round](), n
    for record in trace.rounds:
        if n_remaining > 0:
            rounds.append(_cut_round(record, n_remaining))
            n_remaining -= len(record.emitted)
    if len(rounds) == len(trace.rounds) and rounds[-1] is trace.rounds[-1]:
        return
    trace.rounds = rounds
    trace.footer.text = trace.footer.text[: rounds[-1].emitted[-1].end]
    trace.footer.reason = "criterion"


def _cut_round(record: Round, n: int) -> Round:
    """Return a round with only its first n tokens; the remaining nodes of its draft count as discarded."""
    if n >= len(record.emitted):
        return record
    path, nodes = record.path[:n], record.nodes
    dropped = set(record.path[n:])
    status = [DISCARDED if node in dropped else value for node, value in enumerate(nodes.status)]
    nodes = replace(nodes, status=status)
    return replace(record, nodes=nodes, emitted=record.emitted[:n], path=path, bonus=None, bonus_kind=None)
