"""Base of feature drafters: prefill with the target's features, build a tree, drop the speculative cache entries."""

from __future__ import annotations

from collections import abc
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch
from jaxtyping import Float, Int
from torch import Tensor

from workbench.core.sampling import SamplingParams
from workbench.core.transfer import to_device, to_list
from workbench.decoders.draft_verify.captured_states import states_of
from workbench.decoders.draft_verify.drafter_vision import report_vision
from workbench.decoders.draft_verify.parts import DistributionDrafter, RoundFeedback, TreeBuilder
from workbench.decoders.draft_verify.tree_building import FullDistributions, NodeDistributions, PartialTree
from workbench.engine.request import Request, Sequence
from workbench.kernels.device_clock import Mark
from workbench.kernels.reduced_vocabulary import SharedHead
from workbench.kernels.segment import CaptureSelection
from workbench.methods.common.attention_net import DraftKVCache
from workbench.methods.common.compiled_feature_net import CompiledFeatureNet, LevelOutput, compiled_net_of
from workbench.methods.common.feature_maps import explain_feature_drafter
from workbench.methods.common.feature_net import FeatureNet, PromptFeatures, PromptInputs
from workbench.methods.common.trained_net import head_of, load_fitting
from workbench.methods.tree_builders.best_first import BestFirst
from workbench.models.loading import Models
from workbench.models.runner import SCRATCH

FEATURES = CaptureSelection(features=True)


