"""Entropy Adaptive Decoding: the small model generates while its entropy is low, the target otherwise."""

from __future__ import annotations

import math
from collections import abc
from dataclasses import dataclass
from typing import ClassVar

import torch
from jaxtyping import Float, Int
from torch import Tensor

from workbench.core.lazy import LazySequence, take
from workbench.core.params import param
from workbench.core.rejection import AcceptanceDecision
from workbench.core.rules import ALL, Rule
from workbench.core.sampling import entropy_nats
from workbench.core.sibling_groups import compute_node_errors, select_rows
from workbench.core.transfer import to_list
from workbench.decoders.declarations import WRONG_SCALE, Claim
from workbench.decoders.draft_verify.parts import RoundFeedback, Verification, Verifier
from workbench.engine.request import Sequence
from workbench.methods.verifiers.answers import at_matched_accuracy
from workbench.methods.verifiers.sums import excess, make_ready
from workbench.methods.verifiers.unverified_acceptance import (
    accept_unverified,
    allowed_mask,
    exact_decision,
    is_chain_with_probs,
)
from workbench.models.loading import Models

WRITTEN = Rule(
    "small-model-writes",
    "The small model generates",
    "w = 1",
    {"w": "small_writes"},
    "The small model generates: the mean entropy of the last distributions was low enough at the last switch, and it "
    "generates a minimum number of tokens. Its tokens are accepted whatever the target's probability.",
    leaves=ALL,
    source="Simonds 2025, Entropy adaptive decoding, arXiv:2502.06833",
)

SURE_AND_WRONG = (
    f"{WRONG_SCALE}: the 0.7M draft model answers none of the 88 questions right by itself, but its entropy is low "
    "and it generates 60 % of the tokens."
)
SURE_OFTEN = (
    f"{WRONG_SCALE}: the draft model has 8M parameters and generates 35 % of the tokens; the paper's small models "
    "have billions."
)


@dataclass(frozen=True, slots=True)
class GeneratorState:
    """Model that generates a sequence's next token, and the entropies that decide about a switch.

    Attributes:
        is_draft_model: whether the small model generates, not the target.
        n_tokens: number of tokens generated since the last switch.
        entropies: entropies in bits of the last distributions that tokens were drawn from, the newest last.
    """

    is_draft_model: bool
    n_tokens: int
    entropies: tuple[float, ...] = ()

    @property
    def mean(self) -> float:
        """Return the mean entropy H̄ in bits of these distributions; 0 before the first token."""
        return math.fsum(self.entropies) / max(1, len(self.entropies))

    def after_token(self, entropy: float, verifier: EntropyAdaptive) -> GeneratorState:
        """Return the state after one more token, which may switch the generating model.

        Args:
            entropy: entropy in bits of the distribution that the token was drawn from.
            verifier: verifier with the threshold and the minimum number of tokens between switches.
        """
        last = (*self.entropies, entropy)[-verifier.entropy_window :]
        unchanged = GeneratorState(self.is_draft_model, self.n_tokens + 1, last)
        small_next = unchanged.mean < verifier.mean_entropy
        return (
            GeneratorState(small_next, 0, last)
            if small_next is not self.is_draft_model and unchanged.n_tokens >= verifier.least_run
            else unchanged
        )


@dataclass(slots=True)
class EntropyState:
    """Verifier state of a sequence.

    Attributes:
        current: state after the last committed token.
        node_states: states after the root and after each node of the draft that was verified last.
        target_entropies: entropy in bits of the target's distribution at each of these positions.
    """

    current: GeneratorState
    node_states: abc.Sequence[GeneratorState] = ()
    target_entropies: abc.Sequence[float] = ()


