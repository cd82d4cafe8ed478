"""What can be chosen, with the reason where something cannot: plain data for forms, lists and the API."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from workbench.core.errors import ModelError
from workbench.engine.borrowed import lender, spoken
from workbench.engine.bundle import bundled, config_of
from workbench.engine.checkpoints.own import own_heads, problem
from workbench.engine.declared import ANY_DRAFTER
from workbench.engine.names import folder_of, known_targets, own_drafter
from workbench.engine.placed import path_of, trained_for
from workbench.engine.published import PUBLISHED
from workbench.engine.untrained import no_heads
from workbench.methods.known import Known
from workbench.service.inventory import TO_FETCH, state

IN_FULL = ("idea", "formula", "differs")
"""What only a method's own page tells: lists and the API leave it out."""
SHOWN_PACE = 8
"""Tokens a second that people can follow: a round of three tokens takes as long as reading them."""


def targets(others: Sequence[str]) -> list[dict[str, Any]]:
    """Models that can be verified: bundled, published, then `others`, loaded from elsewhere.

    Bundled ones are those not made for drafting; published ones those that are on this machine or in a package of it.
    `pictures` says whether one reads pictures; None where only loading it could tell. `square` says that one squeezes
    every picture into a square. `pace`, of models so small that a run is over before a hand can act: tokens a second at
    which a page may hold their runs back, so that people see what is drafted, judged and accepted.
    """
    found = []
    for name, folder, config in known_targets():
        if trained_for(config):
            continue
        found.append(
            {"name": name, "title": name, "kind": "bundled", "detail": _detail(folder, config)}
            | {"pictures": "vision_config" in config, "square": takes_squares(folder), "pace": SHOWN_PACE}
        )
    found += [_published(name) for name, model in PUBLISHED.items() if name in others or state(model) != TO_FETCH]
    names = {entry["name"] for entry in found}
    found += [
        {"name": name, "title": name, "kind": "local" if path_of(name).exists() else "hub", "detail": ""}
        | {"pictures": reads_pictures(name), "square": takes_squares(path_of(name))}
        for name in others
        if name not in names
    ]
    return found


def _published(name: str) -> dict[str, Any]:
    """A published model, as `targets` lists one."""
    model, folder = PUBLISHED[name], folder_of(name)
    detail = ""
    if folder is not None:
        detail = _detail(folder, json.loads((folder / "config.json").read_text(encoding="utf-8")))
    entry = {"name": name, "title": f"{name} · {model.title}", "kind": "published", "detail": detail}
    return entry | {"pictures": False, "square": False}


def drafters(target: str) -> list[dict[str, Any]]:
    """Bundled draft models, and whether each shares the target's vocabulary; `pictures` says whether one reads them.

    One that does not is a `stranger`: a method that translates takes it all the same.
    """
    found = []
    for name, folder, config in known_targets():
        if name == target:
            continue
        same = spoken(folder) == spoken(Path(_folder_of(target)))
        reason = "" if same else f"{name} and {target} do not share a vocabulary."
        found.append(
            {"name": name, "title": name, "available": same, "reason": reason, "detail": _detail(folder, config)}
            | {"pictures": "vision_config" in config, "stranger": not same and speaks(folder)}
        )
    return sorted(found, key=lambda d: d["name"] != own_drafter(target))


def speaks(folder: Path) -> bool:
    """Whether the tokenizer of a draft model is on this machine: its own, or that of the model that lends it one."""
    lent = lender(folder)
    return lent is None or folder_of(lent.target) is not None


def describe(method: Known, reason: str, own: Mapping[str, str] | None = None) -> dict[str, Any]:
    """A method with its parameters, and why it cannot run (empty when it can).

    `head` names what it drafts with where that is a head of one's own, as `owned` says, and not a bundled one.
    """
    told = {name: value for name, value in method.to_wire().items() if name not in ("blind", *IN_FULL)}
    head = next(filter(None, map((own or {}).get, method.needs)), "")
    simulates = method.promise == "simulation"
    return told | {"simulation": simulates, "available": not reason, "reason": reason, "head": head}


def owned(target: str) -> dict[str, str]:
    """Names of the heads of one's own that draft for a target, by kind: those of the lab, and those of `--head`."""
    found: dict[str, str] = {}
    with contextlib.suppress(ModelError):  # which whoever drafts with it is told
        for own in own_heads():
            if own.kind not in found and not problem(own, target, folder_of(target)):
                found[own.kind] = own.name
    return found


def static_reasons(target: str, drafter: str | None) -> Callable[[tuple[str, ...]], str]:
    """Why needs cannot be met, from files alone, for models that are not loaded yet."""
    heads = set()
    for folder in bundled().values():
        config = config_of(folder)
        if config.get("workbench_head") and trained_for(config) == target and config.get("drafter", drafter) == drafter:
            heads.add(config["workbench_head"])
    unfit: dict[str, str] = {}
    for own in own_heads():
        if said := problem(own, target, folder_of(target)):
            unfit[own.kind] = said
        else:
            heads.add(own.kind)

    apart = mismatch(target, drafter)  # once for all methods that are asked about

    def reason(needs: tuple[str, ...]) -> str:
        for need in needs:
            if need in ("drafter", ANY_DRAFTER):
                if drafter is None:
                    return f"No draft model is chosen for {target}."
                if need == "drafter" and apart:
                    return apart
            elif need in ("pictures", "sight"):
                name = target if need == "pictures" else drafter
                if name is not None and reads_pictures(name) is False:
                    return f"{name} reads text only."
            elif need != "trees" and need not in heads:  # only loading tells how a target takes trees
                return unfit.get(need) or no_heads(need, target)
        return ""

    return reason


def mismatch(target: str, drafter: str | None) -> str:
    """That two models do not share a vocabulary, where files say so; empty where they do, or tell nothing."""
    if drafter is None or same_words(target, drafter) is not False:
        return ""
    return f"{drafter} and {target} do not share a vocabulary: token ids would mean different things."


def same_words(target: str, drafter: str) -> bool | None:
    """Whether two models share the words of their vocabularies; None where only loading them could tell."""
    first, second = (spoken(Path(_folder_of(name))) for name in (target, drafter))
    return first == second if first and second else None


def reads_pictures(name: str) -> bool | None:
    """Whether a model reads pictures; None where only loading it could tell."""
    folder = Path(_folder_of(name))
    return "vision_config" in config_of(folder) if (folder / "config.json").is_file() else None


def takes_squares(folder: Path) -> bool:
    """Whether a model's processor squeezes every picture into a square, whatever its sides; False where unknown."""
    for name in ("processor_config.json", "preprocessor_config.json"):
        if (folder / name).is_file():
            try:
                read = json.loads((folder / name).read_text(encoding="utf-8"))
            except (OSError, ValueError, RecursionError):
                return False  # whoever loads it says what is wrong
            size = read.get("image_processor", read).get("size")
            return isinstance(size, dict) and size.get("height", 0) == size.get("width", 1)
    return False


def _folder_of(name: str) -> str:
    return str(folder_of(name) or path_of(name))  # a name of the Hub is none of a folder that is called like it


def _detail(folder: Path, config: dict[str, Any]) -> str:
    n_bytes = sum(f.stat().st_size for f in folder.glob("*.safetensors"))
    layers = config.get("num_hidden_layers") or config.get("text_config", {}).get("num_hidden_layers", "?")
    return f"{n_bytes / 2e6:.1f} M parameters · {layers} layer{'s' if layers != 1 else ''}"
