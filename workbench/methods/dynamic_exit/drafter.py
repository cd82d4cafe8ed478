"""DEL: choose in every round the exit layer that drafts, by how well each layer predicts the text so far.

The *shadow token* of layer E at a position is the most likely next token if the final norm and the LM head are applied
to the hidden state after layer E. Verification computes the hidden states of all layers at all accepted positions; they
show how often the shadow token of each exit layer is the token that was emitted.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np
import torch
from jaxtyping import Float

from workbench.core.params import param
from workbench.core.transfer import to_device, to_host
from workbench.decoders.draft_verify.parts import RoundFeedback
from workbench.engine.request import Sequence
from workbench.kernels.layers import decoder_layers
from workbench.methods.early_exit.drafter import EarlyExitDrafter, ExitStates
from workbench.models.loading import Models
from workbench.models.runner import Runner
from workbench.models.side_passes import exit_logits

PRIOR = 0.5
"""Acceptance rate that DEL assumes for each exit layer before the first round. It has the weight of one observed
token."""


@dataclass(slots=True)
class ExitStatistics:
    """Statistics of one sequence about the shadow tokens of each exit layer.

    The shadow token of an exit layer at a position is the token that would be drafted there from this layer. All counts
    and sums are decayed: in every round, those of earlier rounds are multiplied by a factor.

    Attributes:
        layers: m candidate exit layers, counted from 1, ascending.
        n_layers: number of layers of the target.
        head_cost: cost of the LM head relative to the cost of a layer.
        hits: number of shadow tokens that were right, by exit layer.
        trials: number of shadow tokens, by exit layer.
        confidence_sums: for each exit layer (column), the sum of the probabilities of its wrong shadow tokens (row 0),
            of its right ones (row 1), and the numbers of wrong (row 2) and right shadow tokens (row 3).
        exit: the last draft, and the hidden states of the exit layer that drafted it.
    """

    layers: list[int]
    n_layers: int
    head_cost: float
    hits: Float[np.ndarray, " m"]
    trials: Float[np.ndarray, " m"]
    confidence_sums: Float[np.ndarray, "4 m"]
    exit: ExitStates = field(default_factory=ExitStates)

    @property
    def acceptance(self) -> Float[np.ndarray, " m"]:
        """Return the estimated acceptance rate α of each exit layer."""
        return self.hits / self.trials

    def rates(self, depth: int) -> Float[np.ndarray, "m depth_plus_1"]:
        """Return the expected tokens per computed layer, for each exit layer (row) and draft length (column)."""
        return tokens_per_layer(self.acceptance, np.array(self.layers), depth, self.n_layers, self.head_cost)

    def best(self, depth: int) -> int:
        """Return the index in `layers` of the best exit layer for drafts of `depth` tokens."""
        return int(self.rates(depth)[:, depth].argmax())

    def threshold(self, at: int) -> float:
        """Return the probability threshold of an exit layer: a draft stops if the layer's top probability is lower.

        The threshold is the midpoint between the mean probability of the layer's right predictions and that of its
        wrong ones. It is 0 if no prediction was right or none was wrong.

        Args:
            at: index of the exit layer in `layers`.
        """
        wrong, right, n_wrong, n_right = self.confidence_sums[:, at]
        return float(wrong / n_wrong + right / n_right) / 2 if n_wrong and n_right else 0.0

    def count(self, right: np.ndarray, confidences: np.ndarray, forgetting: float) -> None:
        """Add the predictions of each exit layer in one round to the statistics.

        Args:
            right: whether the token predicted by each exit layer (row) at each accepted position (column) was right,
                bool.
            confidences: probability of each predicted token, in the same shape.
            forgetting: factor on the counts and sums of earlier rounds.
        """
        self.hits = forgetting * self.hits + right.sum(1)
        self.trials = forgetting * self.trials + right.shape[1]
        new = np.stack([(confidences * ~right).sum(1), (confidences * right).sum(1), (~right).sum(1), right.sum(1)])
        self.confidence_sums = forgetting * self.confidence_sums + new


def tokens_per_layer(
    acceptance: Float[np.ndarray, " m"], layers: np.ndarray, depth: int, n_layers: int, head_cost: float = 0.0
) -> Float[np.ndarray, "m depth_plus_1"]:
    """Return the expected tokens per computed layer, for each exit layer (row) and draft length d = 0 … `depth`.

    TPL(E, d) = (1 + α + … + α^d) / (d · (E + h) + L + h), where E is the number of layers that draft, L the number of
    the target's layers, and h the cost of the LM head in layers.

    Args:
        acceptance: acceptance rate α of each of m exit layers.
        layers: number E of layers up to each exit layer.
        depth: maximum draft length in tokens.
        n_layers: number L of the target's layers.
        head_cost: cost h of the LM head, in layers.

    Source: Zarch et al. 2025, DEL, arXiv:2504.05598; the paper does not count the LM head.

    Example:
        >>> tokens_per_layer(np.array([0.5]), np.array([2]), 2, 8).round(3).tolist()
        [[0.125, 0.15, 0.146]]
    """
    drafts = np.arange(depth + 1)
    tokens = np.cumsum(acceptance[:, None] ** drafts, 1)
    return tokens / (drafts * (layers[:, None] + head_cost) + n_layers + head_cost)


@dataclass(frozen=True)
class DynamicExit(EarlyExitDrafter):
    """Draft with the target's first E layers, where E gives the most expected tokens per computed layer.

    The policy chooses the draft length, and the drafter the best E for it; the policy `TokensPerLayer` chooses the best
    pair of E and length. After each round the target's LM head is applied to the hidden states of all exit layers at
    the accepted positions, to count which exit layers predicted the emitted token. Positions after a rejection are
    ignored, because no token of the draft was emitted there.

    Source: Zarch et al. 2025, DEL, arXiv:2504.05598.
    """

    source: ClassVar[str] = "del"
    exits_seen: int = param(5, ge=1, le=32, doc="number of exit layers to try, spread evenly over the target")
    remembering: float = param(
        0.95, ge=0.5, le=1.0, doc=("ω, decay factor on the weight of past rounds, applied in every round")
    )

    def layers(self, n_layers: int) -> list[int]:
        """Return the candidate exit layers, spread evenly over 1 … L − 1 for a target of L = `n_layers` layers."""
        last = max(1, n_layers - 1)
        n_exits = min(self.exits_seen, last)
        return sorted({round(1 + i * (last - 1) / n_exits) for i in range(n_exits)})

    def captured_layers(self, models: Models) -> set[int]:
        """Return the indices of the target layers whose hidden states are captured: the exit layers."""
        return {layer - 1 for layer in self.layers(models.target.n_layers)}

    def init_state(self, sequence: Sequence, models: Models) -> ExitStatistics:
        """Return the initial statistics of the candidate exit layers, before the first round."""
        target = models.target
        layers = self.layers(target.n_layers)
        m, ones = len(layers), np.ones(len(layers))
        return ExitStatistics(layers, target.n_layers, head_in_layers(target), PRIOR * ones, ones, np.zeros((4, m)))

    def exit_record(self, sequence: Sequence) -> ExitStates:
        """Return the object that stores the last draft and the hidden states of the exit layer that drafted it."""
        return sequence.state.drafter.exit

    def exit_of(self, sequence: Sequence) -> int:
        """Return the number E of layers that draft in this round: the best exit layer for the planned draft length."""
        ledger: ExitStatistics = sequence.state.drafter
        exit_ = ledger.layers[ledger.best(sequence.state.plan.depth)]
        sequence.report.signals["exit layer"] = exit_
        return exit_

    def observe(self, sequence: Sequence, feedback: RoundFeedback) -> None:
        """Compute each exit layer's most likely tokens at the accepted positions, and count those that were emitted."""
        ledger: ExitStatistics = sequence.state.drafter
        places = feedback.path_indices
        streams = torch.cat([feedback.layer_states[layer - 1][places] for layer in ledger.layers])
        p = exit_logits(sequence.models.target, sequence.cache_slot, streams).float().softmax(1)
        top_probs, shadow_tokens = p.max(1)
        next_tokens = to_device(feedback.emitted[: len(places)], p.device, torch.long).repeat(len(ledger.layers))
        right, top_probs = to_host([(shadow_tokens == next_tokens).float(), top_probs])
        shape = len(ledger.layers), len(places)
        ledger.count(np.reshape(right, shape) > 0, np.reshape(top_probs, shape), self.remembering)


def head_in_layers(target: Runner) -> float:
    """Return the cost of the LM head relative to the cost of a layer: the ratio of their numbers of weights."""
    layer = sum(p.numel() for p in decoder_layers(target.model)[1][0].parameters())
    return target.lm_head.get_parameter("weight").numel() / max(1, layer)
