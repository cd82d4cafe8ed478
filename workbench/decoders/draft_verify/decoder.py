"""Decoder that drafts and verifies: plan, draft, verify, accept, commit, for sequences with different methods.

In terms of Leviathan et al. 2023 (arXiv:2211.17192, Algorithm 1): `draft` samples γ guesses from the drafter, `verify`
runs the target over all of them in one forward, `accept` applies the acceptance rule and draws the token after the
accepted ones, `commit` emits these and drops the rest. `plan` chooses γ, and the draft may be a tree. `round_state.py`
has the phases for one sequence; this module handles all sequences together, and isolates their errors.

    plan ─► draft ─► verify ─► accept ─► commit ─► tokens
     ▲                                     │
     └──────────── observe ◄───────────────┘
"""

from __future__ import annotations

import time
from collections import abc
from collections.abc import Iterable
from typing import ClassVar

from workbench.core.panics import convert_panics
from workbench.core.tree import DraftTree
from workbench.decoders.draft_verify import state_actions
from workbench.decoders.draft_verify.acceptance import Acceptance
from workbench.decoders.draft_verify.drafter_setup import init_drafter_state
from workbench.decoders.draft_verify.inactive_drafters import release_drafter, release_inactive
from workbench.decoders.draft_verify.round_state import RoundState
from workbench.decoders.draft_verify.state import DraftState
from workbench.decoders.draft_verify.switching import switch
from workbench.decoders.draft_verify.tentative_tokens import revoke_tokens
from workbench.decoders.draft_verify.two_part_pass import forward_entering
from workbench.engine.decoder import Decoder, EngineContext
from workbench.engine.request import Sequence
from workbench.engine.round_timing import Drafting, Timing, share_forwards
from workbench.engine.settings import Settings
from workbench.kernels.device_clock import Mark, Span
from workbench.kernels.segment import Segment


