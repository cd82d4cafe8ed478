"""Decoder that drafts the next round while the target verifies this one, on a second thread.

The phases are those of `DraftVerify`. While `verify` runs, the drafter continues after its own draft, on the assumption
that all of it is accepted and that the next token is the one it would draft itself. If the assumption holds, the next
round has its draft already; if not, that draft is discarded and a new one is made.

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
"""Lane of the second thread in the trace."""
USED, DISCARDED = "tokens drafted ahead, used", "tokens drafted ahead, discarded"
"""Names of the signals that each round records."""


@dataclass(frozen=True)
class DraftAhead(DecoderParams):
    """Draft the next round while the target verifies this one, assuming that it accepts the whole draft.

    Source: McDanel 2024, AMUSD, arXiv:2410.17375, §III; Liu et al. 2024, PEARL, arXiv:2408.11850, §4 (post-verify).
    """

    is_speculative: ClassVar[bool] = True

    def decoder(self, context: EngineContext) -> Decoder:
        """Create the decoder that runs all sequences that draft ahead."""
        return OverlappedDecoder(context)


@dataclass(frozen=True, slots=True)
class AheadDraft:
    """A draft for the next round, made before the verification of this one has ended.

    Attributes:
        text: all tokens of the sequence that the draft assumes.
        tree: draft that continues this text.
    """

    text: list[int]
    tree: DraftTree


class OverlappedDecoder(DraftVerify):
    """Decoder with the phases of `DraftVerify` and a second thread for the drafter."""

    isolates_errors: ClassVar[bool] = False

    def __init__(self, context: EngineContext) -> None:
        super().__init__(context)
        self.ahead: dict[int, AheadDraft] = {}  # by the sequence's id
        self.lane = ThreadPoolExecutor(1, thread_name_prefix="draft-ahead")
        self.drafting: Future[None] | None = None  # while the second thread drafts

    def change(self, row: Sequence, settings: Settings) -> None:
        """Apply new settings, and discard the draft that was made with other settings."""
        self.ahead.pop(id(row), None)
        super().change(row, settings)

    def close(self, row: Sequence) -> None:
        """Discard the sequence's draft for the next round, and release its drafter.

        This waits for the second thread first, which may still use the KV cache that is released.
        """
        if self.drafting is not None:
            self.drafting.result()
        self.ahead.pop(id(row), None)
        super().close(row)

    def draft(self, states: list[RoundState]) -> list[RoundState]:
        """Use the drafts whose assumption holds, and draft for the other sequences.

        Returns:
            Round states of the sequences that have a draft.
        """
        now, others = self.clock.mark(), list[RoundState]()
        for state in states:
            sequence, ahead = state.sequence, self.ahead.pop(id(state.sequence), None)
            if ahead is None:
                others.append(state)
                continue
            holds = ahead.text == sequence.committed and len(ahead.tree) <= sequence.state.plan.depth
            if holds:
                state.tree, state.drafting = ahead.tree, Drafting(now, now, (id(sequence),))
            else:
                others.append(state)
            sequence.report.signals[USED] = len(ahead.tree) if holds else 0
            sequence.report.signals[DISCARDED] = 0 if holds else len(ahead.tree) + 1
        super().draft(others)
        return [state for state in states if state.tree is not None]

    def verify(self, states: list[RoundState]) -> list[RoundState]:
        """Verify this round's drafts while the second thread drafts the next ones. Return when both have finished."""
        ahead = [state for state in states if self._can_draft_ahead(state)]
        if not ahead:
            return super().verify(states)
        self.drafting = self.lane.submit(self._draft_ahead, ahead)
        try:
            return super().verify(states)
        finally:
            self.drafting.result()
            self.drafting = None
            for state in ahead:
                if state.sequence.status in ENDED:  # by an error in this phase
                    self.ahead.pop(id(state.sequence), None)

    @staticmethod
    def _can_draft_ahead(state: RoundState) -> bool:
        sequence, tree = state.sequence, state.tree
        if tree is None or len(tree) == 0 or sequence.state.no_draft_reason or sequence.remaining <= len(tree) + 2:
            return False
        levels = sequence.drafter.max_levels(sequence)
        return levels is None or levels > len(tree) + sequence.state.plan.depth + 1

    def _draft_ahead(self, states: abc.Sequence[RoundState]) -> None:
        """Draft the next round of each sequence, on the second thread.

        A failure is logged, and that sequence drafts as usual in its next round.
        """
        for state in states:
            sequence, start = state.sequence, self.clock.mark()
            try:
                with torch.inference_mode():  # inference mode is set per thread
                    self.ahead[id(sequence)] = draft_ahead(state)
            except Exception:
                log.exception("nothing could be drafted ahead")
            sequence.report.other_work.append(("draft", start, self.clock.mark(), LANE))
            assert state.drafting is not None
            assert sequence.models.drafter is not None
            state.drafting.spans.extend(sequence.models.drafter.meter.take())


def draft_ahead(state: RoundState) -> AheadDraft:
    """Draft after the whole draft of a round and one more token, as if the target had accepted all of it."""
    sequence, tree = copy.copy(state.sequence), state.tree
    assert tree is not None
    sequence.committed = [*sequence.committed, *tree.tokens.tolist()]
    plan = dataclasses.replace(sequence.state.plan, depth=sequence.state.plan.depth + 1)
    sequence.state, sequence.report = dataclasses.replace(sequence.state, plan=plan), RoundReport()
    drafted = sequence.drafter.propose([sequence])[0]
    return AheadDraft([*sequence.committed, int(drafted.tokens[0])], without_first(drafted))


def without_first(tree: DraftTree) -> DraftTree:
    """Return a copy of a chain without its first token."""
    distributions = {} if tree.score is None else {"score": tree.score[1:]}
    if tree.q is not None and tree.child_q_rows is not None:
        rows = tree.child_q_rows
        distributions |= {"q": tree.q[1:], "child_q_rows": torch.where(rows > 0, rows - 1, rows)[1:]}
    return dataclasses.replace(
        tree,
        tokens=tree.tokens[1:],
        parents=tree.parents[1:] - 1,
        logq=tree.logq[1:],
        depth=tree.depth - 1,
        **distributions,
    )
