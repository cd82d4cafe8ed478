"""M2R2: an accelerated residual stream, parallel to the target's own, is close to the final state after a few layers.

Early exit reads the residual stream h after layer E, but h also has to carry information for the later layers. A second
residual stream r does not. The stream r starts equal to h and passes the same E layers, where each attention and each
MLP is between two low-rank adapters A = 1 + B C. It attends to the keys and values of the first stream.

    slow     h ← h + O · attention( Q h, K h, V h )               h ← h + MLP( h )         for each token read
    fast     r ← r + A′ O · attention( Q A r, K h, V h )          r ← r + A‴ MLP( A″ r )   where a token is predicted
    exit     r(E)  →  final norm, LM head  →  distribution of the next token

The fast stream therefore needs no KV cache, and verification continues from the slow stream.
"""

from __future__ import annotations

from collections import abc
from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch
from jaxtyping import Float
from torch import Tensor, nn

from workbench.core.errors import ModelError
from workbench.engine.request import Sequence
from workbench.kernels.layers import name_of, shallow_copy
from workbench.kernels.segment import Output, Segment
from workbench.kernels.weight_sharing import WeightSharingCopy
from workbench.methods.common.trained_net import TrainedNet, load_fitting
from workbench.methods.early_exit.drafter import EarlyExitDrafter, ExitStates, TruncatedTarget
from workbench.methods.tree_builders.chain import to_float32
from workbench.models.loading import Models
from workbench.models.truncated_target import truncate_target, with_weights

TRAIN_ADVICE = "Train a head for this target: workbench train m2r2 --target …"
ADAPTER_NAMES = (("asks", "read"), ("feeds", "fed"))
"""Names of the four adapters of a layer: before and after its attention, before and after its MLP."""
INPUT_PROJECTIONS = {"asks": ("self_attn.q_proj",), "feeds": ("mlp.gate_proj", "mlp.up_proj")}
"""Names of the projections of Llama-like layers whose input comes from an adapter. Keys and values have none."""
OUTPUT_PROJECTIONS = {"read": "self_attn.o_proj", "fed": "mlp.down_proj"}
"""Names of the projections of Llama-like layers whose output goes into an adapter."""


class Adapter(nn.Module):
    """Adapter x + B C x of rank R and width D, with C [R, D] and B [D, R].

    B is initialised as 0, so the adapter starts as the identity.
    """

    def __init__(self, width: int, rank: int) -> None:
        super().__init__()
        self.down, self.up = nn.Linear(width, rank, bias=False), nn.Linear(rank, width, bias=False)
        nn.init.zeros_(self.up.weight)

    def forward(self, x: Float[Tensor, "*b D"]) -> Float[Tensor, "*b D"]:
        return x + self.up(self.down(x))

    def merge_into_next(self, weight: Float[Tensor, "o D"]) -> Float[Tensor, "o D"]:
        """Return the weight of a projection after this adapter, with the adapter merged into it."""
        wide = to_float32(weight)
        return wide + wide @ self.up.weight.to(wide) @ self.down.weight.to(wide)

    def merge_into_previous(self, weight: Float[Tensor, "D i"]) -> Float[Tensor, "D i"]:
        """Return a weight or bias of a projection before this adapter, with the adapter merged into it."""
        wide = to_float32(weight)
        return wide + self.up.weight.to(wide) @ (self.down.weight.to(wide) @ wide)


class AdaptedHalfLayer(nn.Module):
    """Attention or MLP of a target layer, placed between two low-rank adapters."""

    def __init__(self, half: nn.Module, before: Adapter, after: Adapter) -> None:
        super().__init__()
        self.within, self.before, self.after = half, before, after

    def forward(self, hidden_states: Tensor, *args: Any, **named: Any) -> Any:
        output = self.within(self.before(hidden_states), *args, **named)
        return (self.after(output[0]), *output[1:]) if isinstance(output, tuple) else self.after(output)


