"""Interface between the scheduler and decoders: open a sequence, run rounds, apply changes, close it.

A method names its decoder (`ConfiguredMethodProtocol.decoder`). An engine may have several decoders, and a sequence may
change from one to another between two rounds. The package `workbench.decoders` contains them.
"""

from __future__ import annotations

from collections import abc
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, ClassVar, Generic, Protocol, TypeVar, runtime_checkable

from workbench.core.panics import convert_panics
from workbench.engine.prefill import prefill_chunk
from workbench.engine.request import FINISHED, RoundReport
from workbench.engine.round_timing import RoundTimer, SequenceRound
from workbench.engine.run_checks import warnings_for

if TYPE_CHECKING:
    from workbench.engine.detokenise import TokenText
    from workbench.engine.request import Sequence
    from workbench.engine.settings import Settings
    from workbench.kernels.device_clock import Clock
    from workbench.models.loading import Models
    from workbench.trace.events import Round

Guard = Callable[["Sequence", Callable[[], object]], bool]
"""Type of a function that calls another function for a sequence, and ends the sequence if the call fails.

It returns whether the sequence continues.
"""


@dataclass(frozen=True, slots=True)
class EngineContext:
    """State and functions of the engine that decoders may use.

    Attributes:
        models: models of the engine.
        clock: clock of the engine.
        token_text: function from a token id to its text, for the trace.
        is_trace_detailed: whether the trace stores the most likely tokens and the entropy at every position.
        rounds_late: number of rounds that a decoder may queue on the device before it reads the results of the first.
        guard: function that calls another function for a sequence, ends the sequence if the call fails, and returns
            whether the sequence continues.
        end: function that ends a sequence: (sequence, status, reason).
    """

    models: Models
    clock: Clock
    token_text: TokenText
    is_trace_detailed: bool
    guard: Guard
    end: Callable[[Sequence, str, str], None]
    rounds_late: int = 0


@runtime_checkable
class Decoder(Protocol):
    """Interface of decoders, which generate text in rounds. An engine has one decoder of each kind.

    `Sequence.state` is the decoder's state for a sequence. Between two rounds `Sequence.committed` is final, and the
    target's KV cache (`Sequence.slot`) contains all committed tokens but the last. The cache must contain no other
    tokens, because otherwise the sequence could not change to another decoder.
    """

    isolates_errors: ClassVar[bool] = False
    """Whether the decoder itself ends sequences whose rounds fail.

    If `step` of such a decoder raises an error nevertheless, the backend replaces the engine.
    """

    context: EngineContext

    @property
    def n_queued_rounds(self) -> int:
        """Return how many rounds were queued on the device before the host had read the previous ones."""
        return 0

    @property
    def why_not_recorded(self) -> str:
        """Return why queued rounds are not recorded as CUDA graphs; "" if they are, or if none were queued."""
        return ""

    def prefill(self, sequence: Sequence) -> bool:
        """Prefill the next chunk of a sequence's prompt. Return whether the prompt is finished.

        The engine calls `open` after the prompt is finished.

        By default the target processes one chunk.
        """
        return prefill_chunk(sequence, self.context)

    def open(self, sequence: Sequence) -> None:
        """Create the decoder's state for a sequence, after its prefill or when it changes from another decoder.

        At the start of a run (`sequence.is_open` is False), also load the saved state of the request
        (`Request.drafter_state`).
        """
        ...

    def step(self, sequences: abc.Sequence[Sequence]) -> bool:
        """Run one round for each of the sequences. Return whether at least one sequence had a round."""
        ...

    def change(self, sequence: Sequence, settings: Settings) -> None:
        """Apply new settings of a sequence that need no other decoder, completely or not at all.

        Raises:
            Exception: the settings cannot be applied. The sequence is then unchanged.
        """
        ...

    def settle(self, sequence: Sequence) -> None:
        """Read the results of all rounds of a sequence that are queued on the device; its text may end with them.

        By default none are queued.

        The engine calls this before it pauses the sequence, changes its settings or runs other work on it.
        """

    def revoke(self, sequence: Sequence) -> None:
        """Revoke all tentative tokens of a sequence, before another decoder continues its text.

        The positions of the revoked tokens are appended to `sequence.report.revoked`, which the next round records. The
        change of decoder may still fail, and the sequence then continues with this decoder.
        """
        ...

    def finish(self, sequence: Sequence) -> None:
        """Store the drafter's state of an ending sequence, if the request asks for it. Must not raise an error.

        The saved state becomes `DraftState.final`.
        """
        ...

    def close(self, sequence: Sequence) -> None:
        """Release the resources of a sequence that ends or changes to another decoder. Must not raise an error.

        Tokens that are in the trace but not in `sequence.committed` are revoked: their positions are appended to
        `sequence.report.revoked`. If the sequence ends, no round follows that records them, so the trace continues to
        show these tokens.
        """
        ...


def append_round(sequence: Sequence, record: Round) -> None:
    """Append a finished round to the trace, and pass it to the request's callback (`Run.record`).

    Other threads read the round from then on, so all of its notes must be added before.
    """
    for warning in warnings_for(sequence, record, sequence.models):
        if not sequence.has_warning(warning):
            sequence.trace.footer.warnings.append(warning)
            record.notes.append(warning)
    sequence.report = RoundReport()
    sequence.pace.end_round(len(record.emitted))
    sequence.trace.rounds.append(record)
    if sequence.request.on_round is not None:
        sequence.request.on_round(record)


R = TypeVar("R", bound=SequenceRound)


class RoundDecoder(Decoder, Generic[R]):
    """Base class of decoders whose rounds run the same phases for all sequences.

    A phase is a method that takes a list of `SequenceRound`s and returns those without an error. An error in a round
    ends only the sequence of this round.
    """

    isolates_errors: ClassVar[bool] = True

    def __init__(self, context: EngineContext) -> None:
        self.context, self.models, self.clock = context, context.models, context.clock

    def each(self, rounds: abc.Iterable[R], act: Callable[[R], object]) -> list[R]:
        """Call a function for the round of each sequence in turn; return the rounds without an error."""
        guard = self.context.guard
        return [r for r in rounds if guard(r.sequence, partial(act, r))]

    def together(
        self, group: list[R], act: Callable[[list[R]], object], again: Callable[[list[R]], object] | None = None
    ) -> None:
        """Call a function for the rounds of several sequences at once. If it fails, call it for each round alone.

        In the second attempt, only the sequences whose call fails are ended.

        Args:
            group: at least one round.
            act: function that is called with the list of rounds.
            again: function for the second attempt, called with one round at a time in a list; by default `act`.
        """
        if len(group) > 1:
            try:
                with convert_panics():
                    act(group)
                return
            except Exception:
                act = again or act
        for r in group:
            self.context.guard(r.sequence, partial(act, [r]))

    def append_rounds(self, rounds: abc.Iterable[R], timer: RoundTimer[R]) -> None:
        """Append the finished rounds to the sequences' traces, and end the sequences whose text is complete."""

        def append(r: R) -> None:
            append_round(r.sequence, r.to_record(timer.timing_of(r), self.context))
            if r.reason:
                self.context.end(r.sequence, FINISHED, r.reason)

        self.each(rounds, append)
