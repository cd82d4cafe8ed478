"""Acceptance rules on whole trees at once: what each node's acceptance probability is, and where to go if none is kept.

Every rule has the same form. It gives each node the probability with which it is accepted once its parent has been and
its elder siblings have not, and each place of the tree (root and nodes) the token that is emitted if the walk ends
there. The walk itself (`walk`) is then a few comparisons on the host, and a round needs one synchronisation.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import torch
from jaxtyping import Float, Int
from torch import Tensor

from workbench.core.following import following
from workbench.core.late import Late
from workbench.core.places import Fans, by_row, normalised, place_by_place
from workbench.core.rules import GREEDY, POINT, POINT_RESIDUAL, RATIO, RESIDUAL, Rule
from workbench.core.sampling import pick
from workbench.core.tree import DraftTree, Sampling, children_of, depths_of

WITHOUT = (Sampling.WITHOUT_REPLACEMENT, Sampling.FIXED_NUMBER)
"""Kinds of siblings of which none is like an elder one."""


@dataclass(frozen=True, slots=True)
class Reason:
    """Why nodes are accepted or not: the rules in force and what they read, still on the device.

    Attributes:
        rules: the first judges the first draft for a place, the next its first sibling and so on; the last judges all
            siblings that follow.
        inputs: float [N] by name, what the rules read beyond p; "q" is the drafter's probability that was used.
        of: int64 [N], index into `rules` of the rule that judges each node, where their order among siblings does not
            tell.
    """

    rules: tuple[Rule, ...]
    inputs: Mapping[str, Float[Tensor, " N"]] = field(default_factory=dict[str, Tensor])
    of: Int[Tensor, " N"] | None = None


@dataclass(frozen=True, slots=True)
class Ruling:
    """A rule's decision for every place of a tree, still on the device.

    Attributes:
        accept: float [N], probability of accepting node i given that it is tested; 0 or 1 where nothing is drawn.
        stop: int64 [N+1], token to emit when the walk ends at the root (entry 0) or at node i (entry i+1). Drawn with
            `pick`, in as many calls as suits; nothing else may depend on what it drew: `accept` holds chances. Late, so
            that it is drawn where the walk ends alone, only for who asked for that (`Verification.late`).
        score: float [N], what a verifier's own `walk` chooses by among nodes that pass, as products along paths.
        reason: what the trace says of each node's test; None leaves it unsaid.
        paid: float [N], what testing a node costs in distribution: its part of the total variation between the law of
            the token that its place emits and the target's; the round's sum over tested nodes is in its signals. Late
            as `stop` is. None where nothing is paid, or it is not known.
        at_most: whether `paid` is no less than that on the average over drafts, and may be more.
    """

    accept: Float[Tensor, " N"]
    stop: Int[Tensor, " N_plus_1"] | Late[int]
    score: Float[Tensor, " N"] | None = None
    reason: Reason | None = None
    paid: Float[Tensor, " N"] | Late[float] | None = None
    at_most: bool = False

    @property
    def for_nothing(self) -> Ruling:
        """The same, said to pay nothing: of a rule that is approximate elsewhere, and exact here."""
        return replace(self, paid=torch.zeros_like(self.accept))


@dataclass(frozen=True, slots=True)
class Verdict:
    """What was kept of a tree.

    Attributes:
        path: accepted nodes, root side first.
        bonus: the token the target adds.
        corrected: whether a rejection came before the bonus (it then replaces a rejected token).
        tested: nodes that were put to the test, with the outcome, in order.
        uniform: the uniform each tested node was compared with; empty where nothing was drawn.
    """

    path: tuple[int, ...]
    bonus: int
    corrected: bool
    tested: tuple[tuple[int, bool], ...]
    uniform: dict[int, float]


def residual(p: Float[Tensor, "*b V"], q: Float[Tensor, "*b V"]) -> Float[Tensor, "*b V"]:
    """Normalised positive part of p − q: what to draw from after a rejection.

    Args:
        p: target probabilities; each row sums to 1.
        q: law the rejected token was drawn from, same support order.

    Returns:
        Probabilities in p's dtype. Where p equals q a rejection has probability 0, and p itself is returned.

    Source: Leviathan et al. 2023, arXiv:2211.17192, §2.3. Float32 or wider: in bf16 the difference loses its sign.

    Example:
        >>> residual(torch.tensor([0.5, 0.5]), torch.tensor([1.0, 0.0]))
        tensor([0., 1.])
    """
    left = (p - q).clamp_(min=0)
    if left.dim() == 2:
        return normalised(left, p)
    total = left.sum(-1, keepdim=True)
    return torch.where(total > 0, left / total.clamp_min(torch.finfo(p.dtype).tiny), p)


def greedy_match(tree: DraftTree, best: Int[Tensor, " N_plus_1"]) -> Ruling:
    """Accept a node iff it is the target's likeliest token after its parent."""
    if not len(tree):
        return Ruling(accept=tree.logq, stop=best)
    at_parent = best[:-1] if tree.fanout <= 1 else best[tree.parents + 1]
    reason = Reason((GREEDY,), {"likeliest": at_parent.float()})  # a token's id is exact in float32 up to 2²⁴
    return Ruling(accept=(tree.tokens == at_parent).float(), stop=best, reason=reason)