@dataclass(slots=True)
class FeatureState:
    """Drafting state of a feature drafter for one text. The drafter reads pairs: a feature and the token after it.

    Attributes:
        net: the drafter.
        models: models of the run; the drafter shares the target's embedding and LM head.
        head: the target's LM head, over the tokens of the draft vocabulary.
        kv_cache: KV cache of the drafter.
        position: position of the next pair in the text.
        guess: feature of width D predicted from the newest pair whose token is committed, [1, D]; [k, D] if the drafter
            predicts k features at once; None before the first pair.
        features: the target's features at accepted positions that the drafter has not read yet, [m, D] per round.
        tokens: for each feature in `features`, the token at the next position.
        compiled_net: compiled version of the net's layer and the LM head; None if it is not available.
    """

    net: FeatureNet
    models: Models
    head: SharedHead
    kv_cache: DraftKVCache
    position: int = 0
    guess: Tensor | None = None
    features: list[Tensor] = field(default_factory=list[Tensor])
    tokens: list[int] = field(default_factory=list[int])
    compiled_net: CompiledFeatureNet | None = None
    _last_output: LevelOutput | None = None

    def prefill(self, inputs: PromptInputs, position: int) -> None:
        """Run the drafter's layer on a prompt, commit the KV cache entries, and store the newest predicted feature.

        Args:
            inputs: pairs of the text, and compressed images.
            position: position of the first pair after the prompt.
        """
        if inputs.inputs.shape[1]:
            self.guess = self.run_committed(inputs.inputs, inputs.positions)
        self.position = position

    def run_committed(
        self, x: Float[Tensor, "1 n E"], positions: Int[Tensor, " n"], since: Mark | None = None
    ) -> Float[Tensor, "k D"]:
        """Run the drafter's layer on the inputs of committed tokens, and commit their KV cache entries.

        Args:
            x: inputs of the layer.
            positions: positions of the inputs in the text.
            since: time from which the forward pass is measured, if it began before this call.

        Returns:
            The feature that is predicted at the last input, or k features if the drafter predicts k at once.
        """
        state = self._run(x, positions, since=since)[:, -1]
        self.kv_cache.commit()
        return state

    def catch_up(self) -> Float[Tensor, "k D"] | None:
        """Run the drafter's layer on new accepted pairs of feature and token; return the newest predicted feature."""
        since = self.models.target.clock.mark()
        if self.compiled_net is not None and self.features and self.compiled_net.takes(n := len(self.tokens)):
            places = torch.arange(self.position, self.position + n)
            self.guess = self._level(torch.tensor(self.tokens), torch.cat(self.features), places, None, since, True)
            self.kv_cache.commit()
            self.features, self.tokens, self.position = [], [], self.position + n
        elif (pairs := self.take_new_pairs()) is not None:
            n = pairs.shape[1]
            self.guess = self.run_committed(
                pairs, torch.arange(self.position, self.position + n, device=pairs.device), since
            )
            self.position += n
        return self.guess

    def take_new_pairs(self) -> Float[Tensor, "1 n E"] | None:
        """Return the drafter layer's inputs for new accepted pairs of feature and token.

        The lists `features` and `tokens` are then emptied.

        Return None if there are no such pairs.
        """
        if not self.features:
            return None
        tokens = to_device(self.tokens, self.features[0].device)
        pairs = self._pairs(tokens, self.net.combine_hidden_states(torch.cat(self.features)))
        self.features, self.tokens = [], []
        return pairs.unsqueeze(0)

    def speculate(
        self,
        features: Float[Tensor, "w D"],
        tokens: Int[Tensor, " w"],
        positions: Int[Tensor, " w"],
        tree_mask: Tensor | None,
    ) -> Float[Tensor, "w D"]:
        """Return the drafter layer's states at w drafted tokens, and append speculative entries to the KV cache.

        Args:
            features: predicted feature before each drafted token.
            tokens: drafted tokens.
            positions: positions of the pairs, counted from the newest committed pair.
            tree_mask: bool [w, s + w], true at the speculative entries (columns) that each pair (row) attends to: s
                older ones, then the w new ones. None: the pairs are a chain with causal attention.
        """
        since, positions = self.models.target.clock.mark(), positions + (self.position - 1)
        if self.compiled_net is not None and self.compiled_net.takes(tokens.shape[0]):
            return self._level(tokens, features, positions, tree_mask, since)
        return self._run(self._pairs(tokens, features).unsqueeze(0), positions, tree_mask, since=since)[0]

    def _level(
        self,
        tokens: Int[Tensor, " n"],
        features: Float[Tensor, "n D"],
        positions: Int[Tensor, " n"],
        tree_mask: Tensor | None,
        since: Mark,
        last_only: bool = False,
    ) -> Float[Tensor, "k D"]:
        """Run the compiled net on n pairs of token and feature, and return the layer's states.

        The logits that the same call computes are cached until the next call.
        """
        assert self.compiled_net is not None
        self._last_output = self.compiled_net.run_level(
            tokens, features, positions, tree_mask, self.kv_cache, last_only
        )
        self.models.meter.add(since, self.models.target.clock.mark())
        return self._last_output.states

    def _pairs(self, tokens: Int[Tensor, " n"], features: Float[Tensor, "n D"]) -> Float[Tensor, "n E"]:
        return self.net.make_pairs(self.models.target.embed(tokens), features)

    def _run(
        self,
        x: Tensor,
        positions: Tensor,
        tree_mask: Tensor | None = None,
        since: Mark | None = None,
    ) -> Tensor:
        """Run the drafter's layer on inputs [1, n, E], and return the layer's states [1, n, D].

        Args:
            x: inputs of the layer.
            positions: positions of the inputs in the text, int64 [n].
            tree_mask: bool [n, s + n], true at the speculative entries (columns) that each input (row) attends to: s
                older ones, then the n new ones. None: causal attention.
            since: start of the computation of `x`, whose time counts as part of the forward pass.
        """
        clock, meter = self.models.target.clock, self.models.meter
        start = since or clock.mark()
        mask = None
        if tree_mask is not None:
            mask = tree_mask.new_ones(x.shape[1], self.kv_cache.n_stable + tree_mask.shape[1])
            mask[:, self.kv_cache.n_stable :] = tree_mask
        state = self.net(x, positions, mask, self.kv_cache)
        meter.add(start, clock.mark())
        return state

    def logits(self, features: Float[Tensor, "w D"]) -> Float[Tensor, "w K"]:
        """Return logits over the K tokens of the draft vocabulary after each feature, computed by the LM head."""
        if (level := self._compiled_output(features)) is not None:
            return level.logits
        start = self.models.target.clock.mark()
        logits = self.head(self.net.lm_head_input(features))
        self.models.meter.add(start, self.models.target.clock.mark(), is_part=True)
        return logits

    def best(self, features: Float[Tensor, "w D"], k: int) -> tuple[Float[Tensor, "w k"], Int[Tensor, "w k"]]:
        """Return log-probabilities and ids of the k most likely tokens of the draft vocabulary after each feature."""
        if (level := self._compiled_output(features)) is not None and k <= level.summary.top.shape[1]:
            return level.summary.logs[:, :k].contiguous(), self.head.to_token_ids(level.summary.top[:, :k])
        return self.head.top_tokens(self.logits(features), k)

    def _compiled_output(self, features: Float[Tensor, "w D"]) -> LevelOutput | None:
        """Return the compiled net's last output if it contains `features` as the layer's states, else None."""
        level = self._last_output
        if level is None or level.states.data_ptr() != features.data_ptr() or level.states.shape != features.shape:
            return None
        return level


