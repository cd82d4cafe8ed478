"""Decoder that drafts the next round on a second thread while the target verifies the current round.

The phases are those of `DraftVerify`. While `verify` runs, the drafter continues after its draft. It assumes that the
whole draft is accepted, and that the next token is the one that it would draft. If the assumption holds, the next round
already has its draft; if not, that draft is discarded and a new one is made.

    device   ─ verify round 1 ─┬─ verify round 2 ─┬─ draft ─┬─ verify round 3
    drafter    draft round 2   │    draft round 3 │         │    draft round 4
                               └ assumption holds └ it fails
"""

from __future__ import annotations

import copy
import dataclasses
import logging
from collections import abc
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import ClassVar

import torch

from workbench.core.tree import DraftTree
from workbench.decoders.decoder_params import DecoderParams
from workbench.decoders.draft_verify.decoder import DraftVerify
from workbench.decoders.draft_verify.round_state import RoundState
from workbench.engine.decoder import Decoder, EngineContext
from workbench.engine.request import ENDED, RoundReport, Sequence
from workbench.engine.round_timing import Drafting
from workbench.engine.settings import Settings

log = logging.getLogger(__name__)

LANE = "drafter"
"""Row of the second thread in a trace's timeline."""
USED, DISCARDED = "tokens drafted ahead, used", "tokens drafted ahead, discarded"
"""Names of two signals in a round's trace: numbers of tokens drafted ahead that were used and discarded."""


@dataclass(frozen=True)
class DraftAhead(DecoderParams):
    """Draft the next round while the target verifies the current draft, assuming that the whole draft is accepted.

    Source: McDanel 2024, AMUSD, arXiv:2410.17375, §III; Liu et al. 2024, PEARL, arXiv:2408.11850, §4 (post-verify).
    """

    is_speculative: ClassVar[bool] = True

    def decoder(self, context: EngineContext) -> Decoder:
        """Create the decoder for all sequences whose method drafts during verification."""
        return OverlappedDecoder(context)


@dataclass(frozen=True, slots=True)
class AheadDraft:
    """A draft for the next round, made before the verification of the current round has ended.

    Attributes:
        text: committed tokens of the sequence, and the tokens after them that the draft assumes to be accepted.
        tree: draft that continues these tokens.
    """

    text: list[int]
    tree: DraftTree


class OverlappedDecoder(DraftVerify):
    """Draft-and-verify decoder with a second thread, on which the drafter drafts ahead."""

    isolates_errors: ClassVar[bool] = False

    def __init__(self, context: EngineContext) -> None:
        super().__init__(context)
        self.ahead: dict[int, AheadDraft] = {}  # by the sequence's id
        self.lane = ThreadPoolExecutor(1, thread_name_prefix="draft-ahead")
        self.drafting: Future[None] | None = None  # while the second thread drafts

    def change(self, sequence: Sequence, settings: Settings) -> None:
        """Apply new settings of a sequence, and discard the draft that was made ahead with the old settings."""
        self.ahead.pop(id(sequence), None)
        super().change(sequence, settings)

    def close(self, sequence: Sequence) -> None:
        """Discard the draft made ahead for a sequence, and release its drafter.

        The second thread may still use the KV cache of the drafter, so this first waits for it.
        """
        if self.drafting is not None:
            self.drafting.result()
        self.ahead.pop(id(sequence), None)
        super().close(sequence)

    def draft(self, rounds: list[RoundState]) -> list[RoundState]:
        """Use the draft made ahead for a sequence if the target accepted what it assumed; otherwise draft again.

        Returns:
            Rounds of the sequences that now have a draft.
        """
        now = self.clock.mark()
        for r in rounds:
            sequence, ahead = r.sequence, self.ahead.pop(id(r.sequence), None)
            if ahead is None:
                continue
            holds = ahead.text == sequence.committed and len(ahead.tree) <= sequence.state.plan.depth
            if holds:
                r.tree, r.drafting = ahead.tree, Drafting(now, now, (id(sequence),))
            sequence.report.signals[USED] = len(ahead.tree) if holds else 0
            sequence.report.signals[DISCARDED] = 0 if holds else len(ahead.tree) + 1
        return super().draft(rounds)

    def verify(self, rounds: list[RoundState]) -> list[RoundState]:
        """Verify the drafts of this round while the second thread drafts the next round. Return when both are done."""
        ahead = [r for r in rounds if self._can_draft_ahead(r)]
        if not ahead:
            return super().verify(rounds)
        self.drafting = self.lane.submit(self._draft_ahead, ahead)
        try:
            return super().verify(rounds)
        finally:
            self.drafting.result()
            self.drafting = None
            for r in ahead:
                if r.sequence.status in ENDED:  # by an error in this phase
                    self.ahead.pop(id(r.sequence), None)

    @staticmethod
    def _can_draft_ahead(r: RoundState) -> bool:
        sequence, tree = r.sequence, r.tree
        if tree is None or len(tree) == 0 or sequence.state.no_draft_reason or sequence.remaining <= len(tree) + 2:
            return False
        levels = sequence.drafter.max_levels(sequence)
        return levels is None or levels > len(tree) + sequence.state.plan.depth + 1

    def _draft_ahead(self, rounds: abc.Sequence[RoundState]) -> None:
        """Draft the next round of each sequence, on the second thread.

        If drafting fails, the error is logged, and the sequence is drafted without overlap in its next round.
        """
        for r in rounds:
            sequence, start = r.sequence, self.clock.mark()
            try:
                with torch.inference_mode():  # inference mode is set per thread
                    self.ahead[id(sequence)] = draft_ahead(r)
            except Exception:
                log.exception("no token could be drafted ahead during verification")
            sequence.report.other_work.append(("draft", start, self.clock.mark(), LANE))
            assert r.drafting is not None
            assert sequence.models.drafter is not None
            r.drafting.spans.extend(sequence.models.drafter.meter.take())


def draft_ahead(r: RoundState) -> AheadDraft:
    """Draft the next round as if the target had accepted the whole current draft and one more drafted token."""
    sequence, tree = copy.copy(r.sequence), r.tree
    assert tree is not None
    sequence.committed = [*sequence.committed, *tree.tokens.tolist()]
    plan = dataclasses.replace(sequence.state.plan, depth=sequence.state.plan.depth + 1)
    sequence.state, sequence.report = dataclasses.replace(sequence.state, plan=plan), RoundReport()
    drafted = sequence.drafter.propose([sequence])[0]
    return AheadDraft([*sequence.committed, int(drafted.tokens[0])], without_first(drafted))


def without_first(tree: DraftTree) -> DraftTree:
    """Return a copy of a drafted chain without its first token."""
    distributions = {} if tree.score is None else {"score": tree.score[1:]}
    if tree.q is not None and tree.child_q_rows is not None:
        at = tree.child_q_rows
        distributions |= {"q": tree.q[1:], "child_q_rows": torch.where(at > 0, at - 1, at)[1:]}
    return dataclasses.replace(
        tree,
        tokens=tree.tokens[1:],
        parents=tree.parents[1:] - 1,
        logq=tree.logq[1:],
        depth=tree.depth - 1,
        **distributions,
    )
