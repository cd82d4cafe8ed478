"""Base class of decoders that do not draft: a round is one forward pass of the target for all sequences.

A subclass defines the input of a sequence's forward pass (`segment`) and the use of its logits (`advance`). This module
batches the forward passes, isolates errors, and records tokens, times and tentative tokens.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import abc
from collections.abc import Mapping
from dataclasses import dataclass, field

from jaxtyping import Float
from torch import Tensor

from workbench.core.errors import PromptError
from workbench.core.random_stream import Purpose
from workbench.core.sampling import choose_tokens
from workbench.engine.decoder import EngineContext, RoundDecoder
from workbench.engine.request import Sequence
from workbench.engine.round_record import common_round_fields
from workbench.engine.round_timing import Drafting, RoundTimer, Timing
from workbench.engine.settings import Settings
from workbench.engine.stop_conditions import apply_stop_conditions
from workbench.kernels.segment import Segment
from workbench.models.backbone import Backbone
from workbench.trace.events import Round
from workbench.trace.nodes import Nodes
from workbench.trace.tokens import PLAIN, EmittedToken, TentativeTokenRecord


@dataclass(slots=True)
class OnePassState:
    """State of a sequence of a decoder that does not draft, from one round to the next. Subclasses add fields.

    Attributes:
        tentative: tentative tokens after the final text, which the trace shows and which may still change: token id by
            position.
    """

    tentative: dict[int, int] = field(default_factory=dict[int, int])


@dataclass(frozen=True, slots=True)
class Step:
    """Result of one round of a sequence whose decoder does not draft.

    Attributes:
        emitted: new tokens that are not tentative, from `OnePassDecoder.emit`.
        tentative: all tentative tokens after the round, by position: token id and target probability.
        reason: why the text ends; "" if it continues.
        signals: numbers that the trace records for the round, by name.
    """

    emitted: list[EmittedToken]
    tentative: Mapping[int, tuple[int, float]] = field(default_factory=dict[int, tuple[int, float]])
    reason: str = ""
    signals: Mapping[str, float] = field(default_factory=dict[str, float])


@dataclass(slots=True)
class OnePassRound:
    """State of one sequence in one round of a decoder that does not draft, with the result of each phase.

    Attributes:
        sequence: sequence of the round.
        drafting: always None, because nothing is drafted.
        segment: input of the target's forward pass for this sequence.
        scratch: number of scratch positions (uncommitted tokens) in the KV cache before the forward pass.
        logits: target logits at the segment's tokens, [n, V].
        hidden: the LM head's input at the segment's tokens, [n, D].
        step: result of the round.
    """

    sequence: Sequence
    drafting: Drafting | None = None
    segment: Segment | None = None
    scratch: int = 0
    logits: Tensor | None = None
    hidden: Tensor | None = None
    step: Step | None = None

    @property
    def reason(self) -> str:
        """Return why the sequence's text ends with this round; "" if it continues."""
        return "" if self.step is None else self.step.reason

    def to_record(self, timing: Timing, context: EngineContext) -> Round:
        """Return the record of this sequence's round for its trace, with the changes of its tentative tokens."""
        sequence, step = self.sequence, self.step
        assert step is not None
        old, new = sequence.state.tentative, {} if step.reason else step.tentative
        final = {token.position: token.token for token in step.emitted}
        revoked = [i for i, token in old.items() if i not in new and final.get(i) != token]
        changed = [i for i, (token, _) in new.items() if old.get(i) != token]
        revoked += [i for i in changed if i in old]
        placed = [TentativeTokenRecord(new[i][0], context.token_text(new[i][0]), i, new[i][1]) for i in sorted(changed)]
        sequence.state.tentative = {i: token for i, (token, _) in new.items()}
        sequence.report.signals |= step.signals
        return record_placed(sequence, step.emitted, placed, sorted(revoked), timing)


def record_placed(
    sequence: Sequence,
    emitted: list[EmittedToken],
    placed: list[TentativeTokenRecord],
    revoked: list[int],
    timing: Timing,
) -> Round:
    """Return the trace's record of a round without a draft tree. Its tokens may be tentative (`Round.placed`)."""
    fields = common_round_fields(sequence, timing)
    fields["revoked"] += revoked
    fields["phases"] = [phase for phase in fields["phases"] if phase.name != "draft"]
    return Round(**fields, nodes=Nodes(), path=[], bonus=None, bonus_kind=None, emitted=emitted, placed=placed)


