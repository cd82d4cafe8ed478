"""TLT's adaptive drafter: EAGLE's head drafts, and is trained while only few sequences of a batch remain."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from typing import ClassVar, cast

from workbench.core.errors import ParameterError
from workbench.core.params import param
from workbench.decoders.draft_verify.online_weights import MAX_STEPS, TrainedState
from workbench.decoders.draft_verify.parts import RoundFeedback
from workbench.decoders.draft_verify.tree_building import PartialTree
from workbench.engine.request import Sequence
from workbench.methods.common.feature import FeatureState, load_net, read_features
from workbench.methods.common.warm_start import WARM_NOTICE, warm_param
from workbench.methods.eagle.drafter import Eagle
from workbench.methods.tlt.spot import OnlineHead, Text
from workbench.models.loading import Models


@dataclass(slots=True)
class Batch:
    """Counter of the running sequences that use TLT with one target. It decides when to train.

    Attributes:
        running: number of sequences that have started and not ended.
        peak: maximum number of concurrent sequences since the batch was last empty.
    """

    running: int = 0
    peak: int = 0

    def enter(self) -> None:
        """Add a starting sequence to the number of running sequences."""
        self.running += 1
        self.peak = max(self.peak, self.running)

    def leave(self) -> None:
        """Subtract an ended sequence from the number of running sequences."""
        self.running -= 1
        self.peak = self.peak if self.running else 0

    def is_tail(self, share: float) -> bool:
        """Return whether at most the given share of the batch's sequences still runs, or the batch has only one."""
        return self.peak == 1 or self.running <= share * self.peak

    @classmethod
    def of(cls, models: Models) -> Batch:
        """Return the counter of running sequences of the given models. It is created at the first call."""
        return cast(Batch, models.shared.setdefault("tlt batch", cls()))


@dataclass(slots=True)
class TLTState(FeatureState):
    """Drafting state of TLT for one text: EAGLE's drafting state, with a net that is trained online.

    Attributes:
        inspectable: net in training, used by this sequence alone or by several; None before initialisation.
        text: text with the target's features, for training; None for prompts with images, which are not trained on.
        version: version of the net that the sequence uses.
        batch: counter that includes this sequence until it ends.
    """

    inspectable: TrainedState[OnlineHead] | None = None
    text: Text | None = None
    version: int = 0
    batch: Batch | None = None

    def use_newest_weights(self, online_head: OnlineHead, recompute: bool) -> None:
        """Let the sequence draft with the newest weights of the trained net.

        Args:
            online_head: net in training.
            recompute: whether to compute the drafter's KV cache again with these weights.
        """
        if self.version == online_head.version:
            return
        self.net, self.head, self.compiled_net = online_head.net, online_head.head, online_head.compiled_net
        self.version = online_head.version
        if recompute and self.text is not None:
            self.kv_cache.truncate(0)
            self.position, self.features, self.tokens = 0, [self.text.whole()], self.text.tokens[1:]


