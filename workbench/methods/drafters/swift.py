"""SWIFT: search for the attentions and MLPs that a draft can skip, while the text is written."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np
import torch
from jaxtyping import Bool, Float

from workbench.core.draw import Purpose
from workbench.core.params import param
from workbench.core.transfer import to_device
from workbench.core.tree import DraftTree
from workbench.engine.request import Row
from workbench.methods.drafters.skipping import Halves, Skipping, spread
from workbench.models.loading import Models
from workbench.models.side_passes import read_again

POOL = 128
"""Random candidate sets for the surrogate model, besides all that differ from the best one by a swap."""
REMEMBERED = 128
"""Newest scored sets that the surrogate model uses."""
KAPPA, NOISE = 2.5, 1e-2
"""Surrogate model: standard deviations of its bound above the mean, and the variance of a score."""
POOR, PATIENCE = 0.5, 8
"""Half as many halves are skipped if the best matchness is below the first, after this number of sets of one size."""


@dataclass(slots=True)
class Search:
    """Search state of a sequence.

    Attributes:
        size: number of skipped halves.
        best: set of skipped halves with the best score, which drafts.
        score: matchness of `best` on the window, once there is a window.
        end: position after the window's last token that is read; None: there is no window yet.
        tried: number of sets scored so far, including the first.
        of_size: number of these sets with the present size.
        seen: scored sets, as bits over the halves that may be skipped, and their matchness.
    """

    size: int
    best: Halves
    score: float = 0.0
    end: int | None = None
    tried: int = 0
    of_size: int = 0
    seen: list[tuple[Bool[np.ndarray, " n"], float]] = field(default_factory=list[tuple[np.ndarray, float]])


@dataclass(frozen=True)
class Swift(Skipping):
    """Draft without a share of the target's attentions and MLPs, and search for a better set before each round.

    One set is tried per round: the thinned target reads a window of committed tokens again, in one pass, and its score,
    the *matchness*, is the share of positions at which its most likely token is that of the text. A set with a better
    score drafts from then on. Every few steps the set is chosen by the upper bound (μ + κ σ) of a Gaussian process over
    the scored sets, otherwise at random. First and last layer always run. If no set is good, fewer halves are skipped.

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
        4, ge=1, le=100, doc="steps between two sets proposed by the surrogate model; other sets are random"
    )
    enough: float = param(0.95, ge=0.0, le=1.0, doc="stop the search at this matchness: share of equal top tokens")

    def prime(self, row: Row, models: Models) -> Search:
        """Return an initial state with evenly spread skipped layers, by the ratio."""
        n = models.target.n_layers
        size = int(self.ratio * max(0, 2 * n - 4) + 1e-9)
        return Search(size, first(n, size))

    def without(self, row: Row) -> Halves:
        """Return the best set so far."""
        state: Search = row.state.drafter
        return state.best

    def propose(self, rows: Sequence[Row]) -> list[DraftTree]:
        """Run a search step for each sequence, then draft chains."""
        for row in rows:
            row.drafter.step(row)
        return super().propose(rows)

    def step(self, row: Row) -> None:
        """Score one more set, which drafts if it is better; or the best one again, if the window moved."""
        state: Search = row.state.drafter
        begin = 0 if row.place.pictured is None else len(row.place.pictured.embeds)
        end, n = len(row.committed) - 1, row.models.target.n_layers
        if state.size and end - begin >= self.window and state.tried < self.steps:
            if state.of_size >= PATIENCE and state.score < POOR and state.size > 1:
                state.size, state.of_size, state.end = state.size // 2, 0, None
                state.best = first(n, state.size)
            if state.end is None or end - state.end >= self.window:
                state.end = end
                state.score = self.try_out(row, state, state.best)
            elif state.score < self.enough:
                chosen = self.candidate(row, state)
                score = self.try_out(row, state, chosen)
                if score > state.score:
                    state.best, state.score = chosen, score
        row.report.signals["sets tried"] = state.tried
        row.report.signals["halves left out"] = len(state.best)
        if state.tried:
            row.report.signals["matchness"] = state.score

    def candidate(self, row: Row, state: Search) -> Halves:
        """Return the set to try next."""
        n = 2 * row.models.target.n_layers - 4
        numbers = np.reshape(row.draw.uniform(len(row.committed), Purpose.GUESS, POOL * n), (POOL, n))
        pool = numbers.argsort(1).argsort(1) < state.size
        if state.tried % self.every or len(state.seen) < 2:
            return to_halves(pool[0])
        pool = np.concatenate([pool, swapped(to_bits(state.best, n))])
        return to_halves(pool[bounds(state.seen, pool).argmax()])

    def try_out(self, row: Row, state: Search, chosen: Halves) -> float:
        """Return the matchness of a set on the window."""
        assert state.end is not None
        start, target = state.end - self.window, row.models.target
        logits = read_again(target, row.place, start, row.committed[start : state.end], chosen)
        wanted = to_device(row.committed[start + 1 : state.end + 1], logits.device, torch.long)
        score = float((logits.argmax(1) == wanted).float().mean())
        state.tried, state.of_size = state.tried + 1, state.of_size + 1
        state.seen = [*state.seen, (to_bits(chosen, 2 * target.n_layers - 4), score)][-REMEMBERED:]
        return score