class Accelerators(TrainedNet):
    """Four adapters in each of the target's first E layers: 8 E R D weights, R the rank and D the target's width.

    Args:
        width: the target's hidden size D.
        exit_layer: number E of layers with adapters.
        rank: rank R of the adapters.
        context: unused; all nets have this argument.

    Raises:
        ValueError: `exit_layer` or `rank` is less than 1.

    Source: Bhendawade et al. 2025, M2R2, arXiv:2502.02040 (accelerator adapters, keys and values of the slow stream).
    No code was released, so the details are ours.
    """

    kind: ClassVar[str] = "m2r2"
    no_random_init: ClassVar[tuple[str, ...]] = ("layers.",)

    def __init__(self, width: int, exit_layer: int = 4, rank: int = 16, context: int = 1024) -> None:
        super().__init__()
        if type(exit_layer) is not int or type(rank) is not int:
            raise TypeError(f"exit_layer={exit_layer!r:.20} and rank={rank!r:.20} must be whole numbers")
        if exit_layer < 1 or rank < 1:
            raise ValueError(f"exit_layer={exit_layer} and rank={rank} must be 1 or more")
        self.width, self.exit_layer, self.rank = width, exit_layer, rank
        places = [place for pair in ADAPTER_NAMES for place in pair]
        self.layers = nn.ModuleList(
            nn.ModuleDict({place: Adapter(width, rank) for place in places}) for _ in range(exit_layer)
        )

    def adapter(self, layer: int, place: str) -> Adapter:
        """Return one of the four M2R2 adapters of a target layer.

        Args:
            layer: index of the target layer, from 0.
            place: name of the adapter, from `ADAPTER_NAMES`.
        """
        adapter = self.layers[layer].get_submodule(place)
        assert isinstance(adapter, Adapter)
        return adapter

    def with_adapters(self, layer: nn.Module, number: int) -> nn.Module:
        """Return a weight-sharing copy of a target layer with adapters inserted.

        Args:
            layer: target layer.
            number: index of the layer whose adapters are used, from 0.

        Raises:
            ModelError: attention or MLP of the layer has an unknown name.
        """
        shared_copy = shallow_copy(layer)
        for half, (before, behind) in enumerate(ADAPTER_NAMES):
            if (name := name_of(layer, half)) is None:
                part = "MLP" if half else "attention"
                raise ModelError(
                    f"Accelerator adapters wrap a layer's attention and MLP, and {type(layer).__name__} has no "
                    f"separate {part}.",
                    "Choose another method, such as early-exit, which drafts with the first layers of any target.",
                )
            module = layer.get_submodule(name)
            shared_copy._modules[name] = AdaptedHalfLayer(
                module, self.adapter(number, before), self.adapter(number, behind)
            )
        return shared_copy

    def with_merged_adapters(self, layer: nn.Module, number: int) -> nn.Module:
        """Return a copy of a Llama-like layer with the adapters merged into its projections.

        Args:
            layer: target layer.
            number: index of the layer whose adapters are used, from 0.
        """
        weights: dict[str, Tensor] = {}
        for place, products in INPUT_PROJECTIONS.items():
            for name in products:
                weights[f"{name}.weight"] = self.adapter(number, place).merge_into_next(
                    layer.get_parameter(f"{name}.weight")
                )
        for place, name in OUTPUT_PROJECTIONS.items():
            adapter, product = self.adapter(number, place), layer.get_submodule(name)
            weights[f"{name}.weight"] = adapter.merge_into_previous(product.get_parameter("weight"))
            if getattr(product, "bias", None) is not None:
                weights[f"{name}.bias"] = adapter.merge_into_previous(
                    product.get_parameter("bias").unsqueeze(1)
                ).squeeze(1)
        return with_weights(layer, weights)

    @property
    def sizes(self) -> dict[str, Any]:
        """Return the constructor arguments that rebuild M2R2's adapters."""
        return {"width": self.width, "exit_layer": self.exit_layer, "rank": self.rank}


@dataclass(slots=True)
class M2R2State:
    """Drafting state of M2R2 for one sequence.

    Attributes:
        shared_copy: weight-sharing copy of the target's first layers with adapters.
        layer: number E of layers in the copy.
        exit: the last draft, and hidden states of the slow stream after layer E.
    """

    shared_copy: WeightSharingCopy
    layer: int
    exit: ExitStates = field(default_factory=ExitStates)


