"""Conditions of a measurement: everything apart from the settings that affects a measured value.

Two measured values may appear in one sweep only if their conditions are the same: device, number formats, machine,
versions, the weights of every model involved, and the measuring method. A machine is described by its processor, cores,
threads, accelerator and system: two identical machines count as one. Its load is not part of the conditions; each
result reports it.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from workbench.bench.lanes import Lane
from workbench.core.errors import ModelError
from workbench.decoders.declarations import DRAFTERS
from workbench.methods import method_info
from workbench.models.checkpoints.user_heads import own_heads
from workbench.models.local_models import path_of
from workbench.models.machine import machine_facts
from workbench.models.names import heads_of, locate

if TYPE_CHECKING:
    from workbench.engine import Models

MEASURING_VERSION = 4
"""Version of the code that measures and computes metrics. Increase it when that code changes: saved metrics of another
version are shown, but never mixed with new ones."""
FILES = ("*.safetensors", "*.json", "*.jinja")
"""File name patterns of the files that determine a model's output."""
WHOLE_BYTES, BLOCK_BYTES, BLOCKS = 64 * 2**20, 2**16, 64
"""Fingerprints of weight files: size in bytes up to which a file is hashed completely, and for larger files the size
and number of the hashed blocks; their size and date are hashed too."""
MACHINE = ("cpu", "cores", "threads", "gpu", "system")
VERSIONS = ("torch", "transformers")
WORDS = {
    "measuring": "way of measuring",
    "at_once": "cells at once",
    "drafter_dtype": "the drafter's dtype",
    "cpu": "processor",
}

Conditions = dict[str, Any]
"""Conditions by name: measuring, at_once, device, dtype, drafter_dtype, machine, versions, and weights.

`weights` has a fingerprint of each model's weights, by the name of the model.
"""


def conditions(
    lane: Lane,
    target: str,
    drafter: str | None,
    device: str = "auto",
    dtype: str = "auto",
    drafter_dtype: str = "auto",
    at_once: int = 1,
) -> Conditions | None:
    """Return the conditions of a measurement in this process; None if the weights are not on this machine yet.

    Args:
        lane: method with settings to measure; it determines the models involved.
        target: name of the target.
        drafter: name of the draft model that the lane would use, or None.
        device: the backend's device option.
        dtype: the backend's dtype option for the target.
        drafter_dtype: the backend's dtype option for the draft model.
        at_once: number of cells measured at once on this machine, which slow each other down.

    Raises:
        ModelError: the model, the device or the number format does not exist.
    """
    from workbench.models.pretrained import resolve_device, resolve_drafter_dtype, resolve_dtype  # PyTorch

    torch_device = resolve_device(device)
    target_dtype = resolve_dtype(dtype, torch_device, target)
    needs = method_info.get(lane.method).needs
    drafts = drafter is not None and DRAFTERS & set(needs)
    names = [target, *([drafter] if drafts and drafter else []), *heads_of(target, needs)]
    weights = {name: fingerprint(name) for name in names}
    if None in weights.values():
        return None
    weights |= {heads.name: _of_folder(heads.folder) for heads in own_heads() if heads.kind in needs}
    facts = machine_facts()
    return {
        "measuring": MEASURING_VERSION,
        "at_once": at_once,
        "device": str(torch_device),
        "dtype": _name(target_dtype),
        "drafter_dtype": _name(resolve_drafter_dtype(drafter_dtype, torch_device, target_dtype, drafter))
        if drafts
        else "",
        "machine": {name: facts.get(name) for name in MACHINE},
        "versions": {name: facts[name] for name in VERSIONS},
        "weights": weights,
    }


