"""EAGLE-3: fuse the target's hidden states of three layers; train without a loss on features.

The layer's input is a state g and the embedding e of the token after it. For committed text, g is a projection W h of
the target's concatenated hidden states of three layers. Within a draft, g is the layer's own last output, which has no
loss of its own:

    position     s                    s + 1                         s + 2
    input        g(s) = W h(s), e(s + 1)    g(s + 1) = layer's own, e(s + 2)
    predicts                          distribution of x(s + 2)      distribution of x(s + 3)
"""

from __future__ import annotations

from collections import abc
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from workbench.core.errors import ModelError
from workbench.core.transfer import to_device
from workbench.decoders.draft_verify.captured_states import states_of
from workbench.decoders.draft_verify.parts import RoundFeedback
from workbench.decoders.draft_verify.tree_building import PartialTree
from workbench.engine.request import Request, Sequence
from workbench.kernels.packed import Matrix, is_small_on_cpu
from workbench.kernels.reduced_vocabulary import SharedHead
from workbench.kernels.segment import CaptureSelection
from workbench.methods.common.attention_net import DraftKVCache
from workbench.methods.common.compiled_feature_net import compiled_net_of
from workbench.methods.common.feature import FeatureDrafter, FeatureState, load_net
from workbench.methods.common.feature_net import QKV_ONLY, FeatureNet, PromptInputs
from workbench.methods.common.trained_net import head_of
from workbench.models.loading import Models
from workbench.models.runner import SCRATCH


class Eagle3Net(FeatureNet):
    """EAGLE-3's drafter: a decoder layer on normalised embedding and state, optionally with its own LM head.

    Args:
        width: the target's hidden size D.
        heads: number of attention heads.
        ffn: inner width of the gated MLP.
        taps: numbers of the T target layers whose outputs are fused, counted from 1, ascending.
        draft_vocab_size: vocabulary size W of the drafter's own LM head; 0: the target's LM head is used.
        context: maximum sequence length, in positions.

    Raises:
        ValueError: there are fewer than two taps, or they are not distinct and ascending. The released code computes
            the three layer numbers by formulas, two of which coincide in a shallow target.

    Source: Li et al. 2025, EAGLE-3, arXiv:2503.01840, §3.
    """

    kind: ClassVar[str] = "eagle-3"
    predicts_features: ClassVar[bool] = False
    input_fusion: ClassVar[str] = QKV_ONLY
    d2t: Tensor

    def __init__(
        self, width: int, heads: int, ffn: int, taps: abc.Sequence[int] = (1, 2), draft_vocab_size: int = 32,
        context: int = 1024,
    ) -> None:  # fmt: skip
        super().__init__(width, heads, ffn, context)
        if len(taps) < 2 or any(a >= b for a, b in zip((0, *taps), taps, strict=False)):
            raise ValueError(f"taps={list(taps)}: give two or more layer numbers from 1, ascending and distinct")
        self.taps = tuple(taps)
        del self.norm_feature  # `before` normalises a state; the target's states are fused without a norm
        self.fuse = nn.Linear(len(taps) * width, width, bias=False)
        self.qkv = nn.Linear(2 * width, 3 * width, bias=False)
        if draft_vocab_size:
            self.lm_head = nn.Linear(width, draft_vocab_size, bias=False)
            self.register_buffer("d2t", torch.zeros(draft_vocab_size, dtype=torch.int64))
            """For each draft token, its id in the target's vocabulary minus its draft id, int64 [W]. The released
            weights have the same table."""

    @property
    def has_lm_head(self) -> bool:
        """Return whether the EAGLE-3 net has its own LM head."""
        return hasattr(self, "lm_head")

    @property
    def draft_token_ids(self) -> Int[Tensor, " W"]:
        """Return the target's ids of the W tokens of the draft vocabulary, ascending."""
        return self.d2t + torch.arange(len(self.d2t), device=self.d2t.device)

    def combine_hidden_states(self, features: Float[Tensor, "*b TD"]) -> Float[Tensor, "*b D"]:
        """Fuse the target's concatenated hidden states of T layers into one state."""
        return self._times("fuse", features)

    def make_pairs(self, next_embeds: Float[Tensor, "*b D"], features: Float[Tensor, "*b D"]) -> Float[Tensor, "*b E"]:
        """Return the layer's inputs [normalised embedding of the next token ; state], E = 2 D.

        Args:
            next_embeds: embeddings of the next tokens.
            features: states, which are the target's fused hidden states or the layer's own last states.
        """
        return torch.cat([self.norm_embed(next_embeds), features], -1)

    def attention_inputs(self, x: Float[Tensor, "B n E"]) -> tuple[Float[Tensor, "B n D"], Float[Tensor, "B n R"]]:
        """Return the state g as residual stream, and [embedding ; normalised g] as input of the attention."""
        embeds, state = x.chunk(2, -1)
        return state, torch.cat([embeds, self.before(state)], -1)

    def logits(self, state: Float[Tensor, "*b D"]) -> Float[Tensor, "*b W"]:
        """Return logits of the next token over the draft vocabulary, computed by the net's own LM head."""
        return self.lm_head(self.lm_head_input(state))

    @property
    def sizes(self) -> dict[str, Any]:
        """Return the constructor arguments that rebuild EAGLE-3's net."""
        return super().sizes | {"taps": list(self.taps), "draft_vocab_size": len(self.d2t) if self.has_lm_head else 0}


