"""Timing of a round per sequence. A batch shares forwards; each sequence counts those that included it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from workbench.kernels.device_clock import Mark, Span


@dataclass(slots=True)
class Work:
    """Forwards that included one sequence.

    Attributes:
        seconds: total duration of these forwards.
        part_s: sum of their durations, each divided by the number of sequences that shared the forward.
        forwards: number of forwards; a separately timed part of one (`Span.is_part`) only adds its duration.
    """

    seconds: float = 0.0
    part_s: float = 0.0
    forwards: int = 0


@dataclass(frozen=True, slots=True)
class Drafting:
    """Start and end of drafting for a group of sequences, and its forwards. Times are read after the round."""

    start: Mark
    end: Mark
    sequence_ids: tuple[int, ...]
    spans: list[Span] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Timing:
    """Timing of one sequence's round.

    Attributes:
        start: start of the batch's round.
        verify: end of drafting for all sequences; the target's forward follows.
        accept: end of the target's forward; the acceptance rules follow.
        commit: end of the acceptance rules for all sequences.
        drafting: drafting of this sequence's group.
        draft_work: the sequence's share of the drafting forwards.
        verify_work: the sequence's share of the target's forward.
        forwards_s: duration of all forwards of the batch.
        n_sequences: number of sequences verified together.
    """

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
        """Duration of the forwards that did not include the sequence."""
        return max(0.0, self.forwards_s - self.draft_work.seconds - self.verify_work.seconds)


def share_forwards(spans: Iterable[Span], sequence_ids: Sequence[int]) -> dict[int, Work]:
    """Return the forwards of each sequence. A forward without owners counts for all of them.

    Args:
        spans: forwards.
        sequence_ids: `id` of each sequence that the forwards may have included.
    """
    work_of = {row: Work() for row in sequence_ids}
    for span in spans:
        owners = [row for row in sequence_ids if row in span.sequence_ids] or list(sequence_ids)
        for row in owners:
            work = work_of[row]
            work.seconds += span.seconds
            work.part_s += span.seconds / len(owners)
            work.forwards += not span.is_part
    return work_of
