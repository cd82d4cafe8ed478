"""Shapes and types as tests check them: an int is a float, and functions within functions are looked at sparingly."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from types import FunctionType
from typing import Any

import jaxtyping
from beartype import BeartypeConf
from beartype import beartype as _beartype
from jaxtyping import config

beartype = _beartype(conf=BeartypeConf(is_pep484_tower=True))
"""As everywhere else in Python."""

OFTEN, THEN_EVERY = 10, 100
_jaxtyped = jaxtyping.jaxtyped
_defined = Counter[int]()


def worth_checking(function: FunctionType) -> bool:
    """Whether calls of a function within a function, which is defined anew each time the outer one runs, are checked.

    Its checker is compiled each time, for milliseconds, where the function itself runs for microseconds: that was half
    of the time of tests that decode. The first definitions are checked, and later on some; where shapes go unchecked,
    none. The outer function is always checked.
    """
    if config.jaxtyping_disable:
        return False
    _defined[id(function.__code__)] += 1
    n = _defined[id(function.__code__)]
    return n <= OFTEN or n % THEN_EVERY == 0


def sparing(*, typechecker: Any) -> Callable[[Any], Any]:
    """`jaxtyping.jaxtyped`, which the import hook decorates everything with, for what is worth checking."""
    check = _jaxtyped(typechecker=typechecker)

    def decorate(what: Any) -> Any:
        inner = isinstance(what, FunctionType) and "<locals>" in what.__qualname__
        return what if inner and not worth_checking(what) else check(what)

    return decorate


def install() -> None:
    """From now on modules that jaxtyping's import hook loads are checked so."""
    jaxtyping.jaxtyped = sparing
