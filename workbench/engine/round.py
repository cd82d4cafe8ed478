"""The round: plan, draft, verify, judge, commit. For many rows at once, each with its own method and parameters.

Beside Leviathan et al. 2023 (arXiv:2211.17192, Algorithm 1): `draft` samples γ guesses from the drafter, `verify` runs
the target over all of them in one forward, `judge` finds how many are kept and what is drawn behind them, `commit`
emits these and forgets the rest. `plan` says how large γ is, and what is drafted may be a tree. `turn.py` has what
each phase does for one row; here are the rows together, and what becomes of one that fails.

    plan ─► draft ─► verify ─► judge ─► commit ─► tokens
     ▲                                    │
     └──────────── observe ◄──────────────┘
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from typing import Any

from torch import Tensor

from workbench.core.late import Late, carry
from workbench.core.panics import no_panic
from workbench.core.tree import DraftTree
from workbench.engine.acceptance import N_FIGURES
from workbench.engine.changes import prime, switch
from workbench.engine.decoder import House
from workbench.engine.observers import forget, let_go
from workbench.engine.request import Row
from workbench.engine.round_timing import Drafting, Timing, share
from workbench.engine.sequence_round import Turn
from workbench.engine.settings import Settings
from workbench.engine.two_part_pass import forward_entering
from workbench.kernels.device_clock import Mark, Span
from workbench.kernels.segment import Segment


class DraftAndVerify:
    """Rounds of rows that share a target. A phase takes the turns that are left and returns those that go on."""

    def __init__(self, house: House) -> None:
        self.house, self.models, self.clock, self._guard = house, house.models, house.clock, house.guard

    def open(self, row: Row) -> None:
        """Prime the parts for what is committed."""
        row.state = prime(row, row.drafter, row.models)
        try:
            row.policy_state, row.verifier_state = row.policy.start(), row.verifier.prime(row, row.models)
            grower = row.configured.grower
            row.grower_state = None if grower is None else grower.prime(row.drafter, row.models)
            row.taps = row.configured.taps(row.models)
        except BaseException:  # whatever it was: nobody else knows what the drafter holds
            let_go(row)
            raise

    def change(self, row: Row, settings: Settings) -> None:
        """Other parts, sampling, draft model or pictures: see `changing.switch`."""
        switch(row, self.models.target, settings)

    def close(self, row: Row) -> None:
        """The drafter gives back what it holds, and so do those that watch."""
        let_go(row)
        forget(row)

    def step(self, rows: Sequence[Row]) -> bool:
        """One round of some rows. Returns whether there was one for any of them."""
        turns = planned = self.plan(rows)
        if not turns:
            return False
        begun = time.perf_counter()
        spans_of(turn.row for turn in turns)  # of work between rounds
        marks = [self.clock.mark()]
        for phase in (self.draft, self.verify, self.judge):
            turns = phase(turns)
            marks.append(self.clock.mark())
            if not turns:  # each has ended with an error
                return True
        self.commit(turns, planned, marks, begun)
        return True

    def plan(self, rows: Sequence[Row]) -> list[Turn]:
        """Decide how much to draft."""
        return [turn for turn in map(Turn, rows) if self._guard(turn.row, lambda t=turn: t.plan(rows))]

    def draft(self, turns: list[Turn]) -> list[Turn]:
        """A tree for each row; rows of one drafter class and the same models are drafted for together."""
        groups: dict[object, list[Turn]] = {}
        now = self.clock.mark()
        for turn in turns:
            drafter = turn.row.drafter
            if turn.row.plan.depth > 0:
                alone = None if drafter.batches() else id(turn)
                groups.setdefault((type(drafter), id(turn.row.models), alone), []).append(turn)
            else:
                turn.tree = DraftTree.empty(device=self.models.target.device)
                turn.drafting = Drafting(now, now, (id(turn.row),))
        for group in groups.values():
            start, rows = self.clock.mark(), [turn.row for turn in group]
            self._propose(group)
            drafting = Drafting(start, self.clock.mark(), tuple(map(id, rows)), spans_of(rows))
            for turn in group:
                turn.drafting = drafting
        return [turn for turn in turns if turn.tree is not None]

    def _propose(self, group: list[Turn]) -> None:
        """A row whose drafter fails ends, and has no tree."""
        rows = [turn.row for turn in group]
        drafter = rows[0].drafter

        def together() -> None:
            for turn, tree in list(zip(group, drafter.propose(rows), strict=True)):  # all of them, or none
                turn.tree = tree

        if len(group) == 1:
            self._guard(rows[0], together)
            return
        try:
            with no_panic():
                together()
        except Exception:  # find the row that fails; keep the others
            for turn in group:
                self._guard(turn.row, turn.draft_again)

    def verify(self, turns: list[Turn]) -> list[Turn]:
        """The target's logits and hidden states for each row, from one forward for all that begin at one layer."""
        groups: dict[tuple[int, int], list[Turn]] = {}
        for turn in turns:
            if self._guard(turn.row, lambda t=turn: t.lay_out(self.models)):
                assert turn.block is not None
                begin = 0 if turn.block.exits is None else turn.block.exits.layer
                groups.setdefault((begin, turn.block.enters), []).append(turn)
        for begin, enters in sorted(groups):
            self._verify(groups[begin, enters], begin, enters)
        return [turn for turn in turns if turn.logits is not None]

    def _verify(self, turns: list[Turn], begin: int, enters: int) -> None:
        """One forward, of the layers from `begin` on. A row whose forward fails ends, and has no logits.

        Args:
            turns: whose.
            begin: behind how many layers it goes on from what drafting left.
            enters: behind how many layers probes come in; 0: none does.
        """
        asked: list[tuple[Turn, Segment]] = []
        for turn in turns:
            self._guard(turn.row, lambda t=turn: asked.append((t, t.segment(self.models))))
        if not asked:
            return
        asked.sort(key=lambda pair: pair[1].slot.index)
        taps = {layer for turn, _ in asked for layer in turn.row.taps}
        try:
            target, pieces = self.models.target, [piece for _, piece in asked]
            if enters:
                blocks = [(turn.row, turn.block) for turn, _ in asked if turn.block is not None]
                out = forward_entering(self.models, blocks, enters, taps)
            else:
                out = target.forward_behind(pieces, begin, taps) if begin else target.forward(pieces, taps=taps)
        except Exception as error:
            if len(asked) == 1:
                self._guard(asked[0][0].row, lambda e=error: _raise(e))
                return
            for turn, _ in asked:
                self._verify([turn], begin, enters)
            return
        for b, (turn, _) in enumerate(asked):
            turn.read(out, b)

    def judge(self, turns: list[Turn]) -> list[Turn]:
        """Each row's rule on the device, then everything to the host in one synchronisation, and the walks there."""
        carried: list[Tensor | Late[Any]] = []
        full = self.house.record
        ruled = [turn for turn in turns if self._guard(turn.row, lambda t=turn: carried.extend(t.figures(full)))]
        lists = carry(carried)
        for i, turn in enumerate(ruled):
            mine = lists[N_FIGURES * i : N_FIGURES * (i + 1)]
            self._guard(turn.row, lambda t=turn, f=mine: t.walk(f))
        return [turn for turn in ruled if turn.judged is not None]

    def commit(self, turns: list[Turn], planned: list[Turn], marks: Sequence[Mark], begun: float) -> None:
        """What was kept goes into cache, text and trace, row by row.

        Args:
            turns: judged.
            planned: all of the round, whose drafting took time even where they ended with an error since.
            marks: when drafting, verifying and judging began, and when judging was over.
            begun: when the round began, in seconds of the host's clock.
        """
        start, verify, judge, commit = marks
        spans = spans_of(turn.row for turn in turns)
        drafted = {id(d): d for turn in planned if (d := turn.drafting) is not None}
        shares = {row: work for d in drafted.values() for row, work in share(d.spans, d.rows).items()}
        verified = share(spans, [id(turn.row) for turn in turns])
        forwards_s = sum(work.part_s for work in shares.values()) + sum(span.seconds for span in spans)
        for turn in turns:
            key, drafting = id(turn.row), turn.drafting
            assert drafting is not None
            timing = Timing(start, verify, judge, commit, drafting, shares[key], verified[key], forwards_s, len(turns))
            self._guard(turn.row, lambda t=turn, s=timing: t.commit(s, begun, self.house))


def spans_of(rows: Iterable[Row]) -> list[Span]:
    """Forwards since the last call, of whichever models the rows use."""
    meters = {id(meter): meter for row in rows for meter in row.models.meters}
    return [span for meter in meters.values() for span in meter.take()]


def _raise(error: Exception) -> None:
    raise error
