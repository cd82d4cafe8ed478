"""Verify whole draft trees at once: acceptance probability of each node, and the token to emit if no child is accepted.

Every acceptance rule has the same form. For each node it computes the probability of acceptance, given that its parent
was accepted and its earlier siblings were rejected. For each tree position (root or node) it computes the token that
is emitted if the walk ends there. `walk` then needs a few comparisons on the host, and a round needs one
synchronisation.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import torch
from jaxtyping import Float, Int
from torch import Tensor

from workbench.core.lazy import LazySequence
from workbench.core.rules import GREEDY, POINT, POINT_RESIDUAL, RATIO, RESIDUAL, Rule
from workbench.core.sample_matching import match_sampled_token
from workbench.core.sampling import pick
from workbench.core.sibling_groups import SiblingGroups, normalise_rows, verify_positions, where_rows
from workbench.core.tree import DraftTree, Sampling, children_of, depths_of

WITHOUT_REPLACEMENT = (Sampling.WITHOUT_REPLACEMENT, Sampling.FIXED_NUMBER)
"""Sampling methods that draw siblings without replacement."""


@dataclass(frozen=True, slots=True)
class RuleExplanation:
    """Acceptance rules that tested the nodes of a draft tree, and the inputs of these rules, as tensors on the device.

    Attributes:
        rules: without `rule_index`, rule i tests the i-th sibling at a tree position; the last rule tests all further
            siblings.
        inputs: input name → float [N], the rules' inputs other than p; "q" is the draft probability used in the test.
        rule_index: int64 [N], index into `rules` for each node; None: by order among siblings.
    """

    rules: tuple[Rule, ...]
    inputs: Mapping[str, Float[Tensor, " N"]] = field(default_factory=dict[str, Tensor])
    rule_index: Int[Tensor, " N"] | None = None


@dataclass(frozen=True, slots=True)
class AcceptanceDecision:
    """Decision of an acceptance rule for every position of a draft tree, as tensors on the device.

    Attributes:
        accept: float [N], probability of accepting node i given that it is tested; 0 or 1 for deterministic rules.
        bonus: int64 [N+1], token to emit if the walk ends at the root (entry 0) or at node i (entry i+1). The tokens
            are sampled with `pick`, in one or several calls, and no other field may depend on them. The sequence is
            lazy only if the caller allowed that (`Verification.lazy`); then only the token at the end of the walk is
            sampled.
        score: float [N], value of node i, such as the target's probability, for a verifier with its own `walk`: of the
            longest accepted paths, it takes the one with the largest product. None: not used.
        explanation: rules and inputs of each node's test, for the trace; None: not recorded.
        distribution_error: float [N], contribution of testing node i to the total variation distance between the
            distribution of the emitted token at that position and the target's distribution. The trace records the
            sum over a round's tested nodes as a signal. May be lazy, like `bonus`. None: the rule is exact, or its
            error is unknown.
        is_upper_bound: whether `distribution_error` is an upper bound of the mean over drafts.
    """

    accept: Float[Tensor, " N"]
    bonus: Int[Tensor, " N_plus_1"] | LazySequence[int]
    score: Float[Tensor, " N"] | None = None
    explanation: RuleExplanation | None = None
    distribution_error: Float[Tensor, " N"] | LazySequence[float] | None = None
    is_upper_bound: bool = False

    @property
    def without_error(self) -> AcceptanceDecision:
        """Return a copy of the decision with `distribution_error` 0, for a draft for which the rule is exact."""
        return replace(self, distribution_error=torch.zeros_like(self.accept))


@dataclass(frozen=True, slots=True)
class VerificationResult:
    """Result of verifying a draft tree: the accepted path and the token emitted after it.

    Attributes:
        path: accepted nodes, from the root down.
        bonus: token emitted after the path: a bonus token, or a corrected token.
        corrected: whether `bonus` replaces a rejected token.
        tested: (node, whether it was accepted) for each tested node, in order.
        uniform: uniform random number of each test in `tested`; empty for deterministic rules.
    """

    path: tuple[int, ...]
    bonus: int
    corrected: bool
    tested: tuple[tuple[int, bool], ...]
    uniform: dict[int, float]


def residual(p: Float[Tensor, "*b V"], q: Float[Tensor, "*b V"]) -> Float[Tensor, "*b V"]:
    """Return the residual distribution (p − q)₊, normalised, from which to sample after a rejection.

    Args:
        p: target probabilities; each row sums to 1. Float32 or wider, because rounding to bf16 can change the sign of p
            − q.
        q: distribution from which the rejected token was sampled, over the same vocabulary.

    Returns:
        Probabilities in p's dtype. Where p equals q, a rejection has probability 0 and p itself is returned.

    Source: Leviathan et al. 2023, arXiv:2211.17192, §2.3.

    Example:
        >>> residual(torch.tensor([0.5, 0.5]), torch.tensor([1.0, 0.0]))
        tensor([0., 1.])
    """
    excess = (p - q).clamp_(min=0)
    if excess.dim() == 2:
        return normalise_rows(excess, p)
    total = excess.sum(-1, keepdim=True)
    return torch.where(total > 0, excess / total.clamp_min(torch.finfo(p.dtype).tiny), p)


def accept_chain(
    p: Float[Tensor, "N_plus_1 V"], q: Float[Tensor, "N V"], tokens: Int[Tensor, " N"], u: Float[Tensor, " N"]
) -> tuple[int, Float[Tensor, " V"]]:
    """Return how many tokens of a chain are accepted, and the distribution from which the next token is drawn.

    Token x is accepted with probability min(1, p(x) / q(x)). After the first rejection the next token follows the
    residual distribution; after N accepted tokens it follows p. `recursive_rejection` is the same rule for trees.

    Args:
        p: target distributions at the root (row 0) and after each token (row i+1).
        q: draft distributions from which the tokens were drawn.
        tokens: draft tokens.
        u: uniform random numbers.

    Source: Leviathan et al. 2023, arXiv:2211.17192, Algorithm 1 and §2.3.

    Example:
        >>> p, q = torch.tensor([[0.5, 0.5], [0.5, 0.5]]), torch.tensor([[1.0, 0.0]])
        >>> accept_chain(p, q, torch.tensor([0]), torch.tensor([0.6]))
        (0, tensor([0., 1.]))
    """
    ratio = p[:-1].gather(1, tokens[:, None]) / q.gather(1, tokens[:, None])
    n = int((u < ratio.squeeze(1)).long().cumprod(0).sum())
    return n, p[n] if n == len(tokens) else residual(p[n], q[n])


def greedy_match(tree: DraftTree, best: Int[Tensor, " N_plus_1"]) -> AcceptanceDecision:
    """Accept a node if and only if it is the target's most likely token after its parent.

    Args:
        tree: the draft.
        best: the target's most likely token at the root (entry 0) and after each node (entry i+1).
    """
    if not len(tree):
        return AcceptanceDecision(accept=tree.logq, bonus=best)
    at_parent = best[:-1] if tree.fanout <= 1 else best[tree.parents + 1]
    inputs = {"likeliest": at_parent.float()}  # a token's id is exact in float32 up to 2²⁴
    explanation = RuleExplanation((GREEDY,), inputs)
    return AcceptanceDecision(accept=(tree.tokens == at_parent).float(), bonus=best, explanation=explanation)


Tests = Callable[[SiblingGroups, bool], tuple[Sequence[Tensor], Tensor]]
"""Type of a `PositionVerifier` that returns three columns per drafted token: the acceptance probability; r, the token's
probability in the residual distribution after its earlier siblings; and q′, the token's draft probability after its
earlier siblings are removed. For the first sibling, r and q′ are 0."""


def recursive_rejection(
    tree: DraftTree,
    p: Float[Tensor, "N_plus_1 V"],
    u_bonus: Float[Tensor, " N_plus_1"],
    lazy: bool = False,
    tests: Tests | None = None,
) -> AcceptanceDecision:
    """Test siblings one after the other, each against the residual distribution after its earlier siblings.

    For a chain of sampled tokens this is speculative sampling (`accept_chain`), for siblings drawn without replacement
    recursive rejection sampling. For deterministic siblings the draft distribution is a point mass, and the rule
    becomes "sample from the target and accept the child with that token". In a mixed tree each sibling is tested
    against its own draft distribution. All parents of the tree are processed at once; the loop is over siblings.

    Args:
        tree: siblings in the order they were drawn.
        p: the target's distribution at the root (row 0) and after each node (row i+1).
        u_bonus: uniforms [N+1] for the token emitted where the walk ends.
        lazy: whether tokens to emit may be sampled lazily.
        tests: alternative implementation of the tests, called once for all positions.

    Source: Leviathan et al. 2023, arXiv:2211.17192, Algorithm 1 (chain); Jeon et al. 2024, arXiv:2402.14160,
    Algorithm 1 (without replacement); Miao et al. 2024, SpecInfer, arXiv:2305.09781, Algorithm 2 (independent).
    """
    n = len(tree)
    if n == 0:
        return AcceptanceDecision(accept=p.new_zeros(0), bonus=pick(p, u_bonus))
    if tree.q is None or (tree.child_q_rows is None and tree.node_q_rows is None):
        return _point_rejection(tree, p, u_bonus, lazy)

    def at(fans: SiblingGroups, ends: bool) -> tuple[list[Float[Tensor, "R F"]], Float[Tensor, "R V"]]:
        return _tested(tree, fans, ends)

    (accept, r, q_left), bonus = verify_positions(tree, p, u_bonus, tests or at, lazy, in_one_piece=tests is not None)
    inputs = {"q": _initial_prob(tree).to(p.dtype), "residual": r, "q_left": q_left}
    return AcceptanceDecision(accept, bonus, explanation=RuleExplanation((RATIO, RESIDUAL), inputs))


def _tested(
    tree: DraftTree, fans: SiblingGroups, ends: bool
) -> tuple[list[Float[Tensor, "R F"]], Float[Tensor, "R V"]]:
    """Test up to F siblings at each of R positions in order, each against the residual distribution after earlier ones.

    Residual and draft weights stay unnormalised, with separate sums, because normalising would read each distribution
    once more.

    Args:
        tree: the draft.
        fans: the positions and their children.
        ends: whether the residual weights are needed.

    Returns:
        Three columns [R, F] by child: acceptance probability; probability of the child's token in the residual
        distribution and in the draft distribution, both after its earlier siblings (0 for the first child). And the
        residual weights [R, V] after all siblings.
    """
    weights, q = fans.p, fans.q  # [R, V]
    total = mass = torch.ones_like(weights[:, :1])
    free = torch.ones_like(weights) if tree.node_q_rows is not None else None  # [R, V] 0 at earlier siblings' tokens
    accept: list[Tensor] = []
    r: list[Tensor] = []
    q_left: list[Tensor] = []
    for k in range(tree.fanout):
        has, x = fans.has_child[:, k : k + 1], fans.token[:, k : k + 1]
        if free is not None:
            q = node_draft_probs(tree, fans.child[:, k], x, free)
            free = where_rows(has.squeeze(1), free.scatter(1, x, 0.0), free)
        p_x, q_x = weights.gather(1, x) / total, q.gather(1, x) / mass
        r.append(p_x if k else torch.zeros_like(p_x))
        q_left.append(q_x if k else torch.zeros_like(q_x))
        accept.append((p_x / q_x.clamp_min(torch.finfo(weights.dtype).tiny)).clamp(max=1))
        is_last = k + 1 == tree.fanout
        if is_last and not ends:
            break
        rest = torch.addcmul(weights, q, total / mass, value=-1).clamp_(min=0)
        rest_mass = rest.sum(1, keepdim=True)
        goes_on = has & (rest_mass > 0)
        weights, total = where_rows(goes_on.squeeze(1), rest, weights), torch.where(goes_on, rest_mass, total)
        if tree.sampling in WITHOUT_REPLACEMENT and not is_last:
            others = q.scatter(1, x, 0.0)
            others_mass = others.sum(1, keepdim=True)
            is_removed = has & (others_mass > 0)
            q, mass = where_rows(is_removed.squeeze(1), others, q), torch.where(is_removed, others_mass, mass)
    return [torch.cat(column, 1) for column in (accept, r, q_left)], weights


def _initial_prob(tree: DraftTree) -> Float[Tensor, " N"]:
    """Return the probability of each node's token in its draft distribution, before removal of earlier siblings."""
    if tree.node_q_rows is not None:
        return _own_prob(tree)
    assert tree.q is not None
    assert tree.child_q_rows is not None
    return tree.q[tree.child_q_rows[tree.parents + 1].clamp_min(0), tree.tokens]


