"""Chains, drafted token by token: from distributions for one sequence, or in lock-step for several sequences."""

from __future__ import annotations

from collections import abc
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import ClassVar, Protocol, runtime_checkable

import torch
from jaxtyping import Float, Int
from torch import Tensor

from workbench.core.random_stream import Purpose
from workbench.core.sampling import apply_logits_processors, largest, likeliest, pick, replace_all_masked_rows, to_probs
from workbench.core.transfer import to_device
from workbench.core.tree import DraftTree, Ranking, Sampling, chain_parents
from workbench.core.tree_explanation import TreeBuilderRule, TreeExplanation
from workbench.decoders.draft_verify.parts import Plan, TreeBuilder
from workbench.decoders.draft_verify.tree_building import PartialTree, should_continue
from workbench.engine.request import Sequence
from workbench.kernels.distributions import TOP, summarise_softmax
from workbench.kernels.segment import Output, Segment, Slot

ONE_BY_ONE = TreeBuilderRule(
    "chain",
    "Chain of tokens, one after the other",
    "A chain has one node per level: the drafter's likeliest token at temperature 0, otherwise a sample from its "
    "distribution.",
)
_GROWN = TreeExplanation((ONE_BY_ONE,))


@dataclass(frozen=True)
class Chain(TreeBuilder):
    """Draft one token after the other: the likeliest if greedy, otherwise a sample from the drafter's distribution.

    Drafters that support `draft_chain` draft for several sequences in lock-step instead, with the same result.

    Source: Leviathan et al. 2023, arXiv:2211.17192, Algorithm 1.
    """

    name: ClassVar[str] = "chain"
    siblings: ClassVar[Sampling] = Sampling.CHAIN
    has_fixed_shape: ClassVar[bool] = True

    def build(self, tree: PartialTree, plan: Plan) -> DraftTree:
        """Draft one token per planned level, until the policy stops drafting, and return the chain as a tree."""
        sequence, distributions = tree.sequence, tree.root
        depth = plan.limit_nodes(plan.depth)
        sampled = not sequence.sampling.greedy
        u = sequence.uniforms(Purpose.DRAFT, depth, tree.device) if sampled else None
        probs: list[Tensor] = []
        for level in range(depth):
            p = distributions.full_probs()
            token = likeliest(p) if u is None else pick(p, u[level : level + 1])
            probs.append(p)
            tree.add(token, torch.zeros_like(token) if level else None)
            if level + 1 == depth or not tree.should_continue(distributions := tree.expand()):
                break
        tree.close()
        return _chain_tree(
            torch.cat(tree.tokens),
            torch.cat(probs),
            sampled,
            tree.source,
            logits=False,
            keep=sequence.verifier.reads_draft_probs,
        )


DraftProbs = Callable[[Sequence, Tensor], Tensor]
"""Function (sequence, logits [1, V] after penalties) → distribution q [1, V] from which the next draft is drawn."""


@runtime_checkable
class ChainModel(Protocol):
    """Interface of a model that can draft a chain: a `Runner`, or a wrapper around a `Runner`."""

    @property
    def device(self) -> torch.device:
        """Return the device of the model's input tokens."""
        ...

    @property
    def vocab_size(self) -> int:
        """Return the number V of logits per position, the model's vocabulary size."""
        ...

    def forward(self, batch: abc.Sequence[Segment], *, layers: abc.Sequence[int] | None = None) -> Output:
        """Run the model over new tokens of several sequences.

        Args:
            batch: new tokens of each sequence, in the order of the sequences in the KV cache.
            layers: indices of the layers that run; by default all layers.

        Returns:
            Logits and hidden states after each new token.
        """
        ...


def warped_probs(sequence: Sequence, logits: Float[Tensor, "1 V"]) -> Float[Tensor, "1 V"]:
    """Return the drafter's distribution q, with the same temperature and filters as the target's distribution."""
    return to_probs(logits, sequence.sampling)


def to_float32(logits: Float[Tensor, "*b V"]) -> Float[Tensor, "*b V"]:
    """Convert float16 and bfloat16 logits to float32, and return logits of any other dtype unchanged."""
    return logits.float() if logits.dtype in (torch.bfloat16, torch.float16) else logits


def fit_vocabulary(logits: Float[Tensor, "*b W"], size: int) -> Float[Tensor, "*b V"]:
    """Cut or pad logits to the target's vocabulary, because models of one family pad their embeddings differently.

    Args:
        logits: the draft model's logits over W tokens.
        size: size V of the target's vocabulary. Missing logits are set to −∞.
    """
    width = logits.shape[-1]
    if width >= size:
        return logits[..., :size]
    return torch.cat([logits, logits.new_full((*logits.shape[:-1], size - width), -torch.inf)], -1)