def conditions_of_models(models: Models) -> Conditions:
    """Return the conditions of a measurement on loaded models: code, machine, number formats, and weights.

    A model that was created in this process has no identifier of its weights: its entry is None.
    """
    from workbench.bench.board import commit  # imports PyTorch

    def dtype(runner: Any) -> str:
        return "" if runner is None else _name(runner.weight_dtype)

    facts = machine_facts()
    names = [models.target_name, models.drafter_name, *(str(head.folder) for head in models.heads.values())]
    return {
        "measuring": MEASURING_VERSION,
        "commit": commit(),
        "device": str(models.target.device),
        "dtype": dtype(models.target),
        "drafter_dtype": dtype(models.drafter),
        "machine": {name: facts.get(name) for name in MACHINE},
        "versions": {name: facts[name] for name in VERSIONS},
        "weights": {name: _fingerprint_or_none(name) for name in names if name},
    }


def _fingerprint_or_none(name: str) -> str | None:
    try:
        return fingerprint(name)
    except ModelError:
        return None


def fingerprint(name: str) -> str | None:
    """Return an identifier of a model's weights: the commit of a Hub model, or a digest of a folder's files.

    Return None if the weights are not on this machine.

    Raises:
        ModelError: `name` does not name a model.
    """
    place = locate(name)
    if path_of(place).is_dir():
        return _of_folder(Path(place))
    from huggingface_hub import try_to_load_from_cache

    path = try_to_load_from_cache(place, "config.json")
    return Path(path).parent.name if isinstance(path, str) else None


def _of_folder(folder: Path) -> str:
    return _digest(tuple(_dated(path) for pattern in FILES for path in sorted(folder.glob(pattern))))


def _dated(path: Path) -> tuple[str, int, int]:
    stat = path.stat()
    return str(path), stat.st_size, stat.st_mtime_ns


@lru_cache(maxsize=64)
def _digest(files: tuple[tuple[str, int, int], ...]) -> str:
    """Return a digest of the contents of files, given as (path, size, date); the cache notices changed files."""
    digest = hashlib.sha256()
    for path, n_bytes, changed in files:
        digest.update(f"{Path(path).name} {n_bytes} ".encode())
        with Path(path).open("rb") as file:
            if n_bytes <= WHOLE_BYTES:
                digest.update(file.read())
                continue
            digest.update(f"{changed} ".encode())
            for i in range(BLOCKS):
                file.seek(i * (n_bytes - BLOCK_BYTES) // (BLOCKS - 1))
                digest.update(file.read(BLOCK_BYTES))
    return digest.hexdigest()[:16]


def measurement_id(settings: str, measuring_conditions: Mapping[str, Any] | None) -> str:
    """Return the id of a measurement, from its settings and its conditions."""
    return hashlib.sha256(f"{settings} {canonical_json(measuring_conditions)}".encode()).hexdigest()[:16]


def canonical_json(measuring_conditions: Mapping[str, Any] | None) -> str:
    """Return the conditions of a measurement as JSON text, identical for equal conditions."""
    return json.dumps(measuring_conditions, sort_keys=True)


def describe_differences(recorded: Mapping[str, Any] | None, requested: Mapping[str, Any] | None) -> list[str]:
    """Return the differences between the conditions of two measurements, in words.

    Args:
        recorded: conditions saved with earlier metrics.
        requested: conditions of the requested measurement.
    """
    if recorded is None:
        return ["the measuring conditions of the saved cell were not recorded"]
    if requested is None:
        return ["the measuring conditions on this machine are unknown until the models are loaded"]
    names = ("measuring", "at_once", "device", "dtype", "drafter_dtype")
    texts = [_words(n, recorded.get(n), requested.get(n)) for n in names if recorded.get(n) != requested.get(n)]
    for group in ("machine", "versions", "weights"):
        before, now = recorded.get(group) or {}, requested.get(group) or {}
        changed = [n for n in [*before, *(n for n in now if n not in before)] if before.get(n) != now.get(n)]
        texts += [
            f"other weights of {n}" if group == "weights" else _words(n, before.get(n), now.get(n)) for n in changed
        ]
    return texts


def _words(name: str, before: Any, now: Any) -> str:
    return f"{WORDS.get(name, name)} {before or '–'}, not {now or '–'}"


def _name(dtype: Any) -> str:
    return str(dtype).removeprefix("torch.")
