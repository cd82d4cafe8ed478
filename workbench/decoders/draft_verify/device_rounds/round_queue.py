"""Two loops over the same phases: read each round at once, or queue the next round before reading the one before.

    normal      launch 1 · read 1 · launch 2 · read 2 · …
    overlapped  launch 1 · launch 2 · read 1 · launch 3 · read 2 · …

The device runs round 2 while the host records round 1. A round takes its length, last tokens and random numbers from
the device (`DeviceSequence`), so both loops generate the same text.
"""

from __future__ import annotations

import time
from collections import abc, deque
from collections.abc import Callable, Hashable
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

import torch
from torch import nn

from workbench.decoders.draft_verify.device_rounds.device_sequence import LAST, DeviceSequence
from workbench.decoders.draft_verify.device_rounds.eligibility import why_not_on_device
from workbench.decoders.draft_verify.device_rounds.host_copy import PendingCopy, copy_later
from workbench.decoders.draft_verify.device_rounds.launch import Launch, Phases, ReplayedLaunch, launch, results_of
from workbench.decoders.draft_verify.device_rounds.round_replay import RoundReplays
from workbench.decoders.draft_verify.drafter_lifetime import levels_left
from workbench.decoders.draft_verify.round_state import RoundState
from workbench.engine.decoder import append_round
from workbench.engine.request import ENDED, FINISHED
from workbench.engine.round_timing import RoundTimer, Timing

if TYPE_CHECKING:
    from workbench.decoders.draft_verify.parts import Plan
    from workbench.engine.decoder import EngineContext
    from workbench.engine.request import Sequence
    from workbench.models.runner import Runner


