"""A toy for teaching: a schedule that drafts the next round on its likeliest outcome while this one is being verified.

    WORKBENCH_METHODS=tests/toys/drafting_ahead.py

It shows what another schedule takes: the phases of `DraftVerify`, called in another order.
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
    """Draft and verify at once: the next draft is made on the outcome that the drafter thinks likeliest.

    That outcome is: all is accepted, and the target's own token is the one the drafter would have drafted. Where it
    comes true the next round has its draft already; where not, the draft is thrown away and made anew.

    Source: McDanel 2024, AMUSD, arXiv:2410.17375, and Liu et al. 2024, PEARL, arXiv:2408.11850, overlap both models on
    two devices. Here they share one, in two threads: the toy shows the schedule, and no speed.
    """

    is_speculative: ClassVar[bool] = True

    def decoder(self, context: EngineContext) -> Decoder:
        """One for all rows."""
        return Ahead(context)


@dataclass(frozen=True)
class Guess:
    """A draft behind a prefix that was assumed."""

    prefix: list[int]
    tree: DraftTree


class Ahead(DraftVerify):
    """The phases of drafting and verifying, with a second lane for the drafter."""

    isolates_errors: ClassVar[bool] = False

    def __init__(self, context: EngineContext) -> None:
        super().__init__(context)
        self.guesses: dict[int, Guess] = {}  # by the row's id
        self.is_guessing = False

    def change(self, row: Sequence, settings: Settings) -> None:
        """What was drafted with other settings is no use."""
        self.guesses.pop(id(row), None)
        super().change(row, settings)

    def close(self, row: Sequence) -> None:
        """The row's next round will not come."""
        self.guesses.pop(id(row), None)
        super().close(row)

    def draft(self, turns: list[RoundState]) -> list[RoundState]:
        """Take the drafts that came true, and draft for the others."""
        now, without = self.clock.mark(), []
        for state in turns:
            guess = self.guesses.pop(id(state.sequence), None)
            fits = (
                guess is not None
                and guess.prefix == state.sequence.committed
                and len(guess.tree) <= state.sequence.state.plan.depth
            )
            if guess is not None and fits:
                state.tree, state.drafting = guess.tree, Drafting(now, now, (id(state.sequence),))
            else:
                without.append(state)
            if guess is not None:
                state.sequence.report.signals["drafted ahead and used"] = len(guess.tree) if fits else 0
                state.sequence.report.signals["drafted ahead and thrown away"] = 0 if fits else len(guess.tree) + 1
        super().draft(without)
        return [state for state in turns if state.tree is not None]

    def verify(self, turns: list[RoundState]) -> list[RoundState]:
        """The target reads this round's drafts while the drafter, in a thread beside it, makes the next ones.

        The phase ends when both have: the round goes on with what the slower one gives.
        """
        ahead = [state for state in turns if self._can_guess(state)]
        if self.is_guessing or not ahead:
            return super().verify(turns)
        begun = threading.Event()
        drafter = threading.Thread(target=self._guess, args=(ahead, begun), daemon=True)
        self.is_guessing = True
        drafter.start()
        begun.wait()
        try:
            return super().verify(turns)
        finally:
            drafter.join()
            self.is_guessing = False
            for state in ahead:
                if state.sequence.status in ENDED:  # meanwhile, with an error
                    self.guesses.pop(id(state.sequence), None)

    @staticmethod
    def _can_guess(state: RoundState) -> bool:
        row, tree = state.sequence, state.tree
        if tree is None or len(tree) == 0 or row.state.no_draft_reason or row.remaining <= len(tree) + 2:
            return False
        left = row.drafter.max_levels(row)
        return left is None or left > len(tree) + row.state.plan.depth + 1

    def _guess(self, turns: abc.Sequence[RoundState], begun: threading.Event) -> None:
        for state in turns:
            row, start = state.sequence, self.clock.mark()
            begun.set()
            try:
                with torch.inference_mode():  # which is a thread's own
                    self.guesses[id(row)] = guess(state)
            except Exception:  # the next round drafts for itself
                log.exception("nothing could be drafted ahead")
            row.report.other_work.append(("draft", start, self.clock.mark(), LANE))
            assert state.drafting is not None
            assert row.models.drafter is not None
            state.drafting.spans.extend(row.models.drafter.meter.take())


def guess(state: RoundState) -> Guess:
    """Draft behind the whole draft and one token more, as if the row had got so far."""
    row, tree = copy.copy(state.sequence), state.tree
    assert tree is not None
    row.committed = [*row.committed, *tree.tokens.tolist()]
    plan = dataclasses.replace(row.state.plan, depth=row.state.plan.depth + 1)
    row.state, row.report = dataclasses.replace(row.state, plan=plan), RoundReport()
    found = row.drafter.propose([row])[0]
    return Guess([*row.committed, int(found.tokens[0])], behind_the_first(found))


def behind_the_first(tree: DraftTree) -> DraftTree:
    """A chain without its first token, which is committed."""
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
    summary="While the target checks, the drafter need not wait; what it bets on wrongly is thrown away.",
    idea=(
        "A toy that shows another order of the phases: the drafter goes on behind its own draft while the target "
        "verifies it, and starts anew where the target decides otherwise."
    ),
    differences=("Both models share one device and take time from each other: it shows the order, not the speed.",),
    drafter=DraftModel(),
    verifier=Lossless(),
    policies=(Fixed(depth=3),),
    decoder_params=DraftingAhead(),
)
