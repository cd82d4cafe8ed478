"""Models on this machine, and those that could be had: where, how large, under which licence. From files alone."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from workbench.core.errors import ModelError
from workbench.engine import converted, published
from workbench.engine.bundle import bundled
from workbench.engine.published import PUBLISHED, Published

OWN_LICENCE = "Apache-2.0"
"""Of the bundled models, as of the program: they were trained for it."""
READY, AT_FIRST_USE, TO_FETCH = "ready", "at first use", "to fetch"


def inventory() -> list[dict[str, Any]]:
    """Bundled models and heads, published models, copies made of GGUF files, and earlier downloads from the Hub.

    Each is {"name", "title", "kind", "role", "state", "bytes", "licence", "place", "how"}: `name` is what `--target`
    takes; `state` is "ready", "at first use" (all that is needed is here, the copy is not made yet) or "to fetch";
    `bytes` is what its files take here, or would; `how` says how it comes here, empty where it is ready.
    """
    return [*_bundled(), *map(_published, PUBLISHED.values()), *_copies(), *_downloads()]


def state(model: Published) -> str:
    """Whether a published model can be loaded at once, can be made of what is here, or would have to be fetched."""
    if published.here(model):
        return READY
    try:
        return AT_FIRST_USE if published.packaged_file(model) else TO_FETCH
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
        made_for = config.get("target")
        role = f"heads of {made_for}" if "workbench_head" in config else "drafter" if made_for else "target"
        yield _entry(name, "bundled", role, folder, OWN_LICENCE)


def _published(model: Published) -> dict[str, Any]:
    now, folder = state(model), published.here(model)
    more: dict[str, Any] = {"title": model.title, "state": now}
    if now == AT_FIRST_USE:
        more |= {"bytes": model.copy_bytes, "how": f"dequantised from {model.package} {model.version} at first use"}
    elif now == TO_FETCH:
        more |= {"bytes": model.copy_bytes, "how": published.how(model)}
    return _entry(model.name, "published", "target", folder, model.licence, **more)


def _copies() -> Iterator[dict[str, Any]]:
    """Copies of GGUF files, by the files' own paths; that of a published model is told with it."""
    own = {published.packaged_copy(model) for model in PUBLISHED.values()}
    for place in converted.copies():
        if place not in own:
            made_of = converted.source_of(place)
            title, licence = made_of.get("title", place.name), made_of.get("licence") or "not said"
            yield _entry(str(place), "copy of a GGUF file", "target", place, licence, title=title)


def _downloads() -> Iterator[dict[str, Any]]:
    """Earlier downloads from the Hub that can be loaded: with a configuration and safetensors."""
    from huggingface_hub import constants, scan_cache_dir

    root = Path(constants.HF_HUB_CACHE)
    if not root.is_dir():
        return
    published_ids = {model.hub_id for model in PUBLISHED.values()}
    for repo in sorted(scan_cache_dir(root).repos, key=lambda repo: repo.repo_id):
        if repo.repo_type != "model" or repo.repo_id in published_ids:
            continue
        for revision in sorted(repo.revisions, key=lambda revision: -revision.last_modified)[:1]:
            names = {file.file_name for file in revision.files}
            if "config.json" in names and any(name.endswith(".safetensors") for name in names):
                yield _entry(repo.repo_id, "from the Hub", "target", revision.snapshot_path, "as its page says")
