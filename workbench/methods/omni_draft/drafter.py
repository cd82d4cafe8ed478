"""OmniDraft: a draft model with a different vocabulary, whose text is tokenised again for the target."""

from __future__ import annotations

from collections import abc
from collections.abc import Hashable, Iterator
from dataclasses import dataclass, field
from typing import ClassVar

import torch
from jaxtyping import Float
from torch import Tensor

from workbench.core.params import param
from workbench.core.sampling import likeliest
from workbench.core.transfer import to_device
from workbench.core.tree import DraftTree, Sampling
from workbench.decoders.declarations import ANY_DRAFTER
from workbench.decoders.draft_verify.online_layers import TrainableLayers
from workbench.decoders.draft_verify.online_weights import TrainedState
from workbench.decoders.draft_verify.parts import Drafter, Plan, RoundFeedback
from workbench.engine.request import Sequence
from workbench.kernels.segment import Segment, Slot
from workbench.kernels.weight_sharing import WeightSharingCopy
from workbench.methods.common.warm_start import WARM_NOTICE, warm_param
from workbench.methods.omni_draft.online_training import (
    OnlineTrainingState,
    StoppingHead,
    borders,
    training_positions,
)
from workbench.methods.omni_draft.vocabulary_map import BROKEN, VocabularyMap
from workbench.methods.online.drafter import MAX_POSITIONS
from workbench.models.loading import Models
from workbench.models.other_vocabulary import OtherVocabularyDrafter

CHUNK = 512
"""Maximum number of tokens that the draft model reads in one forward pass."""


@dataclass
class OmniDraftState:
    """Drafting state of OmniDraft for one sequence.

    Attributes:
        draft_model: the draft model.
        vocabulary_map: mapping between the vocabularies; None: the vocabularies are equal, and nothing is translated.
        ids: the committed text in the draft model's tokens.
        text: the committed text as a string, if tokens are translated.
        ends_mid_character: whether the committed text ends within a character that takes several tokens; nothing is
            drafted then.
        training: online-training state.
        inspectable: trained layers as a state that can be viewed, saved and loaded; None if they are not trained.
        slot: slot of the draft model's KV cache; None if the text exceeds its context.
        cached_ids: tokens with entries in the slot, including drafts of the last round.
    """

    draft_model: OtherVocabularyDrafter
    vocabulary_map: VocabularyMap | None
    ids: list[int]
    text: str = ""
    ends_mid_character: bool = False
    training: OnlineTrainingState = field(default_factory=OnlineTrainingState)
    inspectable: TrainedState[TrainableLayers] | None = None
    slot: Slot | None = None
    cached_ids: list[int] = field(default_factory=list[int])
    _seen: tuple[int, tuple[int, ...]] | None = None

    def tokenise_committed(self, sequence: Sequence) -> list[int]:
        """Return the committed text in the draft model's tokens, without special tokens and incomplete characters."""
        if self.vocabulary_map is None:
            return list(sequence.committed)
        version = len(sequence.committed), tuple(sequence.committed[-4:])
        if version == self._seen:
            return self.ids
        self._seen = version
        text = _decode(sequence, len(sequence.committed))
        self.text = text.rstrip(BROKEN)
        self.ends_mid_character = self.text != text
        ids = list(self.draft_model.tokenizer(self.text)["input_ids"])
        while ids and ids[-1] in self.vocabulary_map.drafter_eos:  # some tokenizers append an end token
            ids.pop()
        self.ids = ids
        return ids

    def catch_up(self, sequence: Sequence) -> None:
        """Drop the draft model's KV cache entries of rejected drafts, and read new committed tokens except the last.

        The newest tokens may differ from the drafted ones, because a longer text may be tokenised differently.
        """
        assert self.slot is not None
        self.ids = self.tokenise_committed(sequence)
        runner = self.draft_model.runner
        runner.rewind(self.slot, max(0, min(common_prefix_length(self.ids, self.cached_ids), len(self.ids) - 1)))
        missing = self.ids[self.slot.length : -1]
        if missing and self.shared_copy is None:
            runner.prefill(self.slot, missing)
        for at in range(0, len(missing) if self.shared_copy is not None else 0, CHUNK):
            chunk = to_device(missing[at : at + CHUNK], runner.device)
            runner.forward([Segment(self.slot, chunk)], last_only=True, shared_copy=self.shared_copy)
            runner.commit(self.slot, range(len(chunk)))
        self.cached_ids = self.ids[:-1]

    @property
    def shared_copy(self) -> WeightSharingCopy | None:
        """Return the trained weight-sharing copy that replaces the draft model; None if nothing is trained."""
        return None if self.training.trainable is None else self.training.trainable.shared_copy


