"""Whether plain data is what the annotations of the events say: every field of its kind, every number one that counts.

`export.checked` asks this of a trace from outside, so that whatever reads a trace may rely on its types.
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
"""Whole numbers lie in −2⁶³ … 2⁶³ − 1: what a Parquet column holds."""
UNBOUNDED = {"seed"}
"""Fields that may be any integer: they are kept as decimal digits."""
LOOSE = {"signals"}
"""Fields whose numbers may be missing: a drafter's figure that was not finite is written as null."""
Fits = Callable[[Any], bool]


def is_object(value: Any) -> TypeGuard[dict[Any, Any]]:
    """Whether it is one of JSON's objects."""
    return isinstance(value, dict)


def is_list(value: Any) -> TypeGuard[list[Any]]:
    """Whether it is one of JSON's lists."""
    return isinstance(value, list)


def misfit(event: Any) -> str:
    """The first field of a dataclass that is not of its kind; empty where all are. Fields of fields are named by dots.

    Example:
        >>> from workbench.trace.events import Footer
        >>> misfit(Footer()), misfit(Footer(seconds=float("inf"))), misfit(Footer(warnings=[1]))
        ('', 'seconds', 'warnings')
    """
    for name, fits in _fields(event.__class__).items():
        value = getattr(event, name)
        if dataclasses.is_dataclass(value) and (inner := misfit(getattr(event, name))):
            return f"{name}.{inner}"
        if not fits(value):
            return name
    return ""


@cache
def _fields(kind: type) -> dict[str, Fits]:
    hints = typing.get_type_hints(kind)
    found = {f.name: _fits(hints[f.name]) for f in dataclasses.fields(kind)}
    found |= {name: lambda value: type(value) is int for name in UNBOUNDED & found.keys()}
    return found | dict.fromkeys(LOOSE & found.keys(), _numbers_or_none)


def _fits(kind: Any) -> Fits:
    origin, inside = typing.get_origin(kind), typing.get_args(kind)
    if kind is Any:
        return _is_plain
    if origin in (typing.Union, types.UnionType):
        options = [_fits(option) for option in inside]
        return lambda value: any(fits(value) for fits in options)
    if origin is list:
        return _list_of(inside[0])
    if origin in (dict, Mapping):
        of_value = _fits(inside[1])
        return lambda value: (
            is_object(value) and all(_is_text(key) for key in value) and all(map(of_value, value.values()))
        )
    if dataclasses.is_dataclass(kind):
        return lambda value: isinstance(value, kind) and not misfit(value)  # type: ignore[arg-type]
    return {int: _is_whole, float: _is_number, str: _is_text}.get(kind, lambda value: type(value) is kind)


def _list_of(kind: Any) -> Fits:
    """Columns of numbers and texts are long: their types are looked at together."""
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
    """Text that can be written down: half of a surrogate pair cannot."""
    return type(value) is str and (value.isascii() or not any("\ud800" <= c <= "\udfff" for c in value))


def _numbers_or_none(value: Any) -> bool:
    return is_object(value) and all(
        _is_text(key) and (one is None or type(one) is float or _is_whole(one)) for key, one in value.items()
    )


def _is_plain(value: Any) -> bool:
    """JSON whose whole numbers are not out of every range, nested as little as what the workbench writes."""
    within = [(value, 0)]
    while within:
        one, depth = within.pop()
        if type(one) is int and not -WHOLE <= one < 2 * WHOLE:
            return False
        if isinstance(one, str) and not _is_text(one):
            return False
        if isinstance(one, (list, tuple, dict)):
            if depth > _DEEPEST:
                return False
            within += [(item, depth + 1) for item in _inside(one)]
    return True


def _inside(one: Any) -> Iterable[Any]:
    return chain(one, one.values()) if is_object(one) else one


_DEEPEST = 40
