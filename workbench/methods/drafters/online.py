"""OSD: a draft model that goes on learning while it drafts, from the places where the target proved it wrong."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from jaxtyping import Float
from torch import Tensor

from workbench.core.params import param
from workbench.core.tree import DraftTree
from workbench.engine.feedback import Outcome
from workbench.engine.online_layers import Pupil
from workbench.engine.online_weights import MOST_LESSONS, Learnt
from workbench.engine.parts import Drafter
from workbench.engine.request import Row
from workbench.kernels.segment import Slot
from workbench.methods.drafters.catching_up import keep_chain, reach_of, read_committed, unread
from workbench.methods.drafters.skipping import Thinned
from workbench.methods.drafters.warmth import WARM, warmth
from workbench.methods.growers.chain import draft_chain
from workbench.models.loading import Models

REJECTED, ALL = "rejected", "all"
MOST_PLACES = 64
"""That a lesson is about: the newest of those that wait for it."""


class Lessons(Learnt[Pupil]):
    """What a row has of a pupil: its place in the cache, and the places that wait for a lesson.

    Attributes:
        slot: the row in the draft model's cache.
        wrong: (index of a committed token, what the target's LM head read before it), oldest first.
        rounds: with such a place, since the last lesson.
    """

    def __init__(self, pupil: Pupil, slot: Slot, shared: bool) -> None:
        super().__init__(pupil, shared)
        self.slot = slot
        self.wrong: list[tuple[int, Float[Tensor, " D"]]] = []
        self.rounds = 0


@dataclass(frozen=True)
class Online(Drafter):
    """Draft with a draft model whose layers learn, every few rounds, what the target said where they were wrong.

    The law p at a rejected place is at hand: verification has just computed it. A lesson is one step of AdamW on the
    mean of D(p ‖ q) over the places that were collected. Whatever the weights become, drafts carry the law they were
    drawn from, and the output is the target's. Entries that the cache got before a lesson stay as they are: to read a
    text again after each would cost more than it gains.

    Source: Liu et al. 2024, Online speculative decoding, arXiv:2310.07177, §4 (the buffer and the update).
    """

    needs: ClassVar[tuple[str, ...]] = ("drafter",)
    source: ClassVar[str] = "online"
    every: int = param(2, ge=1, le=100_000, doc="rounds with training data between two training steps")
    rate: float = param(3e-4, ge=0.0, le=0.1, doc="learning rate of AdamW")
    places: str = param(
        ALL, choices=(REJECTED, ALL), doc=("positions to train on: those where a draft was rejected, or all")
    )
    reads: int = param(128, ge=8, le=512, doc="newest tokens of the text that a training step reads")
    warm: bool = warmth("what was learnt")

    def notice(self) -> str:
        """Warm drafts depend on other runs."""
        return WARM if self.warm else ""

    def memory(self) -> Hashable:
        """The pupil, however often it is taught."""
        return "online", self.warm

    def prime(self, row: Row, models: Models) -> Lessons:
        """A pupil that knows what the draft model knows; with `warm` the one that earlier runs taught."""
        assert models.drafter is not None
        key = ("online", models.drafter_name)
        pupil = models.shared.get(key) if self.warm else None
        if pupil is None or pupil.runner is not models.drafter:
            pupil = Pupil(models.drafter)
            if self.warm:
                models.shared[key] = pupil
        return Lessons(pupil, read_committed(row, models), self.warm)

    def reach(self, row: Row) -> int:
        """As far as the draft model has positions."""
        return reach_of(row, row.state.slot)

    def propose(self, rows: Sequence[Row]) -> list[DraftTree]:
        """Chains, one row after the other: each has a pupil of its own."""
        return [tree for row in rows for tree in row.drafter.draft(row)]

    def draft(self, row: Row) -> list[DraftTree]:
        """A chain."""
        if row.state.learner.runner is not row.models.drafter:  # another draft model since
            self.release(row, row.models)
            row.state = self.prime(row, row.models)
        state: Lessons = row.state
        feed = unread(row, row.models, state.slot)
        row.signals["lessons"] = state.learner.lessons
        if state.learner.lessons:
            row.signals["loss of the last lesson, nats"] = state.learner.loss
        speaker = Thinned(state.learner.runner, twin=state.learner.twin)
        return draft_chain([row], speaker, [state.slot], [feed], self.source)

    def observe(self, row: Row, outcome: Outcome) -> None:
        """Keep what was read and accepted, note the places to learn from, and give a lesson when it is time."""
        state: Lessons = row.state
        keep_chain(row, state.slot, outcome)
        if row.images is not None or not isinstance(row.drafter, Online):
            return
        found = list(self.noted(row, outcome))
        state.wrong = [*state.wrong, *found][-MOST_PLACES:]
        state.rounds += bool(found)
        if state.rounds >= self.every and self.rate and state.learner.lessons < MOST_LESSONS:
            self.teach(row, state)

    def noted(self, row: Row, outcome: Outcome) -> Iterator[tuple[int, Float[Tensor, " D"]]]:
        """(index of the committed token, what the target's LM head read before it) of the round's places."""
        if outcome.hidden is None or not outcome.tokens:
            return
        path = outcome.verdict.path
        first = len(row.committed) - len(outcome.emitted)
        for i, at in enumerate(outcome.places):
            is_wrong = i == len(path) and at - 1 in outcome.parents  # a draft hung there, and none was kept
            if is_wrong or self.places == ALL:
                yield first + i, outcome.hidden[at]

    def teach(self, row: Row, state: Lessons) -> None:
        """One lesson about the places that are still within reach of what it reads again."""
        begin = max(0, len(row.committed) - 1 - self.reads)
        about = [(i, hidden) for i, hidden in state.wrong if i > begin]
        state.wrong, state.rounds = [], 0
        if not about:
            return
        head = row.models.target.lm_head
        laws = head.forward(torch.stack([hidden for _, hidden in about])).float().softmax(1)
        state.learner.learn(row.committed[begin:-1], begin, [i - 1 - begin for i, _ in about], laws, self.rate)

    def release(self, row: Row, models: Models) -> None:
        """Give the cache row back."""
        if row.state is not None:
            row.state.learner.runner.close(row.state.slot)
