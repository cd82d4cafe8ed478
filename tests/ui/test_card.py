"""The node card in the page: it shows the trace's rule, and its sliders work by keyboard."""

from __future__ import annotations

import json
from typing import Any

import pytest
from traces import FIXTURES
from ui.conftest import PageOpener, wait_until_drawn
from ui.test_live import upload

pytestmark = [pytest.mark.browser, pytest.mark.slow]


def test_a_slider_changes_the_what_if_result_and_not_the_recorded_one(fake_app: str, open_page: PageOpener) -> None:
    page = open_page(fake_app)
    upload(page, "chain.json", json.loads((FIXTURES / "chain.json").read_text()))
    page.locator(".wb-ghost.is-rejected").first.click()
    facts, play = page.locator(".wb-facts"), page.locator(".wb-play")
    page.wait_for_selector(".wb-facts :text('min(1, p / q) = min(1, ')")
    recorded = facts.inner_text()
    wait_until_drawn(page)
    assert "→ rejected" in play.locator(".wb-play-verdict").inner_text()
    page.set_viewport_size({"width": 1440, "height": 900})
    wait_until_drawn(page)
    tree, *head = [
        page.locator(s).bounding_box() or {} for s in (".wb-card-tree", ".wb-play-verdict:visible", ".wb-play-body")
    ]
    assert head[0]["y"] < head[1]["y"], "the result is above the sliders, so it is visible at once"
    bottom = head[1]["y"] + head[1]["height"]
    assert bottom <= tree["y"] + tree["height"], "verdict, sliders and picture are beside the tree"
    assert (
        page.evaluate(
            "() => { const e = document.querySelector('.wb-nodecard'); return e.scrollHeight - e.clientHeight }"
        )
        <= 1
    )
    bar = play.locator(".wb-probbar.is-p").first
    value = bar.get_attribute("aria-valuenow")
    bar.press("End")
    page.wait_for_selector(".wb-play-verdict:has-text('would be accepted; it was rejected')")
    assert bar.get_attribute("aria-valuenow") == "1.000" != value
    play.get_by_role("button", name="Reset").click()
    assert play.locator("button").is_disabled()
    u = play.get_by_role("slider", name="uniform random number")
    u.press("Home")
    page.wait_for_selector(".wb-play-verdict:has-text('would be accepted; it was rejected')")
    assert "not recorded" in play.locator(".wb-play-badge").inner_text()
    play.get_by_role("slider", name="temperature").press("Home")
    page.wait_for_selector(".wb-play-verdict:has-text('x = x*')")
    assert facts.inner_text() == recorded
    play.get_by_role("button", name="Reset").click()
    page.wait_for_selector(".wb-play-badge:has-text('as recorded')")
    assert u.get_attribute("aria-valuetext").endswith("as recorded")
    old = json.loads((FIXTURES / "chain.json").read_text())
    del old["header"]["rules"]
    for r in old["rounds"]:
        del r["nodes"]["rule"], r["nodes"]["inputs"]
    upload(page, "old.json", old | {"header": old["header"] | {"schema": 2}})
    page.locator(".wb-ghost.is-rejected").first.click()
    page.wait_for_selector(".wb-facts :text('does not name the rule')")
    assert play.is_hidden()
    half = json.loads((FIXTURES / "chain.json").read_text())
    for r in half["rounds"]:
        r["nodes"]["text"] = ["\u2039D7\u203a" if parent < 0 else "\u2039A9\u203a" for parent in r["nodes"]["parents"]]
    upload(page, "half.json", half)
    page.locator(".wb-ghost.is-rejected:has-text('\u05e9')").first.click()
    page.wait_for_selector(".wb-facts :text('\u201c\u05e9\u201d')")
    assert "\u2039" not in page.locator(".wb-card:has(.wb-facts)").inner_text()


def box(page: Any, selector: str) -> dict[str, float]:
    return page.locator(selector).first.bounding_box() or {}


def test_a_click_on_a_token_brings_its_card_into_view(fake_app: str, open_page: PageOpener) -> None:
    page = open_page(f"{fake_app}/?recorded=draft-tree", viewport={"width": 1440, "height": 700})
    page.wait_for_selector(".wb-badge[data-state=recorded]")
    page.wait_for_selector(".wb-scrub:has-text('jump to the end')")
    page.evaluate("scrollTo(0, 0)")
    token = page.locator(".wb-ribbon .is-rejected, .wb-ribbon [data-token]").nth(6)
    token.scroll_into_view_if_needed()
    place = token.bounding_box() or {}
    page.mouse.move(place["x"] + 4, place["y"] + place["height"] / 2)
    page.mouse.down()
    page.mouse.up()
    page.wait_for_timeout(900)  # it scrolls smoothly
    text = page.evaluate("document.querySelector('.wb-ribbon .is-chosen, .wb-ribbon [aria-selected=true]').textContent")
    card, chosen = box(page, ".wb-card-card"), box(page, ".wb-ribbon [aria-selected=true]")
    assert 0 < card["y"] < 500, "the card's verdict is in view"
    assert chosen["y"] > 50, "the token stays in view below the header"
    assert text.strip() in page.inner_text(".wb-card-card h3").replace("␣", "").replace("·", " ")
    assert page.inner_text(".wb-plainverdict").startswith(("Accepted: ", "Rejected: ", "Not tested: "))


def test_on_a_phone_the_card_is_a_sheet_below_the_token(fake_app: str, open_page: PageOpener) -> None:
    page = open_page(
        f"{fake_app}/?recorded=draft-tree",
        viewport={"width": 390, "height": 844},
        has_touch=True,
        reduced_motion="reduce",
    )
    page.wait_for_selector(".wb-ribbon [data-token]")
    wait_until_drawn(page)
    assert page.locator(".wb-sheetclose").is_hidden()
    page.locator(".wb-ribbon [data-token]").nth(6).tap()
    page.wait_for_selector(".wb-card-card.is-sheet")
    page.wait_for_timeout(900)
    sheet, chosen = box(page, ".wb-card-card"), box(page, ".wb-ribbon [aria-selected=true]")
    assert sheet["y"] + sheet["height"] == pytest.approx(844, abs=2)
    assert 0 < chosen["y"] < sheet["y"] - chosen["height"], "the token is above the sheet"
    page.locator(".wb-sheetclose").tap()
    assert page.locator(".wb-card-card.is-sheet").count() == 0
