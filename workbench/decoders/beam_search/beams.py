"""Beam search on token ids and scores: extend running beams, collect finished ones, decide when to stop.

This module runs no models. Source: Freitag and Al-Onaizan 2017, arXiv:1702.01806, §2, and the stopping rules of
Transformers' `generate(num_beams=…)`, whose results this search reproduces.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from jaxtyping import Float
from torch import Tensor

from workbench.core.errors import NumericalError
from workbench.core.transfer import to_host

HEURISTIC, FULL, NEVER = "heuristic", "full", "never"
STOP_RULES = (HEURISTIC, FULL, NEVER)
"""Rules for ending a beam search while beams are still running.

"heuristic": end if the best beam, at its present length, scores less than the worst finished hypothesis
(`early_stopping=False` in Transformers). "full": end if as many hypotheses are finished as there are beams
(`early_stopping=True`). "never": end only if the best beam could not win even at the maximum length.
"""


@dataclass(frozen=True, slots=True)
class Beam:
    """Candidate text of a beam search that is still being extended.

    Attributes:
        nodes: indices of the root and of each token but the last in the KV cache's scratch positions (room for
            uncommitted tokens).
        tokens: tokens after the root; the last one has no cache entry yet.
        probs: the target's probability of each token.
        score: sum of the log-probabilities of all tokens since the search began.
    """

    nodes: tuple[int, ...]
    tokens: tuple[int, ...]
    probs: tuple[float, ...]
    score: float


@dataclass(frozen=True, slots=True)
class Hypothesis:
    """Finished candidate text of a beam search: tokens after the root, probabilities, and length-penalised score."""

    tokens: tuple[int, ...]
    probs: tuple[float, ...]
    score: float


@dataclass(slots=True)
class Search:
    """State of a beam search.

    Attributes:
        beams: running candidates, the best first.
        finished: the best finished candidates, the best first; at most as many as there are beams.
        length: number of tokens of the running beams since the search began.
        can_improve: whether a running beam may still enter `finished`.
    """

    beams: list[Beam] = field(default_factory=list[Beam])
    finished: list[Hypothesis] = field(default_factory=list[Hypothesis])
    length: int = 0
    can_improve: bool = True

    def extend(
        self,
        logprobs: Float[Tensor, "k V"],
        n_beams: int,
        n_ends: int,
        end_reason: Callable[[Sequence[int]], str],
        length_penalty: float,
        stop_rule: str,
        max_length: int,
    ) -> bool:
        """Extend all running beams of a search by one token. Return whether the search continues.

        Args:
            logprobs: log-probabilities of the next token after each of the k running beams.
            n_beams: number of beams.
            n_ends: number of end-of-text tokens. max(2, 1 + n_ends) · n_beams candidates are examined, so that enough
                of them can continue.
            end_reason: function that returns why a candidate with the given tokens ends, or "" if it continues.
            length_penalty: exponent of the length that divides a finished candidate's score.
            stop_rule: one of `STOP_RULES`.
            max_length: maximum number of tokens of a text.

        Raises:
            NumericalError: the log-probabilities are NaN.
        """
        starts = logprobs.new_tensor([beam.score for beam in self.beams])
        total = (logprobs + starts[:, None]).flatten()
        top, at = total.topk(min(max(2, 1 + n_ends) * n_beams, len(total)))
        scores, indices, probs = to_host([top, at, logprobs.flatten()[at].exp()])
        if scores[0] != scores[0]:  # NaN counts as the largest number
            raise NumericalError("The target returned NaN instead of log-probabilities.", "Try another dtype.")
        vocabulary = logprobs.shape[1]
        candidates: list[tuple[Beam, str]] = []
        for score, index, p in zip(scores, indices, probs, strict=True):
            parent, token = self.beams[index // vocabulary], index % vocabulary
            beam = Beam(parent.nodes, (*parent.tokens, token), (*parent.probs, p), score)
            candidates.append((beam, end_reason(beam.tokens)))
        self.length += 1
        is_closed = not self.can_improve or (stop_rule == FULL and len(self.finished) == n_beams)
        if not is_closed:
            new = [
                Hypothesis(beam.tokens, beam.probs, beam.score / self.length**length_penalty)
                for beam, reason in candidates[:n_beams]
                if reason
            ]
            self.finished = sorted([*self.finished, *new], key=lambda h: -h.score)[:n_beams]
        self.beams = [beam for beam, reason in candidates if not reason][:n_beams]
        is_full = len(self.finished) == n_beams
        if self.beams and is_full:
            length = max_length if stop_rule == NEVER and length_penalty > 0 else self.length
            self.can_improve &= self.beams[0].score / length**length_penalty > self.finished[-1].score
        return bool(self.beams) and self.can_improve and not (stop_rule == FULL and is_full)

    def common_prefix(self) -> int:
        """Return the number of tokens at the start that are equal in all possible results of a beam search."""
        texts = [beam.tokens for beam in self.beams] + [h.tokens for h in self.finished[:1]]
        n = 0
        while all(len(text) > n and text[n] == texts[0][n] for text in texts):
            n += 1
        return n

    def drop_others(self, token: int) -> None:
        """Drop the candidate texts of the beam search that do not begin with the given token."""
        self.beams = [beam for beam in self.beams if beam.tokens[0] == token]
        self.finished = [h for h in self.finished if h.tokens[:1] == (token,)]

    def best(self) -> tuple[tuple[int, ...], tuple[float, ...]]:
        """Return tokens and probabilities of the best finished hypothesis, or, without one, of the best beam."""
        best = self.finished[0] if self.finished else self.beams[0]
        return best.tokens, best.probs

    def shorten(self, n: int, new_index: dict[int, int]) -> None:
        """Drop the first `n` tokens of all candidate texts, where they are equal, and renumber the nodes of the beams.

        Args:
            n: number of tokens to drop.
            new_index: new index of each uncommitted node that remains, by old index.
        """
        self.beams = [
            Beam(tuple(new_index[node] for node in beam.nodes[n:]), beam.tokens[n:], beam.probs[n:], beam.score)
            for beam in self.beams
        ]
        prefix = self.finished[0].tokens[:n] if self.finished else ()
        # A hypothesis with another beginning cannot win any more; only its score still counts.
        self.finished = [
            Hypothesis(h.tokens[n:], h.probs[n:], h.score) if h.tokens[:n] == prefix else Hypothesis((), (), h.score)
            for h in self.finished
        ]
