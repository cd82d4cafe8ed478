"""Saving runs in the page, and finding them in the gallery."""

from __future__ import annotations

import csv
import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from ui.conftest import PageOpener
from ui.fake_client import FakeWorkbench
from ui.test_page import short, state
from ui.test_pages import in_browser

from workbench.core.errors import ParameterError, WorkbenchError
from workbench.trace.speedup import estimate
from workbench.trace.store import RunStore
from workbench.ui.pair import load_run
from workbench.ui.saved_runs import MAX_TEXT, MOST_COMPARED, PAGE, SavedRunsView, parse
from workbench.ui.session import Session
from workbench.views import recorded_runs

TRACE = recorded_runs.trace("draft-model")


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RunStore:
    monkeypatch.setenv("WORKBENCH_RUNS", str(tmp_path / "runs"))
    return RunStore()


def test_a_saved_run_equals_that_of_the_command_line_and_opens_by_its_id(store: RunStore) -> None:
    kept = SavedRunsView(allowed=True)
    made = kept.keep({"trace": TRACE.to_wire()})["id"]
    assert store.load(made) == TRACE
    assert Session(FakeWorkbench(), kept).recorded({"name": made}) == TRACE.to_wire()
    assert kept.recording("draft-tree") == recorded_runs.load("draft-tree"), "recordings of the gallery are found, too"
    found = kept.kept({"search": ""})
    assert (found["allowed"], found["total"], found["problems"]) == (True, 1, [])
    assert found["runs"][0]["id"] == made
    assert found["runs"][0]["figures"] == recorded_runs.describe("x", TRACE)["figures"]


def test_a_saved_run_has_its_baseline_and_measured_pairs(store: RunStore) -> None:
    kept, beside = SavedRunsView(allowed=True), {"tokens_per_second": 20.5, "ratios": [1.4, 1.5, 1.45]}
    made = kept.keep({"trace": TRACE.to_wire(), "baseline": beside})["id"]
    kept.mark({"id": made, "tags": "story", "note": ""})
    assert kept.recording(made) == TRACE.to_wire() | {"baseline": beside}
    found = store.baseline(made)
    assert found is not None
    assert found.estimate == estimate({0: beside["ratios"]})
    alone = kept.keep({"trace": TRACE.to_wire(), "baseline": {"tokens_per_second": None, "ratios": []}})["id"]
    assert store.baseline(alone) is None


@pytest.mark.parametrize("figure", [{"ratios": [0]}, {"ratios": ["2"]}, {"ratios": [1] * 66}, {"ratios": {"a": 1}},
                                    {"tokens_per_second": True}, {"tokens_per_second": float("nan")}])  # fmt: skip
def test_a_baseline_with_invalid_figures_is_refused(store: RunStore, figure: dict[str, Any]) -> None:
    with pytest.raises(WorkbenchError, match="baseline"):
        SavedRunsView(allowed=True).keep({"trace": TRACE.to_wire(), "baseline": figure})
    assert not store.folder.exists()


def test_runs_are_found_by_text_tags_and_figures_and_can_be_tagged_and_deleted(store: RunStore) -> None:
    kept = SavedRunsView(allowed=True)
    one, two = (kept.keep({"trace": recorded_runs.trace(name).to_wire()})["id"] for name in ("draft-model", "medusa"))
    assert kept.mark({"id": one, "tags": " story, good,story ", "note": "a Zeppelin"}) == {"tags": ["good", "story"]}
    assert kept.mark({"id": one, "tags": "story", "note": "a Zeppelin"}) == {"tags": ["story"]}

    def ids(search: str) -> list[str]:
        return [run["id"] for run in kept.kept({"search": search})["runs"]]

    assert set(ids("")) == {one, two}
    assert ids("#story") == ids("zeppelin") == [one]
    assert ids("#good") == []
    figure = store.entry(two)["tau"]
    assert set(ids(f"tau<={figure}")) == {run for run in (one, two) if store.entry(run)["tau"] <= figure}
    kept.forget({"id": one})
    assert ids("") == [two]
    with pytest.raises(WorkbenchError, match="No run"):
        kept.forget({"id": one})


def test_pages_of_runs_follow_each_other_without_gaps(store: RunStore) -> None:
    kept, small = SavedRunsView(allowed=True), recorded_runs.trace("autoregressive").to_wire()
    made = {kept.keep({"trace": small})["id"] for _ in range(PAGE + 3)}
    first, second = (kept.kept({"search": "", "first": n})["runs"] for n in (0, PAGE))
    assert (len(first), len(second)) == (PAGE, 3)
    assert {run["id"] for run in first + second} == made


