"""Hidden transfer: predict hidden states of future tokens at a middle layer, and run them through the later layers.

Trained matrices P(k) turn the output h(t) of middle layer l at position t into *pseudo hidden states* of the future
tokens at t + 1, t + 2, …. The pseudo hidden states enter layer l + 1, in addition to the draft, and the later layers
refine them:

    layers 1 … l       x(t) → h(t)
    between            h(t) → P(1) h(t), P(2) h(t), …, at positions t + 1, t + 2, …
    layers l + 1 … L   attend to the text, the draft up to their node, and the pseudo states before them → predictions

The pseudo hidden states are probes in the forward pass. `ProbeDrafter` defines their positions and uses the
predictions.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar

import torch
from jaxtyping import Float
from torch import Tensor, nn

from workbench.core.errors import ModelError
from workbench.core.probes import LayerInput, Probes
from workbench.core.transfer import to_device
from workbench.core.tree import DraftTree
from workbench.decoders.draft_verify.two_part_pass import may_enter
from workbench.engine.request import Sequence
from workbench.methods.common.probe_drafter import ProbeDrafter, ProbeLayout, ProbeNet, ProbeState
from workbench.methods.common.trained_net import load_fitting
from workbench.models.loading import Models

TRAIN_ADVICE = "Train a head for this target: workbench train hidden-transfer --target …"


class Transfers(ProbeNet):
    """Drafter of hidden transfer: K matrices of size D × D, each initialised as the identity. Nothing else is trained.

    Args:
        width: the target's hidden size D.
        transfers: number K of matrices.
        transfer_layer: number l of the target layer whose output is transferred, counted from 1.
        context: unused; all nets have this argument.

    Source: Wu et al. 2024, Parallel decoding via hidden transfer, arXiv:2404.12022, §3.
    """

    kind: ClassVar[str] = "hidden-transfer"
    no_random_init: ClassVar[tuple[str, ...]] = ("steps.",)

    def __init__(self, width: int, transfers: int = 3, transfer_layer: int = 4, context: int = 1024) -> None:
        super().__init__()
        if type(transfer_layer) is not int or transfer_layer < 1:
            raise TypeError(f"transfer_layer={transfer_layer!r:.20} is not a layer number: give a whole number from 1")
        self.width, self.levels, self.transfer_layer = width, transfers, transfer_layer
        self.steps = nn.ModuleList(nn.Linear(width, width, bias=False) for _ in range(transfers))
        for step in self.steps:
            nn.init.eye_(step.get_parameter("weight"))

    def forward(self, states: Float[Tensor, "*b D"]) -> Float[Tensor, "*b K D"]:
        """Return the pseudo hidden states of the next K positions.

        Args:
            states: output of target layer l.
        """
        return torch.stack([step(states) for step in self.steps], -2)

    @property
    def sizes(self) -> dict[str, Any]:
        """Return the constructor arguments that rebuild the transfer matrices."""
        return {"width": self.width, "transfers": self.levels, "transfer_layer": self.transfer_layer}


@dataclass(frozen=True)
class HiddenTransfer(ProbeDrafter):
    """Draft with predicted (pseudo) hidden states of future tokens, which the verifying pass processes as well.

    `ProbeDrafter` describes the algorithm.

    Source: Wu et al. 2024, Parallel decoding via hidden transfer, arXiv:2404.12022, §3.
    """

    needs: ClassVar[tuple[str, ...]] = (Transfers.kind, "trees")
    display_name: ClassVar[str] = "pseudo states"

    def init_state(self, sequence: Sequence, models: Models) -> ProbeState:
        """Return the drafting state with the transfer matrices of hidden transfer, which are loaded once per target.

        Raises:
            ModelError: the matrices cannot be read or were trained for another target, or the target's forward pass
                cannot be split after the layer that the matrices read.
        """
        net, target = load_fitting(Transfers, models, "transfer matrices", TRAIN_ADVICE), models.target
        if net.transfer_layer > target.n_layers:
            message = (
                f"These transfer matrices read the target's layer {net.transfer_layer}, but the target has "
                f"{target.n_layers} layers."
            )
            raise ModelError(message, TRAIN_ADVICE)
        if not may_enter(sequence, models, net.transfer_layer):
            raise ModelError(
                f"Layers of {models.target_name or 'this target'} pass on more than one hidden state, so no pseudo "
                f"state can be inserted after layer {net.transfer_layer}.",
                "Choose another method.",
            )
        return ProbeState(net)

    def add_probe_inputs(self, sequence: Sequence, tree: DraftTree, layout: ProbeLayout, probes: Probes) -> Probes:
        """Return the probes (extra positions for drafting) of a forward pass. Their inputs are pseudo hidden states.

        The trace shows each pseudo hidden state (predicted hidden state of a future token) with the token at the
        position from which it was computed.
        """
        net: Transfers = sequence.state.drafter.net
        tokens = torch.cat([to_device(sequence.committed[-1:], tree.tokens.device), tree.tokens])[layout.anchor]

        def made(states: Float[Tensor, "n D"]) -> Float[Tensor, "P D"]:
            return net(states.to(sequence.models.target.dtype))[layout.anchor, layout.step]

        return replace(probes, tokens=tokens, layer_input=LayerInput(net.transfer_layer, made))