def node_draft_probs(
    tree: DraftTree, node: Int[Tensor, " n"], x: Int[Tensor, "n 1"], free: Float[Tensor, "n V"]
) -> Float[Tensor, "n V"]:
    """Return the draft distribution of each of n nodes of a mixed tree (some siblings deterministic, others sampled).

    Earlier siblings are removed from it for nodes that were drawn without replacement.

    Args:
        tree: the draft.
        node: indices of the nodes.
        x: tokens of the nodes.
        free: for each node, 0 at tokens of its earlier siblings, else 1.
    """
    assert tree.q is not None
    assert tree.node_q_rows is not None
    row = tree.node_q_rows[node]
    probs = tree.q[row.clamp_min(0)].to(free.dtype)
    if tree.without_replacement is not None:
        probs = where_rows(tree.without_replacement[node], normalise_rows(probs * free, probs), probs)
    return where_rows(row >= 0, probs, torch.zeros_like(probs).scatter_(1, x, 1.0))


def _own_prob(tree: DraftTree) -> Float[Tensor, " N"]:
    """Return the draft probability of each node of a mixed tree: 1 for deterministic nodes, q for sampled nodes."""
    assert tree.q is not None
    assert tree.node_q_rows is not None
    probs = tree.q[tree.node_q_rows.clamp_min(0), tree.tokens]
    return torch.where(tree.node_q_rows < 0, torch.ones_like(probs), probs)


