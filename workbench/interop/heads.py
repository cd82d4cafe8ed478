"""Heads that were trained here, in the layouts of other engines: vLLM's speculators, vLLM's Medusa, SafeAILab's EAGLE.

What a layout cannot say is not written: every refusal names it. What was written reads back to the same drafts.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from workbench.core.errors import ModelError, ParameterError, WorkbenchError
from workbench.engine.bundle import bundled, config_of
from workbench.engine.checkpoints.eagle import IN_LAYER, LAYER, MTP, NORMS, OUTSIDE, SAFEAILAB, SPECULATORS
from workbench.engine.checkpoints.medusa import VLLM
from workbench.engine.checksums import check_weights
from workbench.engine.names import folder_of, locate
from workbench.engine.published import PUBLISHED
from workbench.trace.files import replacing

if TYPE_CHECKING:
    from torch import Tensor

SPECULATIVE_TOKENS = 5
"""What the written configurations propose; a server's own setting counts before it."""
ARCHITECTURE = "LlamaForCausalLM"


@dataclass(frozen=True, slots=True)
class Ours:
    """Heads of ours, and what is known of their target.

    Attributes:
        name: of their folder.
        config: theirs.
        weights: theirs.
        target: its name.
        layer: its configuration.
    """

    name: str
    config: dict[str, Any]
    weights: dict[str, Tensor]
    target: str
    layer: dict[str, Any]

    @property
    def kept(self) -> list[int] | None:
        """Tokens that they propose; None: all."""
        return self.config.get("draft_vocabulary")


@dataclass(frozen=True, slots=True)
class Written:
    """A checkpoint to be written."""

    layout: str
    config: dict[str, Any]
    weights: dict[str, Tensor]
    notes: tuple[str, ...] = ()


def export_heads(name: str, folder: Path, to: str = "speculators", force: bool = False) -> dict[str, Any]:
    """Write heads in another layout; returns {"layout", "tensors", "bytes", "notes"}.

    Args:
        name: bundled heads, or the folder of some.
        folder: to write.
        to: "speculators" or "vllm".
        force: whether the folder may hold something.

    Raises:
        ParameterError: there is no such layout, or the folder holds something.
        ModelError: these heads cannot be read, or that layout cannot say them: with what could.
    """
    if to not in ("speculators", "vllm"):
        error = ParameterError(f"There is no layout {to!r:.40} to write.", "Use speculators or vllm.")
        error.option = "to"
        raise error
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())) and not force:
        raise ParameterError(f"{folder} holds something.", "Name a new folder, or use --force.")
    ours = _ours(name)
    kind = ours.config["workbench_head"]
    write = WRITERS.get((kind, to))
    if write is None:
        raise ModelError(f"No layout of {to} holds {kind} heads.", _instead(kind))
    found = write(ours)
    return _write(found, folder)


def _instead(kind: str) -> str:
    others = [to for known, to in WRITERS if known == kind]
    if others:
        return f"Use --to {others[0]}."
    return f"Heads that can be written: {', '.join(sorted({known for known, _ in WRITERS}))}."


def _ours(name: str) -> Ours:
    from safetensors import SafetensorError

    from workbench.engine.eighths import read_weights

    place = bundled().get(name) or Path(name).expanduser()
    config = config_of(place) if place.is_dir() else {}
    if "workbench_head" not in config:
        names = [known for known, folder in bundled().items() if "workbench_head" in config_of(folder)]
        raise ModelError(f"{name} holds no heads that were trained here.", f"Bundled are: {', '.join(names)}.")
    check_weights(place)
    try:
        weights = read_weights(place / "model.safetensors")
    except (OSError, ValueError, SafetensorError) as error:
        raise ModelError(f"The weights of {name} cannot be read: {error}.", "Fetch them again.") from None
    target = str(config.get("target"))
    if (there := folder_of(target)) is None:
        raise ModelError(
            f"{name} was trained for {target}, which is not on this machine: its sizes belong into the checkpoint.",
            "Load it once: `workbench models` says how.",
        )
    return Ours(place.resolve().name, config, weights, target, config_of(there))