@dataclass(frozen=True, slots=True)
class FastTruncatedTarget(TruncatedTarget):
    """Draft model that runs the target's first layers twice: unchanged (slow stream), then adapted (fast stream)."""

    shared_copy: WeightSharingCopy

    def forward(self, batch: abc.Sequence[Segment], *, layers: abc.Sequence[int] | None = None) -> Output:
        """Return logits of the fast residual stream (with adapters), in the order of the sequences' KV cache slots."""
        self.run_layers(batch, head=False)
        out = self.target.forward([fast_stream_segment(segment) for segment in batch], shared_copy=self.shared_copy)
        for segment in batch:
            segment.slot.scratch -= len(segment.tokens)
        return out


def fast_stream_segment(segment: Segment) -> Segment:
    """Return a segment (tokens of one sequence in a forward pass) that processes another segment's tokens again.

    Positions and attention mask are the same.

    Its KV cache entries are written after the scratch part of the sequence's slot, where the next forward pass
    overwrites them.
    """
    slot, n = segment.slot, len(segment.tokens)
    sees = torch.ones(n, slot.scratch, dtype=torch.bool, device=segment.tokens.device).tril(slot.scratch - n)
    places = torch.arange(slot.scratch - n, slot.scratch, device=segment.tokens.device)
    return Segment(slot, segment.tokens, sees, places)


@dataclass(frozen=True)
class M2R2(EarlyExitDrafter):
    """Draft with a fast stream through the target's first layers, and verify from the slow stream's hidden states.

    Each drafted token costs two passes through these layers: unchanged (slow stream) and with adapters (fast stream).
    The slow stream's keys, values and exit states are the target's own, so verification reuses them. The fast stream
    gives the prediction of the next token.

    Source: Bhendawade et al. 2025, M2R2, arXiv:2502.02040.
    """

    needs: ClassVar[tuple[str, ...]] = (Accelerators.kind, "trees")
    source: ClassVar[str] = "m2r2"

    def init_state(self, sequence: Sequence, models: Models) -> M2R2State:
        """Return the drafting state, with the target's adapted layers, which are created once per target.

        Raises:
            ModelError: the adapters cannot be read, were trained for another target, or do not fit the target's layers.
        """
        net = load_fitting(Accelerators, models, "accelerator adapters", TRAIN_ADVICE)
        return M2R2State(adapted_layers_of(net, models), net.exit_layer)

    def exit_of(self, sequence: Sequence) -> int:
        """Return the number of the target's first layers for which the adapters were trained."""
        return sequence.state.drafter.layer

    def exit_record(self, sequence: Sequence) -> ExitStates:
        """Return the object that stores this round's draft and the target's own hidden states after the exit layer."""
        return sequence.state.drafter.exit

    def truncated_target(
        self, sequences: abc.Sequence[Sequence], exit_layer: int, capture_layers: Collection[int]
    ) -> FastTruncatedTarget:
        """Return the target's first layers as a draft model that runs them twice.

        The first pass is unchanged (slow residual stream), the second one uses the adapters (fast residual stream).

        Args:
            sequences: sequences that draft together.
            exit_layer: number of layers that draft.
            capture_layers: indices of the layers whose hidden states are stored.
        """
        slow = super().truncated_target(sequences, exit_layer, capture_layers)
        return FastTruncatedTarget(
            slow.target, exit_layer, capture_layers, slow.states, sequences[0].state.drafter.shared_copy
        )


def adapted_layers_of(net: Accelerators, models: Models) -> WeightSharingCopy:
    """Return the target's first layers with M2R2's adapters inserted. They are created once per target.

    Raises:
        ModelError: the target has too few layers, or layers that do not support adapters.
    """
    key = ("layers of", net.kind, models.heads[net.kind].name)
    if key not in models.shared:
        target = models.target
        if net.exit_layer > target.n_layers:
            message = (
                f"These adapters are for the first {net.exit_layer} layers of a target, but this target has "
                f"{target.n_layers} layers."
            )
            raise ModelError(message, TRAIN_ADVICE)
        adapt = net.with_adapters if target.lean is None else net.with_merged_adapters
        with torch.inference_mode(False), torch.no_grad():
            layers = [adapt(target.layers[i], i) for i in range(net.exit_layer)]
        models.shared[key] = truncate_target(target, layers)
    return models.shared[key]
