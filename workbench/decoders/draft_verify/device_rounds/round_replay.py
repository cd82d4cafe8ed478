"""Whole rounds as CUDA graphs: drafting, verification, acceptance and commit with one launch."""

from __future__ import annotations

import logging
from collections.abc import Callable, Hashable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from torch import Tensor

from workbench.core.errors import is_out_of_memory
from workbench.decoders.draft_verify.device_rounds.launch import Launch

log = logging.getLogger(__name__)

MOST_RECORDS = 24
"""Maximum number of recorded rounds. The one that was used least recently is dropped first."""


@runtime_checkable
class RoundRecorder(Protocol):
    """Function that records work on a device, such as a CUDA graph."""

    def __call__(self, work: Callable[[], Launch]) -> tuple[Launch, Callable[[], None]]:
        """Run some work and record it. Return its results, and a function that runs it again into their memory."""
        ...

    def reset(self) -> None:
        """Release the memory of all records."""
        ...


@dataclass(slots=True)
class RecordedRound:
    """A round that can be replayed.

    Attributes:
        launch: the recorded launch, whose tensors contain the results of the latest replay.
        replay: function that runs the round again.
    """

    launch: Launch
    replay: Callable[[], None]


class RoundReplays:
    """Recorded rounds, by everything that their work depends on besides numbers on the device.

    A round is run as usual at the first use of a key, recorded at the second, and replayed from then on. If recording
    fails, because the work waits for the device, nothing is recorded from then on.

    Args:
        recorder: recorder for the device.
        prepare: context in which work is recorded; it keeps forward passes from being recorded by themselves.

    Attributes:
        why_not: why nothing is recorded; empty while recording works.
    """

    def __init__(self, recorder: RoundRecorder, prepare: Callable[[], AbstractContextManager[None]]) -> None:
        self._recorder, self._prepare, self.why_not = recorder, prepare, ""
        self._records: dict[Hashable, RecordedRound] = {}
        self._ordinary: dict[Hashable, Launch] = {}

    def __len__(self) -> int:
        return len(self._records)

    def find(self, key: Hashable, work: Callable[[], Launch], state: Sequence[Tensor]) -> RecordedRound | None:
        """Return the record of a round, which is made at the second use of its key; None: run the round as usual.

        Args:
            key: key of the round.
            work: function that queues the round on the device.
            state: tensors that the round overwrites and that must not change while it is recorded.
        """
        record = self._records.pop(key, None)
        if record is None and key in self._ordinary and not self.why_not:
            record = self._record(work, state)
        if record is None:
            return None
        self._records[key] = record  # the most recent one is last
        if len(self._records) > MOST_RECORDS:
            del self._records[next(iter(self._records))]
        return record

    def note(self, key: Hashable, launch: Launch) -> None:
        """Store the first ordinary launch of a key, for the durations of its phases."""
        self._ordinary.setdefault(key, launch)

    def ordinary(self, key: Hashable) -> Launch:
        """Return the first ordinary launch of a key."""
        return self._ordinary[key]

    def clear(self) -> None:
        """Drop all records, because weights or buffers have moved."""
        self._records.clear()
        self._ordinary.clear()
        self._recorder.reset()

    def _record(self, work: Callable[[], Launch], state: Sequence[Tensor]) -> RecordedRound | None:
        """Record a round, and restore the state that recording has changed; None if it cannot be recorded."""
        before = [tensor.clone() for tensor in state]
        try:
            with self._prepare():
                return RecordedRound(*self._recorder(work))
        except (RuntimeError, MemoryError) as error:
            self.clear()
            if not is_out_of_memory(error):
                self.why_not = str(error).strip().split("\n")[0] or type(error).__name__
                log.warning("Rounds are launched operation by operation, without a CUDA graph: %s", self.why_not)
            return None
        finally:
            for tensor, old in zip(state, before, strict=True):
                tensor.copy_(old)