def default_capture_layers(layers: int) -> tuple[int, ...]:
    """Return a low, a middle and a high layer of a target with L layers, counted from 1.

    These are layers 2, L/2 and L − 3, as in the released code. If those are not distinct and ascending, because L is
    small, other layers are chosen.

    Raises:
        ValueError: the target has fewer than three layers.

    Example:
        >>> default_capture_layers(32), default_capture_layers(12), default_capture_layers(5), default_capture_layers(3)
        ((2, 16, 29), (2, 6, 9), (1, 2, 4), (1, 2))
    """
    released = (2, layers // 2, layers - 3)
    if released[0] < released[1] < released[2]:
        return released
    if layers < 3:
        raise ValueError(f"a target of {layers} layers has no low, middle and high layer to fuse")
    return tuple(sorted({1, layers // 2, layers - 1} if layers > 3 else {1, 2}))


class DraftLMHead(SharedHead):
    """Own LM head of an EAGLE-3 drafter, over its draft vocabulary.

    Args:
        net: the drafter.
        size: V, size of the target's vocabulary.

    Raises:
        ModelError: a token of the draft vocabulary is not in the target's vocabulary, or occurs twice.
    """

    def __init__(self, net: Eagle3Net, size: int) -> None:
        ids = net.draft_token_ids
        if not bool(((ids >= 0) & (ids < size)).all()) or not bool((ids.diff() > 0).all()):
            raise ModelError(
                f"The table `d2t` of these EAGLE-3 weights does not map its {len(ids)} tokens to distinct tokens of "
                f"the target's {size:,} tokens.",
                "Train the head again for this target, or fetch it again.",
            )
        self.token_ids, self._size = ids, size
        self._weight = weight = net.lm_head.get_parameter("weight").detach()
        self._product = Matrix(weight) if is_small_on_cpu(net) else partial(nn.functional.linear, weight=weight)

    @property
    def rows(self) -> Float[Tensor, "W D"]:
        """Return the rows of the LM head's weight for the W tokens of the draft vocabulary."""
        return self._weight


@dataclass(frozen=True)
class Eagle3(FeatureDrafter):
    """Draft from the target's fused hidden states of three layers, then from the drafter layer's own states.

    In a prompt with images the drafter reads only the text after the images.

    Source: Li et al. 2025, EAGLE-3, arXiv:2503.01840, §3; the tree is EAGLE-2's.
    """

    needs: ClassVar[tuple[str, ...]] = (Eagle3Net.kind, "trees")
    net: ClassVar[type[FeatureNet]] = Eagle3Net

    def captured_layers(self, models: Models) -> set[int]:
        """Return the indices of the target layers whose outputs the drafter was trained to read."""
        return {layer - 1 for layer in _net(models).taps} if Eagle3Net.kind in models.heads else set()

    def captures(self, models: Models) -> CaptureSelection:
        """Return which hidden states of the target prefill captures: those that the drafter reads."""
        return select_layers(_net(models).taps)

    def init_state(self, sequence: Sequence, models: Models) -> FeatureState:
        """Prefill the drafter with the target's hidden states of all committed positions but the last.

        Positions of images are left out.
        """
        net, target, slot = _net(models), models.target, sequence.cache_slot
        end = len(sequence.committed) - 1
        first = min(slot.image_prefill_length, end)
        like = torch.empty(0, dtype=target.dtype, device=target.device)
        capacity = len(sequence.committed) + sequence.remaining + SCRATCH
        entries, head = DraftKVCache(net.heads, net.head_size, capacity, like), _head(net, models)
        state = FeatureState(net, models, head, entries, compiled_net=compiled_net_of(net, head, models))
        with torch.inference_mode():
            if first < end:
                streams = states_of(sequence, models, select_layers(net.taps), first).layer_states
                following = target.embed(to_device(sequence.committed[first + 1 :], target.device))
                pairs = net.make_pairs(
                    following, net.combine_hidden_states(concat_hidden_states(streams, net.taps))
                ).unsqueeze(0)
                state.prefill(PromptInputs(pairs, torch.arange(first, end, device=target.device)), end)
        state.position = end
        return state

    def begin(self, sequence: Sequence) -> PartialTree | None:
        """Start a draft tree, and record how many of the last round's tokens are not in the draft vocabulary."""
        state: FeatureState = sequence.state.drafter
        if (vocabulary := state.head.vocabulary) is not None:
            sequence.report.signals["outside the draft vocabulary"] = sum(t not in vocabulary for t in state.tokens)
        return super().begin(sequence)

    def observe(self, sequence: Sequence, feedback: RoundFeedback) -> None:
        """Store the target's hidden states of the root and of the accepted nodes, for the next draft."""
        accepted = feedback.path_indices
        sequence.state.drafter.features.append(
            concat_hidden_states(feedback.layer_states, sequence.state.drafter.net.taps)[accepted]
        )
        sequence.state.drafter.tokens += feedback.emitted

    def explain(
        self,
        models: Models,
        request: Request,
        tokens: abc.Sequence[int],
        on_progress: Callable[[float], None] = lambda _: None,
    ) -> None:
        """Return None, because a drafter that reads no images has no attribution maps."""


def _net(models: Models) -> Eagle3Net:
    """Return the EAGLE-3 net that was trained for the target of `models`. It is loaded once.

    Raises:
        ModelError: the head cannot be read, or reads layers that the target does not have.
    """
    net, layers = load_net(Eagle3Net, models, "chat-heads"), models.target.n_layers
    assert isinstance(net, Eagle3Net)
    if net.taps[-1] > layers:
        raise ModelError(
            f"These EAGLE-3 weights read the target's layers {', '.join(map(str, net.taps))}, but the target has "
            f"{layers} layers.",
            "Train a head for this target: workbench train eagle-3 --target …",
        )
    return net


def _head(net: Eagle3Net, models: Models) -> SharedHead:
    """Return the LM head of an EAGLE-3 net: its own, or the target's over the draft vocabulary.

    The LM head is built once and cached.

    Raises:
        ModelError: the net's draft vocabulary has tokens that the target does not have.
    """
    if not net.has_lm_head:
        return head_of(Eagle3Net, models)
    key = ("head of", net.kind, models.heads[net.kind].name)
    if key not in models.shared:
        models.shared[key] = DraftLMHead(net, models.target.vocab_size)
    return models.shared[key]


def select_layers(layers: abc.Sequence[int]) -> CaptureSelection:
    """Return a selection that captures the outputs of the given target layers, counted from 1, during prefill."""
    return CaptureSelection(layers=frozenset(layer - 1 for layer in layers))


def concat_hidden_states(
    hidden_states: Mapping[int, Float[Tensor, "*b D"]], layers: abc.Sequence[int]
) -> Float[Tensor, "*b TD"]:
    """Return the concatenated outputs of T layers of the target.

    Args:
        hidden_states: outputs by index of the layer, from 0.
        layers: numbers of the T layers, counted from 1.
    """
    return torch.cat([hidden_states[layer - 1] for layer in layers], -1)
