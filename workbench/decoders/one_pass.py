"""Base of decoders that do not draft: a round is one target forward for all their sequences.

A subclass defines the input of a sequence's forward (`segment`) and the use of its logits (`advance`). This module
batches the forwards, isolates errors, and records tokens, times and tentative tokens.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections import abc
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar

import torch
from jaxtyping import Float
from torch import Tensor

from workbench.core.errors import NumericalError, PromptError
from workbench.core.random_stream import Purpose
from workbench.core.sampling import likeliest, pick, to_probs
from workbench.core.transfer import to_host
from workbench.decoders.draft_verify.decoder import spans_of
from workbench.engine.decoder import Decoder, EngineContext
from workbench.engine.request import FINISHED, Sequence
from workbench.engine.round_timing import Drafting, Timing, Work, share_forwards
from workbench.engine.settings import Settings
from workbench.engine.stop_conditions import apply_stop_conditions
from workbench.engine.trace_recording import append_round, record_placed
from workbench.kernels.segment import Segment
from workbench.models.backbone import Backbone
from workbench.trace.tokens import PLAIN, EmittedToken, TentativeTokenRecord


@dataclass(slots=True)
class OnePassState:
    """State of a sequence from one round to the next. Subclasses add their own fields.

    Attributes:
        tentative: token id at each position after the final text that the trace shows and that may still change.
    """

    tentative: dict[int, int] = field(default_factory=dict[int, int])


@dataclass(frozen=True, slots=True)
class Step:
    """Result of one round of a sequence.

    Attributes:
        emitted: new final tokens, from `OnePassDecoder.emit`.
        tentative: all tentative tokens after the round, by position: token id and target probability.
        reason: why the text ends; "" if it continues.
        signals: figures that the trace records for the round, by name.
    """

    emitted: list[EmittedToken]
    tentative: Mapping[int, tuple[int, float]] = field(default_factory=dict[int, tuple[int, float]])
    reason: str = ""
    signals: Mapping[str, float] = field(default_factory=dict[str, float])


class OnePassDecoder(Decoder, ABC):
    """Decoder whose rounds are one target forward per sequence."""

    isolates_errors: ClassVar[bool] = True

    def __init__(self, context: EngineContext) -> None:
        self.context, self.models, self.clock, self._guard = context, context.models, context.clock, context.guard
        self.target: Backbone = context.models.target

    @abstractmethod
    def open(self, sequence: Sequence) -> None:
        """Create the sequence's state, an `OnePassState`, and store it in `sequence.state`."""

    @abstractmethod
    def segment(self, sequence: Sequence) -> Segment:
        """Return the input of the sequence's target forward in this round: tokens, attention mask and depths."""

    @abstractmethod
    def advance(self, sequence: Sequence, logits: Float[Tensor, "n V"], hidden: Float[Tensor, "n D"]) -> Step:
        """Choose tokens, and commit final ones to the KV cache and, with `emit`, to the text.

        Args:
            sequence: sequence whose forward has run.
            logits: target logits after each of the segment's n tokens.
            hidden: input of the LM head at the same tokens.
        """

    def change(self, sequence: Sequence, settings: Settings) -> None:
        """Apply new parameters from the next round on.

        Raises:
            PromptError: the settings change images.
        """
        if settings.image_changes:
            raise PromptError("The run has no images that could be changed.", "Start a run with images.")
        sequence.configured_method, sequence.models = settings.configured_method, settings.models
        sequence.sampling = settings.sampling

    def revoke(self, sequence: Sequence) -> None:
        """Do nothing: `close` revokes the tentative tokens once the sequence has changed to another decoder."""

    def finish(self, sequence: Sequence) -> None:
        """Do nothing: without a drafter there is no state to save."""

    def close(self, sequence: Sequence) -> None:
        """Revoke the tentative tokens and drop the uncommitted part of the KV cache."""
        sequence.report.revoked += sorted(sequence.state.tentative)
        sequence.cache_slot.scratch, sequence.state = 0, None

    def step(self, sequences: abc.Sequence[Sequence]) -> bool:
        """Run one round of each sequence. Return whether there was any sequence."""
        t_round = time.perf_counter()
        spans_of(sequences)  # discard the times of forwards between rounds
        start = self.clock.mark()
        outputs = self._forward(sequences)
        accept, steps = self.clock.mark(), list[tuple[Sequence, Step]]()
        for sequence, logits, hidden in outputs:
            self._guard(sequence, lambda s=sequence, x=logits, h=hidden: steps.append((s, self.advance(s, x, h))))
        commit, spans = self.clock.mark(), spans_of(sequences)
        shares = share_forwards(spans, [id(sequence) for sequence in sequences])
        forwards_s = sum(span.seconds for span in spans)
        for sequence, step in steps:
            drafting = Drafting(start, start, (id(sequence),))
            work = shares[id(sequence)]
            timing = Timing(start, start, accept, commit, drafting, Work(), work, forwards_s, len(steps))
            self._guard(sequence, lambda s=sequence, o=step, t=timing: self._record(s, o, t, t_round))
        return bool(sequences)

    def _forward(self, sequences: abc.Sequence[Sequence]) -> list[tuple[Sequence, Tensor, Tensor]]:
        """Run the target for all sequences, in one forward if possible.

        Returns:
            (sequence, logits [n, V], hidden states [n, D]) of each sequence whose forward did not fail.
        """
        entries: list[tuple[Sequence, Segment]] = []
        for sequence in sequences:
            self._guard(sequence, lambda s=sequence: entries.append((s, self.segment(s))))
        entries.sort(key=lambda entry: entry[1].slot.index)
        if not entries:
            return []
        before = [segment.slot.scratch for _, segment in entries]
        try:
            return self._outputs(entries)
        except Exception:  # find the sequence that fails; keep the others
            outputs = list[tuple[Sequence, Tensor, Tensor]]()
            for entry, scratch in zip(entries, before, strict=True):
                entry[1].slot.scratch = scratch
                self._guard(entry[0], lambda e=entry: outputs.extend(self._outputs([e])))
            return outputs

    def _outputs(self, entries: list[tuple[Sequence, Segment]]) -> list[tuple[Sequence, Tensor, Tensor]]:
        out = self.target.forward([segment for _, segment in entries])
        return [
            (sequence, out.logits[i, : len(segment.tokens)], out.hidden[i, : len(segment.tokens)])
            for i, (sequence, segment) in enumerate(entries)
        ]

    def emit(
        self, sequence: Sequence, tokens: abc.Sequence[int], probs: abc.Sequence[float]
    ) -> tuple[list[EmittedToken], str]:
        """Append final tokens to the text, up to the first at which the text ends.

        Args:
            sequence: sequence that gets the tokens.
            tokens: token ids.
            probs: target probability of each token.

        Returns:
            Records of the appended tokens for the trace, and why the text ends ("" if it continues).
        """
        base = len(sequence.committed)
        n, reason, texts = apply_stop_conditions(sequence, tokens, self.models)
        sequence.committed.extend(tokens[:n])
        emitted = [EmittedToken(tokens[i], *texts[i], PLAIN, None, base + i, probs[i]) for i in range(n)]
        return emitted, reason

    def _record(self, sequence: Sequence, step: Step, timing: Timing, t_round: float) -> None:
        """Append a round with the changes of tentative tokens to the trace, and end the sequence if its text ends."""
        old, new = sequence.state.tentative, {} if step.reason else step.tentative
        final = {token.position: token.token for token in step.emitted}
        revoked = [i for i, token in old.items() if i not in new and final.get(i) != token]
        changed = [i for i, (token, _) in new.items() if old.get(i) != token]
        revoked += [i for i in changed if i in old]
        placed = [
            TentativeTokenRecord(new[i][0], self.context.token_text(new[i][0]), i, new[i][1]) for i in sorted(changed)
        ]
        sequence.state.tentative = {i: token for i, (token, _) in new.items()}
        sequence.report.signals |= step.signals
        append_round(sequence, record_placed(sequence, step.emitted, placed, sorted(revoked), timing, t_round))
        if step.reason:
            self.context.end(sequence, FINISHED, step.reason)


def choose_token(sequence: Sequence, logits: Float[Tensor, "n V"]) -> tuple[int, float]:
    """Choose the next token of a sequence from the logits at its last position.

    The random number depends only on seed and position. Decoders with equal distributions therefore write the same
    text.

    Returns:
        Token id, and its probability after the sequence's sampling parameters.

    Raises:
        NumericalError: the logits are NaN.
    """
    last = logits[-1:].float() if logits.dtype in (torch.bfloat16, torch.float16) else logits[-1:]
    if sequence.sampling.greedy:
        p, found = last.softmax(1), likeliest(last)
    else:
        p = to_probs(last, sequence.sampling)
        u = sequence.random_stream.uniform(len(sequence.committed), Purpose.BONUS, 1)
        found = pick(p, torch.from_numpy(u).to(p.device))
    tokens, probs = to_host([found, p.gather(1, found.unsqueeze(1)).squeeze(1)])
    if probs[0] != probs[0]:
        raise NumericalError("The target returned NaN instead of probabilities.", "Try another dtype.")
    return tokens[0], probs[0]
