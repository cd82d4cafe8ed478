"""A toy for teaching: a decoder that fills masked positions in any order, and can revoke them.

    python -m workbench serve … with WORKBENCH_METHODS=tests/toys/mask_filling.py

It shows how to write a decoder without draft and verification: one file, no drafter.
"""

from __future__ import annotations

import time
from collections import abc
from dataclasses import dataclass, field

import numpy as np
import torch

from workbench.core.errors import NumericalError, PromptError
from workbench.core.params import param
from workbench.core.random_stream import Purpose
from workbench.core.sampling import likeliest, pick, to_probs
from workbench.core.transfer import to_device, to_host
from workbench.decoders import Method, Promise, Source
from workbench.decoders.decoder_params import DecoderParams
from workbench.decoders.draft_verify.decoder import spans_of
from workbench.engine import Sequence
from workbench.engine.decoder import Decoder, EngineContext
from workbench.engine.request import FINISHED
from workbench.engine.round_timing import Drafting, Timing, Work, share_forwards
from workbench.engine.settings import Settings
from workbench.engine.stop_conditions import apply_stop_conditions
from workbench.engine.trace_recording import append_round, record_placed
from workbench.kernels.segment import Segment
from workbench.methods.drafters.empty_drafter import EmptyDrafter
from workbench.methods.policies.no_draft import NoDraft
from workbench.methods.verifiers.lossless import Lossless
from workbench.trace.tokens import PLAIN, EmittedToken, TentativeTokenRecord


@dataclass(frozen=True)
class MaskFilling(DecoderParams):
    """Predict the next positions all at once, and set those with a confident prediction, in any order.

    At a masked position the target reads its own last guess. Each pass guesses again, and a position whose guess
    changed is revoked. The first position is always right, and so is each following one if all guesses read before it
    were right; these are final. The random number that samples a token belongs to its position, so that the guess
    depends only on the text before it: final tokens equal those of plain decoding with the same random numbers.

    Source: the fixed point is Jacobi decoding's (Santilli et al. 2023, arXiv:2305.10427, Algorithm 1); setting
    positions by confidence is how masked language models are decoded (Ghazvininejad et al. 2019, arXiv:1904.09324, §3).
    """

    places: int = param(8, ge=2, le=64, doc="number of positions that are predicted at once")
    sure: float = param(
        0.3, ge=0.0, le=1.0, doc="minimum probability at which a position is set; below it stays masked"
    )

    def decoder(self, context: EngineContext) -> Decoder:
        """Return a decoder for all sequences."""
        return MaskFillingDecoder(context)


@dataclass(slots=True)
class Canvas:
    """Positions after the final text: the target's last guess for each, and whether it is set."""

    guesses: list[int] = field(default_factory=list)
    stands: list[bool] = field(default_factory=list)


