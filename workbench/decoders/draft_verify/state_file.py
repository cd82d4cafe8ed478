"""File format of a drafter's state: safetensors with a header that names drafter, tokenizer and target.

The files contain no code. A file is refused if its header does not fit the run, its checksum differs, or it is too
large.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from safetensors.numpy import load, save

from workbench.core.errors import CapacityError, ModelError, TokenizerMismatchError
from workbench.core.panics import convert_panics
from workbench.decoders.draft_verify.inspectable_state import BROKEN, MOST_BYTES, Arrays
from workbench.engine.datastore import tokenizer_hash
from workbench.models.loading import Models

FORMAT, VERSION = "workbench-drafter-state", "1"
HEAD_BYTES = 64 << 10
SAME = "Load the file in a run with that target and drafter, or save the state of this run."


@dataclass(frozen=True, slots=True)
class StateFile:
    """Contents of a valid file with a drafter's state.

    Attributes:
        kind: kind of the drafter's state, as from `kind_of`.
        tokenizer: `tokenizer_hash` of the tokenizer of the target with which the state was saved.
        target: name of that target.
        arrays: the state's arrays, by name.
    """

    kind: str
    tokenizer: str
    target: str
    arrays: Arrays

    def check(self, kind: str, models: Models) -> None:
        """Refuse a saved state of another drafter, tokenizer or target.

        Args:
            kind: kind of state that the drafter expects.
            models: models with the target for which the drafter drafts.

        Raises:
            TokenizerMismatchError: the state was saved with another tokenizer, or for another target.
            ModelError: the state was saved by another drafter.
        """
        if self.kind != kind:
            raise ModelError(
                f"This state file belongs to the drafter {self.kind}, but the run drafts with {kind}.", SAME
            )
        if self.tokenizer != hash_of(models):
            raise TokenizerMismatchError(
                f"This state file was saved with the tokenizer of {self.target or 'another model'}: its token ids "
                f"stand for other tokens in {models.target_name or 'this target'}.",
                SAME,
            )
        if self.target != models.target_name:
            raise TokenizerMismatchError(
                f"This state file was saved for {self.target}, and {models.target_name} continues the same text "
                f"differently.",
                SAME,
            )


def kind_of(memory: Any) -> str:
    """Return the kind of a drafter's state: its key (`Drafter.state_key`), or the first element of a tuple key."""
    return str(memory[0] if isinstance(memory, tuple) else memory)


def hash_of(models: Models) -> str:
    """Return the hash of a target's tokenizer (`tokenizer_hash`), computed once."""
    key = "tokenizer hash"
    if key not in models.shared:
        models.shared[key] = tokenizer_hash(models.tokenizer)
    return models.shared[key]


def to_bytes(kind: str, arrays: Arrays, models: Models) -> bytes:
    """Return the bytes of a file with a drafter's state.

    Raises:
        CapacityError: the file would be larger than `MOST_BYTES`.
    """
    contiguous = {name: np.ascontiguousarray(array) for name, array in arrays.items()}
    head = {
        "format": FORMAT, "version": VERSION, "kind": kind, "tokenizer": hash_of(models), "target": models.target_name,
        "sha256": _sum_of(contiguous),
    }  # fmt: skip
    data = save(contiguous, head)
    if len(data) > MOST_BYTES:
        raise CapacityError(
            f"The drafter's state takes {len(data) >> 20} MiB, more than the limit of {MOST_BYTES >> 20} MiB."
        )
    return data


def from_bytes(data: bytes) -> StateFile:
    """Parse the bytes of a file with a drafter's state.

    Raises:
        CapacityError: the file is larger than `MOST_BYTES`.
        ModelError: the file has another format or version, is truncated, or its checksum differs.
    """
    if len(data) > MOST_BYTES:
        raise CapacityError(
            f"The file has more than {MOST_BYTES >> 20} MiB, the size limit of a drafter's state.", BROKEN
        )
    head = _head(data)
    if (head.get("format"), head.get("version")) != (FORMAT, VERSION):
        raise ModelError("The file's header names no drafter state in the format of this version.", BROKEN)
    try:
        with convert_panics():
            arrays = load(data)
    except Exception:
        raise ModelError("The state file is damaged: it is truncated, or not a safetensors file.", BROKEN) from None
    if head.get("sha256") != _sum_of(arrays):
        raise ModelError("The state file is damaged: its contents do not match its checksum.", BROKEN)
    return StateFile(head.get("kind", ""), head.get("tokenizer", ""), head.get("target", ""), arrays)


def _head(data: bytes) -> Mapping[str, str]:
    """Return the metadata in a safetensors header, whose first eight bytes are the length of the JSON after them."""
    n = int.from_bytes(data[:8], "little")
    try:
        if not 2 <= n <= min(HEAD_BYTES, len(data) - 8):
            raise ValueError
        metadata = json.loads(data[8 : 8 + n]).get("__metadata__", {})
        return {str(name): str(value) for name, value in metadata.items()}
    except (ValueError, AttributeError, RecursionError):
        raise ModelError(
            "The file contains no drafter state: it is not a safetensors file, or is truncated.", BROKEN
        ) from None


def _sum_of(arrays: Arrays) -> str:
    digest = hashlib.sha256()
    for name in sorted(arrays):
        array = arrays[name]
        digest.update(f"{name} {array.dtype.str} {array.shape}\n".encode())
        digest.update(array.tobytes())
    return digest.hexdigest()
