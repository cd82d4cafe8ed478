"""Checks of shapes and types in tests: an int is accepted as a float, and frequent calls are checked only sometimes.

A check takes some fifty microseconds, longer than most checked calls. A nested function is defined again in each call
of the outer one, and compiling its checker takes milliseconds each time. In tests that decode, that was two thirds of
the time.
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
"""Type checker that accepts an int as a float (PEP 484)."""

FIRST_CALLS, CHECK_EVERY = 2, 200
"""In each test, the first `FIRST_CALLS` calls of each function are checked, and then every `CHECK_EVERY`-th call."""
_jaxtyped = jaxtyping.jaxtyped
_defined = Counter[int]()
_test = 0


def reset_call_counts() -> None:
    """Start counting calls from zero."""
    global _test
    _test += 1


def _is_due(n: int) -> bool:
    return n <= FIRST_CALLS or n % CHECK_EVERY == 0


def _called_sparingly(function: Callable[..., Any], check: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function of which some calls are checked; the first of these compiles the checker."""
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


def jaxtyped_sparingly(*, typechecker: Any) -> Callable[[Any], Any]:
    """Return a decorator for functions and classes, in place of `jaxtyping.jaxtyped` in the import hook.

    Of a nested function, the first definitions in this process get a checker, and then one in `CHECK_EVERY`; none gets
    one while shape checks are switched off. Functions that are not nested always get one.
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
    """Use these checks for all modules that jaxtyping's import hook loads from now on."""
    jaxtyping.jaxtyped = jaxtyped_sparingly
