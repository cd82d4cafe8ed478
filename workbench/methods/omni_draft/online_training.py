"""Online training of a drafter with a different vocabulary, on shared tokens and on tokens that it spells in parts."""

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
"""Log-odds that a drafted token is accepted, as predicted by the untrained stopping head."""
STEP = 0.2
"""Size of the stopping head's first update along one dimension of the hidden state."""


class SharedTokens(NamedTuple):
    """Tokens with the same text in the vocabularies of drafter and target.

    Attributes:
        drafter_ids: the drafter's ids of the S tokens, int64.
        target_ids: the target's ids in the same order, int64.
    """

    drafter_ids: Int[Tensor, " S"]
    target_ids: Int[Tensor, " S"]


class Direct(NamedTuple):
    """Training position whose next token is a single token in the vocabularies of drafter and target.

    Attributes:
        at: index of the drafter's token before the position.
        probs: the target's distribution over shared tokens, normalised.
    """

    at: int
    probs: Float[Tensor, " S"]


class Spelt(NamedTuple):
    """Training position at which several drafter tokens spell the target's next token.

    Attributes:
        at: index of the drafter's token before the spelt token.
        tokens: the drafter's tokens that spell the target's token.
        target_prob: the target's probability of the spelt token.
    """

    at: int
    tokens: tuple[int, ...]
    target_prob: float


def borders(text: str, ids: Sequence[int], tokenizer: Any, token_texts: Sequence[str]) -> dict[int, int]:
    """Return a mapping from each character index at which a token ends to the number of tokens up to this index.

    Args:
        text: text of the tokens.
        ids: token ids.
        tokenizer: tokenizer of these tokens. It is used if it returns token offsets.
        token_texts: text that each token of the vocabulary adds, for tokenizers without offsets. If these texts do not
            spell `text`, the result is empty.
    """
    if getattr(tokenizer, "is_fast", False):
        ends = [end for _, end in tokenizer(text, return_offsets_mapping=True)["offset_mapping"]][: len(ids)]
    else:
        parts = [token_texts[token] if token < len(token_texts) else "" for token in ids]
        if "".join(parts) != text:
            return {}
        ends = [sum(map(len, parts[: i + 1])) for i in range(len(parts))]
    return {end: i + 1 for i, end in enumerate(ends)}


def training_positions(
    target_tokens: Sequence[tuple[int, int, Float[Tensor, " V"], int]],
    ends: dict[int, int],
    ids: Sequence[int],
    shared: SharedTokens,
) -> tuple[list[Direct], list[Spelt]]:
    """Return training positions at the target's tokens whose start and end are also token borders of the drafter.

    Args:
        target_tokens: (start in the text, end in the text, the target's distribution, token id) of each token.
        ends: result of `borders` for the drafter's tokens.
        ids: drafter tokens of the text.
        shared: tokens of both vocabularies.
    """
    direct, spelt = list[Direct](), list[Spelt]()
    for begin, end, probs, token in target_tokens:
        a, b = ends.get(begin, 0), ends.get(end, 0)
        if not 0 < a < b:  # the drafter has other token borders, or it is a special token without text
            continue
        if b == a + 1:
            shared_probs = probs[shared.target_ids]
            if float(shared_probs.sum()):
                direct.append(Direct(a - 1, shared_probs / shared_probs.sum()))
        else:
            spelt.append(Spelt(a - 1, tuple(ids[a:b]), float(probs[token])))
    return direct, spelt


def hybrid(
    logq: Float[Tensor, "n V"], direct: Sequence[Direct], spelt: Sequence[Spelt], shared: SharedTokens, share: float
) -> Tensor:
    """Return the loss mean D(p ‖ q) at direct positions + λ · mean −p(t) Σ log q(dⱼ) at spelt positions.

    p is the target's distribution over shared tokens, q the drafter's distribution. p(t) is the target's probability of
    a token t that the drafter tokens d₁, d₂, … spell.

    Args:
        logq: the drafter's log-probabilities after each of n input tokens.
        direct: positions with a shared token; `at` is an index in `logq`.
        spelt: positions with a spelt token; `at` is an index in `logq`.
        shared: tokens of both vocabularies.
        share: weight λ of spelt positions.

    Source: Ramakrishnan et al. 2025, OmniDraft, arXiv:2507.02659, §3.2 (hybrid distillation).
    """
    loss = logq.new_zeros(())
    if direct:
        ids = shared.drafter_ids.to(logq.device).clone()  # a copy that autograd may keep
        q = logq[[place.at for place in direct]][:, ids]
        is_possible = q[0] > -torch.inf  # the drafter may have a reduced output vocabulary
        q = q[:, is_possible]
        q = q - q.logsumexp(1, keepdim=True)
        p = torch.stack([place.probs for place in direct]).to(q)[:, is_possible]
        p = p / p.sum(1, keepdim=True).clamp_min(torch.finfo(p.dtype).tiny)
        loss = loss + F.kl_div(q, p, reduction="batchmean")
    if spelt and share:
        log_probs = [logq[range(place.at, place.at + len(place.tokens)), list(place.tokens)].sum() for place in spelt]
        terms = torch.stack([place.target_prob * log_prob for place, log_prob in zip(spelt, log_probs, strict=True)])
        loss = loss - share * terms.where(terms > -torch.inf, 0.0).mean()
    return loss


