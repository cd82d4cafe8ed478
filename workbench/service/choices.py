"""Describe targets, draft models and methods as plain data for forms, lists and the API.

If a model or a method cannot be used, its data contain the reason as text.
"""

from __future__ import annotations

import contextlib
import functools
import json
import logging
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from safetensors import SafetensorError

from workbench.core.errors import ModelError
from workbench.decoders.declarations import ANY_DRAFTER, training_hint
from workbench.methods import method_info
from workbench.methods.method_info import MethodInfo
from workbench.models.bundle import bundled, config_of
from workbench.models.checkpoints.user_heads import own_heads, problem
from workbench.models.local_models import path_of, trained_for
from workbench.models.masked_lm import MASKED_LM, is_masked_lm, why_not_masked
from workbench.models.model_index import MODEL_INDEX
from workbench.models.names import bundled_drafter, folder_of, known_targets
from workbench.models.tokenizer_source import tokenizer_source_of, vocabulary_hash_of
from workbench.models.untrained_heads import no_heads
from workbench.models.weight_files import count_model_weights, weight_files
from workbench.service.inventory import TO_FETCH, availability

log = logging.getLogger(__name__)

IN_FULL = ("idea", "formula", "differs")
"""Fields of a method's description that only the page of this method shows; lists of methods and the API omit them."""
SHOWN_PACE = 8
"""Display rate for small, fast models, in tokens per second: about the reading speed of people."""


def targets(others: Sequence[str]) -> list[dict[str, Any]]:
    """Return a dict for each target model: bundled targets, published targets, then the loaded models in `others`.

    Bundled targets are the bundled models that are not draft models; published targets are listed if they are on this
    machine or in an installed package. Fields: `pictures`: whether the model accepts images, None if that is known only
    after loading it; `square`: whether its processor resizes every image to a square; `pace`: for small, fast models, a
    display rate in tokens per second with which a page can slow down runs so that viewers can follow; `kv_cache`: size
    of its KV cache (`memory.kv_cache_layout`), None if it has none or its configuration is not on this machine.
    """
    entries = []
    for name, folder, config in known_targets():
        if trained_for(config):
            continue
        entries.append(
            {"name": name, "title": name, "kind": "bundled", "detail": _detail(folder, config)}
            | {"pictures": "vision_config" in config, "square": resizes_to_square(folder), "pace": SHOWN_PACE}
        )
    entries += [
        _published(name) for name, model in MODEL_INDEX.items() if name in others or availability(model) != TO_FETCH
    ]
    names = {entry["name"] for entry in entries}
    entries += [
        {"name": name, "title": name, "kind": "local" if path_of(name).exists() else "hub", "detail": ""}
        | {"pictures": accepts_images(name), "square": resizes_to_square(path_of(name))}
        for name in others
        if name not in names
    ]
    return [entry | {"kv_cache": _kv_cache_of(entry["name"])} for entry in entries]


def _kv_cache_of(name: str) -> dict[str, Any] | None:
    file = Path(_folder_of(name)) / "config.json"
    if is_masked_lm(config_of(file.parent)):  # computes all positions anew in every pass
        return None
    try:
        return _read_kv_cache(str(file.parent), file.stat().st_mtime_ns)
    except OSError:
        return None


@functools.lru_cache(maxsize=64)
def _read_kv_cache(folder: str, _version: int) -> dict[str, Any] | None:
    """Return the size of a model's KV cache, from its configuration, whose defaults transformers fills in."""
    from transformers import AutoConfig  # imports PyTorch, which the command line starts without

    from workbench.kernels.layers import text_config
    from workbench.service.memory import kv_cache_layout

    try:
        return kv_cache_layout(text_config(AutoConfig.from_pretrained(folder, trust_remote_code=False)))
    except Exception as error:  # families raise different errors; loading the model reports them
        log.debug("The size of the KV cache of %s is unknown: %s", folder, error)
        return None


def _published(name: str) -> dict[str, Any]:
    """Return the dict that describes a published model in the list of targets."""
    model, folder = MODEL_INDEX[name], folder_of(name)
    detail = ""
    if folder is not None:
        detail = _detail(folder, json.loads((folder / "config.json").read_text(encoding="utf-8")))
    entry = {"name": name, "title": f"{name} · {model.title}", "kind": "published", "detail": detail}
    return entry | {"pictures": False, "square": False}


def drafters(target: str) -> list[dict[str, Any]]:
    """Return a dict for each bundled draft model: whether it shares the target's vocabulary and accepts images.

    Key `stranger`: whether the draft model's vocabulary differs from the target's. Only methods that translate tokens
    can use such a draft model.
    """
    entries = []
    for name, folder, config in known_targets():
        if name == target or is_masked_lm(config):
            continue
        shares_vocabulary = vocabulary_hash_of(folder) == vocabulary_hash_of(Path(_folder_of(target)))
        reason = "" if shares_vocabulary else f"{name} and {target} do not share a vocabulary."
        entries.append(
            {
                "name": name,
                "title": name,
                "available": shares_vocabulary,
                "reason": reason,
                "detail": _detail(folder, config),
            }
            | {"pictures": "vision_config" in config, "stranger": not shares_vocabulary and has_tokenizer(folder)}
        )
    return sorted(entries, key=lambda d: d["name"] != bundled_drafter(target))


