"""Maps between the tokens that heads can propose and the target's: `d2t`, `t2d`, `token_map`."""

from __future__ import annotations

from workbench.core.errors import ModelError
from workbench.models.checkpoints.description import tokens_of
from workbench.models.checkpoints.files import Stored

MAPS = ("d2t", "t2d")
Kept = tuple[tuple[int, ...] | None, tuple[int, ...] | None]
"""See `Checkpoint.kept` and `Checkpoint.order`."""


def draft_vocabulary(stored: Stored, vocab_size: int) -> Kept:
    """What `d2t` (token i of the heads is i + d2t[i] of the target) says, and `t2d` beside it; nothing without them.

    Raises:
        ModelError: it names a token twice or one that there is not, or the two contradict each other.
    """
    if "d2t" not in stored.shapes:
        return None, None
    offsets = stored.array("d2t").tolist()
    ids = [place + offset for place, offset in enumerate(offsets)]
    kept, order = tokens_of(stored, ids, "d2t", vocab_size)
    if "t2d" in stored.shapes:
        known = stored.array("t2d").astype(bool)
        if known.shape != (vocab_size,):
            raise ModelError(
                f"`t2d` in {stored.folder} is of {known.size:,} tokens; the vocabulary has {vocab_size:,}.",
                "Fetch it again: the map belongs to other heads.",
            )
        if known.nonzero()[0].tolist() != kept:
            raise ModelError(
                f"`d2t` and `t2d` in {stored.folder} keep different tokens ({len(kept):,} and {int(known.sum()):,}).",
                "Fetch it again: one of the two belongs to other heads.",
            )
    return tuple(kept), None if order is None else tuple(order)


def token_map(stored: Stored, name: str, vocab_size: int, rows: int) -> Kept:
    """What a list of token ids says of LM heads with so many rows: one for each of its tokens, or for all.

    Raises:
        ModelError: as `draft_vocabulary`; or the rows are neither.
    """
    kept, order = tokens_of(stored, stored.array(name).tolist(), name, vocab_size)
    if rows == vocab_size and rows != len(kept):
        return tuple(kept), tuple(kept)  # the rows of these tokens
    if rows != len(kept):
        raise ModelError(
            f"`{name}` in {stored.folder} keeps {len(kept):,} tokens, its LM heads have {rows:,}.", "Fetch it again."
        )
    return tuple(kept), None if order is None else tuple(order)
