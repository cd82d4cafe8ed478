"""What a drafter of another vocabulary learns while it drafts: laws where tokens are shared, spellings where not."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn import functional as F

from workbench.engine.online_layers import Pupil
from workbench.engine.online_weights import MOST_LESSONS

SURE = 2.0
"""Log-odds that a written token is kept, before anything was learnt of it."""
STEP = 0.2
"""Of the head that stops: length of its first step along a number of the state."""


class Shared(NamedTuple):
    """Tokens that are the same text in both vocabularies.

    Attributes:
        theirs: the drafter's, int64 [S].
        ours: the target's, in the same order.
    """

    theirs: Int[Tensor, " S"]
    ours: Int[Tensor, " S"]


class Direct(NamedTuple):
    """A place whose next token is one of either's.

    Attributes:
        at: index of the drafter's token before it.
        law: the target's among shared tokens, which sums to 1.
    """

    at: int
    law: Float[Tensor, " S"]


class Spelt(NamedTuple):
    """A place whose next token of the target's is several of the drafter's.

    Attributes:
        at: index of the drafter's token before them.
        tokens: they.
        chance: the target's of its own.
    """

    at: int
    tokens: tuple[int, ...]
    chance: float


def borders(text: str, ids: Sequence[int], tokenizer: Any, said: Sequence[str]) -> dict[int, int]:
    """Tokens up to each place of a text that a token ends at.

    Args:
        text: what the tokens say.
        ids: they.
        tokenizer: theirs. One that does not say where its tokens stand is not asked.
        said: what each token adds to a text, for that case; a text that these do not make has no borders.
    """
    if getattr(tokenizer, "is_fast", False):
        ends = [end for _, end in tokenizer(text, return_offsets_mapping=True)["offset_mapping"]][: len(ids)]
    else:
        pieces = [said[token] if token < len(said) else "" for token in ids]
        if "".join(pieces) != text:
            return {}
        ends = [sum(map(len, pieces[: i + 1])) for i in range(len(pieces))]
    return {end: i + 1 for i, end in enumerate(ends)}


def places(
    found: Sequence[tuple[int, int, Float[Tensor, " V"], int]],
    ends: dict[int, int],
    ids: Sequence[int],
    shared: Shared,
) -> tuple[list[Direct], list[Spelt]]:
    """What there is to learn at tokens of the target's, where both vocabularies cut the text before and behind them.

    Args:
        found: of each token where it begins and ends in the text, the target's law there, and the token.
        ends: as `borders` gives them.
        ids: the text in the drafter's tokens.
        shared: what both can say.
    """
    direct, spelt = list[Direct](), list[Spelt]()
    for begin, end, law, token in found:
        a, b = ends.get(begin, 0), ends.get(end, 0)
        if not 0 < a < b:  # cut elsewhere, or a mark, which is no text
            continue
        if b == a + 1:
            among = law[shared.ours]
            if float(among.sum()):
                direct.append(Direct(a - 1, among / among.sum()))
        else:
            spelt.append(Spelt(a - 1, tuple(ids[a:b]), float(law[token])))
    return direct, spelt


def hybrid(
    logq: Float[Tensor, "n V"], direct: Sequence[Direct], spelt: Sequence[Spelt], shared: Shared, share: float
) -> Tensor:
    """D(p ‖ q) among the shared tokens, the mean of direct places, and λ times −p(t) Σ log q(dⱼ), that of spelt ones.

    Args:
        logq: the drafter's log laws behind each token that was read.
        direct: places by their index in `logq`.
        spelt: likewise.
        shared: what both can say.
        share: λ.

    Source: Ramakrishnan et al. 2025, OmniDraft, arXiv:2507.02659, §3.2 (hybrid distillation).
    """
    loss = logq.new_zeros(())
    if direct:
        theirs = shared.theirs.to(logq.device).clone()  # one that may be kept for the way back
        q = logq[[place.at for place in direct]][:, theirs]
        may = q[0] > -torch.inf  # the drafter may have been trimmed
        q = q[:, may]
        q = q - q.logsumexp(1, keepdim=True)
        p = torch.stack([place.law for place in direct]).to(q)[:, may]
        p = p / p.sum(1, keepdim=True).clamp_min(torch.finfo(p.dtype).tiny)
        loss = loss + F.kl_div(q, p, reduction="batchmean")
    if spelt and share:
        said = [logq[range(place.at, place.at + len(place.tokens)), list(place.tokens)].sum() for place in spelt]
        lines = torch.stack([place.chance * line for place, line in zip(spelt, said, strict=True)])
        loss = loss - share * lines.where(lines > -torch.inf, 0.0).mean()
    return loss


class Stop:
    """Log-odds that what is written next is kept, linear in the drafter's state, learnt from verdicts as they come.

    Each number of the state has a step that shrinks with what it has moved (AdaGrad), so that no rate need be chosen.

    Source: Ramakrishnan et al. 2025, OmniDraft, arXiv:2507.02659, §3.3 (adaptive drafting; there of several layers).
    """

    def __init__(self, width: int) -> None:
        self._weights = torch.zeros(width + 1)
        self._weights[-1] = SURE
        self._moved = torch.full((width + 1,), 1e-6)

    def chance(self, state: Float[Tensor, " D"]) -> float:
        """That the token which follows this state is kept."""
        return float(torch.sigmoid(self._weights @ _input(state)))

    def learn(self, state: Float[Tensor, " D"], kept: bool) -> None:
        """What came of it."""
        x = _input(state)
        slope = (torch.sigmoid(self._weights @ x) - float(kept)) * x
        self._moved += slope.square()
        self._weights -= STEP * slope / self._moved.sqrt()


def _input(state: Float[Tensor, " D"]) -> Float[Tensor, " D1"]:
    """The state at length 1, as its LM head's norm leaves no news in its length, and a 1."""
    return torch.cat([F.normalize(state.float().cpu(), dim=0), torch.ones(1)])


