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
MOST_REFUSED = 4
"""Number of keys whose rounds could not be recorded after which nothing more is recorded."""


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
        ordinary: an earlier launch of the same work, for the durations of its phases.
        replay: function that runs the round again.
    """

    launch: Launch
    ordinary: Launch
    replay: Callable[[], None]


class RoundReplays:
    """Recorded rounds, by everything that their work depends on besides numbers on the device.

    A round is run as usual at the first use of a key, recorded at the second, and replayed from then on. If recording
    fails, for example because the work waits for the device, rounds of this key are always run as usual.

    Args:
        recorder: recorder for the device.
        prepare: context in which work is recorded; it keeps forward passes from being recorded by themselves.
    """

    def __init__(self, recorder: RoundRecorder, prepare: Callable[[], AbstractContextManager[None]]) -> None:
        self._recorder, self._prepare = recorder, prepare
        self._refused: dict[Hashable, str] = {}
        self._fingerprints: dict[Hashable, object] = {}
        self._records: dict[Hashable, RecordedRound] = {}
        self._ordinary: dict[Hashable, Launch] = {}

    def __len__(self) -> int:
        return len(self._records)

    @property
    def why_not(self) -> str:
        """Return why rounds of the last refused kind are not recorded; "" if all could be recorded."""
        return next(reversed(self._refused.values()), "")

    def find(self, key: Hashable, work: Callable[[], Launch], state: Sequence[Tensor]) -> RecordedRound | None:
        """Return the record of a round, which is made at the second use of its key; None: run the round as usual.

        Args:
            key: key of the round.
            work: function that queues the round on the device.
            state: tensors that the round overwrites and that must not change while it is recorded.
        """
        record = self._records.pop(key, None)
        if record is None and key in self._ordinary and key not in self._refused and len(self._refused) < MOST_REFUSED:
            record = self._record(key, work, self._ordinary[key], state)
        if record is None:
            return None
        self._records[key] = record  # the most recent one is last
        if len(self._records) > MOST_RECORDS:
            del self._records[next(iter(self._records))]
        return record

    def note(self, key: Hashable, launch: Launch) -> None:
        """Store the first ordinary launch of a key, for the durations of its phases."""
        self._ordinary.setdefault(key, launch)
        if len(self._ordinary) > MOST_RECORDS:
            del self._ordinary[next(iter(self._ordinary))]

    def check(self, models: Hashable, fingerprint: object) -> None:
        """Drop all records if the weights of some models have moved.

        Args:
            models: key of the models.
            fingerprint: addresses of their weights and buffers.
        """
        if self._fingerprints.setdefault(models, fingerprint) != fingerprint:
            self.clear()
            self._fingerprints[models] = fingerprint

    def clear(self) -> None:
        """Drop all records, because weights or buffers have moved."""
        self._records.clear()
        self._ordinary.clear()
        self._recorder.reset()

    def _record(
        self, key: Hashable, work: Callable[[], Launch], ordinary: Launch, state: Sequence[Tensor]
    ) -> RecordedRound | None:
        """Record a round, and restore the state that recording has changed; None if it cannot be recorded."""
        before = [tensor.clone() for tensor in state]
        try:
            with self._prepare():
                launch, replay = self._recorder(work)
                return RecordedRound(launch, ordinary, replay)
        except Exception as error:  # a part may raise any error; the ordinary launch that follows reports it
            if is_out_of_memory(error):
                self.clear()
            self._refused[key] = str(error).strip().split("\n")[0] or type(error).__name__
            log.warning("Rounds of one kind are launched operation by operation: %s", self._refused[key])
            return None
        finally:
            for tensor, old in zip(state, before, strict=True):
                tensor.copy_(old)
