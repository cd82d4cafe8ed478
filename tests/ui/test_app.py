"""`python app.py` with the bundled models in a real browser: a real generation from start to end."""

from __future__ import annotations

import pytest
from ui.conftest import PageOpener
from ui.test_page import ROUNDS, count, short, state, wait_for_text, wait_rounds

pytestmark = [pytest.mark.browser, pytest.mark.slow]


def test_a_real_run_switches_its_method_and_is_complete(real_app: str, open_page: PageOpener) -> None:
    page = open_page(real_app)
    wait_for_text(page, ".wb-badge", "RECORDED · draft-tree")
    first = [page.input_value("[data-what=method]"), page.input_value("[data-param=temperature] input[type=number]")]
    assert first == ["draft-tree", "0"], "the panel has the settings of the recording"
    page.select_option("[data-what=method]", "draft-model")
    short(page, 48)
    wait_for_text(page, ".wb-pace", "tokens/s")  # runs of small targets are slowed down by default
    page.click("[data-press=run]")
    page.wait_for_selector(".wb-token")
    page.select_option("[data-what=method]", "draft-tree")
    wait_for_text(page, ".wb-card-ribbon em", "slower than at full speed")
    state(page, "finished")
    page.wait_for_timeout(300)
    assert page.evaluate(ROUNDS) == list(range(count(page)))
    assert page.locator(".wb-alert.is-error").count() == 0
    wait_for_text(page, ".wb-note", "draft-model → draft-tree")


def test_step_and_stop_reach_the_engine(real_app: str, open_page: PageOpener) -> None:
    page = open_page(real_app)
    page.click("[data-press=step]")
    wait_rounds(page, 1)
    state(page, "paused")
    page.click("[data-press=step]")
    wait_rounds(page, 2)
    page.wait_for_timeout(400)
    assert count(page) == 2
    page.click("[data-press=stop]")
    state(page, "cancelled")


def test_two_tabs_share_the_engine(real_app: str, open_page: PageOpener) -> None:
    at_once = f"{real_app}/?pace=0"  # otherwise the page still shows the last tokens after the run has ended
    one, two = open_page(at_once), open_page(at_once)
    for page in (one, two):
        short(page, 32)
        page.click("[data-press=run]")
    for page in (one, two):
        state(page, "finished", 120_000)
    tokens = "[...document.querySelectorAll('.wb-token')].map((e) => e.textContent).join('')"
    text = [page.evaluate(tokens) for page in (one, two)]
    assert text[0] == text[1], "the same greedy run"


def test_an_invalid_value_is_refused_and_the_engine_continues(real_app: str, open_page: PageOpener) -> None:
    page = open_page(real_app)
    page.fill("textarea", "")
    page.click("[data-press=run]")
    page.wait_for_selector(".wb-alert.is-error")
    page.locator("[data-preset]").first.click()
    short(page, 8)
    page.click("[data-press=run]")
    state(page, "finished", 60_000)
