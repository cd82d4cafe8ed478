"""Read checkpoints of EAGLE-3: a decoder layer that reads features of three target layers, and a reduced LM head.

The input of the decoder layer is twice as wide as the hidden states. The LM head has the rows of a draft vocabulary.

Layouts: SafeAILab's `eagle/model/cnets.py`, which SpecForge's `LlamaForCausalLMEagle3` shares (`midlayer.…`), and
vllm-project/speculators' type `eagle3` (`layers.0.…`). EAGLE-3: Li et al. 2025, arXiv:2503.01840.
"""

from __future__ import annotations

from typing import Any

from workbench.core.errors import ModelError
from workbench.models.checkpoints.description import Checkpoint, TensorSpec, match_tensors, read_positive_int
from workbench.models.checkpoints.draft_vocabulary import MAPS, draft_vocabulary
from workbench.models.checkpoints.eagle import IN_LAYER, layer_facts, layer_shapes, verifier_of
from workbench.models.checkpoints.files import CheckpointFiles

SAFEAILAB, SPECFORGE, SPECULATORS = "EAGLE-3 (SafeAILab)", "EAGLE-3 (SpecForge)", "speculators (eagle3)"
INSIDE = {name: inside for name, inside in IN_LAYER.items() if name != "before.weight"} | {
    "norm_embed.weight": "input_layernorm.weight", "norm_feature.weight": "hidden_norm.weight",
    "q_norm.weight": "self_attn.q_norm.weight", "k_norm.weight": "self_attn.k_norm.weight",
}  # fmt: skip
"""Names of the tensors of EAGLE-3's decoder layer: name in this workbench → name in the file after the layer's
prefix."""
OPTIONAL = {"embed.weight", "q.bias", "k.bias", "v.bias", "q_norm.weight", "k_norm.weight"}
TAPS = 3
"""Number of target layers whose hidden states EAGLE-3 heads read if their configuration lists no layers."""


def read_eagle3(stored: CheckpointFiles) -> Checkpoint | None:
    """Return the description of EAGLE-3 heads; None if the files have another layout.

    Raises:
        ModelError: the files are damaged, or the heads are of a kind that is not supported.
    """
    config = stored.config
    layout = _layout(stored)
    if layout is None:
        return None
    is_speculators = layout == SPECULATORS
    layer = config.get("transformer_layer_config") if is_speculators else config
    if not isinstance(layer, dict):
        raise ModelError(
            f"The config.json in {stored.folder} has no `transformer_layer_config`.", "Download the checkpoint again."
        )
    facts = layer_facts(stored, layer)
    width, head_size = facts["hidden_size"], facts["head_size"]
    target = read_positive_int(stored, config, "target_hidden_size", default=width)
    taps = captured_layers_of(stored)
    n_taps = len(taps) or TAPS
    n_proposed = stored.shapes.get("lm_head.weight", (facts["vocab_size"],))[0]
    draft_size = config.get("draft_vocab_size") or config.get("truncated_vocab_size")
    if draft_size is not None and draft_size != n_proposed:
        raise ModelError(
            f"The config.json in {stored.folder} has a draft vocabulary of {draft_size:,} tokens, but the LM head has "
            f"{n_proposed:,}.",
            "Use the config.json that the heads were trained with.",
        )
    if n_proposed != facts["vocab_size"] and "d2t" not in stored.shapes:
        raise ModelError(
            f"The heads in {stored.folder} propose {n_proposed:,} of {facts['vocab_size']:,} tokens, but the file "
            "lacks `d2t`, the map to the target's token ids.",
            "Download the checkpoint again: without the map, the heads' outputs cannot be mapped to token ids.",
        )
    shapes = layer_shapes(facts, 2 * width) | {
        "fuse.weight": (width, n_taps * target),
        "q_norm.weight": (head_size,), "k_norm.weight": (head_size,),
        "vocabulary.weight": (n_proposed, width), "norm_features.weight": (n_taps * target,),
    }  # fmt: skip
    prefix = "midlayer." if any(name.startswith("midlayer.") for name in stored.shapes) else "layers.0."
    names = {
        "embed.weight": "embed_tokens.weight", "fuse.weight": "fc.weight", "after.weight": "norm.weight",
        "vocabulary.weight": "lm_head.weight",
    } | {name: prefix + inside for name, inside in INSIDE.items()}  # fmt: skip
    parts = [TensorSpec(name, inside, shapes[name], name in OPTIONAL) for name, inside in names.items()]
    if config.get("norm_before_fc"):
        parts.append(TensorSpec("norm_features.weight", "input_norm.weight", shapes["norm_features.weight"]))
    if config.get("fc_norm"):
        parts += [TensorSpec(f"norm_tap.{i}.weight", f"fc_norm.{i}.weight", (target,)) for i in range(n_taps)]
    unread = ("d2t", "t2d", "verifier_norm.weight", "verifier_lm_head.weight")
    tensor_names = match_tensors(stored, layout, parts, unread)
    if "d2t" in stored.shapes and stored.shapes["d2t"] != (n_proposed,):
        raise ModelError(
            f"`d2t` in {stored.folder} maps {stored.shapes['d2t'][0]:,} tokens; the LM head has {n_proposed:,} rows.",
            "Download the checkpoint again: the map of token ids belongs to other heads.",
        )
    draft_tokens, order = draft_vocabulary(stored, facts["vocab_size"])
    extra_facts: dict[str, Any] = {
        "taps": taps,
        "target_hidden_size": target,
        "norm_before_residual": bool(config.get("norm_before_residual", is_speculators)),
        "norm_before_fc": bool(config.get("norm_before_fc")),
        "fc_norm": bool(config.get("fc_norm")),
        "norm_output": bool(config.get("norm_output")),
    }
    return Checkpoint(
        layout,
        "eagle-3",
        stored,
        facts | extra_facts,
        tensor_names,
        draft_tokens,
        order,
        tuple(name for name in unread if name in stored.shapes and name not in MAPS),
        verifier_of(config),
    )


def _layout(stored: CheckpointFiles) -> str | None:
    kind = stored.config.get("speculators_model_type")
    if kind is not None:
        return SPECULATORS if kind == "eagle3" else None
    if not any(name.endswith(".hidden_norm.weight") for name in stored.shapes):
        return None
    architectures = stored.config.get("architectures") or [""]
    return SPECFORGE if architectures[0] == "LlamaForCausalLMEagle3" else SAFEAILAB


def captured_layers_of(stored: CheckpointFiles) -> tuple[int, ...]:
    """Return the indices of the target layers whose input EAGLE-3 heads read, from the heads' configuration.

    The result is () if the configuration lists no layers; they then follow from the number of the target's layers.

    Raises:
        ModelError: the value is not an increasing list of layer indices.
    """
    config = stored.config
    section = config.get("eagle_config")
    ids = config.get("eagle_aux_hidden_state_layer_ids")
    ids = section.get("eagle_aux_hidden_state_layer_ids") if ids is None and isinstance(section, dict) else ids
    if ids is None:
        return ()
    is_valid = isinstance(ids, list) and ids and all(type(i) is int and i >= 0 for i in ids)
    if not is_valid or sorted(set(ids)) != ids:
        raise ModelError(
            f"`eagle_aux_hidden_state_layer_ids` in {stored.folder} is {ids!r:.60}, not an increasing list of layers.",
            "Use the config.json that the heads were trained with.",
        )
    return tuple(ids)