Tests = Callable[[Fans, bool], tuple[Sequence[Tensor], Tensor]]
"""Sibling after sibling at some places, as `place_by_place` asks of a judge: acceptance, r, q′ (0 of the eldest)."""


def recursive_rejection(
    tree: DraftTree,
    p: Float[Tensor, "N_plus_1 V"],
    u_stop: Float[Tensor, " N_plus_1"],
    late: bool = False,
    tests: Tests | None = None,
) -> Ruling:
    """Test siblings one after the other, each against what its elder siblings left of the target's law.

    For a chain of sampled tokens this is speculative sampling; for siblings drawn without replacement it is recursive
    rejection sampling; for deterministic siblings the law of a proposal is a point mass, and the rule becomes "draw
    from the target and follow the draw"; in a mixed tree each sibling has a law of its own, and is any of these. All
    parents of the tree are treated at once; the loop is over siblings.

    Args:
        tree: siblings in the order they were drawn.
        p: the target's law at the root (row 0) and after each node (row i+1).
        u_stop: uniforms [N+1] for the token emitted where the walk ends.
        late: whether tokens to emit may be drawn when they are asked for.
        tests: the same tests, made in another way, that takes all places in one piece.

    Source: Leviathan et al. 2023, arXiv:2211.17192, Algorithm 1 (chain); Jeon et al. 2024, arXiv:2402.14160,
    Algorithm 1 (without replacement); Miao et al. 2024, SpecInfer, arXiv:2305.09781, Algorithm 2 (independent).
    """
    n = len(tree)
    if n == 0:
        return Ruling(accept=p.new_zeros(0), stop=pick(p, u_stop))
    if tree.q is None or (tree.q_of is None and tree.law_of is None):
        return _point_rejection(tree, p, u_stop, late)

    def at(fans: Fans, ends: bool) -> tuple[list[Float[Tensor, "R F"]], Float[Tensor, "R V"]]:
        return _tested(tree, fans, ends)

    (accept, r, q_left), stop = place_by_place(tree, p, u_stop, tests or at, late, whole=tests is not None)
    inputs = {"q": _first_chance(tree).to(p.dtype), "residual": r, "q_left": q_left}
    return Ruling(accept, stop, reason=Reason((RATIO, RESIDUAL), inputs))


def _tested(tree: DraftTree, fans: Fans, ends: bool) -> tuple[list[Float[Tensor, "R F"]], Float[Tensor, "R V"]]:
    """Sibling after sibling at some places: acceptance, r and q′ (0 for the eldest); and what is left at the end.

    What is dear is each pass over a law: what is left, and q, stay weights, beside which their sums are kept.
    """
    left, q = fans.p, fans.q  # [R, V]
    total = mass = torch.ones_like(left[:, :1])
    free = torch.ones_like(left) if tree.law_of is not None else None  # [R, V] 0 where an elder sibling has the token
    accept: list[Tensor] = []
    r: list[Tensor] = []
    q_left: list[Tensor] = []
    for k in range(tree.fanout):
        has, x = fans.there[:, k : k + 1], fans.token[:, k : k + 1]
        if free is not None:
            q = own_law(tree, fans.child[:, k], x, free)
            free = by_row(has.squeeze(1), free.scatter(1, x, 0.0), free)
        p_x, q_x = left.gather(1, x) / total, q.gather(1, x) / mass
        r.append(p_x if k else torch.zeros_like(p_x))
        q_left.append(q_x if k else torch.zeros_like(q_x))
        accept.append((p_x / q_x.clamp_min(torch.finfo(left.dtype).tiny)).clamp(max=1))
        is_last = k + 1 == tree.fanout
        if is_last and not ends:
            break
        rest = torch.addcmul(left, q, total / mass, value=-1).clamp_(min=0)
        over = rest.sum(1, keepdim=True)
        goes_on = has & (over > 0)
        left, total = by_row(goes_on.squeeze(1), rest, left), torch.where(goes_on, over, total)
        if tree.sampling in WITHOUT and not is_last:
            others = q.scatter(1, x, 0.0)
            among = others.sum(1, keepdim=True)
            drawn = has & (among > 0)
            q, mass = by_row(drawn.squeeze(1), others, q), torch.where(drawn, among, mass)
    return [torch.cat(column, 1) for column in (accept, r, q_left)], left