def test_a_damaged_file_is_named_and_hides_no_other_run(store: RunStore) -> None:
    kept = SavedRunsView(allowed=True)
    one, two = (kept.keep({"trace": TRACE.to_wire()})["id"] for _ in range(2))
    kept.kept({})
    file = next(store.folder.rglob(f"{one}.parquet"))
    file.write_bytes(file.read_bytes()[:200])
    answer = kept.kept({"search": ""})
    assert [run["id"] for run in answer["runs"]] == [two]
    assert one in " ".join(answer["problems"])


@pytest.mark.parametrize("call", ["keep", "mark", "forget"])
def test_a_public_app_saves_no_runs_and_reports_that(store: RunStore, call: str) -> None:
    made = store.save(TRACE)
    with pytest.raises(WorkbenchError, match="public app"):
        getattr(SavedRunsView(), call)({"id": made, "trace": TRACE.to_wire(), "tags": "", "note": ""})
    assert SavedRunsView().kept({}) == {"allowed": False}
    with pytest.raises(WorkbenchError):
        SavedRunsView().recording(made)
    assert Session(FakeWorkbench()).catalogue({})["keeps"] is False


@pytest.mark.parametrize(
    ("call", "request_"),
    [
        ("keep", {}),
        ("keep", {"trace": "text"}),
        ("keep", {"trace": {"header": 1}}),
        ("kept", {"search": "tau>=x"}),
        ("kept", {"search": "nonsense>=1"}),
        ("kept", {"search": ["a"]}),
        ("kept", {"search": "x" * (MAX_TEXT + 1)}),
        ("kept", {"first": -1}),
        ("mark", {"id": "../../etc/passwd", "tags": "", "note": ""}),
        ("mark", {"id": 3, "tags": "", "note": ""}),
        ("forget", {"id": "../store"}),
        ("forget", {}),
    ],
)
def test_invalid_values_from_the_browser_are_refused_with_a_message(
    store: RunStore, call: str, request_: dict[str, Any]
) -> None:
    store.save(TRACE)
    with pytest.raises(WorkbenchError):
        getattr(SavedRunsView(allowed=True), call)(request_)
    assert len(store.find().collect()) == 1, "no run was lost or added"


def test_invalid_search_terms_are_refused() -> None:
    with pytest.raises(ParameterError):
        SavedRunsView(allowed=True).kept({"search": {"a": 1}})
    assert parse("fox #a #b tau>=2 x<3") == ("fox", ["a", "b"], ["tau>=2", "x<3"])


@pytest.mark.smoke
@pytest.mark.browser
@pytest.mark.slow
def test_a_run_is_saved_from_the_menu_found_in_the_gallery_and_opened(
    fake_app: str, fake_app_runs: Path, open_page: PageOpener
) -> None:
    shutil.rmtree(fake_app_runs, ignore_errors=True)  # runs of earlier tests
    page = open_page(fake_app)
    page.fill("textarea", "A fox that nobody else writes about")
    short(page, 24)
    page.click("[data-press=run]")
    state(page, "finished")
    text = page.evaluate("[...document.querySelectorAll('.wb-token')].map((e) => e.textContent).join('')")
    page.get_by_role("button", name="export ▾").click()
    page.get_by_role("button", name="Keep").click()
    page.get_by_role("link", name="see all kept runs").click()
    page.wait_for_selector(".wb-kept .wb-runcard")
    kept = page.locator("#kept")
    assert "One run" in page.inner_text(".wb-keptfound")
    page.get_by_role("textbox", name="tags").fill("fox, first")
    kept.get_by_label("note").fill("a note <b>as text</b>")
    kept.get_by_label("note").press("Tab")
    page.wait_for_function("document.querySelector('.wb-keptmarks small').textContent === 'saved'")
    kept.get_by_label("Search", exact=True).fill("#fox nobody")
    page.wait_for_timeout(600)
    assert page.locator(".wb-kept .wb-runcard").count() == 1
    kept.get_by_label("Search", exact=True).fill("#other")
    page.wait_for_function("document.querySelectorAll('.wb-kept .wb-runcard').length === 0")
    assert "No kept run matches" in page.inner_text(".wb-keptfound")
    kept.get_by_label("Search", exact=True).fill("")
    page.wait_for_selector(".wb-kept .wb-runcard")
    assert page.get_by_role("textbox", name="tags").input_value() == "first, fox"
    page.locator(".wb-kept").get_by_role("link", name="Open").click()
    page.wait_for_selector(".wb[data-ready=true] .wb-token")
    page.wait_for_function(
        "text => [...document.querySelectorAll('.wb-token')].map((e) => e.textContent).join('') === text", arg=text
    )
    page.goto(f"{fake_app}/gallery#kept")
    remove = page.get_by_role("button", name="Delete")
    remove.click()
    assert page.locator(".wb-kept .wb-runcard").count() == 1, "one click deletes nothing"
    remove.click()
    page.wait_for_function("document.querySelectorAll('.wb-kept .wb-runcard').length === 0")
    assert "No kept runs yet" in page.inner_text(".wb-keptfound")


