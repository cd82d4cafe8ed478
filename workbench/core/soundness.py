"""Decide whether a drafter and a verifier together preserve the target's distribution, from their declarations."""

from __future__ import annotations

from collections.abc import Collection

from workbench.core.tree import Sampling

_MISMATCH = {
    Sampling.DETERMINISTIC: "proposed deterministically, but the verifier divides by q as if they had been sampled",
    Sampling.CHAIN: "sampled one per position, but the verifier divides by a probability meant for several siblings",
    Sampling.SAMPLED: "sampled independently, so a token may occur twice, but the verifier removes earlier "
    "siblings from q and then divides by too large a probability",
    Sampling.WITHOUT_REPLACEMENT: "drawn without replacement, but the verifier expects independent samples and "
    "divides by another probability",
    Sampling.FIXED_NUMBER: "drawn without replacement, but the verifier expects independent samples and divides "
    "by too small a probability",
    Sampling.HEAD_AND_ONE: "the most likely tokens followed by one sampled token, but the verifier expects all "
    "tokens to be sampled",
    Sampling.MIXED: "partly deterministic and partly sampled from several distributions, but the verifier "
    "expects one distribution for all",
}
"""Sampling method of siblings → explanation why an acceptance rule is inexact if it does not support this method."""
_NUMBER_NOT_FIXED = (
    "drawn without replacement, and their number may depend on the sampled tokens, but the verifier expects a "
    "number that is fixed beforehand"
)
"""Explanation why an acceptance rule that needs a fixed number of siblings is inexact for
`Sampling.WITHOUT_REPLACEMENT`."""


def why_unsound(drafter: str, siblings: Collection[Sampling], verifier: str, exact_for: Collection[Sampling]) -> str:
    """Return why sampled output of a drafter with a verifier does not follow the target's distribution; "" if it does.

    Args:
        drafter: registry name of the drafter, for the message.
        siblings: sampling methods with which the drafter may choose siblings.
        verifier: registry name of the verifier, for the message.
        exact_for: sampling methods for which the verifier is exact.

    Source: the condition for each sampling method is derived in Leviathan et al. 2023, arXiv:2211.17192 (one draft),
    Miao et al. 2024, arXiv:2305.09781 (independent siblings), and Jeon et al. 2024, arXiv:2402.14160 (without
    replacement).

    Example:
        >>> why_unsound("ngram", {Sampling.DETERMINISTIC}, "lossless", set(Sampling))
        ''
        >>> why_unsound("ngram", {Sampling.DETERMINISTIC}, "typical", ())
        "The verifier typical is approximate: it preserves the target's distribution with no drafter."
    """
    if not exact_for:
        return f"The verifier {verifier} is approximate: it preserves the target's distribution with no drafter."
    for kind in Sampling:
        if kind in siblings and kind not in exact_for:
            needs_fixed_number = kind is Sampling.WITHOUT_REPLACEMENT and Sampling.FIXED_NUMBER in exact_for
            reason = _NUMBER_NOT_FIXED if needs_fixed_number else _MISMATCH[kind]
            return (
                f"The verifier {verifier} is not exact with the drafter {drafter}: sibling tokens of its "
                f"drafts may be {reason}."
            )
    return ""