@dataclass
class Study:
    """What a row has of lessons.

    Attributes:
        pupil: layers that learn; None: none do.
        stop: decides when enough is written; None: nobody does.
        waiting: (index of a committed token, what the target's LM head read before it), oldest first.
        rounds: since the last lesson, with something to learn.
        written: of the last draft: the state before each token, and where that ends in the text behind the committed.
        before: characters of the committed text then.
        whose: the draft model that it is about.
    """

    pupil: Pupil | None = None
    stop: Stop | None = None
    waiting: list[tuple[int, Float[Tensor, " D"]]] = field(default_factory=list[tuple[int, Tensor]])
    rounds: int = 0
    written: list[tuple[Float[Tensor, " D"], int]] = field(default_factory=list[tuple[Tensor, int]])
    before: int = 0
    whose: Any = None

    @property
    def is_due(self) -> bool:
        """Whether there may be lessons."""
        return self.pupil is not None and self.pupil.lessons < MOST_LESSONS

    def heard(self, kept: int, rejected: bool) -> None:
        """The head that stops learns what came of the last draft.

        Args:
            kept: characters of it that were accepted.
            rejected: whether a token behind them was not.
        """
        if self.stop is not None:
            for state, end in self.written:
                if end > kept:
                    if rejected:
                        self.stop.learn(state, False)
                    break
                self.stop.learn(state, True)
        self.written = []

    def teach(
        self,
        ids: Sequence[int],
        direct: Sequence[Direct],
        spelt: Sequence[Spelt],
        shared: Shared,
        reads: int,
        share: float,
        rate: float,
    ) -> None:
        """One lesson about places that are within reach of the `reads` newest tokens."""
        assert self.pupil is not None
        begin = max(0, len(ids) - 1 - reads)
        direct = [place._replace(at=place.at - begin) for place in direct if place.at >= begin]
        spelt = [place._replace(at=place.at - begin) for place in spelt if place.at >= begin]
        self.waiting, self.rounds = [], 0
        if direct or (spelt and share):
            self.pupil.step(ids[begin:-1], begin, lambda q: hybrid(q, direct, spelt, shared, share), rate)
