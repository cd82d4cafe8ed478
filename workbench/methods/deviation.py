"""Deviation of a verifier's output from the target's distribution, for drafts for which the verifier is not exact.

The deviation is the total variation distance between the distribution of the output and the target's distribution p. It
is computed on a fixed example: two drafted tokens (siblings) at one position, and p and the drafter's distribution q
over three tokens. The rule is applied to every possible pair of drafts; nothing is sampled. Some tree builders, such as
`DySpec`, score a sibling by the probability that remains after earlier siblings. Then the existence of a second draft
may depend on the first: in the example there is a second one only if the probability q of the first is at most 0.5.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

import torch
from jaxtyping import Float64
from torch import Tensor

from workbench.core.sampling import SamplingParams
from workbench.core.transfer import to_list
from workbench.core.tree import DraftTree, Sampling
from workbench.decoders.draft_verify.parts import TreeBuilder, Verification, Verifier, siblings_of
from workbench.decoders.method import ConfiguredMethod, Method
from workbench.methods import method_info

P = (0.2, 0.5, 0.3)
Q = (0.8, 0.1, 0.1)
HALVINGS = 14
"""Number of bisection steps in the search for the random number at which a verifier's choice changes."""
LEAST = 0.005
"""Smallest deviation that the web page's texts show. They round to two digits, so a smaller deviation would appear as
0.00."""


def explain_unsound(
    method: Method,
    verifier: Verifier,
    tree_builder: TreeBuilder | type[TreeBuilder] | None = None,
    table: Mapping[str, Mapping[str, float]] | None = None,
) -> str:
    """Return the reason why a verifier is not exact for a method's drafts, with its deviation; "" if it is exact.

    If the verifier is exact for no drafts at all, the text contains no deviation, because the deviation depends on the
    verifier's parameters. Each run with such a verifier shows its own deviation.

    Args:
        method: the method that drafts.
        verifier: one of the method's verifiers.
        tree_builder: tree builder of the drafts; by default the method's default one.
        table: deviations by verifier and `Sampling` of the siblings, as `table` returns them; by default
            `method_info.deviations()`.
    """
    reason = method.unsound_reason(verifier, tree_builder=tree_builder)
    deviations = (method_info.deviations() if table is None else table).get(verifier.name, {})
    kinds = {kind: deviations.get(kind.value, 0.0) for kind in unsound_kinds(method, verifier, tree_builder)}
    worst_kind = max(kinds, key=kinds.__getitem__, default=None)
    if not reason or worst_kind is None or (deviation := kinds[worst_kind]) < LEAST:
        return reason
    p, q = (", ".join(f"{x:g}"[1:] for x in probs) for probs in (P, Q))
    drafts_text = "two such drafts"
    if worst_kind is Sampling.WITHOUT_REPLACEMENT and Sampling.FIXED_NUMBER in verifier.exact_for:
        drafts_text = "at most two such drafts (a second one only if q of the first is at most 0.5)"
    return f"{reason} With {drafts_text}, p = ({p}) and q = ({q}), its output differs from p by TV {deviation:.2f}."


def explain_configured(configured: ConfiguredMethod) -> str:
    """Return the reason why a configured method is not exact, with the deviation of its output; "" if it is exact."""
    return configured.unsound_reason and (
        explain_unsound(
            configured.method, configured.verifier, configured.policy.tree_builder or configured.tree_builder
        )
        or configured.unsound_reason
    )


def table(methods: Iterable[Method]) -> dict[str, dict[str, float]]:
    """Return the deviation of each verifier's output, for each way of drawing siblings that makes it inexact.

    Args:
        methods: methods whose verifiers and drafts are combined.

    Returns:
        `output_deviation`, rounded to three digits, by the verifier's name and the value of the siblings' `Sampling`.
    """
    deviations: dict[str, dict[str, float]] = {}
    for method in methods:
        for verifier, grower in itertools.product(method.verifiers, method.tree_builders):
            for kind in unsound_kinds(method, verifier, grower):
                by_kind = deviations.setdefault(verifier.name, {})
                if kind.value not in by_kind:
                    by_kind[kind.value] = round(output_deviation(verifier, kind), 3)
    return deviations


def unsound_kinds(
    method: Method, verifier: Verifier, tree_builder: TreeBuilder | type[TreeBuilder] | None = None
) -> list[Sampling]:
    """Return those of a method's ways of drawing siblings for which a verifier is not exact.

    The list is empty for a verifier that is exact for no drafts at all.
    """
    siblings = siblings_of(method.drafter, tree_builder or next(iter(method.tree_builders), None))
    return [kind for kind in Sampling if verifier.exact_for and kind in siblings - verifier.exact_for]