@dataclass(frozen=True)
class FeatureDistributions(NodeDistributions):
    """Distributions of the next tokens after w predicted features, computed by the drafter's LM head."""

    state: FeatureState
    features: Float[Tensor, "w D"]
    sampling: SamplingParams

    def full_probs(self) -> Float[Tensor, "w V"]:
        """Return the distributions after the predicted features, over the target's whole vocabulary.

        Penalties are not applied.
        """
        return FullDistributions.of(self.state.head.scatter_logits(self.state.logits(self.features)), self.sampling).p

    def best(self, k: int) -> tuple[Float[Tensor, "w k"], Int[Tensor, "w k"]]:
        """Return log-probabilities and ids of the k likeliest draft tokens after each feature, without temperature."""
        return self.state.best(self.features, k)


class FeatureGrowth(PartialTree):
    """Draft tree of a feature drafter. A node's input combines its token and the feature predicted at its parent."""

    def __init__(self, sequence: Sequence, source: str, guess: Float[Tensor, "1 D"]) -> None:
        super().__init__(sequence, source, guess.device)
        self.state: FeatureState = sequence.state.drafter
        self._states = guess  # states of the nodes expanded last
        self.root = self._distributions()

    def distributions(self, tokens: Int[Tensor, " w"], below: Int[Tensor, " w"] | None) -> FeatureDistributions:
        features = self._states.expand(tokens.shape[0], -1) if below is None else self._states[below]
        places = torch.full_like(tokens, len(self.tokens))
        self._states = self.state.speculate(features, tokens, places, self.attention_mask)
        return self._distributions()

    def close(self, nodes: Int[Tensor, " kept"] | None = None) -> None:
        """Drop the drafter's speculative KV cache entries, which belong to drafted tokens."""
        self.state.kv_cache.drop_speculative()

    def _distributions(self) -> FeatureDistributions:
        return FeatureDistributions(self.state, self._states, self.sequence.sampling)


@dataclass(frozen=True)
class FeatureDrafter(DistributionDrafter):
    """Base class of drafters that read the target's features. Each subclass is a dataclass that names its net class.

    The default tree builder is EAGLE-2's, `BestFirst`.

    Source: Li et al. 2024, EAGLE, arXiv:2401.15077, §4.1; EAGLE-2, arXiv:2406.16858, §4.
    """

    reads_target: ClassVar[bool] = True
    net: ClassVar[type[FeatureNet]]
    state: ClassVar[type[FeatureState]] = FeatureState
    default_tree_builder: ClassVar[TreeBuilder | None] = BestFirst()
    recipe: ClassVar[str] = "vision-heads"
    """Name of the recipe that trains the drafter's net."""

    @property
    def image_options(self) -> Any:
        """Return the method's parameters for image compression, which are passed to `FeatureNet.compress_image`."""
        return None

    def captures(self, models: Models) -> CaptureSelection:
        """Return which hidden states of the target prefill captures: its features (LM head inputs)."""
        return FEATURES

    def init_state(self, sequence: Sequence, models: Models) -> FeatureState:
        """Return a new drafting state, prefilled with the target's features of the committed text and its images."""
        net, head = load_net(self.net, models, self.recipe), head_of(self.net, models)
        return self.new_state(
            sequence, models, read_features(sequence, models), net, head, compiled_net_of(net, head, models)
        )

    def new_state(
        self,
        sequence: Sequence,
        models: Models,
        features: Float[Tensor, "n_minus_1 D"],
        net: FeatureNet,
        head: SharedHead,
        compiled_net: CompiledFeatureNet | None,
    ) -> FeatureState:
        """Return a new drafting state of a sequence, after its drafter has read the features of the committed text.

        Args:
            sequence: the sequence.
            models: models of the run.
            features: the target's features at all committed positions but the last.
            net: the drafter.
            head: the target's LM head over the draft vocabulary.
            compiled_net: compiled version of the net's layer and the LM head; None if it is not available.
        """
        clock = models.target.clock
        capacity = len(sequence.committed) + sequence.remaining + SCRATCH
        entries = DraftKVCache(net.heads, net.head_size, capacity, features)
        state = self.state(net, models, head, entries, compiled_net=compiled_net)
        start = clock.mark()
        with torch.inference_mode():
            prompt = collect_prompt_features(sequence, models, features)
            entered = net.build_inputs(prompt, self.image_options)
            state.prefill(entered, len(features))
        if prompt.spans:
            seconds = clock.mark().seconds - start.seconds
            report_vision(
                sequence, drafter=self.net.kind, drafter_prefill_s=seconds, **image_trace(prompt, entered, state)
            )
        return state

    def begin(self, sequence: Sequence) -> PartialTree | None:
        """Process the new accepted pairs of feature and token, and start a draft tree.

        Return None after a prompt of one token, which has no pairs.
        """
        guess = sequence.state.drafter.catch_up()
        return None if guess is None else FeatureGrowth(sequence, self.net.kind, guess)

    def observe(self, sequence: Sequence, feedback: RoundFeedback) -> None:
        """Store the target's features of the root and of the accepted nodes, for the next draft."""
        state: FeatureState = sequence.state.drafter
        assert feedback.hidden is not None
        state.features.append(feedback.hidden[feedback.path_indices])
        state.tokens += feedback.emitted

    def explain(
        self,
        models: Models,
        request: Request,
        tokens: abc.Sequence[int],
        on_progress: Callable[[float], None] = lambda _: None,
    ) -> dict[str, Any] | None:
        """Return attribution maps of emitted tokens over the target's image patches, see `explain_feature_drafter`."""
        return explain_feature_drafter(
            load_net(self.net, models), self.image_options, models, request, tokens, on_progress
        )