def has_tokenizer(folder: Path) -> bool:
    """Return whether the tokenizer of a draft model is on this machine, in its own folder or in that of its target."""
    source = tokenizer_source_of(folder)
    return source is None or folder_of(source.target) is not None


def describe(method: MethodInfo, reason: str, own: Mapping[str, str] | None = None) -> dict[str, Any]:
    """Return a method's name, description and parameters as plain data, with the reason if it cannot run.

    Key `reason`: empty if the method can run. Key `head`: name of the user's own head with which the method drafts,
    from `own`; empty if it drafts with a bundled head.
    """
    entry = {name: value for name, value in method.to_wire().items() if name not in ("blind", *IN_FULL)}
    head = next(filter(None, map((own or {}).get, method.needs)), "")
    simulates = method.promise == "simulation"
    return entry | {"simulation": simulates, "available": not reason, "reason": reason, "head": head}


def own_head_names(target: str) -> dict[str, str]:
    """Return the names of the user's own heads for a target model, by kind of head.

    The user promoted them in the Lab tab (training page), or gave their folders by `--head`.
    """
    names: dict[str, str] = {}
    with contextlib.suppress(ModelError):  # reported to runs that use such heads
        for head in own_heads():
            if head.kind not in names and not problem(head, target, folder_of(target)):
                names[head.kind] = head.name
    return names


def static_reasons(target: str, drafter: str | None) -> Callable[[tuple[str, ...]], str]:
    """Return a function that checks whether a target and a draft model meet a method's requirements.

    The function gets the requirements and returns the reason why not; "" if the models meet them.

    Only files are read, no weights.
    """
    heads = set()
    for folder in bundled().values():
        config = config_of(folder)
        if config.get("workbench_head") and trained_for(config) == target and config.get("drafter", drafter) == drafter:
            heads.add(config["workbench_head"])
    unfit: dict[str, str] = {}
    for head in own_heads():
        if reason_text := problem(head, target, folder_of(target)):
            unfit[head.kind] = reason_text
        else:
            heads.add(head.kind)

    different_vocabularies, trainable = mismatch(target, drafter), method_info.trainable_heads()  # once for all methods

    config = config_of(Path(_folder_of(target)))
    is_masked = is_masked_lm(config)

    def reason(needs: tuple[str, ...]) -> str:
        if wrong_kind := why_not_masked(target, is_masked, needs):
            return wrong_kind
        for need in needs:
            if need in ("drafter", ANY_DRAFTER):
                if drafter is None:
                    return f"No draft model is chosen for {target}."
                if need == "drafter" and different_vocabularies:
                    return different_vocabularies
            elif need in ("pictures", "sight"):
                name = target if need == "pictures" else drafter
                if name is not None and accepts_images(name) is False:
                    return f"{name} reads text only."
            elif (
                need not in ("trees", MASKED_LM) and need not in heads
            ):  # whether a target accepts trees is known only after loading
                train = f" {training_hint(need, target)}" if need in trainable else ""
                return unfit.get(need) or no_heads(need, target) + train
        return ""

    return reason


def mismatch(target: str, drafter: str | None) -> str:
    """Return an error message if two models have different vocabularies according to their files; otherwise ""."""
    if drafter is None or have_same_vocabulary(target, drafter) is not False:
        return ""
    return f"{drafter} and {target} do not share a vocabulary: the same token id stands for different tokens."


def have_same_vocabulary(target: str, drafter: str) -> bool | None:
    """Return whether two models have the same vocabulary; None if their files do not show it."""
    first, second = (vocabulary_hash_of(Path(_folder_of(name))) for name in (target, drafter))
    return first == second if first and second else None


def accepts_images(name: str) -> bool | None:
    """Return whether a model accepts images; None if its files do not show it."""
    folder = Path(_folder_of(name))
    return "vision_config" in config_of(folder) if (folder / "config.json").is_file() else None


def resizes_to_square(folder: Path) -> bool:
    """Return whether a model's processor resizes every image to a square; False if unknown."""
    for name in ("processor_config.json", "preprocessor_config.json"):
        if (folder / name).is_file():
            try:
                config = json.loads((folder / name).read_text(encoding="utf-8"))
            except (OSError, ValueError, RecursionError):
                return False  # loading the model reports the error
            size = config.get("image_processor", config).get("size")
            return isinstance(size, dict) and size.get("height", 0) == size.get("width", 1)
    return False


def _folder_of(name: str) -> str:
    return str(folder_of(name) or path_of(name))  # path_of: a Hub id is not a folder of the same name


def _detail(folder: Path, config: dict[str, Any]) -> str:
    try:
        n_weights = count_model_weights(folder)
    except (OSError, SafetensorError):  # a list of models does not fail because of one damaged file
        n_weights = sum(file.stat().st_size for file in weight_files(folder)) // 2
    layers = config.get("num_hidden_layers") or config.get("text_config", {}).get("num_hidden_layers", "?")
    return f"{n_weights / 1e6:.1f} M parameters · {layers} layer{'s' if layers != 1 else ''}"
