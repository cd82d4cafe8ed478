"""Which method decodes where none is named: one rule for the command line, the servers and the app."""

from __future__ import annotations

from collections.abc import Callable

PREFERRED = ("draft-model", "prompt-lookup")
"""In this order. The last one needs nothing but the target and is exact, so that something always runs."""


def choose(why_not: Callable[[str], str]) -> tuple[str, str]:
    """The first preferred method that can run.

    Args:
        why_not: by a method's name, why it cannot run with the models at hand; empty when it can.

    Returns:
        Its name, and why the one before it was passed over; that is empty where it is the first choice.

    Example:
        >>> choose({"draft-model": "There is no draft model.", "prompt-lookup": ""}.__getitem__)
        ('prompt-lookup', 'There is no draft model.')
    """
    passed = ""
    for name in PREFERRED[:-1]:
        reason = why_not(name)
        if not reason:
            return name, passed
        passed = reason
    return PREFERRED[-1], passed
