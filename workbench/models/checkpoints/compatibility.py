"""Check whether trained heads fit a target, property by property, and describe the target that would fit."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from workbench.models.checkpoints.description import Checkpoint, rope_of

if TYPE_CHECKING:
    import torch

ROWS = 64
"""Number of embedding rows that are compared between a checkpoint of trained heads and its target."""
ALIKE = 0.9
"""Minimum cosine similarity at which two embeddings count as the same weights stored in different number formats."""


@dataclass(frozen=True, slots=True)
class HeadRequirements:
    """Properties of a target that trained heads must match.

    Attributes:
        name: name of the target.
        hidden_size: width of the target's hidden states.
        vocab_size: number of tokens in the target's vocabulary.
        n_layers: number of the target's decoder layers.
        rope: parameters of the target's rotary embedding, in the form that `rope_of` returns.
    """

    name: str
    hidden_size: int
    vocab_size: int
    n_layers: int
    rope: Mapping[str, Any]

    @classmethod
    def of(cls, name: str, config: Mapping[str, Any]) -> HeadRequirements:
        """Create the properties that trained heads must match from a target's configuration.

        Args:
            name: name of the target.
            config: configuration of the target, which may have a nested `text_config`.

        Raises:
            KeyError, TypeError: the configuration lacks a size.
        """
        text = config.get("text_config") or config
        sizes = [int(text[key]) for key in ("hidden_size", "vocab_size", "num_hidden_layers")]
        return cls(name, sizes[0], sizes[1], sizes[2], rope_of(text))


@dataclass(frozen=True, slots=True)
class CheckResult:
    """Result of one compatibility check of trained heads with a target.

    Attributes:
        name: checked property, such as "hidden size".
        fits: whether the heads match the target in this property; None: a note, not a requirement.
        message: result as text; if the heads do not match, it also describes the target that would fit.
    """

    name: str
    fits: bool | None
    message: str


def check_compatibility(checkpoint: Checkpoint, target: HeadRequirements) -> list[CheckResult]:
    """Return the results of all compatibility checks of trained heads with a target."""
    return [*_sizes(checkpoint, target), *_taps(checkpoint, target), *_notes(checkpoint, target)]


def mismatch_reason(checkpoint: Checkpoint, target: HeadRequirements) -> str:
    """Return why trained heads do not fit a target, as a sentence; empty if they fit."""
    reasons = [line.message for line in check_compatibility(checkpoint, target) if line.fits is False]
    return (
        f"{checkpoint.name} ({checkpoint.layout}) does not fit {target.name}: {'; '.join(reasons)}." if reasons else ""
    )


def _sizes(checkpoint: Checkpoint, target: HeadRequirements) -> Iterator[CheckResult]:
    facts, intended_target = checkpoint.facts, f" ({checkpoint.verifier})" if checkpoint.verifier else ""
    n_in = facts.get("target_hidden_size", facts["hidden_size"])
    if n_in == target.hidden_size:
        yield CheckResult("hidden size", True, f"{n_in:,}, equal to the target's")
    else:
        yield CheckResult(
            "hidden size",
            False,
            f"it is for a target of hidden size {n_in:,}{intended_target}; this target's is {target.hidden_size:,}",
        )
    width = facts["hidden_size"]
    if width != n_in:
        yield CheckResult("embedding", False, f"its embeddings have width {width:,}; the target's width is "
                                       f"{target.hidden_size:,}")  # fmt: skip
    vocab = facts["vocab_size"]
    if vocab == target.vocab_size:
        yield CheckResult("vocabulary", True, f"{vocab:,} tokens, equal to the target's")
    else:
        yield CheckResult(
            "vocabulary",
            False,
            f"it is for a target of {vocab:,} tokens{intended_target}; this target has {target.vocab_size:,}",
        )
    if checkpoint.draft_tokens is not None:
        yield CheckResult(
            "draft vocabulary",
            None,
            f"the heads can propose only {len(checkpoint.draft_tokens):,} of their target's {vocab:,} tokens",
        )


def _taps(checkpoint: Checkpoint, target: HeadRequirements) -> Iterator[CheckResult]:
    if checkpoint.architecture != "eagle-3":
        return
    config_taps, n = checkpoint.facts["taps"], target.n_layers
    taps = config_taps or (2, n // 2, n - 3)
    names = ", ".join(map(str, taps))
    if any(tap >= n for tap in taps):
        yield CheckResult(
            "layers",
            False,
            f"the head reads the inputs of layers {names}, but the target has only {n} layers; the head is for "
            f"a target of at least {max(taps) + 1} layers",
        )
    elif sorted(set(taps)) != list(taps):
        yield CheckResult(
            "layers",
            False,
            f"the head's config.json lists no target layers, and the default layers (2, L/2, L - 3) are {names} "
            f"of {n}, which do not increase; the target needs at least 7 layers",
        )
    else:
        yield CheckResult("layers", True, f"it reads the inputs of layers {names} of the target's {n}")


def _notes(checkpoint: Checkpoint, target: HeadRequirements) -> Iterator[CheckResult]:
    if "rope" in checkpoint.facts:
        head_rope, target_rope = _rope(checkpoint.facts["rope"]), _rope(target.rope)
        comparison = "as the target's" if head_rope == target_rope else f"unlike the target's: {target_rope}"
        yield CheckResult("positions", None, f"{head_rope}, {comparison}")
    yield from (CheckResult("note", None, note) for note in checkpoint.notes)


def _rope(rope: Mapping[str, Any]) -> str:
    kind, base = rope.get("rope_type", "default"), rope.get("rope_theta", 10_000.0)
    factor = f" by {rope['factor']:g}" if "factor" in rope else ""
    return f"rotary with base {base:,.0f}" + ("" if kind == "default" else f", scaled ({kind}{factor})")


def other_embedding(checkpoint: Checkpoint, embedding: torch.Tensor, target: str) -> str:
    """Return an error message if trained heads contain an embedding that differs from their target's embedding.

    If the embeddings differ, the heads were trained for other weights. The message is empty if the embeddings agree, or
    if the heads contain no embedding.

    Args:
        checkpoint: heads whose sizes fit the target.
        embedding: embedding of the target, [V or more, D].
        target: name of the target.
    """
    import torch

    stored = checkpoint.tensor_names.get("embed.weight")
    if stored is None:
        return ""
    n = min(checkpoint.files.shapes[stored][0], len(embedding))
    rows = list(range(0, n, max(n // ROWS, 1)))[:ROWS]
    head_rows = checkpoint.files.rows(stored, rows).float()
    target_rows = embedding.detach()[torch.tensor(rows, device=embedding.device)].float().cpu()
    similarity = float(torch.cosine_similarity(head_rows, target_rows, dim=1).mean())
    if similarity >= ALIKE:
        return ""
    return (
        f"{checkpoint.name} ({checkpoint.layout}) contains a copy of the target's embedding that differs from "
        f"{target}'s (cosine {similarity:.2f}): the head was trained for other weights, so its drafts would be "
        f"rejected. Use the weights of "
        f"{checkpoint.verifier or 'the target that it was trained for'}."
    )
