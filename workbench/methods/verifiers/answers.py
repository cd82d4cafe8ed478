"""What approximate verifiers promise of tasks: how many answers are as right as under the exact rule."""

from __future__ import annotations

from collections.abc import Mapping

from workbench.engine.declared import WRONG_SCALE, Claim

ANSWERED = ("arithmetic", "word problems", "records")
"""Kinds of prompts whose answers a program checks."""
FEW_RIGHT = (
    f"{WRONG_SCALE}: SmolLM2 has 37 of 176 answers right with the exact rule, so that a quarter either"
    " way is left to chance."
)


def right_answers(
    verifier: str,
    setting: str,
    source: str,
    low: float | None = 1.0,
    high: float | None = 1.0,
    temperature: float = 0.7,
    method: str = "draft-model",
    lacks: str = "",
    why: tuple[str, str] = ("", ""),
    why_on: Mapping[str, tuple[str, str]] | None = None,
) -> Claim:
    """The claim that answers stay right, measured on sums, word problems and JSON records.

    Args:
        verifier: by its name.
        setting: the paper's models, data and sampling.
        source: paper, section or table, address.
        low: right answers with the verifier / with the exact rule, as the paper has it; with `high` a range.
        high: see `low`.
        method: whose drafts it judges.
        lacks: see `Claim.lacks`.
        why: see `Claim.why`.
        why_on: see `Claim.why_on`.
        temperature: 0 only for a rule that may write other greedy text than the target's; at 0 others change nothing.
    """
    drawn = f"temperature {temperature:g}" if temperature else "greedy"
    return Claim(
        f"answers right with {verifier} / with the exact rule, {drawn}",
        setting, low, high, source,
        lambda lab: lab.on(*ANSWERED).right_over({"verifier": verifier}, {}, temperature),
        key=f"{verifier}-problems", tolerance=0.05, method=method, lacks=lacks, why=why, why_on=dict(why_on or {}),
        neutral=1.0 if high is None else high,  # nearness is claimed: that all answers are wrong is not "in direction"
    )  # fmt: skip
