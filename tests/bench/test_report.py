"""Report rows computed from samples with known figures."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from workbench.bench.contenders import Sample
from workbench.bench.interleaved_measurement import WARM_UP_RUNS, measure
from workbench.bench.prompts import BenchPrompt
from workbench.bench.report import BenchReport, build_runs
from workbench.bench.report_files import read_report, to_parquet
from workbench.bench.rows import build_groups, build_rows
from workbench.bench.sample import ContenderFailedError, sample_from_wire
from workbench.bench.study import JsonLines
from workbench.core.errors import WorkbenchError

FIGURES = ("accepted", "tested", "drafted", "draft_s", "verify_s", "decode_s", "overhead_s")


@dataclass
class Scripted:
    """A contender with a fixed run time."""

    name: str
    seconds: float
    kind: str = "workbench"
    rounds: int = 10
    title: str = "Scripted"
    promise: str = "exact"
    parameters: dict[str, Any] = field(default_factory=dict)
    interrupt_at: int | None = None
    lost_at: int | None = None
    calls: list[int] = field(default_factory=list)
    weights_bytes: int = 50 << 20

    def run(self, prompt_ids: Sequence[int], prompt: int = 0, repeat: int = 0) -> Sample:
        if len(self.calls) == self.interrupt_at:
            raise KeyboardInterrupt
        if len(self.calls) == self.lost_at:
            raise ContenderFailedError("ended by signal 11")
        self.calls.append(prompt)
        slow = 1 + prompt  # every contender takes twice as long on the second prompt
        figures = {
            "accepted": 10.0, "tested": 20.0, "drafted": 40.0, "draft_s": 0.1, "verify_s": 0.5,
            "decode_s": self.seconds * slow, "overhead_s": 0.02 * slow,
        }  # fmt: skip
        decode = self.seconds * slow if self.kind == "workbench" else None
        seconds = self.seconds * slow + (0.5 if self.kind == "workbench" else 0)
        depths = [(1, 10, 8), (2, 8, 2)]
        return Sample(self.name, prompt, repeat, [1] * 20, seconds, decode, self.rounds, figures, [], [2] * 10, depths)


def measured(contenders: Sequence[Scripted], n_prompts: int = 2) -> tuple[list[Sample], bool]:
    return measure(contenders, [[1]] * n_prompts, repeats=2)


@pytest.mark.parametrize("lost_at", [0, WARM_UP_RUNS + 1])
def test_a_contender_that_crashes_is_dropped_with_its_samples(lost_at: int) -> None:
    """It crashes in the warm-up, or after a run that counted."""
    sides = [Scripted("autoregressive", 2.0), Scripted("llama.cpp", 1.0, lost_at=lost_at), Scripted("medusa", 1.0)]
    failures: list[str] = []
    samples, complete = measure(sides, [[1]] * 2, 2, on_failure=lambda c, error: failures.append(f"{c.name} {error}"))
    assert complete
    assert failures == ["llama.cpp ended by signal 11"]
    assert len(sides[1].calls) == lost_at
    assert [r.method for r in build_rows(samples, sides, greedy=True)] == ["autoregressive", "medusa"]
    assert len(samples) == 2 * 4
    with pytest.raises(ContenderFailedError, match="signal 11"):
        measure([Scripted("llama.cpp", 1.0, lost_at=0)], [[1]])


def test_a_stopped_measurement_continues_after_its_whole_repetitions(tmp_path: Path) -> None:
    """Stopped after one of two contenders in the third repetition: both are measured again there, after a warm-up."""

    def store(settings: dict[str, Any]) -> JsonLines[Sample]:
        return JsonLines(tmp_path / "runs.jsonl", settings, asdict, sample_from_wire)

    sides = [Scripted("autoregressive", 2.0, interrupt_at=WARM_UP_RUNS + 2), Scripted("medusa", 1.0)]
    samples, complete = measure(sides, [[1]] * 2, 2, store=store({}))
    assert not complete
    assert {s.prompt for s in samples} == {0}
    again = [Scripted("autoregressive", 2.0), Scripted("medusa", 1.0)]
    counts: list[int] = []
    samples, complete = measure(again, [[1]] * 2, 2, lambda done, total, what: counts.append(done), store=store({}))
    assert complete
    assert [len(side.calls) - WARM_UP_RUNS for side in again] == [2, 2], "two repetitions were left"
    assert counts == [4, 5, 6, 7, 8, 9, 10, 11, 12]
    whole, _ = measure([Scripted("autoregressive", 2.0), Scripted("medusa", 1.0)], [[1]] * 2, 2)
    assert [replace(s, growth_bytes=None) for s in samples] == [replace(s, growth_bytes=None) for s in whole]
    idle = [Scripted("autoregressive", 2.0), Scripted("medusa", 1.0)]
    assert measure(idle, [[1]] * 2, 2, store=store({}))[0] == samples
    assert [side.calls for side in idle] == [[], []], "nothing is warmed up if nothing is left"
    measure(idle, [[1]] * 2, 2, store=store({"seed": 1}))
    assert [len(side.calls) - WARM_UP_RUNS for side in idle] == [4, 4], "runs with other settings do not count"


def test_ratios_are_taken_within_a_prompt_and_repetition() -> None:
    contenders = [Scripted("autoregressive", 2.0, rounds=20), Scripted("draft-model", 1.0)]
    samples, complete = measured(contenders)
    base, fast = build_rows(samples, contenders, greedy=True)
    assert complete
    assert base.speedup_vs_autoregressive is not None
    assert fast.speedup_vs_autoregressive is not None
    assert base.speedup_vs_autoregressive.value == 1.0
    assert fast.speedup_vs_autoregressive.value == pytest.approx(2.0)
    assert fast.speedup_vs_autoregressive.low == fast.speedup_vs_autoregressive.high == pytest.approx(2.0)
    assert fast.tokens_per_second is not None
    assert base.tokens_per_second is not None
    assert fast.tokens_per_second / base.tokens_per_second == pytest.approx(2.0)
    assert (fast.tau, fast.acceptance_rate) == (2.0, 0.5)
    assert fast.call_speedup_vs_autoregressive is not None
    assert fast.call_speedup_vs_autoregressive.value == pytest.approx(((2.5 / 1.5) * (4.5 / 2.5)) ** 0.5)
    assert fast.tokens_per_second == pytest.approx((20 / 1 * 20 / 2) ** 0.5)
    assert fast.call_tokens_per_second == pytest.approx((20 / 1.5 * 20 / 2.5) ** 0.5)
    assert fast.overhead_share == pytest.approx(0.02)
    assert fast.overhead_ms_per_round == pytest.approx(3.0)
    assert fast.identical_to_autoregressive == 1.0
    assert fast.acceptance_by_position == [(1, 40, 32), (2, 32, 8)]
    assert fast.weights_mib == 50


def test_hugging_face_is_compared_with_its_counterpart_by_whole_calls() -> None:
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
    assert (plain.hf_counterpart, plain.speedup_vs_hf.value) == ("hf-generate", pytest.approx(3.0 / 2.5))
    assert (fast.hf_counterpart, fast.speedup_vs_hf.value) == ("hf-assisted", pytest.approx(4.5 / 1.5))
    assert assisted.speedup_vs_hf is None
    assert assisted.overhead_share is None
    assert (assisted.tokens_per_second, assisted.speedup_vs_autoregressive) == (None, None), (
        "the decoding time is unknown"
    )
    assert assisted.call_speedup_vs_autoregressive is not None
    assert assisted.call_speedup_vs_autoregressive.value == pytest.approx(2.5 / 4.5), "whole calls on both sides"


@pytest.mark.parametrize(("method", "counterpart"), [("draft-model", "hf-assisted"), ("lookahead-trie", "hf-generate")])
def test_the_ratio_to_hugging_face_is_the_plain_decoding_ratio_times_the_speculation_gain(
    method: str, counterpart: str
) -> None:
    """A ratio of 1.86 includes 1.57 from plain decoding; a user would attribute all of it to speculation."""
    times = {"autoregressive": (2.0, 3.1, 2.4), method: (1.3, 2.9, 1.1), "hf-generate": (3.2, 4.1, 4.4)}
    times["hf-assisted"] = (2.2, 5.0, 3.9)
    samples = [
        Sample(name, i, repeat, [1] * 20, s * (1 + 0.1 * repeat * i), None, 10, dict.fromkeys(FIGURES, 1.0))
        for name, own in times.items()
        for i, s in enumerate(own)
        for repeat in range(2)
    ]
    kinds = {name: "hugging-face" if name.startswith("hf") else "workbench" for name in times}
    rows = {r.method: r for r in build_rows(samples, [Scripted(n, 1, kind) for n, kind in kinds.items()], greedy=True)}
    found, plain = rows[method], rows["autoregressive"]
    assert found.hf_counterpart == counterpart
    assert found.speedup_vs_hf is not None
    assert found.hf_plain_part is not None
    assert found.hf_speculation_part is not None
    assert plain.speedup_vs_hf is not None
    assert plain.hf_speculation_part is not None
    assert found.hf_plain_part.value * found.hf_speculation_part.value == pytest.approx(found.speedup_vs_hf.value)
    assert found.hf_plain_part.value == pytest.approx(plain.speedup_vs_hf.value)
    assert plain.hf_speculation_part.value == pytest.approx(1.0)


def test_a_long_prompt_counts_no_more_than_a_short_one() -> None:
    def runs(name: str, *times: tuple[int, float], rounds: int) -> list[Sample]:
        return [
            Sample(name, i, 0, [1] * n, s, s, rounds, dict.fromkeys(FIGURES, 1.0)) for i, (n, s) in enumerate(times)
        ]

    base = runs("autoregressive", (10, 1.0), (10, 1.0), (80, 8.0), rounds=10)
    fast = runs("draft-model", (10, 0.5), (10, 0.5), (80, 1.0), rounds=5)
    row = build_rows([*base, *fast], [Scripted("autoregressive", 1), Scripted("draft-model", 1)], greedy=True)[1]
    assert row.speedup_vs_autoregressive is not None
    assert row.speedup_vs_autoregressive.value == pytest.approx((2 * 2 * 8) ** (1 / 3)), "a ratio of totals would be 5"


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


def test_a_report_is_written_in_all_forms_and_read_back(tmp_path: Path) -> None:
    contenders = [Scripted("autoregressive", 2.0), Scripted("draft-model", 1.0)]
    samples, _ = measured(contenders)
    prompts = [BenchPrompt("x", "x", "first"), BenchPrompt("y", "y", "second")]
    report = BenchReport(
        settings={"target": "t"},
        machine={"cpu": "c", "cores": 2, "torch": "2", "transformers": "5", "date": "d", "load": 0.0},
        rows=build_rows(samples, contenders, True),
        groups=build_groups(samples, contenders, prompts, True),
        runs=build_runs(samples, prompts),
        left_out={"second, too long": 3},
    )
    wire = json.loads(report.to_json())
    assert wire["rows"][1]["speedup_vs_autoregressive"]["value"] == pytest.approx(2.0)
    assert set(wire["groups"]) == {"first", "second"}
    lines = list(csv.DictReader(io.StringIO(report.to_csv())))
    assert len(lines) == 6
    assert float(lines[1]["speedup_vs_autoregressive_value"]) == pytest.approx(2.0)
    markdown = report.to_markdown(by_group=True)
    assert "| `draft-model` | 2.00 | 0.50 |" in markdown
    assert "**second**" in markdown
    assert "Measured on c, 2 cores" in markdown
    assert "Prompts left out of the group second: 3 (too long)." in markdown
    for path, data in ((tmp_path / "r.json", report.to_json().encode()), (tmp_path / "r.parquet", to_parquet(report))):
        path.write_bytes(data)
        assert read_report(path) == report
    runs = pl.read_parquet(tmp_path / "r.parquet")
    assert runs.select("contender", "name", "tokens", "steps").row(0) == ("autoregressive", "x", 20, [2] * 10)


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (b"nothing", "not a saved benchmark report"),
        (b"PAR1 junk", "not a saved benchmark report"),
        (b'{"schema": 99}', "reads schemas up to"),
    ],
)
def test_a_file_that_is_not_a_report_is_refused(tmp_path: Path, data: bytes, says: str) -> None:
    (tmp_path / "report").write_bytes(data)
    with pytest.raises(WorkbenchError, match=says):
        read_report(tmp_path / "report")
