"""Goodness of fit: Pearson's chi-square test with exact tail, and a model's exact joint distribution of tokens."""

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
"""Smallest expected count of a cell in a chi-square test; cells with smaller expected counts are pooled.

The chi-square distribution is an approximation for large counts.
"""


@dataclass(frozen=True, slots=True)
class Fit:
    """Result of a goodness-of-fit test.

    Attributes:
        statistic: Pearson's sum of (observed − expected)² / expected.
        freedom: degrees of freedom: cells after pooling, minus one.
        p_value: probability of a statistic at least as large if the distribution is right.
        worst: the cell with the largest contribution, as (cell, observed, expected).
        impossible: observed cells of probability 0; one is enough to fail.
    """

    statistic: float
    freedom: int
    p_value: float
    worst: tuple[Any, int, float]
    impossible: tuple[Any, ...] = ()

    def fits(self, alpha: float = 1e-4) -> bool:
        """Return whether the sample fits the distribution at error probability `alpha`."""
        return not self.impossible and self.p_value >= alpha

    def __str__(self) -> str:
        if self.impossible:
            return f"{len(self.impossible)} outcomes of probability 0 were seen, such as {self.impossible[0]}"
        cell, observed, expected = self.worst
        return (
            f"χ² = {self.statistic:.1f} with {self.freedom} degrees of freedom, p = {self.p_value:.2g} "
            f"(worst outcome {cell}: {observed} observed, {expected:.1f} expected)"
        )


def chi_square_tail(statistic: float, freedom: int) -> float:
    """Return the probability that a chi-square variable with `freedom` degrees exceeds `statistic`.

    Example:
        >>> round(chi_square_tail(3.841458820694124, 1), 6)
        0.05
    """
    return float(stats.chi2.sf(statistic, freedom)) if freedom > 0 else 1.0


def chi_square(counts: Mapping[Any, int], probs: Mapping[Any, float]) -> Fit:
    """Test observed counts against a distribution over the same cells.

    Cells with an expectation below `MIN_EXPECTED` are pooled into one, smallest first.

    Args:
        counts: number of observations by cell.
        probs: probabilities by cell, summing to 1.

    Example:
        >>> chi_square({"a": 50, "b": 50}, {"a": 0.5, "b": 0.5}).p_value
        1.0
    """
    n = sum(counts.values())
    impossible = tuple(cell for cell, count in counts.items() if count and probs.get(cell, 0.0) <= 0.0)
    cells = sorted((cell for cell, p in probs.items() if p > 0), key=lambda cell: probs[cell])
    pooled: list[tuple[Any, int, float]] = []
    rest_observed, rest_expected, rest_cells = 0, 0.0, 0
    for cell in cells:
        observed, expected = counts.get(cell, 0), n * probs[cell]
        if expected < MIN_EXPECTED or 0 < rest_expected < MIN_EXPECTED:
            rest_observed, rest_expected, rest_cells = (
                rest_observed + observed,
                rest_expected + expected,
                rest_cells + 1,
            )
        else:
            pooled.append((cell, observed, expected))
    if rest_cells:
        pooled.append((f"{rest_cells} rare outcomes together", rest_observed, rest_expected))
    parts = [(observed - expected) ** 2 / expected for _, observed, expected in pooled]
    worst = pooled[max(range(len(parts)), key=parts.__getitem__)] if parts else ("none", 0, 0.0)
    freedom = max(len(pooled) - 1, 0)
    return Fit(sum(parts), freedom, chi_square_tail(sum(parts), freedom), worst, impossible)


def holm(p_values: Sequence[float]) -> list[float]:
    """Return p-values corrected for the number of tests by Holm's method.

    If all tests with a corrected p-value below α are rejected, the probability of any false rejection is at most α.

    The smallest of n p-values is multiplied by n, the next by n − 1, and so on; each corrected p-value is at least as
    large as the one before. No assumption is made about dependence between the tests.

    Source: Holm 1979, A simple sequentially rejective multiple test procedure, Scandinavian Journal of Statistics 6.

    Example:
        >>> holm([0.01, 0.04, 0.03])
        [0.03, 0.06, 0.06]
    """
    corrected, least = [0.0] * len(p_values), 0.0
    for rank, i in enumerate(sorted(range(len(p_values)), key=p_values.__getitem__)):
        least = max(least, min(1.0, (len(p_values) - rank) * p_values[i]))
        corrected[i] = least
    return corrected


