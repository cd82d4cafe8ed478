"""Jacobi decoding: guess a block of tokens, let the target correct all of it at once, and draft the corrections."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, field, replace
from typing import ClassVar

import torch

from workbench.core.transfer import to_device
from workbench.core.tree import DraftTree, Sampling
from workbench.core.tree_explanation import TreeBuilderRule, TreeExplanation
from workbench.decoders.draft_verify.parts import Drafter, Plan, RoundFeedback
from workbench.engine.request import Sequence
from workbench.methods.common.random_tokens import sample_from_text
from workbench.models.loading import Models

ITERATED = TreeBuilderRule(
    "jacobi",
    "Guess of the last iteration",
    "The target's token at this position in the last round, after guesses that may have been wrong. If the target has "
    "not predicted one yet: a random token of the text.",
    "number of iterations in which this guess did not change",
)


@dataclass(slots=True)
class Iterate:
    """Jacobi iterate: guesses at the next tokens, the nearest first.

    Attributes:
        tokens: guesses y(1) … y(n).
        stood: for each guess, the number of most recent iterations in which it did not change.
        drafted: number of guesses drafted in the current round.
    """

    tokens: list[int] = field(default_factory=list[int])
    stood: list[int] = field(default_factory=list[int])
    drafted: int = 0

    def step(self, predictions: list[int], emitted: int) -> None:
        """Apply one Jacobi iteration: y(i) ← the target's token after y(1) … y(i − 1).

        Drop guesses that are now committed.

        Args:
            predictions: the target's most likely tokens after the last committed token and after each drafted guess.
            emitted: number of tokens emitted in the round.
        """
        unchanged = [  # zip stops after the guesses that the target has processed
            rounds + 1 if old == new else 0
            for old, new, rounds in zip(self.tokens, predictions, self.stood, strict=False)
        ]
        last = [0] * (len(predictions) - len(unchanged))  # the target also predicted a token after the last guess
        self.stood = [*unchanged, *last, *self.stood[len(predictions) :]][emitted:]
        self.tokens = [*predictions, *self.tokens[len(predictions) :]][emitted:]


@dataclass(frozen=True)
class Jacobi(Drafter):
    """Draft a block of guesses. The target's prediction at each position of the block is the next round's guess.

    If all guesses before a position are right, the target's prediction for it is right too, and is accepted in the next
    round. So a block of K tokens takes at most K rounds, and fewer if a guess is right although an earlier guess of the
    block was wrong. The block begins after the newest token in every round; its new positions start with random tokens
    of the text. The guesses are the target's most likely tokens at any temperature.

    Source: Santilli et al. 2023, Accelerating transformer inference for translation via parallel decoding,
    arXiv:2305.10427, §3.2 (Jacobi and Gauss–Seidel–Jacobi decoding).
    """

    reuses_logits: ClassVar[bool] = True

    def siblings(self) -> frozenset[Sampling]:
        """Return how sibling nodes are chosen: deterministically, as the target's most likely tokens."""
        return frozenset({Sampling.DETERMINISTIC})

    def state_key(self) -> Hashable:
        """Return the cache key under which later drafters find the guesses.

        It contains no parameter, because guesses depend on none.
        """
        return "jacobi"

    def init_state(self, sequence: Sequence, models: Models) -> Iterate:
        """Return a drafting state without guesses, because the first round draws them."""
        return Iterate()

    def propose_one(self, sequence: Sequence, plan: Plan) -> DraftTree:
        """Draft the current guesses, filled up to the planned draft length with random tokens of the text."""
        state: Iterate = sequence.state.drafter
        state.drafted = plan.limit_nodes(plan.depth)
        new = sample_from_text(sequence, max(0, state.drafted - len(state.tokens)))
        state.tokens, state.stood = [*state.tokens, *new], [*state.stood, *([0] * len(new))]
        unchanged, device = state.stood[: state.drafted], sequence.models.target.device
        sequence.report.signals |= {"unchanged guesses": sum(map(bool, unchanged)), "new random guesses": len(new)}
        tree = DraftTree.chain(state.tokens[: state.drafted], source="jacobi", device=device)
        return replace(
            tree, explanation=TreeExplanation((ITERATED,), before=to_device(unchanged, device, torch.float32))
        )

    def observe(self, sequence: Sequence, feedback: RoundFeedback) -> None:
        """Apply the next Jacobi iteration to the guesses.

        If another drafter drafted in this round, only drop guesses whose positions are committed.
        """
        state: Iterate = sequence.state.drafter
        predictions = [top[0] for top in feedback.top_tokens] if state.drafted == len(feedback.tokens) else []
        state.step(predictions, len(feedback.emitted))
        state.drafted = 0
