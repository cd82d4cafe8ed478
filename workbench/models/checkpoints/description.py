"""Describe a checkpoint of trained heads independently of its layout: configuration values, and tensors by role."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from workbench.core.errors import ModelError
from workbench.models.checkpoints.files import CheckpointFiles

if TYPE_CHECKING:
    from torch import Tensor

ROPES = ("default", "linear", "llama3", "yarn")
"""RoPE types whose cosines and sines do not depend on the length of the sequence."""
COMPUTED = "rotary_emb.inv_freq"
"""Suffix of the name of a RoPE buffer that older programs stored in checkpoints. The buffer is ignored, because it can
be computed from the configuration."""


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """Description of a checkpoint of trained heads in a known layout.

    Attributes:
        layout: name of the layout and of the project that writes it, such as "EAGLE (SafeAILab)".
        architecture: kind of heads in this workbench: "eagle", "eagle-3", "medusa", "hydra".
        files: files of the checkpoint.
        facts: configuration values by name. All kinds: `hidden_size` and `vocab_size` of the target. `eagle` and
            `eagle-3`: `heads`, `kv_heads`, `head_size`, `ffn`, `eps`, `rope` (as transformers' `rope_parameters`).
            `eagle`: `norms` (of `workbench.methods.common.feature_net.NORMS`). `eagle-3`: `taps` (layers of the target
            whose input, the residual stream, is read; empty: 2, L/2 and L - 3), `target_hidden_size`,
            `norm_before_residual`, `norm_before_fc`, `fc_norm`, `norm_output`. `medusa` and `hydra`: `n_heads`,
            `n_layers`. `hydra`: `grounded` and `prefix` (a decoder layer over the features, as in Hydra++).
        tensor_names: name of each tensor in this workbench → name in the file.
        draft_tokens: ids of the tokens that the heads can propose, in increasing order; None: all of the target's
            tokens.
        order: for each entry of `draft_tokens`, its row in the LM heads of the checkpoint; None: the rows are in the
            order of `draft_tokens`.
        unread: names of the tensors in the files that the workbench does not use.
        verifier: name of the target according to the configuration; empty if the configuration names none.
    """

    layout: str
    architecture: str
    files: CheckpointFiles
    facts: Mapping[str, Any]
    tensor_names: Mapping[str, str]
    draft_tokens: tuple[int, ...] | None = None
    order: tuple[int, ...] | None = None
    unread: tuple[str, ...] = ()
    verifier: str = ""
    notes: tuple[str, ...] = field(default=())
    """Further notes for users about the checkpoint of trained heads, one sentence each."""

    @property
    def name(self) -> str:
        """Return the name of the folder of a checkpoint of trained heads."""
        return self.files.folder.resolve().name

    @property
    def n_parameters(self) -> int:
        """Return the number of parameters in those tensors of the checkpoint that the workbench reads."""
        total = 0
        for name in self.tensor_names.values():
            n = 1
            for size in self.files.shapes[name]:
                n *= size
            total += n
        return total

    def read(self) -> dict[str, Tensor]:
        """Read the checkpoint's tensors, except a copy of the target's embedding; return them by name.

        The names are those in this workbench.

        Rows of LM heads are in the order of `draft_tokens`.

        Raises:
            ModelError: a tensor cannot be read.
        """
        stored_names = {name: stored for name, stored in self.tensor_names.items() if name != "embed.weight"}
        tensors = self.files.tensors(stored_names.values())
        weights = {name: tensors[stored] for name, stored in stored_names.items()}
        if self.order is not None:
            for name in weights:
                if name.startswith("vocabulary"):
                    weights[name] = weights[name][list(self.order)]
        return weights


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """Tensor that a layout of checkpoints contains: names and shape.

    Attributes:
        name: name in this workbench.
        stored_name: name in the file.
        shape: expected shape.
        optional: whether the tensor may be missing.
    """

    name: str
    stored_name: str
    shape: tuple[int, ...]
    optional: bool = False


def match_tensors(
    stored: CheckpointFiles, layout: str, specs: Iterable[TensorSpec], unread: Iterable[str] = ()
) -> dict[str, str]:
    """Return the tensors of a checkpoint that a layout describes: name in this workbench → name in the files.

    Args:
        stored: files of the checkpoint.
        layout: name of the layout, for messages.
        specs: tensors of the layout.
        unread: names of further tensors that the files may have; they are ignored.

    Raises:
        ModelError: tensors are missing, unknown or of another shape; the message names them and the expected shape.
    """
    parts = list(specs)
    missing = [part.stored_name for part in parts if part.stored_name not in stored.shapes and not part.optional]
    if missing:
        raise ModelError(
            f"The checkpoint {stored.folder} has the layout {layout}, but lacks the tensors {_some(missing)}.",
            "Download or convert the checkpoint again: all the missing tensors are needed.",
        )
    for part in parts:
        shape = stored.shapes.get(part.stored_name)
        if shape is not None and shape != part.shape:
            raise ModelError(
                f"The tensor {part.stored_name} in {stored.folder} has the shape {_times(shape)}; its "
                f"configuration requires {_times(part.shape)}.",
                "Use the config.json that the heads were trained with.",
            )
    expected = {part.stored_name for part in parts} | set(unread)
    unknown = [name for name in sorted(stored.shapes) if name not in expected and not name.endswith(COMPUTED)]
    if unknown:
        raise ModelError(
            f"The checkpoint {stored.folder} has the layout {layout}, but also unknown tensors "
            f"({_some(unknown)}); ignoring these tensors would make the drafts wrong.",
            "Use heads whose tensors follow the published layout.",
        )
    return {part.name: part.stored_name for part in parts if part.stored_name in stored.shapes}


def read_positive_int(
    stored: CheckpointFiles, config: Mapping[str, Any], *names: str, default: int | None = None
) -> int:
    """Return a positive integer from a checkpoint's configuration: the value of the first key that is present.

    Args:
        stored: files of the checkpoint, for error messages.
        config: the configuration.
        *names: keys to try.
        default: value if no key is present; None: there is no default.

    Raises:
        ModelError: the value is not a positive integer, or no key is present and there is no default.
    """
    value = next((config[name] for name in names if config.get(name) is not None), default)
    if type(value) is not int or value < 1:
        phrase = "lacks" if value is None else f"has {value!r:.40} for"
        raise ModelError(
            f"The config.json in {stored.folder} {phrase} `{names[0]}`, which must be a whole number above 0.",
            "Use the config.json that the heads were trained with.",
        )
    return value


def rope_of(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return a configuration's RoPE settings, in the old or new format, as transformers' `rope_parameters`.

    The result is {} for the default type with base 10,000.
    """
    parameters = config.get("rope_parameters") or {}
    scaling = config.get("rope_scaling") or {}
    rope = (
        {"rope_theta": config.get("rope_theta", 10_000.0)}
        | {k: v for k, v in scaling.items() if k != "type"}
        | parameters
    )
    rope["rope_type"] = parameters.get("rope_type") or scaling.get("rope_type") or scaling.get("type") or "default"
    if rope["rope_type"] == "yarn":
        rope.setdefault("original_max_position_embeddings", config.get("max_position_embeddings", 2048))
    rope["rope_theta"] = float(rope["rope_theta"])
    is_default = rope["rope_type"] == "default"
    return {} if is_default and rope["rope_theta"] == 10_000.0 else rope


def sort_draft_tokens(
    stored: CheckpointFiles, ids: Iterable[int], what: str, vocab_size: int
) -> tuple[list[int], list[int] | None]:
    """Check the token ids of a draft vocabulary, and return them in increasing order.

    Args:
        stored: files of the checkpoint, for error messages.
        ids: token ids in the order of the checkpoint's LM head.
        what: name of the tensor with the ids, for error messages.
        vocab_size: number of tokens of the target.

    Returns:
        Token ids in increasing order; and the index of each token in `ids`, None if `ids` is already sorted.

    Raises:
        ModelError: a token occurs twice or is not in the target's vocabulary.
    """
    ids = list(ids)
    for index, token in enumerate(ids):
        if not 0 <= token < vocab_size:
            raise ModelError(
                f"`{what}` in {stored.folder} has token {token:,} at index {index:,}; valid ids are 0 to "
                f"{vocab_size - 1:,}.",
                "Download the checkpoint again: the map of token ids belongs to other heads or is truncated.",
            )
    order = sorted(range(len(ids)), key=ids.__getitem__)
    tokens = [ids[i] for i in order]
    duplicate = next((a for a, b in pairwise(tokens) if a == b), None)
    if duplicate is not None:
        raise ModelError(
            f"`{what}` in {stored.folder} has token {duplicate:,} twice.", "Download the checkpoint again."
        )
    return tokens, None if order == list(range(len(ids))) else order


def _times(shape: tuple[int, ...]) -> str:
    return " × ".join(f"{size:,}" for size in shape) or "one number"


def _some(names: list[str]) -> str:
    text = ", ".join(names[:4])
    return text if len(names) <= 4 else f"{text} and {len(names) - 4} more"
