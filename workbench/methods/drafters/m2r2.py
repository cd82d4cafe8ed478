"""M2R2: beside the target's residual stream runs a faster one, which after a few layers is where that one is after all.

Early exit asks the stream h behind layer E what comes next, and h was not made to be asked there: it still has to carry
what the layers above will need. A second stream r need not. It begins as h does and goes through the same E layers,
each attention and each feed-forward between two low-rank adapters A = 1 + B C; what it looks at are the first one's
keys and values.

    slow     h ← h + O · attention( Q h, K h, V h )               h ← h + feed-forward( h )        of each token read
    fast     r ← r + A′ O · attention( Q A r, K h, V h )          r ← r + A‴ feed-forward( A″ r )  where one is guessed
    leaves   r(E)  →  final norm, LM head  →  law of the next token

So the fast stream has no cache and leaves nothing behind, and the slow one is what verification goes on from.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch
from jaxtyping import Float
from torch import Tensor, nn

from workbench.core.errors import ModelError
from workbench.engine.request import Row
from workbench.kernels.layers import name_of, shallow
from workbench.kernels.segment import Output, Segment
from workbench.kernels.weight_sharing import Twin
from workbench.methods.drafters.early_exit import Exit, Exiting, ExitStates
from workbench.methods.drafters.trained import TrainedNet, load_fitting
from workbench.methods.growers.chain import single
from workbench.models.loading import Models
from workbench.models.truncated_target import beginning, with_weights

AGAIN = "Train them for this target: workbench train m2r2 --target …"
PLACES = (("asks", "read"), ("feeds", "fed"))
"""Adapters before and behind a layer's attention, and before and behind its feed-forward."""
READS = {"asks": ("self_attn.q_proj",), "feeds": ("mlp.gate_proj", "mlp.up_proj")}
"""In layers like Llama's, the products that read what an adapter makes. Of keys and values nothing is read."""
GIVES = {"read": "self_attn.o_proj", "fed": "mlp.down_proj"}
"""And those of which one reads what they give."""


class Adapter(nn.Module):
    """x + B C x, with C [R, D] and B [D, R]; B begins as zero, so that it does nothing."""

    def __init__(self, width: int, rank: int) -> None:
        super().__init__()
        self.down, self.up = nn.Linear(width, rank, bias=False), nn.Linear(rank, width, bias=False)
        nn.init.zeros_(self.up.weight)

    def forward(self, x: Float[Tensor, "*b D"]) -> Float[Tensor, "*b D"]:
        return x + self.up(self.down(x))

    def before(self, weight: Float[Tensor, "o D"]) -> Float[Tensor, "o D"]:
        """Of a product that reads what this makes, the weight by which it reads what this is given."""
        wide = single(weight)
        return wide + wide @ self.up.weight.to(wide) @ self.down.weight.to(wide)

    def behind(self, given: Float[Tensor, "D i"]) -> Float[Tensor, "D i"]:
        """This of each column: of a product's weight, or of its bias as one column."""
        wide = single(given)
        return wide + self.up.weight.to(wide) @ (self.down.weight.to(wide) @ wide)


class Half(nn.Module):
    """A layer's attention or feed-forward between two adapters."""

    def __init__(self, half: nn.Module, before: Adapter, behind: Adapter) -> None:
        super().__init__()
        self.within, self.before, self.behind = half, before, behind

    def forward(self, hidden_states: Tensor, *args: Any, **named: Any) -> Any:
        made = self.within(self.before(hidden_states), *args, **named)
        return (self.behind(made[0]), *made[1:]) if isinstance(made, tuple) else self.behind(made)