class OnePassDecoder(RoundDecoder[OnePassRound], ABC):
    """Base class of decoders whose rounds are one forward pass of the target, without drafts."""

    def __init__(self, context: EngineContext) -> None:
        super().__init__(context)
        self.target: Backbone = context.models.target

    @abstractmethod
    def open(self, sequence: Sequence) -> None:
        """Create the sequence's state, an `OnePassState`, and store it in `sequence.state`."""

    @abstractmethod
    def segment(self, sequence: Sequence) -> Segment:
        """Return the input of the sequence's target forward pass in this round: tokens, attention mask and depths."""

    @abstractmethod
    def advance(self, sequence: Sequence, logits: Float[Tensor, "n V"], hidden: Float[Tensor, "n D"]) -> Step:
        """Choose tokens from a sequence's logits, and commit those that are not tentative (revocable) with `emit`.

        Args:
            sequence: sequence whose forward pass has run.
            logits: target logits after each of the segment's n tokens.
            hidden: input of the LM head at the same tokens.
        """

    def change(self, sequence: Sequence, settings: Settings) -> None:
        """Apply new parameters of a sequence from its next round on.

        Raises:
            PromptError: the settings change images.
        """
        if settings.image_changes:
            raise PromptError("The run has no images that could be changed.", "Start a run with images.")
        sequence.settings = settings.active

    def revoke(self, sequence: Sequence) -> None:
        """Do nothing: `close` revokes the tentative tokens once the sequence has changed to another decoder."""

    def finish(self, sequence: Sequence) -> None:
        """Do nothing: without a drafter there is no state to save."""

    def close(self, sequence: Sequence) -> None:
        """Revoke the tentative tokens of a sequence, and drop its uncommitted entries of the KV cache."""
        sequence.report.revoked += sorted(sequence.state.tentative)
        sequence.cache_slot.scratch, sequence.state = 0, None

    def step(self, sequences: abc.Sequence[Sequence]) -> bool:
        """Run one round for each of the sequences. Return whether at least one sequence had a round."""
        rounds = [OnePassRound(sequence) for sequence in sequences]
        timer = RoundTimer(self.clock, rounds)
        timer.skip_drafting()
        chosen = timer.end_phase(self.choose(timer.end_phase(self.forward(rounds))))
        timer.end_forwards(chosen)
        self.append_rounds(chosen, timer)
        return bool(rounds)

    def forward(self, rounds: list[OnePassRound]) -> list[OnePassRound]:
        """Run the target over the inputs of all sequences, in one forward pass."""

        def build(r: OnePassRound) -> None:
            r.segment = self.segment(r.sequence)
            r.scratch = r.segment.slot.scratch

        def run(group: list[OnePassRound]) -> None:
            segments = [segment for r in group if (segment := r.segment) is not None]
            for r, segment in zip(group, segments, strict=True):
                segment.slot.scratch = r.scratch  # after a failed forward, as before it
            out = self.target.forward(segments)
            for i, (r, segment) in enumerate(zip(group, segments, strict=True)):
                r.logits, r.hidden = out.logits[i, : len(segment.tokens)], out.hidden[i, : len(segment.tokens)]

        self.together(sorted(self.each(rounds, build), key=lambda r: r.sequence.cache_slot.index), run)
        return [r for r in rounds if r.logits is not None]

    def choose(self, rounds: list[OnePassRound]) -> list[OnePassRound]:
        """Choose the next tokens of each sequence, and commit those that are not tentative (revocable)."""

        def advance(r: OnePassRound) -> None:
            assert r.logits is not None
            assert r.hidden is not None
            r.step = self.advance(r.sequence, r.logits, r.hidden)

        return self.each(rounds, advance)

    def emit(
        self, sequence: Sequence, tokens: abc.Sequence[int], probs: abc.Sequence[float]
    ) -> tuple[list[EmittedToken], str]:
        """Append tokens that are not tentative (revocable) to a sequence's text, up to and including its end token.

        Args:
            sequence: sequence that gets the tokens.
            tokens: token ids.
            probs: target probability of each token.

        Returns:
            The appended tokens for the trace, and why the text ends ("" if it continues).
        """
        base = len(sequence.committed)
        n, reason, texts = apply_stop_conditions(sequence, tokens, self.models)
        sequence.committed.extend(tokens[:n])
        emitted = [EmittedToken(tokens[i], *texts[i], PLAIN, None, base + i, probs[i]) for i in range(n)]
        return emitted, reason


def choose_token(sequence: Sequence, logits: Float[Tensor, "n V"]) -> tuple[int, float]:
    """Choose the next token of a sequence from the logits at its last position.

    The random number depends only on seed and position. So decoders with equal distributions generate the same text.

    Returns:
        The token id, and its probability under the sequence's sampling parameters.

    Raises:
        NumericalError: the logits are NaN.
    """
    stream, position = sequence.random_stream, len(sequence.committed)
    tokens, probs = choose_tokens(
        logits[-1:], sequence.sampling, lambda row: float(stream.uniform(position, Purpose.BONUS, 1)[row])
    )
    return tokens[0], probs[0]
