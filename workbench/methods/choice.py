"""Choice of the default decoding method, for the command line, the servers and the app."""

from __future__ import annotations

from collections.abc import Callable

PREFERRED = ("draft-model", "prompt-lookup", "llada")
"""Names of the preferred methods, in order; the first method that can run is the default. The second method is exact
and needs only a target that generates from left to right. The last method is for masked-diffusion models."""


def choose(why_not: Callable[[str], str]) -> tuple[str, str]:
    """Return the first method of `PREFERRED` that can run, and the reason why the method before it cannot run.

    Args:
        why_not: function that gets a method's name and returns why this method cannot run with the current models; ""
            if it can.

    Returns:
        Name of the method, and the reason why the method before it in `PREFERRED` cannot run ("" for the first method).
        The last method is returned without a call of `why_not`.

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
