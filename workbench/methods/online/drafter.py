"""OSD: train the draft model while it drafts, on the target's distributions at verified positions."""

from __future__ import annotations

from collections import abc
from collections.abc import Hashable, Iterator
from dataclasses import dataclass
from typing import ClassVar, cast

import torch
from jaxtyping import Float
from torch import Tensor

from workbench.core.params import param
from workbench.core.tree import DraftTree
from workbench.decoders.draft_verify.online_layers import TrainableLayers
from workbench.decoders.draft_verify.online_weights import MAX_STEPS, TrainedState
from workbench.decoders.draft_verify.parts import Drafter, RoundFeedback
from workbench.engine.request import Sequence
from workbench.kernels.segment import Slot
from workbench.methods.common.draft_model_cache import (
    keep_accepted_chain,
    max_draft_depth,
    open_prefilled_slot,
    uncached_tokens,
)
from workbench.methods.common.layer_skipping import ReducedTarget
from workbench.methods.common.warm_start import WARM_NOTICE, warm_param
from workbench.methods.tree_builders.chain import draft_chain
from workbench.models.loading import Models

REJECTED, ALL = "rejected", "all"
MAX_POSITIONS = 64
"""Maximum number of text positions in one online training step. If there are more, the newest ones are used."""


class OnlineTraining(TrainedState[TrainableLayers]):
    """Online-training state of a sequence: its KV cache slot, and the positions that wait for a training step.

    Attributes:
        slot: slot of the draft model's KV cache.
        pending: positions to train on, the oldest first: (index of a committed token, the target's LM head input that
            predicts it).
        rounds: number of rounds with training positions since the last training step.
    """

    def __init__(self, trainable: TrainableLayers, slot: Slot, shared: bool) -> None:
        super().__init__(trainable, shared)
        self.slot = slot
        self.pending: list[tuple[int, Float[Tensor, " D"]]] = []
        self.rounds = 0


@dataclass(frozen=True)
class Online(Drafter):
    """Draft with a draft model whose layers are trained every few rounds on the target's distributions.

    Verification has already computed the target's distribution p at every position. A training step is one step of
    AdamW on the mean of D(p ‖ q) over the collected positions, where q is the draft model's distribution. The verifier
    gets the distribution from which each draft was drawn, so the output follows the target's distribution whatever the
    weights are. KV cache entries from before a training step are not computed again, because that would cost more than
    it gains.

    Source: Liu et al. 2024, Online speculative decoding, arXiv:2310.07177, §4 (the buffer and the update).
    """

    needs: ClassVar[tuple[str, ...]] = ("drafter",)
    source: ClassVar[str] = "online"
    every: int = param(2, ge=1, le=100_000, doc="number of rounds with training data between two training steps")
    rate: float = param(3e-4, ge=0.0, le=0.1, doc="learning rate of AdamW")
    places: str = param(
        ALL,
        choices=(REJECTED, ALL),
        doc=("positions to train on: those where a draft was rejected, or all verified positions"),
    )
    reads: int = param(128, ge=8, le=512, doc="number of newest tokens read in each training step")
    warm: bool = warm_param("the trained weights")

    def notice(self) -> str:
        """Return a note for the user if drafts depend on earlier runs (`warm`), else ""."""
        return WARM_NOTICE if self.warm else ""

    def state_key(self) -> Hashable:
        """Return the cache key under which later drafters find the trained layers.

        The key does not depend on the training schedule.
        """
        return "online", self.warm

    def init_state(self, sequence: Sequence, models: Models) -> OnlineTraining:
        """Return a state with a new copy of the draft model's layers; with `warm`, the copy of earlier runs."""
        assert models.drafter is not None
        key = ("online", models.drafter_name)
        trainable = models.shared.get(key) if self.warm else None
        if trainable is None or trainable.runner is not models.drafter:
            trainable = TrainableLayers(models.drafter)
            if self.warm:
                models.shared[key] = trainable
        return OnlineTraining(trainable, open_prefilled_slot(sequence, models), self.warm)

    def max_levels(self, sequence: Sequence) -> int:
        """Return the number of draft levels that fit into the draft model's context."""
        return max_draft_depth(sequence, sequence.state.drafter.slot)

    def propose(self, sequences: abc.Sequence[Sequence]) -> list[DraftTree]:
        """Draft chains, one sequence after the other, because each sequence has its own trained copy of the layers."""
        return [tree for sequence in sequences for tree in cast(Online, sequence.drafter).draft(sequence)]

    def draft(self, sequence: Sequence) -> list[DraftTree]:
        """Draft a chain for one sequence, and return it as the only item of a list."""
        if sequence.state.drafter.trainable.runner is not sequence.models.drafter:  # the draft model was changed
            self.release(sequence, sequence.models)
            sequence.state.drafter = self.init_state(sequence, sequence.models)
        state: OnlineTraining = sequence.state.drafter
        feed = uncached_tokens(sequence, sequence.models, state.slot)
        sequence.report.signals["training steps"] = state.trainable.n_steps
        if state.trainable.n_steps:
            sequence.report.signals["loss of the last training step, nats"] = state.trainable.loss
        trained_model = ReducedTarget(state.trainable.runner, shared_copy=state.trainable.shared_copy)
        return draft_chain([sequence], trained_model, [state.slot], [feed], self.source)

    def observe(self, sequence: Sequence, feedback: RoundFeedback) -> None:
        """Retain KV cache entries of accepted tokens, collect training positions, and run a training step when due."""
        state: OnlineTraining = sequence.state.drafter
        keep_accepted_chain(sequence, state.slot, feedback)
        if sequence.image_inputs is not None or not isinstance(sequence.drafter, Online):
            return
        positions = list(self.training_positions(sequence, feedback))
        state.pending = [*state.pending, *positions][-MAX_POSITIONS:]
        state.rounds += bool(positions)
        if state.rounds >= self.every and self.rate and state.trainable.n_steps < MAX_STEPS:
            self.train_on(sequence, state)

    def training_positions(
        self, sequence: Sequence, feedback: RoundFeedback
    ) -> Iterator[tuple[int, Float[Tensor, " D"]]]:
        """Yield (index of a committed token, the LM head input of the target that predicts it) for this round."""
        if feedback.hidden is None or not feedback.tokens:
            return
        path = feedback.result.path
        first = len(sequence.committed) - len(feedback.emitted)
        for i, at in enumerate(feedback.path_indices):
            # this position had drafts after it, and none was accepted
            is_wrong = i == len(path) and at - 1 in feedback.parents
            if is_wrong or self.places == ALL:
                yield first + i, feedback.hidden[at]

    def train_on(self, sequence: Sequence, state: OnlineTraining) -> None:
        """Run an online training step of the draft model on the positions among the newest `reads` tokens."""
        begin = max(0, len(sequence.committed) - 1 - self.reads)
        recent = [(i, hidden) for i, hidden in state.pending if i > begin]
        state.pending, state.rounds = [], 0
        if not recent:
            return
        head = sequence.models.target.lm_head
        distributions = head.forward(torch.stack([hidden for _, hidden in recent])).float().softmax(1)
        state.trainable.distil_step(
            sequence.committed[begin:-1], begin, [i - 1 - begin for i, _ in recent], distributions, self.rate
        )

    def release(self, sequence: Sequence, models: Models) -> None:
        """Free the slot of the draft model's KV cache."""
        if sequence.state.drafter is not None:
            sequence.state.drafter.trainable.runner.close(sequence.state.drafter.slot)