def output_deviation(verifier: Verifier, kind: Sampling) -> float:
    """Return the total variation distance between the target's distribution p and a verifier's output.

    The output is computed at one position with two drafted tokens.

    p is the target's distribution `P` of the fixed example. If the second draft may depend on the first, the result is
    the larger one of the deviations with and without this dependence. It is 0.0 if `kind` does not produce pairs of
    siblings, or if the verifier's rule depends on more than one position.

    Args:
        verifier: verifier whose rule is applied.
        kind: how the two drafts are drawn.
    """
    if type(verifier).walk is not Verifier.walk or kind in (Sampling.CHAIN, Sampling.MIXED):
        return 0.0
    p, q = (torch.tensor(probs, dtype=torch.float64) for probs in (P, Q))
    largest = 0.0
    for depends in (False, True) if kind is Sampling.WITHOUT_REPLACEMENT else (False,):
        drafts = pairs(q, kind, depends)
        out = sum((prob * emitted_distribution(verifier, tree, p) for tree, prob in drafts), torch.zeros_like(p))
        largest = max(largest, float((out - p).abs().sum() / 2))
    return largest


def pairs(q: Float64[Tensor, " V"], kind: Sampling, depends: bool = False) -> Iterator[tuple[DraftTree, float]]:
    """Yield every pair of siblings that can be drafted, with its probability; one node if no second one is drafted.

    Args:
        q: the drafter's distribution, [V].
        kind: how the siblings are drawn.
        depends: whether there is a second draft only if the probability q of the first is at most 0.5.
    """
    head: list[int] = to_list(q.argsort(descending=True))
    for a, b in itertools.product(range(len(q)), repeat=2):
        rest, tokens = float(1 - q[a]), [a, b]
        if depends and rest < 0.5:
            if a == b:
                yield _drawn([a], q, kind), float(q[a])
            continue
        probs: dict[Sampling, float] = {
            Sampling.DETERMINISTIC: float(tokens == head[:2]),
            Sampling.SAMPLED: float(q[a] * q[b]),
            Sampling.HEAD_AND_ONE: float(q[b]) / rest * (a == head[0] != b),
        }
        prob = probs.get(kind, float(q[a] * q[b]) / rest * (a != b))
        if not prob:
            continue
        yield _drawn(tokens, q, kind), prob


def _drawn(tokens: Sequence[int], q: Float64[Tensor, " V"], kind: Sampling) -> DraftTree:
    n = len(tokens)
    tree = replace(DraftTree.from_parents(tokens, [-1] * n), sampling=kind)
    if kind is not Sampling.DETERMINISTIC:
        tree = replace(tree, q=q[None], child_q_rows=torch.tensor([0] + [-1] * n), logq=q[list(tokens)].log())
    if kind is Sampling.HEAD_AND_ONE:
        tree = replace(tree, node_q_rows=torch.tensor([-1, 0]), without_replacement=torch.tensor([False, True]))
    return tree


def emitted_distribution(verifier: Verifier, tree: DraftTree, p: Float64[Tensor, " V"]) -> Float64[Tensor, " V"]:
    """Return the distribution of the token that a verifier emits at the position of the given siblings, [V].

    Args:
        verifier: verifier whose rule is applied.
        tree: siblings at one position.
        p: the target's distribution, [V].
    """
    distributions = p.expand(len(tree) + 1, -1)

    def at(u: float) -> tuple[list[float], int]:
        stop = torch.full((len(distributions),), u, dtype=torch.float64)
        decision = verifier.rule(
            Verification(tree, distributions.log(), distributions, SamplingParams(temperature=1.0), stop)
        )
        return to_list(decision.accept), int(decision.bonus[0])

    out, remaining = torch.zeros_like(p), 1.0
    for token, accept_prob in zip(to_list(tree.tokens), at(0.5)[0], strict=True):
        out[token] += remaining * accept_prob
        remaining *= 1 - accept_prob
    if not remaining:
        return out
    below = 0.0
    for token in range(len(p)):
        low, high = below, 1.0
        for _ in range(HALVINGS if token + 1 < len(p) else 0):  # bisect for the token's border
            middle = (low + high) / 2
            low, high = (middle, high) if at(middle)[1] <= token else (low, middle)
        out[token] += remaining * (high - below)
        below = high
    return out
