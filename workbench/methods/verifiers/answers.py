"""Claims about approximate verifiers: mean accepted length τ against the exact rule at equal answer accuracy."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from workbench.decoders.declarations import Claim

ANSWERED = ("arithmetic", "word problems", "records")
"""Types of benchmark prompts whose answers a program can check."""


def at_matched_accuracy(
    verifier: str,
    settings: Sequence[Mapping[str, Any]],
    setting: str,
    source: str,
    low: float | None = None,
    high: float | None = None,
    temperature: float = 0.7,
    method: str = "draft-model",
    exact: Mapping[str, Any] | None = None,
    lacks: str = "",
) -> Claim:
    """Return the claim that an approximate verifier has a larger mean accepted length τ than the exact rule.

    Both are compared at equal accuracy of answers, on sums, word problems and JSON records.

    Args:
        verifier: name of the verifier.
        settings: settings of the verifier's parameters, the strictest first. The measurement uses the laxest setting
            whose answers are as accurate as those of the exact rule.
        setting: the paper's models, data and sampling, for display.
        source: the paper, its section or table, and its address.
        low: the paper's ratio of τ with the verifier to τ with the exact rule. None: the paper only states that the
            ratio is above 1.
        high: upper end of the paper's range of this ratio.
        temperature: temperature of decoding with both rules.
        method: method whose drafts are verified.
        exact: parameters of the method with which both rules run.
        lacks: missing requirement of the claim, see `Claim.lacks`.
    """
    shared = dict(exact or {})
    ladder = [{**shared, "verifier": verifier, **params} for params in settings]
    sampling = f"temperature {temperature:g}" if temperature else "greedy"
    return Claim(
        f"τ with {verifier} relative to the exact rule at equal accuracy of answers, {sampling}",
        setting, low, high, source,
        lambda lab: lab.on_groups(*ANSWERED).at_matched_accuracy(ladder, shared, temperature),
        key=f"{verifier}-{'sampled' if temperature else 'greedy'}", method=method, lacks=lacks, matched=True,
    )  # fmt: skip
