"""Give the user's own model folders and GGUF files short names: the last component of the path.

A full path reveals folder and user names of a machine. So users enter paths, but lists, responses, traces and messages
show a model's short name. Short names are unique in a process: a second path with the same last component gets a
number.
"""

from __future__ import annotations

import os
import re
import shlex
import threading
from pathlib import Path
from typing import Any

from workbench.models.bundle import bundled, is_bundled
from workbench.models.converted_models import is_gguf
from workbench.models.model_index import MODEL_INDEX

_PLACES: dict[str, Path] = {}
_LOCK = threading.Lock()


class HubId(str):
    """Name of a model on the Hub, even if a local folder has the same name.

    Names from remote users are only looked up on the Hub. If the result depended on a local folder, it would reveal
    that the folder exists.
    """

    __slots__ = ()


def short_name(model: str) -> str:
    """Return the short name (last path component) of a model folder or GGUF file; other names are returned unchanged.

    Args:
        model: bundled or published name, folder, GGUF file, short name of one of these, or Hub id.
    """
    if isinstance(model, HubId) or model in _PLACES or model in MODEL_INDEX or not model or is_bundled(model):
        return model
    try:
        path = Path(model).expanduser().resolve()
        if not (path / "config.json").is_file() and not (is_gguf(model) and path.is_file()):
            return model
    except (OSError, RuntimeError, ValueError):  # not a valid path; loading it reports the error
        return model
    bundled_models = bundled()
    with _LOCK:
        existing = next(
            (name for name, other_path in {**bundled_models, **_PLACES}.items() if other_path.resolve() == path), None
        )
        name = existing or _unused_name(path)
        if name not in bundled_models:  # must not confirm a remote user's guess of a bundled model's path
            _PLACES[name] = path
    return name


def _unused_name(place: Path) -> str:
    """Return an unused short name for a model: the last component of its path, with a number if necessary."""
    used_names, count, name = {*_PLACES, *bundled(), *MODEL_INDEX}, 1, place.name
    stem, suffix = (place.stem, place.suffix) if is_gguf(place.name) else (place.name, "")
    while name in used_names:
        count += 1
        name = f"{stem}-{count}{suffix}"
    return name


def path_of(model: str) -> Path:
    """Return the path of a local model by its short name (last path component); other strings are taken as paths."""
    if isinstance(model, HubId):
        relative = model.replace("\\", "/").replace(":", "").lstrip("/")  # an absolute path would replace the parent
        return Path(os.devnull) / relative  # a path that cannot exist
    return _PLACES.get(model) or Path(model).expanduser()


def with_paths(text: str) -> str:
    """Replace the short names of local models by their paths in the commands that a text contains, for a terminal.

    A short name does not work as a command argument, because only this process can resolve it. Texts for the web page
    keep short names, since a path reveals folder and user names.

    Example:
        >>> with_paths("Train a head: workbench train eagle-3 --target smollm2.")
        'Train a head: workbench train eagle-3 --target smollm2.'
    """
    return re.sub(r"(--(?:target|drafter) )([^\s`]*[^\s`.,;:])", lambda found: found[1] + as_argument(found[2]), text)


def as_argument(model: str) -> str:
    """Return a model's name as a shell argument that works in any folder: local models as quoted absolute paths."""
    path = path_of(model)
    is_own = not is_bundled(model) and model not in MODEL_INDEX and not isinstance(model, HubId) and path.exists()
    return shlex.quote(str(path.resolve())) if is_own else model


def trained_for(config: dict[str, Any]) -> str:
    """Return the name of the target that a head or draft model was trained for; empty if the configuration has none."""
    return short_name(str(config.get("target") or ""))
