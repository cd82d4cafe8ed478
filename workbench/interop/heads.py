"""Export heads trained by the workbench to other formats: vLLM's speculators and Medusa, SafeAILab's EAGLE.

If heads have a feature that a format does not support, they are refused, and the error names the feature. The workbench
can read an exported checkpoint; it then gives the same drafts.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from workbench.core.errors import ModelError, ParameterError, WorkbenchError
from workbench.models.bundle import bundled, config_of
from workbench.models.checkpoints.eagle import IN_LAYER, LAYER, MTP, NORMS, OUTSIDE, SAFEAILAB, SPECULATORS
from workbench.models.checkpoints.medusa import VLLM
from workbench.models.checksums import check_weights
from workbench.models.model_index import MODEL_INDEX
from workbench.models.names import folder_of, locate
from workbench.trace.files import replace_atomically

if TYPE_CHECKING:
    from torch import Tensor

SPECULATIVE_TOKENS = 5
"""Draft length in the configurations of exported heads; the setting of an inference server takes precedence."""
ARCHITECTURE = "LlamaForCausalLM"


@dataclass(frozen=True, slots=True)
class Ours:
    """Heads that the workbench trained, with the configuration of their target.

    Attributes:
        name: name of the heads' folder.
        config: configuration of the heads.
        weights: weights of the heads, by name.
        target: name of the target.
        layer: configuration of the target model.
    """

    name: str
    config: dict[str, Any]
    weights: dict[str, Tensor]
    target: str
    layer: dict[str, Any]

    @property
    def vocabulary(self) -> list[int] | None:
        """Return the token ids of the heads' reduced output vocabulary; None: all tokens."""
        return self.config.get("draft_vocabulary")


@dataclass(frozen=True, slots=True)
class Written:
    """Contents of an exported checkpoint of heads: format, configuration, weights by name, notes for the user."""

    layout: str
    config: dict[str, Any]
    weights: dict[str, Tensor]
    notes: tuple[str, ...] = ()


def export_heads(name: str, folder: Path, to: str = "speculators", force: bool = False) -> dict[str, Any]:
    """Export heads that the workbench trained to the format of another engine.

    Args:
        name: name of bundled heads, or a folder with heads.
        folder: folder to write.
        to: target format, "speculators" or "vllm".
        force: whether the folder may contain files.

    Returns:
        {"layout", "tensors", "bytes", "notes"}.

    Raises:
        ParameterError: the format does not exist, or the folder is not empty.
        ModelError: the heads cannot be read, or the format does not support one of their features; the error's remedy
            then names another format.
    """
    if to not in ("speculators", "vllm"):
        error = ParameterError(
            f"The workbench cannot write heads in the layout {to!r:.40}.", "Use speculators or vllm."
        )
        error.option = "to"
        raise error
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())) and not force:
        raise ParameterError(f"{folder} is not an empty folder.", "Choose a new folder, or use --force.")
    ours = _ours(name)
    kind = ours.config["workbench_head"]
    write = WRITERS.get((kind, to))
    if write is None:
        raise ModelError(f"The layout {to} does not support {kind} heads.", _instead(kind))
    checkpoint = write(ours)
    return _write(checkpoint, folder)


def _instead(kind: str) -> str:
    others = [to for head_kind, to in WRITERS if head_kind == kind]
    if others:
        return f"Use --to {others[0]}."
    return f"Heads that can be exported: {', '.join(sorted({head_kind for head_kind, _ in WRITERS}))}."


def _ours(name: str) -> Ours:
    from safetensors import SafetensorError

    from workbench.models.int8_checkpoint import read_weights

    heads_folder = bundled().get(name) or Path(name).expanduser()
    config = config_of(heads_folder) if heads_folder.is_dir() else {}
    if "workbench_head" not in config:
        names = [bundled_name for bundled_name, entry in bundled().items() if "workbench_head" in config_of(entry)]
        raise ModelError(f"{name} has no heads that the workbench trained.", f"Bundled heads: {', '.join(names)}.")
    check_weights(heads_folder)
    try:
        weights = read_weights(heads_folder / "model.safetensors")
    except (OSError, ValueError, SafetensorError) as error:
        raise ModelError(
            f"The weights of {name} cannot be read: {error}.", "Download or train the heads again."
        ) from None
    target = str(config.get("target"))
    if (target_folder := folder_of(target)) is None:
        raise ModelError(
            f"{name} was trained for {target}, whose configuration is needed but is not on this machine.",
            f"Load {target} once, which downloads it; `workbench models` lists the targets.",
        )
    return Ours(heads_folder.resolve().name, config, weights, target, config_of(target_folder))


