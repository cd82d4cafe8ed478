"""Host overhead of drafting: measured without a model, resumed after a stop, shown as a table and a chart."""

from __future__ import annotations

from typing import Any
from xml.etree import ElementTree

import model_helpers
import pytest

from workbench.bench import hostcosts
from workbench.bench.hostcosts import NAMES, growth, page, plot, run_suite
from workbench.methods import registry
from workbench.models.machine import machine_facts

pytestmark = pytest.mark.unchecked
SMALL: dict[str, Any] = {"contexts": (40, 80), "stores": (200,), "rounds": 3}


def test_every_text_only_drafter_is_measured_once_and_a_stopped_suite_resumes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hostcosts, "WARM_UP_ROUNDS", 1)
    tokenizer, kept, progress_lines = model_helpers.byte_tokenizer(), list[Any](), list[str]()
    report = run_suite(
        tokenizer, None, lambda r: kept.append({**r, "rows": dict(r["rows"])}), progress_lines.append, **SMALL
    )
    assert (
        progress_lines
        == list(report["rows"])
        == [*(f"{name} at {n}" for name in NAMES for n in (40, 80)), "rest in 200"]
    )
    assert len(kept) == len(progress_lines)
    for row in report["rows"].values():
        assert 0 < row["propose"] <= row["p95"]
        assert 0 < row["median"] <= row["p95"]
    broken = kept[4]  # stopped after five measurements
    again = list[str]()
    whole = run_suite(tokenizer, broken, progress=again.append, **SMALL)
    assert again == progress_lines[5:]
    assert {key: whole["rows"][key] for key in progress_lines[:5]} == broken["rows"]
    run_suite(tokenizer, broken | {"machine": {}}, progress=(remeasured := list[str]()).append, **SMALL)
    assert remeasured == progress_lines, "measurements of another machine are not reused"


def test_the_suite_covers_the_drafters_without_model_or_layers() -> None:
    text = {m.name for m in registry.methods() if m.drafter.state_key() is not None and set(m.needs) <= {"trees"}}
    assert text | {"rest"} == set(NAMES)
    assert set(hostcosts.GROWS) == set(NAMES)


def row(ms: float) -> dict[str, float]:
    return dict.fromkeys(("median", "p95", "propose", "observe"), ms / 1e3) | {"drafted": 1.0}


def test_table_and_chart_name_the_slow_drafters_and_their_growth() -> None:
    rows = {f"suffix at {n}": row(ms) for n, ms in ((250, 0.2), (2000, 1.6), (8000, 2.0))}
    rows |= {f"rest at {n}": row(0.1) for n in (250, 2000, 8000)} | {"rest in 1000": row(0.3)}
    report = {"rows": rows, "rounds": 9, "vocabulary": 512, "machine": machine_facts()}
    assert growth(report, "suffix") == pytest.approx(10)
    text = page(report)
    assert "More than 1.5 ms at 2,000 tokens of context: `suffix` (1.60 ms)." in text
    assert text.count("0.100") >= 3
    picture = ElementTree.fromstring(plot(report))
    lines = [e for e in picture if e.tag.endswith("polyline")]
    assert len(lines) == 2
    assert all(len(line.attrib["points"].split()) == 3 for line in lines)
    del rows["suffix at 2000"]
    assert "No drafter takes more than 1.5 ms" in page(report)