class MaskFillingDecoder(Decoder):
    """The decoder: one forward pass per round and sequence."""

    def __init__(self, context: EngineContext) -> None:
        self.context = context

    def open(self, row: Sequence) -> None:
        """Start without guesses."""
        row.state = Canvas()

    def change(self, row: Sequence, settings: Settings) -> None:
        """Use other settings from the next round on; positions that are set stay until a guess changes."""
        if settings.image_changes:
            raise PromptError("The run has no images that could be changed.", "Start a run with images.")
        row.configured_method, row.models, row.sampling = settings.configured_method, settings.models, settings.sampling

    def revoke(self, row: Sequence) -> None:
        """Keep everything: the canvas is dropped after the change has succeeded."""

    def close(self, row: Sequence) -> None:
        """Revoke the tokens of the canvas."""
        row.report.revoked += [len(row.committed) + i for i, stands in enumerate(row.state.stands) if stands]
        row.state = None

    def step(self, rows: abc.Sequence[Sequence]) -> bool:
        """Run a round for each sequence, one after the other."""
        for row in rows:
            self.context.guard(row, lambda r=row: self._round(r))
        return bool(rows)

    def _round(self, row: Sequence) -> None:
        begun, clock, target, canvas = time.perf_counter(), self.context.clock, self.context.models.target, row.state
        rounds = row.configured_method.decoder_params
        assert isinstance(rounds, MaskFilling)
        n, base = min(rounds.places, row.remaining), len(row.committed)
        spans_of([row])  # work between rounds
        start = clock.mark()
        # Guess and state of each position; a position without a guess reads as the last token.
        known = [*zip(canvas.guesses, canvas.stands, strict=True)]
        old = (known + [(row.committed[-1], False)] * n)[:n]
        lost = [base + n + i for i, (_, stood) in enumerate(known[n:]) if stood]
        row.cache_slot.scratch = 0
        read = to_device([row.committed[-1], *(guess for guess, _ in old[:-1])], target.device)
        out = target.forward([Segment(row.cache_slot, read)])
        judge = clock.mark()
        guesses, sure = self._guess(row, out.logits[0], base)
        commit = clock.mark()
        right = [guess == now for (guess, _), now in zip(old, guesses, strict=True)]
        final = next((i for i, same in enumerate(right[:-1]) if not same), n - 1) + 1
        kept, reason, texts = apply_stop_conditions(row, guesses[:final], self.context.models)
        target.commit(row.cache_slot, range(kept))
        row.cache_slot.last_hidden = out.hidden[0, kept - 1]
        row.committed.extend(guesses[:kept])

        stays = [i >= kept and not reason and stood and right[i] for i, (_, stood) in enumerate(old)]
        stands = [i >= kept and not reason and (stays[i] or sure[i] >= rounds.sure) for i in range(n)]
        revoked = lost + [
            base + i for i, (_, stood) in enumerate(old) if stood and not stays[i] and not (i < kept and right[i])
        ]
        placed = [
            TentativeTokenRecord(guesses[i], self.context.token_text(guesses[i]), base + i, sure[i])
            for i in range(n)
            if stands[i] and not stays[i]
        ]
        emitted = [EmittedToken(guesses[i], *texts[i], PLAIN, None, base + i, sure[i]) for i in range(kept)]
        row.state = Canvas(guesses[kept:], stands[kept:])
        row.report.signals |= {"positions set": sum(stands), "positions revoked": len(revoked)}
        spans = spans_of([row])
        work = share_forwards(spans, [id(row)])[id(row)]
        nothing = Drafting(start, start, (id(row),))
        timing = Timing(start, start, judge, commit, nothing, Work(), work, work.seconds, 1)
        append_round(row, record_placed(row, emitted, placed, revoked, timing, begun))
        if reason:
            self.context.end(row, FINISHED, reason)

    def _guess(self, row: Sequence, logits: torch.Tensor, base: int) -> tuple[list[int], list[float]]:
        """Return the token at each position and its probability, given the guesses before it."""
        logits = logits.float() if logits.dtype in (torch.bfloat16, torch.float16) else logits
        if row.sampling.greedy:
            p, found = logits.softmax(1), likeliest(logits)
        else:
            p = to_probs(logits, row.sampling)
            u = [row.random_stream.uniform(base + i, Purpose.BONUS, 1, level=1) for i in range(len(logits))]
            found = pick(p, torch.from_numpy(np.concatenate(u)))
        guesses, sure = to_host([found, p.gather(1, found.unsqueeze(1)).squeeze(1)])
        if any(chance != chance for chance in sure):
            raise NumericalError("The target returned NaN instead of probabilities.", "Try another dtype.")
        return guesses, sure


METHOD = Method(
    "mask-filling",
    title="Mask filling (a toy)",
    promise=Promise.EXACT,
    source=Source(
        "Accelerating transformer inference for translation via parallel decoding",
        "Santilli et al.",
        2023,
        "https://arxiv.org/abs/2305.10427",
        "Algorithm 1: the fixed point",
    ),
    summary="A decoder may set tokens in any order and revoke them; only final tokens are text.",
    idea=(
        "A toy that shows decoding without drafts: the target predicts the next positions all at once, sets confident "
        "ones, and revokes those whose prediction changes in the next pass."
    ),
    formula="x(t+i) ← argmax p( · | x(1) … x(t), guesses before i ), for all i at once, until nothing changes",
    differences=(
        "A causal target reads its last guess at a masked position, since it was not trained with mask tokens.",
    ),
    drafter=EmptyDrafter(),
    verifier=Lossless(),
    policies=(NoDraft(),),
    decoder_params=MaskFilling(),
)
