"""Claims about approximate verifiers: τ at matched accuracy of answers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from workbench.decoders.declarations import Claim

ANSWERED = ("arithmetic", "word problems", "records")
"""Kinds of prompts whose answers a program checks."""


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
    """Return the claim that a rule accepts more than the exact rule at equal accuracy of answers.

    It is measured on sums, word problems and JSON records.

    Args:
        verifier: name of the verifier.
        settings: its parameters, the strictest first; the laxest that keeps the accuracy is used.
        setting: the paper's models, data and sampling.
        source: paper, section or table, address.
        low: τ with the verifier / with the exact rule, from the paper; None: the paper only says that it is above 1.
        high: upper end of the paper's range.
        temperature: temperature of both rules.
        method: method whose drafts are verified.
        exact: parameters that both rules share.
        lacks: see `Claim.lacks`.
    """
    shared = dict(exact or {})
    ladder = [{**shared, "verifier": verifier, **params} for params in settings]
    sampling = f"temperature {temperature:g}" if temperature else "greedy"
    return Claim(
        f"τ with {verifier} / with the exact rule at equal accuracy of answers, {sampling}",
        setting, low, high, source,
        lambda lab: lab.on_groups(*ANSWERED).at_matched_accuracy(ladder, shared, temperature),
        key=f"{verifier}-{'sampled' if temperature else 'greedy'}", method=method, lacks=lacks, matched=True,
    )  # fmt: skip