@dataclass(frozen=True)
class EntropyAdaptive(Verifier):
    """Accept the drafter's tokens while the mean entropy H̄ of the last w distributions stays below a threshold τ.

    The entropy at a token's position belongs to the distribution of the model that generated the token: the small model
    (the drafter) or the target. If H̄ ≥ τ the target generates next, if H̄ < τ the small model, but a switch needs d
    tokens since the last one. While the target generates, drafts are verified exactly, so these tokens follow its
    distribution and still cost less than a pass per token. τ = 0 is exact: the target begins and always generates. The
    deviation of a round is the total variation between the small model's distribution and the target's, summed over the
    small model's tokens (at temperature 0: the number of these tokens that are not the target's).

    The small model's tokens are accepted unverified only in chains with their drafter's distributions; all other drafts
    are verified exactly. The rule runs on the host, which costs a second synchronisation per round on a GPU.

    Source: Simonds 2025, arXiv:2502.06833. In the paper the target's tokens are not drafted, and the target processes
    the small model's tokens when it takes over. Here the target processes the draft of every round, and generates the
    last token of each.
    """

    name: ClassVar[str] = "entropy-adaptive"
    claims: ClassVar[tuple[Claim, ...]] = (
        at_matched_accuracy(
            "entropy-adaptive", ({"mean_entropy": 0.1}, {"mean_entropy": 0.5}, {}),
            "Llama and Qwen pairs, MATH: the small model generates a third to a half, 92.9 and 96.7 % of the accuracy",
            "Simonds 2025, arXiv:2502.06833, results (recalled; direction)", temperature=0.0,
        ),
    )  # fmt: skip
    reads_draft_probs: ClassVar[bool] = True
    keeps_greedy: ClassVar[bool] = False
    mean_entropy: float = param(
        1.5,
        ge=0.0,
        le=16.0,
        doc="τ, in bits: the draft model generates while its mean entropy is below; 0 is exact",
    )
    entropy_window: int = param(5, ge=1, le=32, doc="w, number of last tokens in the mean entropy")
    least_run: int = param(
        5, ge=1, le=64, doc="d, minimum number of tokens between two switches of the generating model"
    )

    def init_state(self, sequence: Sequence, models: Models) -> EntropyState:
        """Return the initial state: the target generates the first token, and the model may switch after it."""
        make_ready(models.target.device)
        return EntropyState(GeneratorState(is_draft_model=False, n_tokens=self.least_run))

    def rule(self, v: Verification) -> AcceptanceDecision:
        """Accept the nodes that the small model generates, and apply the exact rule to the others."""
        tree, state, exact = v.tree, v.state, exact_decision(v)
        state.target_entropies = to_list(v.entropies() / math.log(2))
        state.node_states = (state.current,)
        if not is_chain_with_probs(tree, exact):
            state.node_states = [state.current] * (len(tree) + 1)
            return exact.without_error
        assert tree.q is not None
        q = tree.q.to(v.p.dtype)
        draft_entropies = compute_node_errors(len(tree), lambda node: bits(select_rows(q, node)), q, lazy=True)
        draft_entropies = draft_entropies if isinstance(draft_entropies, LazySequence) else to_list(draft_entropies)
        is_small, node_states = list[bool](), [state.current]
        for node in range(len(tree)):
            current = node_states[-1]
            if current.is_draft_model:  # the small model generates at least d tokens: compute their entropies together
                take(draft_entropies, range(node, min(len(tree), node + max(1, self.least_run - current.n_tokens))))
            is_small.append(current.is_draft_model)
            entropies = draft_entropies if current.is_draft_model else state.target_entropies
            node_states.append(current.after_token(entropies[node], self))
        state.node_states = node_states
        writes = torch.tensor(is_small, device=v.p.device)
        writes &= allowed_mask(v)

        def node_deviation(node: Int[Tensor, " k"]) -> Float[Tensor, " k"]:
            excess_mass = excess(select_rows(q, node), select_rows(v.p, node), q.new_ones(len(node), 1)).squeeze(1)
            return torch.where(writes[node], excess_mass, 0.0)

        greedy = v.u_bonus is None
        deviation = (
            torch.where(writes, 1 - exact.accept, 0.0)
            if greedy
            else compute_node_errors(len(tree), node_deviation, v.p, v.lazy)
        )
        return accept_unverified(exact, writes, WRITTEN, {"small_writes": writes.to(v.p.dtype)}, deviation)

    def observe(self, sequence: Sequence, feedback: RoundFeedback) -> None:
        """Update the state with the accepted tokens and, if the target generated it, the last token of the round."""
        state: EntropyState = sequence.state.verifier
        path = feedback.result.path
        position = path[-1] + 1 if path else 0
        last_state = state.node_states[position]
        n_small = sum(state.node_states[node].is_draft_model for node in path)
        state.current = (
            last_state if last_state.is_draft_model else last_state.after_token(state.target_entropies[position], self)
        )
        sequence.report.signals["tokens generated by the small model"] = n_small
        sequence.report.signals["mean entropy (bits)"] = state.current.mean


def bits(p: Float[Tensor, "n V"]) -> Float[Tensor, " n"]:
    """Return the entropy of each of n distributions in bits.

    Example:
        >>> bits(torch.tensor([[0.5, 0.3, 0.15, 0.05], [0.25, 0.25, 0.25, 0.25]]))
        tensor([1.6477, 2.0000])
    """
    return entropy_nats(p) / math.log(2)
