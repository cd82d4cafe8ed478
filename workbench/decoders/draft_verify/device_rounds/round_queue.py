"""Two loops over the same phases: read each round at once, or queue the next round before reading the one before.

    normal      launch 1 · read 1 · launch 2 · read 2 · …
    overlapped  launch 1 · launch 2 · read 1 · launch 3 · read 2 · …

The device runs round 2 while the host records round 1. A round takes its length, last tokens and random numbers from
the device (`DeviceSequence`), so both loops generate the same text.
"""

from __future__ import annotations

import time
from collections import abc, deque
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from workbench.decoders.draft_verify.acceptance import AcceptanceTensors
from workbench.decoders.draft_verify.device_rounds.device_sequence import LAST, DeviceSequence, DeviceState
from workbench.decoders.draft_verify.device_rounds.eligibility import why_not_on_device
from workbench.decoders.draft_verify.device_rounds.host_copy import PendingCopy, copy_later
from workbench.decoders.draft_verify.round_state import RoundState
from workbench.engine.decoder import append_round
from workbench.engine.request import ENDED, FINISHED
from workbench.engine.round_timing import RoundTimer
from workbench.kernels.device_walk import find_path

if TYPE_CHECKING:
    from workbench.decoders.draft_verify.parts import Plan
    from workbench.engine.decoder import EngineContext
    from workbench.engine.request import Sequence
    from workbench.models.runner import Runner

Phases = Callable[[list[RoundState], RoundTimer[RoundState]], list[RoundState]]
"""Function that drafts, verifies and applies the acceptance rules on the device; returns the rounds without errors."""


@dataclass(slots=True, repr=False, eq=False)
class QueuedRound:
    """A round that the device runs or has run, and that the host has not read.

    Attributes:
        on_device: the round; its sequence is a `DeviceSequence`.
        tensors: results of the acceptance rule.
        copy: the same numbers on their way to the host.
        timer: timer of all rounds that were launched together.
    """

    on_device: RoundState
    tensors: AcceptanceTensors
    copy: PendingCopy
    timer: RoundTimer[RoundState]


class LateRound(RoundState):
    """A round that is read after it ran. Its KV cache entries are already in place, and no part observes it."""

    __slots__ = ()

    def commit_cache(self, target: Runner, path: abc.Sequence[int]) -> None:
        """Count the committed positions; the device has committed them."""
        self.sequence.cache_slot.length += len(path)

    def observe(self, root: int, emitted: list[int]) -> None:
        """Do nothing: the parts of methods that run on the device do not observe rounds."""


class RoundQueue:
    """Queue of rounds per sequence. Rounds of all sequences are launched together.

    Args:
        context: engine context; `rounds_late` is the number of rounds that stay queued.
        phases: function that runs the phases of some rounds.

    Attributes:
        n_launched: number of rounds launched so far, over all sequences.
    """

    def __init__(self, context: EngineContext, phases: Phases) -> None:
        self._context, self._phases, self.n_launched = context, phases, 0
        self._queues: dict[Sequence, deque[QueuedRound]] = {}
        self._views: dict[Sequence, DeviceSequence] = {}
        self._read_s: dict[Sequence, float] = {}

    def accepts(self, sequence: Sequence) -> bool:
        """Return whether another round of a sequence may be launched before the queued ones are read.

        The last rounds of a text are run one by one, because their drafts are shorter.
        """
        if sequence not in self._views and not self._may_begin(sequence):
            return False
        plan = self._plan_of(sequence)
        n_unread = len(self._queues.get(sequence, ())) * (plan.depth + 1)
        return sequence.remaining - n_unread - 1 >= plan.depth and not sequence.pace.is_slowed

    def step(self, sequences: abc.Sequence[Sequence]) -> None:
        """Launch one round of each sequence, then read the rounds that have been queued for long enough."""
        self.launch(sequences)
        for sequence in sequences:
            while len(self._queues.get(sequence, ())) > self._context.rounds_late:
                self.read(sequence)

    def launch(self, sequences: abc.Sequence[Sequence]) -> None:
        """Queue one round of each sequence on the device. Waits for nothing."""
        rounds = [self._begin(sequence) for sequence in sequences]
        timer = RoundTimer(self._context.clock, rounds)
        launched = self._phases(rounds, timer)
        timer.end_forwards(launched)
        for r in launched:
            view = r.sequence
            assert isinstance(view, DeviceSequence)
            tensors = r.acceptance_tensors
            walk = tensors.walk
            path = find_path(walk.parents, walk.accept, tensors.uniform, max(1, view.state.plan.depth))
            view.on_device.advance(walk.tokens, path, walk.bonus)
            queued = QueuedRound(r, tensors, copy_later(tensors.tensors()), timer)
            self._queues.setdefault(view.owner, deque()).append(queued)
            self.n_launched += 1

    def read(self, sequence: Sequence) -> None:
        """Read the oldest queued round of a sequence, record it, and end the sequence if its text is complete."""
        queued = self._queues[sequence].popleft()
        r = LateRound(sequence, tree=queued.on_device.tree)
        r.hidden, r.target_input = queued.on_device.hidden, queued.on_device.target_input
        timing = queued.timer.timing_of(queued.on_device)
        if (last := self._read_s.get(sequence)) is not None:
            timing = replace(timing, started_s=max(timing.started_s, last))

        def record() -> None:
            r.acceptance = queued.tensors.with_lists(queued.copy.read())
            r.walk()
            r.commit(self._context)
            append_round(sequence, r.to_record(timing, self._context))

        if self._context.guard(sequence, record):
            self._read_s[sequence] = time.perf_counter()
            if r.reason:
                self.drop(sequence)
                self._context.end(sequence, FINISHED, r.reason)

    def settle(self, sequence: Sequence) -> None:
        """Read all queued rounds of a sequence; its length and tokens are then known to the host."""
        while self._queues.get(sequence):
            self.read(sequence)
        if sequence.status not in ENDED:
            self.drop(sequence)

    def drop(self, sequence: Sequence) -> None:
        """Discard the queued rounds of a sequence, and use the lengths that the host knows from now on."""
        self._queues.pop(sequence, None)
        self._read_s.pop(sequence, None)
        if self._views.pop(sequence, None) is not None:
            if sequence.slot is not None:
                sequence.slot.on_device = None
            sequence.drafter.end_on_device(sequence)

    def _may_begin(self, sequence: Sequence) -> bool:
        return (
            len(sequence.committed) >= LAST
            and sequence.drafter.runs_on_device(sequence)
            and not why_not_on_device(sequence)
        )

    def _plan_of(self, sequence: Sequence) -> Plan:
        if sequence in self._views:
            return self._views[sequence].state.plan
        plan = sequence.policy.plan(sequence, sequence.state.policy, [sequence])
        builder = plan.tree_builder or sequence.configured_method.tree_builder
        return replace(plan, depth=plan.limit_nodes(plan.depth), tree_builder=builder)

    def _begin(self, sequence: Sequence) -> RoundState:
        """Return the next round of a sequence, and bound the lengths that it reads from the device."""
        if sequence not in self._views:
            plan = self._plan_of(sequence)
            sequence.state.plan = plan
            self._views[sequence] = DeviceSequence(sequence, DeviceState.of(sequence), plan)
        view = self._views[sequence]
        plan = view.state.plan
        view.bound_lengths(sequence.cache_slot.length + len(self._queues.get(sequence, ())) * (plan.depth + 1))
        return RoundState(view, tree=None)
