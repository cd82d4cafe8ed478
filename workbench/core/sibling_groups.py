"""Group the nodes of a draft tree by parent: each position (root or node) and its children form one tensor row.

Positions are verified independently, so wide distributions are processed a few rows at a time. These rows fit the
processor's caches, and no buffer as large as all distributions is allocated. On a CPU a fresh allocation (1 µs per
4 KiB) costs more than the computation in it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from workbench.core.lazy import LazySequence
from workbench.core.sampling import WIDE, iter_row_chunks, pick
from workbench.core.transfer import on_host
from workbench.core.tree import DraftTree


def ranks(parents: Int[Tensor, " N"]) -> Int[Tensor, " N"]:
    """Return the number of earlier siblings of each node, int64 [N]."""
    return torch.tril(parents.unsqueeze(0) == parents.unsqueeze(1), diagonal=-1).sum(1)


def where_rows(
    mask: Bool[Tensor, " n"], one: Float[Tensor, "n V"], other: Float[Tensor, "n V"]
) -> Float[Tensor, "n V"]:
    """Return a tensor with the rows of `one` where `mask` is true, and the rows of `other` elsewhere.

    Args:
        mask: for each row, whether to take it from `one`.
        one: rows that are taken where `mask` is true; overwritten on the host.
        other: rows that are taken elsewhere.
    """
    if not on_host(one.device):
        return torch.where(mask.unsqueeze(1), one, other)
    if mask.all():
        return one
    rows = (~mask).nonzero().squeeze(1)
    return one.index_copy_(0, rows, other[rows])


def normalise_rows(weights: Float[Tensor, "n V"], fallback: Float[Tensor, "n V"]) -> Float[Tensor, "n V"]:
    """Divide each row by its sum, in place. A row of sum 0 (reached with probability 0) becomes its `fallback` row."""
    total = weights.sum(1, keepdim=True)
    weights.div_(total.clamp_min(torch.finfo(weights.dtype).tiny))
    return where_rows(total.squeeze(1) > 0, weights, fallback)


@dataclass(frozen=True)
class SelectedRows:
    """Selected rows of a table of distributions. They are gathered at first use, because gathering may copy data.

    Attributes:
        distributions: float [m, V], the table.
        at: int64 [R], indices of the selected rows.
    """

    distributions: Float[Tensor, "m V"]
    at: Int[Tensor, " R"]

    @cached_property
    def rows(self) -> Float[Tensor, "R V"]:
        """Return the selected rows of the table of distributions, as a view if possible."""
        return select_rows(self.distributions, self.at)

    def gather(self, token: Int[Tensor, "R F"]) -> Float[Tensor, "R F"]:
        """Return the probabilities of F given tokens in each selected distribution."""
        return self.distributions[self.at.unsqueeze(1), token]


@dataclass(frozen=True)
class SiblingGroups:
    """Some positions of a draft tree (root or node), one tensor row each, with their children and distributions.

    The distributions may be views of the caller's tensors.

    Attributes:
        position: int64 [R], tree position: 0 for the root, i + 1 for node i.
        child: int64 [R, F], child nodes in the order of testing; arbitrary where no child exists.
        has_child: bool [R, F], whether the child exists.
        token: int64 [R, F], token of the child.
        target: rows of the target's distributions that belong to the positions, for `p`.
        drafter: rows of the draft distributions that belong to the positions, for `q`.
    """

    position: Int[Tensor, " R"]
    child: Int[Tensor, "R F"]
    has_child: Bool[Tensor, "R F"]
    token: Int[Tensor, "R F"]
    target: SelectedRows
    drafter: SelectedRows

    @property
    def p(self) -> Float[Tensor, "R V"]:
        """Return the target's distribution at each tree position, [R, V]."""
        return self.target.rows

    @cached_property
    def q(self) -> Float[Tensor, "R V"]:
        """Return the draft distribution from which each tree position's children were sampled, [R, V].

        In a mixed tree, this is the distribution of one of the children. For deterministic children, p stands in for q.
        """
        return self.drafter.rows.to(self.target.distributions.dtype)

    def emitted_probs(
        self, accept_probs: Float[Tensor, "R F"], residual_probs: Float[Tensor, "R V"]
    ) -> Float[Tensor, "R V"]:
        """Return the distribution of the emitted token at each of R positions, given its drafted children (at most F).

        Args:
            accept_probs: probability that the verifier accepts each child [R, F]; 0 where no child exists.
            residual_probs: distribution of the token if no child is accepted [R, V]; overwritten.
        """
        probs = where_rows(self.has_child[:, 0], residual_probs, self.p)
        return probs.mul_((1 - accept_probs.sum(1, keepdim=True)).clamp_min(0)).scatter_add_(
            1, self.token, accept_probs
        )


