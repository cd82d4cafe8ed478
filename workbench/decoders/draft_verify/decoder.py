"""Draft-and-verify decoding: Leviathan et al. 2023 (arXiv:2211.17192), Algorithm 1; trees as in SpecInfer, §4.

plan ─► draft ─► verify ─► accept ─► commit ─► tokens
 ▲                                     │
 └──────────── observe ◄───────────────┘
"""

from __future__ import annotations

from collections import abc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial

from workbench.decoders.draft_verify import state_actions
from workbench.decoders.draft_verify.device_rounds.launch import Phases, commit_on_device
from workbench.decoders.draft_verify.device_rounds.round_queue import RoundQueue
from workbench.decoders.draft_verify.device_rounds.round_replay import RoundReplays
from workbench.decoders.draft_verify.drafter_lifetime import init_drafter_state, release_drafter, release_inactive
from workbench.decoders.draft_verify.part_changes import switch
from workbench.decoders.draft_verify.round_state import (
    RoundState,
    copy_to_host,
    groups_of,
    propose,
    propose_again,
    run_target,
)
from workbench.decoders.draft_verify.state import DraftState
from workbench.decoders.draft_verify.tentative_tokens import revoke_tokens
from workbench.engine.decoder import EngineContext, Guard, RoundDecoder
from workbench.engine.request import Sequence
from workbench.engine.round_timing import RoundTimer, time_drafting
from workbench.engine.settings import Settings
from workbench.kernels.cuda_graphs import CudaGraphRecorder
from workbench.kernels.forward_replay import recording_paused


