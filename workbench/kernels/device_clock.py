"""Measure times on a device with marks: points in time, set without synchronisation and read after the round."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch

CAPTURE_LOCK = threading.RLock()
"""Lock that is held while GPU work is recorded as a CUDA graph. Code that waits for a whole device or frees its unused
memory must hold this lock, too, because it would abort a recording."""


class Clock:
    """Clock of one device. A mark (point in time) is wall-clock time on a CPU, and an event in the stream on a GPU."""

    def __init__(self, device: torch.device) -> None:
        self._cuda = device.type == "cuda"
        self._has_events = self._cuda
        self._origin_s = time.perf_counter()
        self._origin = self._event() if self._cuda else None

    def _event(self) -> torch.cuda.Event:
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def __deepcopy__(self, memo: dict[int, object]) -> Clock:
        """Return the clock itself: copies of a timed model use the same clock, and a GPU event cannot be copied."""
        return self

    def mark(self) -> Mark:
        """Return a mark (point in time) for the present moment, without synchronisation."""
        return Mark(self, self._event() if self._has_events else None, time.perf_counter() - self._origin_s)

    @contextmanager
    def without_events(self) -> Iterator[None]:
        """Take marks from the host's clock within this context: events in a recorded CUDA graph have no time stamps."""
        self._has_events = False
        try:
            yield
        finally:
            self._has_events = self._cuda


class Mark:
    """Point in time on the clock of a device."""

    __slots__ = ("_clock", "_event", "_host_s")

    def __init__(self, clock: Clock, event: torch.cuda.Event | None, host_s: float) -> None:
        self._clock, self._event, self._host_s = clock, event, host_s

    def __deepcopy__(self, memo: dict[int, object]) -> Mark:
        """Return this object itself, not a copy, because a mark never changes."""
        return self

    def after(self, seconds: float) -> Mark:
        """Return a mark that is `seconds` later than this one. On a GPU, the stream must have passed this mark."""
        return Mark(self._clock, None, self.seconds + seconds)

    @property
    def seconds(self) -> float:
        """Return the seconds from the start of the device's clock to this mark. On a GPU, wait for the mark's event."""
        if self._event is None:
            return self._host_s
        origin = self._clock._origin
        self._event.synchronize()  # an event has no time before the stream has passed it
        return 0.0 if origin is None else origin.elapsed_time(self._event) / 1e3


def synchronise(device: torch.device) -> None:
    """Wait until a device has finished all its work."""
    if device.type == "cuda":
        with CAPTURE_LOCK:
            torch.cuda.synchronize(device)


def empty_cache() -> None:
    """Return torch's unused cached memory to the GPUs."""
    if torch.cuda.is_available():
        with CAPTURE_LOCK:
            torch.cuda.empty_cache()


@dataclass(frozen=True, slots=True)
class Span:
    """Timing of one forward pass, or of a part of a forward pass that is timed separately.

    Attributes:
        start: start of the forward pass or part.
        end: end of the forward pass or part.
        sequence_ids: `id` of each sequence of the forward pass; empty if they are unknown.
        is_part: whether this is the timing of a part, such as the projection by the LM head; the whole forward pass has
            another span.
    """

    start: Mark
    end: Mark
    sequence_ids: frozenset[int] = frozenset()
    is_part: bool = False

    @property
    def seconds(self) -> float:
        """Return the duration of the forward pass, or of its part, in seconds."""
        return self.end.seconds - self.start.seconds


class Meter:
    """Timings of one model's forward passes, in order."""

    def __init__(self) -> None:
        self.spans: list[Span] = []

    def add(self, start: Mark, end: Mark, sequence_ids: Iterable[int | None] = (), is_part: bool = False) -> None:
        """Record the timing of a forward pass, or of a part of one. The arguments become the fields of a `Span`."""
        self.spans.append(Span(start, end, frozenset(owner for owner in sequence_ids if owner is not None), is_part))

    def take(self) -> list[Span]:
        """Return the timings of the forward passes since the last call of this method."""
        spans, self.spans = self.spans, []
        return spans
