"""Probe positions: extra tokens after a draft that the target's forward pass computes but never accepts."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from workbench.core.tree import DraftTree, tree_attention_mask


@dataclass(frozen=True, slots=True)
class LayerInput:
    """Layer at which probe tokens enter the forward pass, and a function that computes their hidden states.

    Attributes:
        layer: number of the target's first layers that run without these probes; at least 1.
        make_states: function from the hidden states after those layers [N+1, D], row 0 at the last committed token and
            row i + 1 at node i, to the hidden states of the probes [P, D].
    """

    layer: int
    make_states: Callable[[Float[Tensor, "N_plus_1 D"]], Float[Tensor, "P D"]]


@dataclass(frozen=True, slots=True)
class Probes:
    """Probes: extra tokens that are processed with a draft of N nodes but never accepted.

    Each has its own position and attention mask. Probes attend to all committed tokens. No node of the draft attends to
    a probe, so the target's logits for the draft do not depend on the probes.

    Attributes:
        tokens: int64 [P] token ids, on the target's device.
        parents: int64 [P], predecessor of each probe, for display: −1 is the last committed token, i < N node i of the
            draft, N + j the earlier probe j. `attention_mask` decides the attention.
        depths: int64 [P], distance of each probe from the last committed token; 1 for the position right after it.
        attention_mask: bool [P, N + P], attention mask over nodes and probes: each probe attends to itself and to no
            later probe.
        max_depth: upper bound of `depths`, known without a synchronisation.
        source: name of the drafter or verifier that requested the probes, for display.
        states: [P, D], input embeddings of the probes; `tokens` are then only for display. None: embed `tokens`.
        layer_input: layer at which the probes enter; `tokens` are then only for display. None: the first layer.
    """

    tokens: Int[Tensor, " P"]
    parents: Int[Tensor, " P"]
    depths: Int[Tensor, " P"]
    attention_mask: Bool[Tensor, "P N_plus_P"]
    max_depth: int
    source: str = ""
    states: Float[Tensor, "P D"] | None = None
    layer_input: LayerInput | None = None

    def __len__(self) -> int:
        return self.tokens.shape[0]

    @classmethod
    def chain(cls, tree: DraftTree, tokens: Int[Tensor, " P"], node: int = -1, source: str = "") -> Probes:
        """Return a chain of probes (tokens that are never accepted) that continues the text after a node of the tree.

        Args:
            tree: draft with N nodes.
            tokens: int64 [P] token ids on the tree's device.
            node: index of the node; −1: the last committed token.
            source: name of the drafter or verifier that requests the probes.
        """
        n, p = len(tree), tokens.shape[0]
        previous = torch.arange(n, n + p, device=tokens.device) - 1
        parents = torch.cat([previous.new_full((min(p, 1),), node), previous[1:]])
        mask = tree_attention_mask(torch.cat([tree.parents, parents]), n + p)[n:]
        return cls(tokens, parents, mask.sum(1), mask, tree.depth + p, source)


@dataclass(frozen=True, slots=True)
class ProbeOutput:
    """The target's outputs at probe positions (extra positions that are never accepted).

    Attributes:
        probes: the requested probes.
        logits: [P, V], the model's raw logits, before penalties, logits processors and temperature.
        hidden: [P, D], inputs of the LM head.
    """

    probes: Probes
    logits: Float[Tensor, "P V"]
    hidden: Float[Tensor, "P D"]


def concat_probes(tree: DraftTree, parts: list[Probes]) -> Probes:
    """Concatenate the probes that several components (drafter, verifier) request.

    No probe attends to the probes of another component. With more than one component, `states`, `layer_input` and
    `source` are dropped.

    Args:
        tree: draft with N nodes.
        parts: probes of each component; at least one component.
    """
    if len(parts) == 1:
        return parts[0]
    n, total = len(tree), sum(map(len, parts))
    sees = parts[0].attention_mask.new_zeros(total, n + total)
    parents, offset = list[Tensor](), 0
    for probes in parts:
        sees[offset : offset + len(probes), :n] = probes.attention_mask[:, :n]
        sees[offset : offset + len(probes), n + offset : n + offset + len(probes)] = probes.attention_mask[:, n:]
        parents.append(torch.where(probes.parents < n, probes.parents, probes.parents + offset))
        offset += len(probes)
    return Probes(
        torch.cat([probes.tokens for probes in parts]),
        torch.cat(parents),
        torch.cat([probes.depths for probes in parts]),
        sees,
        max(probes.max_depth for probes in parts),
    )
