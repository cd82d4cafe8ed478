"""Check a reader's answers to the exercises in a notebook: an answer is missing, right, or wrong with a hint."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from workbench.widgets.snapshot import escape


@dataclass(frozen=True, slots=True)
class CheckResult:
    """Result of checking an answer to an exercise. `right` is None if there is no answer yet."""

    right: bool | None
    words: str

    def __repr__(self) -> str:
        return f"{'·' if self.right is None else '✓' if self.right else '✕'} {self.words}"

    def _repr_html_(self) -> str:
        return f"<p><b>{escape(repr(self))}</b></p>"


def check(test: Callable[..., Any]) -> Callable[..., CheckResult]:
    """Decorator that turns a function with assertions about an answer into the checker of an exercise.

    An answer counts as missing if an argument is None or `...`, or is a function that raises NotImplementedError. The
    reader sees the message of a failed assertion, or the text of another error. No error is raised, so that a notebook
    with unsolved exercises runs to its end.

    Args:
        test: function whose arguments are the answers; its assertions have hints as messages.

    Example:
        >>> @check
        ... def first(answer):
        ...     assert answer == 4, "count the target's own token, too"
        >>> first(3), first(4)
        (✕ count the target's own token, too, ✓ right)
    """

    @functools.wraps(test)
    def judge(*answers: Any) -> CheckResult:
        missing = CheckResult(None, "no answer yet: write it in the cell above, then run both cells")
        if any(answer is None or answer is ... for answer in answers):
            return missing
        try:
            test(*answers)
        except NotImplementedError:
            return missing
        except AssertionError as failure:
            return CheckResult(False, str(failure) or "not yet")
        except Exception as problem:  # an answer may raise any exception
            return CheckResult(False, f"{type(problem).__name__}: {problem}")
        return CheckResult(True, "right")

    return judge
