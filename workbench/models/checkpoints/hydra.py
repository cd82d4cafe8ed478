"""Read checkpoints of Hydra and Hydra++: heads like Medusa's that also read the embeddings of tokens drafted before.

Layout: zankner/Hydra's `hydra_lm_head` ("hydra_mlp.0.0.linear.weight"). Hydra++ has a decoder layer over the features,
and dropout layers between its blocks; because of these, the numbers in its tensor names are larger. Hydra: Ankner et
al. 2024, arXiv:2402.05109.
"""

from __future__ import annotations

import re
from typing import Any

from workbench.core.errors import ModelError
from workbench.models.checkpoints.description import Checkpoint, TensorSpec, match_tensors, read_positive_int
from workbench.models.checkpoints.eagle import IN_LAYER, layer_shapes, verifier_of
from workbench.models.checkpoints.files import CheckpointFiles

HYDRA, HYDRA_PLUS = "Hydra", "Hydra++"
_BLOCK = re.compile(r"hydra_mlp\.(\d+)\.(\d+)\.linear\.weight")
_PREFIX = "prefix_embeding_layer."


def read_hydra(stored: CheckpointFiles) -> Checkpoint | None:
    """Return the description of Hydra heads; None if the files have another layout.

    Raises:
        ModelError: the files are damaged, or the heads are of a kind that is not supported.
    """
    config = stored.config
    blocks = [match for name in stored.shapes if (match := _BLOCK.fullmatch(name))]
    if not blocks and "hydra_head_arch" not in config:
        return None
    if (kind := config.get("hydra_head_arch", "mlp")) not in ("mlp", "prefix-mlp") or not blocks:
        raise ModelError(
            f"{stored.folder} has Hydra heads of the unsupported kind {kind!r:.30}.",
            "Heads of kind mlp and prefix-mlp are supported.",
        )
    is_plus = kind == "prefix-mlp"
    step = 2 if is_plus else 1  # in Hydra++, each linear layer follows a dropout
    n_heads, n_layers = 1 + max(int(m[1]) for m in blocks), 1 + max(int(m[2]) for m in blocks) // step
    width = read_positive_int(stored, config, "hidden_size", default=stored.shapes[blocks[0][0]][0])
    rows = stored.shapes.get(f"hydra_lm_head.0{'.1' if is_plus else ''}.weight", (0,))[0]
    vocab_size = read_positive_int(stored, config, "vocab_size", default=rows or None)
    grounded = bool(config.get("grounded_heads"))
    parts: list[TensorSpec] = []
    for k in range(n_heads):
        for j in range(n_layers):
            in_width = (k + 2) * width if grounded and j == 0 else width
            for name in ("linear", "res_connection") if in_width > width else ("linear",):
                module_name = f"hydra_mlp.{k}.{step * j + step - 1}.{name}"
                parts += [TensorSpec(f"{k}.{j}.{name}.weight", f"{module_name}.weight", (width, in_width))]
                parts += [TensorSpec(f"{k}.{j}.{name}.bias", f"{module_name}.bias", (width,))]
        module_name = f"hydra_lm_head.{k}{'.1' if is_plus else ''}"
        parts.append(TensorSpec(f"vocabulary.{k}", f"{module_name}.weight", (vocab_size, width)))
        parts.append(TensorSpec(f"vocabulary_bias.{k}", f"{module_name}.bias", (vocab_size,), optional=True))
    unread = ["input_embed_fn.weight"]
    if is_plus:
        parts += _prefix(stored, width)
        unread += [f"{_PREFIX}embed_tokens.weight", f"{_PREFIX}layers.0.self_attn.rotary_emb.inv_freq"]
    layout = HYDRA_PLUS if is_plus else HYDRA
    tensor_names = match_tensors(stored, layout, parts, unread)
    facts: dict[str, Any] = {
        "hidden_size": width, "vocab_size": vocab_size, "n_heads": n_heads, "n_layers": n_layers,
        "grounded": grounded, "prefix": is_plus,
    }  # fmt: skip
    ignored = tuple(name for name in unread if name in stored.shapes)
    return Checkpoint(layout, "hydra", stored, facts, tensor_names, unread=ignored, verifier=verifier_of(config))


def _prefix(stored: CheckpointFiles, width: int) -> list[TensorSpec]:
    """Return the names and shapes of the tensors of Hydra++'s decoder layer over the features.

    The checkpoint's configuration lacks the layer's sizes (they equal the target's), so the stored tensors define them.
    """
    layer_prefix = f"{_PREFIX}layers.0."
    keys = stored.shapes.get(f"{layer_prefix}self_attn.k_proj.weight", (width, width))[0]
    ffn = stored.shapes.get(f"{layer_prefix}mlp.gate_proj.weight", (width, width))[0]
    sizes = {"hidden_size": width, "ffn": ffn, "heads": width, "kv_heads": keys, "head_size": 1, "vocab_size": 1}
    shapes = layer_shapes(sizes, width)
    weights = {name: stored_name for name, stored_name in IN_LAYER.items() if not name.endswith(".bias")}
    parts = [
        TensorSpec(f"prefix.{name}", layer_prefix + stored_name, shapes[name]) for name, stored_name in weights.items()
    ]
    return [*parts, TensorSpec("prefix.after.weight", f"{_PREFIX}norm.weight", (width,))]
