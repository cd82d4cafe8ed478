"""SWIFT: search, during generation, for attention blocks and MLPs that a draft can skip."""

from __future__ import annotations

from collections import abc
from dataclasses import dataclass, field
from typing import ClassVar, cast

import numpy as np
import torch
from jaxtyping import Bool, Float

from workbench.core.params import param
from workbench.core.random_stream import Purpose
from workbench.core.transfer import to_device
from workbench.core.tree import DraftTree
from workbench.engine.request import Sequence
from workbench.methods.common.layer_skipping import HalfLayers, LayerSkippingDrafter, evenly_skipped
from workbench.models.loading import Models
from workbench.models.side_passes import recompute_logits

POOL = 128
"""Number of random sets of skipped layers that the surrogate model scores, besides all sets one swap away from the
best set."""
REMEMBERED = 128
"""Number of newest scored sets of skipped layers to which the surrogate model is fitted."""
KAPPA, NOISE = 2.5, 1e-2
"""Parameters of the surrogate model (a Gaussian process): standard deviations of the upper bound above the mean;
noise variance of a score."""
POOR, PATIENCE = 0.5, 8
"""Threshold of the matchness score, and number of scored sets of one size after which it is tested.

If the best score is then below the threshold, half as many attention blocks and MLPs are skipped."""


@dataclass(slots=True)
class Search:
    """State of a sequence's search for half layers to skip. A half layer is the attention block or the MLP of a layer.

    Attributes:
        size: number of skipped half layers.
        best: set of skipped half layers with the best score, used for drafting.
        score: matchness of `best` on the current window of tokens; 0 before the first window.
        end: position after the last token of the window; None: no window yet.
        n_tried: number of sets scored so far, including the first.
        of_size: number of scored sets of the current size.
        scored: (bits over the half layers that may be skipped, matchness) of each scored set.
    """

    size: int
    best: HalfLayers
    score: float = 0.0
    end: int | None = None
    n_tried: int = 0
    of_size: int = 0
    scored: list[tuple[Bool[np.ndarray, " n"], float]] = field(default_factory=list[tuple[np.ndarray, float]])


@dataclass(frozen=True)
class Swift(LayerSkippingDrafter):
    """Draft with the target minus a set of attention blocks and MLPs, and search for a better set before each round.

    One set is tried per round: the reduced target processes a window of committed tokens again, in one forward pass.
    The score of the set, the *matchness*, is the share of positions at which the reduced target's most likely token is
    the text's token. A set with a better score is used for drafting from then on. Every few steps, the set with the
    highest upper bound (μ + κ σ) of a Gaussian process over the scored sets is tried, in other steps a random set. The
    first and the last layer always run. If all tried sets score low, half as many attention blocks and MLPs are
    skipped.

    Source: Xia et al. 2024, SWIFT, arXiv:2410.06916, §4.1 (search), §4.2 (drafting).
    """

    source: ClassVar[str] = "swift"
    ratio: float = param(
        0.45, ge=0.0, le=0.9, doc=("r, share of attention blocks and MLPs skipped; the first and last layer always run")
    )
    window: int = param(32, ge=4, le=96, doc="number of committed tokens on which a set of skipped layers is scored")
    steps: int = param(
        48, ge=0, le=1000, doc="maximum number of layer sets tried per sequence; 0: keep the evenly spaced set"
    )
    every: int = param(
        4, ge=1, le=100, doc="steps between two layer sets proposed by the surrogate model; the other sets are random"
    )
    enough: float = param(
        0.95,
        ge=0.0,
        le=1.0,
        doc=("stop the search when a layer set predicts at least this share of the window's tokens (matchness)"),
    )

    def init_state(self, sequence: Sequence, models: Models) -> Search:
        """Return the initial state of the search: evenly spread layers are skipped; `ratio` determines their number."""
        n = models.target.n_layers
        size = int(self.ratio * max(0, 2 * n - 4) + 1e-9)
        return Search(size, initial_set(n, size))

    def skipped_half_layers(self, sequence: Sequence) -> HalfLayers:
        """Return the attention blocks and MLPs that the best set so far skips."""
        state: Search = sequence.state.drafter
        return state.best

    def propose(self, sequences: abc.Sequence[Sequence]) -> list[DraftTree]:
        """Run a step of the layer search for each sequence, then draft chains without the skipped layers."""
        for sequence in sequences:
            cast(Swift, sequence.drafter).step(sequence)
        return super().propose(sequences)

    def step(self, sequence: Sequence) -> None:
        """Run a step of the layer search: score a new set of skipped layers, and use it if it is better.

        If the window of scored tokens has moved, the best set is scored again first.
        """
        state: Search = sequence.state.drafter
        begin = 0 if sequence.cache_slot.image_prefill is None else len(sequence.cache_slot.image_prefill.embeds)
        end, n = len(sequence.committed) - 1, sequence.models.target.n_layers
        if state.size and end - begin >= self.window and state.n_tried < self.steps:
            if state.of_size >= PATIENCE and state.score < POOR and state.size > 1:
                state.size, state.of_size, state.end = state.size // 2, 0, None
                state.best = initial_set(n, state.size)
            if state.end is None or end - state.end >= self.window:
                state.end = end
                state.score = self.score_set(sequence, state, state.best)
            elif state.score < self.enough:
                candidate = self.candidate(sequence, state)
                score = self.score_set(sequence, state, candidate)
                if score > state.score:
                    state.best, state.score = candidate, score
        sequence.report.signals["sets tried"] = state.n_tried
        sequence.report.signals["skipped half layers"] = len(state.best)
        if state.n_tried:
            sequence.report.signals["matchness"] = state.score

    def candidate(self, sequence: Sequence, state: Search) -> HalfLayers:
        """Return the set of half layers (attention or MLP of a layer) to score next."""
        n = 2 * sequence.models.target.n_layers - 4
        numbers = np.reshape(
            sequence.random_stream.uniform(len(sequence.committed), Purpose.GUESS, POOL * n), (POOL, n)
        )
        pool = numbers.argsort(1).argsort(1) < state.size
        if state.n_tried % self.every or len(state.scored) < 2:
            return to_halves(pool[0])
        pool = np.concatenate([pool, sets_one_swap_away(to_bits(state.best, n))])
        return to_halves(pool[bounds(state.scored, pool).argmax()])

    def score_set(self, sequence: Sequence, state: Search, skipped: HalfLayers) -> float:
        """Return the matchness of a set of skipped layers, and record it in the search state.

        Matchness is the share of the committed tokens in a window that the reduced target predicts correctly.
        """
        assert state.end is not None
        start, target = state.end - self.window, sequence.models.target
        logits = recompute_logits(target, sequence.cache_slot, start, sequence.committed[start : state.end], skipped)
        next_tokens = to_device(sequence.committed[start + 1 : state.end + 1], logits.device, torch.long)
        score = float((logits.argmax(1) == next_tokens).float().mean())
        state.n_tried, state.of_size = state.n_tried + 1, state.of_size + 1
        state.scored = [*state.scored, (to_bits(skipped, 2 * target.n_layers - 4), score)][-REMEMBERED:]
        return score