class Layout(NamedTuple):
    """Children and draft distributions of all positions of a tree.

    Attributes:
        child: int64 [N+1, F], children of each position in the order of testing; N where no child exists.
        row: int64 [N+1], row of the tree's `q` for each position, −1 for none; None: the tree has no draft
            distributions.
    """

    child: Int[Tensor, "N_plus_1 F"]
    row: Int[Tensor, " N_plus_1"] | None

    @classmethod
    def from_tree(cls, tree: DraftTree) -> Layout:
        """Return the children and draft distributions of all positions of a draft tree with at least one node.

        Siblings beyond the tree's `fanout` are ignored.
        """
        n = len(tree)
        child = tree.parents.new_full((n + 1, tree.fanout + 1), n)
        nodes = torch.arange(n, device=tree.tokens.device)
        child[tree.parents + 1, ranks(tree.parents).clamp_(max=tree.fanout)] = nodes
        return cls(child[:, :-1], _rows_of_q(tree))

    def is_inner(self, place: Int[Tensor, " R"]) -> Bool[Tensor, " R"]:
        """Return whether each tree position (0: root; i + 1: node i) has children."""
        return self.child[place, 0] < len(self.child) - 1


def iter_sibling_groups(
    tree: DraftTree,
    p: Float[Tensor, "N_plus_1 V"],
    layout: Layout | None = None,
    positions: Int[Tensor, " R"] | None = None,
    in_one_piece: bool = False,
) -> Iterator[SiblingGroups]:
    """Yield the positions of a tree (root and nodes; at least one node), in groups that are processed together.

    On the host, leaves are skipped. On a GPU, skipping leaves would need a synchronisation, so they are rows without
    children, and all positions form one group.

    Args:
        tree: siblings in the order of testing; those beyond its `fanout` are ignored.
        p: the target's distribution at the root (row 0) and after each node (row i+1).
        layout: layout of the tree, if already computed.
        positions: positions to yield, in this order; by default all.
        in_one_piece: whether to yield all positions in one group.
    """
    n, device = len(tree), tree.tokens.device
    layout = layout or Layout.from_tree(tree)
    if positions is None:
        positions = torch.arange(n + 1, device=device)
    if on_host(device):
        positions = positions[layout.is_inner(positions)]
    child = layout.child[positions]
    exists, child = child < n, child.clamp(max=n - 1)
    token = torch.where(exists, tree.tokens[child], 0)
    for part in (slice(0, len(positions)),) if in_one_piece else iter_row_chunks(len(positions), p.shape[1], device):
        at = positions[part]
        target = drafter = SelectedRows(p, at)
        if layout.row is not None and tree.q is not None:
            drafter = SelectedRows(tree.q, layout.row[at].clamp_min(0))
        yield SiblingGroups(at, child[part], exists[part], token[part], target, drafter)


def _rows_of_q(tree: DraftTree) -> Int[Tensor, " N_plus_1"] | None:
    """Return, for each tree position, the row of the tree's `q` from which its children were drawn (−1: none).

    In a mixed tree, it is the row of one of the position's children. None if the tree has no draft distributions.
    """
    if tree.q is None or tree.child_q_rows is not None or tree.node_q_rows is None:
        return tree.child_q_rows
    return tree.node_q_rows.new_full((len(tree) + 1,), -1).scatter_reduce(0, tree.parents + 1, tree.node_q_rows, "amax")


def select_rows(distributions: Float[Tensor, "m V"], at: Int[Tensor, " R"]) -> Float[Tensor, "R V"]:
    """Return selected rows of a table of distributions, at least one. On the host, consecutive rows are a view."""
    if on_host(distributions.device):
        first, n = int(at[0]), len(at)
        if torch.equal(at, torch.arange(first, first + n)):
            return distributions[first : first + n]
    return distributions[at]


PositionVerifier = Callable[[SiblingGroups, bool], tuple[Sequence[Float[Tensor, "R F"]], Float[Tensor, "R V"]]]
"""Type of a function that verifies R tree positions with at most F children each: (positions, whether weights are
needed) → (columns, weights). Each column has a value per child [R, F]; there may be any number of columns. The weights
[R, V] are the unnormalised distribution of the token that is emitted if the walk ends at the position. If weights are
not needed, the caller ignores them."""