@dataclass(frozen=True)
class OmniDraft(Drafter):
    """Draft with a model of any vocabulary: it continues the text, and its text is tokenised again for the target.

    The draft model's tokenizer encodes the committed text. The drafter continues it with its most likely tokens, and
    this text is tokenised as the target's tokenizer would do it: several drafter tokens that spell one target token are
    merged, and one that spells several is split. If the target's tokenizer would merge the end of the committed text
    with the draft, the draft is split into the longest tokens that match instead. The last token is left out if more
    text could lengthen it. The draft has no distribution over the target's tokens, so it is verified as deterministic:
    a token x is accepted with the target's probability p(x), and the output follows the target's distribution.

    With `rate` > 0, a copy of the drafter's layers is trained online. Where both vocabularies have the target's token,
    the loss is the divergence from the target's distribution over shared tokens. Where several drafter tokens spell the
    target's token, the loss raises their probability. With `stop` > 0, a head on the drafter's hidden state is trained
    after each verification to predict whether the next drafted token will be accepted.

    Source: Ramakrishnan et al. 2025, OmniDraft, arXiv:2507.02659 (the n-gram cache across vocabularies; online
    distillation; adaptive drafting).
    """

    needs: ClassVar[tuple[str, ...]] = (ANY_DRAFTER,)
    source: ClassVar[str] = "omnidraft"
    merge: bool = param(True, doc="merge several drafter tokens into one target token")
    extra: int = param(
        8, ge=0, le=64, doc="maximum number of drafter tokens beyond the draft length, as several may merge into one"
    )
    rate: float = param(0.0, ge=0.0, le=0.1, doc="learning rate of the drafter's layers while drafting; 0: no training")
    every: int = param(
        2, ge=1, le=100_000, doc=("number of rounds with training data between two training steps"), when="rate > 0"
    )
    reads: int = param(128, ge=8, le=512, doc="number of newest drafter tokens per training step", when="rate > 0")
    spelt: float = param(
        0.3,
        ge=0.0,
        le=10.0,
        doc=("λ, loss weight of target tokens that correspond to several drafter tokens"),
        when="rate > 0",
    )
    stop: float = param(
        0.0,
        ge=0.0,
        le=1.0,
        doc="stop drafting when the predicted probability of full acceptance is below this; 0: never",
    )
    warm: bool = warm_param("the trained weights")

    def make_ready(self, models: Models) -> None:
        """Build the mapping between the vocabularies of draft model and target, before the first run."""
        if models.other_vocabulary_drafter is not None:
            VocabularyMap.get_or_build(models, models.other_vocabulary_drafter)

    def siblings(self) -> frozenset[Sampling]:
        """Return how sibling nodes are chosen: deterministically, as the draft model's most likely tokens."""
        return frozenset({Sampling.DETERMINISTIC})

    def notice(self) -> str:
        """Return a note for the user if drafts depend on earlier runs (`warm`), else ""."""
        return WARM_NOTICE if self.warm and (self.rate or self.stop) else ""

    def state_key(self) -> Hashable | None:
        """Return the cache key under which later drafters find the trained layers; None if none are trained.

        The key does not depend on the training schedule.
        """
        return ("omnidraft", self.warm, self.stop > 0) if self.rate else None

    def init_state(self, sequence: Sequence, models: Models) -> OmniDraftState:
        """Return a drafting state whose draft model has read the committed text except the last token and images."""
        draft_model, vocabulary_map = models.other_vocabulary_drafter, None
        if draft_model is None:
            assert models.drafter is not None
            draft_model = OtherVocabularyDrafter(models.drafter, models.tokenizer, models.drafter_name or "")
        if models.other_vocabulary_drafter is not None or sequence.image_inputs is not None:
            vocabulary_map = VocabularyMap.get_or_build(models, draft_model)
        state = OmniDraftState(draft_model, vocabulary_map, [], training=self.new_training_state(models, draft_model))
        if state.training.trainable is not None:
            state.inspectable = TrainedState(state.training.trainable, self.warm)
        state.ids = state.tokenise_committed(sequence)
        if len(state.ids) > draft_model.runner.context:
            return state
        state.slot = draft_model.runner.open(id(sequence))
        try:
            state.catch_up(sequence)
        except BaseException:  # on any error: only this function can free the slot
            draft_model.runner.close(state.slot)
            raise
        return state

    def new_training_state(self, models: Models, draft_model: OtherVocabularyDrafter) -> OnlineTrainingState:
        """Return a new online-training state. With `warm`, it continues the training of earlier runs.

        Args:
            models: models of the run.
            draft_model: draft model whose layers are trained.
        """
        key = ("omnidraft online training", draft_model.name)
        training: OnlineTrainingState | None = models.shared.get(key) if self.warm else None
        if training is None or training.runner is not draft_model.runner:
            training = OnlineTrainingState(runner=draft_model.runner)
            if self.warm:
                models.shared[key] = training
        if self.rate and training.trainable is None:
            training.trainable = TrainableLayers(draft_model.runner)
        if self.stop and training.stop is None:
            training.stop = StoppingHead(draft_model.runner.hidden_size)
        return OnlineTrainingState(
            training.trainable if self.rate else None, training.stop if self.stop else None, runner=draft_model.runner
        )

    def max_levels(self, sequence: Sequence) -> int:
        """Return the number of positions that remain in the draft model's context.

        It is an estimate of the levels that fit: a drafter token seldom spells less than a target token.
        """
        state: OmniDraftState = sequence.state.drafter
        return (
            0 if state.slot is None else state.draft_model.runner.context - len(state.tokenise_committed(sequence)) + 1
        )

    def propose_one(self, sequence: Sequence, plan: Plan) -> DraftTree:
        """Draft a chain of at most `plan.depth` tokens in the target's vocabulary."""
        if sequence.state.drafter.draft_model.runner is not sequence.models.draft_model:  # the draft model was changed
            self.release(sequence, sequence.models)
            sequence.state.drafter = self.init_state(sequence, sequence.models)
        state: OmniDraftState = sequence.state.drafter
        draft_ids = self.continue_text(sequence, state, plan.depth)
        tokens = (
            draft_ids
            if state.vocabulary_map is None or not draft_ids
            else state.vocabulary_map.translate(draft_ids, self.merge, state.text)
        )
        sequence.report.signals |= {"drafter tokens": len(draft_ids), "translated tokens": len(tokens)}
        if (trainable := state.training.trainable) is not None:
            sequence.report.signals["training steps"] = trainable.n_steps
            if trainable.n_steps:
                sequence.report.signals["loss of the last training step, nats"] = trainable.loss
        return DraftTree.chain(tokens[: plan.depth], source=self.source, device=sequence.models.target.device)

    def continue_text(self, sequence: Sequence, state: OmniDraftState, depth: int) -> list[int]:
        """Continue the committed text with the draft model, and return the tokens in its own vocabulary.

        Args:
            sequence: sequence whose text is continued.
            state: drafting state, whose KV cache is updated.
            depth: number of target tokens that the text should give.
        """
        state.catch_up(sequence)
        slot, runner, vocabulary_map = state.slot, state.draft_model.runner, state.vocabulary_map
        assert slot is not None
        if state.ends_mid_character or not state.ids:
            return []
        draft_ids, feed, training = list[int](), to_device(state.ids[-1:], runner.device), state.training
        training.draft_states, training.before, accept_prob, end = [], len(state.text), 1.0, 0
        max_tokens = depth if vocabulary_map is None else depth + self.extra
        while len(draft_ids) < min(max_tokens, runner.context - len(state.ids) + 1):
            out = runner.forward([Segment(slot, feed)], last_only=True, shared_copy=state.shared_copy)
            if training.stop is not None and vocabulary_map is not None:
                accept_prob *= training.stop.acceptance_prob(out.hidden[0, -1])
                if draft_ids and accept_prob < self.stop:
                    runner.rewind(slot, slot.length)
                    break
            runner.commit(slot, [0])
            state.cached_ids += [draft_ids[-1] if draft_ids else state.ids[-1]]
            logits = out.logits[0, -1:]
            if vocabulary_map is None:
                # other logits are padding of the draft model's vocabulary
                logits = logits[:, : sequence.models.target.vocab_size]
            feed = likeliest(logits.float())
            draft_ids.append(int(feed))
            if training.stop is not None and vocabulary_map is not None:
                end += len(vocabulary_map.text(draft_ids[-1]))
                training.draft_states.append((out.hidden[0, -1], end))
                sequence.report.signals["predicted probability that the whole draft is accepted"] = accept_prob
            if vocabulary_map is not None and (
                vocabulary_map.has_no_text(draft_ids[-1])
                or len(vocabulary_map.translate(draft_ids, self.merge, state.text)) >= depth
            ):
                break
        return draft_ids

    def observe(self, sequence: Sequence, feedback: RoundFeedback) -> None:
        """Train the stopping head, collect this round's training positions, and run a training step if one is due."""
        state: OmniDraftState = sequence.state.drafter
        training, vocabulary_map = state.training, state.vocabulary_map
        if vocabulary_map is None or sequence.image_inputs is not None or not isinstance(sequence.drafter, OmniDraft):
            return
        n_accepted = min(len(feedback.result.path), len(feedback.emitted))
        if training.draft_states and feedback.tokens:
            text = _decode(sequence, len(sequence.committed) - len(feedback.emitted) + n_accepted).rstrip(BROKEN)
            training.train_stopping_head(
                len(text) - training.before, n_accepted < len(feedback.tokens) and n_accepted < len(feedback.emitted)
            )
        if not self.rate or not training.is_due or feedback.hidden is None:
            return
        first = len(sequence.committed) - len(feedback.emitted)
        positions = [(first + i, feedback.hidden[at]) for i, at in enumerate(feedback.path_indices)]
        training.waiting = [*training.waiting, *positions][-MAX_POSITIONS:]
        training.rounds += bool(positions)
        if training.rounds >= self.every:
            ids = state.tokenise_committed(sequence)
            ends = borders(state.text, ids, state.draft_model.tokenizer, vocabulary_map.drafter_texts)
            direct, spelt = training_positions(
                list(self.training_positions(sequence, training, vocabulary_map)), ends, ids, vocabulary_map.shared
            )
            training.train_on(ids, direct, spelt, vocabulary_map.shared, self.reads, self.spelt, self.rate)

    def training_positions(
        self, sequence: Sequence, training: OnlineTrainingState, vocabulary_map: VocabularyMap
    ) -> Iterator[tuple[int, int, Float[Tensor, " V"], int]]:
        """Yield the text positions that wait for the next online training step.

        A position is (start of the token, end of the token, the target's distribution, token id). Start and end are
        character indices in the text.
        """
        head = sequence.models.target.lm_head
        distributions = head.forward(torch.stack([hidden for _, hidden in training.waiting])).float().softmax(1).cpu()
        for (index, _), probs in zip(training.waiting, distributions, strict=True):
            begin, end = (len(_decode(sequence, n).rstrip(BROKEN)) for n in (index, index + 1))
            yield begin, end, probs, sequence.committed[index]

    def release(self, sequence: Sequence, models: Models) -> None:
        """Free the slot of the draft model's KV cache."""
        state: OmniDraftState | None = sequence.state.drafter
        if state is not None and state.slot is not None:
            state.draft_model.runner.close(state.slot)


def _decode(sequence: Sequence, n: int) -> str:
    """Return the text of the first n committed tokens of a sequence. Incomplete characters become `BROKEN`."""
    tokenizer, ids = sequence.models.tokenizer, sequence.committed[:n]
    return tokenizer.decode(ids, skip_special_tokens=True, clean_up_tokenization_spaces=False)


def common_prefix_length(one: abc.Sequence[int], other: abc.Sequence[int]) -> int:
    """Return the length of the common prefix of two token sequences."""
    return next((i for i, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))
