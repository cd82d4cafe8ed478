"""Every state of the Live view can be reached and is labelled.

With `WORKBENCH_SHOTS=folder` each state is also saved as a screenshot in light and dark, for manual inspection.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from ui.conftest import PageOpener
from ui.test_live import upload
from ui.test_page import short, state, wait_for_text, wait_rounds
from views.synthetic import trace

pytestmark = [pytest.mark.browser, pytest.mark.slow]


def shoot(page: Any, name: str) -> None:
    folder = os.environ.get("WORKBENCH_SHOTS")
    if not folder:
        return
    for scheme in ("light", "dark"):
        page.emulate_media(color_scheme=scheme)
        page.evaluate("(dark) => document.body.classList.toggle('dark', dark)", scheme == "dark")
        page.wait_for_timeout(120)
        page.screenshot(path=Path(folder) / f"{name.replace(' ', '-')}-{scheme}.png")


def start(page: Any, scene: str) -> None:
    page.fill("textarea", f"Synthetic: {scene}")
    page.click("[data-press=run]")


def test_before_the_first_round(fake_app: str, open_page: PageOpener) -> None:
    page = open_page(fake_app, viewport={"width": 1280, "height": 900})
    short(page, 16)
    shoot(page, "recorded")
    assert "needs Medusa heads" in page.locator("[data-what=method] option[disabled]").inner_text()
    assert "another tokenizer" in page.locator("[data-what=drafter] option[disabled]").inner_text()
    start(page, "downloading")
    page.wait_for_function(
        "/Downloading synthetic-target: [1-9].* of 30.0 MB/.test(document.querySelector('.wb-ribbon').dataset.empty)"
    )
    assert page.locator("progress").evaluate("(e) => e.value > 0 && e.max === 30000000")
    shoot(page, "downloading")
    state(page, "finished")
    start(page, "warming up")
    page.wait_for_selector(".wb-ribbon[data-empty^='Warming up']")
    assert page.locator("progress").evaluate("(e) => e.position") == -1, (
        "the duration is unknown, so the bar is indeterminate"
    )
    shoot(page, "warming up")
    state(page, "finished")
    start(page, "queued")
    page.wait_for_selector(".wb-ribbon[data-empty='Queued: position 2 of 3.']")
    page.wait_for_selector(".wb-ribbon[data-empty='Queued: position 1 of 3.']")
    wait_for_text(page, ".wb-card-ribbon h3 em", "queued: position 1 of 3")
    shoot(page, "queued")
    state(page, "finished")


def test_how_a_run_ends(fake_app: str, open_page: PageOpener) -> None:
    page = open_page(fake_app, viewport={"width": 1280, "height": 900})
    start(page, "limit")
    state(page, "finished")
    wait_for_text(page, ".wb-card-ribbon h3 em", "stopped: server's time limit reached")
    wait_for_text(page, "[data-figure=speedup] .wb-label", "no baseline")
    shoot(page, "limit")
    start(page, "out of memory")
    state(page, "error")
    wait_for_text(page, ".wb-alert.is-error", "Set max_new_tokens to 512")
    assert page.locator(".wb-token").count() > 2, "what was recorded is kept"
    shoot(page, "out of memory")
    start(page, "refused")
    wait_for_text(page, ".wb-alert.is-error", "no network")
    page.wait_for_selector(".wb-badge[data-state=error]")
    shoot(page, "refused")
    page.fill("textarea", "Synthetic: plain")
    short(page, 4000)
    page.click("[data-press=run]")
    wait_rounds(page, 2)
    shoot(page, "running")
    page.click("[data-press=stop]")
    state(page, "cancelled")
    wait_for_text(page, ".wb-card-ribbon h3 em", "cancelled")
    shoot(page, "stopped")


def test_inactive_speculation_is_a_red_banner(fake_app: str, open_page: PageOpener) -> None:
    page = open_page(fake_app, viewport={"width": 1280, "height": 900})
    short(page, 40)
    start(page, "inactive")
    wait_for_text(page, ".wb-alert.is-error", "Speculation is inactive")
    assert page.locator(".wb-alert").count() == 1, "said once"
    shoot(page, "inactive")
    state(page, "finished")


def test_a_truncated_trace_and_a_simulation_are_named(fake_app: str, open_page: PageOpener) -> None:
    page = open_page(fake_app, viewport={"width": 1280, "height": 900})
    data = trace("oracle", {"depth": 3, "temperature": 0.7}, 8)
    upload(page, "cut.json", {"header": data["header"], "rounds": data["rounds"]})
    wait_for_text(page, ".wb-card-ribbon h3 em", "truncated: the trace has no footer")
    assert page.is_visible(".is-simulation.wb-badge")
    shoot(page, "truncated")


def test_a_missing_baseline_an_older_schema_and_a_lost_connection(fake_app: str, open_page: PageOpener) -> None:
    page = open_page(fake_app, viewport={"width": 1280, "height": 900})
    open_page.allowed += ["AbortError", "Connection errored out", "Failed to fetch", "net::ERR", "network error"]
    short(page, 24)
    page.click("[data-press=run]")
    state(page, "finished")
    wait_for_text(page, "[data-figure=speedup] .wb-label", "no baseline")
    wait_for_text(page, ".wb-lane", "not measured yet")
    page.locator(".wb-lane").scroll_into_view_if_needed()
    shoot(page, "baseline missing")
    page.evaluate("scrollTo(0, 0)")
    data = trace("draft-model", {"depth": 3, "temperature": 0.7}, 8)
    upload(page, "older.json", data | {"header": data["header"] | {"schema": 0}})
    page.wait_for_selector(".wb-alert.is-warning:has-text('older schema')")
    shoot(page, "older schema")
    short(page, 4000)
    page.click("[data-press=run]")
    wait_rounds(page, 3)
    page.context.set_offline(True)
    page.evaluate("window.workbenchBus = () => {}")
    state(page, "lost")
    wait_for_text(page, ".wb-card-ribbon h3 em", "reconnecting")
    shoot(page, "reconnecting")


@pytest.mark.parametrize(("width", "scheme"), [(1280, "light"), (390, "dark")])
def test_axe_finds_nothing_serious(fake_app: str, open_page: PageOpener, width: int, scheme: str) -> None:
    axe = pytest.importorskip("axe_playwright_python.sync_playwright").Axe()
    page = open_page(fake_app, viewport={"width": width, "height": 900}, color_scheme=scheme)
    page.evaluate("document.querySelector('.wb-settings').open = true")
    short(page, 60)
    page.click("[data-press=run]:visible, [data-near=run]:visible")  # narrow pages have one Run, in the bar
    state(page, "finished")
    page.locator(".wb-ghost.is-rejected").first.click()
    for mode in ("spine", "levels", "mask", "list", "cache"):
        page.click(f"[data-mode={mode}]")
        page.wait_for_timeout(100)
        found = axe.run(page, context=".wb", options={"resultTypes": ["violations"]}).response["violations"]
        grave = [
            (v["id"], n["html"][:160]) for v in found if v["impact"] in ("serious", "critical") for n in v["nodes"]
        ]
        assert grave == []


def test_every_control_is_large_enough(fake_app: str, open_page: PageOpener) -> None:
    page = open_page(fake_app)
    small = page.evaluate("""['button', 'select', 'input', 'textarea', 'a[href]', 'summary']
      .flatMap((tag) => [...document.querySelectorAll(`.wb ${tag}`)])
      .filter((e) => e.checkVisibility())
      .map((e) => [e, (e.labels?.[0] ?? e).getBoundingClientRect(), e.getBoundingClientRect()])
      .filter(([, label, box]) => Math.max(box.height, label.height) < 24 || Math.max(box.width, label.width) < 24)
      .map(([e, , box]) => `${e.outerHTML.slice(0, 90)} ${box.width}x${box.height}`)""")
    assert small == []
