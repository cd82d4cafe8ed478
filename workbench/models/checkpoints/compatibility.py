"""Whether heads suit a target, line by line: what does not fit, and what would."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from workbench.models.checkpoints.description import Checkpoint, rope_of

if TYPE_CHECKING:
    import torch

ROWS = 64
"""Rows of an embedding that are compared."""
ALIKE = 0.9
"""Cosine above which two embeddings are of the same training, whatever format either is kept in."""


@dataclass(frozen=True, slots=True)
class HeadRequirements:
    """What a target asks of heads.

    Attributes:
        name: of the target.
        hidden_size: numbers of its features.
        vocab_size: its tokens.
        n_layers: its layers.
        rope: its rotary positions; see `rope_of`.
    """

    name: str
    hidden_size: int
    vocab_size: int
    n_layers: int
    rope: Mapping[str, Any]

    @classmethod
    def of(cls, name: str, config: Mapping[str, Any]) -> HeadRequirements:
        """From a target's configuration, which may hold that of its text inside.

        Raises:
            KeyError, TypeError: it lacks a size.
        """
        text = config.get("text_config") or config
        sizes = [int(text[key]) for key in ("hidden_size", "vocab_size", "num_hidden_layers")]
        return cls(name, sizes[0], sizes[1], sizes[2], rope_of(text))


@dataclass(frozen=True, slots=True)
class Line:
    """One thing that was looked at.

    Attributes:
        what: it is.
        fits: whether it does; None: worth knowing, no matter of fitting.
        says: the finding, and where it does not fit, what would.
    """

    what: str
    fits: bool | None
    says: str


def lines(checkpoint: Checkpoint, target: HeadRequirements) -> list[Line]:
    """Everything about some heads that a target has a say in."""
    return [*_sizes(checkpoint, target), *_taps(checkpoint, target), *_notes(checkpoint, target)]


def why_not(checkpoint: Checkpoint, target: HeadRequirements) -> str:
    """Why heads do not suit a target, in whole sentences; empty where they do."""
    wrong = [line.says for line in lines(checkpoint, target) if line.fits is False]
    return f"{checkpoint.name} ({checkpoint.layout}) does not fit {target.name}: {'; '.join(wrong)}." if wrong else ""


def _sizes(checkpoint: Checkpoint, target: HeadRequirements) -> Iterator[Line]:
    facts, meant = checkpoint.facts, f" ({checkpoint.verifier})" if checkpoint.verifier else ""
    read = facts.get("target_hidden_size", facts["hidden_size"])
    if read == target.hidden_size:
        yield Line("hidden size", True, f"it reads {read:,} numbers, which the target gives")
    else:
        yield Line(
            "hidden size",
            False,
            f"it reads {read:,} numbers and the target gives {target.hidden_size:,}; it is for a target of hidden size "
            f"{read:,}{meant}",
        )
    width = facts["hidden_size"]
    if width != read:
        yield Line("embedding", False, f"it has embeddings of its own width {width:,}; the target's width is "
                                       f"{target.hidden_size:,}")  # fmt: skip
    vocab = facts["vocab_size"]
    if vocab == target.vocab_size:
        yield Line("vocabulary", True, f"{vocab:,} tokens, as the target has")
    else:
        yield Line(
            "vocabulary",
            False,
            f"it knows {vocab:,} tokens and the target has {target.vocab_size:,}; it is for a target of {vocab:,} "
            f"tokens{meant}",
        )
    if checkpoint.kept is not None:
        yield Line("draft vocabulary", None, f"it proposes {len(checkpoint.kept):,} of them")


def _taps(checkpoint: Checkpoint, target: HeadRequirements) -> Iterator[Line]:
    if checkpoint.architecture != "eagle-3":
        return
    said, n = checkpoint.facts["taps"], target.n_layers
    taps = said or (2, n // 2, n - 3)
    named = ", ".join(map(str, taps))
    if any(tap >= n for tap in taps):
        yield Line("layers", False, f"it reads the inputs of layers {named}, but the target has {n}; it is for a "
                                    f"target of {max(taps) + 1} layers or more")  # fmt: skip
    elif sorted(set(taps)) != list(taps):
        yield Line("layers", False, f"it names no layers, and the usual ones (2, L/2, L - 3) are {named} of {n}: not "
                                    "three in order; from 7 layers on they are")  # fmt: skip
    else:
        yield Line("layers", True, f"it reads the inputs of layers {named} of the target's {n}")


def _notes(checkpoint: Checkpoint, target: HeadRequirements) -> Iterator[Line]:
    if "rope" in checkpoint.facts:
        mine, theirs = _rope(checkpoint.facts["rope"]), _rope(target.rope)
        also = "as the target's" if mine == theirs else f"its own; the target's are {theirs}"
        yield Line("positions", None, f"{mine}, {also}")
    yield from (Line("note", None, says) for says in checkpoint.says)


def _rope(rope: Mapping[str, Any]) -> str:
    kind, base = rope.get("rope_type", "default"), rope.get("rope_theta", 10_000.0)
    factor = f" by {rope['factor']:g}" if "factor" in rope else ""
    return f"rotary of base {base:,.0f}" + ("" if kind == "default" else f", scaled ({kind}{factor})")


def other_embedding(checkpoint: Checkpoint, embedding: torch.Tensor, target: str) -> str:
    """Why heads were trained for other weights: their copy of the embedding is not the target's; "": it is, or none.

    Args:
        checkpoint: whose sizes fit.
        embedding: the target's, [V or more, D].
        target: its name.
    """
    import torch

    stored = checkpoint.parts.get("embed.weight")
    if stored is None:
        return ""
    n = min(checkpoint.stored.shapes[stored][0], len(embedding))
    rows = list(range(0, n, max(n // ROWS, 1)))[:ROWS]
    theirs = checkpoint.stored.rows(stored, rows).float()
    ours = embedding.detach()[torch.tensor(rows, device=embedding.device)].float().cpu()
    alike = float(torch.cosine_similarity(theirs, ours, dim=1).mean())
    if alike >= ALIKE:
        return ""
    return (
        f"{checkpoint.name} ({checkpoint.layout}) has a copy of an embedding that is not that of {target} (cosine "
        f"{alike:.2f}): it was trained for other weights, and its drafts would be rejected. Use the weights of "
        f"{checkpoint.verifier or 'the target that it was trained for'}."
    )