class DraftVerify(Decoder):
    """Decoder of sequences that share a target. Each phase returns the sequences that had no error in it."""

    isolates_errors: ClassVar[bool] = True

    def __init__(self, context: EngineContext) -> None:
        self.context, self.models, self.clock, self._guard = context, context.models, context.clock, context.guard

    def open(self, row: Sequence) -> None:
        """Create the states of the parts for the committed tokens."""
        row.state = DraftState()
        row.state.drafter = init_drafter_state(row, row.drafter, row.models)
        try:
            row.state.policy, row.state.verifier = row.policy.init_state(), row.verifier.init_state(row, row.models)
            grower = row.configured_method.tree_builder
            row.state.tree_builder = None if grower is None else grower.init_state(row.drafter, row.models)
            row.state.captured_layers = row.configured_method.captured_layers(row.models)
            if row.request.drafter_state is not None and not row.is_open:
                state_actions.load(row, row.request.drafter_state)
        except BaseException:  # any error: nothing else would release the drafter's resources
            release_drafter(row)
            raise

    def change(self, row: Sequence, settings: Settings) -> None:
        """Change parts, sampling, draft model or images: see `switching.switch`."""
        switch(row, self.models.target, settings)

    def revoke(self, row: Sequence) -> None:
        """Take back the tentative tokens."""
        revoke_tokens(row, len(row.state.tentative))

    def finish(self, row: Sequence) -> None:
        """Save the drafter's state if the request keeps it."""
        state_actions.save_final_state(row, self.context.token_text)

    def close(self, row: Sequence) -> None:
        """Release the resources of the drafter and of inactive drafters."""
        release_drafter(row)
        release_inactive(row)

    def step(self, rows: abc.Sequence[Sequence]) -> bool:
        """Run one round for some sequences. Return whether at least one had a round."""
        states = planned = self.plan(rows)
        if not states:
            return False
        t_start = time.perf_counter()
        spans_of(state.sequence for state in states)  # discard forwards between rounds
        marks = [self.clock.mark()]
        for phase in (self.draft, self.verify, self.accept):
            states = phase(states)
            marks.append(self.clock.mark())
            if not states:  # all sequences ended with an error
                return True
        self.commit(states, planned, marks, t_start)
        return True

    def plan(self, sequences: abc.Sequence[Sequence]) -> list[RoundState]:
        """Decide how much to draft."""
        return [
            state
            for state in map(RoundState, sequences)
            if self._guard(state.sequence, lambda t=state: t.plan(sequences))
        ]

    def draft(self, states: list[RoundState]) -> list[RoundState]:
        """Draft a tree for each sequence; sequences with one drafter class and the same models are drafted together."""
        groups: dict[object, list[RoundState]] = {}
        mark = self.clock.mark()
        for state in states:
            drafter = state.sequence.drafter
            if state.sequence.state.plan.depth > 0:
                group_key = None if drafter.batches() else id(state)
                groups.setdefault((type(drafter), id(state.sequence.models), group_key), []).append(state)
            else:
                state.tree = DraftTree.empty(device=self.models.target.device)
                state.drafting = Drafting(mark, mark, (id(state.sequence),))
        for group in groups.values():
            start, rows = self.clock.mark(), [state.sequence for state in group]
            self._propose(group)
            drafting = Drafting(start, self.clock.mark(), tuple(map(id, rows)), spans_of(rows))
            for state in group:
                state.drafting = drafting
        return [state for state in states if state.tree is not None]

    def _propose(self, group: list[RoundState]) -> None:
        """Draft for a group of sequences; a sequence whose drafter fails ends, and gets no tree."""
        rows = [state.sequence for state in group]
        drafter = rows[0].drafter

        def together() -> None:
            # `list` checks the number of trees before any is assigned.
            for state, tree in list(zip(group, drafter.propose(rows), strict=True)):
                state.tree = tree

        if len(group) == 1:
            self._guard(rows[0], together)
            return
        try:
            with convert_panics():
                together()
        except Exception:  # find the sequence that fails; keep the others
            for state in group:
                self._guard(state.sequence, state.draft_again)

    def verify(self, states: list[RoundState]) -> list[RoundState]:
        """Compute the target's logits and hidden states, in one forward for all that start at the same layer."""
        groups: dict[tuple[int, int], list[RoundState]] = {}
        for state in states:
            if self._guard(state.sequence, lambda t=state: t.build_input(self.models)):
                assert state.verification_input is not None
                begin = 0 if state.verification_input.exits is None else state.verification_input.exits.layer
                groups.setdefault((begin, state.verification_input.probe_entry_layer), []).append(state)
        for begin, enters in sorted(groups):
            self._verify(groups[begin, enters], begin, enters)
        return [state for state in states if state.logits is not None]

    def _verify(self, states: list[RoundState], begin: int, enters: int) -> None:
        """Run one forward of the layers from `begin` on. A sequence whose forward fails ends, and gets no logits.

        Args:
            states: sequences of this forward.
            begin: number of layers that drafting has already run.
            enters: number of layers after which probe positions enter; 0: no probes enter later.
        """
        entries: list[tuple[RoundState, Segment]] = []
        for state in states:
            self._guard(state.sequence, lambda t=state: entries.append((t, t.segment(self.models))))
        if not entries:
            return
        entries.sort(key=lambda pair: pair[1].slot.index)
        taps = {layer for state, _ in entries for layer in state.sequence.state.captured_layers}
        try:
            target, segments = self.models.target, [segment for _, segment in entries]
            if enters:
                blocks = [
                    (state.sequence, state.verification_input)
                    for state, _ in entries
                    if state.verification_input is not None
                ]
                out = forward_entering(self.models, blocks, enters, taps)
            else:
                out = (
                    target.forward_from(segments, begin, taps)
                    if begin
                    else target.forward(segments, capture_layers=taps)
                )
        except Exception as error:
            if len(entries) == 1:
                self._guard(entries[0][0].sequence, lambda e=error: _raise(e))
                return
            for state, _ in entries:
                self._verify([state], begin, enters)
            return
        for index, (state, _) in enumerate(entries):
            state.take_output(out, index)

    def accept(self, states: list[RoundState]) -> list[RoundState]:
        """Apply the acceptance rules on the device, copy the results to the host at once, and find accepted paths."""
        acceptances: list[Acceptance] = []
        full = self.context.record
        decided = [
            state for state in states if self._guard(state.sequence, lambda t=state: acceptances.append(t.accept(full)))
        ]
        for state, acceptance in zip(decided, Acceptance.to_host(acceptances), strict=True):
            self._guard(state.sequence, lambda t=state, a=acceptance: t.walk(a))
        return [state for state in decided if state.verified_tree is not None]

    def commit(
        self, states: list[RoundState], planned: list[RoundState], marks: abc.Sequence[Mark], t_round: float
    ) -> None:
        """Write the accepted tokens to cache, text and trace, for one sequence after the other.

        Args:
            states: sequences with a verification result.
            planned: all sequences of the round, including those that failed after drafting, which took time, too.
            marks: start of drafting, verification and acceptance, and end of acceptance.
            t_round: start of the round, in seconds of the host's clock.
        """
        start, verify, accept, commit = marks
        spans = spans_of(state.sequence for state in states)
        drafted = {id(d): d for state in planned if (d := state.drafting) is not None}
        shares = {row: work for d in drafted.values() for row, work in share_forwards(d.spans, d.sequence_ids).items()}
        verified = share_forwards(spans, [id(state.sequence) for state in states])
        forwards_s = sum(work.part_s for work in shares.values()) + sum(span.seconds for span in spans)
        for state in states:
            key, drafting = id(state.sequence), state.drafting
            assert drafting is not None
            timing = Timing(
                start, verify, accept, commit, drafting, shares[key], verified[key], forwards_s, len(states)
            )
            self._guard(state.sequence, lambda t=state, s=timing: t.commit(s, t_round, self.context))


def spans_of(sequences: Iterable[Sequence]) -> list[Span]:
    """Return the forwards since the last call, of all models that the sequences use."""
    meters = {id(meter): meter for row in sequences for meter in row.models.meters}
    return [span for meter in meters.values() for span in meter.take()]


def _raise(error: Exception) -> None:
    raise error
