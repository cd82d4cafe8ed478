"""Check untrusted trace data against the type annotations of the event classes; numbers must be finite.

`export.check_trace` runs this check on traces from users, so that code that reads a trace may rely on its types.
"""

from __future__ import annotations

import dataclasses
import math
import types
import typing
from collections.abc import Callable, Iterable, Mapping
from functools import cache
from itertools import chain
from typing import Any, TypeGuard

WHOLE = 2**63
"""Bound of integers in a trace: they must lie in −2⁶³ … 2⁶³ − 1, the range of a Parquet column."""
UNBOUNDED = {"seed"}
"""Names of fields of a trace that may be any integer, because they are stored as decimal digits."""
LOOSE = {"signals"}
"""Names of fields of a trace whose numbers may be null, because numbers that are not finite are written as null."""
Fits = Callable[[Any], bool]


def is_object(value: Any) -> TypeGuard[dict[Any, Any]]:
    """Return whether a value is a JSON object."""
    return isinstance(value, dict)


def is_list(value: Any) -> TypeGuard[list[Any]]:
    """Return whether a value is a JSON list."""
    return isinstance(value, list)


def find_invalid_field(event: Any) -> str:
    """Return the name of the first field of a trace event that has the wrong type; "" if there is none.

    Names of nested fields are joined by dots.

    Example:
        >>> from workbench.trace.events import Footer
        >>> [find_invalid_field(footer) for footer in (Footer(), Footer(seconds=float("inf")), Footer(warnings=[1]))]
        ['', 'seconds', 'warnings']
    """
    for name, fits in _fields(event.__class__).items():
        value = getattr(event, name)
        if dataclasses.is_dataclass(value) and (inner := find_invalid_field(getattr(event, name))):
            return f"{name}.{inner}"
        if not fits(value):
            return name
    return ""


@cache
def _fields(kind: type) -> dict[str, Fits]:
    hints = typing.get_type_hints(kind)
    checks = {f.name: _fits(hints[f.name]) for f in dataclasses.fields(kind)}
    checks |= {name: lambda value: type(value) is int for name in UNBOUNDED & checks.keys()}
    return checks | dict.fromkeys(LOOSE & checks.keys(), _numbers_or_none)


def _fits(kind: Any) -> Fits:
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if kind is Any:
        return _is_plain
    if origin in (typing.Union, types.UnionType):
        options = [_fits(option) for option in arguments]
        return lambda value: any(fits(value) for fits in options)
    if origin is list:
        return _list_of(arguments[0])
    if origin in (dict, Mapping):
        of_value = _fits(arguments[1])
        return lambda value: (
            is_object(value) and all(_is_text(key) for key in value) and all(map(of_value, value.values()))
        )
    if dataclasses.is_dataclass(kind):
        return lambda value: isinstance(value, kind) and not find_invalid_field(value)  # type: ignore[arg-type]
    return {int: _is_whole, float: _is_number, str: _is_text}.get(kind, lambda value: type(value) is kind)


def _list_of(kind: Any) -> Fits:
    """Return a function that checks whether a value is a list whose items all have the type `kind`.

    A list of strings is joined, so that one check covers all of them.
    """
    of_item = _fits(kind)
    quick: dict[Any, Fits] = {str: lambda items: _is_text("".join(items)) if _all_are(items, str) else False}
    test = quick.get(kind, lambda items: all(map(of_item, items)))
    return lambda value: isinstance(value, list) and test(value)


def _all_are(items: list[Any], kind: type) -> bool:
    return set(map(type, items)) <= {kind}


def _is_whole(value: Any) -> bool:
    return type(value) is int and -WHOLE <= value < WHOLE


def _is_number(value: Any) -> bool:
    return math.isfinite(value) if type(value) is float else _is_whole(value)


def _is_text(value: Any) -> bool:
    """Return whether a value is a string without lone surrogates, which cannot be encoded in UTF-8."""
    return type(value) is str and (value.isascii() or not any("\ud800" <= c <= "\udfff" for c in value))


def _numbers_or_none(value: Any) -> bool:
    return is_object(value) and all(
        _is_text(key) and (item is None or type(item) is float or _is_whole(item)) for key, item in value.items()
    )


def _is_plain(value: Any) -> bool:
    """Return whether a value is valid JSON data: integers of at most 64 bits, nested at most 41 levels deep."""
    pending = [(value, 0)]
    while pending:
        current, depth = pending.pop()
        if type(current) is int and not -WHOLE <= current < 2 * WHOLE:
            return False
        if isinstance(current, str) and not _is_text(current):
            return False
        if isinstance(current, (list, tuple, dict)):
            if depth > _DEEPEST:
                return False
            pending += [(item, depth + 1) for item in _inside(current)]
    return True


def _inside(one: Any) -> Iterable[Any]:
    return chain(one, one.values()) if is_object(one) else one


_DEEPEST = 40
