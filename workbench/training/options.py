"""Parse the options of training recipes from text. Types are stored by name, so parsing works without PyTorch."""

from __future__ import annotations

import dataclasses
import inspect
import re
import types
import typing
from pathlib import Path
from typing import Any

KINDS: dict[str, Any] = {
    "bool": bool,
    "int": int,
    "int | None": int | None,
    "float": float,
    "float | None": float | None,
    "str": str,
    "Path": Path,
    "Path | None": Path | None,
    "tuple[int, ...]": tuple[int, ...],
    "tuple[str, ...]": tuple[str, ...],
}
"""Types of training options, by the names that the list of recipes uses for them."""


def kind_name(kind: Any) -> str:
    """Return the name of an option's type.

    Raises:
        KeyError: the type is missing in `KINDS`; add it there.
    """
    for name, option_type in KINDS.items():
        if option_type == kind:
            return name
    raise KeyError(kind)


def types_of(options: type) -> dict[str, Any]:
    """Return the type of each training option by name, from a dataclass of options."""
    hints = typing.get_type_hints(options)
    return {field.name: hints[field.name] for field in dataclasses.fields(options)}


def docs_of(kind: type) -> dict[str, str]:
    """Return the description of each option, from the docstrings of a dataclass of options and of its base classes."""
    descriptions: dict[str, str] = {}
    for base in reversed(kind.__mro__):
        _, _, attributes = (inspect.getdoc(base) or "").partition("Attributes:\n")
        entries = re.findall(r"^    (\w+): (.*(?:\n {8}.*)*)", attributes, re.MULTILINE)
        descriptions |= {name: " ".join(text.split()) for name, text in entries}
    return descriptions


def convert(name: str, kind: Any, value: Any) -> Any:
    """Convert an option's value, which may be text, to its type.

    Raises:
        ValueError: the value cannot be converted.
    """
    if isinstance(kind, types.UnionType):
        kind = next(part for part in typing.get_args(kind) if part is not types.NoneType)
        if value in {"", "none"}:
            return None
    origin = typing.get_origin(kind)
    try:
        if origin is tuple:
            item = typing.get_args(kind)[0]
            return tuple(item(part) for part in (value.split(",") if isinstance(value, str) else value) if part != "")
        if kind is bool and isinstance(value, str):
            return {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}[value.lower()]
        return kind(value)
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(f"option {name} takes {getattr(kind, '__name__', kind)}, not {value!r}") from error
