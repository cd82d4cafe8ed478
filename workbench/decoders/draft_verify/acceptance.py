"""Acceptance on the device: distributions, acceptance rule and trace figures, ready for one copy to the host."""

from __future__ import annotations

from collections import abc
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from workbench.core.errors import WorkbenchError
from workbench.core.lazy import LazySequence, to_host_lazily
from workbench.core.probes import ProbeOutput, Probes
from workbench.core.random_stream import Purpose
from workbench.core.rejection import Reason
from workbench.core.sampling import apply_logits_processors, largest
from workbench.core.transfer import on_host, to_device, to_host
from workbench.core.tree import DraftTree
from workbench.decoders.draft_verify.parts import Verification, siblings_of
from workbench.engine.request import Sequence
from workbench.kernels.distributions import TOP, summarise_logits
from workbench.kernels.rejection import verify_lossless


@dataclass(frozen=True, slots=True)
class Acceptance:
    """Results of an acceptance rule for one tree of N nodes, before and after the copy to the host.

    The first fields are tensors, or lists after `to_host`; what a rule or a tree does not have is empty. On the host,
    `bonus`, `p_bonus` and `distribution_error` may be lazy (`LazySequence`): they are computed only for positions that
    the verifier's walk reaches.

    Attributes:
        tokens: node tokens, [N].
        parents: node parents, [N].
        bonus: token to emit at each position if the accepted path ends there, [N+1].
        p_bonus: target probability of `bonus`, [N+1].
        entropy: entropy of the target's distribution in nats, [N+1].
        p_node: target probability of each node, [N].
        accept: acceptance probability of each node, [N].
        q: draft probability of each node, [N].
        top_tokens: the target's most likely tokens, [N+1, 8].
        top_probs: probabilities of `top_tokens`, [N+1, 8].
        top_q: the drafter's most likely tokens and their probabilities, [2, M, 8].
        score: the rule's score of each node, [N].
        inputs: inputs of the rules, named by `reason`, [I, N].
        rule_index: index of each node's rule, [N].
        child_q_rows: index of the draft distribution at each position, [N+1].
        distribution_error: distribution error of testing each node (`AcceptanceDecision.distribution_error`), [N].
        probes: tokens, parents and positions of the probes, [3, P].
        columns: columns of the tree builder, [≤ 3, N].
        exact: acceptance probability of the exact rule for each node, if the rule used is not exact, [N].
        uniform: uniform random number of each node's test; None if the rule draws none.
        reason: the rules, and the names of their inputs.
        is_upper_bound: whether `distribution_error` is an upper bound.
        raw_logits: the target's unprocessed logits, [N+1, V], if log-probabilities are requested. They stay on the
            device.
    """

    tokens: Any
    parents: Any
    bonus: Any
    p_bonus: Any
    entropy: Any
    p_node: Any
    accept: Any
    q: Any
    top_tokens: Any
    top_probs: Any
    top_q: Any
    score: Any
    inputs: Any
    rule_index: Any
    child_q_rows: Any
    distribution_error: Any
    probes: Any
    columns: Any
    exact: Any
    uniform: list[float] | None
    reason: Reason | None
    is_upper_bound: bool
    raw_logits: Tensor | None

    @staticmethod
    def to_host(results: abc.Sequence[Acceptance]) -> list[Acceptance]:
        """Copy the tensors of several results to lists, with one synchronisation for all."""
        columns = iter(to_host_lazily([getattr(acceptance, name) for acceptance in results for name in _ON_DEVICE]))
        return [replace(acceptance, **{name: next(columns) for name in _ON_DEVICE}) for acceptance in results]


_NOT_COPIED = ("uniform", "reason", "is_upper_bound", "raw_logits")
_ON_DEVICE = tuple(field.name for field in fields(Acceptance) if field.name not in _NOT_COPIED)


