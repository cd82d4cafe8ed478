"""Decoder of masked-diffusion language models, after LLaDA.

The answer is a canvas of masked positions. Every round is one forward pass over prompt and canvas, in both directions;
the model predicts all masked positions, and a rule selects the positions to fill. Blocks of the canvas are filled from
left to right. Tokens up to the first masked position are final text; filled positions after it are tentative tokens.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

import torch
from jaxtyping import Float
from torch import Tensor

from workbench.core.params import param
from workbench.core.random_stream import Purpose
from workbench.core.sampling import SamplingParams, choose_tokens
from workbench.core.transfer import to_device
from workbench.decoders.decoder_params import DecoderParams
from workbench.decoders.one_pass import OnePassDecoder, OnePassState, Step
from workbench.engine.decoder import Decoder, EngineContext
from workbench.engine.request import Sequence
from workbench.kernels.segment import Segment
from workbench.models.masked_lm import MASKED_LM

CONFIDENCE, RANDOM = "confidence", "random"


@dataclass(frozen=True)
class MaskedDiffusion(DecoderParams):
    """Fill a canvas of masked positions block by block: `per_round` positions of the current block in every round.

    Source: Nie et al. 2025, LLaDA, arXiv:2502.09992, §2.4 and appendix B.4 (low-confidence re-masking: only the
    predictions of highest probability stay; the other positions are masked again).
    """

    needs: ClassVar[tuple[str, ...]] = (MASKED_LM,)
    keeps_greedy: ClassVar[bool] = False

    block: int = param(64, ge=1, le=512, doc="number of positions per block; blocks are filled from left to right")
    per_round: int = param(1, ge=1, le=64, doc="number of masked positions that are filled in each round")
    rule: str = param(
        CONFIDENCE,
        choices=(CONFIDENCE, RANDOM),
        doc="positions to fill first: those with the most probable tokens, or random positions",
    )

    def decoder(self, context: EngineContext) -> Decoder:
        """Create the decoder that runs all sequences of masked-diffusion models."""
        return MaskedDiffusionDecoder(context)

    def unsupported_reason(self, sequence: Sequence, sampling: SamplingParams) -> str:
        """Return why the decoder cannot run a request; "" if it can.

        Log-probabilities of the prompt are refused, because they need a prefill.
        """
        if sequence.request.options.prompt_logprobs is not None:
            return "a masked-diffusion model gives no log-probabilities of the prompt"
        return super().unsupported_reason(sequence, sampling)


@dataclass(slots=True)
class Canvas(OnePassState):
    """State of a sequence with a masked-diffusion model: the tokens at the positions after its final text.

    Attributes:
        tokens: token at each position, or the mask token.
        probs: the model's probability of each token when the token was filled in; 0 for a masked position.
        n_rounds: number of rounds so far.
    """

    tokens: list[int] = field(default_factory=list[int])
    probs: list[float] = field(default_factory=list[float])
    n_rounds: int = 0


class MaskedDiffusionDecoder(OnePassDecoder):
    """Decoder of masked-diffusion models: one forward pass over prompt and canvas per round.

    The KV cache is empty between rounds.
    """

    @property
    def mask_token(self) -> int:
        """Return the id of the token that stands for a masked position."""
        token = self.models.mask_token
        assert token is not None
        return token

    def prefill(self, sequence: Sequence) -> bool:
        """Return True at once: every forward pass processes the whole prompt, so there is no prefill."""
        return True

    def open(self, sequence: Sequence) -> None:
        """Create a canvas of masked positions, one for each token that the answer may have."""
        n = sequence.remaining
        sequence.state = Canvas(tokens=[self.mask_token] * n, probs=[0.0] * n)

    def segment(self, sequence: Sequence) -> Segment:
        """Return prompt and canvas as the input of the forward pass, in which every token attends to all tokens."""
        slot, device = sequence.cache_slot, self.models.target.device
        slot.scratch = 0
        tokens = to_device([*sequence.committed, *sequence.state.tokens], device)
        everything = torch.ones(len(tokens), len(tokens), dtype=torch.bool, device=device)
        return Segment(slot, tokens, everything, torch.arange(len(tokens), device=device))

    def advance(self, sequence: Sequence, logits: Float[Tensor, "n V"], hidden: Float[Tensor, "n D"]) -> Step:
        """Fill masked positions of the first unfinished block. Emit the text before the first masked position."""
        params, canvas = sequence.configured_method.decoder_params, sequence.state
        assert isinstance(params, MaskedDiffusion)
        base = len(sequence.committed)
        done = base - sequence.prompt_length
        masked = [i for i, token in enumerate(canvas.tokens) if token == self.mask_token]
        block = (done + masked[0]) // params.block
        open_positions = [i for i in masked if (done + i) // params.block == block]
        first = base - self.models.predicts_next  # a model trained autoregressively predicts from the position before
        at = to_device([first + i for i in open_positions], logits.device)
        tokens, p = self._predict(sequence, logits.index_select(0, at), open_positions)
        if params.rule == RANDOM:
            order = sequence.random_stream.uniform(base, Purpose.ACCEPT, len(open_positions), level=canvas.n_rounds)
            ranked = sorted(range(len(open_positions)), key=lambda i: -order[i])
        else:
            ranked = sorted(range(len(open_positions)), key=lambda i: -p[i])
        for i in ranked[: params.per_round]:
            canvas.tokens[open_positions[i]], canvas.probs[open_positions[i]] = tokens[i], p[i]
        canvas.n_rounds += 1
        return self._emit_prefix(sequence)

    def _predict(
        self, sequence: Sequence, logits: Float[Tensor, "m V"], positions: list[int]
    ) -> tuple[list[int], list[float]]:
        """Choose a token for each masked position of the canvas.

        Args:
            sequence: sequence with sampling parameters and random stream.
            logits: the model's logits at the m positions.
            positions: indices of these positions in the canvas.

        Returns:
            Token ids, and the model's probability of each token.
        """
        logits = logits.clone()
        logits[:, self.mask_token] = -torch.inf
        base, stream, n_rounds = len(sequence.committed), sequence.random_stream, sequence.state.n_rounds

        def draw(row: int) -> float:
            return float(stream.uniform(base + positions[row], Purpose.BONUS, 1, level=n_rounds)[0])

        return choose_tokens(logits, sequence.sampling, draw, plain_probs=True)

    def _emit_prefix(self, sequence: Sequence) -> Step:
        """Emit the tokens before the first masked position. Filled positions after it become tentative tokens."""
        canvas, mask = sequence.state, self.mask_token
        n = canvas.tokens.index(mask) if mask in canvas.tokens else len(canvas.tokens)
        emitted, reason = self.emit(sequence, canvas.tokens[:n], canvas.probs[:n])
        del canvas.tokens[:n], canvas.probs[:n]
        base = len(sequence.committed)
        tentative = {base + i: (token, canvas.probs[i]) for i, token in enumerate(canvas.tokens) if token != mask}
        signals = {"masked positions": float(canvas.tokens.count(mask))}
        return Step(emitted, tentative, reason, signals)
