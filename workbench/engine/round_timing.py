"""Timing of rounds. A forward pass may include several sequences; it counts for each of them."""

from __future__ import annotations

import time
from collections import abc
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Generic, Protocol, TypeVar, runtime_checkable

from workbench.kernels.device_clock import Clock, Mark, Span
from workbench.trace.events import Round

if TYPE_CHECKING:
    from workbench.engine.decoder import EngineContext
    from workbench.engine.request import Sequence


@dataclass(slots=True)
class Work:
    """Duration and number of the forward passes that included one sequence.

    Attributes:
        seconds: total duration of these forward passes.
        part_s: sum over these forward passes of the duration divided by the number of sequences in the forward pass.
        forwards: number of forward passes; a separately timed section of a forward pass (`Span.is_part`) adds only its
            duration.
    """

    seconds: float = 0.0
    part_s: float = 0.0
    forwards: int = 0


@dataclass(frozen=True, slots=True)
class Drafting:
    """Start, end and forward passes of the drafting for sequences that are drafted together.

    Times are read after the round.
    """

    start: Mark
    end: Mark
    sequence_ids: tuple[int, ...]
    spans: list[Span] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Timing:
    """Times of one round of a sequence.

    Attributes:
        started_s: start of the batch's round, in seconds of the host's clock.
        start: start of the batch's round, by the device's clock.
        verify: end of drafting for all sequences; the target's forward pass follows.
        accept: end of the target's forward pass; the acceptance rules follow.
        commit: end of the acceptance rules for all sequences.
        drafting: drafting of this sequence and of those that were drafted together with it.
        draft_work: drafting forward passes that included this sequence.
        verify_work: the target's forward passes that included this sequence.
        forwards_s: duration of all forward passes of the batch.
        n_sequences: number of sequences verified together.
    """

    started_s: float
    start: Mark
    verify: Mark
    accept: Mark
    commit: Mark
    drafting: Drafting
    draft_work: Work
    verify_work: Work
    forwards_s: float
    n_sequences: int

    @property
    def waited_s(self) -> float:
        """Return the total duration of the round's forward passes that did not include the sequence, in seconds."""
        return max(0.0, self.forwards_s - self.draft_work.seconds - self.verify_work.seconds)


def rescale_timing(timing: Timing, started_s: float, start: Mark, end: Mark) -> Timing:
    """Return the timing of a round whose phases are unknown, with the shares that they have in another round.

    Args:
        timing: timing of a round of the same work.
        started_s: start of the round, in seconds of the host's clock.
        start: start of the round on the device.
        end: end of the round's acceptance rules on the device.
    """
    base, length = timing.start.seconds, timing.commit.seconds - timing.start.seconds
    scale = (end.seconds - start.seconds) / length if length > 0 else 0.0

    def moved(mark: Mark) -> Mark:
        return start.after((mark.seconds - base) * scale)

    def scaled(work: Work) -> Work:
        return Work(work.seconds * scale, work.part_s * scale, work.forwards)

    drafting = replace(timing.drafting, start=moved(timing.drafting.start), end=moved(timing.drafting.end))
    return replace(
        timing, started_s=started_s, start=start, verify=moved(timing.verify), accept=moved(timing.accept), commit=end,
        drafting=drafting, draft_work=scaled(timing.draft_work), verify_work=scaled(timing.verify_work),
        forwards_s=timing.forwards_s * scale,
    )  # fmt: skip


@runtime_checkable
class SequenceRound(Protocol):
    """State of one sequence in one round of a `RoundDecoder`.

    Attributes:
        sequence: sequence of the round.
        drafting: timing of the drafting of this sequence and of those drafted with it; None if nothing is drafted.
        reason: why the text ends; "" if it continues.
    """

    sequence: Sequence
    drafting: Drafting | None

    @property
    def reason(self) -> str: ...

    def to_record(self, timing: Timing, context: EngineContext) -> Round:
        """Return the round of this sequence for its trace."""
        ...


