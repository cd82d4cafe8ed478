"""Tokens that a verifier keeps and may still take back: committed, and not yet text. See `Verifier.holds`.

They stand in `row.committed` and in the target's cache, and drafts hang behind them, as behind all that is committed.
The trace has them as `Round.placed` until they are final. Only then are they emitted: no text, stop string, stream or
log-probability ever has a token that is taken back.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from workbench.engine.drafter_setup import prime
from workbench.engine.observers import forget, let_go
from workbench.engine.request import Row
from workbench.engine.request_options import Scored
from workbench.engine.stop_conditions import cut
from workbench.models.loading import Models
from workbench.trace.tokens import Emitted, Placed

TRIES = 4
"""How often in a row, with nothing final in between, tokens may be taken back: what is written then stands."""


@dataclass(slots=True)
class Held:
    """A token that is not final.

    Attributes:
        token: as the trace will have it, but for its text.
        before: what the target's LM head read to draw the token before it: the row's `last_hidden` without this token.
        text: its own text, for display only.
        scored: its log-probability, where that is asked for.
        is_told: whether the trace has it, as placed.
    """

    token: Emitted
    before: Tensor | None
    text: str
    scored: Scored | None = None
    is_told: bool = False


@dataclass(frozen=True, slots=True)
class Decided:
    """What became of held tokens in a round.

    Attributes:
        emitted: those that are text now.
        placed: those of this round that are held.
        reason: why the text ends; "" where it goes on.
    """

    emitted: list[Emitted]
    placed: list[Placed]
    reason: str


def decide(row: Row, held: Sequence[Held], ends: bool, models: Models) -> Decided:
    """Ask the verifier what of all that is held stands, and let go of the rest.

    Args:
        row: its new tokens are committed.
        held: those, in order; they join what is held already.
        ends: whether the text ends with the last of them, if it stands.
        models: of the engine.
    """
    row.undecided += held
    tokens, given, window = row.undecided, row.decided, row.verifier.holds()
    base, final, back = len(row.committed) - len(tokens), len(tokens), 0
    if window and row.tries < TRIES:
        said = row.verifier.settle(row, [t.token for t in tokens[given:]], ends)
        back = min(said.back, len(tokens) - given)
        if back or not ends:
            stands = len(tokens) - back
            final = min(stands, max(given + said.final, stands - window))
    now, row.decided = tokens[:final], 0
    kept, reason, spans = cut(row, [t.token.token for t in now], models, base)
    emitted = [_final(t, span) for t, span in zip(now, spans, strict=False)]
    row.request.scores.extend(t.scored for t in now[:kept] if t.scored is not None)
    del tokens[:kept]
    row.tries = 0 if kept else row.tries
    if reason:
        _forget(row, len(tokens))
    elif back:
        take_back(row, back)
        row.tries += 1
    new = [t for t in tokens if not t.is_told]
    for t in new:
        t.is_told = True
    return Decided(emitted, [Placed(t.token.token, t.text, t.token.position, t.token.p) for t in new], reason)


def _final(held: Held, span: tuple[str, int, int]) -> Emitted:
    text, start, end = span
    node = None if held.is_told else held.token.node  # it is a node of its own round alone
    return dataclasses.replace(held.token, text=text, start=start, end=end, node=node)


def take_back(row: Row, n: int) -> None:
    """The last `n` committed tokens, all of them held, are no text: what is written there next begins anew.

    The drafter is primed anew, those that watch are let go, and the random numbers of the places are others. Policies,
    growers and the verifier keep what they know.
    """
    if n == 0:
        return
    lost = _forget(row, n)
    row.models.target.rewind(row.place, len(row.committed) - 1)
    row.place.last_hidden = lost[0].before
    row.draw.attempt += 1
    forget(row)
    let_go(row)
    row.state = prime(row, row.drafter, row.models)


def _forget(row: Row, n: int) -> list[Held]:
    keep = len(row.undecided) - n
    lost = row.undecided[keep:]
    row.revoked += [held.token.position for held in lost if held.is_told]
    del row.undecided[keep:], row.committed[len(row.committed) - n :]
    row.decided = min(row.decided, keep)
    return lost
