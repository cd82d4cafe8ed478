"""Verify drafts by relaxed recursive rejection: it raises the probabilities of drafted tokens before it tests them.

More drafts are accepted, but the output no longer follows the target's distribution exactly. Each sibling is tested as
in `recursive_rejection`, except that the function `lift` first raises the residual distribution after its earlier
siblings. If `lift` changes nothing, both rules are the same for every sampling method.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from workbench.core.lazy import LazySequence
from workbench.core.sampling import pick
from workbench.core.sibling_groups import (
    SiblingGroups,
    iter_sibling_groups,
    normalise_rows,
    ranks,
    verify_positions,
    where_rows,
)
from workbench.core.transfer import on_host
from workbench.core.tree import DraftTree, Sampling

_INDEPENDENT = ("deterministic", "chain", "sampled")
"""Sampling methods in which a sibling does not depend on earlier siblings."""


class Lift(NamedTuple):
    """Function that raises the residual distribution r for testing a drafted token x. By default, r is unchanged.

    Attributes:
        lenience: λ in (0, 1]; r is divided by it.
        neighbours: int64 [N, K], neighbour tokens, nearest first, whose probability is added to the probability of node
            i's token; None: no neighbours.
        mass: δ, bound of the added probability; the nearest neighbours within the bound are used.
        ratio: λ′; the bound also grows with x's own residual probability: δ + λ′ · r(x).
    """

    lenience: float = 1.0
    neighbours: Int[Tensor, "N K"] | None = None
    mass: float = 0.0
    ratio: float = 0.0

    def __call__(
        self, left: Float[Tensor, "R V"], node: Int[Tensor, " R"], x: Int[Tensor, "R 1"]
    ) -> Float[Tensor, "R V"]:
        """Return the residual distribution at some tree positions, raised for testing a drafted token x at each.

        Args:
            left: residual distribution at each position, after the earlier siblings there.
            node: node tested at each position; ignored at a position without a child to test.
            x: token of the node.
        """
        if self.neighbours is not None:
            near = self.neighbours[node]
            neighbour_probs = left.gather(1, near)  # [R, K]
            bound = self.mass + self.ratio * left.gather(1, x) if self.ratio else self.mass
            within = neighbour_probs.cumsum(1) <= bound
            left = left.scatter(1, near, torch.where(within, 0.0, neighbour_probs))
            left = left.scatter_add_(1, x, (neighbour_probs * within).sum(1, keepdim=True))
        return left if self.lenience == 1.0 else left / self.lenience


Tests = Callable[[SiblingGroups, bool, bool], tuple[Sequence[Tensor], Tensor]]
"""Type of a function that verifies some tree positions by a relaxed rule. It is a `PositionVerifier` with a third
argument: whether to compute the total variation distance. It returns the columns `accept`, `residual`, `q`, `q_left`
and `lifted` of `RelaxedResult`, and `total_variation` if requested."""


@dataclass(frozen=True, slots=True)
class RelaxedResult:
    """Result of relaxed rejection for a tree of N nodes, as tensors on the device. x is the token of node i.

    Attributes:
        accept: [N], acceptance probability min(1, lifted r(x) / q(x)).
        bonus: int64 [N+1], token to emit if the walk ends at the root (entry 0) or at node i (entry i + 1).
        residual: [N], r(x), probability of x in the residual distribution after its earlier siblings.
        q: [N], draft probability of x; 1 for a deterministic proposal.
        q_left: [N], draft probability of x after removing its earlier siblings, if it was drawn without replacement.
        lifted: [N], raised probability against which x was tested.
        total_variation: [N], total variation distance between the target's distribution and the distribution of the
            token emitted at a position, averaged over the random drafts there. It is stored at the position's first
            child; other children have 0. The value is exact if the function that raises probabilities does not depend
            on x. For drafts without replacement it is the distance given the earlier siblings. None if not requested.
    """

    accept: Float[Tensor, " N"]
    bonus: Int[Tensor, " N_plus_1"] | LazySequence[int]
    residual: Float[Tensor, " N"]
    q: Float[Tensor, " N"]
    q_left: Float[Tensor, " N"]
    lifted: Float[Tensor, " N"]
    total_variation: Float[Tensor, " N"] | LazySequence[float] | None = None


def relaxed_rejection(
    tree: DraftTree,
    p: Float[Tensor, "N_plus_1 V"],
    u_bonus: Float[Tensor, " N_plus_1"],
    lift: Lift,
    lazy: bool = False,
    with_total_variation: bool = False,
    tests: Tests | None = None,
) -> RelaxedResult:
    """Test siblings one after the other, each against the raised residual distribution r after its earlier siblings.

    Token x is accepted with probability min(1, lift(r)(x) / q(x)). After its rejection, the next sibling is tested
    against r ← (lift(r) − q)₊, normalised. A deterministic proposal has q = 1.

    Args:
        tree: siblings in the order they were drawn.
        p: the target's distribution at the root (row 0) and after each node (row i+1).
        u_bonus: uniforms [N+1] for the token emitted where the walk ends.
        lift: function that raises the residual distribution.
        lazy: whether tokens to emit, and `total_variation`, may be computed lazily.
        with_total_variation: whether to compute `total_variation`.
        tests: alternative implementation of the tests, called once for all positions.

    Source: the rule has the form of Leviathan et al. 2023, arXiv:2211.17192, Algorithm 1, repeated for siblings as in
    Jeon et al. 2024, arXiv:2402.14160, Algorithm 1.
    """
    if not len(tree):
        none = p.new_zeros(0)
        return RelaxedResult(none, pick(p, u_bonus), none, none, none, none, none if with_total_variation else None)

    run_tests, in_one_piece = tests or partial(_tested, tree, lift), tests is not None

    def at(fans: SiblingGroups, ends: bool) -> tuple[Sequence[Tensor], Tensor]:
        return run_tests(fans, ends, with_total_variation and ends)

    def distances(node: Int[Tensor, " k"]) -> Float[Tensor, " k"]:
        distance, is_first = p.new_zeros(len(node)), ranks(tree.parents)[node] == 0
        if is_first.any():
            places = iter_sibling_groups(tree, p, positions=tree.parents[node[is_first]] + 1, in_one_piece=in_one_piece)
            distance[is_first] = torch.cat([run_tests(fans, False, True)[0][-1][:, 0] for fans in places])
        return distance

    columns, bonus = verify_positions(tree, p, u_bonus, at, lazy, in_one_piece)
    distance_column = (
        None
        if not with_total_variation
        else LazySequence[float](len(tree), distances)
        if isinstance(bonus, LazySequence)
        else columns.pop()
    )
    accept, r, q_own, q_left, lifted = columns
    return RelaxedResult(accept, bonus, r, q_own, q_left, lifted, distance_column)


def _tested(
    tree: DraftTree, lift: Lift, fans: SiblingGroups, ends: bool, priced: bool
) -> tuple[list[Float[Tensor, "R F"]], Float[Tensor, "R V"]]:
    """Test up to F siblings at each of R tree positions by relaxed recursive rejection.

    Args:
        tree: the draft.
        lift: function that raises the residual distribution.
        fans: the positions and their children.
        ends: whether the residual weights after all siblings are needed.
        priced: whether to compute the total variation distance.

    Returns:
        Columns [R, F] by child: `accept`, `residual`, `q`, `q_left` and `lifted` of `RelaxedResult`, then
        `total_variation` if `priced`. And the residual weights [R, V] after all siblings.
    """
    weights, tiny = fans.p, torch.finfo(fans.p.dtype).tiny
    free = torch.ones_like(weights) if tree.fanout > 1 and tree.sampling.value not in _INDEPENDENT else None
    per_sibling, excess = list[tuple[Tensor, ...]](), _Excess(weights) if priced else None
    for k in range(tree.fanout):
        has, node, x = fans.has_child[:, k : k + 1], fans.child[:, k], fans.token[:, k : k + 1]
        full_q = q = _draft_probs(tree, fans, node, x)
        if free is not None and k:
            q = where_rows(_is_without_replacement(tree, node), normalise_rows(full_q * free, full_q), full_q)
        lifted = lift(weights, node, x)
        ratio = (lifted.gather(1, x) / q.gather(1, x).clamp_min(tiny)).clamp(max=1)
        per_sibling.append((ratio, *(probs.gather(1, x) for probs in (weights, full_q, q, lifted))))
        is_last = k + 1 == tree.fanout
        if is_last and not (ends or priced):
            break
        rest = (lifted - q).clamp_(min=0)
        rest_mass = rest.sum(1, keepdim=True)
        goes_on = has & (rest_mass > 0)
        if excess is not None:
            excess.tested(has, lifted, rest, rest_mass)
            if is_last:
                excess.ended(goes_on, rest, rest_mass, weights)
        # The last residual need not be normalised: `pick` takes any weights.
        weights = where_rows(goes_on.squeeze(1), rest if is_last else rest.div_(rest_mass.clamp_min(tiny)), weights)
        if free is not None:
            free.scatter_(1, x, torch.where(has, 0.0, free.gather(1, x)))
    columns = [torch.cat(column, 1) for column in zip(*per_sibling, strict=True)]
    if excess is not None:
        columns.append(torch.nn.functional.pad(excess.apart(), (0, tree.fanout - 1)))
    return columns, weights


class _Excess:
    """Sum, sibling by sibling, the difference between the distribution of the emitted token and the target's p.

    `lifted` is the raised distribution of a test. The accepted part min(q, lifted) is never stored as a tensor: it
    equals lifted − (lifted − q)₊.
    """

    def __init__(self, p: Float[Tensor, "R V"]) -> None:
        self._p, self._reach = p, torch.ones_like(p[:, :1])
        self._sum: Tensor | None = None

    def tested(
        self,
        has: Bool[Tensor, "R 1"],
        lifted: Float[Tensor, "R V"],
        rest: Float[Tensor, "R V"],
        over: Float[Tensor, "R 1"],
    ) -> None:
        """Add one test's part of the difference from p, at each position that has the tested child.

        Args:
            has: whether the position has the tested child.
            lifted: raised distribution; overwritten for the first child, unless it is p itself.
            rest: (lifted − q)₊.
            over: sum of `rest`.
        """
        p, reach = self._p, self._reach
        self._reach = reach * torch.where(has, 1 - lifted.sum(1, keepdim=True) + over, 1.0).clamp(0, 1)
        if self._sum is not None:
            self._sum.addcmul_(lifted, reach * has)
        else:
            self._sum = torch.zeros_like(p) if lifted is p else lifted.sub_(p)
            if not on_host(p.device):  # on a GPU there are rows without children; they emit a token from p
                self._sum = torch.where(has, self._sum, -p)
        self._sum.addcmul_(rest, -reach * has)

    def ended(
        self,
        goes_on: Bool[Tensor, "R 1"],
        rest: Float[Tensor, "R V"],
        over: Float[Tensor, "R 1"],
        left: Float[Tensor, "R V"],
    ) -> None:
        """Add to the sum the distribution of the token that each position emits if it rejects all children.

        The token is sampled from `rest` if the sum of `rest` is positive, else from `left`.
        """
        assert self._sum is not None
        tiny = torch.finfo(over.dtype).tiny
        self._sum.addcmul_(rest, torch.where(goes_on, self._reach / over.clamp_min(tiny), 0.0))
        if not on_host(rest.device) or not goes_on.all():
            self._sum.addcmul_(left, torch.where(goes_on, 0.0, self._reach))

    def apart(self) -> Float[Tensor, "R 1"]:
        """Return the total variation distance from p at each position. The stored sum of differences is overwritten."""
        assert self._sum is not None
        return self._sum.abs_().sum(1, keepdim=True) / 2


def _draft_probs(
    tree: DraftTree, fans: SiblingGroups, node: Int[Tensor, " R"], x: Int[Tensor, "R 1"]
) -> Float[Tensor, "R V"]:
    """Return the distribution from which each position's next child was drawn; a point mass for a deterministic child.

    The tokens of earlier siblings are not removed from the distribution.

    Args:
        tree: the draft.
        fans: the positions and their children.
        node: index of the child.
        x: token of the child.
    """
    of, probs = None, fans.q
    if tree.q is not None and tree.node_q_rows is not None:
        of = tree.node_q_rows[node]
        probs = tree.q[of.clamp_min(0)].to(probs.dtype)
    elif tree.q is not None and tree.child_q_rows is not None:
        of = tree.child_q_rows[fans.position]
    if of is not None and on_host(of.device) and bool((of >= 0).all()):
        return probs
    point = torch.zeros_like(probs).scatter_(1, x, 1.0)
    return point if of is None else where_rows(of < 0, point, probs)


def _is_without_replacement(tree: DraftTree, node: Int[Tensor, " R"]) -> Bool[Tensor, " R"]:
    """Return whether each node was drawn without replacement, that is, after removing its earlier siblings from q."""
    if tree.sampling is Sampling.MIXED and tree.without_replacement is not None:
        return tree.without_replacement[node]
    is_without = tree.sampling.value not in (*_INDEPENDENT, Sampling.MIXED.value)
    return torch.full((len(node),), is_without, device=node.device)


def threshold_rule_error(
    tree: DraftTree,
    p: Float[Tensor, "N_plus_1 V"],
    threshold: Float[Tensor, " N_plus_1"],
    node: Int[Tensor, " k"] | None = None,
) -> Float[Tensor, " k"] | None:
    """Return the distribution error of a rule that accepts a token if its p exceeds a threshold, else samples from p.

    In a chain the emitted token follows q on accepted tokens and p otherwise; a deterministic proposal is emitted
    whenever it is accepted. For a tree the result is None: the emitted sibling depends on the nodes below the siblings,
    so the error cannot be assigned to single positions.

    Args:
        tree: the draft.
        p: the target's distribution at each position.
        threshold: threshold for p at each position.
        node: nodes to compute; None: all.

    Returns:
        The errors described at `AcceptanceDecision.distribution_error`.

    Example:
        >>> import dataclasses
        >>> p, q = torch.tensor([[0.5, 0.5], [0.5, 0.5]]), torch.tensor([[0.9, 0.1]])
        >>> tree = dataclasses.replace(DraftTree.chain([0]), q=q)
        >>> threshold_rule_error(tree, p, torch.tensor([0.1, 0.1]))
        tensor([0.4000])
    """
    if tree.fanout > 1:
        return None
    at = torch.arange(len(tree), device=p.device) if node is None else node  # in a chain node i follows position i
    p = p[at]
    accepts = p > threshold[at].unsqueeze(1)
    token = tree.tokens[at].unsqueeze(1)
    deterministic = (accepts.gather(1, token) * (1 - p.gather(1, token))).squeeze(1)
    if tree.q is None:
        return deterministic
    row = at if tree.child_q_rows is None else tree.child_q_rows[at]
    accepted = tree.q[row.clamp_min(0)].to(p.dtype) * accepts
    return torch.where(row < 0, deterministic, (accepted - accepted.sum(1, keepdim=True) * p).abs().sum(1) / 2)