class StoppingHead:
    """Stopping head: predicts, linearly from the drafter's hidden state, whether the next drafted token is accepted.

    It is trained online. Each dimension of the hidden state has a step size that shrinks with its updates (AdaGrad), so
    there is no learning rate to choose.

    Source: Ramakrishnan et al. 2025, OmniDraft, arXiv:2507.02659, §3.3 (adaptive drafting; the paper's head has
    several layers).
    """

    def __init__(self, width: int) -> None:
        self._weights = torch.zeros(width + 1)
        self._weights[-1] = SURE
        self._squared_gradients = torch.full((width + 1,), 1e-6)

    def acceptance_prob(self, state: Float[Tensor, " D"]) -> float:
        """Return the predicted probability that the next drafted token is accepted.

        Args:
            state: the drafter's hidden state before that token.
        """
        return float(torch.sigmoid(self._weights @ _input(state)))

    def learn(self, state: Float[Tensor, " D"], accepted: bool) -> None:
        """Update the stopping head with one drafted token.

        Args:
            state: hidden state before a drafted token.
            accepted: whether the token was accepted.
        """
        x = _input(state)
        gradient = (torch.sigmoid(self._weights @ x) - float(accepted)) * x
        self._squared_gradients += gradient.square()
        self._weights -= STEP * gradient / self._squared_gradients.sqrt()


def _input(state: Float[Tensor, " D"]) -> Float[Tensor, " D1"]:
    """Return the drafter's hidden state, scaled to length 1, with a 1 appended for the bias of the stopping head.

    The length carries no information, because the norm before the LM head removes it.
    """
    return torch.cat([F.normalize(state.float().cpu(), dim=0), torch.ones(1)])


@dataclass
class OnlineTrainingState:
    """State of a sequence for online training of the draft model.

    Attributes:
        trainable: layers that are trained; None: no layer is trained.
        stop: stopping head; None: no stopping head is used.
        waiting: positions for the next training step, the oldest first: (index of a committed token, the target's LM
            head input that predicts it).
        rounds: number of rounds with training positions since the last training step.
        draft_states: (hidden state before the token, end of the token in characters after the committed text) of each
            token of the last draft.
        before: length in characters of the committed text before the last draft.
        runner: draft model that is trained.
    """

    trainable: TrainableLayers | None = None
    stop: StoppingHead | None = None
    waiting: list[tuple[int, Float[Tensor, " D"]]] = field(default_factory=list[tuple[int, Tensor]])
    rounds: int = 0
    draft_states: list[tuple[Float[Tensor, " D"], int]] = field(default_factory=list[tuple[Tensor, int]])
    before: int = 0
    runner: Any = None

    @property
    def is_due(self) -> bool:
        """Return whether the draft model is trained online and has not reached the maximum number of steps."""
        return self.trainable is not None and self.trainable.n_steps < MAX_STEPS

    def train_stopping_head(self, n_characters: int, rejected: bool) -> None:
        """Train the stopping head on the verification result of the last draft.

        Args:
            n_characters: number of accepted characters of the draft.
            rejected: whether the token after the accepted ones was rejected.
        """
        if self.stop is not None:
            for state, end in self.draft_states:
                if end > n_characters:
                    if rejected:
                        self.stop.learn(state, False)
                    break
                self.stop.learn(state, True)
        self.draft_states = []

    def train_on(
        self,
        ids: Sequence[int],
        direct: Sequence[Direct],
        spelt: Sequence[Spelt],
        shared: SharedTokens,
        reads: int,
        share: float,
        rate: float,
    ) -> None:
        """Run an online training step of the draft model on the positions within the newest tokens.

        Args:
            ids: drafter tokens of the text.
            direct: positions with a shared token.
            spelt: positions with a spelt token.
            shared: tokens of both vocabularies.
            reads: number of newest drafter tokens that the step reads.
            share: weight λ of spelt positions.
            rate: learning rate.
        """
        assert self.trainable is not None
        begin = max(0, len(ids) - 1 - reads)
        direct = [place._replace(at=place.at - begin) for place in direct if place.at >= begin]
        spelt = [place._replace(at=place.at - begin) for place in spelt if place.at >= begin]
        self.waiting, self.rounds = [], 0
        if direct or (spelt and share):
            self.trainable.step(ids[begin:-1], begin, lambda q: hybrid(q, direct, spelt, shared, share), rate)