class DraftVerify(RoundDecoder[RoundState]):
    """Draft-and-verify decoder. Each phase takes the rounds of all sequences, and returns those without an error."""

    def __init__(self, context: EngineContext) -> None:
        super().__init__(context)
        self.queue: RoundQueue | None = None
        if context.rounds_late:
            guarded = self._phases_with(lambda view, act: context.guard(view.owner, act))
            self.queue = RoundQueue(context, guarded, self._phases_with(_raise), self._replays())

    def _replays(self) -> RoundReplays | None:
        """Return an empty cache of rounds recorded as CUDA graphs; None without a GPU."""
        device = self.models.target.device
        if device.type != "cuda":
            return None

        @contextmanager
        def prepare() -> Iterator[None]:
            with recording_paused(), self.clock.without_events():
                yield

        return RoundReplays(CudaGraphRecorder(device), prepare)

    def _phases_with(self, guard: Guard) -> Phases:
        """Return a function that runs a round's phases on the device; errors are handled by `guard`."""
        return DraftVerify(replace(self.context, rounds_late=0, guard=guard)).run_on_device

    def step(self, sequences: abc.Sequence[Sequence]) -> bool:
        """Run one round for each of the sequences. Return whether at least one sequence had a round."""
        if self.queue is None:
            return self.run(sequences)
        queue = self.queue
        late = [s for s in sequences if self._check(s, lambda s=s: queue.accepts(s))]
        if late:
            self.queue.step(late)
        others = [sequence for sequence in sequences if sequence not in late]
        for sequence in others:
            self.context.guard(sequence, lambda s=sequence: queue.settle(s))
        others = [sequence for sequence in others if sequence.is_open]
        has_run = bool(others) and self.run(others)
        return bool(late) or has_run

    def _check(self, sequence: Sequence, is_true: Callable[[], bool]) -> bool:
        """Return the result of a function for a sequence; False if it fails, which ends the sequence."""
        results = list[bool]()
        return self.context.guard(sequence, lambda: results.append(is_true())) and results[0]

    def run(self, sequences: abc.Sequence[Sequence]) -> bool:
        """Run one round for some sequences, and read its results."""
        rounds = self.plan([RoundState(sequence) for sequence in sequences])
        timer = RoundTimer(self.clock, rounds)
        drafted = timer.end_phase(self.draft(rounds))
        verified = timer.end_phase(self.verify(drafted))
        accepted = timer.end_phase(self.accept(verified))
        timer.end_forwards(accepted)
        self.append_rounds(self.commit(accepted), timer)
        return bool(rounds)

    def run_on_device(self, rounds: list[RoundState], timer: RoundTimer[RoundState]) -> list[RoundState]:
        """Draft, verify, apply the acceptance rules and commit, without reading any result."""
        drafted = timer.end_phase(self.draft(rounds))
        verified = timer.end_phase(self.verify(drafted))
        accepted = timer.end_phase(self.each(verified, lambda r: r.accept(self.context.is_trace_detailed)))
        return self.each(accepted, commit_on_device)

    def plan(self, rounds: list[RoundState]) -> list[RoundState]:
        """Choose γ, the depth of the next draft, for each sequence."""
        batch = [r.sequence for r in rounds]
        return self.each(rounds, lambda r: r.plan(batch))

    def draft(self, rounds: list[RoundState]) -> list[RoundState]:
        """Draft γ tokens, or a tree, for each sequence; sequences with the same drafter are drafted in one call."""
        for group in groups_of((r for r in rounds if r.tree is None), lambda r: r.drafting_group):
            with time_drafting(self.clock, group):
                self.together(group, propose, again=propose_again)
        return [r for r in rounds if r.tree is not None]

    def verify(self, rounds: list[RoundState]) -> list[RoundState]:
        """Run the target over the last token and the draft of each sequence, in one forward pass."""
        rounds = self.each(rounds, lambda r: r.build_input(self.models))
        for group in groups_of(rounds, lambda r: r.first_layers):
            self.together(group, partial(run_target, self.models))
        return [r for r in rounds if r.logits is not None]

    def accept(self, rounds: list[RoundState]) -> list[RoundState]:
        """Apply the acceptance rules on the device, copy all results to the host at once, and find accepted paths."""
        rounds = self.each(rounds, lambda r: r.accept(self.context.is_trace_detailed))
        copy_to_host(rounds)
        return self.each(rounds, RoundState.walk)

    def commit(self, rounds: list[RoundState]) -> list[RoundState]:
        """Commit accepted paths and the tokens after them, and drop rejected nodes.

        Drafters, tree builders, verifiers and policies get feedback on the round.
        """
        return self.each(rounds, lambda r: r.commit(self.context))

    # -- between rounds ------------------------------------------------------------------------------------------

    def open(self, sequence: Sequence) -> None:
        """Create the states of drafter, tree builder, verifier and policy from the sequence's committed tokens."""
        state, method, models = DraftState(), sequence.configured_method, sequence.models
        sequence.state = state
        state.drafter = init_drafter_state(sequence, sequence.drafter, models)
        try:
            state.policy, state.verifier = sequence.policy.init_state(), sequence.verifier.init_state(sequence, models)
            builder = method.tree_builder
            state.tree_builder = None if builder is None else builder.init_state(sequence.drafter, models)
            state.captured_layers = method.captured_layers(models)
            if sequence.request.drafter_state is not None and not sequence.is_open:
                state_actions.load(sequence, sequence.request.drafter_state)
        except BaseException:  # any error: nothing else would release the drafter's resources
            release_drafter(sequence)
            raise

    def change(self, sequence: Sequence, settings: Settings) -> None:
        """Change the drafter, verifier, policy, sampling, draft model or images of a sequence."""
        switch(sequence, self.models.target, settings)

    @property
    def n_queued_rounds(self) -> int:
        """Return how many rounds were queued on the device before the host had read the previous ones."""
        return 0 if self.queue is None else self.queue.n_launched

    @property
    def why_not_recorded(self) -> str:
        """Return why queued rounds are not recorded as CUDA graphs; "" if they are, or if none were queued."""
        if self.queue is None or not self.queue.n_launched:
            return ""
        return "CUDA graphs need a GPU" if self.queue.replays is None else self.queue.replays.why_not

    def settle(self, sequence: Sequence) -> None:
        """Read the results of the sequence's rounds that are queued on the device."""
        if self.queue is not None:
            self.queue.settle(sequence)

    def revoke(self, sequence: Sequence) -> None:
        """Revoke the tentative tokens of a sequence."""
        revoke_tokens(sequence, len(sequence.state.tentative))

    def finish(self, sequence: Sequence) -> None:
        """Store the drafter's state of an ending sequence if the request asks for it (`keep_drafter_state`)."""
        if self.queue is not None:
            self.queue.drop(sequence)
        state_actions.save_final_state(sequence, self.context.token_text)

    def close(self, sequence: Sequence) -> None:
        """Release the resources of a sequence's drafter and of its inactive drafters, and drop queued rounds."""
        if self.queue is not None:
            self.queue.drop(sequence)
        release_drafter(sequence)
        release_inactive(sequence)


def _raise(view: Sequence, act: Callable[[], object]) -> bool:
    """Run a function without handling its errors: a CUDA graph contains a whole round or none."""
    act()
    return True