class Accelerators(TrainedNet):
    """Four adapters in each of the target's first E layers: 8 E R D weights. They know the target by its width alone.

    Args:
        width: the target's hidden size D.
        exit_layer: E, how many layers, counted from 1.
        rank: R.
        context: longest sequence, in positions; of no account here.

    Raises:
        ValueError: there would be no layer, or nothing in it.

    Source: Bhendawade et al. 2025, M2R2, arXiv:2502.02040 (accelerator adapters, keys and values of the slow stream).
    The wiring is ours: no code was released.
    """

    kind: ClassVar[str] = "m2r2"
    begins: ClassVar[tuple[str, ...]] = ("layers.",)

    def __init__(self, width: int, exit_layer: int = 4, rank: int = 16, context: int = 1024) -> None:
        super().__init__()
        if type(exit_layer) is not int or type(rank) is not int:
            raise TypeError(f"exit_layer={exit_layer!r:.20} and rank={rank!r:.20} must be whole numbers")
        if exit_layer < 1 or rank < 1:
            raise ValueError(f"exit_layer={exit_layer} and rank={rank} must be 1 or more")
        self.width, self.exit_layer, self.rank = width, exit_layer, rank
        places = [place for pair in PLACES for place in pair]
        self.layers = nn.ModuleList(
            nn.ModuleDict({place: Adapter(width, rank) for place in places}) for _ in range(exit_layer)
        )

    def adapter(self, layer: int, place: str) -> Adapter:
        """One of a layer, counted from 0."""
        found = self.layers[layer].get_submodule(place)
        assert isinstance(found, Adapter)
        return found

    def within(self, layer: nn.Module, number: int) -> nn.Module:
        """A copy of the target's layer of this number, from 0, in which the adapters stand; it shares all weights.

        Raises:
            ModelError: its attention or feed-forward has an unknown name.
        """
        twin = shallow(layer)
        for half, (before, behind) in enumerate(PLACES):
            if (name := name_of(layer, half)) is None:
                what = "MLP" if half else "attention"
                raise ModelError(
                    f"Accelerator adapters wrap a layer's attention and MLP, and {type(layer).__name__} has no "
                    f"separate {what}.",
                    "Choose another method: early-exit drafts with the first layers of any target.",
                )
            own = layer.get_submodule(name)
            twin._modules[name] = Half(own, self.adapter(number, before), self.adapter(number, behind))
        return twin

    def merged(self, layer: nn.Module, number: int) -> nn.Module:
        """The same of a layer like Llama's, with the adapters in its products, which are copied: no more operations."""
        made: dict[str, Tensor] = {}
        for place, products in READS.items():
            for name in products:
                made[f"{name}.weight"] = self.adapter(number, place).before(layer.get_parameter(f"{name}.weight"))
        for place, name in GIVES.items():
            adapter, product = self.adapter(number, place), layer.get_submodule(name)
            made[f"{name}.weight"] = adapter.behind(product.get_parameter("weight"))
            if getattr(product, "bias", None) is not None:
                made[f"{name}.bias"] = adapter.behind(product.get_parameter("bias").unsqueeze(1)).squeeze(1)
        return with_weights(layer, made)

    @property
    def sizes(self) -> dict[str, Any]:
        """What the constructor needs to build it again."""
        return {"width": self.width, "exit_layer": self.exit_layer, "rank": self.rank}


@dataclass(slots=True)
class Streams:
    """What a row drafts with, and what it keeps of a draft.

    Attributes:
        twin: the first layers, with the adapters in them.
        layer: E.
        exit: states of the slow stream.
    """

    twin: Twin
    layer: int
    exit: ExitStates = field(default_factory=ExitStates)


@dataclass(frozen=True, slots=True)
class FastExit(Exit):
    """The target's first layers, which the slow stream goes through and the fast one behind it. See `draft_chain`."""

    twin: Twin

    def forward(self, batch: Sequence[Segment], *, layers: Sequence[int] | None = None) -> Output:
        """Logits of the fast stream, in the order of the rows in the cache."""
        self.read(batch, head=False)
        out = self.target.forward([beside(segment) for segment in batch], twin=self.twin)
        for segment in batch:
            segment.slot.scratch -= len(segment.tokens)
        return out


def beside(segment: Segment) -> Segment:
    """Tokens that were just read, once more: in their own places of the text, each sees what it saw, and nothing new.

    What such a pass writes stands behind the row's scratch, where the next one writes over it.
    """
    slot, n = segment.slot, len(segment.tokens)
    sees = torch.ones(n, slot.scratch, dtype=torch.bool, device=segment.tokens.device).tril(slot.scratch - n)
    places = torch.arange(slot.scratch - n, slot.scratch, device=segment.tokens.device)
    return Segment(slot, segment.tokens, sees, places)


@dataclass(frozen=True)
class M2R2(Exiting):
    """Draft with a fast stream through the target's first layers; verify from the slow one's. See `Exiting`.

    Each drafted token costs two passes of these layers: the slow stream's, whose keys, values and exit states are the
    target's own and stay, and the fast one's.

    Source: Bhendawade et al. 2025, M2R2, arXiv:2502.02040.
    """

    needs: ClassVar[tuple[str, ...]] = (Accelerators.kind, "trees")
    source: ClassVar[str] = "m2r2"

    def prime(self, row: Row, models: Models) -> Streams:
        """The adapters, loaded and put into copies of the target's products once.

        Raises:
            ModelError: they cannot be read, or were made for another target; its layers are made otherwise.
        """
        net = load_fitting(Accelerators, models, "accelerator adapters", AGAIN)
        return Streams(twin_of(net, models), net.exit_layer)

    def exit_of(self, row: Row) -> int:
        """Where the adapters were trained to be read."""
        return row.state.layer

    def kept(self, row: Row) -> ExitStates:
        """Beside the twin."""
        return row.state.exit

    def speaker(self, rows: Sequence[Row], exit_layer: int, wanted: Collection[int]) -> FastExit:
        """Both streams."""
        slow = super().speaker(rows, exit_layer, wanted)
        return FastExit(slow.target, exit_layer, wanted, slow.states, rows[0].state.twin)


def twin_of(net: Accelerators, models: Models) -> Twin:
    """The target's first layers with a net's adapters in them, made once for a target.

    Raises:
        ModelError: it has not so many layers, or such as adapters cannot stand in.
    """
    key = ("layers of", net.kind, models.heads[net.kind].name)
    if key not in models.shared:
        target = models.target
        if net.exit_layer > target.n_layers:
            message = f"These adapters are for {net.exit_layer} layers; the target has {target.n_layers}."
            raise ModelError(message, AGAIN)
        put = net.within if target.lean is None else net.merged
        with torch.inference_mode(False), torch.no_grad():
            layers = [put(target.layers[i], i) for i in range(net.exit_layer)]
        models.shared[key] = beginning(target, layers)
    return models.shared[key]
