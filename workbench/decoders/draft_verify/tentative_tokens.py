"""Tentative tokens: committed tokens that a verifier may still take back. See `Verifier.holds`.

They are in `row.committed` and in the target's KV cache, and drafts continue after them as after all committed
tokens. The trace lists them as `Round.placed` until they are final. Only then are they emitted: no text, stop string,
stream or log-probability ever contains a token that is taken back.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from workbench.decoders.draft_verify.drafter_setup import prime
from workbench.decoders.draft_verify.inactive_drafters import forget, let_go
from workbench.engine.request import Row
from workbench.engine.request_options import Scored
from workbench.engine.stop_conditions import cut
from workbench.models.loading import Models
from workbench.trace.tokens import Emitted, Placed

TRIES = 4
"""Largest number of times that tokens are taken back before one becomes final; after that, none is taken back."""


@dataclass(slots=True)
class TentativeToken:
    """Committed token that the verifier may still take back.

    Attributes:
        token: entry for the trace, still without text.
        before: LM head input that drew the token before it: `last_hidden` of the sequence without this token.
        text: text of this token alone, for display.
        scored: log-probability of the token, if requested.
        is_told: whether the trace already lists it in `Round.placed`.
    """

    token: Emitted
    before: Tensor | None
    text: str
    scored: Scored | None = None
    is_told: bool = False


@dataclass(frozen=True, slots=True)
class TentativeResults:
    """Results of a round for tentative tokens.

    Attributes:
        emitted: tokens that became final.
        placed: tokens of this round that are tentative.
        reason: why the text ends; "" if it continues.
    """

    emitted: list[Emitted]
    placed: list[Placed]
    reason: str


def decide(row: Row, held: Sequence[TentativeToken], ends: bool, models: Models) -> TentativeResults:
    """Let the verifier decide which tentative tokens stay; emit the final ones and take back the others.

    Args:
        row: sequence; its new tokens are committed.
        held: new tokens, in order; they are added to the tentative ones.
        ends: whether the text ends with the last of them, if it stays.
        models: models of the engine.
    """
    row.state.tentative += held
    tokens, n_settled, window = row.state.tentative, row.state.n_final, row.verifier.holds()
    n_before, n_final, n_back = len(row.committed) - len(tokens), len(tokens), 0
    if window and row.state.retractions < TRIES:
        decision = row.verifier.settle(row, [t.token for t in tokens[n_settled:]], ends)
        n_back = min(decision.back, len(tokens) - n_settled)
        if n_back or not ends:
            n_remaining = len(tokens) - n_back
            n_final = min(n_remaining, max(n_settled + decision.final, n_remaining - window))
    finals, row.state.n_final = tokens[:n_final], 0
    n_emitted, reason, spans = cut(row, [t.token.token for t in finals], models, n_before)
    emitted = [_final(t, span) for t, span in zip(finals, spans, strict=False)]
    row.request.scores.extend(t.scored for t in finals[:n_emitted] if t.scored is not None)
    del tokens[:n_emitted]
    row.state.retractions = 0 if n_emitted else row.state.retractions
    if reason:
        _forget(row, len(tokens))
    elif n_back:
        take_back(row, n_back)
        row.state.retractions += 1
    unplaced = [t for t in tokens if not t.is_told]
    for t in unplaced:
        t.is_told = True
    return TentativeResults(
        emitted, [Placed(t.token.token, t.text, t.token.position, t.token.p) for t in unplaced], reason
    )


def _final(held: TentativeToken, span: tuple[str, int, int]) -> Emitted:
    text, start, end = span
    node = None if held.is_told else held.token.node  # nodes are numbered within the round of the token
    return dataclasses.replace(held.token, text=text, start=start, end=end, node=node)


def take_back(row: Row, n: int) -> None:
    """Take back the last `n` committed tokens, all of them tentative.

    The drafter is primed again, inactive drafters are released, and the positions get other random numbers. States of
    policies, tree builders and the verifier stay.
    """
    if n == 0:
        return
    revoked = _forget(row, n)
    row.models.target.rewind(row.place, len(row.committed) - 1)
    row.place.last_hidden = revoked[0].before
    row.draw.attempt += 1
    forget(row)
    let_go(row)
    row.state.drafter = prime(row, row.drafter, row.models)


def _forget(row: Row, n: int) -> list[TentativeToken]:
    n_kept = len(row.state.tentative) - n
    revoked = row.state.tentative[n_kept:]
    row.report.revoked += [tentative.token.position for tentative in revoked if tentative.is_told]
    del row.state.tentative[n_kept:], row.committed[len(row.committed) - n :]
    row.state.n_final = min(row.state.n_final, n_kept)
    return revoked
