"""The round: plan, draft, verify, judge, commit. For many rows at once, each with its own method and parameters.

Beside Leviathan et al. 2023 (arXiv:2211.17192, Algorithm 1): `draft` samples γ guesses from the drafter, `verify` runs
the target over all of them in one forward, `judge` finds how many are kept and what is drawn behind them, `commit`
emits these and forgets the rest. `plan` says how large γ is, and what is drafted may be a tree.

    plan ─► draft ─► verify ─► judge ─► commit ─► tokens
     ▲                                    │
     └──────────── observe ◄──────────────┘
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

from torch import Tensor

from workbench.core.errors import NumericalError
from workbench.core.panics import no_panic
from workbench.core.probes import Probed
from workbench.core.transfer import to_host
from workbench.core.tree import DraftTree
from workbench.engine.block import Block, block_of
from workbench.engine.changing import levels_left, prime, switch
from workbench.engine.clock import Mark, Span
from workbench.engine.decoder import House
from workbench.engine.ends import cut
from workbench.engine.extras import scored
from workbench.engine.judging import N_FIGURES, figures
from workbench.engine.learning import forget, let_go, tell
from workbench.engine.models import Models
from workbench.engine.parts import Outcome
from workbench.engine.recording import Judged, keep_round, record_round
from workbench.engine.request import FINISHED, Row
from workbench.engine.segment import Segment
from workbench.engine.settings import Settings
from workbench.engine.timing import Drafting, Timing, share


@dataclass(slots=True)
class Turn:
    """One row in one round: what each phase found for it.

    Attributes:
        row: the row.
        tree: what was drafted.
        drafting: when, and with whom.
        block: what of it goes into the target's pass: the draft, and probes behind it.
        logits: the target's at the root and behind each node, [N+1, V].
        hidden: what the LM head read there, [N+1, D].
        taps: residual streams there of the layers that the row's method asked for, each [N+1, D].
        probed: what the target said of probes, by the part that asked for them.
        judged: the verdict.
    """

    row: Row
    tree: DraftTree | None = None
    drafting: Drafting | None = None
    block: Block | None = None
    logits: Tensor | None = None
    hidden: Tensor | None = None
    taps: dict[int, Tensor] = field(default_factory=dict)
    probed: dict[str, Probed] = field(default_factory=dict)
    judged: Judged | None = None


class DraftAndVerify:
    """Rounds of rows that share a target. A phase takes the turns that are left and returns those that go on."""

    def __init__(self, house: House) -> None:
        self.models, self.clock, self.token_text, self.record = (
            house.models,
            house.clock,
            house.token_text,
            house.record,
        )
        self._guard, self._end = house.guard, house.end

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
        return [Turn(row) for row in rows if self._guard(row, lambda r=row: plan(r, rows))]

    def draft(self, turns: list[Turn]) -> list[Turn]:
        """A tree for each row; rows of one drafter class are drafted for together where it can."""
        groups: dict[object, list[Turn]] = {}
        now = self.clock.mark()
        for turn in turns:
            drafter = turn.row.drafter
            if turn.row.plan.depth > 0:
                alone = None if drafter.batches() else id(turn)
                groups.setdefault((type(drafter), id(turn.row.models.drafter), alone), []).append(turn)
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
                self._guard(turn.row, lambda t=turn: propose_again(t))

    def verify(self, turns: list[Turn]) -> list[Turn]:
        """The target's logits and hidden states for each row, from one forward for all that begin at one layer."""
        groups: dict[int, list[Turn]] = {}
        for turn in turns:
            if self._guard(turn.row, lambda t=turn: lay_out(t, self.models)):
                assert turn.block is not None
                groups.setdefault(0 if turn.block.exits is None else turn.block.exits.layer, []).append(turn)
        for layer in sorted(groups):
            self._verify(groups[layer], layer)
        return [turn for turn in turns if turn.logits is not None]

    def _verify(self, turns: list[Turn], begin: int) -> None:
        """One forward, of the layers from `begin` on. A row whose forward fails ends, and has no logits."""
        asked: list[tuple[Turn, Segment]] = []
        for turn in turns:
            self._guard(turn.row, lambda t=turn: asked.append((t, segment(t, self.models))))
        if not asked:
            return
        asked.sort(key=lambda pair: pair[1].slot.index)
        taps = {layer for turn, _ in asked for layer in turn.row.taps}
        try:
            target, pieces = self.models.target, [piece for _, piece in asked]
            out = target.forward_behind(pieces, begin, taps) if begin else target.forward(pieces, taps=taps)
        except Exception as error:
            if len(asked) == 1:
                self._guard(asked[0][0].row, lambda e=error: _raise(e))
                return
            for turn, _ in asked:
                self._verify([turn], begin)
            return
        for b, (turn, _) in enumerate(asked):
            assert turn.block is not None
            n = 1 + len(turn.block.tree)
            turn.logits, turn.hidden = out.logits[b, :n], out.hidden[b, :n]
            turn.probed = turn.block.probed(out.logits[b], out.hidden[b])
            turn.taps = {layer: out.taps[layer][b, :n] for layer in turn.row.taps}

    def judge(self, turns: list[Turn]) -> list[Turn]:
        """Each row's rule on the device, then everything to the host in one synchronisation, and the walks there."""
        carried: list[Tensor] = []
        ruled = [turn for turn in turns if self._guard(turn.row, lambda t=turn: carried.extend(self._figures(t)))]
        lists = to_host(carried)
        for i, turn in enumerate(ruled):
            mine = lists[N_FIGURES * i : N_FIGURES * (i + 1)]
            self._guard(turn.row, lambda t=turn, f=mine: walk(t, f))
        return [turn for turn in ruled if turn.judged is not None]

    def _figures(self, turn: Turn) -> list[Tensor]:
        assert turn.tree is not None
        assert turn.logits is not None
        assert turn.hidden is not None
        assert turn.block is not None
        probes, probed = turn.block.probes, turn.probed.get("verifier")
        return figures(turn.row, turn.tree, turn.logits, turn.hidden, turn.taps, self.record, probes, probed)

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
            self._guard(turn.row, lambda t=turn, s=timing: self._commit(t, s, begun))

    def _commit(self, turn: Turn, timing: Timing, begun: float) -> None:
        """Move the accepted path into the cache, emit its tokens, tell the drafter, record the round."""
        row, judged, hidden = turn.row, turn.judged, turn.hidden
        assert judged is not None
        assert hidden is not None
        assert row.trace is not None
        if judged.is_nan:
            raise NumericalError(
                "The target returned NaN instead of probabilities.",
                "Try another dtype; bfloat16 or float32 often helps.",
            )
        verdict = judged.verdict
        tokens = [*(judged.tokens[i] for i in verdict.path), verdict.bonus]
        kept, reason, spans_text = cut(row, tokens, self.models)
        root = row.committed[-1]
        path = verdict.path[:kept]
        self.models.target.commit(row.place, [0, *(node + 1 for node in path)])
        row.place.last_hidden = hidden[path[-1] + 1 if path else 0]
        row.committed.extend(tokens[:kept])
        if row.raw is not None:
            places = [0, *(node + 1 for node in verdict.path)][:kept]
            n_top = row.request.extras.logprobs or 0
            row.request.scores.extend(scored(row.raw[places], tokens[:kept], n_top, self.token_text))
        if not reason:
            emitted, top = tokens[:kept], judged.top_tokens
            outcome = Outcome(
                judged.tokens, judged.parents, verdict, emitted, root, top, row.plan, hidden, turn.taps,
                turn.probed.get("drafter"),
            )  # fmt: skip
            if not row.silenced:
                row.drafter.observe(row, outcome)
            tell(row, outcome)
            row.verifier.observe(row, outcome)
            if row.configured.grower is not None and row.plan.grower == row.configured.grower:
                row.configured.grower.observe(row, outcome)
            row.policy.observe(row, row.policy_state, outcome)
        record = record_round(row, judged, kept, spans_text, timing, self.token_text, self.record, begun)
        keep_round(row, record)
        if reason:
            self._end(row, FINISHED, reason)


