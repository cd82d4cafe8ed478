"""Verification on the device: distributions, acceptance rule and trace figures, ready for one copy to the host."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from workbench.core.draw import Purpose
from workbench.core.errors import WorkbenchError
from workbench.core.late import Late
from workbench.core.probes import Probed, Probes
from workbench.core.sampling import largest, with_history
from workbench.core.transfer import on_host, to_device, to_host
from workbench.core.tree import DraftTree
from workbench.engine.feedback import Verification
from workbench.engine.parts import siblings_of
from workbench.engine.request import Row
from workbench.kernels.distributions import TOP, see
from workbench.kernels.rejection import lossless

N_FIGURES = 19
"""Number of tensors that `figures` returns for each sequence."""


def figures(
    row: Row,
    tree: DraftTree,
    logits: Float[Tensor, "N_plus_1 V"],
    hidden: Float[Tensor, "N_plus_1 D"],
    taps: Mapping[int, Float[Tensor, "N_plus_1 D"]],
    record: bool,
    probes: Probes | None = None,
    probed: Probed | None = None,
) -> list[Tensor | Late[Any]]:
    """Apply the sequence's acceptance rule to the target's logits over its tree. Does not synchronise.

    Draws the round's uniform random numbers.

    Args:
        row: sequence; its sampling, verifier and random stream are used; `row.uniform`, `row.reason`, `row.raw` and
            `row.pays_less` are set.
        tree: draft tree.
        logits: target logits at the root and after each node.
        hidden: the LM head's input there.
        taps: captured hidden states there, by layer.
        record: also return, for the trace, the drafter's top tokens and the tree builder's columns, and, if the rule is
            not exact for this draft, the acceptance probabilities of the exact rule.
        probes: probe positions of all parts.
        probed: results at the verifier's own probe positions.

    Returns:
        Tensors in the order in which `VerifiedTree.of` reads them: tokens [N]; parents [N]; token to emit at each
        position [N+1]; its probability [N+1]; entropy [N+1]; target probability [N]; acceptance probability [N]; draft
        probability [N] or empty; top tokens [N+1, 8] and their probabilities; the drafter's top tokens [2, M, 8] or
        empty; score [N] or empty; inputs of the rules [I, N], named by `row.reason`, or empty; each node's rule [N] or
        empty; the tree's `q_of` [N+1] or empty; distribution error of testing a node
        (`AcceptanceDecision.paid`) [N] or empty;
        tokens, parents and positions of the probes [3, P] or empty; columns of the tree builder [≤ 3, N] or empty; the
        exact rule's acceptance probability [N] or empty. The emitted tokens with their probabilities, and the
        distribution errors, may be `Late` on the host: they are computed only for positions that the walk reaches.

    Raises:
        WorkbenchError: siblings were drawn in a way that drafter and tree builder do not declare.
    """
    n = len(tree)
    if n and not row.sampling.greedy and tree.sampling not in siblings_of(row.drafter, row.plan.grower):
        raise WorkbenchError(
            f"{type(row.drafter).__name__} drafted siblings of kind {tree.sampling.value}, but does not declare it.",
            "Name it in the drafter's or the grower's `siblings`, from which the exact rules follow.",
        )
    raw, histories = logits, list[Tensor]()
    row.raw = raw if row.request.extras.logprobs is not None else None
    if row.sampling.needs_history:
        histories = _histories(row, tree, logits.device)
        logits = with_history(logits, row.sampling, histories)
    greedy, seen = row.sampling.greedy, see(logits, row.sampling)
    place = len(row.committed)
    tested = row.verifier.draws(row.sampling) and n > 0
    row.uniform = row.draw.uniform(place, Purpose.ACCEPT, n).tolist() if tested else None
    u_stop = None
    if not greedy:
        u_stop = torch.from_numpy(row.draw.uniform(place, Purpose.STOP, n + 1)).to(logits.device, non_blocking=True)
    v = Verification(
        tree, seen.logits, seen.probs, row.sampling, u_stop, hidden, taps, row.committed, row.verifier_state, probed,
        raw, histories, seen.entropy, late=on_host(logits.device), best=seen.best,
    )  # fmt: skip
    ruling = row.verifier.rule(v)
    exact_for = row.verifier.exact_for
    is_sound = tree.sampling in exact_for or (greedy and bool(exact_for))  # greedy output is then the target's anyway
    exact = lossless(v).accept if record and n and not is_sound else None
    stop = ruling.stop
    if isinstance(stop, Late):
        p_stop = Late[float](n + 1, lambda at: seen.chances(torch.tensor(stop.some(at.tolist())), at))
    else:
        p_stop = seen.chances(stop)
    like = seen.p_top
    at = None if tree.fanout <= 1 else tree.parents + 1  # in a chain the parent of node i is at position i
    p_node = seen.chances(tree.tokens, at) if n else like.new_zeros(0)
    reason = ruling.reason
    nothing = q = top_q = q_of = inputs = like.new_zeros(0)
    if reason is not None and "q" in reason.inputs:
        q = reason.inputs["q"]
    elif tree.score is not None:
        q = tree.score.to(like.dtype)
    elif tree.q is not None:
        q = tree.logq.to(like.dtype).exp()
    if record and tree.q is not None and tree.q_of is not None:
        q_best, best = largest(tree.q, TOP)
        top_q = torch.stack([best.to(like.dtype), q_best.to(like.dtype)])
        q_of = tree.q_of
    row.reason, row.pays_less = reason, ruling.at_most
    if reason is not None and reason.inputs:
        inputs = torch.stack([values.to(like.dtype) for values in reason.inputs.values()])
    columns = tree.grown.columns if record and tree.grown is not None else []
    return [
        tree.tokens, tree.parents, stop, p_stop, seen.entropy, p_node, ruling.accept, q, seen.top, seen.p_top,
        top_q, nothing if ruling.score is None else ruling.score, inputs,
        nothing if reason is None or reason.of is None else reason.of, q_of,
        nothing if ruling.paid is None else ruling.paid,
        nothing if probes is None else torch.stack([probes.tokens, probes.parents, probes.places]),
        torch.stack([column.to(like.dtype) for column in columns]) if columns else nothing,
        nothing if exact is None else exact,
    ]  # fmt: skip


def _histories(row: Row, tree: DraftTree, device: torch.device) -> list[Tensor]:
    """Return the tokens up to and including each position of the tree (needs a synchronisation on a GPU)."""
    committed = to_device(row.committed, device)
    histories = [committed]
    tokens, parents = to_host([tree.tokens, tree.parents])
    for token, parent in zip(tokens, parents, strict=True):
        histories.append(torch.cat([histories[parent + 1], to_device([token], device)]))
    return histories
