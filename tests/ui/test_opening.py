"""The first screen: the race, the introduction and the automatic baseline, with the defaults of a new reader."""

from __future__ import annotations

import re

import pytest
from ui.conftest import PageOpener
from ui.test_page import short, state, wait_for_text

from workbench.views import recorded_runs, tour

pytestmark = [pytest.mark.browser, pytest.mark.slow]
NEW_READER: dict[str, str] = {}


def test_the_page_opens_on_a_race_that_ends_with_its_measured_result(fake_app: str, open_page: PageOpener) -> None:
    page = open_page(fake_app, preferences=NEW_READER)  # its target is another one than the recording's
    page.wait_for_selector(".wb-firstracelane.is-mine .wb-firstracerounds > span")
    wait_for_text(page, ".wb-firstraceresult strong", "faster")
    race = recorded_runs.load("race")
    ratios = race["baseline"]["ratios"]
    shown = page.inner_text(".wb-firstrace")
    value = float(re.search(r"([\d.]+)× faster", shown)[1])  # type: ignore[index]
    assert min(ratios) <= value <= max(ratios)
    assert f"n = {len(ratios)}" in shown
    assert "same text, token for token" in shown
    passes = sum(r["target_forwards"] for r in race["rounds"])
    assert f"{passes} target passes instead of {len(race['plain']['rounds'])}" in shown
    assert "recorded on text-target" in shown
    assert page.locator(".wb-round").count() == 0, "the recording is of another target than the panel's"


def test_the_recorded_race_opens_with_its_rounds_and_tree(fake_app: str, open_page: PageOpener) -> None:
    page = open_page(f"{fake_app}/?recorded=race", preferences=NEW_READER, reduced_motion="reduce")
    wait_for_text(page, ".wb-firstraceresult strong", "faster")
    assert page.locator(".wb-ghost:visible").count() == 0, "the text is readable: rejected drafts are off"
    page.locator(".wb-tree [role=treeitem]").nth(3).wait_for()  # a real tree is shown
    page.locator(".wb-firstracerounds > span").nth(2).click()
    wait_for_text(page, ".wb-where", "round 3 of")


def test_with_reduced_motion_the_race_is_over_at_once(fake_app: str, open_page: PageOpener) -> None:
    page = open_page(fake_app, preferences=NEW_READER, reduced_motion="reduce")
    assert "faster" in page.inner_text(".wb-firstraceresult")


def test_the_introduction_stays_closed(fake_app: str, open_page: PageOpener) -> None:
    page = open_page(fake_app, preferences=NEW_READER)
    assert page.is_visible(".wb-welcome")
    page.click(".wb-welcomeclose")
    page.wait_for_selector(".wb-welcome", state="hidden")
    page.reload()
    page.wait_for_selector(".wb[data-ready=true]")
    assert page.is_hidden(".wb-welcome")
    assert page.is_visible(".wb-firstrace")


def test_on_a_phone_the_race_comes_first(fake_app: str, open_page: PageOpener) -> None:
    page = open_page(fake_app, preferences=NEW_READER, viewport={"width": 390, "height": 844}, has_touch=True)
    boxes = [page.locator(part).bounding_box() or {} for part in (".wb-firstrace", "textarea >> nth=0")]
    assert boxes[0]["y"] < boxes[1]["y"]
    assert boxes[0]["y"] + boxes[0]["height"] <= 844, "the result is in sight without scrolling"
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")


def test_a_run_is_followed_by_its_baseline(fake_app: str, open_page: PageOpener) -> None:
    page = open_page(fake_app, preferences=NEW_READER)
    short(page, 24)
    page.click("[data-press=run]")
    state(page, "finished")
    wait_for_text(page, "[data-figure=speedup] .wb-value", "×")
    assert "target passes instead of" in page.inner_text(".wb-firstraceresult")
    page.uncheck("label:has-text('after each run') input")
    page.locator("input[id$=seed]").fill("7")
    page.keyboard.press("Tab")
    page.click("[data-press=run]")
    state(page, "finished")
    page.wait_for_timeout(600)
    assert page.inner_text("[data-figure=speedup] .wb-value") == "—"


