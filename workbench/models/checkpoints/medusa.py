"""Read checkpoints of Medusa: K stacks of residual blocks, each with its own LM head or with the target's LM head.

Layouts: FasterDecoding's `medusa_lm_head` ("0.0.linear.weight", "0.1.weight"), whose configuration is short and does
not always match the file, and vLLM's ("blocks.0.layers.0.weight", `token_map`). Medusa: Cai et al. 2024,
arXiv:2401.10774, §2.1.1.
"""

from __future__ import annotations

import re
from typing import Any

from workbench.core.errors import ModelError
from workbench.models.checkpoints.description import Checkpoint, TensorSpec, match_tensors, read_positive_int
from workbench.models.checkpoints.draft_vocabulary import token_map
from workbench.models.checkpoints.eagle import verifier_of
from workbench.models.checkpoints.files import CheckpointFiles

FASTERDECODING, VLLM = "Medusa (FasterDecoding)", "Medusa (vLLM)"
_FASTERDECODING_TENSOR = re.compile(r"(?P<prefix>medusa_head\.|)(?P<k>\d+)\.(?P<j>\d+)\.(linear\.)?(weight|bias)")
_BLOCK = re.compile(r"(?P<prefix>medusa_heads\.|)blocks\.(?P<k>\d+)\.layers\.(?P<j>\d+)\.weight")


def read_medusa(stored: CheckpointFiles) -> Checkpoint | None:
    """Return the description of Medusa heads; None if the files have another layout.

    Raises:
        ModelError: the files are damaged.
    """
    if any(_BLOCK.fullmatch(name) for name in stored.shapes):
        return _of_vllm(stored)
    if any(_FASTERDECODING_TENSOR.fullmatch(name) and ".linear." in name for name in stored.shapes):
        return _of_fasterdecoding(stored)
    return None


def _of_fasterdecoding(stored: CheckpointFiles) -> Checkpoint:
    config = stored.config
    matches = [match for name in stored.shapes if (match := _FASTERDECODING_TENSOR.fullmatch(name))]
    prefix = matches[0]["prefix"]
    blocks = [match for match in matches if ".linear." in match[0]]
    n_heads, n_layers = 1 + max(int(m["k"]) for m in blocks), 1 + max(int(m["j"]) for m in blocks)
    first = stored.shapes[blocks[0][0]]
    width = read_positive_int(stored, config, "hidden_size", default=first[0])
    heads = [f"{prefix}{k}.{n_layers}.weight" for k in range(n_heads)]
    lm_heads = [name for name in heads if name in stored.shapes]
    rows = stored.shapes[lm_heads[0]][0] if lm_heads else 0
    vocab_size = read_positive_int(stored, config, "vocab_size", default=rows or None)
    parts = [
        TensorSpec(f"{k}.{j}.{kind}", f"{prefix}{k}.{j}.linear.{kind}", (width, width)[: 2 - (kind == "bias")])
        for k in range(n_heads)
        for j in range(n_layers)
        for kind in ("weight", "bias")
    ]
    parts += [TensorSpec(f"vocabulary.{k}", name, (vocab_size, width)) for k, name in enumerate(heads) if lm_heads]
    notes = []
    if (config_heads := config.get("medusa_num_heads")) not in (None, n_heads):
        notes.append(
            f"its config.json states {config_heads} heads, but the weight file has {n_heads}, and all of these are used"
        )
    facts: dict[str, Any] = {"hidden_size": width, "vocab_size": vocab_size, "n_heads": n_heads, "n_layers": n_layers}
    tensor_names = match_tensors(stored, FASTERDECODING, parts)
    return Checkpoint(
        FASTERDECODING, "medusa", stored, facts, tensor_names, verifier=verifier_of(config), notes=tuple(notes)
    )


def _of_vllm(stored: CheckpointFiles) -> Checkpoint:
    config = stored.config
    blocks = [match for name in stored.shapes if (match := _BLOCK.fullmatch(name))]
    prefix = blocks[0]["prefix"]
    n_heads, n_layers = 1 + max(int(m["k"]) for m in blocks), 1 + max(int(m["j"]) for m in blocks)
    width, vocab_size = (
        read_positive_int(stored, config, "hidden_size"),
        read_positive_int(stored, config, "vocab_size"),
    )
    notes = ()
    if (config_heads := read_positive_int(stored, config, "num_heads", "medusa_num_heads", default=n_heads)) != n_heads:
        notes = (
            f"its config.json states {config_heads} heads, but the weight file has {n_heads}, and all of "
            f"these are used",
        )
    parts = [
        TensorSpec(f"{k}.{j}.{kind}", f"{prefix}blocks.{k}.layers.{j}.{kind}", shape, kind == "bias")
        for k in range(n_heads)
        for j in range(n_layers)
        for kind, shape in (("weight", (width, width)), ("bias", (width,)))
    ]
    heads = [f"{prefix}lm_heads.{k}.weight" for k in range(n_heads)]
    is_shared = bool(config.get("original_lm_head"))
    config_rows = read_positive_int(stored, config, "truncated_vocab_size", default=vocab_size)
    rows = config_rows
    if not is_shared:
        if heads[0] not in stored.shapes:
            raise ModelError(
                f"{stored.folder} has the layout {VLLM}, but lacks {heads[0]}.",
                "Download the checkpoint again, or set `original_lm_head` in its config.json to use the "
                "target's LM head.",
            )
        rows = stored.shapes[heads[0]][0]
        parts += [TensorSpec(f"vocabulary.{k}", name, (rows, width)) for k, name in enumerate(heads)]
    unread = ("token_map", "lm_head.weight", *(heads if is_shared else ()))
    tensor_names = match_tensors(stored, VLLM, parts, unread)
    draft_tokens, order = None, None
    if "token_map" in stored.shapes:
        draft_tokens, order = token_map(
            stored, "token_map", vocab_size, stored.shapes["token_map"][0] if is_shared else rows
        )
    elif min(rows, config_rows) != vocab_size:
        raise ModelError(
            f"The heads in {stored.folder} propose {min(rows, config_rows):,} of {vocab_size:,} tokens, but the "
            f"file lacks `token_map`, the list of the tokens' ids.",
            "Download the checkpoint again: without the list, the heads' outputs cannot be mapped to token ids.",
        )
    facts: dict[str, Any] = {"hidden_size": width, "vocab_size": vocab_size, "n_heads": n_heads, "n_layers": n_layers}
    if (accuracy := _accuracy(config.get("head_accuracy"), n_heads)) is not None:
        facts["accuracy"] = accuracy
    ignored = tuple(name for name in unread if name in stored.shapes and name != "token_map")
    return Checkpoint(
        VLLM, "medusa", stored, facts, tensor_names, draft_tokens, order, ignored, verifier_of(config), notes
    )


def _accuracy(said: Any, n_heads: int) -> list[list[float]] | None:
    """Return the accuracy of each Medusa head's tokens by rank, [heads, ranks], as stored in the configuration.

    None if it is missing or not valid.
    """
    rows = said if isinstance(said, list) and len(said) == n_heads else []
    is_valid = all(isinstance(row, list) and row and all(_is_share(x) for x in row) for row in rows)
    return rows if rows and is_valid else None


def _is_share(value: Any) -> bool:
    return type(value) in (int, float) and 0 <= value <= 1
