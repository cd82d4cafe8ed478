"""Tentative tokens: committed tokens that a verifier may still revoke (`Verifier.max_tentative`).

Tentative tokens are in `Sequence.committed` and in the target's KV cache, and drafts continue after them as after all
committed tokens. The trace lists them as `Round.placed` until they are final. Only final tokens are emitted: no text,
stop string, stream or log-probability ever contains a token that is revoked later.
"""

from __future__ import annotations

import dataclasses
from collections import abc
from dataclasses import dataclass

from torch import Tensor

from workbench.decoders.draft_verify.drafter_lifetime import init_drafter_state, release_drafter, release_inactive
from workbench.engine.decoder import EngineContext
from workbench.engine.request import Sequence
from workbench.engine.request_options import TokenLogprob
from workbench.engine.stop_conditions import apply_stop_conditions, find_end
from workbench.models.loading import Models
from workbench.trace.tokens import EmittedToken, TentativeTokenRecord

MAX_RETRACTIONS = 4
"""Maximum number of times that tentative tokens are revoked before one becomes final.

After that, no token is revoked.
"""


@dataclass(slots=True)
class TentativeToken:
    """Committed token that the verifier may still revoke.

    Attributes:
        token: the token as an entry for the trace, still without text.
        before: LM head input from which the previous token was drawn; it is `last_hidden` of the sequence if this token
            is revoked.
        text: text of this token alone, for display.
        logprob: log-probability of the token, if requested.
        is_in_trace: whether the trace already lists the token in `Round.placed`.
    """

    token: EmittedToken
    before: Tensor | None
    text: str
    logprob: TokenLogprob | None = None
    is_in_trace: bool = False


@dataclass(frozen=True, slots=True)
class SettledTokens:
    """Tokens that become final in a round, and new tokens of the round that stay tentative.

    Attributes:
        emitted: tokens that became final.
        placed: tokens of this round that are tentative.
        reason: why the text ends; "" if it continues.
    """

    emitted: list[EmittedToken]
    placed: list[TentativeTokenRecord]
    reason: str


def has_tentative(sequence: Sequence) -> bool:
    """Return whether a sequence has tentative tokens, or its verifier may make new tokens tentative."""
    return bool(sequence.state.tentative) or sequence.verifier.max_tentative() > 0


def find_tentative_end(
    sequence: Sequence, tokens: abc.Sequence[int], models: Models
) -> tuple[int, str, list[tuple[str, int, int]]]:
    """Return how many new tentative tokens belong to the text, why the text would end (or ""), and empty spans.

    Nothing is detokenised: a tentative token has no text until it is final.
    """
    n, reason = find_end(sequence, tokens, models, len(sequence.committed))
    return n, reason, [("", 0, 0)] * n


def settle_tentative(
    sequence: Sequence,
    new: list[EmittedToken],
    states_before: abc.Iterable[Tensor | None],
    logprobs: abc.Sequence[TokenLogprob],
    ends: bool,
    context: EngineContext,
) -> SettledTokens:
    """Add the new tokens of a round to a sequence's tentative tokens, and emit the tokens that are final.

    Args:
        sequence: sequence whose new tokens are already committed.
        new: new tokens.
        states_before: for each new token, the LM head input from which the previous token was drawn.
        logprobs: log-probabilities of the new tokens, if requested.
        ends: whether the text ends with the last new token, if that token is not revoked.
        context: the engine's models and texts of tokens.
    """
    texts = [context.token_text(token.token) for token in new]
    values = zip(new, states_before, texts, logprobs or [None] * len(new), strict=False)
    return decide(sequence, [TentativeToken(*value) for value in values], ends, context.models)


def decide(sequence: Sequence, new_tokens: abc.Sequence[TentativeToken], ends: bool, models: Models) -> SettledTokens:
    """Let the verifier decide on a sequence's tentative tokens; emit final tokens and revoke others.

    Args:
        sequence: sequence whose new tokens are already committed.
        new_tokens: new tokens, in order; they are added to the tentative tokens.
        ends: whether the text ends with the last new token, if that token is not revoked.
        models: models of the engine.
    """
    sequence.state.tentative += new_tokens
    tokens, n_settled, window = sequence.state.tentative, sequence.state.n_final, sequence.verifier.max_tentative()
    n_before, n_final, n_back = len(sequence.committed) - len(tokens), len(tokens), 0
    if window and sequence.state.retractions < MAX_RETRACTIONS:
        decision = sequence.verifier.decide_tentative(sequence, [t.token for t in tokens[n_settled:]], ends)
        n_back = min(decision.n_revoked, len(tokens) - n_settled)
        if n_back or not ends:
            n_remaining = len(tokens) - n_back
            n_final = min(n_remaining, max(n_settled + decision.n_final, n_remaining - window))
    finals, sequence.state.n_final = tokens[:n_final], 0
    n_emitted, reason, spans = apply_stop_conditions(sequence, [t.token.token for t in finals], models, n_before)
    emitted = [_final(t, span) for t, span in zip(finals, spans, strict=False)]
    sequence.request.logprobs.extend(t.logprob for t in finals[:n_emitted] if t.logprob is not None)
    del tokens[:n_emitted]
    sequence.state.retractions = 0 if n_emitted else sequence.state.retractions
    if reason:
        _remove_last(sequence, len(tokens))
    elif n_back:
        revoke_tokens(sequence, n_back)
        sequence.state.retractions += 1
    unplaced = [t for t in tokens if not t.is_in_trace]
    for t in unplaced:
        t.is_in_trace = True
    return SettledTokens(
        emitted, [TentativeTokenRecord(t.token.token, t.text, t.token.position, t.token.p) for t in unplaced], reason
    )


def _final(held: TentativeToken, span: tuple[str, int, int]) -> EmittedToken:
    text, start, end = span
    node = None if held.is_in_trace else held.token.node  # nodes are numbered within the round of the token
    return dataclasses.replace(held.token, text=text, start=start, end=end, node=node)


def revoke_tokens(sequence: Sequence, n: int) -> None:
    """Revoke the last `n` committed tokens of a sequence, all of which are tentative.

    The drafter's state is created again, inactive drafters are released, and other random numbers are used at the
    positions of these tokens. The states of policy, tree builder and verifier stay.
    """
    if n == 0:
        return
    revoked = _remove_last(sequence, n)
    sequence.models.target.rewind(sequence.cache_slot, len(sequence.committed) - 1)
    sequence.cache_slot.last_hidden = revoked[0].before
    sequence.random_stream.attempt += 1
    release_inactive(sequence)
    release_drafter(sequence)
    sequence.state.drafter = init_drafter_state(sequence, sequence.drafter, sequence.models)


def _remove_last(sequence: Sequence, n: int) -> list[TentativeToken]:
    n_kept = len(sequence.state.tentative) - n
    revoked = sequence.state.tentative[n_kept:]
    sequence.report.revoked += [tentative.token.position for tentative in revoked if tentative.is_in_trace]
    del sequence.state.tentative[n_kept:], sequence.committed[len(sequence.committed) - n :]
    sequence.state.n_final = min(sequence.state.n_final, n_kept)
    return revoked
