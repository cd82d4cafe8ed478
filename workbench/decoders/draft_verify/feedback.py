"""Data that parts receive: verification inputs, feedback after a round, decisions on tentative tokens."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from jaxtyping import Float, Int
from torch import Tensor

from workbench.core.probes import ProbeOutput
from workbench.core.rejection import VerificationResult
from workbench.core.sampling import SamplingParams, apply_logits_processors, entropy_of, largest, likeliest, to_probs
from workbench.core.tree import DraftTree
from workbench.decoders.draft_verify.draft_plan import Plan


@dataclass(frozen=True, slots=True)
class RoundFeedback:
    """Feedback after a round, for drafters, tree builders, verifiers and policies.

    Attributes:
        tokens: drafted tokens, one per node.
        parents: parents of the nodes (−1: the last committed token).
        result: accepted path and bonus token.
        emitted: committed tokens of this round, cut at the end of the text.
        root: last committed token before the round, the root of the tree.
        top_tokens: the target's top tokens at the root (entry 0) and after each node, accepted or not.
        plan: draft budget of the round.
        hidden: the LM head's input at the root (index 0) and at each node, accepted or not.
        layer_states: layer index → hidden states after this layer at the same positions, for the layers that the method
            requested (`KernelModule.captured_layers`).
        probe_output: results at the drafter's own probe positions (`Part.probes`); None without any.
        top_probs: the target's probabilities of `top_tokens`, as sampled; when greedy, the plain softmax.
    """

    tokens: list[int]
    parents: list[int]
    result: VerificationResult
    emitted: list[int]
    root: int
    top_tokens: list[list[int]]
    plan: Plan
    hidden: Float[Tensor, "N_plus_1 D"] | None = None
    layer_states: Mapping[int, Float[Tensor, "N_plus_1 D"]] = field(default_factory=dict)
    probe_output: ProbeOutput | None = None
    top_probs: list[list[float]] = field(default_factory=list[list[float]])

    @property
    def path_indices(self) -> list[int]:
        """Indices into `hidden` and `layer_states` of positions that predict emitted tokens: root, accepted nodes."""
        return [0, *(node + 1 for node in self.result.path)][: len(self.emitted)]


@dataclass(frozen=True, slots=True)
class Verification:
    """Inputs of an acceptance rule: the draft, the target's results, and the verifier's state for the sequence.

    Index 0 of every tensor belongs to the last committed token, index i + 1 to node i.

    Attributes:
        tree: draft tree.
        processed_logits: target logits after penalties and processors, or a function that returns them: see `logits`.
        probs: distributions that tokens are drawn from, or a function that returns them; when greedy, the plain
            softmax, for reading only. See `p`.
        sampling: sampling parameters of this sequence.
        u_bonus: uniform random numbers for the emitted token; None when greedy.
        hidden: the LM head's input.
        layer_states: layer index → hidden states after this layer, for the layers that the method requested.
        committed: tokens of the sequence, prompt included; the tree's root is the last one. This is the sequence's own
            list, which grows.
        state: result of the verifier's `init_state` for this sequence.
        probe_output: results at the verifier's own probe positions (`Part.probes`); None without any.
        raw_logits: the model's unprocessed logits; None: equal to `logits`.
        histories: tokens up to and including each position, if penalties or processors need them.
        entropy: entropy of p at each position, in nats, if known: see `entropies`.
        lazy: whether the decision's `bonus` and `distribution_error` may be lazy (`LazySequence`). A rule that reads
            them from another rule's decision calls that rule with `replace(v, lazy=False)`.
        best: the target's most probable token at each position, if known: see `likeliest`.
    """

    tree: DraftTree
    processed_logits: Float[Tensor, "N_plus_1 V"] | Callable[[], Tensor]
    probs: Float[Tensor, "N_plus_1 V"] | Callable[[], Tensor]
    sampling: SamplingParams
    u_bonus: Float[Tensor, " N_plus_1"] | None
    hidden: Float[Tensor, "N_plus_1 D"] | None = None
    layer_states: Mapping[int, Float[Tensor, "N_plus_1 D"]] = field(default_factory=dict)
    committed: Sequence[int] = ()
    state: Any = None
    probe_output: ProbeOutput | None = None
    raw_logits: Float[Tensor, "N_plus_1 V"] | None = None
    histories: Sequence[Tensor] = ()
    entropy: Float[Tensor, " N_plus_1"] | None = None
    lazy: bool = False
    best: Int[Tensor, " N_plus_1"] | None = None

    @property
    def logits(self) -> Float[Tensor, "N_plus_1 V"]:
        """Target logits after penalties and processors."""
        return self.processed_logits if isinstance(self.processed_logits, Tensor) else self.processed_logits()

    @property
    def p(self) -> Float[Tensor, "N_plus_1 V"]:
        """Distributions that tokens are drawn from, computed at first access: some rules do not need them."""
        return self.probs if isinstance(self.probs, Tensor) else self.probs()

    def likeliest(self) -> Int[Tensor, " N_plus_1"]:
        """Return the target's most probable token at each position. Usually already computed for the trace."""
        return likeliest(self.logits) if self.best is None else self.best

    def entropies(self) -> Float[Tensor, " N_plus_1"]:
        """Return the entropy of p at each position, in nats. Usually already computed for the trace."""
        if self.entropy is not None:
            return self.entropy
        p_best, best = largest(self.p, 1)
        return entropy_of(self.logits, self.p, best, p_best.squeeze(1), self.sampling)

    def probs_of(self, logits: Float[Tensor, "N_plus_1 V"]) -> Float[Tensor, "N_plus_1 V"]:
        """Return the distributions of other logits at the same positions, under the sequence's own sampling."""
        return to_probs(apply_logits_processors(logits, self.sampling, self.histories), self.sampling)


@dataclass(frozen=True, slots=True)
class EarlyExitStates:
    """Hidden states after the target's first layers.

    Attributes:
        layer: number of layers.
        states: residual stream after them, index 0 at the last committed token, index i + 1 at node i.
        layer_states: layer index → hidden states after this layer at the same positions, for some of these first
            layers. After an early exit, parts receive no other captured states (`RoundFeedback.layer_states`).
    """

    layer: int
    states: Float[Tensor, "N_plus_1 D"]
    layer_states: Mapping[int, Float[Tensor, "N_plus_1 D"]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class TentativeDecision:
    """A verifier's decision on the tentative tokens, oldest first. See `Verifier.decide_tentative`.

    Attributes:
        n_final: number of oldest tokens that become final.
        n_revoked: number of newest tokens that are taken back.
    """

    n_final: int = 0
    n_revoked: int = 0
