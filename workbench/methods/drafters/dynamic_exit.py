"""DEL: choose the exit layer in every round, by how well each layer would have predicted the text so far.

The *shadow token* of layer E at a position is the most likely token by the final norm and LM head after that layer.
Verification runs all layers at all accepted positions, so their hidden states show how often each exit is right.

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
from workbench.methods.drafters.early_exit import EarlyExitDrafter, ExitStates
from workbench.models.loading import Models
from workbench.models.runner import Runner
from workbench.models.side_passes import exit_logits

PRIOR = 0.5
"""Prior acceptance of a layer, with the weight of one trial."""


@dataclass(slots=True)
class ExitStatistics:
    """Statistics of each exit layer for one sequence.

    Attributes:
        layers: candidate exits, each the number of layers up to it, ascending.
        n_layers: number of layers of the target.
        head_cost: cost of the LM head, in layers.
        hits: decayed count of shadow tokens that were right, by exit.
        trials: decayed count of all shadow tokens.
        confidence_sums: decayed sums of the probability of the shadow tokens that were wrong (row 0) and right (row 1),
            followed by their counts.
        exit: the draft and its exit states.
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
        """Estimated acceptance rate α of each exit."""
        return self.hits / self.trials

    def rates(self, depth: int) -> Float[np.ndarray, "m depth_plus_1"]:
        """Return expected tokens per round / cost of the round in layers, for each exit and 0 … `depth` drafts."""
        return tokens_per_layer(self.acceptance, np.array(self.layers), depth, self.n_layers, self.head_cost)

    def best(self, depth: int) -> int:
        """Return the best exit for drafts of this length, as its index in `layers`."""
        return int(self.rates(depth)[:, depth].argmax())

    def threshold(self, at: int) -> float:
        """Return the midpoint between mean probabilities of right and wrong shadow tokens; 0 if either is missing."""
        wrong, right, n_wrong, n_right = self.confidence_sums[:, at]
        return float(wrong / n_wrong + right / n_right) / 2 if n_wrong and n_right else 0.0

    def count(self, right: np.ndarray, confidences: np.ndarray, forgetting: float) -> None:
        """Add a round: whether shadow tokens were right, bool [m, positions], and their probabilities, float."""
        self.hits = forgetting * self.hits + right.sum(1)
        self.trials = forgetting * self.trials + right.shape[1]
        new = np.stack([(confidences * ~right).sum(1), (confidences * right).sum(1), (~right).sum(1), right.sum(1)])
        self.confidence_sums = forgetting * self.confidence_sums + new


def tokens_per_layer(
    acceptance: Float[np.ndarray, " m"], layers: np.ndarray, depth: int, n_layers: int, head_cost: float = 0.0
) -> Float[np.ndarray, "m depth_plus_1"]:
    """Compute TPL(E, d) = (1 + α + … + α^d) / (d · (E + head) + L + head), for each exit E and d = 0 … depth.

    Source: Zarch et al. 2025, DEL, arXiv:2504.05598; the paper does not count the head.

    Example:
        >>> tokens_per_layer(np.array([0.5]), np.array([2]), 2, 8).round(3).tolist()
        [[0.125, 0.15, 0.146]]
    """
    drafts = np.arange(depth + 1)
    tokens = np.cumsum(acceptance[:, None] ** drafts, 1)
    return tokens / (drafts * (layers[:, None] + head_cost) + n_layers + head_cost)


@dataclass(frozen=True)
class DynamicExit(EarlyExitDrafter):
    """Draft with the first E layers, with the E that has the most tokens per layer for the planned length.

    The policy chooses the length; the policy `TokensPerLayer` chooses both together. After each round the target's LM
    head reads the hidden states of all exits at the accepted positions, and counts which exits predicted the next
    token; positions after a rejection are ignored, since their tokens were never emitted.

    Source: Zarch et al. 2025, DEL, arXiv:2504.05598.
    """

    source: ClassVar[str] = "del"
    exits_seen: int = param(5, ge=1, le=32, doc="number of exit layers to try, spread evenly over the target")
    remembering: float = param(0.95, ge=0.5, le=1.0, doc="ω, factor on the weight of past rounds, applied every round")

    def layers(self, n_layers: int) -> list[int]:
        """Return the candidate exits, evenly spread over 1 … L − 1."""
        last = max(1, n_layers - 1)
        n_exits = min(self.exits_seen, last)
        return sorted({round(1 + i * (last - 1) / n_exits) for i in range(n_exits)})

    def captured_layers(self, models: Models) -> set[int]:
        """Return the indices of the exit layers, whose hidden states are captured."""
        return {layer - 1 for layer in self.layers(models.target.n_layers)}

    def init_state(self, sequence: Sequence, models: Models) -> ExitStatistics:
        """Return empty statistics."""
        target = models.target
        layers = self.layers(target.n_layers)
        m, ones = len(layers), np.ones(len(layers))
        return ExitStatistics(layers, target.n_layers, head_in_layers(target), PRIOR * ones, ones, np.zeros((4, m)))

    def exit_record(self, sequence: Sequence) -> ExitStates:
        """Return the draft of this round with its exit states."""
        return sequence.state.drafter.exit

    def exit_of(self, sequence: Sequence) -> int:
        """Return the best exit for the planned draft length."""
        ledger: ExitStatistics = sequence.state.drafter
        exit_ = ledger.layers[ledger.best(sequence.state.plan.depth)]
        sequence.report.signals["exit layer"] = exit_
        return exit_

    def observe(self, sequence: Sequence, feedback: RoundFeedback) -> None:
        """Compute each exit's shadow tokens at the accepted positions, and count how many are right."""
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
    """Return the LM head's cost in layers, as the ratio of their numbers of weights."""
    layer = sum(p.numel() for p in decoder_layers(target.model)[1][0].parameters())
    return target.lm_head.get_parameter("weight").numel() / max(1, layer)
