"""Shapes and types as tests check them: an int is a float, and what is called again and again is looked at sparingly.

A check takes some fifty microseconds, more than most of what it looks at; and a function within a function, which is
defined anew each time the outer one runs, has its checker compiled each time, for milliseconds. In tests that decode
that was two thirds of the time.
"""

from __future__ import annotations

import dataclasses
import functools
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

OFTEN, THEN_EVERY = 5, 100
"""In each test the first calls of each function are checked, and of the later ones each hundredth."""
_jaxtyped = jaxtyping.jaxtyped
_defined = Counter[int]()
_test = 0


def next_test() -> None:
    """Count calls from zero."""
    global _test
    _test += 1


def _is_due(n: int) -> bool:
    return n <= OFTEN or n % THEN_EVERY == 0


def _called_sparingly(function: Callable[..., Any], check: Callable[..., Any]) -> Callable[..., Any]:
    """A function of which some calls go through its checker, which is compiled at the first of them."""
    n, of, checked = 0, _test, None

    @functools.wraps(function)
    def called(*args: Any, **kwargs: Any) -> Any:
        nonlocal n, of, checked
        if config.jaxtyping_disable:
            return function(*args, **kwargs)
        if of != _test:
            n, of = 0, _test
        n += 1
        if not _is_due(n):
            return function(*args, **kwargs)
        checked = checked or check(function)
        return checked(*args, **kwargs)

    return called


def sparing(*, typechecker: Any) -> Callable[[Any], Any]:
    """`jaxtyping.jaxtyped`, with which the import hook decorates every function and every class.

    Of functions within functions the first definitions in this process get a checker, and then each hundredth; where
    shapes go unchecked, none does. The outer functions are always checked.
    """
    check = _jaxtyped(typechecker=typechecker)

    def decorate(what: Any) -> Any:
        if isinstance(what, type):
            if dataclasses.is_dataclass(what) and "__init__" in vars(what):
                what.__init__ = decorate(what.__init__)
            return what
        if not isinstance(what, FunctionType):
            return check(what)
        if "<locals>" in what.__qualname__:
            if config.jaxtyping_disable:
                return what
            _defined[id(what.__code__)] += 1
            if not _is_due(_defined[id(what.__code__)]):
                return what
        return _called_sparingly(what, check)

    return decorate


def install() -> None:
    """From now on modules that jaxtyping's import hook loads are checked so."""
    jaxtyping.jaxtyped = sparing
