"""Hostile model output and hostile addresses in the browser: no text becomes an element, runs, or opens a dialog."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from security.hostile_model import PIECES
from ui.conftest import READY, PageOpener, free_port, serve
from ui.test_page import state

from workbench.trace.events import Trace
from workbench.views.replay import replay

pytestmark = [pytest.mark.browser, pytest.mark.slow]

ELEMENTS = """() => [...document.querySelectorAll(
    'iframe, img[src="x"], svg[onload], [onerror], [onfocus], a[href^="javascript"], script:not([src])')]
    .filter((e) => e.type !== 'application/json').map((e) => e.outerHTML).filter((html) => html.includes('pwned'))"""


@pytest.fixture(scope="module")
def hostile_app(hostile_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    port, log = free_port(), tmp_path_factory.mktemp("hostile-app") / "log"
    yield from serve([sys.executable, str(Path(__file__).with_name("serve_hostile.py")), str(hostile_folder),
                      str(port)], port, log)  # fmt: skip


def watched(page: Any) -> list[str]:
    """Return the list of dialogs that the page opens from now on."""
    dialogs: list[str] = []
    page.on("dialog", lambda dialog: (dialogs.append(dialog.message), dialog.dismiss()))
    return dialogs


def clean(page: Any, dialogs: list[str]) -> None:
    assert page.evaluate("() => window.pwned") is None
    assert page.evaluate(ELEMENTS) == []
    assert dialogs == []


def test_the_live_view_shows_hostile_tokens_as_text(
    hostile_app: str, hostile_folder: Path, open_page: PageOpener
) -> None:
    page = open_page(hostile_app)
    dialogs = watched(page)
    page.select_option("[data-what=target]", hostile_folder.name)
    page.wait_for_timeout(500)
    page.fill("textarea", PIECES[0])
    page.select_option("[data-what=method]", "prompt-lookup")
    page.click("[data-press=run]")
    state(page, "finished", 90_000)
    page.wait_for_timeout(500)
    shown = page.evaluate("() => [...document.querySelectorAll('.wb-token')].map((e) => e.textContent).join('')")
    assert "onerror=window.pwned=2>" in shown, shown  # shown as text
    tokens = page.locator(".wb-token")
    for i in range(0, min(tokens.count(), 64), 5):  # token cards, which list the likeliest alternatives
        tokens.nth(i).hover(force=True)
        tokens.nth(i).click(force=True)
    page.wait_for_timeout(300)
    clean(page, dialogs)


@pytest.mark.parametrize("path", ["/", "/gallery", "/methods", "/learn", "/verifiers"])
def test_hostile_addresses_are_shown_as_text(hostile_app: str, open_page: PageOpener, path: str) -> None:
    attacks = [piece for piece in PIECES if "pwned" in piece]
    query = "&".join(
        f"{name}={quote(attack)}"
        for name, attack in zip(
            ("prompt", "method", "target", "drafter", "trace", "view", "step", "token", "embed", "seed"), attacks,
            strict=False,
        )
    )  # fmt: skip
    page = open_page(f"{hostile_app}{path}" if path == "/" else hostile_app)
    dialogs = watched(page)
    open_page.allowed.append("status of 404")
    page.goto(f"{hostile_app}{path}?{query}#{quote(attacks[1])}")
    page.wait_for_selector(READY if path == "/" else ".wb")
    page.wait_for_timeout(1200)
    clean(page, dialogs)


def test_the_replay_file_opens_from_disk_and_runs_no_hostile_text(
    hostile_trace: Trace, browser: Any, tmp_path: Path
) -> None:
    file = tmp_path / "replay.html"
    file.write_text(replay(hostile_trace), encoding="utf-8")
    context = browser.new_context()
    page = context.new_page()
    dialogs = watched(page)
    page.goto(file.as_uri())
    page.wait_for_selector(".wb-token")
    page.wait_for_timeout(800)
    assert "onerror=window.pwned" in page.evaluate("() => document.body.textContent")
    clean(page, dialogs)
    context.close()
