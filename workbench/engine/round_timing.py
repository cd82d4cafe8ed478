"""Timing of rounds. Sequences of a batch share forward passes; each sequence counts those that include it."""

from __future__ import annotations

import time
from collections import abc
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar, runtime_checkable

from workbench.kernels.device_clock import Clock, Mark, Span
from workbench.trace.events import Phase, Round
from workbench.trace.metrics import DELAY

if TYPE_CHECKING:
    from workbench.engine.decoder import EngineContext
    from workbench.engine.request import Sequence


@dataclass(slots=True)
class Work:
    """Forward passes that included one sequence.

    Attributes:
        seconds: total duration of these forward passes.
        part_s: sum over these forward passes: duration / number of sequences that shared the forward pass.
        forwards: number of forward passes; a separately timed part of one (`Span.is_part`) only adds its duration.
    """

    seconds: float = 0.0
    part_s: float = 0.0
    forwards: int = 0


@dataclass(frozen=True, slots=True)
class Drafting:
    """Start, end and forward passes of the drafting for a group of sequences. Times are read after the round."""

    start: Mark
    end: Mark
    sequence_ids: tuple[int, ...]
    spans: list[Span] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Timing:
    """Timing of one sequence's round.

    Attributes:
        started_s: start of the batch's round, in seconds of the host's clock.
        start: start of the batch's round.
        verify: end of drafting for all sequences; the target's forward pass follows.
        accept: end of the target's forward pass; the acceptance rules follow.
        commit: end of the acceptance rules for all sequences.
        drafting: drafting of this sequence's group.
        draft_work: the sequence's share of the drafting forward passes.
        verify_work: the sequence's share of the target's forward pass.
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
        """Return the duration of the forward passes that did not include the sequence."""
        return max(0.0, self.forwards_s - self.draft_work.seconds - self.verify_work.seconds)


@runtime_checkable
class SequenceRound(Protocol):
    """One sequence in one round of a `RoundDecoder`.

    Attributes:
        sequence: sequence of the round.
        drafting: timing of the group drafted together; None if nothing is drafted.
        reason: why the text ends; "" if it continues.
    """

    sequence: Sequence
    drafting: Drafting | None

    @property
    def reason(self) -> str: ...

    def to_record(self, timing: Timing, context: EngineContext) -> Round:
        """Return the record of the round for the trace."""
        ...


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
        spans_of(r.sequence for r in rounds)  # discard forwards between rounds
        self._marks = [clock.mark()]

    def skip_drafting(self) -> None:
        """Record that the round drafts nothing, so that its verification starts at once."""
        self._marks.append(self._marks[-1])

    def end_phase(self, rounds: list[R]) -> list[R]:
        """Record the end of a phase, and return its result unchanged."""
        self._marks.append(self._clock.mark())
        return rounds

    def end_forwards(self, rounds: abc.Sequence[R]) -> None:
        """Divide the round's forward passes among its sequences; later ones belong to no round."""
        spans = spans_of(r.sequence for r in rounds)
        drafted = {id(r.drafting): r.drafting for r in self._rounds if r.drafting is not None}.values()
        self._drafted = {
            owner: work for d in drafted for owner, work in share_forwards(d.spans, d.sequence_ids).items()
        }
        self._verified = share_forwards(spans, [id(r.sequence) for r in rounds])
        self._forwards_s = sum(w.part_s for w in self._drafted.values()) + sum(span.seconds for span in spans)

    def timing_of(self, r: R) -> Timing:
        """Return the timing of a sequence that had no error in any phase of the round."""
        (start, verify, accept, commit), owner = self._marks, id(r.sequence)
        drafting = r.drafting or Drafting(start, start, (owner,))
        drafted, verified = self._drafted.get(owner) or Work(), self._verified[owner]
        return Timing(
            self._started_s, start, verify, accept, commit, drafting, drafted, verified, self._forwards_s,
            len(self._verified),
        )  # fmt: skip


@contextmanager
def time_drafting(clock: Clock, group: abc.Sequence[SequenceRound]) -> Iterator[None]:
    """Measure the drafting for a group of sequences: its start, its end, and its forward passes."""
    start = clock.mark()
    yield
    owners = tuple(id(r.sequence) for r in group)
    drafting = Drafting(start, clock.mark(), owners, spans_of(r.sequence for r in group))
    for r in group:
        r.drafting = drafting


def spans_of(sequences: Iterable[Sequence]) -> list[Span]:
    """Return the forward passes since the last call, of all models that the sequences use."""
    meters = {id(meter): meter for sequence in sequences for meter in sequence.models.meters}
    return [span for meter in meters.values() for span in meter.take()]


def share_forwards(spans: Iterable[Span], sequence_ids: abc.Sequence[int]) -> dict[int, Work]:
    """Return the work of each sequence by `id`. A forward pass whose sequences are unknown counts for all sequences.

    Args:
        spans: forward passes.
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


def common_round_fields(sequence: Sequence, timing: Timing) -> dict[str, Any]:
    """Return the fields of a trace's `Round` that every decoder has: current settings, and timing."""
    times = sequence.times
    assert times.origin is not None
    assert times.origin_s is not None
    t_end, report = time.perf_counter(), sequence.report
    still_s = sequence.pace.paused_s  # delays and pauses do not count in the trace's times
    origin, origin_s = times.origin.seconds + still_s, times.origin_s + still_s
    seconds = t_end - timing.started_s
    drafted, verified, overhead_s = timing.draft_work, timing.verify_work, max(0.0, seconds - timing.forwards_s)
    parts = {"draft_s": drafted.part_s, "verify_s": verified.part_s, "overhead_s": overhead_s / timing.n_sequences}
    return {
        "index": len(sequence.trace.rounds),
        "method": sequence.configured_method.name,
        "params": sequence.params,
        "phases": [
            *_draft_phases(timing, origin),
            Phase("verify", timing.verify.seconds - origin, timing.accept.seconds - origin),
            Phase("judge", timing.accept.seconds - origin, timing.commit.seconds - origin),
            Phase("commit", timing.commit.seconds - origin, t_end - origin_s),
            *(
                Phase(name, start.seconds - origin, end.seconds - origin, lane)
                for name, start, end, lane in report.other_work
            ),
        ],
        "started_s": timing.started_s - origin_s,
        "seconds": seconds,
        "draft_s": drafted.seconds,
        "verify_s": verified.seconds,
        "overhead_s": overhead_s,
        "waited_s": timing.waited_s if timing.n_sequences > 1 else 0.0,
        "shared": {"rows": timing.n_sequences, **parts} if timing.n_sequences > 1 else {},
        "draft_forwards": drafted.forwards,
        "target_forwards": verified.forwards,
        "changes": report.changes,
        "signals": report.signals
        | ({DELAY: sequence.pace.paused_before_s} if sequence.pace.paused_before_s > 0 else {}),
        "notes": list(report.notes),
        "revoked": [*report.revoked],
    }


def _draft_phases(timing: Timing, origin: float) -> list[Phase]:
    """Return the phase of drafting for one sequence, and its waits while the decoder drafted for other sequences.

    Times are in seconds after `origin`.
    """
    drafting = timing.drafting
    if timing.n_sequences == 1:
        return [Phase("draft", timing.start.seconds - origin, timing.verify.seconds - origin)]
    edges = [mark.seconds - origin for mark in (timing.start, drafting.start, drafting.end, timing.verify)]
    stretches = zip(("wait", "draft", "wait"), edges[:-1], edges[1:], strict=True)
    return [Phase(name, start, end) for name, start, end in stretches if end > start]