@dataclass(frozen=True, slots=True)
class ForwardShares:
    """Forward passes of a round, divided among its sequences.

    Attributes:
        drafted: work of each sequence's drafting, by `id`.
        verified: work of each sequence's verification, by `id`.
        seconds: duration of all forward passes.
    """

    drafted: dict[int, Work]
    verified: dict[int, Work]
    seconds: float


R = TypeVar("R", bound=SequenceRound)


class RoundTimer(Generic[R]):
    """Timing of one round of a decoder.

    Args:
        clock: clock of the engine.
        rounds: all sequences of the round. Sequences that fail in a phase are included, because they took time, too.
    """

    def __init__(self, clock: Clock, rounds: abc.Sequence[R]) -> None:
        self._started_s = time.perf_counter()
        self._clock, self._rounds = clock, rounds
        self._ids = {id(r): id(r.sequence.owner) for r in rounds}  # a view may serve another sequence later
        spans_of(r.sequence for r in rounds)  # discard forwards between rounds
        self._marks = [clock.mark()]
        self._shares: ForwardShares | None = None

    def skip_drafting(self) -> None:
        """Record that the round drafts nothing, so that its verification starts at once."""
        self._marks.append(self._marks[-1])

    def end_phase(self, rounds: list[R]) -> list[R]:
        """Record the end of a phase of the round, and return the phase's result unchanged."""
        self._marks.append(self._clock.mark())
        return rounds

    def end_forwards(self, rounds: abc.Sequence[R]) -> None:
        """Count the round's forward passes for its sequences. Forward passes after this call belong to no round."""
        self._spans = spans_of(r.sequence for r in rounds)
        self._verified_ids = [self._ids[id(r)] for r in rounds]

    def timing_of(self, r: R) -> Timing:
        """Return the timing of a sequence that had no error in any phase. Waits until the device has run the round."""
        (start, verify, accept, commit), owner = self._marks, self._ids[id(r)]
        if self._shares is None:
            self._shares = self._share()
        shares, drafting = self._shares, r.drafting or Drafting(start, start, (owner,))
        return Timing(
            self._started_s, start, verify, accept, commit, drafting, shares.drafted.get(owner) or Work(),
            shares.verified[owner], shares.seconds, len(shares.verified),
        )  # fmt: skip

    def _share(self) -> ForwardShares:
        groups = {id(r.drafting): r.drafting for r in self._rounds if r.drafting is not None}.values()
        drafted = {owner: work for d in groups for owner, work in share_forwards(d.spans, d.sequence_ids).items()}
        verified = share_forwards(self._spans, self._verified_ids)
        return ForwardShares(
            drafted, verified, sum(w.part_s for w in drafted.values()) + sum(span.seconds for span in self._spans)
        )


@contextmanager
def time_drafting(clock: Clock, group: abc.Sequence[SequenceRound]) -> Iterator[None]:
    """Measure start, end and forward passes of the drafting for sequences that are drafted together."""
    start = clock.mark()
    yield
    owners = tuple(id(r.sequence.owner) for r in group)
    drafting = Drafting(start, clock.mark(), owners, spans_of(r.sequence for r in group))
    for r in group:
        r.drafting = drafting


def spans_of(sequences: Iterable[Sequence]) -> list[Span]:
    """Return the timed forward passes since the last call, of all models that the sequences use."""
    meters = {id(meter): meter for sequence in sequences for meter in sequence.models.meters}
    return [span for meter in meters.values() for span in meter.take()]


def share_forwards(spans: Iterable[Span], sequence_ids: abc.Sequence[int]) -> dict[int, Work]:
    """Return the forward passes that included each sequence, by `id` of the sequence.

    A forward pass whose sequences are unknown counts for all of them.

    Args:
        spans: timed forward passes.
        sequence_ids: `id` of each sequence that the forward passes may have included.
    """
    work_of = {owner: Work() for owner in sequence_ids}
    for span in spans:
        owners = [owner for owner in sequence_ids if owner in span.sequence_ids] or list(sequence_ids)
        for owner in owners:
            work = work_of[owner]
            work.seconds += span.seconds
            work.part_s += span.seconds / len(owners)
            work.forwards += not span.is_part
    return work_of