def read_features(sequence: Sequence, models: Models) -> Float[Tensor, "n_minus_1 D"]:
    """Return the target's features at all committed positions but the last.

    Features of a prompt with images were stored during its prefill. All other features are computed here if they were
    not stored.
    """
    target, pictured, end = models.target, sequence.cache_slot.image_prefill, len(sequence.committed) - 1
    features = torch.empty(0, target.hidden_size, dtype=target.dtype, device=target.device)
    if pictured is not None:
        features = pictured.features[:end]
    rest = states_of(sequence, models, FEATURES, len(features)).features if len(features) < end else None
    return features if rest is None else torch.cat([features, rest])


def collect_prompt_features(
    sequence: Sequence, models: Models, features: Float[Tensor, "n_minus_1 D"]
) -> PromptFeatures:
    """Return the target's embeddings and features of the committed text, and the positions of the images in it."""
    pictured = sequence.cache_slot.image_prefill
    n_prompt = 0 if pictured is None else len(pictured.embeds)
    embeds = models.target.embed(torch.tensor(sequence.committed[n_prompt:], device=features.device, dtype=torch.long))
    if pictured is None:
        return PromptFeatures(embeds[None], features[None])
    question = torch.zeros(len(features), dtype=torch.bool, device=features.device)
    question[: n_prompt - 1] = ~pictured.is_vision[:-1]
    all_embeds = torch.cat([pictured.embeds, embeds])
    return PromptFeatures(all_embeds[None], features[None], pictured.spans, pictured.grids, question[None])


def image_trace(prompt: PromptFeatures, inputs: PromptInputs, state: FeatureState) -> dict[str, Any]:
    """Return a description of the drafter's image inputs for the trace: their number, memory and source patches.

    Patches are numbered consecutively over all images.

    Args:
        prompt: the target's embeddings and features of the prompt.
        inputs: inputs of the drafter's layer for this prompt.
        state: drafting state, whose KV cache gives the size of the entry of one position in bytes.
    """
    sizes = [end - start for start, end in prompt.spans]
    views, entry_bytes = inputs.images, state.kv_cache.bytes_each
    n_drafter = sum(view.inputs.shape[1] for view in views)
    kept_patches: list[int] = []
    blocks: list[list[int]] = []
    weights: list[list[float]] = []
    before = 0
    for view, size in zip(views, sizes, strict=True):
        kept_patches += [before + i for i in view.kept_indices or ()]
        blocks += [[before + i for i in block] for block in view.blocks or ()]
        if view.weights is not None:
            after = sum(sizes) - before - size
            weights += [[0.0] * before + [round(x, 4) for x in w] + [0.0] * after for w in to_list(view.weights)]
        before += size
    return {
        "compressor": views[0].compressor,
        "n_target": sum(sizes),
        "n_drafter": n_drafter,
        "drafter_bytes": n_drafter * entry_bytes,
        "kept": kept_patches if views[0].kept_indices is not None else None,
        "blocks": blocks or None,
        "weights": weights or None,
        "gate": views[0].gate,
    }


def load_net(kind: type[FeatureNet], models: Models, recipe: str = "vision-heads") -> FeatureNet:
    """Return the trained net of the class `kind` for the target of `models`. It is loaded once.

    Raises:
        ModelError: the weights cannot be read, or were trained for another target.
    """
    is_single_command = recipe == "chat-heads"  # each of these nets has its own training command
    arguments = f"{kind.kind} --target …" if is_single_command else f"{recipe} --set method={kind.kind}"
    advice = f"Train a head for this target: workbench train {arguments}"
    return load_fitting(kind, models, f"{kind.kind} weights", advice)
