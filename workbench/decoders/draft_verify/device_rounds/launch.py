"""One round of several sequences, as queued on the device."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor

from workbench.core.lazy import LazySequence
from workbench.decoders.draft_verify.device_rounds.device_sequence import DeviceSequence
from workbench.decoders.draft_verify.round_state import RoundState
from workbench.engine.round_timing import RoundTimer, Timing, rescale_timing
from workbench.kernels.device_clock import Mark
from workbench.kernels.device_walk import find_path

Phases = Callable[[list[RoundState], RoundTimer[RoundState]], list[RoundState]]
"""Function that drafts, verifies, accepts and commits on the device; returns the rounds without errors."""


@dataclass(frozen=True, slots=True, eq=False)
class Launch:
    """Rounds that were queued together.

    Attributes:
        rounds: the rounds without errors.
        timer: timer of the rounds.
    """

    rounds: list[RoundState]
    timer: RoundTimer[RoundState]

    def tensors(self) -> list[Tensor]:
        """Return the results of the acceptance rules of all rounds, on the device."""
        return [tensor for r in self.rounds for tensor in results_of(r)]

    def timing_of(self, i: int) -> Timing:
        """Return the timing of round i. Waits until the device has run it."""
        return self.timer.timing_of(self.rounds[i])


@dataclass(frozen=True, slots=True, eq=False)
class ReplayedLaunch:
    """Timing of replayed rounds: the phases of an ordinary launch, scaled to the duration of the replay.

    Events inside a CUDA graph have no time.

    Attributes:
        ordinary: launch of the same work without a recording.
        started_s: start of the replay, in seconds of the host's clock.
        start: start of the replay on the device.
        end: end of the replay on the device.
    """

    ordinary: Launch
    started_s: float
    start: Mark
    end: Mark

    def timing_of(self, i: int) -> Timing:
        """Return the timing of round i. Waits until the device has run it."""
        return rescale_timing(self.ordinary.timing_of(i), self.started_s, self.start, self.end)


def results_of(r: RoundState) -> list[Tensor]:
    """Return the results of a round's acceptance rule, and its flag for invalid tokens if there is one."""
    tensors = list[Tensor]()
    for numbers in r.acceptance_tensors.tensors():
        assert not isinstance(numbers, LazySequence)
        tensors.append(numbers)
    return tensors if r.has_invalid_token is None else [*tensors, r.has_invalid_token]


def launch(rounds: list[RoundState], phases: Phases, timer: RoundTimer[RoundState]) -> Launch:
    """Queue the phases of some rounds. Waits for nothing.

    Args:
        rounds: rounds whose sequences are `DeviceSequence`s.
        phases: function that runs the phases.
        timer: timer of the rounds.
    """
    launched = phases(rounds, timer)
    timer.end_forwards(launched)
    return Launch(launched, timer)


def commit_on_device(r: RoundState) -> None:
    """Find the accepted path of a round on the device, and commit it there."""
    view, walk = r.sequence, r.acceptance_tensors.walk
    assert isinstance(view, DeviceSequence)
    assert r.tree is not None
    depth = max(1, view.state.plan.depth)
    path = find_path(walk.parents, walk.accept, r.acceptance_tensors.uniform, depth)
    view.commit(r.tree, walk, path, r.hidden)
