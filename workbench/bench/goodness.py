"""Does a sample follow a law? Pearson's chi-square with its exact tail, and the law of a model's first two tokens."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float, Int
from scipy import stats
from torch import Tensor

MIN_EXPECTED = 5.0
"""Cells expected to hold fewer observations are pooled: the chi-square law is an approximation for large cells."""


@dataclass(frozen=True, slots=True)
class Fit:
    """Result of a goodness-of-fit test.

    Attributes:
        statistic: Pearson's sum of (observed − expected)² / expected.
        freedom: degrees of freedom: cells after pooling, less one.
        p_value: probability of a statistic at least as large if the law holds.
        worst: the cell that adds most, as (cell, observed, expected).
        impossible: observed cells to which the law gives no probability; one is enough to fail.
    """

    statistic: float
    freedom: int
    p_value: float
    worst: tuple[Any, int, float]
    impossible: tuple[Any, ...] = ()

    def fits(self, alpha: float = 1e-4) -> bool:
        """Whether the law is kept at error probability `alpha`."""
        return not self.impossible and self.p_value >= alpha

    def __str__(self) -> str:
        if self.impossible:
            return f"{len(self.impossible)} outcomes of probability 0 were seen, {self.impossible[0]} for one"
        cell, observed, expected = self.worst
        return (
            f"χ² = {self.statistic:.1f} with {self.freedom} degrees of freedom, p = {self.p_value:.2g} "
            f"(worst cell {cell}: {observed} seen, {expected:.1f} expected)"
        )


def chi_square_tail(statistic: float, freedom: int) -> float:
    """Probability that a chi-square variable with `freedom` degrees exceeds `statistic`.

    Example:
        >>> round(chi_square_tail(3.841458820694124, 1), 6)
        0.05
    """
    return float(stats.chi2.sf(statistic, freedom)) if freedom > 0 else 1.0


def chi_square(counts: Mapping[Any, int], law: Mapping[Any, float]) -> Fit:
    """Test observed counts against a law over the same cells.

    Cells with an expectation below `MIN_EXPECTED` are pooled into one, smallest first.

    Args:
        counts: observations by cell.
        law: probabilities by cell, summing to 1.

    Example:
        >>> chi_square({"a": 50, "b": 50}, {"a": 0.5, "b": 0.5}).p_value
        1.0
    """
    n = sum(counts.values())
    impossible = tuple(cell for cell, count in counts.items() if count and law.get(cell, 0.0) <= 0.0)
    cells = sorted((cell for cell, p in law.items() if p > 0), key=lambda cell: law[cell])
    pooled: list[tuple[Any, int, float]] = []
    rest_seen, rest_expected, rest_cells = 0, 0.0, 0
    for cell in cells:
        seen, expected = counts.get(cell, 0), n * law[cell]
        if expected < MIN_EXPECTED or 0 < rest_expected < MIN_EXPECTED:
            rest_seen, rest_expected, rest_cells = rest_seen + seen, rest_expected + expected, rest_cells + 1
        else:
            pooled.append((cell, seen, expected))
    if rest_cells:
        pooled.append((f"{rest_cells} rare cells", rest_seen, rest_expected))
    parts = [(seen - expected) ** 2 / expected for _, seen, expected in pooled]
    worst = pooled[max(range(len(parts)), key=parts.__getitem__)] if parts else ("none", 0, 0.0)
    freedom = max(len(pooled) - 1, 0)
    return Fit(sum(parts), freedom, chi_square_tail(sum(parts), freedom), worst, impossible)


def holm(p_values: Sequence[float]) -> list[float]:
    """p-values corrected for their number: rejecting those below α errs at all with probability α at most.

    The smallest is multiplied by their number n, the next by n − 1, and so on, none below the one before. Nothing is
    assumed of how the tests depend on each other.

    Source: Holm 1979, A simple sequentially rejective multiple test procedure, Scandinavian Journal of Statistics 6.

    Example:
        >>> holm([0.01, 0.04, 0.03])
        [0.03, 0.06, 0.06]
    """
    found, least = [0.0] * len(p_values), 0.0
    for rank, i in enumerate(sorted(range(len(p_values)), key=p_values.__getitem__)):
        least = max(least, min(1.0, (len(p_values) - rank) * p_values[i]))
        found[i] = least
    return found


def total_variation(counts: Mapping[Any, int], law: Mapping[Any, float]) -> float:
    """Half the sum of absolute differences between the observed frequencies and the law: 0 is equal, 1 disjoint."""
    n = max(sum(counts.values()), 1)
    return sum(abs(counts.get(c, 0) / n - law.get(c, 0.0)) for c in {*counts, *law}) / 2


def variation_by_chance(law: Mapping[Any, float], n: int) -> float:
    """The `total_variation` to expect between a law and the counts of `n` samples of it, by the normal approximation.

    Example:
        >>> round(variation_by_chance({"a": 0.5, "b": 0.5}, 100), 3)
        0.04
    """
    return math.sqrt(2 / math.pi) / 2 * sum(math.sqrt(p * (1 - p) / n) for p in law.values() if p < 1)


def places(laws: Float[Tensor, "n V"], tokens: Int[Tensor, " n"], within: Float[Tensor, " n"]) -> Float[Tensor, " n"]:
    """Where each token stands among the cumulative probabilities of its own law, likeliest first: in [0, 1).

    Of tokens that were drawn from these laws, each law that of its own text, the places are uniform and independent of
    each other, and of no others (Rosenblatt): so that long runs are tested whose joint law nobody can enumerate.

    Args:
        laws: that the tokens should have been drawn from; every token with a probability above 0.
        tokens: that were drawn.
        within: uniforms in [0, 1) that spread a token evenly over its own share.

    Source: Rosenblatt 1952, Remarks on a multivariate transformation, Annals of Mathematical Statistics 23.
    """
    own = laws.gather(1, tokens[:, None])
    tied = (laws * (laws == own)).cumsum(1).gather(1, tokens[:, None]) - own  # equally likely ones that come before
    before = (laws * (laws > own)).sum(1, keepdim=True) + tied
    return (before + within[:, None].to(own) * own)[:, 0]


def count_firsts(samples: Sequence[Sequence[int]], n_tokens: int) -> Counter[tuple[int, ...]]:
    """Counts of the first `n_tokens` of each sample."""
    return Counter(tuple(s[:n_tokens]) for s in samples)


def joint_law(
    model: Any,
    prompt: Sequence[int],
    n_tokens: int,
    warp: Callable[[Float[Tensor, " V"]], Float[Tensor, " V"]],
    extra: Mapping[str, Tensor] | None = None,
) -> dict[tuple[int, ...], float]:
    """The exact law of the next `n_tokens`, by one plain forward of the model for each beginning.

    Args:
        model: a Hugging Face causal model.
        prompt: token ids.
        n_tokens: how far; the law has up to V**n_tokens cells.
        warp: turns the logits [V] after a beginning into the probabilities [V] that sampling uses.
        extra: what the model takes besides token ids: pixels.
    """
    law: dict[tuple[int, ...], float] = {(): 1.0}
    for _ in range(n_tokens):
        longer: dict[tuple[int, ...], float] = {}
        for beginning, mass in law.items():
            ids = torch.tensor([[*prompt, *beginning]], device=model.device)
            with torch.inference_mode():
                p = warp(model(ids, **(extra or {})).logits[0, -1].double())
            for token in p.nonzero().flatten().tolist():
                longer[(*beginning, token)] = mass * float(p[token])
        law = longer
    return law
