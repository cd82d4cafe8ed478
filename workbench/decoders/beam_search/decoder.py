"""Decoder of beam search: all beams of a sequence are one token tree over its KV cache.

The root is the last committed token. Beams with a common beginning use the same cache entries for it, as the branches
of a draft tree do. A round is one forward pass over the newest token of every beam. Tokens that are equal in all
possible results are final: they are committed and emitted. The other tokens of the best beam are shown as tentative
tokens.
"""

from __future__ import annotations

from collections.abc import Sequence as TokenSequence
from dataclasses import dataclass, field
from typing import ClassVar

import torch
from jaxtyping import Float
from torch import Tensor

from workbench.core.params import param
from workbench.core.transfer import to_device
from workbench.decoders.beam_search.beams import HEURISTIC, STOP_RULES, Beam, Search
from workbench.decoders.decoder_params import DecoderParams
from workbench.decoders.one_pass import OnePassDecoder, OnePassState, Step
from workbench.engine.decoder import Decoder, EngineContext
from workbench.engine.request import Sequence
from workbench.engine.settings import Settings
from workbench.engine.stop_conditions import find_end
from workbench.kernels.segment import Segment


@dataclass(frozen=True)
class BeamSearch(DecoderParams):
    """Find a text of high probability: extend the best `beams` candidates by one token per round.

    A finished candidate's score is its log-probability divided by its length to the power of `length_penalty`.

    Source: Freitag and Al-Onaizan 2017, arXiv:1702.01806, §2; the length penalty is defined as in Hugging Face's
    `generate`.
    """

    needs: ClassVar[tuple[str, ...]] = ("trees",)
    keeps_greedy: ClassVar[bool] = False

    beams: int = param(4, ge=1, le=16, doc="number of candidate texts (beams) that are extended in each round")
    length_penalty: float = param(
        1.0, ge=-2.0, le=4.0, doc="exponent of a finished candidate's length, by which its log-probability is divided"
    )
    stop_rule: str = param(
        HEURISTIC, choices=STOP_RULES, doc="rule for ending the search while candidates are still unfinished"
    )

    def decoder(self, context: EngineContext) -> Decoder:
        """Create the decoder that runs the beam searches of all sequences in an engine."""
        return BeamSearchDecoder(context)


@dataclass(slots=True)
class BeamState(OnePassState):
    """State of one sequence's beam search, with the LM head's inputs at uncommitted nodes.

    Attributes:
        search: beams and finished hypotheses.
        hidden: input of the LM head at each uncommitted node in the KV cache, [D] each.
    """

    search: Search = field(default_factory=Search)
    hidden: list[Tensor] = field(default_factory=list[Tensor])