def test_a_run_ends_an_automatic_baseline(fake_app: str, open_page: PageOpener) -> None:
    page = open_page(fake_app, preferences=NEW_READER)
    short(page, 60)
    page.click("[data-press=run]")
    wait_for_text(page, ".wb-card-ribbon em", "measuring the baseline")
    assert page.is_enabled("[data-press=run]"), "the reader's run comes first"
    page.locator("input[id$=seed]").fill("3")
    page.keyboard.press("Tab")
    page.click("[data-press=run]")
    state(page, "finished")
    wait_for_text(page, "[data-figure=speedup] .wb-value", "×")
    assert page.locator(".wb-alert.is-error").count() == 0


def test_the_tour_runs_on_the_page_and_returns_the_focus(fake_app: str, open_page: PageOpener) -> None:
    page = open_page(fake_app, preferences=NEW_READER, reduced_motion="reduce")
    panel = page.locator(".wb-tourpanel")
    page.get_by_role("button", name="New here? Two-minute tour").click()
    titles = [step["title"] for step in tour.live_steps()]
    assert len(titles) == 7
    for i, step in enumerate(tour.live_steps()):
        wait_for_text(page, ".wb-tourpanel small", f"{i + 1} of 7")
        assert panel.locator("h2").inner_text() == titles[i]
        assert panel.locator("p").inner_text() == step["text"]
        wait_for_text(page, "[data-toured]", MARKED[step["part"]])
        assert page.locator("[data-toured]").count() == 1
        box, part = panel.bounding_box() or {}, page.locator("[data-toured]").bounding_box() or {}
        assert 0 <= box["x"] <= 1440 - box["width"]
        assert 0 <= box["y"] <= 1100 - box["height"]
        assert -part["height"] < part["y"] < 1100, "the part is in sight"
        if step["shows"] == "rejected":
            wait_for_text(page, ".wb-card-card h3 em", "rejected")
        if i == 0:
            page.keyboard.press("ArrowRight")
            assert page.evaluate("document.activeElement.className").endswith("wb-tourpanel")
            assert panel.get_by_role("button", name="Back").is_disabled()
        if i + 1 < len(titles):
            panel.get_by_role("button", name="Next").click()
    where = page.inner_text(".wb-where")
    page.keyboard.press("ArrowLeft")
    page.wait_for_timeout(200)
    assert page.inner_text(".wb-where") == where, "arrow keys in the panel do not move the selection"
    page.reload()
    wait_for_text(page, ".wb-tourpanel small", "7 of 7")  # an open tour stays open
    panel.get_by_role("button", name="Back").click()
    wait_for_text(page, ".wb-tourpanel small", "6 of 7")
    page.keyboard.press("Escape")
    panel.wait_for(state="detached")
    assert page.locator("[data-toured]").count() == 0
    assert page.evaluate("document.activeElement.textContent") == "Two-minute tour", "the focus is back"
    assert page.locator(".wb-round").count() == 0, "the example of another target was shown for the tour only"
    page.reload()
    page.wait_for_selector(".wb[data-ready=true]")
    assert panel.count() == 0, "a closed tour stays closed"
    page.click("button.wb-badge:has-text('?')")
    page.get_by_role("dialog").get_by_role("button", name="Two-minute tour").click()
    wait_for_text(page, ".wb-tourpanel small", "1 of 7")  # and can be opened again
    panel.get_by_role("button", name="Close the tour").click()
    assert page.evaluate("document.activeElement.textContent") == "?"


MARKED = {"race": "Plain decoding", "text": "Tokens", "tree": "Draft tree", "card": "depth", "curves": "Acceptance"} | {
    "picker": "Method",
    "share": "copy link",
}
"""Text of the highlighted part of each step."""


def test_on_a_phone_the_tour_is_a_sheet_at_the_foot(fake_app: str, open_page: PageOpener) -> None:
    page = open_page(fake_app, preferences=NEW_READER, viewport={"width": 390, "height": 844}, has_touch=True)
    page.get_by_role("button", name="New here? Two-minute tour").click()
    for i in range(7):
        wait_for_text(page, ".wb-tourpanel small", f"{i + 1} of 7")
        page.wait_for_selector("[data-toured]")
        page.wait_for_timeout(150)
        sheet, part = (page.locator(each).bounding_box() or {} for each in (".wb-tourpanel", "[data-toured]"))
        assert (sheet["x"], sheet["width"], round(sheet["y"] + sheet["height"])) == (0, 390, 844)
        assert -1 <= part["y"] < sheet["y"] - 30, "the part begins above the sheet"
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
        page.locator(".wb-tourpanel .is-main").click()
    page.wait_for_selector(".wb-tourpanel", state="detached")