@dataclass(frozen=True)
class TLT(Eagle):
    """Draft a tree with EAGLE's head, and train the head on the generated texts while part of a batch is idle.

    Verification computes the features of every token, so training needs no target forward pass. Training steps run when
    few sequences of a batch remain and the machine is partly idle; for a single sequence, they run every few rounds.
    The verifier is exact whatever the head's weights are, so the output follows the target's distribution.

    Source: Hu et al. 2025, Taming the long tail (TLT), arXiv:2511.16665 (the adaptive drafter and its spot training).
    """

    state: ClassVar[type[FeatureState]] = TLTState
    every: int = param(4, ge=1, le=100_000, doc="number of rounds between two training steps, while training is on")
    tail: float = param(
        0.5, ge=0.0, le=1.0, doc="train while at most this share of the batch's sequences is still running"
    )
    rate: float = param(3e-4, ge=0.0, le=0.1, doc="learning rate of AdamW; 0: no training")
    texts: int = param(4, ge=1, le=64, doc="maximum number of texts per training step")
    reads: int = param(64, ge=8, le=512, doc="maximum number of tokens per training text")
    again: bool = param(False, doc="recompute the drafter's KV cache of the sequence after a training step")
    warm: bool = warm_param("the trained weights")

    def notice(self) -> str:
        """Return a note for the user if drafts depend on earlier runs (`warm`), else ""."""
        return WARM_NOTICE if self.warm else ""

    def state_key(self) -> Hashable:
        """Return the cache key under which later drafters find the trained head.

        The key does not depend on the training schedule.
        """
        return "tlt", self.warm

    def online_head(self, models: Models) -> OnlineHead:
        """Return a new trainable copy of EAGLE's head; with `warm`, the copy that earlier runs trained.

        Raises:
            ModelError: the head cannot be read, or was trained for another target.
        """
        kind = self.net.kind
        key = ("tlt", models.heads[kind].name)
        online_head = cast("OnlineHead | None", models.shared.get(key)) if self.warm else None
        if online_head is None or not _is_of(online_head, models, kind):
            online_head = OnlineHead(load_net(self.net, models, self.recipe), models.target, models.heads[kind])
            if self.warm:
                models.shared[key] = online_head
        online_head.detect_target_changes()
        return online_head

    def init_state(self, sequence: Sequence, models: Models) -> TLTState:
        """Return a drafting state whose head has read the committed text, and add the text to the training data."""
        head, features = self.online_head(models), read_features(sequence, models)
        state = cast(TLTState, self.new_state(sequence, models, features, head.net, head.head, head.compiled_net))
        state.inspectable, state.version, state.batch = TrainedState(head, self.warm), head.version, Batch.of(models)
        if sequence.image_inputs is None:
            features_so_far = features.new_empty(0, models.target.hidden_size) if not len(features) else features
            state.text = Text(head.pool.step, sequence.prompt_length, list(sequence.committed), [features_so_far])
            head.pool.add(state.text)
        state.batch.enter()
        return state

    def begin(self, sequence: Sequence) -> PartialTree | None:
        """Process the accepted tokens and their features with the newest weights, and return an empty draft tree."""
        state: TLTState = sequence.state.drafter
        assert state.inspectable is not None
        if not _is_of(state.inspectable.trainable, sequence.models, self.net.kind):  # the user has changed the head
            self.release(sequence, sequence.models)
            sequence.state.drafter = state = self.init_state(sequence, sequence.models)
        assert state.inspectable is not None
        head = state.inspectable.trainable
        state.use_newest_weights(head, self.again)
        sequence.report.signals["training steps"] = head.n_steps
        if head.n_steps:
            sequence.report.signals["loss of the last training step"] = head.loss
        return super().begin(sequence)

    def observe(self, sequence: Sequence, feedback: RoundFeedback) -> None:
        """Store the target's features for the next draft and for training, and run a training step when due."""
        super().observe(sequence, feedback)
        state: TLTState = sequence.state.drafter
        if state.text is None or state.inspectable is None or state.batch is None:
            return
        head = state.inspectable.trainable
        state.text.tokens += feedback.emitted
        state.text.features.append(state.features[-1])
        head.pool.trim()
        head.rounds += 1
        if not isinstance(sequence.drafter, TLT) or not self.rate or head.n_steps >= MAX_STEPS:
            return
        n_sequences = state.batch.running if state.inspectable.shared else 1
        if head.rounds >= self.every * n_sequences and state.batch.is_tail(self.tail):
            head.train_step(self.texts, self.reads, self.rate)

    def train_between_batches(self, models: Models, n_steps: int) -> int:
        """Train the shared copy of EAGLE's head between batches, and return the number of training steps.

        Args:
            models: models that the batches use.
            n_steps: maximum number of steps.

        Raises:
            ParameterError: this drafter is not `warm`, so each sequence has a copy of its own, which is dropped at its
                end.
        """
        if not self.warm:
            raise ParameterError(
                ("Training between batches needs a shared head, but each sequence has its own."), "Set warm=True."
            )
        head = self.online_head(models)
        return sum(head.train_step(self.texts, self.reads, self.rate) for _ in range(n_steps))

    def release(self, sequence: Sequence, models: Models) -> None:
        """Remove the ended sequence from the count of running sequences."""
        state: TLTState | None = sequence.state.drafter
        if state is not None and state.batch is not None:
            state.batch.leave()
            state.batch = None


def _is_of(online_head: OnlineHead, models: Models, kind: str) -> bool:
    """Return whether a trainable copy of the head was made for the given models and their current head."""
    return online_head.target is models.target and online_head.info is models.heads[kind]
