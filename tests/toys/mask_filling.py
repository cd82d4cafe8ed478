"""A toy for teaching: a decoder that fills masked positions in any order, and can revoke them.

    python -m workbench serve … with WORKBENCH_METHODS=tests/toys/mask_filling.py

It shows how to write a decoder without draft and verification: one file, no drafter.
"""

from __future__ import annotations

from collections import abc
from dataclasses import dataclass, field

from workbench.core.errors import PromptError
from workbench.core.params import param
from workbench.core.random_stream import Purpose
from workbench.core.sampling import choose_tokens
from workbench.core.transfer import to_device
from workbench.decoders import Method, Promise, Source
from workbench.decoders.decoder_params import DecoderParams
from workbench.decoders.one_pass import OnePassRound, record_placed
from workbench.engine import Sequence
from workbench.engine.decoder import Decoder, EngineContext, append_round
from workbench.engine.request import FINISHED
from workbench.engine.round_timing import RoundTimer
from workbench.engine.settings import Settings
from workbench.engine.stop_conditions import apply_stop_conditions
from workbench.kernels.segment import Segment
from workbench.methods.common.empty_drafter import EmptyDrafter
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

    def open(self, sequence: Sequence) -> None:
        """Start without guesses."""
        sequence.state = Canvas()

    def change(self, sequence: Sequence, settings: Settings) -> None:
        """Use other settings from the next round on; positions that are set stay until a guess changes."""
        if settings.image_changes:
            raise PromptError("The run has no images that could be changed.", "Start a run with images.")
        sequence.settings = settings.active

    def revoke(self, sequence: Sequence) -> None:
        """Keep everything: the canvas is dropped after the change has succeeded."""

    def close(self, sequence: Sequence) -> None:
        """Revoke the tokens of the canvas."""
        sequence.report.revoked += [
            len(sequence.committed) + i for i, stands in enumerate(sequence.state.stands) if stands
        ]
        sequence.state = None

    def step(self, sequences: abc.Sequence[Sequence]) -> bool:
        """Run a round for each sequence, one after the other."""
        for sequence in sequences:
            self.context.guard(sequence, lambda s=sequence: self._round(s))
        return bool(sequences)

    def _round(self, sequence: Sequence) -> None:
        clock, target, canvas = self.context.clock, self.context.models.target, sequence.state
        rounds = sequence.configured_method.decoder_params
        assert isinstance(rounds, MaskFilling)
        n, base, r = min(rounds.places, sequence.remaining), len(sequence.committed), OnePassRound(sequence)
        # Guess and state of each position; a position without a guess reads as the last token.
        known = [*zip(canvas.guesses, canvas.stands, strict=True)]
        old = (known + [(sequence.committed[-1], False)] * n)[:n]
        lost = [base + n + i for i, (_, stood) in enumerate(known[n:]) if stood]
        guesses, sure = list[int](), list[float]()

        def read(phase: list[OnePassRound]) -> list[OnePassRound]:
            sequence.cache_slot.scratch = 0
            tokens = to_device([sequence.committed[-1], *(guess for guess, _ in old[:-1])], target.device)
            out = target.forward([Segment(sequence.cache_slot, tokens)])
            r.logits, r.hidden = out.logits[0], out.hidden[0]
            return phase

        def guess(phase: list[OnePassRound]) -> list[OnePassRound]:
            """Choose the token at each position, given the guesses before it."""
            assert r.logits is not None
            stream = sequence.random_stream
            found = choose_tokens(
                r.logits, sequence.sampling, lambda i: float(stream.uniform(base + i, Purpose.BONUS, 1, level=1)[0])
            )
            guesses.extend(found[0])
            sure.extend(found[1])
            return phase

        timer = RoundTimer(clock, [r])
        timer.skip_drafting()
        timer.end_phase(read([r]))
        timer.end_phase(guess([r]))
        timer.end_forwards([r])
        right = [guess == now for (guess, _), now in zip(old, guesses, strict=True)]
        final = next((i for i, same in enumerate(right[:-1]) if not same), n - 1) + 1
        kept, reason, texts = apply_stop_conditions(sequence, guesses[:final], self.context.models)
        target.commit(sequence.cache_slot, range(kept))
        assert r.hidden is not None
        sequence.cache_slot.last_hidden = r.hidden[kept - 1]
        sequence.committed.extend(guesses[:kept])

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
        sequence.state = Canvas(guesses[kept:], stands[kept:])
        sequence.report.signals |= {"positions set": sum(stands), "positions revoked": len(revoked)}
        append_round(sequence, record_placed(sequence, emitted, placed, revoked, timer.timing_of(r)))
        if reason:
            self.context.end(sequence, FINISHED, reason)


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