def draft_chain(
    sequences: abc.Sequence[Sequence],
    runner: ChainModel,
    slots: abc.Sequence[Slot],
    first: abc.Sequence[Tensor],
    source: str,
    layers: abc.Sequence[int] | None = None,
    draft_probs: DraftProbs | None = None,
) -> list[DraftTree]:
    """Draft chains for several sequences in lock-step, one forward pass per level.

    Greedy sequences draft the likeliest token, which needs no distribution. Sampled sequences draw from the drafter's
    distribution with temperature and filters, which the tree stores for the acceptance test.

    Args:
        sequences: sequences to draft for. A sequence's `state.plan` gives its draft length, so a sequence with a
            shorter plan stops earlier.
        runner: model that drafts.
        slots: slot of the drafting model's KV cache for each sequence.
        first: for each sequence, the tokens [n_i] that the KV cache lacks, including the last committed token. The
            first forward pass reads them.
        source: name of the drafter in the trace.
        layers: indices of the layers that run; None: all layers.
        draft_probs: function from logits to the drafter's distribution. If given, drafts are sampled even when decoding
            is greedy.

    Returns:
        One tree per sequence. The keys and values of the forward passes stay in the KV cache's scratch positions.
    """
    size = sequences[0].models.target.vocab_size
    depth = max(sequence.state.plan.depth for sequence in sequences)
    sampled = [draft_probs is not None or not sequence.sampling.greedy for sequence in sequences]
    uniforms = [
        sequence.uniforms(Purpose.DRAFT, sequence.state.plan.depth, runner.device) if s else None
        for sequence, s in zip(sequences, sampled, strict=True)
    ]
    tokens: list[list[Tensor]] = [[] for _ in sequences]
    distributions: list[list[Tensor]] = [[] for _ in sequences]
    rankings: list[list[tuple[Tensor, Tensor]]] = [[] for _ in sequences]
    needs_q = [sequence.verifier.reads_draft_probs for sequence in sequences]
    states = _States(sequences)
    active = list(range(len(sequences)))
    feed = list(first)
    for step in range(depth):
        order = sorted(active, key=lambda i: slots[i].index) if len(active) > 1 else active
        out = runner.forward([Segment(slots[i], feed[i]) for i in order], layers=layers)
        for b, i in enumerate(order):
            sequence, n_read, u = sequences[i], feed[i].shape[0], uniforms[i]
            logits = fit_vocabulary(out.logits[b, n_read - 1 : n_read], size)
            if sequence.sampling.needs_history:
                past = to_device(sequence.committed, logits.device)
                logits = replace_all_masked_rows(
                    apply_logits_processors(logits, sequence.sampling, [torch.cat([past, *tokens[i]])])
                )
            if sampled[i] or needs_q[i]:
                logits = to_float32(logits)
            q = (draft_probs or warped_probs)(sequence, logits) if sampled[i] else None
            if step:
                hidden = out.hidden[b, n_read - 1 : n_read]
                states.add(i, hidden)
                if not should_continue(
                    sequence, step, lambda q=q, z=logits: to_float32(z).softmax(1) if q is None else q, hidden
                ):
                    active.remove(i)
                    continue
            if q is None or u is None:
                token, distribution, ranking = _likeliest_token(logits, needs_q[i])
            else:
                token, distribution, ranking = pick(q, u[step : step + 1]), to_float32(q), None
            if ranking is not None:
                rankings[i].append(ranking)
            tokens[i].append(token)
            distributions[i].append(distribution)
            feed[i] = token
        active = [i for i in active if sequences[i].state.plan.depth > step + 1]
        if not active:
            break
    without_state = sorted(
        (i for i in range(len(sequences)) if states.lacks(i, len(tokens[i]))), key=lambda i: slots[i].index
    )
    if without_state:
        out = runner.forward([Segment(slots[i], feed[i]) for i in without_state], layers=layers)
        for b, i in enumerate(without_state):
            states.add(i, out.hidden[b, :1])
    trees = [
        _chain_tree(
            torch.cat(t), torch.cat(distributions[i]), sampled[i], source, keep=needs_q[i], rankings=rankings[i]
        )
        for i, t in enumerate(tokens)
    ]
    return [states.attach(i, tree) for i, tree in enumerate(trees)]


