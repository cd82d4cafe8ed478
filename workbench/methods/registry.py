"""The register of methods. Everything that lists, describes, runs or tests methods asks here."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from functools import cache
from importlib.metadata import entry_points

from workbench.core.errors import UnknownNameError
from workbench.engine.method import Method

_methods: dict[str, Method] = {}
_places: dict[str, str] = {}


def register(entry: Method) -> Method:
    """Add a method.

    Raises:
        ValueError: the name is taken; the message names both places.
    """
    frame = inspect.stack()[1]
    place = f"{frame.filename}:{frame.lineno}"
    if entry.name in _methods:
        raise ValueError(f"Method {entry.name!r} is registered twice: {_places[entry.name]} and {place}.")
    _ = entry.params  # a clash of parameter names fails at import
    _methods[entry.name], _places[entry.name] = entry, place
    return entry


@cache
def _load() -> None:
    import workbench.methods.catalogue
    import workbench.methods.catalogue_vision  # noqa: F401

    for point in entry_points(group="workbench.methods"):
        point.load()


def names() -> list[str]:
    """Names of all methods, in the order of the catalogue."""
    _load()
    return list(_methods)


def get(name: str) -> Method:
    """A method by name.

    Raises:
        UnknownNameError: with the nearest known names.
    """
    _load()
    if name not in _methods:
        raise UnknownNameError.of("method", name, _methods)
    return _methods[name]


def methods() -> Iterator[Method]:
    """All methods, in the order of the catalogue."""
    _load()
    yield from _methods.values()