def _first_chance(tree: DraftTree) -> Float[Tensor, " N"]:
    """The chance of each node under the law that it, or its eldest sibling, was drawn from."""
    if tree.law_of is not None:
        return _own_chance(tree)
    assert tree.q is not None
    assert tree.q_of is not None
    return tree.q[tree.q_of[tree.parents + 1].clamp_min(0), tree.tokens]


def own_law(
    tree: DraftTree, node: Int[Tensor, " n"], x: Int[Tensor, "n 1"], free: Float[Tensor, "n V"]
) -> Float[Tensor, "n V"]:
    """The law that each of these nodes of a mixed tree was drawn from, given its elder siblings.

    Args:
        tree: the draft.
        node: indices.
        x: their tokens.
        free: 0 where an elder sibling has the token, else 1.
    """
    assert tree.q is not None
    assert tree.law_of is not None
    law_of = tree.law_of[node]
    law = tree.q[law_of.clamp_min(0)].to(free.dtype)
    if tree.without is not None:
        law = by_row(tree.without[node], normalised(law * free, law), law)
    return by_row(law_of >= 0, law, torch.zeros_like(law).scatter_(1, x, 1.0))


def _own_chance(tree: DraftTree) -> Float[Tensor, " N"]:
    """The chance of each node of a mixed tree under the law it was drawn from; 1 where it was chosen."""
    assert tree.q is not None
    assert tree.law_of is not None
    chance = tree.q[tree.law_of.clamp_min(0), tree.tokens]
    return torch.where(tree.law_of < 0, torch.ones_like(chance), chance)


def _point_rejection(
    tree: DraftTree, p: Float[Tensor, "N_plus_1 V"], u_stop: Float[Tensor, " N_plus_1"], late: bool
) -> Ruling:
    """The same for siblings that were chosen, not drawn: see `following`."""

    def at(fans: Fans, ends: bool) -> tuple[list[Float[Tensor, "R F"]], Float[Tensor, "R V"]]:
        if fans.token.shape[1] == 1 and not ends:
            accept = torch.where(fans.there, fans.p.gather(1, fans.token), 0.0)
            return [accept, torch.zeros_like(accept)], fans.p
        accept, _, left = following(fans, fans.p)
        return [accept, torch.cat([torch.zeros_like(accept[:, :1]), accept[:, 1:]], 1)], left

    (accept, r), stop = place_by_place(tree, p, u_stop, at, late)
    return Ruling(accept, stop, reason=Reason((POINT, POINT_RESIDUAL), {"residual": r}))


def expected_kept(parents: Sequence[int], accept: Sequence[float]) -> float:
    """Drafts that `walk` keeps on the average.

    Args:
        parents: of each node, parents first and siblings in the order of testing.
        accept: acceptance probability of each node.

    Example:
        >>> expected_kept([-1, 0, -1], [0.5, 0.5, 0.5])  # 0.5 + 0.25 below it + 0.25 of its sibling
        1.0
    """
    at = [1.0, *[0.0] * len(parents)]  # that the walk is at a place, and none of its drafts so far was kept
    for node, (parent, chance) in enumerate(zip(parents, accept, strict=True)):
        at[node + 1] = at[parent + 1] * chance
        at[parent + 1] -= at[node + 1]
    return sum(at[node + 1] * depth for node, depth in enumerate(depths_of(parents)))


def walk(
    parents: Sequence[int], accept: Sequence[float], stop: Sequence[int], uniform: Sequence[float] | None
) -> Verdict:
    """Follow accepted nodes from the root; where none is kept, emit that place's token.

    Args:
        parents: of each node, on the host.
        accept: acceptance probability of each node.
        stop: N+1 tokens (see `Ruling`).
        uniform: N uniforms; None when every acceptance probability is 0 or 1.
    """
    children = children_of(parents)
    path, tested, drawn = list[int](), list[tuple[int, bool]](), dict[int, float]()
    at, corrected = 0, False
    while True:
        kept = None
        for node in children[at]:
            if uniform is None:
                ok = accept[node] > 0.5
            else:
                drawn[node] = float(uniform[node])
                ok = uniform[node] < accept[node]
            tested.append((node, ok))
            if ok:
                kept = node
                break
        if kept is None:
            corrected = bool(children[at])
            break
        path.append(kept)
        at = kept + 1
    return Verdict(tuple(path), int(stop[at]), corrected, tuple(tested), drawn)