class BeamSearchDecoder(OnePassDecoder):
    """Decoder that runs one beam search per sequence."""

    def open(self, sequence: Sequence) -> None:
        """Start a beam search after the committed text of a sequence."""
        sequence.state = BeamState()
        _note_sampling(sequence)

    def change(self, sequence: Sequence, settings: Settings) -> None:
        """Apply new parameters to the running beam search of a sequence."""
        super().change(sequence, settings)
        _note_sampling(sequence)

    def revoke(self, sequence: Sequence) -> None:
        """Revoke the tentative tokens before a change of decoder.

        A new beam search is started in case the change fails.
        """
        state = sequence.state
        sequence.report.revoked += sorted(state.tentative)
        sequence.state, sequence.cache_slot.scratch = BeamState(), 0

    def segment(self, sequence: Sequence) -> Segment:
        """Return the forward pass's input: each beam's newest token; in the first round the last committed token."""
        slot, state, device = sequence.cache_slot, sequence.state, self.models.target.device
        beams = state.search.beams
        if not any(beam.tokens for beam in beams):  # the root itself has no cache entry
            slot.scratch, state.hidden = 0, []
            return Segment(slot, to_device([sequence.committed[-1]], device))
        mask = torch.zeros(len(beams), slot.scratch + len(beams), dtype=torch.bool)
        for i, beam in enumerate(beams):
            mask[i, [*beam.nodes, slot.scratch + i]] = True
        depth = to_device([len(beam.nodes) for beam in beams], device)
        return Segment(slot, to_device([beam.tokens[-1] for beam in beams], device), mask.to(device), depth)

    def advance(self, sequence: Sequence, logits: Float[Tensor, "n V"], hidden: Float[Tensor, "n D"]) -> Step:
        """Extend the beams by one token, and commit the tokens that are equal in all candidate texts."""
        params, state = sequence.configured_method.decoder_params, sequence.state
        assert isinstance(params, BeamSearch)
        search, slot = state.search, sequence.cache_slot
        first = slot.scratch - len(logits)
        new_beams = search.beams or [Beam((), (), (), 0.0)]
        search.beams = [
            Beam((*beam.nodes, first + i), beam.tokens, beam.probs, beam.score) for i, beam in enumerate(new_beams)
        ]
        state.hidden += hidden.unbind(0)
        logprobs = logits.float().log_softmax(1)
        base = len(sequence.committed)
        n_ends = len(self.models.eos) if sequence.request.stop_at_eos else 0
        goes_on = search.extend(
            logprobs, params.beams, n_ends, lambda tokens: self._end_reason(sequence, tokens, base),
            params.length_penalty, params.stop_rule, sequence.max_new_tokens,
        )  # fmt: skip
        signals = {"beams": float(len(search.beams)), "finished hypotheses": float(len(search.finished))}
        if not goes_on:
            return self._finish(sequence, signals)
        if slot.scratch + 2 * params.beams > self._room(sequence):  # full: commit one token
            search.drop_others(search.best()[0][0])
            if not search.beams:  # all candidates that remain are finished
                return self._finish(sequence, signals)
        return self._commit(sequence, search.common_prefix(), signals)

    def _room(self, sequence: Sequence) -> int:
        """Return the number of uncommitted beam nodes that the KV cache can hold after the committed text."""
        return self.models.target.cache.capacity - sequence.cache_slot.length

    def _end_reason(self, sequence: Sequence, tokens: TokenSequence[int], base: int) -> str:
        return find_end(sequence, tokens, self.models, base)[1]

    def _commit(self, sequence: Sequence, n: int, signals: dict[str, float]) -> Step:
        """Commit the first `n` tokens of all beams, and drop the cache entries that no beam needs."""
        state, slot, search = sequence.state, sequence.cache_slot, sequence.state.search
        tokens, probs = search.beams[0].tokens[:n], search.beams[0].probs[:n]
        path = search.beams[0].nodes[:n]
        needed = sorted({node for beam in search.beams for node in beam.nodes[n:]})
        self.models.target.commit(slot, path, needed)
        if path:
            slot.last_hidden = state.hidden[path[-1]]
        state.hidden = [state.hidden[node] for node in needed]
        search.shorten(n, {node: i for i, node in enumerate(needed)})
        emitted, reason = self.emit(sequence, tokens, probs)
        best_tokens, best_probs = search.best()
        at = len(sequence.committed)
        tentative = {at + i: pair for i, pair in enumerate(zip(best_tokens, best_probs, strict=True))}
        return Step(emitted, tentative, reason, signals)

    def _finish(self, sequence: Sequence, signals: dict[str, float]) -> Step:
        """Emit the best candidate of the beam search as the end of the text."""
        tokens, probs = sequence.state.search.best()
        emitted, reason = self.emit(sequence, tokens, probs)
        return Step(emitted, {}, reason or "length", signals)


def _note_sampling(sequence: Sequence) -> None:
    note = "Beam search does not sample: temperature, top-k, top-p, min-p and seed have no effect."
    if not sequence.sampling.greedy and not sequence.has_warning(note):
        sequence.add_warning(note)