def _likeliest_token(
    logits: Float[Tensor, "1 V"], needs_q: bool
) -> tuple[Int[Tensor, " 1"], Float[Tensor, "1 V_or_1"], tuple[Tensor, Tensor] | None]:
    """Choose the next token of a greedy chain.

    Args:
        logits: the drafter's logits.
        needs_q: whether a verifier reads the whole distribution.

    Returns:
        The token; `logits` in float32, or only the token's probability; most likely tokens and their probabilities for
        the trace, if the logits are not kept.
    """
    if not needs_q and (top := summarise_softmax(logits, TOP)) is not None:
        return top.top[0, :1], top.p_top[:, :1], (top.top, top.p_top)
    logits = to_float32(logits)
    return likeliest(logits), logits, None


class _States:
    """Draft model's hidden states at the drafted tokens of several sequences, for verifiers that read hidden states."""

    def __init__(self, sequences: abc.Sequence[Sequence]) -> None:
        self._found = [
            list[Tensor]() if sequence.verifier.reads_draft_states(sequence.models) else None for sequence in sequences
        ]

    def add(self, i: int, hidden: Float[Tensor, "1 D"]) -> None:
        """Store a copy of the hidden state at the next drafted token of sequence i, if a verifier needs it.

        Later forward passes may reuse the memory of `hidden`.
        """
        states = self._found[i]
        if states is not None:
            states.append(hidden.clone())

    def lacks(self, i: int, n: int) -> bool:
        """Return whether the hidden state at the last of sequence i's n drafts is needed by a verifier and missing."""
        states = self._found[i]
        return states is not None and len(states) < n

    def attach(self, i: int, tree: DraftTree) -> DraftTree:
        """Return the draft tree of sequence i with the stored hidden states, or unchanged if none are stored."""
        states = self._found[i]
        return replace(tree, states=torch.cat(states)) if states else tree


def _chain_tree(
    tokens: Int[Tensor, " K"],
    distributions: Float[Tensor, "K V_or_1"],
    sampled: bool,
    source: str,
    logits: bool = True,
    keep: bool = False,
    rankings: abc.Sequence[tuple[Tensor, Tensor]] = (),
) -> DraftTree:
    """Return a drafted chain as a draft tree without branches.

    Args:
        tokens: drafted tokens.
        distributions: the drafter's distributions, one per token. For a greedy chain these are its logits if `logits`
            is true, and may be only the probabilities of the tokens, [K, 1], if `keep` is false.
        sampled: whether the tokens were sampled from the distributions; otherwise the chain is greedy.
        source: name of the drafter in the trace.
        logits: whether `distributions` of a greedy chain contains logits instead of probabilities.
        keep: whether the tree of a greedy chain stores its distributions, because a verifier reads them.
        rankings: most likely tokens [1, k] and their probabilities [1, k] at each position, if `distributions` has only
            the probabilities of the drafted tokens.
    """
    n = tokens.shape[0]
    parents = chain_parents(n, tokens.device)
    if distributions.shape[1] == 1:
        token_probs = distributions[:, 0]
    else:
        distributions = distributions if sampled or not logits else distributions.softmax(1)
        token_probs = distributions.gather(1, tokens.unsqueeze(1)).squeeze(1)
    q_of = torch.arange(n + 1, device=tokens.device) if sampled or keep else None
    if q_of is not None:
        q_of[-1] = -1
    if not sampled:
        q, zero_logq = distributions if keep else None, torch.zeros_like(token_probs)
        return DraftTree(
            tokens,
            parents,
            zero_logq,
            Sampling.DETERMINISTIC,
            n,
            q=q,
            child_q_rows=q_of,
            source=source,
            score=token_probs,
            explanation=_GROWN,
            ranking=None if keep else lambda: _ranking(distributions, rankings),
        )
    return DraftTree(
        tokens,
        parents,
        token_probs.log(),
        Sampling.CHAIN,
        n,
        q=distributions,
        child_q_rows=q_of,
        source=source,
        explanation=_GROWN,
    )


def _ranking(distributions: Float[Tensor, "K V_or_1"], rankings: abc.Sequence[tuple[Tensor, Tensor]]) -> Ranking:
    """Return the most likely tokens at each position of a draft chain, with their probabilities, for the trace."""
    rows = torch.arange(distributions.shape[0] + 1, device=distributions.device)
    rows[-1] = -1
    if rankings:
        tokens, probs = zip(*rankings, strict=True)
        return Ranking(torch.cat(tokens), torch.cat(probs), rows)
    probs, tokens = largest(distributions, TOP)
    return Ranking(tokens, probs, rows)
