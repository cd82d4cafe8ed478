"""Load draft models that share the target's embedding and LM head, each through one projection matrix.

Nine tenths of the weights of a small model with a large vocabulary are rows of the embedding and the LM head. These
rows can be computed from the target's rows. So the folder of such a draft model has two small matrices instead, and its
configuration names the target. Loading it builds an ordinary decoder, so that it works like any other model of its
kind:

    embedding [V, H] = E Aᵀ        LM head [V, H] = U Bᵀ        E, U: the target's [V, D];  A, B: [H, D]
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor
from transformers import LlamaForCausalLM

from workbench.core.errors import ModelError
from workbench.models.int8_checkpoint import read_folder, remove_storage_entry
from workbench.models.model_index import MODEL_INDEX
from workbench.models.names import folder_of
from workbench.models.tokenizer_source import tokenizer_source_of

ENTER, LEAVE = "borrowed.enter", "borrowed.leave"
"""Names of the two projection matrices in the weights of a draft model: A for the embedding, B for the LM head."""
ROWS = "borrowed_rows"
"""Key in a draft model's configuration for the width D of the rows of the target's embedding and LM head."""
ROUNDING = 0.01
"""Maximum relative error of a draft model's embedding and LM head rows that are computed from the target's rows;
float16 rounding stays below it."""
_EMBEDDING, _HEAD = "model.embed_tokens.weight", "lm_head.weight"


def shares_embeddings(config: Any) -> bool:
    """Return whether a model with this configuration uses its target's embedding and LM head."""
    return hasattr(config, ROWS)


def load_with_shared_embeddings(folder: Path, config: Any, dtype: torch.dtype) -> LlamaForCausalLM:
    """Load a draft model; compute its embedding and LM head from the target's embedding and LM head.

    Args:
        folder: folder of a draft model that `shares_embeddings`.
        config: configuration of the draft model.
        dtype: dtype of the loaded model.

    Raises:
        ModelError: the configuration names no target, or the target is not published, not on this machine, or has rows
            of another size.
    """
    owner = tokenizer_source_of(folder)
    if owner is None:
        raise ModelError(
            f"The draft model in {folder} shares a target's embedding and LM head, but its configuration does "
            f"not name the target.",
            f"Use the folder exactly as training wrote it; possible targets are {', '.join(MODEL_INDEX)}.",
        )
    weights = read_folder(folder)
    if ENTER not in weights or LEAVE not in weights:
        raise ModelError(
            f"The draft model in {folder} is incomplete: it has neither an embedding nor the matrices that "
            f"compute one from the target's embedding.",
            "Download the folder again.",
        )
    if (target_folder := folder_of(owner.target)) is None:
        raise ModelError(
            f"The draft model in {folder} uses the embedding of {owner.target}, which is not on this machine.",
            f"Download {owner.target} first.",
        )
    size = (config.hidden_size, getattr(config, ROWS))
    if weights[ENTER].shape != size or weights[LEAVE].shape != size:  # otherwise small matrices could yield huge rows
        raise ModelError(
            f"The draft model in {folder} has embedding matrices whose shape is not {size[0]} × {size[1]}.",
            "Download the folder again.",
        )
    target_rows = read_folder(target_folder, {_EMBEDDING, _HEAD})
    embedding, width = target_rows[_EMBEDDING], weights[ENTER].shape[1]
    if embedding.shape != (config.vocab_size, width):
        raise ModelError(
            f"The draft model in {folder} needs {config.vocab_size:,} embedding rows of width {width} from "
            f"{owner.target}, which has {embedding.shape[0]:,} rows of width {embedding.shape[1]}.",
            "Train the draft model again for this target: workbench train chat-drafter.",
        )
    model_class: Any = LlamaForCausalLM
    with torch.device("meta"):
        missing = model_class(config).state_dict().keys() - weights.keys() - {_EMBEDDING, _HEAD}
    if missing:
        raise ModelError(
            f"The draft model in {folder} is incomplete: weights such as {min(missing)} are missing.",
            "Download the folder again.",
        )
    weights = expand_rows(weights, embedding, target_rows.get(_HEAD, embedding))
    remove_storage_entry(config)
    return model_class.from_pretrained(None, config=config, state_dict=weights, dtype=dtype)


def expand_rows(
    weights: dict[str, Tensor], embedding: Float[Tensor, "V D"], head: Float[Tensor, "V D"]
) -> dict[str, Tensor]:
    """Return a draft model's weights with an embedding and an LM head in place of its two projection matrices.

    Both are computed in float32 from the target's embedding and LM head, the arguments `embedding` and `head`.
    """
    others = {name: weight for name, weight in weights.items() if name not in (ENTER, LEAVE)}
    return others | {_EMBEDDING: _through(embedding, weights[ENTER]), _HEAD: _through(head, weights[LEAVE])}


def factor_rows(
    weights: dict[str, Tensor], embedding: Float[Tensor, "V D"], head: Float[Tensor, "V D"]
) -> dict[str, Tensor]:
    """Replace a draft model's embedding and LM head by two matrices that compute them from the target's.

    This is the inverse of `expand_rows`. `embedding` and `head` are the target's embedding and LM head. Weights that
    already have the matrices are returned unchanged.

    Raises:
        ValueError: no such matrices reproduce the draft model's embedding or LM head.
    """
    if ENTER in weights:
        return weights
    result = {name: weight for name, weight in weights.items() if name not in (_EMBEDDING, _HEAD)}
    for name, matrix, target_rows in ((_EMBEDDING, ENTER, embedding), (_HEAD, LEAVE, head)):
        rows = weights.get(name)
        if rows is None or rows.shape[0] != target_rows.shape[0]:
            raise ValueError(f"it has no tensor {name} for the target's tokens")
        result[matrix] = torch.linalg.lstsq(target_rows.float(), rows.float()).solution.T.contiguous()
        if (_through(target_rows, result[matrix]) - rows).norm() > ROUNDING * rows.float().norm():
            raise ValueError("its embedding cannot be computed from the target's embedding")
    return result


def _through(rows: Float[Tensor, "V D"], matrix: Float[Tensor, "H D"]) -> Float[Tensor, "V H"]:
    return rows.float() @ matrix.float().T