@dataclass(frozen=True, slots=True, eq=False)
class QueuedRound:
    """A round that the device runs or has run, and that the host has not read.

    Attributes:
        on_device: the round on the device.
        copy: results of its acceptance rule on their way to the host.
        timing: function that returns the round's timing when it has run.
    """

    on_device: RoundState
    copy: PendingCopy
    timing: Callable[[], Timing]


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
        context: engine context.
        phases: function that runs the phases of some rounds; an error ends only the sequence of its round.
        unguarded: the same function, but errors are raised; it is recorded.
        replays: recorded rounds; None: launch operation by operation.

    Attributes:
        rounds_late: number of rounds of a sequence that stay queued.
        replays: recorded rounds.
        n_launched: number of rounds launched so far, over all sequences.
    """

    def __init__(
        self, context: EngineContext, phases: Phases, unguarded: Phases, replays: RoundReplays | None = None
    ) -> None:
        self._unguarded = unguarded
        self._context, self._phases, self.replays, self.n_launched = context, phases, replays, 0
        self.rounds_late = context.rounds_late
        self._queues: dict[Sequence, deque[QueuedRound]] = {}
        self._free: list[DeviceSequence] = []
        self._views: dict[Sequence, DeviceSequence] = {}
        self._read_s: dict[Sequence, float] = {}

    def accepts(self, sequence: Sequence) -> bool:
        """Return whether another round of a sequence may be launched before the queued ones are read.

        The last rounds of a text are run one by one, because their drafts are shorter.
        """
        if sequence.is_interrupted or (sequence not in self._views and not self._may_begin(sequence)):
            return False
        plan = self._plan_of(sequence)
        n_unread = len(self._queues.get(sequence, ())) * (plan.depth + 1)
        return sequence.remaining - n_unread - 1 >= plan.depth

    def step(self, sequences: abc.Sequence[Sequence]) -> None:
        """Launch one round of each sequence, then read the rounds that have been queued for long enough."""
        self.launch(sequences)
        for sequence in sequences:
            while len(self._queues.get(sequence, ())) > self.rounds_late:
                self.read(sequence)

    def launch(self, sequences: abc.Sequence[Sequence]) -> None:
        """Queue one round of each sequence on the device. Waits for nothing."""
        views = list[DeviceSequence]()
        for sequence in sequences:
            self._context.guard(sequence, lambda s=sequence: views.append(self._begin(s)))
        if not views:
            return
        clock = self._context.clock

        def work(phases: Phases) -> Launch:
            for view in views:
                view.reset_lengths()
            rounds = [RoundState(view) for view in views]
            return launch(rounds, phases, RoundTimer(clock, rounds))

        key, record = self._key(views), None
        if self.replays is not None and key is not None:
            state = [tensor for view in views for tensor in view.on_device.tensors()]
            record = self.replays.find(key, partial(work, self._unguarded), state)
        if record is None:
            launched = timings = work(self._phases)
            if self.replays is not None and key is not None and len(launched.rounds) == len(views):
                self.replays.note(key, launched)
        else:
            started_s, start = time.perf_counter(), clock.mark()
            record.replay()
            launched = record.launch
            timings = ReplayedLaunch(record.ordinary, started_s, start, clock.mark())
        served = [r.sequence for r in launched.rounds] if record is None else views
        for i, (r, view) in enumerate(zip(launched.rounds, served, strict=True)):
            queued = QueuedRound(r, copy_later(results_of(r)), partial(timings.timing_of, i))
            self._queues.setdefault(view.owner, deque()).append(queued)
            self.n_launched += 1
        for view in self._free:
            view.forget()

    def _key(self, views: abc.Sequence[DeviceSequence]) -> Hashable:
        """Return all that a round depends on besides numbers on the device; None: it must not be recorded.

        If rows of other sequences lie between those of the round, their lengths on the host would be recorded, too.
        """
        for column in zip(*(view.rows for view in views), strict=True):
            rows = [row for row in column if row >= 0]
            if rows and max(rows) - min(rows) >= len(rows):
                return None
        return tuple(
            (view.configured_method.name, tuple(sorted(view.configured_method.values.items())), view.sampling,
             id(view.models), id(view.on_device), view.key)
            for view in views
        )  # fmt: skip

    def read(self, sequence: Sequence) -> None:
        """Read the oldest queued round of a sequence, record it, and end the sequence if its text is complete."""
        queued = self._queues[sequence].popleft()
        r = LateRound(sequence, tree=queued.on_device.tree)
        r.target_input = queued.on_device.target_input

        def record() -> None:
            numbers = queued.copy.read()
            if queued.on_device.has_invalid_token is not None:
                r.has_invalid_token = torch.tensor(numbers.pop())
            r.acceptance = queued.on_device.acceptance_tensors.with_lists(numbers)
            r.walk()
            r.commit(self._context)
            timing = queued.timing()
            if (last := self._read_s.get(sequence)) is not None:
                timing = replace(timing, started_s=max(timing.started_s, last))
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
        if (view := self._views.pop(sequence, None)) is not None:
            self._free.append(view)
            view.detach()

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
        return replace(plan, depth=min(plan.limit_nodes(plan.depth), levels_left(sequence)), tree_builder=builder)

    def _begin(self, sequence: Sequence) -> DeviceSequence:
        """Return the view of a sequence for its next round, and set the maximum length of the text before this round.

        The host does not know the exact length: the queued rounds may still emit tokens.
        """
        if sequence not in self._views:
            if self.replays is not None:
                self.replays.check(id(sequence.models), fingerprint(sequence))
            sequence.state.plan = plan = self._plan_of(sequence)
            target = sequence.models.target
            view = self._free.pop() if self._free else DeviceSequence(target)
            view.attach(sequence, plan)
            self._views[sequence] = view
        view = self._views[sequence]
        n_unread = len(self._queues.get(sequence, ())) * (view.state.plan.depth + 1)
        view.limit_length(sequence.cache_slot.length + n_unread)
        return view


def fingerprint(sequence: Sequence) -> list[tuple[int, int]]:
    """Return addresses and versions of the weights that a sequence's rounds read: of target, draft model and head."""
    models = sequence.models
    runners = [models.target] if models.draft_model is None else [models.target, models.draft_model]
    modules = [runner.model for runner in runners]
    head = getattr(sequence.state.drafter, "net", None)
    modules += [head] if isinstance(head, nn.Module) else []
    weights = [weight for module in modules for weight in (*module.parameters(), *module.buffers())]
    return [(weight.data_ptr(), 0 if weight.is_inference() else weight._version) for weight in weights]
