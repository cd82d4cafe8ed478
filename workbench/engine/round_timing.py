"""What the time of a round went to, row by row: a batch shares forwards, and each row counts those it took part in."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from workbench.kernels.device_clock import Mark, Span


@dataclass(slots=True)
class Work:
    """Forwards that one row took part in.

    Attributes:
        seconds: their time, in full.
        part_s: their time, each divided by the number of rows that shared it.
        forwards: how many; a part that is timed on its own (`Span.is_part`) adds its time alone.
    """

    seconds: float = 0.0
    part_s: float = 0.0
    forwards: int = 0


@dataclass(frozen=True, slots=True)
class Drafting:
    """When rows were drafted for together, and by which forwards. Their times are read once the round is over."""

    start: Mark
    end: Mark
    rows: tuple[int, ...]
    spans: list[Span] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Timing:
    """The round of one row.

    Attributes:
        start: when the batch began.
        verify: when drafting was over for all rows.
        judge: when the target had run.
        commit: when all rows were judged.
        drafting: when this row was drafted for.
        drafted: its share of the forwards for that.
        verified: its share of the target's forward.
        forwards_s: time in all forwards of the batch, for whichever row.
        rows: rows verified together.
    """

    start: Mark
    verify: Mark
    judge: Mark
    commit: Mark
    drafting: Drafting
    drafted: Work
    verified: Work
    forwards_s: float
    rows: int

    @property
    def waited_s(self) -> float:
        """Time in forwards that the row took no part in."""
        return max(0.0, self.forwards_s - self.drafted.seconds - self.verified.seconds)


def share(spans: Iterable[Span], rows: Sequence[int]) -> dict[int, Work]:
    """Forwards by row. A forward that does not know whom it was run for counts for all of them.

    Args:
        spans: the forwards.
        rows: `id` of each row they can have been run for.
    """
    found = {row: Work() for row in rows}
    for span in spans:
        owners = [row for row in rows if row in span.owners] or list(rows)
        for row in owners:
            work = found[row]
            work.seconds += span.seconds
            work.part_s += span.seconds / len(owners)
            work.forwards += not span.is_part
    return found
