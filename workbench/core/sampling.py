"""From logits to the law a token is drawn from, and the draw itself."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Float64, Int
from torch import Tensor

from workbench.core.params import param
from workbench.core.transfer import of_numpy, on_host

LogitsProcessor = Callable[[Tensor, Tensor], Tensor]
"""Hugging Face's convention: (input_ids int64 [B, L], scores float [B, V]) → scores."""


WARM = "temperature > 0"
COLDEST = 1e-6
"""Least temperature that logits are divided by: below about 1e-36 their quotients overflow, and a distribution would be
NaN. At this one a token whose logit is .0001 below the largest has a probability of e^−100 at most."""

WIDE, BLOCK = 2048, 128
"""Columns from which rows of a law are worked on in blocks, and the columns of a block."""
TINY = torch.finfo(torch.float64).tiny
PIECE = 1 << 20
"""Numbers of wide laws that are worked on at a time: with what is made of them they stay in a processor's caches."""


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How the target's logits become a law. Temperature 0 is greedy decoding; the filters then change nothing.

    `processors` are Hugging Face logits processors; each sees the whole history of the node it scores.
    """

    temperature: float = param(0.0, ge=0.0, le=5.0, doc="0 is greedy; 1 samples from the model as it is")
    top_k: int = param(0, ge=0, le=1000, doc="keep the k likeliest tokens; 0 keeps all", when=WARM)
    top_p: float = param(
        1.0, ge=0.0, le=1.0, doc="keep the smallest set of tokens with this much probability; 1 keeps all", when=WARM
    )
    min_p: float = param(
        0.0, ge=0.0, le=1.0, doc="drop tokens below this share of the likeliest token's probability", when=WARM
    )
    repetition_penalty: float = param(
        1.0, ge=0.5, le=5.0, doc="divide the logits of tokens seen before; 1 changes nothing"
    )
    processors: tuple[Any, ...] = ()

    @property
    def greedy(self) -> bool:
        """Whether decoding takes the likeliest token."""
        return self.temperature == 0.0

    @property
    def heat(self) -> float:
        """The number that logits are divided by: the temperature, `COLDEST` at least; 1 when greedy."""
        return 1.0 if self.greedy else max(self.temperature, COLDEST)

    @property
    def needs_history(self) -> bool:
        """Whether the law depends on the tokens before, beyond the logits."""
        return self.repetition_penalty != 1.0 or bool(self.processors)


def penalise_repetition(
    history: Int[Tensor, "B L"], scores: Float[Tensor, "B V"], penalty: float
) -> Float[Tensor, "B V"]:
    """Divide positive and multiply negative logits of the tokens in `history` by `penalty`.

    Source: Keskar et al. 2019, CTRL, arXiv:1909.05858, §4.1.
    """
    seen = scores.gather(1, history)
    seen = torch.where(seen < 0, seen * penalty, seen / penalty)
    return scores.scatter(1, history, seen)


def with_history(
    logits: Float[Tensor, "n V"], sampling: SamplingParams, histories: Sequence[Int[Tensor, " _"]]
) -> Float[Tensor, "n V"]:
    """Apply the repetition penalty and the processors, each row with its own history; these may differ in length."""
    if not sampling.needs_history:
        return logits
    rows = list[Tensor]()
    for row, history in zip(logits, histories, strict=True):
        scores, ids = row[None].float() if row.dtype in (torch.bfloat16, torch.float16) else row[None], history[None]
        if sampling.repetition_penalty != 1.0:
            scores = penalise_repetition(ids, scores, sampling.repetition_penalty)
        for processor in sampling.processors:
            scores = processor(ids, scores)
        rows.append(scores[0])
    return torch.stack(rows)


def sayable(logits: Float[Tensor, "n V"]) -> Float[Tensor, "n V"]:
    """A drafter's logits; all alike where processors have left it nothing: whatever it then says, the target decides.

    A drafter that keeps a part of the vocabulary may have none of the few tokens that a processor allows.
    """
    return logits.masked_fill(logits.isneginf().all(-1, keepdim=True), 0.0)


def law(logits: Float[Tensor, "n V"], sampling: SamplingParams) -> Float[Tensor, "n V"]:
    """Probabilities the next token is drawn from: temperature, then top-k, top-p and min-p, in that order.

    Args:
        logits: after `with_history`. Half precision is widened to float32; float64 stays.
        sampling: with temperature above 0.

    Returns:
        Rows that sum to 1. At temperature 0 a point mass on the first likeliest token.
    """
    wide = torch.float64 if logits.dtype == torch.float64 else torch.float32
    if sampling.greedy:
        return torch.zeros_like(logits, dtype=wide).scatter_(1, logits.argmax(1, keepdim=True), 1.0)
    if logits.numel() <= PIECE or logits.requires_grad:
        return _scores(logits.to(wide), sampling).softmax(1)
    out = torch.empty_like(logits, dtype=wide)
    for rows in pieces(len(logits), logits.shape[1], logits.device):
        torch.softmax(_scores(logits[rows].to(wide), sampling), 1, out=out[rows])
    return out


def _scores(logits: Float[Tensor, "n V"], sampling: SamplingParams) -> Float[Tensor, "n V"]:
    """Logits by temperature, those that the filters leave."""
    scores = logits if sampling.temperature == 1.0 else logits / sampling.heat
    if 0 < sampling.top_k < scores.shape[1]:
        least = scores.topk(sampling.top_k, dim=1).values[:, -1:]
        scores = scores.masked_fill(scores < least, -math.inf)
    if sampling.top_p < 1.0:
        ordered, index = scores.sort(dim=1)
        drop = ordered.softmax(1).cumsum(1) <= 1.0 - sampling.top_p
        drop[:, -1] = False
        scores = scores.masked_fill(torch.zeros_like(drop).scatter(1, index, drop), -math.inf)
    if sampling.min_p > 0.0:
        p = scores.softmax(1)
        scores = scores.masked_fill(p < sampling.min_p * p.amax(1, keepdim=True), -math.inf)
    return scores


def pieces(n_rows: int, width: int, device: torch.device) -> Iterator[slice]:
    """Slices of rows that are worked on at a time: of wide ones on the host a few, else all; one at least."""
    at_once = max(1, PIECE // width) if on_host(device) and width >= WIDE else max(1, n_rows)
    for first in range(0, max(1, n_rows), at_once):
        yield slice(first, min(n_rows, first + at_once))


def likeliest(logits: Float[Tensor, "n V"]) -> Int[Tensor, " n"]:
    """The first largest entry of each row.

    On a CPU through NumPy, whose argmax is vectorised: 3 instead of 18 µs for one row of 4,096.
    """
    if on_host(logits.device) and logits.dtype in (torch.float32, torch.float64):
        return of_numpy(logits.detach().numpy().argmax(1))
    return logits.argmax(1)


def largest(x: Float[Tensor, "n V"], k: int) -> tuple[Float[Tensor, "n k"], Int[Tensor, "n k"]]:
    """The k largest entries of each row, falling, and where they stand.

    On a CPU a wide row is not sorted: they stand in the k blocks with the largest maxima, and one vectorised pass finds
    those. 113 instead of 523 µs for 17 rows of 49,152 (two cores).
    """
    blocks = _blocks(x)
    if blocks is None or not on_host(x.device) or blocks.shape[1] < 2 * k:
        top = x.topk(min(k, x.shape[1]), dim=1)
        return top.values, top.indices
    first = blocks.amax(2).topk(k, dim=1).indices * BLOCK  # [n, k]
    columns = (first.unsqueeze(2) + torch.arange(BLOCK)).flatten(1)  # [n, k·BLOCK]
    top = x.gather(1, columns).topk(k, dim=1)
    return top.values, columns.gather(1, top.indices)


def nats(p: Float[Tensor, "*b V"]) -> Float[Tensor, "*b"]:
    """Entropy of each law, given its chances."""
    logs = p.clamp_min(torch.finfo(p.dtype).tiny).log_()  # `torch.special.entr` takes twice as long on a CPU
    return logs.mul_(p).sum(-1).abs_()


def entropy_of(
    logits: Float[Tensor, "n V"], p: Float[Tensor, "n V"], some: Int[Tensor, "n 1"], p_some: Float[Tensor, " n"],
    sampling: SamplingParams,
) -> Float[Tensor, " n"]:  # fmt: skip
    """Entropy in nats of a row's law, as log Z − Σ p·score: many times faster than Σ −p·log p.

    Scores are logits by temperature. log Z follows from any token: its score minus its log-probability, also where
    filters have left few tokens. Logits of −inf have p = 0 and must not give NaN. What rounding leaves of an entropy of
    0 may fall below it, and is 0.

    Args:
        logits: after `with_history`.
        p: their law.
        some: a likely token of each row.
        p_some: its probability.
        sampling: that made the law.
    """
    means: list[Tensor] = [
        torch.linalg.vecdot(p[at], logits[at].clamp_min(-1e30))  # pyright: ignore[reportUnknownMemberType]
        for at in pieces(len(p), p.shape[1], p.device)
    ]
    score = logits.gather(1, some).squeeze(1)
    return ((score - torch.cat(means)) / sampling.heat - p_some.log()).clamp_min_(0)


def pick(p: Float[Tensor, "n V"], u: Float[Tensor, " n"]) -> Int[Tensor, " n"]:
    """Draw one token per row by inversion: the first whose cumulative probability exceeds u. No synchronisation.

    Sums are in float64. A wide row is inverted twice, for the block and within it: what is added up one after the other
    is then short, and a row costs one vectorised pass (17 rows of 49,152 on two cores: 0.1 ms instead of 4). A block's
    own sum is in the precision of p, which is no coarser than that of its entries.

    Args:
        p: non-negative weights; rows need not sum to 1.
        u: uniforms in [0, 1), float64.

    Example:
        >>> pick(torch.tensor([[0.25, 0.0, 0.75]]), torch.tensor([0.25], dtype=torch.float64)).tolist()
        [2]
    """
    if len(p) == 1 and on_host(p.device):
        return torch.tensor([_pick_one(p, float(u))])
    u = u.to(p.device, non_blocking=True).unsqueeze(1)
    blocks = _blocks(p)
    if blocks is None:
        return _invert(p.double().cumsum(1), u)[0].squeeze(1)
    sums = blocks.sum(2).double()
    block, left = _invert(sums.cumsum(1), u)
    own = blocks.gather(1, block.unsqueeze(2).expand(-1, -1, BLOCK)).squeeze(1).double()
    inside, _ = _invert(own.cumsum(1), left / sums.gather(1, block).clamp_min(TINY))
    return (block * BLOCK + inside).squeeze(1)


def _pick_one(p: Float[Tensor, "1 V"], u: float) -> int:
    """The same for a single row, in NumPy: 0.2 ms less between two passes of a target, which leave the caches cold."""
    blocks = _blocks(p)
    if blocks is None:
        return _invert_one(p[0].double().numpy(), u)[0]
    sums = blocks.sum(2)[0].double().numpy()
    block, left = _invert_one(sums, u)
    inside, _ = _invert_one(blocks[0, block].double().numpy(), left / max(sums[block], TINY))
    return block * BLOCK + inside


def _invert_one(weights: Float64[np.ndarray, " m"], u: float) -> tuple[int, float]:
    """As `_invert`, of weights [m] that are not yet added up."""
    cumulative = weights.cumsum()
    at = u * float(cumulative[-1])
    found = min(int(np.searchsorted(cumulative, at, "right")), int(cumulative.argmax()))
    return found, max(0.0, at - (cumulative[found - 1] if found else 0.0))


def _invert(
    cumulative: Float[Tensor, "n m"], u: Float[Tensor, "n 1"]
) -> tuple[Int[Tensor, "n 1"], Float[Tensor, "n 1"]]:
    """The first entry whose cumulative weight exceeds u · total, and how far that lies behind the entry's beginning.

    Rounding may bring u · total up to the total: the last entry with a weight is taken then, never one without.
    """
    at = (u * cumulative[:, -1:]).contiguous()
    found = torch.searchsorted(cumulative, at, right=True)
    found = torch.minimum(found, cumulative.argmax(1, keepdim=True))
    before = torch.where(found > 0, cumulative.gather(1, (found - 1).clamp_min(0)), 0.0)
    return found, (at - before).clamp_min_(0)


def _blocks(x: Float[Tensor, "n V"]) -> Float[Tensor, "n b BLOCK"] | None:
    """A wide row's columns in blocks; None where it is too short to be worth it, or no multiple of a block."""
    return x.reshape(x.shape[0], -1, BLOCK) if x.shape[1] >= WIDE and x.shape[1] % BLOCK == 0 else None