def initial_set(n_layers: int, size: int) -> HalfLayers:
    """Return the initial set of skipped layers: evenly spread layers, plus one attention block if `size` is odd.

    Args:
        n_layers: number of the target's layers.
        size: number of attention blocks and MLPs to skip.
    """
    halves = evenly_skipped(n_layers, n_layers - size // 2)
    return halves if size % 2 == 0 else halves | {min(h for h in range(2, 2 * n_layers - 2, 2) if h not in halves)}


def to_bits(halves: HalfLayers, n: int) -> Bool[np.ndarray, " n"]:
    """Encode a set of half layers (attention or MLP of a layer) as bits over the n half layers that may be skipped."""
    return np.isin(np.arange(2, n + 2), list(halves))


def to_halves(bits: Bool[np.ndarray, " n"]) -> HalfLayers:
    """Return the set of half layers (attention or MLP of a layer) that bits encode: the inverse of `to_bits`."""
    return frozenset((np.flatnonzero(bits) + 2).tolist())


def sets_one_swap_away(bits: Bool[np.ndarray, " n"]) -> Bool[np.ndarray, "m n"]:
    """Return all m sets that differ from a set of skipped attention blocks and MLPs by one exchange, as bits."""
    pairs = [(i, j) for i in np.flatnonzero(bits) for j in np.flatnonzero(~bits)]
    variants = np.repeat(bits[None], len(pairs), 0)
    for row, (i, j) in zip(variants, pairs, strict=True):
        row[i], row[j] = False, True
    return variants


def bounds(
    scored: list[tuple[Bool[np.ndarray, " n"], float]], pool: Bool[np.ndarray, "m n"]
) -> Float[np.ndarray, " m"]:
    """Return upper bounds μ + κ σ on the scores of sets of skipped layers, by a Gaussian process (Matérn 5/2).

    The distance of two sets is the square root of the number of attention blocks and MLPs in which they differ. The
    length scale is the distance of sets that differ in half of the attention blocks and MLPs. Scores are scaled by
    their standard deviation.

    Args:
        scored: scored sets, at least two.
        pool: candidate sets.
    """
    x, y = np.stack([bits for bits, _ in scored]).astype(float), np.array([score for _, score in scored])
    y = (y - y.mean()) / (y.std() or 1.0)

    def kernel(a: np.ndarray, b: np.ndarray) -> np.ndarray:
        n_different = a @ np.transpose(1 - b) + (1 - a) @ np.transpose(b)
        distance = np.sqrt(5 * n_different / (a.shape[1] / 2))
        return (1 + distance + distance**2 / 3) * np.exp(-distance)

    cross_kernel = kernel(pool.astype(float), x)
    solution = np.linalg.solve(kernel(x, x) + NOISE * np.eye(len(x)), np.column_stack([y, np.transpose(cross_kernel)]))
    variance = 1 - np.sum(cross_kernel * np.transpose(solution[:, 1:]), axis=1)
    return cross_kernel @ solution[:, 0] + KAPPA * np.sqrt(np.maximum(variance, 0))
