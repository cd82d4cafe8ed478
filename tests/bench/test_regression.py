"""Comparison of two reports: noise raises no alarm, a slow-down is found."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from workbench.bench.regression import FEWEST, FIGURES, compare_reports
from workbench.bench.report import BenchReport
from workbench.bench.rows import BASELINE
from workbench.core.errors import WorkbenchError

METHODS = (BASELINE, "draft-model", "prompt-lookup")
MACHINE = {"cpu": "c", "cores": 2, "torch": "2", "transformers": "5", "date": "d", "load": 0.0}


def report(seed: int, n_prompts: int = 24, slow: dict[str, float] | None = None, **settings: Any) -> BenchReport:
    """Return a bench report: prompts differ in speed, every run has 5 % noise.

    `slow`: method → factor on its times; "machine": factor on all times.
    """
    noise, slow, runs = np.random.default_rng(seed), slow or {}, []
    for prompt in range(n_prompts):
        for repeat in range(3):
            for method in METHODS:
                own = 1 + prompt / n_prompts + (method != BASELINE)
                seconds = own * noise.lognormal(0, 0.05) * slow.get(method, 1) * slow.get("machine", 1)
                runs.append(
                    {
                        "contender": method, "name": f"p{prompt}", "repeat": repeat, "tokens": 100,
                        "rounds": 40 + prompt, "seconds": seconds + 1, "decode_seconds": seconds,
                        "accepted": 60.0, "tested": 90.0,
                        "overhead_s": 0.1 * seconds,
                    }
                )  # fmt: skip
    return BenchReport({"target": "t", **settings}, MACHINE, [], {}, runs=runs)


def beyond(old: BenchReport, new: BenchReport) -> dict[tuple[str, str], str]:
    changes = compare_reports(old, new).changes
    return {(c.method, c.figure): c.verdict for c in changes if c.verdict in ("better", "worse")}


def test_equal_distributions_give_few_false_alarms() -> None:
    """40 comparisons of equal programs: at 5 %, more than six alarms occur about once in 70 tries."""
    assert sum(bool(beyond(report(2 * i), report(2 * i + 1))) for i in range(40)) <= 6


def test_a_slow_down_of_ten_per_cent_is_found() -> None:
    for seed in range(10):
        found = beyond(report(seed), report(100 + seed, slow={"draft-model": 1.1}))
        assert found[("draft-model", "speedup")] == "worse"
        assert found[("draft-model", "tokens_per_second")] == "worse"
        assert (BASELINE, "tokens_per_second") not in found


def test_a_slower_machine_is_distinguished_from_a_slower_method() -> None:
    found = beyond(report(1), report(2, slow={"machine": 1.2}))
    assert {method for method, figure in found if figure == "tokens_per_second"} == set(METHODS)
    assert not {method for method, figure in found if figure == "speedup"}


def test_improvements_and_regressions_are_distinguished() -> None:
    old, new = report(1), report(2)
    for run in new.runs:
        run["overhead_s"] *= 2
        run["rounds"] -= 10
    found = beyond(old, new)
    assert found[("draft-model", "overhead_share")] == "worse"
    assert found[("draft-model", "tau")] == "better"


def test_a_change_below_the_tolerance_is_ignored() -> None:
    old, new = report(1), report(2, slow={"draft-model": 1.1})
    assert compare_reports(old, new).worse
    assert not compare_reports(old, new, tolerance=0.3).worse


def test_too_few_prompts_are_reported() -> None:
    found = compare_reports(report(1, FEWEST - 1), report(2, FEWEST - 1, slow={"draft-model": 3.0}))
    assert {c.verdict for c in found.changes} == {"too few prompts"}
    assert beyond(report(1, 8), report(2, 8, slow={"draft-model": 3.0}))


def test_other_differences_between_the_reports_are_named() -> None:
    old, new = report(1, dtype="float32"), report(2, dtype="bfloat16")
    new.machine = MACHINE | {"cpu": "other", "date": "later", "load": 9.0}
    new.runs = [run for run in new.runs if run["contender"] != "prompt-lookup"]
    found = compare_reports(old, new)
    assert found.differences == [("dtype", "float32", "bfloat16"), ("cpu", "c", "other")]
    assert found.missing == ["prompt-lookup"]
    markdown = found.to_markdown()
    assert "dtype float32 → bfloat16" in markdown
    assert "metrics differ significantly" in markdown


def test_reports_that_share_nothing_are_refused() -> None:
    other = report(1)
    for run in other.runs:
        run["name"] = "another " + run["name"]
    with pytest.raises(WorkbenchError, match="no prompt and method in common"):
        compare_reports(report(1), other)
    with pytest.raises(WorkbenchError, match="no runs"):
        compare_reports(report(1), BenchReport({}, MACHINE, [], {}))


def test_whole_calls_of_another_engine_are_compared_with_whole_calls() -> None:
    theirs = [{"repeat": 0, "tokens": 10, "seconds": 4.0, "decode_seconds": None}]
    plain = [{"repeat": 0, "tokens": 10, "seconds": 2.0, "decode_seconds": 1.0}]
    assert FIGURES["speedup"].value(theirs, plain) == pytest.approx(0.5), (
        "compared with decoding alone it would be 0.25"
    )