def _write(found: Written, folder: Path) -> dict[str, Any]:
    from safetensors import SafetensorError
    from safetensors.torch import save_file

    weights = {name: weight.contiguous() for name, weight in found.weights.items()}
    files = ("model.safetensors", "config.json")
    try:
        was_there = folder.exists()
        folder.mkdir(parents=True, exist_ok=True)
        with (
            replacing(folder / files[0]) as part,
            replacing(folder / files[1]) as said,
        ):  # both are written before one is replaced
            said.write_bytes((json.dumps(found.config, indent=2) + "\n").encode())
            save_file(weights, part, metadata={"format": "pt"})
        (folder / files[0]).chmod(0o644)
    except (OSError, SafetensorError) as error:  # safetensors keeps an error of the system as words
        if folder.is_dir() and not any(folder.iterdir()) and not was_there:
            folder.rmdir()
        why = getattr(error, "strerror", None) or str(error).rsplit("error: ", 1)[-1]
        raise WorkbenchError(f"{folder} cannot be written: {why}.", "Make room, or name another folder.") from None
    n_bytes = (folder / "model.safetensors").stat().st_size
    return {"layout": found.layout, "tensors": len(weights), "bytes": n_bytes, "notes": list(found.notes)}


# -- EAGLE's layer ----------------------------------------------------------------------------------------------------


def _eagle_to_speculators(ours: Ours) -> Written:
    """Type `mtp`, which has all four norms, or type `eagle`, which has the one on the feature in no case."""
    norms = tuple(ours.config["net"].get("norms", NORMS))
    theirs = {NORMS: MTP, (): SPECULATORS, ("norm_embed", "before", "after"): SPECULATORS}
    if norms not in theirs:
        raise ModelError(
            f"speculators' layouts have no layer with just these norms: {', '.join(norms)}.",
            "They have one with all of ours (mtp), one without the feature's, and one without any.",
        )
    layout, notes = theirs[norms], list[str]()
    inner = _layer(ours)
    if layout == MTP:
        config: dict[str, Any] = {"architectures": ["MTPDraftModel"], "num_nextn_predict_layers": 1}
        notes.append("vLLM loads speculators' type mtp for families with an MTP layer of their own; Llama is none yet")
    else:
        config = {"architectures": ["EagleSpeculator", "LlamaDecoderLayer"], "layernorms": bool(norms)}
        config |= {"transformer_layer_architecture": "LlamaDecoderLayer", "fusion_bias": "fuse.bias" in ours.weights}
        notes.append("speculators has the type eagle up to 0.3; --to vllm writes what vLLM reads by itself")
    kind = "mtp" if layout == MTP else "eagle"
    config |= {
        "speculators_model_type": kind,
        "speculators_version": "0.6.0" if layout == MTP else "0.3.0",
        "speculators_config": _speculators(ours, kind),
        "transformer_layer_config": inner,
    }
    weights = _renamed(ours, layout) | _maps(ours)
    if ours.kept is not None:
        notes.append(f"d2t and t2d keep the {len(ours.kept):,} tokens that it proposes; engines may propose all")
    return Written(layout, config, weights, tuple(notes))


def _eagle_to_vllm(ours: Ours) -> Written:
    """SafeAILab's layout, which vLLM's method `eagle` reads: a layer without norms, a fusion without a bias."""
    norms = ours.config["net"].get("norms", NORMS)
    if norms:
        raise ModelError(
            f"vLLM's EAGLE layer has none of the norms of {ours.name} ({', '.join(norms)}).",
            "Use --to speculators, whose type mtp has them.",
        )
    if "fuse.bias" in ours.weights:
        raise ModelError(f"vLLM's EAGLE layer has no bias in its fusion; {ours.name} has.", "Use --to speculators.")
    config = _layer(ours) | {"architectures": [ARCHITECTURE], "bias": False}
    return Written(SAFEAILAB, config, _renamed(ours, SAFEAILAB), ("vLLM: --speculative-config method eagle",))


def _layer(ours: Ours) -> dict[str, Any]:
    """The configuration of a Llama of one layer: the heads' own.

    Raises:
        ModelError: its attention heads do not share the width, which our own reader of these layouts takes for granted.
    """
    net, weights = ours.config["net"], ours.weights
    if (size := net.get("head_size", 0)) and size * net["heads"] != net["width"]:
        raise ModelError(
            f"The {net['heads']} attention heads of {ours.name} have {size} numbers each, not {net['width']} together: "
            "layouts are written of such alone as share the width.",
            "Train it with head_size=0.",
        )
    rope = {"rope_theta": 10_000.0, "rope_type": "default"} | net.get("rope", {})
    old = {name: value for name, value in rope.items() if name != "rope_theta"}
    return {
        "model_type": "llama", "hidden_size": net["width"], "vocab_size": ours.layer["vocab_size"],
        "num_hidden_layers": 1, "num_attention_heads": net["heads"], "num_key_value_heads": net["heads"],
        "head_dim": net["width"] // net["heads"], "intermediate_size": net["ffn"], "hidden_act": "silu",
        "max_position_embeddings": ours.layer.get("max_position_embeddings", 2048),
        "rms_norm_eps": net.get("eps", 1e-6), "rope_theta": rope["rope_theta"],
        "rope_scaling": None if old["rope_type"] == "default" else old, "attention_bias": "qkv.bias" in weights,
        "mlp_bias": False, "tie_word_embeddings": False,
    }  # fmt: skip


