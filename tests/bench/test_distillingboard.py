"""The distillation board: known acceptance rates are recovered, and verdicts follow from the intervals alone."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from workbench.bench.distillingboard import BOARD, RISE, alpha_counts, claims, page, verdict
from workbench.bench.statistics import difference_of_quotients, ratio_of_quotients
from workbench.models.machine import machine_facts

PROMPTS = 60
PLANTED = {
    ("", ""): 0.50, ("target", "forward_kl"): 0.60, ("target", "total_variation"): 0.64,
    ("target", "tvd_plus_plus"): 0.58, ("given", "forward_kl"): 0.50, ("drafter", "forward_kl"): 0.70,
    ("mix", "forward_kl"): 0.42,
}  # fmt: skip


def synthetic_report(seed: int = 0, tested: int = 4000) -> dict[str, Any]:
    """Return a report of drafts with known acceptance probabilities, on prompts equally hard for all drafters."""
    rng = np.random.default_rng(seed)
    hard = rng.uniform(0.7, 1.3, PROMPTS)

    def counts(alpha: float) -> dict[str, list[int]]:
        n = rng.integers(tested // 2, tested, PROMPTS)
        kept = rng.binomial(n, np.clip(alpha * hard, 0, 1))
        return {"accepted": kept.tolist(), "tested": n.tolist(), "emitted": (n + kept).tolist(), "rounds": n.tolist()}

    cells = [
        {"made": made, "loss": loss, "steps": 3 if loss else 0, "tokens": 10,
         "greedy": counts(alpha), "sampled": counts(alpha)}
        for (made, loss), alpha in PLANTED.items()
    ]  # fmt: skip
    return {"target": "t", "method": "draft-model", "prompts": PROMPTS, "max_new_tokens": 8, "cells": cells,
            "options": {"each": "4"}, "machine": machine_facts()}  # fmt: skip


def test_known_ratios_and_differences_lie_within_their_intervals() -> None:
    start, *cells = synthetic_report()["cells"]
    for cell in cells:
        true = PLANTED[cell["made"], cell["loss"]]
        ratio = ratio_of_quotients(alpha_counts(cell, "greedy"), alpha_counts(start, "greedy"))
        rise = difference_of_quotients(alpha_counts(cell, "greedy"), alpha_counts(start, "greedy"))
        assert ratio is not None
        assert rise is not None
        assert ratio["value"] == pytest.approx(true / 0.5, abs=0.03)
        assert rise["value"] == pytest.approx(true - 0.5, abs=0.015)
        for found in (ratio, rise):
            assert found["low"] < found["value"] < found["high"]
            assert found["high"] - found["low"] < 0.1, "prompts are resampled together, so their difficulty cancels"


def test_the_interval_of_a_ratio_covers_the_true_value_about_as_often_as_stated() -> None:
    """With 93 % coverage (60 prompts give slightly less than 95), 84 to 99 of 100 intervals cover it, P > 0.99."""
    held = 0
    for seed in range(100):
        start, one, *_ = synthetic_report(seed, 400)["cells"]
        found = ratio_of_quotients(alpha_counts(one, "sampled"), alpha_counts(start, "sampled"))
        assert found is not None
        held += found["low"] <= 1.2 <= found["high"]
    assert 84 <= held <= 99


def test_a_verdict_follows_from_the_whole_interval() -> None:
    def interval(low: float | None, high: float | None) -> dict[str, Any]:
        return {"value": 1.0, "low": low, "high": high, "n": 9}

    assert verdict(interval(1.0, 1.2), 1.0) == "holds"
    assert verdict(interval(0.99, 1.2), 1.0) == "open"
    assert verdict(interval(0.8, 0.999), 1.0) == "does not hold"
    assert verdict(interval(0.8, 1.0), 1.0) == "open"
    assert verdict(interval(None, None), 1.0) == "open"
    assert verdict(None, 1.0) == "open"
    assert ratio_of_quotients(([1, 2], [3, 3]), ([0, 0], [3, 3])) is None, (
        "the start has no accepted draft, so the ratio is undefined"
    )


def test_each_statement_is_judged_by_its_own_cells() -> None:
    found = {(row["claim"].partition(":")[0], row["how"]): row["verdict"] for row in claims(synthetic_report())}
    for how in ("greedy", "sampled"):
        assert found["drafter ≥ fixed text, forward_kl", how] == "holds"
        assert found["mix ≥ fixed text, forward_kl", how] == "does not hold"
        assert found["TVD++ ≥ TVD, on the target's answers", how] == "does not hold"
    rises = {
        row["claim"].partition(": ")[2]: row["verdict"] for row in claims(synthetic_report()) if "rises" in row["claim"]
    }
    assert rises == {
        "forward_kl on target": "holds", "total_variation on target": "holds", "tvd_plus_plus on target": "holds",
        "forward_kl on given": "does not hold", "forward_kl on drafter": "holds", "forward_kl on mix": "does not hold",
    }  # fmt: skip
    assert RISE == 0.05


def test_the_page_has_the_start_the_temperature_and_the_results() -> None:
    report = synthetic_report()
    text = page(report)
    assert BOARD == "distilling.json"
    assert "--set each=4" in text
    assert "The start: α 0.5" in text
    assert "Drafting greedily" in text
    assert "Drafting at temperature 1" in text
    assert text.count("does not hold") > 4
    report["cells"][0] |= {"made": "given", "steps": 7}
    assert "The start (7 steps on answers from the data set, the text's cross-entropy alone): α" in page(report)
