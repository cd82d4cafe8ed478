"""The first screen: the race, the introduction and the automatic baseline, with the defaults of a new reader."""

from __future__ import annotations

import re

import pytest
from ui.conftest import PageOpener
from ui.test_page import short, state, wait_for_text

from workbench.views import recorded_runs

pytestmark = [pytest.mark.browser, pytest.mark.slow]
NEW_READER: dict[str, str] = {}


def test_the_page_opens_on_a_race_that_ends_with_its_measured_result(fake_app: str, open_page: PageOpener) -> None:
    page = open_page(fake_app, preferences=NEW_READER)  # its target is another one than the recording's
    page.wait_for_selector(".wb-racelane.is-mine .wb-racerounds > span")
    wait_for_text(page, ".wb-raceresult strong", "faster")
    race = recorded_runs.load("race")
    ratios = race["baseline"]["ratios"]
    shown = page.inner_text(".wb-race")
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
    wait_for_text(page, ".wb-raceresult strong", "faster")
    assert page.locator(".wb-ghost:visible").count() == 0, "the text is readable: rejected drafts are off"
    page.locator(".wb-tree [role=treeitem]").nth(3).wait_for()  # a real tree is shown
    page.locator(".wb-racerounds > span").nth(2).click()
    wait_for_text(page, ".wb-where", "round 3 of")


def test_with_reduced_motion_the_race_is_over_at_once(fake_app: str, open_page: PageOpener) -> None:
    page = open_page(fake_app, preferences=NEW_READER, reduced_motion="reduce")
    assert "faster" in page.inner_text(".wb-raceresult")


def test_the_introduction_stays_closed(fake_app: str, open_page: PageOpener) -> None:
    page = open_page(fake_app, preferences=NEW_READER)
    assert page.is_visible(".wb-welcome")
    page.click(".wb-welcomeclose")
    page.wait_for_selector(".wb-welcome", state="hidden")
    page.reload()
    page.wait_for_selector(".wb[data-ready=true]")
    assert page.is_hidden(".wb-welcome")
    assert page.is_visible(".wb-race")


def test_on_a_phone_the_race_comes_first(fake_app: str, open_page: PageOpener) -> None:
    page = open_page(fake_app, preferences=NEW_READER, viewport={"width": 390, "height": 844}, has_touch=True)
    boxes = [page.locator(part).bounding_box() or {} for part in (".wb-race", "textarea >> nth=0")]
    assert boxes[0]["y"] < boxes[1]["y"]
    assert boxes[0]["y"] + boxes[0]["height"] <= 844, "the result is in sight without scrolling"
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")


def test_a_run_is_followed_by_its_baseline(fake_app: str, open_page: PageOpener) -> None:
    page = open_page(fake_app, preferences=NEW_READER)
    short(page, 24)
    page.click("[data-press=run]")
    state(page, "finished")
    wait_for_text(page, "[data-figure=speedup] .wb-value", "×")
    assert "target passes instead of" in page.inner_text(".wb-raceresult")
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
