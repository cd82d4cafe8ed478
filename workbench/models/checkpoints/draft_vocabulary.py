"""Read the maps between a draft vocabulary and the target's from checkpoints: `d2t`, `t2d`, `token_map`."""

from __future__ import annotations

from workbench.core.errors import ModelError
from workbench.models.checkpoints.description import sort_draft_tokens
from workbench.models.checkpoints.files import CheckpointFiles

MAPS = ("d2t", "t2d")
DraftTokens = tuple[tuple[int, ...] | None, tuple[int, ...] | None]
"""Type of a draft vocabulary: token ids in increasing order, and their order in the LM heads, as in the fields
`draft_tokens` and `order` of `Checkpoint`."""


def draft_vocabulary(stored: CheckpointFiles, vocab_size: int) -> DraftTokens:
    """Return the draft vocabulary that a checkpoint's tensor `d2t` describes, checked against `t2d` if it exists.

    Token i of the heads is token i + d2t[i] of the target; `t2d` is a mask over the target's tokens.

    Args:
        stored: files of the checkpoint.
        vocab_size: number of tokens of the target.

    Returns:
        Token ids and their order, as in `Checkpoint`; (None, None) without `d2t`.

    Raises:
        ModelError: a token occurs twice or does not exist, or `d2t` and `t2d` disagree.
    """
    if "d2t" not in stored.shapes:
        return None, None
    offsets = stored.array("d2t").tolist()
    ids = [index + offset for index, offset in enumerate(offsets)]
    tokens, order = sort_draft_tokens(stored, ids, "d2t", vocab_size)
    if "t2d" in stored.shapes:
        mask = stored.array("t2d").astype(bool)
        if mask.shape != (vocab_size,):
            raise ModelError(
                f"`t2d` in {stored.folder} has {mask.size:,} tokens; the vocabulary has {vocab_size:,}.",
                "Download the checkpoint again: the map of token ids belongs to other heads.",
            )
        if mask.nonzero()[0].tolist() != tokens:
            raise ModelError(
                f"`d2t` and `t2d` in {stored.folder} have different tokens ({len(tokens):,} and {int(mask.sum()):,}).",
                "Download the checkpoint again: one of the two maps belongs to other heads.",
            )
    return tuple(tokens), None if order is None else tuple(order)


def token_map(stored: CheckpointFiles, name: str, vocab_size: int, rows: int) -> DraftTokens:
    """Return the draft vocabulary that a checkpoint stores as a list of token ids.

    The LM heads have one row for each token of the list, or one for each token of the target.

    Args:
        stored: files of the checkpoint.
        name: name of the tensor with the list.
        vocab_size: number of tokens of the target.
        rows: number of rows of the checkpoint's LM heads.

    Returns:
        Token ids and their order, as in `Checkpoint`.

    Raises:
        ModelError: a token occurs twice or does not exist, or `rows` is neither the length of the list nor
            `vocab_size`.
    """
    tokens, order = sort_draft_tokens(stored, stored.array(name).tolist(), name, vocab_size)
    if rows == vocab_size and rows != len(tokens):
        return tuple(tokens), tuple(tokens)  # full LM heads: rows by token id
    if rows != len(tokens):
        raise ModelError(
            f"`{name}` in {stored.folder} lists {len(tokens):,} tokens, but the LM heads have {rows:,} rows.",
            "Download the checkpoint again.",
        )
    return tuple(tokens), None if order is None else tuple(order)