def _point_rejection(
    tree: DraftTree, p: Float[Tensor, "N_plus_1 V"], u_bonus: Float[Tensor, " N_plus_1"], lazy: bool
) -> AcceptanceDecision:
    """Verify deterministic proposals: sample from p at each position, and accept the child with that token.

    Args:
        tree: the draft.
        p: the target's distribution at the root (row 0) and after each node (row i+1).
        u_bonus: uniform random number for the emitted token at each position.
        lazy: whether tokens to emit may be sampled lazily.
    """

    def at(fans: SiblingGroups, ends: bool) -> tuple[list[Float[Tensor, "R F"]], Float[Tensor, "R V"]]:
        if fans.token.shape[1] == 1 and not ends:
            accept = torch.where(fans.has_child, fans.p.gather(1, fans.token), 0.0)
            return [accept, torch.zeros_like(accept)], fans.p
        accept, _, weights = match_sampled_token(fans, fans.p)
        return [accept, torch.cat([torch.zeros_like(accept[:, :1]), accept[:, 1:]], 1)], weights

    (accept, r), bonus = verify_positions(tree, p, u_bonus, at, lazy)
    return AcceptanceDecision(accept, bonus, explanation=RuleExplanation((POINT, POINT_RESIDUAL), {"residual": r}))