def verify_positions(
    tree: DraftTree,
    p: Float[Tensor, "N_plus_1 V"],
    u_bonus: Float[Tensor, " N_plus_1"],
    verify: PositionVerifier,
    lazy: bool = False,
    in_one_piece: bool = False,
) -> tuple[list[Float[Tensor, " N"]], Int[Tensor, " N_plus_1"] | LazySequence[int]]:
    """Verify all positions of a draft tree (root and nodes; at least one node) with the function `verify`.

    Args:
        tree: the draft.
        p: the target's distribution at the root (row 0) and after each node (row i+1). A position without children
            samples its token from it.
        u_bonus: uniforms [N+1] for the token emitted where the walk ends.
        verify: function that verifies some positions; see `PositionVerifier`.
        lazy: whether tokens to emit may be sampled lazily.
        in_one_piece: whether to pass all positions to `verify` in one call, for a function that allocates no tensor of
            width V.

    Returns:
        The columns of `verify`, each with one entry per node; and the token to emit at each position.
    """
    layout = Layout.from_tree(tree)
    tables: list[Tensor] = []
    places: list[Tensor] = []
    wide = on_host(p.device) and p.shape[1] >= WIDE
    lazy = should_be_lazy(p, lazy)
    stop = _sample_at_leaves(tree, p, u_bonus) if wide and not lazy else None
    for fans in iter_sibling_groups(tree, p, layout, in_one_piece=in_one_piece and lazy):
        values, weights = verify(fans, not lazy)
        tables.append(torch.stack(list(values)))
        places.append(fans.position)
        if stop is not None:
            stop[fans.position] = pick(weights, u_bonus[fans.position])
        elif not lazy:
            stop = pick(weights if len(weights) == len(p) else p.index_copy(0, fans.position, weights), u_bonus)
    place, rank = torch.cat(places), ranks(tree.parents).clamp_(max=tree.fanout)
    row_of = torch.empty(len(p), dtype=torch.long, device=p.device).index_copy_(
        0, place, torch.arange(len(place), device=p.device)
    )
    table = torch.nn.functional.pad(torch.cat(tables, 1), (0, 1))  # [values, R, F + 1]
    columns = list(table[:, row_of[tree.parents + 1], rank])
    if stop is not None:
        return columns, stop

    def emitted(at: Int[Tensor, " k"]) -> Int[Tensor, " k"]:
        tokens, inner = torch.empty_like(at), layout.is_inner(at)
        if not inner.all():
            tokens[~inner] = pick(select_rows(p, at[~inner]), u_bonus[at[~inner]])
        if inner.any():
            ends = [
                pick(verify(fans, True)[1], u_bonus[fans.position]) for fans in iter_sibling_groups(tree, p, layout, at)
            ]
            tokens[inner] = torch.cat(ends)
        return tokens

    return columns, LazySequence[int](len(p), emitted)


def should_be_lazy(p: Float[Tensor, "n V"], lazy: bool) -> bool:
    """Return whether to compute verification results lazily: if allowed, on the host, for wide distributions.

    Args:
        p: distributions that the computation reads.
        lazy: whether the caller allows lazy results.
    """
    return lazy and on_host(p.device) and p.shape[1] >= WIDE


def compute_node_errors(
    n: int, errors_of: Callable[[Int[Tensor, " k"]], Float[Tensor, " k"]], p: Float[Tensor, "m V"], lazy: bool
) -> Float[Tensor, " N"] | LazySequence[float]:
    """Return `AcceptanceDecision.distribution_error` for each of n nodes, lazily if `should_be_lazy`.

    Args:
        n: number of nodes.
        errors_of: function from node indices, int64 [k] in increasing order, to the errors of these nodes, float [k].
        p: distributions that `errors_of` reads; their device and width decide whether lazy evaluation pays off.
        lazy: whether lazy evaluation is allowed.
    """
    return LazySequence[float](n, errors_of) if should_be_lazy(p, lazy) else errors_of(torch.arange(n, device=p.device))


def sample_bonus_tokens(
    p: Float[Tensor, "N_plus_1 V"], u_bonus: Float[Tensor, " N_plus_1"], lazy: bool = False
) -> Int[Tensor, " N_plus_1"] | LazySequence[int]:
    """Sample the token to emit from p at each position of a draft tree; the result is lazy if `should_be_lazy`.

    Args:
        p: the target's distribution at the root (row 0) and after each node (row i+1).
        u_bonus: uniform random number for each position.
        lazy: whether the caller allows lazy results.
    """
    if should_be_lazy(p, lazy):
        return LazySequence[int](len(p), lambda at: pick(select_rows(p, at), u_bonus[at]))
    return pick(p, u_bonus)


def _sample_at_leaves(
    tree: DraftTree, p: Float[Tensor, "N_plus_1 V"], u_stop: Float[Tensor, " N_plus_1"]
) -> Int[Tensor, " N_plus_1"]:
    """Sample the token to emit from p at each leaf of a draft tree; entries of other positions are arbitrary.

    If more than a quarter of the positions are leaves, a token is sampled at all positions: copying the leaves' rows
    would take longer than reading all rows.
    """
    is_leaf = torch.ones(len(p), dtype=torch.bool).index_fill_(0, tree.parents + 1, False)
    leaf = is_leaf.nonzero().squeeze(1)
    if 4 * len(leaf) > len(p):
        return pick(p, u_stop)
    return torch.zeros(len(p), dtype=torch.long).index_copy_(0, leaf, pick(select_rows(p, leaf), u_stop[leaf]))
