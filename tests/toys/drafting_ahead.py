"""A toy for teaching: draft the next round for the most likely outcome while this round is being verified.

    WORKBENCH_METHODS=tests/toys/drafting_ahead.py

It shows how to write another schedule: the phases of `DraftVerify`, called in another order.
"""

from __future__ import annotations

import copy
import dataclasses
import logging
import threading
from collections import abc
from dataclasses import dataclass
from typing import ClassVar

import torch

from workbench.core.tree import DraftTree
from workbench.decoders import Method, Promise, Source
from workbench.decoders.decoder_params import DecoderParams
from workbench.decoders.draft_verify.decoder import DraftVerify
from workbench.decoders.draft_verify.round_state import RoundState
from workbench.engine import Sequence
from workbench.engine.decoder import Decoder, EngineContext
from workbench.engine.request import ENDED, RoundReport
from workbench.engine.round_timing import Drafting
from workbench.engine.settings import Settings
from workbench.methods.drafters.draft_model import DraftModel
from workbench.methods.policies.fixed import Fixed
from workbench.methods.verifiers.lossless import Lossless

log = logging.getLogger(__name__)
LANE = "drafter"


@dataclass(frozen=True)
class DraftingAhead(DecoderParams):
    """Draft and verify at the same time: the next draft assumes the outcome that the drafter finds most likely.

    This outcome is: all drafts are accepted, and the next token is the one that the drafter would have drafted. If it
    comes true, the next round already has its draft; otherwise the draft is discarded and a new one is made.

    Source: McDanel 2024, AMUSD, arXiv:2410.17375, and Liu et al. 2024, PEARL, arXiv:2408.11850, overlap both models on
    two devices. Here two threads share one device: the toy shows the schedule, not the speed.
    """

    is_speculative: ClassVar[bool] = True

    def decoder(self, context: EngineContext) -> Decoder:
        """Return a decoder for all sequences."""
        return DraftAheadDecoder(context)


@dataclass(frozen=True)
class DraftAhead:
    """A draft after an assumed prefix."""

    prefix: list[int]
    tree: DraftTree


class DraftAheadDecoder(DraftVerify):
    """Drafting and verification phases with a second lane for the drafter."""

    isolates_errors: ClassVar[bool] = False

    def __init__(self, context: EngineContext) -> None:
        super().__init__(context)
        self.guesses: dict[int, DraftAhead] = {}  # by id of the sequence
        self.is_guessing = False

    def change(self, row: Sequence, settings: Settings) -> None:
        """Drop the next draft, which was made with other settings."""
        self.guesses.pop(id(row), None)
        super().change(row, settings)

    def close(self, row: Sequence) -> None:
        """Drop the next draft, which will not be needed."""
        self.guesses.pop(id(row), None)
        super().close(row)

    def draft(self, states: list[RoundState]) -> list[RoundState]:
        """Use the next drafts whose assumption came true, and draft for the other sequences."""
        now, without = self.clock.mark(), []
        for state in states:
            ahead = self.guesses.pop(id(state.sequence), None)
            fits = (
                ahead is not None
                and ahead.prefix == state.sequence.committed
                and len(ahead.tree) <= state.sequence.state.plan.depth
            )
            if ahead is not None and fits:
                state.tree, state.drafting = ahead.tree, Drafting(now, now, (id(state.sequence),))
            else:
                without.append(state)
            if ahead is not None:
                state.sequence.report.signals["drafted ahead and used"] = len(ahead.tree) if fits else 0
                state.sequence.report.signals["drafted ahead and discarded"] = 0 if fits else len(ahead.tree) + 1
        super().draft(without)
        return [state for state in states if state.tree is not None]

    def verify(self, states: list[RoundState]) -> list[RoundState]:
        """Let the target verify this round's drafts while the drafter makes the next ones in a thread.

        The phase ends when both have finished, so the slower one determines its duration.
        """
        ahead = [state for state in states if self._can_guess(state)]
        if self.is_guessing or not ahead:
            return super().verify(states)
        begun = threading.Event()
        drafter = threading.Thread(target=self._guess, args=(ahead, begun), daemon=True)
        self.is_guessing = True
        drafter.start()
        begun.wait()
        try:
            return super().verify(states)
        finally:
            drafter.join()
            self.is_guessing = False
            for state in ahead:
                if state.sequence.status in ENDED:  # ended by an error meanwhile
                    self.guesses.pop(id(state.sequence), None)

    @staticmethod
    def _can_guess(state: RoundState) -> bool:
        row, tree = state.sequence, state.tree
        if tree is None or len(tree) == 0 or row.state.no_draft_reason or row.remaining <= len(tree) + 2:
            return False
        left = row.drafter.max_levels(row)
        return left is None or left > len(tree) + row.state.plan.depth + 1

    def _guess(self, states: abc.Sequence[RoundState], begun: threading.Event) -> None:
        for state in states:
            row, start = state.sequence, self.clock.mark()
            begun.set()
            try:
                with torch.inference_mode():  # inference mode is per thread
                    self.guesses[id(row)] = draft_ahead(state)
            except Exception:  # the next round makes its own draft
                log.exception("the next draft could not be made ahead")
            row.report.other_work.append(("draft", start, self.clock.mark(), LANE))
            assert state.drafting is not None
            assert row.models.drafter is not None
            state.drafting.spans.extend(row.models.drafter.meter.take())


def draft_ahead(state: RoundState) -> DraftAhead:
    """Draft after the whole draft and one more token, as if the sequence contained them."""
    row, tree = copy.copy(state.sequence), state.tree
    assert tree is not None
    row.committed = [*row.committed, *tree.tokens.tolist()]
    plan = dataclasses.replace(row.state.plan, depth=row.state.plan.depth + 1)
    row.state, row.report = dataclasses.replace(row.state, plan=plan), RoundReport()
    found = row.drafter.propose([row])[0]
    return DraftAhead([*row.committed, int(found.tokens[0])], without_first_token(found))


def without_first_token(tree: DraftTree) -> DraftTree:
    """Return a chain without its first token, which is committed."""
    distributions = {} if tree.score is None else {"score": tree.score[1:]}
    if tree.q is not None and tree.child_q_rows is not None:
        distributions |= {
            "q": tree.q[1:],
            "child_q_rows": torch.where(tree.child_q_rows > 0, tree.child_q_rows - 1, tree.child_q_rows)[1:],
        }
    return dataclasses.replace(
        tree,
        tokens=tree.tokens[1:],
        parents=tree.parents[1:] - 1,
        logq=tree.logq[1:],
        depth=tree.depth - 1,
        **distributions,
    )


METHOD = Method(
    "drafting-ahead",
    title="Drafting ahead (a toy)",
    promise=Promise.EXACT,
    source=Source(
        "AMUSD: asynchronous multi-device speculative decoding", "McDanel", 2024, "https://arxiv.org/abs/2410.17375"
    ),
    summary="The drafter does not wait for verification; a draft for the wrong outcome is discarded.",
    idea=(
        "A toy that shows another order of the phases: the drafter continues after its own draft while the target "
        "verifies it, and starts again if the target decides otherwise."
    ),
    differences=("Both models share one device and slow each other down: the toy shows the order, not the speed.",),
    drafter=DraftModel(),
    verifier=Lossless(),
    policies=(Fixed(depth=3),),
    decoder_params=DraftingAhead(),
)
