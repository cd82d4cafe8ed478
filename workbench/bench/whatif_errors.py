"""The measured error of each what-if prediction, from the saved pairs of predicted and measured values. No PyTorch.

`workbench.bench.whatif_suite` measures the pairs.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from statistics import median
from typing import Any

from workbench.bench import boardfiles
from workbench.bench.markdown import markdown_table as table
from workbench.trace.speedup import estimate

BOARD = "whatif"
PREDICTIONS = {
    "lengths": "τ with drafts of at most K tokens",
    "speeds": "speed with drafts of at most K tokens",
    "plain": "speed without drafts",
    "width": "τ with two siblings at every position",
    "combination": "τ with the better of two drafts in every round",
    "by-position": "τ of K draft levels, with an acceptance rate per position",
    "iid": "τ of K draft levels, with a constant acceptance rate",
    "formula": "speed-up, by Leviathan's formula from acceptance rate and costs",
}
"""Descriptions of the values that what-if predictions (of runs with other settings) predict, by key."""
TIMED = ("speeds", "plain", "formula")
"""Keys of the what-if predictions that predict speeds: their tests need an idle machine. All others predict counts."""


@dataclass(frozen=True, slots=True)
class ErrorEstimate:
    """Error of one kind of what-if prediction (of a run with other settings).

    Attributes:
        prediction: key of the prediction in `PREDICTIONS`.
        bias: geometric mean over prompts of predicted / measured.
        low: lower end of the 95 % interval of `bias`.
        high: upper end of the 95 % interval of `bias`.
        typical: median over prompts and settings of the relative error of a single prediction.
        prompts: number of prompts.
        pairs: number of compared pairs (prediction, real run).
        target: name of the target on which the error was measured.
    """

    prediction: str
    bias: float
    low: float
    high: float
    typical: float
    prompts: int
    pairs: int
    target: str

    @property
    def sentence(self) -> str:
        """Return a what-if prediction's error in words: bias over all predictions, and typical error of a single one.

        Example:
            >>> ErrorEstimate("lengths", 1.006, 0.99, 1.02, 0.03, 25, 200, "smollm2").sentence[:64]
            'Compared with 200 real runs on 25 prompts (smollm2): predicted /'
        """
        return (
            f"Compared with {self.pairs} real runs on {self.prompts} prompts ({self.target}): predicted / "
            f"measured {self.bias:.2f} [{self.low:.2f}–{self.high:.2f}]; typical error ±{100 * self.typical:.0f} %."
        )


def error_of(key: str, row: Mapping[str, Any]) -> ErrorEstimate | None:
    """Return the error of the what-if prediction `key` from its saved row; None with too few measured pairs."""
    ratios = dict[str, list[float]]()
    for pair in row.get("pairs", ()):
        if pair["predicted"] > 0 and pair["measured"] > 0:
            ratios.setdefault(pair["prompt"], []).append(pair["predicted"] / pair["measured"])
    overall = estimate(ratios)
    if overall is None or overall.low is None or overall.high is None:
        return None
    all_ratios = [ratio for group in ratios.values() for ratio in group]
    typical = median(abs(math.exp(abs(math.log(ratio))) - 1) for ratio in all_ratios)
    return ErrorEstimate(
        key, overall.value, overall.low, overall.high, typical, overall.prompts, overall.n, row.get("target", "")
    )


def errors(rows: Mapping[str, Mapping[str, Any]] | None = None) -> dict[str, str]:
    """Return the measured error of each what-if prediction (run with other settings) in words, from the saved board."""
    saved = boardfiles.read(BOARD) if rows is None else rows
    by_key = {key: error_of(key, row) for key, row in saved.items()}
    return {key: error.sentence for key, error in by_key.items() if error is not None}


def markdown(rows: Mapping[str, Mapping[str, Any]]) -> str:
    """Return the errors of the what-if predictions (runs with other settings) as Markdown."""
    entries = [e for key in PREDICTIONS if key in rows and (e := error_of(key, rows[key])) is not None]
    columns: dict[str, Callable[[ErrorEstimate], Any]] = {
        "prediction": lambda e: PREDICTIONS[e.prediction],
        "predicted / measured": lambda e: f"{e.bias:.3f} [{e.low:.3f}–{e.high:.3f}]",
        "typical error of one prediction": lambda e: f"{e.typical:.1%}".replace("%", " %"),
        "predictions": lambda e: e.pairs,
        "prompts": lambda e: e.prompts,
    }
    return (
        "# Predictions of `workbench whatif` compared with real runs\n\n"
        "Every prediction of `workbench whatif` compared with the run that it predicts, by `workbench bench --suite "
        "whatif`: geometric mean over prompts of predicted / measured, with its 95 % interval, and the median error "
        "of a single prediction. τ is a count and is the same on every machine; speeds "
        f"were measured on the machine named in the data.\n\n{table(columns, entries)}\n"
    )
