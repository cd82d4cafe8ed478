"""Which drafts and which rules keep the target's law together: derived from what each declares of itself."""

from __future__ import annotations

from collections.abc import Collection

from workbench.core.tree import Sampling

_OTHERWISE = {
    Sampling.DETERMINISTIC: "chosen, not drawn, and a rule that divides by q takes a chance for granted that none had",
    Sampling.CHAIN: "drawn one behind the other, one for each place, and a rule that takes them for anything else "
    "divides by another chance than they had",
    Sampling.SAMPLED: "drawn independently of each other, so that a token may come twice, and a rule that takes what "
    "elder siblings hold out of q divides by too large a chance",
    Sampling.WITHOUT_REPLACEMENT: "drawn without replacement, so that none is like an elder one, and a rule that takes "
    "them for independent draws counts with another chance than they had",
    Sampling.FIXED_NUMBER: "drawn without replacement, so that none is like an elder one, and a rule that takes them "
    "for independent draws divides by too small a chance",
    Sampling.HEAD_AND_ONE: "the likeliest tokens with one draw behind them, and a rule that takes all of them for "
    "draws divides by a chance that the chosen ones never took",
    Sampling.MIXED: "partly chosen and partly drawn, each by a law of its own, and a rule that knows one law for all "
    "divides by another one's chance",
}
"""How siblings come, and what goes wrong under a rule that is not made for it."""
_UNSETTLED = (
    "drawn without replacement, and how many they are may depend on what was drawn: a rule that takes their number for "
    "settled beforehand, as it is elsewhere, counts with another chance than they had"
)
"""The same of siblings whose number is not settled, under a rule that is exact where it is."""


def why_unsound(drafter: str, siblings: Collection[Sampling], verifier: str, exact_for: Collection[Sampling]) -> str:
    """Why what comes out does not have the target's law when sampling; "" if it has.

    Args:
        drafter: whose drafts they are, by its name in the registry, for the sentence.
        siblings: how its siblings may come.
        verifier: the same of who judges them.
        exact_for: ways of choosing siblings for which its rule is exact.

    Source: what each kind needs is derived in Leviathan et al. 2023, arXiv:2211.17192 (one draft), Miao et al. 2024,
    arXiv:2305.09781 (independent siblings), and Jeon et al. 2024, arXiv:2402.14160 (without replacement).

    Example:
        >>> why_unsound("ngram", {Sampling.DETERMINISTIC}, "lossless", set(Sampling))
        ''
        >>> why_unsound("ngram", {Sampling.DETERMINISTIC}, "typical", ())
        "typical keeps the target's law for no way of drafting: it is approximate."
    """
    if not exact_for:
        return f"{verifier} keeps the target's law for no way of drafting: it is approximate."
    for kind in Sampling:
        if kind in siblings and kind not in exact_for:
            of_number = kind is Sampling.WITHOUT_REPLACEMENT and Sampling.FIXED_NUMBER in exact_for
            how = _UNSETTLED if of_number else _OTHERWISE[kind]
            return f"{verifier} is not exact for {drafter}: its siblings may be {how}."
    return ""
