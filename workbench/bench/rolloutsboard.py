"""The board of a finished study of TLT: rollouts of a target in training, with a frozen and an adaptive EAGLE head."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from workbench.bench.boardfiles import describe_finished_study
from workbench.bench.markdown import markdown_table
from workbench.models.machine import describe

BOARD = "rollouts.json"
PLAIN, FROZEN, ADAPTIVE = "plain", "frozen", "adaptive"
"""Methods that generate each rollout: without drafts, with the frozen EAGLE head, with online training."""
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
    """Return the tail time (CPU) of plain decoding divided by that of another method, with a 95 % interval over steps.

    Args:
        steps: steps of the loop.
        arm: the other method.
        net: whether to exclude the time of online training.

    Returns:
        Value, low and high; all NaN if a step had no tail because all of its sequences ended together.
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
        "tail of plain decoding / tail with the adaptive head, training excluded": tail_gain(steps, ADAPTIVE, True),
        "tail of plain decoding / tail with the adaptive head, training included": tail_gain(steps, ADAPTIVE),
    }


def page(report: dict[str, Any]) -> str:
    """Return the board, from the study's report."""
    steps, settings = report["steps"], report["settings"]
    columns: dict[str, Callable[[int], str]] = {
        "step": str,
        "answers in the format": lambda i: f"{steps[i]['in_format']} of {settings['batch']}",
        "τ frozen": lambda i: f"{tau(steps[i][FROZEN]):.2f}",
        "τ adaptive": lambda i: f"{tau(steps[i][ADAPTIVE]):.2f}",
        "adaptive / frozen": lambda i: "{:.2f} [{:.2f}–{:.2f}]".format(*gain([steps[i]])),
        "training steps in the tail": lambda i: str(steps[i]["tail_lessons"]),
        "training steps between": lambda i: str(steps[i]["idle_lessons"]),
        "tail, plain, s": lambda i: f"{steps[i][PLAIN]['tail_s']:.2f}",
        "tail, frozen, s": lambda i: f"{steps[i][FROZEN]['tail_s']:.2f}",
        "tail, adaptive, s": lambda i: f"{steps[i][ADAPTIVE]['tail_s']:.2f}",
        "of it training, s": lambda i: f"{steps[i][ADAPTIVE]['lessons_s']:.2f}",
    }
    results = figures(steps)
    result_columns: dict[str, Callable[[str], str]] = {
        "over the run": str,
        "value": lambda name: "–" if math.isnan(results[name][0]) else f"{results[name][0]:.2f}",
        "95 % interval": lambda name: (
            "a step had no tail" if math.isnan(results[name][0]) else "{:.2f} to {:.2f}".format(*results[name][1:])
        ),
    }
    n = sum(len(s[FROZEN]["emitted"]) for s in steps)
    n_same = [sum(s[arm]["same"] for s in steps) for arm in (FROZEN, ADAPTIVE)]
    never = "" if any(s["in_format"] for s in steps) else " (after so few steps, none of its answers has numbers yet)"
    return "\n".join(
        [
            "# Online training of a head while the target is trained",
            "",
            f"`{report['target']}` is trained to number the sentences of its stories{never}, {settings['updates']} "
            f"steps of AdamW between two rollouts of {settings['batch']} new prompts, whose answers have log-normal "
            f"lengths (median {settings['median']}, at most {settings['longest']} tokens). Each rollout is generated "
            "three times, greedily: by plain decoding, with EAGLE-2 and the head that was trained for the target of "
            f"step 0, and with `tlt`, which starts from that head and trains it while at most {settings['share']:.0%} "
            "of the sequences are running, and between rollouts (Hu et al. 2025, arXiv:2511.16665). The target is "
            "trained by likelihood on a format, not by reinforcement learning: only the change of its weights affects "
            "the drafter. The adaptive head gains in two ways, which this study does not separate: it follows the "
            "target, and it is trained on one kind of text.",
            "",
            f"Measured on {describe(report['machine'])}, {report['machine']['threads']} thread, float32. Seconds are "
            "CPU time of the process, in which decoding and online training share one thread. Intervals are 95 %: of τ "
            f"over prompts, of tails over steps. {describe_finished_study('rollouts', report['options'])} "
            "`workbench docs` writes this page.",
            "",
            markdown_table(result_columns, results),
            "",
            markdown_table(columns, range(len(steps))),
            "",
            f"Of {n} answers, {n_same[0]} with the frozen head and {n_same[1]} with the adaptive one equal those of "
            "plain decoding token for token; in float32, ties may be resolved differently in batches of other shapes.",
            "",
        ]
    )
