"""Sums of functions of two distributions over the whole vocabulary, if possible computed by compiled code.

Compiled code does not store the summands in memory, which would take longer than reading both distributions.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from types import ModuleType

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from workbench.core import relaxed
from workbench.core.sampling import WIDE
from workbench.core.sibling_groups import select_rows
from workbench.core.transfer import from_numpy
from workbench.core.tree import DraftTree
from workbench.kernels.compilation import load_kernels, run_in_parallel
from workbench.kernels.rejection import supports_distributions


def excess(p: Float[Tensor, "R V"], q: Float[Tensor, "R V"], by: Float[Tensor, "R 1"]) -> Float[Tensor, "R 1"]:
    """Return Σ (by·p − q)₊ over the V tokens, for each of R pairs of distributions.

    Args:
        p: first distribution of each pair.
        q: second distribution of each pair.
        by: factor on the first distribution of each pair.
    """
    if (overlaps := _passes(p, q)) is None:
        return (p * by).sub_(q).clamp_(min=0).sum(1, keepdim=True)
    inputs = p.numpy(), q.numpy(), by.reshape(-1).contiguous().numpy()
    return _each(len(p), lambda out, taken: overlaps.add_up(*inputs, out, taken)).unsqueeze(1)


def unverified_excess(
    p: Float[Tensor, "R V"], q: Float[Tensor, "R V"], logits: Float[Tensor, "R V"], threshold: float
) -> Float[Tensor, " R"]:
    """Return Σ (q − p)₊ over the allowed tokens with q > `threshold`, for each of R pairs of distributions.

    Args:
        p: the target's distributions.
        q: the drafter's distributions.
        logits: the target's logits, −∞ at tokens that a logits processor forbids.
        threshold: tokens with a draft probability q of at most this value are left out of the sum.
    """
    if logits.dtype == torch.float32 and logits.is_contiguous() and (overlaps := _passes(p, q)) is not None:
        inputs = p.numpy(), q.numpy(), logits.numpy(), np.float32(threshold)
        return _each(len(p), lambda out, taken: overlaps.unseen(*inputs, out, taken))
    difference = (q - p).clamp_(min=0).masked_fill_(logits == -torch.inf, 0)
    return (difference.masked_fill_(q <= threshold, 0) if threshold else difference).sum(1)


def price_of_keeping(
    tree: DraftTree, p: Float[Tensor, "N_plus_1 V"], least: Float[Tensor, " N_plus_1"], node: Int[Tensor, " k"]
) -> Float[Tensor, " k"] | None:
    """Return each node's deviation under a verifier that compares target probabilities with a threshold.

    The result equals that of `workbench.core.relaxed.threshold_rule_error`, but is computed by compiled code if
    possible. It is None if the draft is not a chain.

    Args:
        tree: draft tree.
        p: the target's distributions after the root and after each node.
        least: threshold after the root and after each node.
        node: indices of the k nodes.
    """
    q, q_index = tree.q, node if tree.child_q_rows is None else tree.child_q_rows[node]
    if tree.fanout > 1 or q is None or bool((q_index < 0).any()) or (overlaps := _passes(p, q)) is None:
        return relaxed.threshold_rule_error(tree, p, least, node)
    inputs = select_rows(p, node).numpy(), q.numpy(), q_index.numpy(), least[node].numpy()
    return _each(len(node), lambda out, taken: overlaps.threshold_rule_errors(*inputs, out, taken))


def make_ready(device: torch.device) -> None:
    """Compile the functions that sum over the vocabulary, for one device.

    This takes seconds. It is done before the first round, so that no round waits for the compiler.
    """
    probs = torch.full((1, WIDE), 1 / WIDE, device=device)
    if _passes(probs, probs) is not None:
        ones, at = torch.ones(1), torch.zeros(1, dtype=torch.long)
        excess(probs, probs, ones[:, None])
        unverified_excess(probs, probs, probs, 0.0)
        price_of_keeping(replace(DraftTree.chain([0]), q=probs, child_q_rows=at), probs, ones, at)


def _passes(p: Tensor, q: Tensor) -> ModuleType | None:
    """Return the module with compiled sums; None if it does not support the distributions `p` and `q`."""
    return load_kernels("overlaps") if supports_distributions(p, q) else None


def _each(n: int, fill: Callable[[np.ndarray, np.ndarray], None]) -> Float[Tensor, " n"]:
    """Run a compiled function in several threads, and return the n numbers that they compute, float32.

    Args:
        n: number of results.
        fill: function that each thread calls with the output, float64 [n], and two counters shared by all threads,
            which distribute the work. Each call fills a part of the output.
    """
    out, counters = np.empty(n), np.zeros(2, np.int64)
    run_in_parallel(lambda: fill(out, counters))
    return from_numpy(out).float()