def test_the_table_has_saved_runs_before_recordings_with_the_interval_of_their_speedup(store: RunStore) -> None:
    view, ratios = SavedRunsView(allowed=True), (1.5, 1.6, 1.7)
    run = view.keep({"trace": TRACE.to_wire(), "baseline": {"tokens_per_second": 20.0, "ratios": list(ratios)}})["id"]
    view.mark({"id": run, "tags": "mine, story", "note": "a note"})
    answer = view.table({})
    first = answer["rows"][0]
    assert answer["total"] == 1
    assert (first["name"], first["source"], first["method"], first["tags"]) == (
        run, "kept", "draft-model", ["mine", "story"],
    )  # fmt: skip
    assert first["tau"] == pytest.approx(recorded_runs.describe("x", TRACE)["figures"]["tau"])
    expected = estimate({0: ratios})
    assert expected is not None
    assert first["speedup"] == expected.to_wire()
    recorded = {row["name"]: row for row in answer["rows"][1:]}
    assert set(recorded) == set(recorded_runs.names())
    assert recorded["race"]["speedup"]["low"] is not None
    json.dumps(answer)


def test_a_public_app_has_a_table_of_recordings_only(store: RunStore) -> None:
    answer = SavedRunsView().table({})
    assert {row["source"] for row in answer["rows"]} == {"recorded"}
    assert answer["total"] == 0


def test_runs_are_compared_by_their_names_within_limits(store: RunStore) -> None:
    view = SavedRunsView(allowed=True)
    run = view.keep({"trace": TRACE.to_wire()})["id"]
    found = view.significance({"first": [run], "second": ["draft-model"]})
    assert found["problems"] == []
    assert found["figures"]["tau"]["value"] == 0
    for names in ([], [run] * (MOST_COMPARED + 1), "draft-model", None):
        with pytest.raises(ParameterError, match="A group needs"):
            view.significance({"first": [run], "second": names})
    with pytest.raises(WorkbenchError):
        SavedRunsView().significance({"first": [run], "second": ["draft-model"]})


def test_a_trace_from_the_page_is_shown_beside_another(store: RunStore) -> None:
    found = load_run(SavedRunsView(), {"name": "branch", "trace": TRACE.to_wire()})
    assert found["trace"] == TRACE.to_wire()
    assert found["figures"]["tau"] == load_run(SavedRunsView(), {"name": "draft-model"})["figures"]["tau"]
    with pytest.raises(WorkbenchError, match="damaged"):
        load_run(SavedRunsView(), {"trace": {"header": {}}})


@in_browser
def test_the_table_of_runs_is_sorted_selected_compared_and_exported(
    fake_app: str, open_page: PageOpener, tmp_path: Path
) -> None:
    page = open_page(f"{fake_app}/gallery#runs")
    page.wait_for_selector(".wb-runtable tbody tr")
    n = page.locator(".wb-runtable tbody tr").count()
    assert n >= len(recorded_runs.names())
    page.click(".wb-runtable th[data-column=tau] button")
    assert page.get_attribute(".wb-runtable th[data-column=tau]", "aria-sort") == "descending"
    page.fill(".wb-runs input[type=search]", "draft-tree tau>2")
    page.wait_for_function(f"document.querySelectorAll('.wb-runtable tbody tr').length < {n}")
    page.fill(".wb-runs input[type=search]", "")
    for name in ("draft-model", "draft-tree"):
        page.check(f".wb-runtable tr[data-run='{name}'] input")
    assert page.get_attribute(".wb-runbar a", "href").endswith("/r/draft-model+draft-tree")
    page.click("text=Compare selected")
    page.wait_for_selector(".wb-runanswer li")
    assert "no interval" in page.inner_text(".wb-runanswer")
    assert page.locator(".wb-runplot .wb-dot").count() > 20
    with page.expect_download() as download:
        page.click(".wb-runbar button:has-text('CSV')")
    download.value.save_as(tmp_path / "runs.csv")
    assert len(list(csv.DictReader((tmp_path / "runs.csv").open(encoding="utf-8", newline="")))) == n
