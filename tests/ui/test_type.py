"""Type of all pages: no visible text is smaller than 12 px, except the ticks of axes; style sheets use three sizes."""

from __future__ import annotations

import re
from typing import Any

import pytest
from ui.conftest import PageOpener, wait_until_drawn

from workbench.views.modules import STYLESHEET

PAGES = ("", "?tab=vision", "?tab=compare", "?tab=sweep", "?tab=lab", "verifiers", "gallery", "methods", "learn")
SMALL_TEXT = """() => {
  const found = new Map();
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  for (let node = walker.nextNode(); node; node = walker.nextNode()) {
    const el = node.parentElement;
    if (!node.data.trim() || !el.checkVisibility({ visibilityProperty: true }) || !el.getClientRects().length) continue;
    if (el.closest(".wb-unseen, .wb-tick, script, style")) continue;
    const size = parseFloat(getComputedStyle(el).fontSize);
    const where = `${size} px: ${el.tagName.toLowerCase()}.${el.getAttribute("class") ?? ""}`;
    if (size < 11.99) found.set(where, node.data.trim().slice(0, 40));
  }
  return [...found].map(([where, text]) => `${where} “${text}”`);
}"""
"""Elements with text below 12 px: size, tag, class, text."""


def select_a_node(page: Any) -> None:
    """Select a node of the recorded tree, so that the tree and the node card have text."""
    page.locator('[data-press="run"]:visible, [data-near="run"]:visible').first.click()
    page.wait_for_selector(".wb-badge[data-state=finished]")
    page.locator(".wb-tree .wb-node:visible").last.click(force=True)


@pytest.mark.browser
@pytest.mark.slow
@pytest.mark.parametrize("width", [1440, 390])
def test_no_text_is_smaller_than_12_px(fake_app: str, open_page: PageOpener, width: int) -> None:
    small: list[str] = []
    for address in PAGES:
        ready = ".wb[data-ready=true]:visible"
        page = open_page(f"{fake_app}/{address}", ready, viewport={"width": width, "height": 900}, color_scheme="light")
        if address == "":
            select_a_node(page)
        wait_until_drawn(page)
        small += [f"/{address} {text}" for text in page.evaluate(SMALL_TEXT)]
        page.context.close()
    assert not small, "\n".join(small)


def test_style_sheets_take_text_sizes_from_variables() -> None:
    """Check that no style sheet sets a text size in pixels."""
    fixed = [
        f"{path.name}: {found[0]}"
        for path in sorted(STYLESHEET.parent.glob("*.css"))
        for found in re.finditer(r"font-size: [^;}]*?\d(?:px|em|%)|font: (?:\d{3} )?[\d.]+px", path.read_text("utf-8"))
    ]
    assert not fixed, fixed
