"""What a checkpoint of trained heads holds, whoever trained it: facts, and tensors by what they are."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from workbench.core.errors import ModelError
from workbench.models.checkpoints.files import Stored

if TYPE_CHECKING:
    from torch import Tensor

ROPES = ("default", "linear", "llama3", "yarn")
"""Kinds of rotary positions that do not depend on the length of the text."""
COMPUTED = "rotary_emb.inv_freq"
"""Ends the name of a buffer that older programs kept: it follows from the configuration."""


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """Heads that somebody trained.

    Attributes:
        layout: who writes checkpoints so, "EAGLE (SafeAILab)".
        architecture: the kind of heads that they are here: "eagle", "eagle-3", "medusa", "hydra".
        stored: its files.
        facts: what the heads are, in plain numbers. All have `hidden_size` and `vocab_size` (the target's). `eagle` and
            `eagle-3`: `heads`, `kv_heads`, `head_size`, `ffn`, `eps`, `rope` (as transformers' `rope_parameters`).
            `eagle`: `norms` (of `workbench.methods.drafters.feature_net.NORMS`). `eagle-3`: `taps` (layers whose
            incoming stream is read; none: 2, L/2 and L - 3), `target_hidden_size`, `norm_before_residual`,
            `norm_before_fc`, `fc_norm`, `norm_output`. `medusa` and `hydra`: `n_heads`, `n_layers`; `hydra`:
            `grounded` and `prefix` (a decoder layer over the features, as Hydra++ has it).
        parts: where each tensor is: its name here → its name in the file.
        kept: token ids that the heads can propose, increasing; None: all of the target's.
        order: the place of each of them among the heads' own; None: the same.
        unread: tensors that are not needed here.
        verifier: the model that it says it was trained for; "": it names none.
    """

    layout: str
    architecture: str
    stored: Stored
    facts: Mapping[str, Any]
    parts: Mapping[str, str]
    kept: tuple[int, ...] | None = None
    order: tuple[int, ...] | None = None
    unread: tuple[str, ...] = ()
    verifier: str = ""
    says: tuple[str, ...] = field(default=())
    """What else is worth knowing of it, a sentence each."""

    @property
    def name(self) -> str:
        """Of its folder."""
        return self.stored.folder.resolve().name

    @property
    def n_parameters(self) -> int:
        """Numbers in the tensors that are read."""
        total = 0
        for name in self.parts.values():
            n = 1
            for size in self.stored.shapes[name]:
                n *= size
            total += n
        return total

    def read(self) -> dict[str, Tensor]:
        """The tensors, by their names here, without the target's embedding; rows of LM heads in the order of `kept`.

        Raises:
            ModelError: one cannot be read.
        """
        wanted = {name: stored for name, stored in self.parts.items() if name != "embed.weight"}
        found = self.stored.tensors(wanted.values())
        read = {name: found[stored] for name, stored in wanted.items()}
        if self.order is not None:
            for name in read:
                if name.startswith("vocabulary"):
                    read[name] = read[name][list(self.order)]
        return read


@dataclass(frozen=True, slots=True)
class Part:
    """A tensor that a layout has.

    Attributes:
        name: here.
        stored: in the file.
        shape: sizes.
        optional: whether it may be missing.
    """

    name: str
    stored: str
    shape: tuple[int, ...]
    optional: bool = False


def matched(stored: Stored, layout: str, wanted: Iterable[Part], unread: Iterable[str] = ()) -> dict[str, str]:
    """Where each of the wanted tensors is; all that lies there must be known.

    Args:
        stored: the files.
        layout: for messages.
        wanted: the tensors.
        unread: those that may be there besides.

    Raises:
        ModelError: tensors are missing, unknown or of other sizes: named, with the sizes that would fit.
    """
    parts = list(wanted)
    missing = [part.stored for part in parts if part.stored not in stored.shapes and not part.optional]
    if missing:
        raise ModelError(
            f"{stored.folder} is of the layout {layout}, but lacks {_some(missing)}.",
            "Fetch it again, or convert it again: it needs all of these tensors.",
        )
    for part in parts:
        found = stored.shapes.get(part.stored)
        if found is not None and found != part.shape:
            raise ModelError(
                f"{part.stored} in {stored.folder} is {_times(found)}; by its configuration it would be "
                f"{_times(part.shape)}.",
                "Give it the config.json that it was trained with.",
            )
    known = {part.stored for part in parts} | set(unread)
    unknown = [name for name in sorted(stored.shapes) if name not in known and not name.endswith(COMPUTED)]
    if unknown:
        raise ModelError(
            f"{stored.folder} is of the layout {layout}, but also has the unknown {_some(unknown)}: drafts without "
            "them would be wrong.",
            "Use heads of the published layout.",
        )
    return {part.name: part.stored for part in parts if part.stored in stored.shapes}


def number(stored: Stored, config: Mapping[str, Any], *names: str, default: int | None = None) -> int:
    """A whole number above 0 that a configuration gives under one of these names.

    Raises:
        ModelError: it does not, and there is no default.
    """
    value = next((config[name] for name in names if config.get(name) is not None), default)
    if type(value) is not int or value < 1:
        said = "does not say" if value is None else f"says {value!r:.40} for"
        raise ModelError(
            f"The config.json in {stored.folder} {said} `{names[0]}`, which must be a whole number above 0.",
            "Give it the config.json that it was trained with.",
        )
    return value


def rope_of(config: Mapping[str, Any]) -> dict[str, Any]:
    """Rotary positions of a configuration, old or new, as transformers' `rope_parameters`; {}: plain, base 10,000."""
    said = config.get("rope_parameters") or {}
    old = config.get("rope_scaling") or {}
    rope = {"rope_theta": config.get("rope_theta", 10_000.0)} | {k: v for k, v in old.items() if k != "type"} | said
    rope["rope_type"] = said.get("rope_type") or old.get("rope_type") or old.get("type") or "default"
    if rope["rope_type"] == "yarn":
        rope.setdefault("original_max_position_embeddings", config.get("max_position_embeddings", 2048))
    rope["rope_theta"] = float(rope["rope_theta"])
    plain = rope["rope_type"] == "default"
    return {} if plain and rope["rope_theta"] == 10_000.0 else rope


def tokens_of(stored: Stored, ids: Iterable[int], what: str, vocab_size: int) -> tuple[list[int], list[int] | None]:
    """A draft vocabulary: its tokens increasing, and the places of these among the heads' own (None: the same).

    Raises:
        ModelError: it names a token twice or one that the target does not have.
    """
    ids = list(ids)
    for place, token in enumerate(ids):
        if not 0 <= token < vocab_size:
            raise ModelError(
                f"`{what}` in {stored.folder} has token {token:,} at index {place:,}; the vocabulary is 0 to "
                f"{vocab_size - 1:,}.",
                "Fetch it again: the map belongs to other heads, or is truncated.",
            )
    order = sorted(range(len(ids)), key=ids.__getitem__)
    found = [ids[i] for i in order]
    twice = next((a for a, b in pairwise(found) if a == b), None)
    if twice is not None:
        raise ModelError(f"`{what}` in {stored.folder} has token {twice:,} twice.", "Fetch it again.")
    return found, None if order == list(range(len(ids))) else order


def _times(shape: tuple[int, ...]) -> str:
    return " × ".join(f"{size:,}" for size in shape) or "one number"


def _some(names: list[str]) -> str:
    shown = ", ".join(names[:4])
    return shown if len(names) <= 4 else f"{shown} and {len(names) - 4} more"
