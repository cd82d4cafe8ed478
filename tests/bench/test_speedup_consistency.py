"""One data set, one speed-up: every frontend shows the same figure."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest
from bench.test_report import Scripted
from views.test_modules import ENV, needs_node

from workbench.bench import comparison_figures, statistics
from workbench.bench.claims import Measurement as Figure
from workbench.bench.claims import speedup_figure
from workbench.bench.compare import Comparison, LaneRuns, Plan
from workbench.bench.contenders import Sample
from workbench.bench.lanes import Lane
from workbench.bench.prompts import BenchPrompt
from workbench.bench.regression import compare_reports
from workbench.bench.report import BenchReport, build_runs
from workbench.bench.report_files import read_report
from workbench.bench.rows import build_rows
from workbench.bench.specbench import speeds
from workbench.cli.compare import to_markdown
from workbench.core.errors import WorkbenchError
from workbench.trace.speedup import Estimate, estimate
from workbench.views import module_path, report

TOKENS = 40
MACHINE = {"cpu": "c", "cores": 2, "torch": "2", "transformers": "5", "date": "d", "load": 0.0}
RATIOS = {0: [1.9, 2.2], 1: [0.8, 0.7], 2: [1.1, 1.5], 3: [3.0, 2.6]}
"""Speed-ups by prompt and repeat. Median 1.7, mean 1.73, geometric mean 1.52."""
PROMPTS = [BenchPrompt(f"p{i}", "Once", "stories", question=i) for i in RATIOS]


def runs(name: str, gain: dict[int, list[float]]) -> list[Sample]:
    """Return runs of prompts that take 1, 2, 3 … seconds to decode without a drafter."""
    made = []
    for prompt, ratios in gain.items():
        for repeat, ratio in enumerate(ratios):
            seconds = (1 + prompt + 0.1 * repeat) / ratio
            figures = {"accepted": 9.0, "tested": 18.0, "drafted": 20.0, "decode_s": seconds}
            figures |= {"draft_s": 0.2 * seconds, "verify_s": 0.7 * seconds, "overhead_s": 0.1 * seconds}
            made.append(Sample(name, prompt, repeat, [7] * TOKENS, seconds, seconds, 20, figures, steps=[2] * 20))
    return made


PLAIN, FAST = runs("autoregressive", {i: [1.0, 1.0] for i in RATIOS}), runs("draft-model", RATIOS)


def comparison() -> Comparison:
    lanes = [
        LaneRuns(Lane(name), title, samples={(s.prompt, s.repeat): s for s in samples})
        for name, title, samples in (("autoregressive", "Plain", PLAIN), ("draft-model", "Draft model", FAST))
    ]
    return Comparison(Plan("t"), PROMPTS, lanes, MACHINE, True)


def bench() -> BenchReport:
    samples = [*PLAIN, *FAST]
    rows = build_rows(samples, [Scripted("autoregressive", 1), Scripted("draft-model", 1)], greedy=True)
    return BenchReport({"target": "t"}, MACHINE, rows, {}, runs=build_runs(samples, PROMPTS))


@pytest.fixture
def wanted() -> Estimate:
    found = estimate(RATIOS)
    assert found is not None
    return found


def is_same_estimate(found: Any, wanted: Estimate) -> bool:
    given = found.to_wire() if isinstance(found, Estimate) else found
    return given == {name: pytest.approx(value) for name, value in wanted.to_wire().items()}


def test_compare_sweep_bench_claims_and_regression_agree(wanted: Estimate) -> None:
    made, rows = comparison(), bench().rows
    lane, plain = made["draft-model"], made.reference
    assert is_same_estimate(made.figures["Draft model"]["speedup"], wanted)
    assert is_same_estimate(comparison_figures.estimates(lane, plain)["speedup"], wanted)
    assert is_same_estimate(rows[1].speedup_vs_autoregressive, wanted)
    claim = speedup_figure(statistics.speedup_of(lane, plain), "here")
    assert (claim.value, claim.low, claim.high) == tuple(map(pytest.approx, (wanted.value, wanted.low, wanted.high)))
    change = next(c for c in compare_reports(bench(), bench()).changes if c.figure == "speedup")
    assert change.old == change.new == pytest.approx(wanted.value)


def test_printed_tables_show_the_same_speed_up(wanted: Estimate) -> None:
    assert f"| {wanted} |" in bench().to_markdown()
    assert f"| Draft model | {wanted.sentence} |" in to_markdown(comparison())
    assert f"draft-model, {wanted.sentence}" in report.page(bench().to_wire())


def test_a_vertical_bar_in_an_error_is_escaped_in_a_table() -> None:
    made = comparison()
    made.lanes[1].error = "a | b\nGive less."
    lines = to_markdown(made).splitlines()
    assert lines[3].endswith("| a \\| b Give less. |")
    assert lines[1] == "|---|--:|--:|--:|--:|--:|---|"


def test_the_ratio_of_the_displayed_rates_is_the_displayed_speed_up(wanted: Estimate) -> None:
    made, rows = comparison(), bench().rows
    shown = [made.figures[name]["tokens_per_second"]["value"] for name in ("Draft model", "Plain")]
    assert shown[0] / shown[1] == pytest.approx(wanted.value)
    assert rows[1].tokens_per_second / rows[0].tokens_per_second == pytest.approx(wanted.value)
    costs = [made.figures[name]["ms_per_token"]["decode"] for name in ("Plain", "Draft model")]
    assert costs[0] / costs[1] == pytest.approx(wanted.value), "the bars of the cost per token agree, too"


def test_spec_bench_answer_files_give_the_same_speed_up_and_its_own_figure_separately(wanted: Estimate) -> None:
    def answers(samples: list[Sample]) -> dict[int, dict[str, Any]]:
        found: dict[int, dict[str, Any]] = {}
        for s in samples:
            one = found.setdefault(s.prompt, {"category": "qa", "choices": []})
            one["choices"].append({"new_tokens": [TOKENS], "wall_time": [s.seconds], "accept_lengths": s.steps})
        return found

    (row,) = speeds(answers(FAST), answers(PLAIN))
    assert is_same_estimate(row["speedup"], wanted)
    first = [sum(s.seconds for s in side if s.repeat == 0) for side in (PLAIN, FAST)]
    assert row["spec_bench_speedup"] == pytest.approx(first[0] / first[1])


@needs_node
def test_the_page_shows_the_same_speed_up_for_a_comparison_from_a_file(wanted: Estimate) -> None:
    script = (
        f"import {{ ofRuns }} from {json.dumps(module_path('shared/speedup').as_uri())};"
        "import { readFileSync } from 'node:fs';"
        "const [plain, fast] = JSON.parse(readFileSync(0)).lanes;"
        "console.log(JSON.stringify(ofRuns(fast.runs, plain.runs)));"
    )
    given = json.dumps(comparison().to_wire())
    node = subprocess.run(
        ["node", "--input-type=module", "-e", script], input=given, capture_output=True, text=True, check=True,
        timeout=60, env=ENV,
    )  # fmt: skip
    assert is_same_estimate(json.loads(node.stdout), wanted)


def test_a_report_of_schema_1_is_read_with_recomputed_speed_ups(wanted: Estimate, tmp_path: Path) -> None:
    wire = bench().to_wire()
    for row in wire["rows"]:
        row["speedup_vs_autoregressive"] = {"median": 9.0, "q1": 9.0, "q3": 9.0, "n": 4}
        row["speedup_in_total"] = {"value": 9.0, "low": 9.0, "high": 9.0, "n": 4}
    path = tmp_path / "old.json"
    path.write_text(json.dumps(wire | {"schema": 1}))
    back = read_report(path)
    assert is_same_estimate(back.rows[1].speedup_vs_autoregressive, wanted)
    assert back.rows[1].tokens_per_second == pytest.approx(bench().rows[1].tokens_per_second)


def test_a_claim_without_an_interval_is_refused() -> None:
    with pytest.raises(WorkbenchError, match="three prompts"):
        speedup_figure(estimate({0: [2.0]}), "here")


def test_figures_with_one_value_per_prompt_have_the_same_interval() -> None:
    """Ratios use a logarithmic scale, quotients of sums are resampled together; one observation is its own interval."""
    there, back = (statistics.geometric_mean([r[0] ** sign for r in RATIOS.values()]) for sign in (1, -1))
    assert there is not None
    assert back is not None
    assert there["low"] < there["value"] < there["high"]
    assert there["value"] == pytest.approx(1 / back["value"])
    found = statistics.ratio_of_sums([2.0, 3.0, 8.0], [1.0, 1.5, 4.0])
    assert found == {"value": 2.0, "low": pytest.approx(2.0), "high": pytest.approx(2.0), "n": 3}
    one = Figure.of(statistics.mean([0.5]), "here")
    assert (one.value, one.low, one.high, one.n) == (0.5, 0.5, 0.5, 1)
    with pytest.raises(WorkbenchError, match="measurement has no observations"):
        Figure.of(statistics.mean([]), "here")
    with pytest.raises(
        WorkbenchError, match=r"too few observations .* \(1 of 6 right\)"
    ):  # samples without it divide by zero
        Figure.of(statistics.ratio_of_sums([1.0, 0, 0, 0, 0, 0], [1.0, 0, 0, 0, 0, 0]), "1 of 6 right")


def test_the_race_replays_the_repeat_nearest_to_the_prompts_estimate() -> None:
    """All lanes replay the same repeat; its own ratio is labelled as such next to the estimate."""
    made = comparison()
    for lane, extra in zip(made.lanes, (1.0, 2.05), strict=True):  # 1.9, 2.2 and now 2.05: the middle one
        ours = runs(lane.lane.method, {0: [1.0, 1.0, extra]})[2]
        lane.samples[0, 2] = ours
    assert comparison_figures.most_typical_repeat(made, 0) == 2
    made["draft-model"].samples.pop((0, 2))
    assert comparison_figures.most_typical_repeat(made, 0) == 0, (
        "all lanes ran the replayed repeat; the first of two equally near ones is chosen"
    )


def test_tau_is_a_geometric_mean_everywhere() -> None:
    """40 tokens in 20 rounds and in 5: τ 2 and 8, geometric mean 4; pooled it would be 3.2."""
    samples = [
        Sample("draft-model", prompt, 0, [7] * TOKENS, 1.0, 1.0, rounds, {"accepted": 9.0, "tested": 18.0})
        for prompt, rounds in ((0, 20), (1, 5))
    ]
    (row,) = build_rows(samples, [Scripted("draft-model", 1)], greedy=True)
    lane = LaneRuns(Lane("draft-model"), "Draft model", samples={(s.prompt, s.repeat): s for s in samples})
    found = [row.tau, statistics.tau_of(samples), comparison_figures.estimates(lane, None)["tau"]["value"]]
    assert found == [pytest.approx(4.0)] * 3
