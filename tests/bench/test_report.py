"""Rows from samples whose figures are known."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest

from workbench.bench.contenders import Sample
from workbench.bench.prompts import BenchPrompt
from workbench.bench.report import BenchReport, build_groups, build_rows
from workbench.bench.runner import WARM_UP_RUNS, measure


@dataclass
class Scripted:
    """A contender that takes a set time."""

    name: str
    seconds: float
    kind: str = "workbench"
    rounds: int = 10
    title: str = "Scripted"
    promise: str = "exact"
    parameters: dict[str, Any] = field(default_factory=dict)
    interrupt_at: int | None = None
    calls: list[int] = field(default_factory=list)

    def run(self, prompt_ids: Sequence[int], prompt: int = 0, repeat: int = 0) -> Sample:
        if len(self.calls) == self.interrupt_at:
            raise KeyboardInterrupt
        self.calls.append(prompt)
        slow = 1 + prompt  # the second prompt takes twice as long for everybody
        figures = {
            "accepted": 10.0, "tested": 20.0, "drafted": 40.0, "draft_s": 0.1, "verify_s": 0.5,
            "decode_s": self.seconds * slow, "overhead_s": 0.02 * slow,
        }  # fmt: skip
        decode = self.seconds * slow if self.kind == "workbench" else None
        seconds = self.seconds * slow + (0.5 if self.kind == "workbench" else 0)
        return Sample(self.name, prompt, repeat, [1] * 20, seconds, decode, self.rounds, figures)


def measured(contenders: Sequence[Scripted], n_prompts: int = 2) -> tuple[list[Sample], bool]:
    return measure(contenders, [[1]] * n_prompts, repeats=2)


def test_ratios_are_taken_within_a_prompt_and_repetition() -> None:
    contenders = [Scripted("autoregressive", 2.0, rounds=20), Scripted("draft-model", 1.0)]
    samples, complete = measured(contenders)
    base, fast = build_rows(samples, contenders, greedy=True)
    assert complete
    assert base.speedup_vs_autoregressive is not None
    assert fast.speedup_vs_autoregressive is not None
    assert base.speedup_vs_autoregressive.median == 1.0
    assert fast.speedup_vs_autoregressive.median == pytest.approx(2.0)
    assert fast.speedup_vs_autoregressive.q1 == fast.speedup_vs_autoregressive.q3 == pytest.approx(2.0)
    assert (fast.tau, fast.acceptance_rate) == (2.0, 0.5)
    assert fast.speedup_per_tau == pytest.approx(1.0)
    assert fast.overhead_share == pytest.approx(0.02)
    assert fast.overhead_ms_per_round == pytest.approx(3.0)
    assert fast.identical_to_autoregressive == 1.0


def test_hugging_face_is_met_by_its_counterpart_on_whole_calls() -> None:
    contenders = [
        Scripted("autoregressive", 2.0),
        Scripted("draft-model", 1.0),
        Scripted("hf-generate", 3.0, kind="hugging-face"),
        Scripted("hf-assisted", 4.5, kind="hugging-face"),
    ]
    samples, _ = measured(contenders, n_prompts=1)
    plain, fast, _, assisted = build_rows(samples, contenders, greedy=True)
    assert plain.speedup_vs_hf is not None
    assert fast.speedup_vs_hf is not None
    assert (plain.hf_counterpart, plain.speedup_vs_hf.median) == ("hf-generate", pytest.approx(3.0 / 2.5))
    assert (fast.hf_counterpart, fast.speedup_vs_hf.median) == ("hf-assisted", pytest.approx(4.5 / 1.5))
    assert assisted.speedup_vs_hf is None
    assert assisted.overhead_share is None


def test_every_contender_is_warmed_up_and_the_order_changes() -> None:
    contenders = [Scripted("autoregressive", 1.0), Scripted("draft-model", 1.0)]
    samples, _ = measured(contenders)
    assert all(len(c.calls) == WARM_UP_RUNS + 4 for c in contenders)
    assert [s.contender for s in samples[:4]] == ["autoregressive", "draft-model", "draft-model", "autoregressive"]


def test_ctrl_c_keeps_the_prompts_that_are_complete() -> None:
    contenders = [Scripted("autoregressive", 1.0), Scripted("draft-model", 1.0, interrupt_at=WARM_UP_RUNS + 3)]
    samples, complete = measured(contenders)
    assert not complete
    assert {s.prompt for s in samples} == {0}
    assert len(samples) == 4


def test_a_report_is_written_in_three_forms() -> None:
    contenders = [Scripted("autoregressive", 2.0), Scripted("draft-model", 1.0)]
    samples, _ = measured(contenders)
    prompts = [BenchPrompt("x", "x", "first"), BenchPrompt("y", "y", "second")]
    report = BenchReport(
        settings={"target": "t"},
        machine={"cpu": "c", "cores": 2, "torch": "2", "transformers": "5", "date": "d", "load": 0.0},
        rows=build_rows(samples, contenders, True),
        groups=build_groups(samples, contenders, prompts, True),
    )
    wire = json.loads(report.to_json())
    assert wire["rows"][1]["speedup_vs_autoregressive"]["median"] == pytest.approx(2.0)
    assert set(wire["groups"]) == {"first", "second"}
    lines = list(csv.DictReader(io.StringIO(report.to_csv())))
    assert len(lines) == 6
    assert float(lines[1]["speedup_vs_autoregressive_median"]) == pytest.approx(2.0)
    markdown = report.to_markdown(by_group=True)
    assert "| `draft-model` | 2.00 | 0.50 |" in markdown
    assert "**second**" in markdown
    assert "Measured on c, 2 cores" in markdown
