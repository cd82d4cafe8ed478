"""A toy for teaching: a decoder that fills masked places in any order, and takes back what it changes its mind on.

    python -m workbench serve … with WORKBENCH_METHODS=tests/toys/mask_filling.py

It shows what a decoder beside drafting and verifying takes: one file, no drafter.
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
    """Guess the next places all at once, and set those that the target is sure of, wherever they lie.

    The target reads its own last guess where a place is masked. Each pass guesses anew: a place is taken back where
    the guess has changed. The first place is always right, and so is every one behind it as long as all that was read
    before it was right; these are final. The number that draws a token belongs to its place, so that the guess follows
    from the text before it: what is final is what plain decoding would have written with the same numbers.

    Source: the fixed point is Jacobi decoding's (Santilli et al. 2023, arXiv:2305.10427, Algorithm 1); setting places
    by confidence is how masked language models are decoded (Ghazvininejad et al. 2019, arXiv:1904.09324, §3).
    """

    places: int = param(8, ge=2, le=64, doc="places that are guessed at once")
    sure: float = param(0.3, ge=0.0, le=1.0, doc="set a place from this probability on; below, it stays masked")

    def decoder(self, context: EngineContext) -> Decoder:
        """One for all rows."""
        return Filling(context)


@dataclass(slots=True)
class Canvas:
    """The places behind the final text: what the target last guessed for each, and which of them are set."""

    guesses: list[int] = field(default_factory=list)
    stands: list[bool] = field(default_factory=list)


class Filling(Decoder):
    """The decoder: one forward a round for each row."""

    def __init__(self, context: EngineContext) -> None:
        self.context = context

    def open(self, row: Sequence) -> None:
        """Nothing is guessed yet."""
        row.state = Canvas()

    def change(self, row: Sequence, settings: Settings) -> None:
        """From the next round on; what is set stays until the target is of another mind."""
        if settings.image_changes:
            raise PromptError("The run has no pictures that could be changed.", "Start a run with pictures.")
        row.configured_method, row.models, row.sampling = settings.configured_method, settings.models, settings.sampling

    def revoke(self, row: Sequence) -> None:
        """Take back nothing yet: a canvas is dropped when the change has succeeded."""

    def close(self, row: Sequence) -> None:
        """Take back the tokens of the canvas."""
        row.report.revoked += [len(row.committed) + i for i, stands in enumerate(row.state.stands) if stands]
        row.state = None

    def step(self, rows: abc.Sequence[Sequence]) -> bool:
        """A round for each row, one after the other."""
        for row in rows:
            self.context.guard(row, lambda r=row: self._round(r))
        return bool(rows)

    def _round(self, row: Sequence) -> None:
        begun, clock, target, canvas = time.perf_counter(), self.context.clock, self.context.models.target, row.state
        rounds = row.configured_method.decoder_params
        assert isinstance(rounds, MaskFilling)
        n, base = min(rounds.places, row.remaining), len(row.committed)
        spans_of([row])  # of work between rounds
        start = clock.mark()
        # What was guessed for each place, and whether it is set; a place never guessed reads as the last token.
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
        row.report.signals |= {"places set": sum(stands), "places taken back": len(revoked)}
        spans = spans_of([row])
        work = share_forwards(spans, [id(row)])[id(row)]
        nothing = Drafting(start, start, (id(row),))
        timing = Timing(start, start, judge, commit, nothing, Work(), work, work.seconds, 1)
        append_round(row, record_placed(row, emitted, placed, revoked, timing, begun))
        if reason:
            self.context.end(row, FINISHED, reason)

    def _guess(self, row: Sequence, logits: torch.Tensor, base: int) -> tuple[list[int], list[float]]:
        """The token at each place and its probability, given what was read before it."""
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
    summary="A decoder may write in any order and change its mind; only what can change no more is text.",
    idea=(
        "A toy that shows decoding without drafts: the target guesses the next places all at once, sets those that it "
        "is sure of, and takes them back where its next pass thinks otherwise."
    ),
    formula="x(t+i) ← argmax p( · | x(1) … x(t), guesses before i ), for all i at once, until nothing changes",
    differences=("A causal target reads its last guess where a place is masked: it was never trained to see masks.",),
    drafter=EmptyDrafter(),
    verifier=Lossless(),
    policies=(NoDraft(),),
    decoder_params=MaskFilling(),
)
