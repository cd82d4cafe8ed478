"""Results of the rollouts study: τ of the two heads, times of the tails, intervals, and the board that shows them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from workbench.models.machine import describe
from workbench.training.cards import table

BOARD = "rollouts.json"
PLAIN, FROZEN, ADAPTIVE = "plain", "frozen", "adaptive"
"""Ways to generate each rollout: without drafts, with the frozen EAGLE head, with online training."""
RESAMPLES, SEED = 2000, 0


def tau(arm: dict[str, Any]) -> float:
    """Return the tokens per round, over all prompts of a rollout."""
    return sum(arm["emitted"]) / sum(arm["rounds"])


def gain(steps: Sequence[dict[str, Any]]) -> tuple[float, float, float]:
    """Return τ of the adaptive head / τ of the frozen one over the prompts of some steps, and a 95 % interval.

    The interval is over prompts.

    Source: Efron & Tibshirani 1993, §13.3 (percentiles over resampled prompts).
    """
    counts = np.array([[[n for s in steps for n in s[arm][key]] for key in ("emitted", "rounds")]
                       for arm in (ADAPTIVE, FROZEN)])  # fmt: skip
    samples = np.random.default_rng(SEED).integers(counts.shape[2], size=(RESAMPLES, counts.shape[2]))

    def ratio(sums: np.ndarray) -> Any:
        return (sums[0, 0] / sums[0, 1]) / (sums[1, 0] / sums[1, 1])

    low, high = np.percentile(ratio(counts[:, :, samples].sum(-1)), (2.5, 97.5))
    return float(ratio(counts.sum(-1))), float(low), float(high)


def tail_gain(steps: Sequence[dict[str, Any]], arm: str, net: bool = False) -> tuple[float, float, float]:
    """Return tail time of plain decoding / tail time of another way, in CPU time, with a 95 % interval over steps.

    Args:
        steps: steps of the loop.
        arm: the other way.
        net: leave out the time of online training.

    Returns:
        Value, low and high; NaN each if some step had no tail, because all of its sequences ended together.
    """
    plain = np.array([s[PLAIN]["tail_s"] for s in steps])
    other = np.array([s[arm]["tail_s"] - (s[arm]["lessons_s"] if net else 0.0) for s in steps])
    if min(plain.min(), other.min()) <= 0:
        return math.nan, math.nan, math.nan
    samples = np.random.default_rng(SEED).integers(len(steps), size=(RESAMPLES, len(steps)))
    low, high = np.percentile(plain[samples].sum(1) / other[samples].sum(1), (2.5, 97.5))
    return float(plain.sum() / other.sum()), float(low), float(high)


def figures(steps: Sequence[dict[str, Any]]) -> dict[str, tuple[float, float, float]]:
    """Return the results of the steps: value, low, high. τ is compared in the steps after the target has changed."""
    return {
        "τ of the adaptive head / τ of the frozen one, all steps after the first": gain(steps[1:]),
        "the same, the second half of the steps": gain(steps[(len(steps) + 1) // 2 :]),
        "tail of plain decoding / tail with the frozen head, in CPU time": tail_gain(steps, FROZEN),
        "tail of plain decoding / tail with the adaptive head, its lessons left out": tail_gain(steps, ADAPTIVE, True),
        "tail of plain decoding / tail with the adaptive head and its lessons": tail_gain(steps, ADAPTIVE),
    }


def page(report: dict[str, Any]) -> str:
    """Return the board, from the report of `workbench train rollouts`."""
    steps, settings = report["steps"], report["settings"]
    flags = "".join(f" --set {name}={value}" for name, value in report["options"].items())
    rows = []
    for i, s in enumerate(steps):
        value, low, high = gain([s])
        rows.append([
            str(i), f"{s['in_format']} of {settings['batch']}", f"{tau(s[FROZEN]):.2f}", f"{tau(s[ADAPTIVE]):.2f}",
            f"{value:.2f} [{low:.2f}–{high:.2f}]", str(s["tail_lessons"]), str(s["idle_lessons"]),
            f"{s[PLAIN]['tail_s']:.2f}", f"{s[FROZEN]['tail_s']:.2f}", f"{s[ADAPTIVE]['tail_s']:.2f}",
            f"{s[ADAPTIVE]['lessons_s']:.2f}",
        ])  # fmt: skip
    header = (
        "step", "answers in the format", "τ frozen", "τ adaptive", "adaptive / frozen", "lessons in the tail",
        "lessons between", "tail, plain, s", "tail, frozen, s", "tail, adaptive, s", "of it lessons, s",
    )  # fmt: skip
    result_rows = [
        [name, "–", "a step had no tail"] if math.isnan(v) else [name, f"{v:.2f}", f"{low:.2f} to {high:.2f}"]
        for name, (v, low, high) in figures(steps).items()
    ]
    n = sum(len(s[FROZEN]["emitted"]) for s in steps)
    n_same = [sum(s[arm]["same"] for s in steps) for arm in (FROZEN, ADAPTIVE)]
    never = "" if any(s["in_format"] for s in steps) else " (in so few steps none of its answers does so yet)"
    return "\n".join(
        [
            "# A head that learns while the target is trained",
            "",
            f"`{report['target']}` is trained to number the sentences of its stories{never}, "
            f"{settings['updates']} steps of "
            f"AdamW between two rollouts of {settings['batch']} fresh prompts, whose answers have log-normal lengths "
            f"(median {settings['median']}, at most {settings['longest']} tokens). Each rollout is written three "
            "times, "
            "greedily: by plain decoding, with EAGLE-2 and the head as it was trained for the target of step 0, "
            "and with "
            f"`tlt`, which begins with that head and learns while at most {settings['share']:.0%} of the rows run, and "
            "between rollouts (Hu et al. 2025, arXiv:2511.16665). This is likelihood on a format and not reinforcement "
            "learning: the drafter sees weights that change, and nothing else of it. The head that learns gains in two "
            "ways, which this loop does not tell apart: it follows the target, and it sees one kind of text alone.",
            "",
            f"Measured on {describe(report['machine'])}, {report['machine']['threads']} thread, float32. Seconds "
            "are CPU time "
            "of the process, in which decoding and lessons share one thread. Intervals are 95 %: of τ over prompts, of "
            f"tails over steps. Made by `workbench train rollouts{flags}`.",
            "",
            table(("over the run", "value", "95 % interval"), result_rows),
            "",
            table(header, rows),
            "",
            f"Of {n} answers, {n_same[0]} with the frozen head and {n_same[1]} with the adaptive one are plain "
            "decoding's "
            "token for token; in float32 a tie may fall otherwise in a batch of another shape.",
            "",
        ]
    )