def first(n_layers: int, size: int) -> Halves:
    """Return the initial set of a search: whole layers, evenly spread, plus one attention if the number is odd."""
    found = spread(n_layers, n_layers - size // 2)
    return found if size % 2 == 0 else found | {min(h for h in range(2, 2 * n_layers - 2, 2) if h not in found)}


def to_bits(halves: Halves, n: int) -> Bool[np.ndarray, " n"]:
    """Return which of the n halves after the first layer are in a set."""
    return np.isin(np.arange(2, n + 2), list(halves))


def to_halves(bits: Bool[np.ndarray, " n"]) -> Halves:
    """Return the set of these bits."""
    return frozenset((np.flatnonzero(bits) + 2).tolist())


def swapped(bits: Bool[np.ndarray, " n"]) -> Bool[np.ndarray, "m n"]:
    """Return all sets with one half exchanged."""
    pairs = [(i, j) for i in np.flatnonzero(bits) for j in np.flatnonzero(~bits)]
    found = np.repeat(bits[None], len(pairs), 0)
    for row, (i, j) in zip(found, pairs, strict=True):
        row[i], row[j] = False, True
    return found


def bounds(seen: list[tuple[Bool[np.ndarray, " n"], float]], pool: Bool[np.ndarray, "m n"]) -> Float[np.ndarray, " m"]:
    """Return upper bounds μ + κ σ on the scores of sets, by a Gaussian process over scored ones (Matérn 5/2).

    The distance of two sets is the square root of the number of halves in which they differ; half of the halves is one
    length of the kernel. Scores are scaled by their standard deviation.

    Args:
        seen: scored sets, at least two.
        pool: candidate sets.
    """
    x, y = np.stack([bits for bits, _ in seen]).astype(float), np.array([score for _, score in seen])
    y = (y - y.mean()) / (y.std() or 1.0)

    def kernel(a: np.ndarray, b: np.ndarray) -> np.ndarray:
        differ = a @ np.transpose(1 - b) + (1 - a) @ np.transpose(b)
        far = np.sqrt(5 * differ / (a.shape[1] / 2))
        return (1 + far + far**2 / 3) * np.exp(-far)

    across = kernel(pool.astype(float), x)
    solved = np.linalg.solve(kernel(x, x) + NOISE * np.eye(len(x)), np.column_stack([y, np.transpose(across)]))
    variance = 1 - np.sum(across * np.transpose(solved[:, 1:]), axis=1)
    return across @ solved[:, 0] + KAPPA * np.sqrt(np.maximum(variance, 0))
