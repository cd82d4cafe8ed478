"""List the models that are on this machine or can be downloaded, with location, size and licence.

Only files are read; no model is loaded.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from workbench.core.errors import ModelError
from workbench.models import converted_models, model_index
from workbench.models.bundle import bundled
from workbench.models.model_index import MODEL_INDEX, IndexedModel

OWN_LICENCE = "Apache-2.0"
"""Licence of this program, and of the bundled models, which were trained for this program."""
READY, AT_FIRST_USE, TO_FETCH = "ready", "at first use", "to fetch"


def inventory() -> list[dict[str, Any]]:
    """Return bundled models and heads, published models, copies of GGUF files, and earlier downloads from the Hub.

    Each is {"name", "title", "kind", "role", "state", "bytes", "licence", "place", "how"}. `name` is the value for
    `--target`. `state` is "ready", "at first use" (converted from files on this machine at first use) or "to fetch".
    `bytes` is the size of the model's files on disk, now or after download. `place` is the model's folder; None if it
    is not on this machine. `how` tells how to get the model; it is empty if the model is ready.
    """
    return [*_bundled(), *map(_published, MODEL_INDEX.values()), *_copies(), *_downloads()]


def availability(model: IndexedModel) -> str:
    """Return whether a published model is ready, can be converted from an installed package, or must be downloaded."""
    if model_index.local_folder(model):
        return READY
    try:
        return AT_FIRST_USE if model_index.packaged_file(model) else TO_FETCH
    except ModelError:  # a package of another version
        return TO_FETCH


def _entry(name: str, kind: str, role: str, folder: Path | None, licence: str, **more: Any) -> dict[str, Any]:
    n_bytes = sum(file.stat().st_size for file in folder.iterdir() if file.is_file()) if folder else 0
    place = str(folder) if folder else None
    entry = {"name": name, "title": name, "kind": kind, "role": role, "state": READY, "bytes": n_bytes}
    return entry | {"licence": licence, "place": place, "how": ""} | more


def _bundled() -> Iterator[dict[str, Any]]:
    for name, folder in bundled().items():
        config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
        target = config.get("target")
        role = f"heads of {target}" if "workbench_head" in config else "drafter" if target else "target"
        yield _entry(name, "bundled", role, folder, OWN_LICENCE)


def _published(model: IndexedModel) -> dict[str, Any]:
    status, folder = availability(model), model_index.local_folder(model)
    fields: dict[str, Any] = {"title": model.title, "state": status}
    if status == AT_FIRST_USE:
        fields |= {
            "bytes": model.copy_bytes,
            "how": f"dequantised from the package {model.package} {model.version} at first use",
        }
    elif status == TO_FETCH:
        fields |= {"bytes": model.copy_bytes, "how": model_index.install_hint(model)}
    return _entry(model.name, "published", "target", folder, model.licence, **fields)


def _copies() -> Iterator[dict[str, Any]]:
    """Yield an inventory entry for each converted copy of a GGUF file, except copies of published models.

    The name of the entry is the folder of the copy.
    """
    copies_of_published = {model_index.packaged_copy(model) for model in MODEL_INDEX.values()}
    for folder in converted_models.copies():
        if folder not in copies_of_published:
            source = converted_models.source_of(folder)
            title, licence = source.get("title", folder.name), source.get("licence") or "not stated"
            yield _entry(str(folder), "converted copy of a GGUF file", "target", folder, licence, title=title)


def _downloads() -> Iterator[dict[str, Any]]:
    """Yield an inventory entry for each model in the Hub cache that has a configuration and safetensors files."""
    from huggingface_hub import constants, scan_cache_dir

    root = Path(constants.HF_HUB_CACHE)
    if not root.is_dir():
        return
    published_ids = {model.hub_id for model in MODEL_INDEX.values()}
    for repo in sorted(scan_cache_dir(root).repos, key=lambda repo: repo.repo_id):
        if repo.repo_type != "model" or repo.repo_id in published_ids:
            continue
        for revision in sorted(repo.revisions, key=lambda revision: -revision.last_modified)[:1]:
            names = {file.file_name for file in revision.files}
            if "config.json" in names and any(name.endswith(".safetensors") for name in names):
                yield _entry(repo.repo_id, "from the Hub", "target", revision.snapshot_path, "see its page")
