"""The Sweep tab with the bundled models in a browser: cells that fill and open, and sweeps that resume."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from ui.conftest import PageOpener, wait_until_drawn

from workbench.bench.sweep import SweepFolder

pytestmark = [pytest.mark.browser, pytest.mark.slow]

V = "#wb-sweep "
READY = V + ".wb[data-ready=true]"
LINK = (
    "/?tab=sweep&axis=method%3Dprompt-lookup,autoregressive&axis=temperature%3D0,0.5"
    "&group=stories&limit=1&repeats=1&max_new_tokens=6"
)

INSIDE = """(name) => {
  const chart = name.ownerSVGElement.getBoundingClientRect(), box = name.getBoundingClientRect();
  const grid = [...name.ownerSVGElement.querySelectorAll(".wb-grid")].map((line) => line.getBoundingClientRect());
  const right = Math.max(...grid.map((line) => line.right)), lowest = Math.max(...grid.map((line) => line.bottom));
  return box.left >= chart.left && box.right <= chart.right + 1 && (box.left >= right || box.top >= lowest);
}"""


def wait_for_text(page: Any, selector: str, text: str) -> None:
    page.locator(V + selector).filter(has_text=text).first.wait_for(state="attached")


def test_cells_fill_and_open_and_the_sweep_resumes_after_a_reload(
    real_app: str, open_page: PageOpener, sweeps: Path
) -> None:
    page = open_page(real_app + LINK, ready=READY)
    wait_for_text(page, ".wb-go", "4 cells")
    assert page.is_hidden(V + ".wb-banner"), "a link to settings shows no recorded sweep"
    page.click(V + ".wb-go")
    page.wait_for_selector(V + ".wb-sweepcell[data-state=done]", timeout=240_000)
    page.evaluate(f"window.cells = [...document.querySelectorAll('{V}.wb-sweepcell')]")
    page.wait_for_selector(V + ".wb-badge:has-text('MEASURED')", timeout=240_000)
    states = page.eval_on_selector_all(V + ".wb-sweepcell", "cells => cells.map((c) => c.dataset.state)")
    assert states == ["done"] * 4
    assert page.evaluate("window.cells.every((cell) => cell.isConnected)"), "cells are updated, not replaced"
    # by keyboard: one stop, arrows, Enter
    page.focus(V + ".wb-sweepcell")
    page.keyboard.press("ArrowRight")
    page.keyboard.press("Enter")
    wait_for_text(page, ".wb-card-cell dd", "prompt-lookup")
    wait_for_text(page, ".wb-card-cell dd", "0.5")
    narrow = page.eval_on_selector_all(
        V + ".wb-card-cell dd", "all => all.filter((e) => e.clientWidth < 90).map((e) => e.textContent)"
    )
    assert not narrow, "long names must leave room for the figures"
    page.select_option(V + "[aria-label='Metric of the cells']", "tau")
    page.wait_for_selector(V + "[aria-label^='method prompt-lookup, temperature 0.5: mean accepted length τ']")
    for name in ("E[τ] with a constant acceptance rate", "acceptance rate per position"):
        wait_for_text(page, ".wb-card-lines .wb-seriesnames > g", name)
    wait_for_text(page, ".wb-codebox", "Sweep.of({")
    wait_for_text(page, ".wb-codebox", "workbench sweep --axis")
    with page.expect_download() as download:
        page.click(V + "[title='Save this sweep']")
        page.click(V + "[data-kind=csv]")
    assert len(Path(download.value.path()).read_text().splitlines()) == 1 + 4
    page.keyboard.press("Escape")  # the menu stays open, and covers the card
    page.click(V + "button:has-text('run in Live')")
    page.wait_for_selector("#wb-page .wb-badge:has-text('RECORDED')")
    page.wait_for_function("document.querySelectorAll('#wb-page .wb-ribbon .wb-token').length === 6")
    # the measurements are kept after a reload, and on disk
    [folder] = sweeps.iterdir()
    assert len(list((folder / "cells").glob("*.json"))) == 4
    assert SweepFolder(folder).sweep.axes[1].values == (0.0, 0.5)
    page = open_page(real_app + "/?tab=sweep", ready=READY)
    page.click(V + ".wb-keptsweeps button:has-text('open')")
    page.wait_for_selector(V + ".wb-sweepcell[aria-label^='method prompt-lookup, temperature 0.5: speed-up']")
    assert page.input_value(V + ".wb-axis >> nth=1 >> input") == "0, 0.5", "the panel has the sweep's settings"
    page.set_viewport_size({"width": 390, "height": 844})
    hidden = page.eval_on_selector(V + ".wb-heat", "(grid) => grid.scrollWidth - grid.clientWidth")
    assert hidden == 0, "two columns next to method names fit the width of a phone"
    page.set_viewport_size({"width": 1440, "height": 1100})
    page.click(V + ".wb-go")
    wait_for_text(page, ".wb-card-heat h3 em", "4 measured before")
    page.wait_for_selector(V + ".wb-badge:has-text('MEASURED')", timeout=240_000)


def test_the_panel_reports_errors_and_fits_a_phone(real_app: str, open_page: PageOpener) -> None:
    axe = pytest.importorskip("axe_playwright_python.sync_playwright").Axe()
    page = open_page(real_app + LINK, ready=READY, viewport={"width": 390, "height": 800})
    page.click(V + "summary >> nth=0")
    page.fill(V + ".wb-axis >> nth=1 >> input", "0, 9")
    wait_for_text(page, ".wb-detail.is-wrong", "9: a number from 0")
    assert page.is_disabled(V + ".wb-go")
    page.fill(V + ".wb-axis >> nth=1 >> input", "0, 0.5")
    wait_until_drawn(page)
    assert page.is_enabled(V + ".wb-go")
    page.click(V + ".wb-go")
    page.wait_for_selector(V + ".wb-badge:has-text('MEASURED')", timeout=240_000)
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    found = axe.run(page, context=V + ".wb", options={"resultTypes": ["violations"]}).response["violations"]
    assert not [(v["id"], [n["target"] for n in v["nodes"]]) for v in found if v["impact"] in ("serious", "critical")]


@pytest.mark.smoke
def test_axe_finds_nothing_serious(fake_app: str, open_page: PageOpener) -> None:
    axe = pytest.importorskip("axe_playwright_python.sync_playwright").Axe()
    for width, scheme in ((390, "dark"), (1280, "light")):
        page = open_page(
            fake_app + "/?tab=sweep", ready=READY, viewport={"width": width, "height": 900}, color_scheme=scheme
        )
        page.wait_for_selector(V + ".wb-sweepcell[data-state=done]:visible")
        page.evaluate(f"for (const box of document.querySelectorAll('{V}details')) box.open = true")
        page.click(V + ".wb-sweepcell >> nth=1")
        wait_for_text(page, ".wb-card-cell dd", "0.7")
        name = page.locator(V + ".wb-card-lines .wb-seriesnames > g").filter(has_text="at measured costs").first
        name.wait_for()
        assert name.evaluate(INSIDE), "the name of a line is completely visible and overlaps no axis"
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        found = axe.run(page, context=V + ".wb", options={"resultTypes": ["violations"]}).response["violations"]
        grave = [v for v in found if v["impact"] in ("serious", "critical")]
        assert not [(v["id"], node["html"][:160]) for v in grave for node in v["nodes"]]