def total_variation(counts: Mapping[Any, int], probs: Mapping[Any, float]) -> float:
    """Return the total variation distance of observed frequencies and a distribution: 0 if equal, 1 if disjoint.

    It is half the sum of the absolute differences.
    """
    n = max(sum(counts.values()), 1)
    return sum(abs(counts.get(c, 0) / n - probs.get(c, 0.0)) for c in {*counts, *probs}) / 2


def variation_by_chance(probs: Mapping[Any, float], n: int) -> float:
    """Return the expected `total_variation` between a distribution and `n` samples of it, by the normal approximation.

    Example:
        >>> round(variation_by_chance({"a": 0.5, "b": 0.5}, 100), 3)
        0.04
    """
    return math.sqrt(2 / math.pi) / 2 * sum(math.sqrt(p * (1 - p) / n) for p in probs.values() if p < 1)


def cdf_positions(
    distributions: Float[Tensor, "n V"], tokens: Int[Tensor, " n"], within: Float[Tensor, " n"]
) -> Float[Tensor, " n"]:
    """Return the position of each token in the cumulative distribution, most probable token first: in [0, 1).

    If the tokens were sampled from these distributions, each conditional on its own text, the positions are uniform and
    independent; for other distributions they are not (Rosenblatt). In this way long runs can be tested, although their
    joint distribution cannot be enumerated.

    Args:
        distributions: expected distribution of each token, in which the token has a probability above 0.
        tokens: sampled tokens, int64 [n].
        within: uniforms in [0, 1) that spread a token evenly over its own probability mass.

    Source: Rosenblatt 1952, Remarks on a multivariate transformation, Annals of Mathematical Statistics 23.
    """
    token_probs = distributions.gather(1, tokens[:, None])
    tied = (distributions * (distributions == token_probs)).cumsum(1).gather(
        1, tokens[:, None]
    ) - token_probs  # equally probable tokens before it
    before = (distributions * (distributions > token_probs)).sum(1, keepdim=True) + tied
    return (before + within[:, None].to(token_probs) * token_probs)[:, 0]


def count_firsts(samples: Sequence[Sequence[int]], n_tokens: int) -> Counter[tuple[int, ...]]:
    """Return how often each sequence of `n_tokens` tokens occurs at the start of the samples."""
    return Counter(tuple(s[:n_tokens]) for s in samples)


def joint_distribution(
    model: Any,
    prompt: Sequence[int],
    n_tokens: int,
    warp: Callable[[Float[Tensor, " V"]], Float[Tensor, " V"]],
    extra: Mapping[str, Tensor] | None = None,
) -> dict[tuple[int, ...], float]:
    """Return the exact joint distribution of the next `n_tokens`, by one plain forward pass of the model per prefix.

    Args:
        model: a Hugging Face causal model.
        prompt: token ids of the prompt.
        n_tokens: number of tokens; the distribution has up to V**n_tokens cells.
        warp: converts the logits [V] after a prefix into the probabilities [V] that sampling uses.
        extra: further inputs of the model, such as pixels.
    """
    probs: dict[tuple[int, ...], float] = {(): 1.0}
    for _ in range(n_tokens):
        longer: dict[tuple[int, ...], float] = {}
        for prefix, mass in probs.items():
            ids = torch.tensor([[*prompt, *prefix]], device=model.device)
            with torch.inference_mode():
                p = warp(model(ids, **(extra or {})).logits[0, -1].double())
            for token in p.nonzero().flatten().tolist():
                longer[(*prefix, token)] = mass * float(p[token])
        probs = longer
    return probs
