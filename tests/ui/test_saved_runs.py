"""Saving runs in the page, and finding them in the gallery."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
from ui.conftest import PageOpener
from ui.fake_client import FakeWorkbench
from ui.test_page import short, state

from workbench.core.errors import ParameterError, WorkbenchError
from workbench.trace.speedup import estimate
from workbench.trace.store import RunStore
from workbench.ui.saved_runs import MAX_TEXT, PAGE, SavedRunsView, parse
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
    assert "One run" in page.inner_text(".wb-keptfound")
    page.get_by_label("tags").fill("fox, first")
    page.get_by_label("note").fill("a note <b>as text</b>")
    page.get_by_label("note").press("Tab")
    page.wait_for_function("document.querySelector('.wb-keptmarks small').textContent === 'saved'")
    page.get_by_label("Search", exact=True).fill("#fox nobody")
    page.wait_for_timeout(600)
    assert page.locator(".wb-kept .wb-runcard").count() == 1
    page.get_by_label("Search", exact=True).fill("#other")
    page.wait_for_function("document.querySelectorAll('.wb-kept .wb-runcard').length === 0")
    assert "No kept run matches" in page.inner_text(".wb-keptfound")
    page.get_by_label("Search", exact=True).fill("")
    page.wait_for_selector(".wb-kept .wb-runcard")
    assert page.get_by_label("tags").input_value() == "first, fox"
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