def accept(
    sequence: Sequence,
    tree: DraftTree,
    logits: Float[Tensor, "N_plus_1 V"],
    hidden: Float[Tensor, "N_plus_1 D"],
    layer_states: Mapping[int, Float[Tensor, "N_plus_1 D"]],
    record: bool,
    probes: Probes | None = None,
    probe_output: ProbeOutput | None = None,
) -> Acceptance:
    """Apply the sequence's acceptance rule to the target's logits over the draft tree. Does not synchronise.

    Draws the round's uniform random numbers.

    Args:
        sequence: sequence; its sampling, verifier and random stream are used.
        tree: draft tree.
        logits: target logits at the root and after each node.
        hidden: the LM head's input there.
        layer_states: captured hidden states there, by layer.
        record: also return, for the trace, the drafter's top tokens and the tree builder's columns, and, if the rule is
            not exact for this draft, the acceptance probabilities of the exact rule.
        probes: probe positions of all parts.
        probe_output: results at the verifier's own probe positions.

    Raises:
        WorkbenchError: siblings were drawn in a way that drafter and tree builder do not declare.
    """
    n = len(tree)
    if (
        n
        and not sequence.sampling.greedy
        and tree.sampling not in siblings_of(sequence.drafter, sequence.state.plan.tree_builder)
    ):
        raise WorkbenchError(
            f"{type(sequence.drafter).__name__} drafted siblings of kind {tree.sampling.value}, but does not "
            "declare it.",
            "Declare it in `siblings` of the drafter or tree builder: it determines which rules are exact.",
        )
    raw, histories = logits, list[Tensor]()
    if sequence.sampling.needs_history:
        histories = _histories(sequence, tree, logits.device)
        logits = apply_logits_processors(logits, sequence.sampling, histories)
    greedy, target = sequence.sampling.greedy, summarise_logits(logits, sequence.sampling)
    position = len(sequence.committed)
    needs_uniform = sequence.verifier.needs_uniform(sequence.sampling) and n > 0
    uniform = sequence.random_stream.uniform(position, Purpose.ACCEPT, n).tolist() if needs_uniform else None
    u_stop = None
    if not greedy:
        u_stop = torch.from_numpy(sequence.random_stream.uniform(position, Purpose.BONUS, n + 1)).to(
            logits.device, non_blocking=True
        )
    v = Verification(
        tree,
        target.logits,
        target.probs,
        sequence.sampling,
        u_stop,
        hidden,
        layer_states,
        sequence.committed,
        sequence.state.verifier,
        probe_output,
        raw,
        histories,
        target.entropy,
        lazy=on_host(logits.device),
        best=target.best,
    )
    decision = sequence.verifier.rule(v)
    reason, stop = decision.reason, decision.bonus
    if isinstance(stop, LazySequence):
        p_stop = LazySequence[float](n + 1, lambda at: target.token_probs(torch.tensor(stop.take(at.tolist())), at))
    else:
        p_stop = target.token_probs(stop)
    like = target.p_top
    empty = like.new_zeros(0)
    at = None if tree.fanout <= 1 else tree.parents + 1  # in a chain the parent of node i is at position i
    exact_for = sequence.verifier.exact_for
    is_sound = tree.sampling in exact_for or (greedy and bool(exact_for))  # greedy output is then always the target's
    needs_exact = record and n > 0 and not is_sound
    top_q = q_of = empty
    if record and tree.q is not None and tree.child_q_rows is not None:
        top_q_probs, top_ids = largest(tree.q, TOP)
        top_q, q_of = torch.stack([top_ids.to(like.dtype), top_q_probs.to(like.dtype)]), tree.child_q_rows
    columns = tree.explanation.columns if record and tree.explanation is not None else []
    return Acceptance(
        tokens=tree.tokens,
        parents=tree.parents,
        bonus=stop,
        p_bonus=p_stop,
        entropy=target.entropy,
        p_node=target.token_probs(tree.tokens, at) if n else empty,
        accept=decision.accept,
        q=_draft_probs(tree, reason, like),
        top_tokens=target.top,
        top_probs=target.p_top,
        top_q=top_q,
        score=empty if decision.score is None else decision.score,
        inputs=_stacked(reason.inputs.values(), like) if reason is not None else empty,
        rule_index=empty if reason is None or reason.rule_index is None else reason.rule_index,
        child_q_rows=q_of,
        distribution_error=empty if decision.distribution_error is None else decision.distribution_error,
        probes=empty if probes is None else torch.stack([probes.tokens, probes.parents, probes.depths]),
        columns=_stacked(columns, like),
        exact=verify_lossless(v).accept if needs_exact else empty,
        uniform=uniform,
        reason=reason,
        is_upper_bound=decision.is_upper_bound,
        raw_logits=raw if sequence.request.options.logprobs is not None else None,
    )


def _draft_probs(tree: DraftTree, reason: Reason | None, like: Tensor) -> Tensor:
    """Return the draft probability of each node, [N]: from the rule, the drafter's score, or the draft distribution."""
    if reason is not None and "q" in reason.inputs:
        return reason.inputs["q"]
    if tree.score is not None:
        return tree.score.to(like.dtype)
    return like.new_zeros(0) if tree.q is None else tree.logq.to(like.dtype).exp()


def _stacked(rows: Iterable[Tensor], like: Tensor) -> Tensor:
    """Stack tensors into one of the dtype of `like`; an empty tensor if there are none."""
    tensors = [tensor.to(like.dtype) for tensor in rows]
    return torch.stack(tensors) if tensors else like.new_zeros(0)


def _histories(sequence: Sequence, tree: DraftTree, device: torch.device) -> list[Tensor]:
    """Return the tokens up to and including each position of the tree (needs a synchronisation on a GPU)."""
    committed = to_device(sequence.committed, device)
    histories = [committed]
    tokens, parents = to_host([tree.tokens, tree.parents])
    for token, parent in zip(tokens, parents, strict=True):
        histories.append(torch.cat([histories[parent + 1], to_device([token], device)]))
    return histories
