"""Names of models in folders and GGUF files of one's own: the last part of a path, and nothing of where that is.

A path says how a machine is laid out and who works on it. It is what one types; in lists, answers, traces and messages
a model goes by its name. Names are given once in a process: a second path that ends alike gets a number.
"""

from __future__ import annotations

import os
import re
import shlex
import threading
from pathlib import Path
from typing import Any

from workbench.models.bundle import bundled
from workbench.models.converted import is_gguf
from workbench.models.published import PUBLISHED

_PLACES: dict[str, Path] = {}
_LOCK = threading.Lock()


class HubId(str):
    """A name that means a model of the Hub, whatever lies in a folder of this machine that is called like it.

    What strangers name is looked for on the Hub alone: an answer that depended on the folder would tell them of it.
    """

    __slots__ = ()


def named(model: str) -> str:
    """The name that a model goes by in this process; what is neither a folder with a model nor a file keeps its own.

    Args:
        model: bundled or published name, folder, GGUF file, one of their names, or Hub id.
    """
    known = bundled()
    if isinstance(model, HubId) or model in _PLACES or model in known or model in PUBLISHED or not model:
        return model
    try:
        place = Path(model).expanduser().resolve()
        if not (place / "config.json").is_file() and not (is_gguf(model) and place.is_file()):
            return model
    except (OSError, RuntimeError, ValueError):  # no path at all; whoever loads it says what is wrong
        return model
    with _LOCK:
        found = next((name for name, other in {**known, **_PLACES}.items() if other.resolve() == place), None)
        name = found or _free(place)
        if name not in known:  # nobody types where the bundled ones lie; a stranger's guess must not be confirmed
            _PLACES[name] = place
    return name


def _free(place: Path) -> str:
    """A name that no other model has: the last part of its path, or with a number."""
    taken, number, name = {*_PLACES, *bundled(), *PUBLISHED}, 1, place.name
    stem, suffix = (place.stem, place.suffix) if is_gguf(place.name) else (place.name, "")
    while name in taken:
        number += 1
        name = f"{stem}-{number}{suffix}"
    return name


def path_of(model: str) -> Path:
    """Where a model lies that goes by the last part of its path; for anything else what it says as a path."""
    if isinstance(model, HubId):
        inside = model.replace("\\", "/").replace(":", "").lstrip("/")  # an absolute path would be that path
        return Path(os.devnull) / inside  # under which nothing lies
    return _PLACES.get(model) or Path(model).expanduser()


def with_paths(text: str) -> str:
    """Replace the short names of models in folders by their paths in the commands of a text, for a terminal.

    A short name is no argument: only this process knows it. Texts for a page keep it, since a path says how a machine
    is laid out.

    Example:
        >>> with_paths("Train some: workbench train eagle-3 --target smollm2.")
        'Train some: workbench train eagle-3 --target smollm2.'
    """
    return re.sub(r"(--(?:target|drafter) )([^\s`]*[^\s`.,;:])", lambda found: found[1] + as_argument(found[2]), text)


def as_argument(model: str) -> str:
    """Return what a shell takes for a model in any folder: the quoted absolute path of one in a folder or file."""
    place = path_of(model)
    is_own = model not in bundled() and model not in PUBLISHED and not isinstance(model, HubId) and place.exists()
    return shlex.quote(str(place.resolve())) if is_own else model


def trained_for(config: dict[str, Any]) -> str:
    """The name of the target that a head was trained for; empty where its configuration names none."""
    return named(str(config.get("target") or ""))