def _write(found: Written, folder: Path) -> dict[str, Any]:
    from safetensors import SafetensorError
    from safetensors.torch import save_file

    weights = {name: weight.contiguous() for name, weight in found.weights.items()}
    files = ("model.safetensors", "config.json")
    try:
        existed = folder.exists()
        folder.mkdir(parents=True, exist_ok=True)
        with (
            replace_atomically(folder / files[0]) as part,
            replace_atomically(folder / files[1]) as config_part,
        ):  # both are written before one is replaced
            config_part.write_bytes((json.dumps(found.config, indent=2) + "\n").encode())
            save_file(weights, part, metadata={"format": "pt"})
        (folder / files[0]).chmod(0o644)
    except (OSError, SafetensorError) as error:  # safetensors converts system errors to text
        if folder.is_dir() and not any(folder.iterdir()) and not existed:
            folder.rmdir()
        reason = getattr(error, "strerror", None) or str(error).rsplit("error: ", 1)[-1]
        raise WorkbenchError(
            f"{folder} cannot be written: {reason}.", "Free disk space, or choose another folder."
        ) from None
    n_bytes = (folder / "model.safetensors").stat().st_size
    return {"layout": found.layout, "tensors": len(weights), "bytes": n_bytes, "notes": list(found.notes)}


# -- EAGLE's layer ----------------------------------------------------------------------------------------------------


def _eagle_to_speculators(ours: Ours) -> Written:
    """Convert EAGLE heads to vLLM's speculators format: type `mtp` (all four norms) or `eagle` (no feature norm)."""
    norms = tuple(ours.config["net"].get("norms", NORMS))
    layouts = {NORMS: MTP, (): SPECULATORS, ("norm_embed", "before", "after"): SPECULATORS}
    if norms not in layouts:
        raise ModelError(
            f"The layouts of speculators support no layer with exactly these norms: {', '.join(norms)}.",
            "Train a layer with all four norms (type mtp), all except the norm of the feature, or no norms.",
        )
    layout, notes = layouts[norms], list[str]()
    layer = _layer(ours)
    if layout == MTP:
        config: dict[str, Any] = {"architectures": ["MTPDraftModel"], "num_nextn_predict_layers": 1}
        notes.append(
            "vLLM loads speculators' type mtp only for model families with an MTP layer, which Llama does not have yet"
        )
    else:
        config = {"architectures": ["EagleSpeculator", "LlamaDecoderLayer"], "layernorms": bool(norms)}
        config |= {"transformer_layer_architecture": "LlamaDecoderLayer", "fusion_bias": "fuse.bias" in ours.weights}
        notes.append(
            "speculators supports type eagle up to version 0.3; --to vllm writes a layout that vLLM reads directly"
        )
    kind = "mtp" if layout == MTP else "eagle"
    config |= {
        "speculators_model_type": kind,
        "speculators_version": "0.6.0" if layout == MTP else "0.3.0",
        "speculators_config": _speculators(ours, kind),
        "transformer_layer_config": layer,
    }
    weights = _renamed(ours, layout) | _maps(ours)
    if ours.vocabulary is not None:
        notes.append(
            f"the tensors d2t and t2d map the reduced vocabulary of {len(ours.vocabulary):,} tokens; some "
            f"engines may ignore these tensors"
        )
    return Written(layout, config, weights, tuple(notes))


def _eagle_to_vllm(ours: Ours) -> Written:
    """Convert EAGLE heads to SafeAILab's format, which vLLM's method `eagle` reads.

    The format has no norms, and no bias in the fusion of feature and embedding.
    """
    norms = ours.config["net"].get("norms", NORMS)
    if norms:
        raise ModelError(
            f"vLLM's EAGLE layer lacks the norms of {ours.name} ({', '.join(norms)}).",
            "Use --to speculators, whose type mtp has these norms.",
        )
    if "fuse.bias" in ours.weights:
        raise ModelError(
            f"vLLM's EAGLE layer has no bias where it combines feature and embedding, but {ours.name} has one.",
            "Use --to speculators.",
        )
    config = _layer(ours) | {"architectures": [ARCHITECTURE], "bias": False}
    return Written(
        SAFEAILAB,
        config,
        _renamed(ours, SAFEAILAB),
        ("to use the export in vLLM, set method eagle in --speculative-config",),
    )


def _layer(ours: Ours) -> dict[str, Any]:
    """Return the configuration of a Llama model with one layer that describes the decoder layer of EAGLE heads.

    Raises:
        ModelError: head size times number of attention heads differs from the hidden size; our reader of these formats
            needs equality.
    """
    net, weights = ours.config["net"], ours.weights
    if (size := net.get("head_size", 0)) and size * net["heads"] != net["width"]:
        raise ModelError(
            f"{ours.name} has {net['heads']} attention heads of size {size}; for an export, heads × size must "
            f"equal the width {net['width']}.",
            "Train the drafting heads with head_size=0.",
        )
    rope = {"rope_theta": 10_000.0, "rope_type": "default"} | net.get("rope", {})
    scaling = {name: value for name, value in rope.items() if name != "rope_theta"}
    return {
        "model_type": "llama", "hidden_size": net["width"], "vocab_size": ours.layer["vocab_size"],
        "num_hidden_layers": 1, "num_attention_heads": net["heads"], "num_key_value_heads": net["heads"],
        "head_dim": net["width"] // net["heads"], "intermediate_size": net["ffn"], "hidden_act": "silu",
        "max_position_embeddings": ours.layer.get("max_position_embeddings", 2048),
        "rms_norm_eps": net.get("eps", 1e-6), "rope_theta": rope["rope_theta"],
        "rope_scaling": None if scaling["rope_type"] == "default" else scaling, "attention_bias": "qkv.bias" in weights,
        "mlp_bias": False, "tie_word_embeddings": False,
    }  # fmt: skip