def plan(row: Row, batch: Sequence[Row]) -> None:
    """Plan a row's round: no deeper than text, budget and the drafter's positions go on; it says how the tree grows."""
    planned = row.policy.plan(row, row.policy_state, batch)
    depth = max(0, min(planned.depth, row.remaining - 1, levels_left(row), planned.within(planned.depth)))
    row.plan = replace(planned, depth=depth, grower=planned.grower or row.configured.grower)


def propose_again(turn: Turn) -> None:
    """Propose for one row from a new state: a batch that failed may have left the old one half done."""
    row = turn.row
    row.place.scratch = 0
    let_go(row)
    row.state = prime(row, row.drafter, row.models)
    turn.tree = row.drafter.propose([row])[0]


def lay_out(turn: Turn, models: Models) -> None:
    """Put together what the target is to read."""
    assert turn.tree is not None
    turn.block = block_of(turn.row, turn.tree, models)


def segment(turn: Turn, models: Models) -> Segment:
    """The last committed token, the draft behind it, and what is probed."""
    assert turn.block is not None
    return turn.block.segment(turn.row, models)


def walk(turn: Turn, found: list[object]) -> None:
    """Follow the decision on the host. `found`: what `judging.figures` gave."""
    assert turn.tree is not None
    assert turn.block is not None
    sources = [probes.source for probes in turn.block.asked.values() for _ in range(len(probes))]
    turn.judged = Judged.of(turn.tree, found, turn.row.verifier, turn.row.uniform, sources)


def spans_of(rows: Iterable[Row]) -> list[Span]:
    """Forwards since the last call, of whichever models the rows use."""
    meters = {id(meter): meter for row in rows for meter in row.models.meters}
    return [span for meter in meters.values() for span in meter.take()]


def _raise(error: Exception) -> None:
    raise error
