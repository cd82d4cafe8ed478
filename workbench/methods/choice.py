"""Default method: one rule for the command line, the servers and the app."""

from __future__ import annotations

from collections.abc import Callable

PREFERRED = ("draft-model", "prompt-lookup", "llada")
"""Preferred methods in this order. The second needs only a target that generates from left to right and is exact; the
last is for masked-diffusion models."""


def choose(why_not: Callable[[str], str]) -> tuple[str, str]:
    """Return the first preferred method that can run.

    Args:
        why_not: reason why a method cannot run with the current models, by its name; empty if it can.

    Returns:
        Name of the method, and why the preferred one before it was skipped; "" if none was skipped.

    Example:
        >>> choose({"draft-model": "There is no draft model.", "prompt-lookup": ""}.__getitem__)
        ('prompt-lookup', 'There is no draft model.')
    """
    skip_reason = ""
    for name in PREFERRED[:-1]:
        reason = why_not(name)
        if not reason:
            return name, skip_reason
        skip_reason = reason
    return PREFERRED[-1], skip_reason