def _speculators(ours: Ours, kind: str) -> dict[str, Any]:
    method = {"proposal_type": "greedy", "speculative_tokens": SPECULATIVE_TOKENS}
    model = PUBLISHED.get(ours.target)
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
    """Our tensors by a layout's names, the joined ones apart."""
    weights = dict(ours.weights)
    for kind in ("weight", "bias"):
        if (joined := weights.pop(f"qkv.{kind}", None)) is not None:
            weights |= dict(zip([f"{name}.{kind}" for name in "qkv"], joined.chunk(3), strict=True))
    weights["gate.weight"], weights["up.weight"] = weights.pop("gate_up.weight").chunk(2)
    names = {name: LAYER[layout] + inside for name, inside in IN_LAYER.items()} | OUTSIDE[layout]
    return {names[name]: weight.clone() for name, weight in weights.items()}


def _maps(ours: Ours) -> dict[str, Tensor]:
    import torch

    if ours.kept is None:
        return {}
    kept = torch.tensor(ours.kept)
    known = torch.zeros(ours.layer["vocab_size"], dtype=torch.bool)
    known[kept] = True
    return {"d2t": kept - torch.arange(len(kept)), "t2d": known}


# -- Medusa's heads ---------------------------------------------------------------------------------------------------


def _medusa_to_vllm(ours: Ours) -> Written:
    """VLLM's own layout: blocks, and the rows of the target's LM head that they share, or LM heads of their own."""
    import torch

    heads, layers = ours.config["n_heads"], ours.config.get("n_layers", 1)
    weights = {
        f"blocks.{k}.layers.{j}.{kind}": ours.weights[f"heads.{k}.{kind}" if j == 0 else f"more.{j - 1}.{k}.{kind}"]
        for k in range(heads)
        for j in range(layers)
        for kind in ("weight", "bias")
    }
    own, kept = ours.weights.get("own"), ours.kept
    if own is None:
        table = _lm_head(ours.target).to(weights["blocks.0.layers.0.weight"].dtype)
        weights["lm_head.weight"] = table if kept is None else table[kept]
    else:
        weights |= {f"lm_heads.{k}.weight": rows.clone() for k, rows in enumerate(own)}
    if kept is not None:
        weights["token_map"] = torch.tensor(kept)
    size = ours.layer["vocab_size"]
    config = {
        "model_type": "medusa", "architectures": ["MedusaModel"], "hidden_size": ours.config["hidden_size"],
        "vocab_size": size, "num_heads": heads, "num_hidden_layers": layers, "medusa_fc_bias": True,
        "original_lm_head": own is None, "truncated_vocab_size": size if kept is None else len(kept),
        "head_accuracy": ours.config["head_accuracy"],
    }  # fmt: skip
    return Written(VLLM, config, weights, ("vLLM: --speculative-config method medusa",))


def _lm_head(target: str) -> Tensor:
    """The target's LM head, read by itself."""
    from safetensors import safe_open

    files = sorted(Path(locate(target)).glob("*.safetensors"))
    for name in ("lm_head.weight", "model.embed_tokens.weight"):  # in all files: one that is tied has the second alone
        for path in files:
            with safe_open(path, "pt") as file:
                if name in file.keys():  # noqa: SIM118 (no mapping)
                    return file.get_tensor(name)
    raise ModelError(f"{target} has no LM head by a usual name.", "Take heads of a Llama.")


WRITERS: dict[tuple[str, str], Callable[[Ours], Written]] = {
    ("eagle", "speculators"): _eagle_to_speculators,
    ("eagle", "vllm"): _eagle_to_vllm,
    ("medusa", "vllm"): _medusa_to_vllm,
}
"""What writes heads of a kind in a layout."""
