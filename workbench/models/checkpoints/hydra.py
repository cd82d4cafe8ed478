"""Hydra and Hydra++: stacks like Medusa's that also read the embeddings of the tokens drafted before them.

Layout: zankner/Hydra's `hydra_lm_head` ("hydra_mlp.0.0.linear.weight"); Hydra++ has dropout between its blocks, which
counts in the names, and a decoder layer over the features. Hydra: Ankner et al. 2024, arXiv:2402.05109.
"""

from __future__ import annotations

import re
from typing import Any

from workbench.core.errors import ModelError
from workbench.models.checkpoints.description import Checkpoint, Part, matched, number
from workbench.models.checkpoints.eagle import IN_LAYER, layer_shapes, verifier_of
from workbench.models.checkpoints.files import Stored

HYDRA, HYDRA_PLUS = "Hydra", "Hydra++"
_BLOCK = re.compile(r"hydra_mlp\.(\d+)\.(\d+)\.linear\.weight")
_PREFIX = "prefix_embeding_layer."


def read_hydra(stored: Stored) -> Checkpoint | None:
    """The heads, where a folder holds such ones.

    Raises:
        ModelError: they are damaged, or of a kind that was never published.
    """
    config = stored.config
    blocks = [match for name in stored.shapes if (match := _BLOCK.fullmatch(name))]
    if not blocks and "hydra_head_arch" not in config:
        return None
    if (kind := config.get("hydra_head_arch", "mlp")) not in ("mlp", "prefix-mlp") or not blocks:
        raise ModelError(
            f"{stored.folder} holds heads of Hydra of the kind {kind!r:.30}.",
            "Heads of kind mlp and prefix-mlp are supported.",
        )
    plus = kind == "prefix-mlp"
    step = 2 if plus else 1  # behind each dropout
    n_heads, n_layers = 1 + max(int(m[1]) for m in blocks), 1 + max(int(m[2]) for m in blocks) // step
    width = number(stored, config, "hidden_size", default=stored.shapes[blocks[0][0]][0])
    rows = stored.shapes.get(f"hydra_lm_head.0{'.1' if plus else ''}.weight", (0,))[0]
    vocab_size = number(stored, config, "vocab_size", default=rows or None)
    grounded = bool(config.get("grounded_heads"))
    parts: list[Part] = []
    for k in range(n_heads):
        for j in range(n_layers):
            reads = (k + 2) * width if grounded and j == 0 else width
            for name in ("linear", "res_connection") if reads > width else ("linear",):
                at = f"hydra_mlp.{k}.{step * j + step - 1}.{name}"
                parts += [Part(f"{k}.{j}.{name}.weight", f"{at}.weight", (width, reads))]
                parts += [Part(f"{k}.{j}.{name}.bias", f"{at}.bias", (width,))]
        at = f"hydra_lm_head.{k}{'.1' if plus else ''}"
        parts.append(Part(f"vocabulary.{k}", f"{at}.weight", (vocab_size, width)))
        parts.append(Part(f"vocabulary_bias.{k}", f"{at}.bias", (vocab_size,), optional=True))
    unread = ["input_embed_fn.weight"]
    if plus:
        parts += _prefix(stored, width)
        unread += [f"{_PREFIX}embed_tokens.weight", f"{_PREFIX}layers.0.self_attn.rotary_emb.inv_freq"]
    layout = HYDRA_PLUS if plus else HYDRA
    where = matched(stored, layout, parts, unread)
    facts: dict[str, Any] = {
        "hidden_size": width, "vocab_size": vocab_size, "n_heads": n_heads, "n_layers": n_layers,
        "grounded": grounded, "prefix": plus,
    }  # fmt: skip
    there = tuple(name for name in unread if name in stored.shapes)
    return Checkpoint(layout, "hydra", stored, facts, where, unread=there, verifier=verifier_of(config))


def _prefix(stored: Stored, width: int) -> list[Part]:
    """The decoder layer over the features; its configuration is the target's, so sizes are those of the tensors."""
    at = f"{_PREFIX}layers.0."
    keys = stored.shapes.get(f"{at}self_attn.k_proj.weight", (width, width))[0]
    ffn = stored.shapes.get(f"{at}mlp.gate_proj.weight", (width, width))[0]
    sizes = {"hidden_size": width, "ffn": ffn, "heads": width, "kv_heads": keys, "head_size": 1, "vocab_size": 1}
    shapes = layer_shapes(sizes, width)
    inside = {name: inside for name, inside in IN_LAYER.items() if not name.endswith(".bias")}
    parts = [Part(f"prefix.{name}", at + stored_as, shapes[name]) for name, stored_as in inside.items()]
    return [*parts, Part("prefix.after.weight", f"{_PREFIX}norm.weight", (width,))]