def expected_accepted(parents: Sequence[int], accept: Sequence[float]) -> float:
    """Return the expected number of nodes that `walk` accepts.

    Args:
        parents: parent of each node, parents first and siblings in the order of testing.
        accept: acceptance probability of each node.

    Example:
        >>> expected_accepted([-1, 0, -1], [0.5, 0.5, 0.5])  # 0.5 + 0.25 for its child + 0.25 for its sibling
        1.0
    """
    at = [1.0, *[0.0] * len(parents)]  # probability that the walk is at a position whose tested children were rejected
    for node, (parent, accept_prob) in enumerate(zip(parents, accept, strict=True)):
        at[node + 1] = at[parent + 1] * accept_prob
        at[parent + 1] -= at[node + 1]
    return sum(at[node + 1] * depth for node, depth in enumerate(depths_of(parents)))


def walk(
    parents: Sequence[int], accept: Sequence[float], bonus: Sequence[int], uniform: Sequence[float] | None
) -> VerificationResult:
    """Walk down a draft tree: test a node's children in order, and continue below the first accepted child.

    The walk starts at the root and ends at the first position (root or node) of which no child is accepted. The emitted
    token is the entry of `bonus` for this position.

    Args:
        parents: parent of each node, on the host.
        accept: acceptance probability of each node.
        bonus: N+1 tokens (see `AcceptanceDecision`).
        uniform: N uniforms; None if every acceptance probability is 0 or 1.
    """
    children = children_of(parents)
    path, tested, uniforms = list[int](), list[tuple[int, bool]](), dict[int, float]()
    at, corrected = 0, False
    while True:
        accepted = None
        for node in children[at]:
            if uniform is None:
                ok = accept[node] > 0.5
            else:
                uniforms[node] = float(uniform[node])
                ok = uniform[node] < accept[node]
            tested.append((node, ok))
            if ok:
                accepted = node
                break
        if accepted is None:
            corrected = bool(children[at])
            break
        path.append(accepted)
        at = accepted + 1
    return VerificationResult(tuple(path), int(bonus[at]), corrected, tuple(tested), uniforms)
