"""Online training for a different vocabulary: distributions over shared tokens, spellings of the others."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn import functional as F

from workbench.decoders.draft_verify.online_layers import TrainableLayers
from workbench.decoders.draft_verify.online_weights import MAX_STEPS

SURE = 2.0
"""Initial log-odds that a drafted token is accepted."""
STEP = 0.2
"""Stopping head: size of the first step along one dimension of the state."""


class Shared(NamedTuple):
    """Tokens with the same text in both vocabularies.

    Attributes:
        theirs: the drafter's ids, int64 [S].
        ours: the target's, in the same order.
    """

    theirs: Int[Tensor, " S"]
    ours: Int[Tensor, " S"]


class Direct(NamedTuple):
    """A position whose next token is a single token in both vocabularies.

    Attributes:
        at: index of the drafter's token before it.
        probs: the target's distribution over shared tokens, which sums to 1.
    """

    at: int
    probs: Float[Tensor, " S"]


class Spelt(NamedTuple):
    """A position whose next target token is spelt in several of the drafter's.

    Attributes:
        at: index of the drafter's token before them.
        tokens: the drafter's tokens.
        chance: the target's probability of its own token.
    """

    at: int
    tokens: tuple[int, ...]
    chance: float


def borders(text: str, ids: Sequence[int], tokenizer: Any, said: Sequence[str]) -> dict[int, int]:
    """Return the number of tokens up to each text index at which a token ends.

    Args:
        text: text of the tokens.
        ids: token ids.
        tokenizer: their tokenizer; used only if it returns token offsets.
        said: text that each token adds, for tokenizers without offsets; empty result if these do not spell the text.
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
    """Return training positions at target tokens whose text borders are token borders in both vocabularies.

    Args:
        found: per token its start and end in the text, the target's distribution there, and the token.
        ends: as `borders` returns them.
        ids: the text in the drafter's tokens.
        shared: tokens of both vocabularies.
    """
    direct, spelt = list[Direct](), list[Spelt]()
    for begin, end, probs, token in found:
        a, b = ends.get(begin, 0), ends.get(end, 0)
        if not 0 < a < b:  # other token borders, or a special token without text
            continue
        if b == a + 1:
            among = probs[shared.ours]
            if float(among.sum()):
                direct.append(Direct(a - 1, among / among.sum()))
        else:
            spelt.append(Spelt(a - 1, tuple(ids[a:b]), float(probs[token])))
    return direct, spelt


def hybrid(
    logq: Float[Tensor, "n V"], direct: Sequence[Direct], spelt: Sequence[Spelt], shared: Shared, share: float
) -> Tensor:
    """Return mean D(p ‖ q) over shared tokens at direct positions + λ · mean −p(t) Σ log q(dⱼ) at spelt ones.

    Args:
        logq: the drafter's log-distributions after each token that was read.
        direct: positions by their index in `logq`.
        spelt: the same for spelt positions.
        shared: tokens of both vocabularies.
        share: λ.

    Source: Ramakrishnan et al. 2025, OmniDraft, arXiv:2507.02659, §3.2 (hybrid distillation).
    """
    loss = logq.new_zeros(())
    if direct:
        theirs = shared.theirs.to(logq.device).clone()  # a copy that autograd may keep
        q = logq[[place.at for place in direct]][:, theirs]
        may = q[0] > -torch.inf  # the drafter may have a reduced output vocabulary
        q = q[:, may]
        q = q - q.logsumexp(1, keepdim=True)
        p = torch.stack([place.probs for place in direct]).to(q)[:, may]
        p = p / p.sum(1, keepdim=True).clamp_min(torch.finfo(p.dtype).tiny)
        loss = loss + F.kl_div(q, p, reduction="batchmean")
    if spelt and share:
        said = [logq[range(place.at, place.at + len(place.tokens)), list(place.tokens)].sum() for place in spelt]
        lines = torch.stack([place.chance * line for place, line in zip(spelt, said, strict=True)])
        loss = loss - share * lines.where(lines > -torch.inf, 0.0).mean()
    return loss


class Stop:
    """Log-odds that the next drafted token is accepted, linear in the drafter's state, trained after each verification.

    Each dimension of the state has a step size that shrinks with its updates (AdaGrad), so no rate has to be chosen.

    Source: Ramakrishnan et al. 2025, OmniDraft, arXiv:2507.02659, §3.3 (adaptive drafting; there of several layers).
    """

    def __init__(self, width: int) -> None:
        self._weights = torch.zeros(width + 1)
        self._weights[-1] = SURE
        self._moved = torch.full((width + 1,), 1e-6)

    def chance(self, state: Float[Tensor, " D"]) -> float:
        """Return the probability that the token after this state is accepted."""
        return float(torch.sigmoid(self._weights @ _input(state)))

    def learn(self, state: Float[Tensor, " D"], kept: bool) -> None:
        """Update the weights; `kept`: whether the token after this state was accepted."""
        x = _input(state)
        slope = (torch.sigmoid(self._weights @ x) - float(kept)) * x
        self._moved += slope.square()
        self._weights -= STEP * slope / self._moved.sqrt()


def _input(state: Float[Tensor, " D"]) -> Float[Tensor, " D1"]:
    """Return the state normalised to length 1 (its length carries no information after the LM head's norm), and a 1."""
    return torch.cat([F.normalize(state.float().cpu(), dim=0), torch.ones(1)])


@dataclass
class Study:
    """Online-training state of a sequence.

    Attributes:
        trainable: trained layers; None: none.
        stop: stopping head; None: none.
        waiting: (index of a committed token, the target's LM head input before it), oldest first.
        rounds: number of rounds with training data since the last training step.
        written: per token of the last draft, the state before it, and its end in characters after the committed text.
        before: length of the committed text at that draft, in characters.
        whose: draft model that is trained.
    """

    trainable: TrainableLayers | None = None
    stop: Stop | None = None
    waiting: list[tuple[int, Float[Tensor, " D"]]] = field(default_factory=list[tuple[int, Tensor]])
    rounds: int = 0
    written: list[tuple[Float[Tensor, " D"], int]] = field(default_factory=list[tuple[Tensor, int]])
    before: int = 0
    whose: Any = None

    @property
    def is_due(self) -> bool:
        """Return whether layers are trained and the limit of steps is not reached."""
        return self.trainable is not None and self.trainable.n_steps < MAX_STEPS

    def heard(self, kept: int, rejected: bool) -> None:
        """Train the stopping head on the result of the last draft.

        Args:
            kept: characters of it that were accepted.
            rejected: whether a token after them was rejected.
        """
        if self.stop is not None:
            for state, end in self.written:
                if end > kept:
                    if rejected:
                        self.stop.learn(state, False)
                    break
                self.stop.learn(state, True)
        self.written = []

    def train_on(
        self,
        ids: Sequence[int],
        direct: Sequence[Direct],
        spelt: Sequence[Spelt],
        shared: Shared,
        reads: int,
        share: float,
        rate: float,
    ) -> None:
        """Run a training step on positions within the `reads` newest tokens."""
        assert self.trainable is not None
        begin = max(0, len(ids) - 1 - reads)
        direct = [place._replace(at=place.at - begin) for place in direct if place.at >= begin]
        spelt = [place._replace(at=place.at - begin) for place in spelt if place.at >= begin]
        self.waiting, self.rounds = [], 0
        if direct or (spelt and share):
            self.trainable.step(ids[begin:-1], begin, lambda q: hybrid(q, direct, spelt, shared, share), rate)
