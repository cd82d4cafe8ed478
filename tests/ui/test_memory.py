"""The card "State of the drafter" in Live, in a browser: growth, reset, save and load."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from ui.conftest import PageOpener
from ui.fake_client import STATE
from ui.test_page import long, state, wait_for_text

pytestmark = [pytest.mark.browser, pytest.mark.slow]
CARD = ".wb-card-remembers"


def opened(open_page: PageOpener, url: str, method: str = "draft-tree") -> Any:
    """Return a page with the card open and a run paused after some rounds."""
    page = open_page(url)
    assert page.locator(CARD).is_hidden(), "a recording has no drafter state"
    page.select_option("[data-what=method]", method)
    long(page)
    page.click("[data-press=run]")
    page.wait_for_function("Number(document.querySelector('.wb-where').textContent.split(' of ')[1]) > 6")
    page.click("[data-press=pause]")
    state(page, "paused")
    page.wait_for_selector(CARD)
    page.click(f"{CARD} h3 button")
    page.wait_for_selector(f"{CARD} tbody tr")
    return page


def entries(page: Any) -> int:
    return int(page.inner_text(".wb-memorysize").split(": ")[1].split(" of")[0].replace(",", ""))


def test_the_card_shows_size_hits_and_the_entry_of_the_latest_draft(fake_app: str, open_page: PageOpener) -> None:
    page = opened(open_page, fake_app)
    assert "of at most 4,096 tokens" in page.inner_text(".wb-memorysize")
    assert "look-ups had a hit" in page.inner_text(".wb-memorysize")
    assert page.inner_text(".wb-memorymade").startswith("Round ")
    assert page.evaluate("document.querySelector('.wb-memory meter').value") == entries(page)
    assert "<b>bold</b>⏎" in page.inner_text(f"{CARD} table"), "model text is escaped"
    assert page.locator(f"{CARD} table b").count() == 0
    before = entries(page)
    page.click("[data-press=pause]")
    page.locator(CARD).scroll_into_view_if_needed()  # the card is refreshed only while it is in sight
    page.wait_for_function(f"Number(document.querySelector('.wb-memory meter').value) > {before}", timeout=20_000)


def test_the_state_is_reset_saved_and_loaded(fake_app: str, open_page: PageOpener, tmp_path: Path) -> None:
    page = opened(open_page, fake_app)
    page.click(f"{CARD} button:text('Reset')")
    wait_for_text(page, ".wb-memorynote", "State deleted")
    assert entries(page) == 0
    with page.expect_download() as saved:
        page.click(f"{CARD} button:text('Save')")
    file = tmp_path / saved.value.suggested_filename
    saved.value.save_as(file)
    assert file.suffix == ".safetensors"
    assert file.read_bytes() == STATE
    page.set_input_files(f"{CARD} input[type=file]", file)
    wait_for_text(page, ".wb-memorynote", "Loaded")
    assert entries(page) >= 40
    wrong = {"name": "other.safetensors", "mimeType": "application/octet-stream", "buffer": b"another"}
    page.set_input_files(f"{CARD} input[type=file]", wrong)
    wait_for_text(page, ".wb-alert", "tokenizer of another model")
    large = wrong | {"buffer": bytes(3 << 20)}
    page.set_input_files(f"{CARD} input[type=file]", large)
    wait_for_text(page, ".wb-memorynote", "larger than")


def test_a_file_waits_for_the_next_run(fake_app: str, open_page: PageOpener, tmp_path: Path) -> None:
    page = opened(open_page, fake_app)
    page.click("[data-press=stop]")
    state(page, "cancelled")
    page.wait_for_function("document.querySelector('.wb-memorydo button').disabled", timeout=5_000)
    file = tmp_path / "mine.safetensors"
    file.write_bytes(STATE)
    page.set_input_files(f"{CARD} input[type=file]", file)
    wait_for_text(page, ".wb-memorynote", "The next run starts with mine.safetensors")
    page.click("[data-press=run]")
    state(page, "running")
    page.locator(CARD).scroll_into_view_if_needed()  # the card is refreshed only while it is in sight
    page.wait_for_function("Number(document.querySelector('.wb-memory meter').value) > 40", timeout=20_000)


def test_a_drafter_without_state_is_reported(fake_app: str, open_page: PageOpener) -> None:
    page = open_page(fake_app)
    page.select_option("[data-what=method]", "autoregressive")
    page.click("[data-press=run]")
    page.wait_for_selector(CARD)
    page.click(f"{CARD} h3 button")
    wait_for_text(page, ".wb-memorysize", "keeps nothing")
    assert page.is_disabled(f"{CARD} button:text('Save')")