def _speculators(ours: Ours, kind: str) -> dict[str, Any]:
    method = {"proposal_type": "greedy", "speculative_tokens": SPECULATIVE_TOKENS}
    model = MODEL_INDEX.get(ours.target)
    verifier = {
        "name_or_path": model.hub_id if model else ours.target,
        "architectures": ours.layer.get("architectures") or [ARCHITECTURE],
    }
    return {
        "algorithm": kind,
        "proposal_methods": [method | {"verifier_accept_k": 1, "accept_tolerance": 0.0}],
        "default_proposal_method": "greedy",
        "verifier": verifier,
    }


def _renamed(ours: Ours, layout: str) -> dict[str, Tensor]:
    """Return the tensors of heads by their names in another format, with fused tensors (qkv, gate and up) split."""
    weights = dict(ours.weights)
    for kind in ("weight", "bias"):
        if (fused := weights.pop(f"qkv.{kind}", None)) is not None:
            weights |= dict(zip([f"{name}.{kind}" for name in "qkv"], fused.chunk(3), strict=True))
    weights["gate.weight"], weights["up.weight"] = weights.pop("gate_up.weight").chunk(2)
    names = {name: LAYER[layout] + suffix for name, suffix in IN_LAYER.items()} | OUTSIDE[layout]
    return {names[name]: weight.clone() for name, weight in weights.items()}


def _maps(ours: Ours) -> dict[str, Tensor]:
    import torch

    if ours.vocabulary is None:
        return {}
    vocabulary = torch.tensor(ours.vocabulary)
    is_in_vocabulary = torch.zeros(ours.layer["vocab_size"], dtype=torch.bool)
    is_in_vocabulary[vocabulary] = True
    return {"d2t": vocabulary - torch.arange(len(vocabulary)), "t2d": is_in_vocabulary}


# -- Medusa's heads ---------------------------------------------------------------------------------------------------


def _medusa_to_vllm(ours: Ours) -> Written:
    """Convert Medusa heads to vLLM's format for Medusa.

    The format consists of residual blocks and LM heads. Either all heads use rows of the target's LM head, or each head
    has its own LM head.
    """
    import torch

    heads, layers = ours.config["n_heads"], ours.config.get("n_layers", 1)
    weights = {
        f"blocks.{k}.layers.{j}.{kind}": ours.weights[f"heads.{k}.{kind}" if j == 0 else f"more.{j - 1}.{k}.{kind}"]
        for k in range(heads)
        for j in range(layers)
        for kind in ("weight", "bias")
    }
    own_heads, vocabulary = ours.weights.get("own"), ours.vocabulary
    if own_heads is None:
        table = _lm_head(ours.target).to(weights["blocks.0.layers.0.weight"].dtype)
        weights["lm_head.weight"] = table if vocabulary is None else table[vocabulary]
    else:
        weights |= {f"lm_heads.{k}.weight": rows.clone() for k, rows in enumerate(own_heads)}
    if vocabulary is not None:
        weights["token_map"] = torch.tensor(vocabulary)
    size = ours.layer["vocab_size"]
    config = {
        "model_type": "medusa", "architectures": ["MedusaModel"], "hidden_size": ours.config["hidden_size"],
        "vocab_size": size, "num_heads": heads, "num_hidden_layers": layers, "medusa_fc_bias": True,
        "original_lm_head": own_heads is None, "truncated_vocab_size": size if vocabulary is None else len(vocabulary),
        "head_accuracy": ours.config["head_accuracy"],
    }  # fmt: skip
    return Written(VLLM, config, weights, ("to use the export in vLLM, set method medusa in --speculative-config",))


def _lm_head(target: str) -> Tensor:
    """Read the weight of the target's LM head from the files of the target."""
    from workbench.models.int8_checkpoint import read_folder

    names = ("lm_head.weight", "model.embed_tokens.weight")  # a model with tied weights has only the second name
    weights = read_folder(Path(locate(target)), set(names))
    for name in names:
        if name in weights:
            return weights[name]
    raise ModelError(f"The weights of {target} contain no LM head under a known name.", "Use heads of a Llama model.")


WRITERS: dict[tuple[str, str], Callable[[Ours], Written]] = {
    ("eagle", "speculators"): _eagle_to_speculators,
    ("eagle", "vllm"): _eagle_to_vllm,
    ("medusa", "vllm"): _medusa_to_vllm,
}
"""Functions that convert heads for export, by kind of heads and target format."""
