"""The HTML report: every chart has a table and a sentence, and no text of a report becomes markup."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from traces import HOSTILE

from workbench.views import report

DEPTHS = [[1, 10, 8], [2, 8, 4]]


def made(value: float) -> dict[str, Any]:
    return {"value": value, "low": value - 0.25, "high": value + 0.25, "n": 4, "prompts": 4}


def row(method: str, kind: str = "workbench", speed: float = 1.0, **changes: Any) -> dict[str, Any]:
    known: dict[str, Any] = {
        "method": method, "title": method, "kind": kind, "promise": "exact", "parameters": {}, "prompts": 4,
        "tau": 2.0, "acceptance_rate": 0.5, "tokens_per_second": 100.0, "call_tokens_per_second": 90.0,
        "speedup_vs_autoregressive": None if kind != "workbench" else made(2 * speed),
        "call_speedup_vs_autoregressive": made(speed),
        "draft_ms_per_round": 1.0, "verify_ms_per_round": 3.0, "overhead_ms_per_round": 0.5, "overhead_share": 0.11,
        "acceptance_by_position": DEPTHS, "weights_mib": 50.0, "growth_mib": 2.0, "warnings": [],
    }  # fmt: skip
    return known | changes


def wire(**changes: Any) -> dict[str, Any]:
    peers = {"acceptance_by_position": [], "verify_ms_per_round": None}
    rows = [
        row("autoregressive", acceptance_by_position=[], tau=1.0),
        row("draft-model", speed=1.5),
        row("hf-assisted", "hugging-face", 0.7, **peers),
        row("llama.cpp-draft", "llama.cpp", 0.9, **peers),
    ]
    known: dict[str, Any] = {
        "schema": 1, "settings": {"suite": "bundled", "target": "text-target"}, "machine": {"cpu": "c"}, "rows": rows,
        "groups": {"stories": rows, "maths": [rows[0], row("draft-model", speed=0.8)]}, "complete": True, "runs": [],
        "left_out": {"rag, too long": 2},
    }  # fmt: skip
    return known | changes


class Elements(HTMLParser):
    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.attributes: list[dict[str, str | None]] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes.append(dict(attrs))


@pytest.fixture(scope="module")
def page() -> str:
    return without_library(report.page(wire()))


def without_library(text: str) -> str:
    """Remove Plotly's 4 MB, which are not tested here."""
    from plotly.offline import get_plotlyjs

    assert get_plotlyjs() in text
    return text.replace(get_plotlyjs(), "")


def test_every_figure_has_a_table_a_sentence_and_a_name(page: str) -> None:
    found = Elements(page)
    plots = [a for a in found.attributes if a.get("class") == "plot"]
    ids = {a["id"] for a in found.attributes if "id" in a}
    assert len(plots) == 1 + 3 * 5, "one chart for all groups, and five each for all prompts and the two groups"
    for plot in plots:
        assert {f"{plot['id']}-title", f"{plot['id']}-text", f"{plot['id']}-table"} <= ids
    assert found.tags.count("table") == len(plots)
    assert "Prompts left out of the group rag: 2 (too long)." in page
    assert "Highest speed-up: draft-model, 1.50×: faster (1.25–1.75×, n = 4 prompts). Of 1 methods" in page
    assert "The largest speed-up is that of draft-model on stories, 1.50×: faster (1.25–1.75×, n = 4 prompts)." in page


def test_the_report_loads_no_external_resources(page: str) -> None:
    assert "default-src 'none'" in page
    assert not re.search(r"(src|href)=", page)
    assert not re.search(r"https?:", page)


def test_no_text_of_a_report_becomes_markup() -> None:
    rows = [row(text, warnings=[text]) for text in HOSTILE]
    hostile = report.page(
        wire(rows=rows, groups=dict.fromkeys(HOSTILE, rows), settings=dict(zip(HOSTILE, HOSTILE, strict=True)))
    )
    found = Elements(without_library(hostile))
    assert {"img", "b", "a", "iframe"}.isdisjoint(found.tags)
    assert found.tags.count("script") == 2
    assert hostile.lower().count("</script") == Elements(hostile).tags.count("script") or "<!--<script" not in hostile


def test_unknown_figures_are_left_out() -> None:
    unknown = {"call_speedup_vs_autoregressive": None, "tau": None, "weights_mib": None, "growth_mib": None}
    rows = [row("x", acceptance_by_position=[], verify_ms_per_round=None, **unknown)]
    assert report.panels(rows) == []
    lone = row("y", call_speedup_vs_autoregressive={"value": 2.0, "low": None, "high": None, "n": 1, "prompts": 1})
    panel = report.speed([lone])
    assert panel is not None
    assert panel.table[1][1:4] == ["2.00", "–", "–"], "one prompt has no interval"
    assert "[" not in panel.sentence


@pytest.mark.browser
@pytest.mark.slow
def test_charts_are_drawn_and_can_be_replaced_by_their_tables(tmp_path: Path) -> None:
    from playwright.sync_api import sync_playwright

    file = tmp_path / "report.html"
    file.write_text(report.page(wire()), encoding="utf-8")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path="/usr/bin/chromium", args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": 390, "height": 800}, color_scheme="dark")
        page.set_default_timeout(120_000)
        said: list[str] = []
        page.on("console", lambda message: said.append(message.text))
        page.on("pageerror", lambda error: said.append(str(error)))
        page.goto(file.as_uri())
        page.wait_for_selector("#g0-0 .main-svg")
        assert page.locator(".plot .main-svg:visible").count() >= 6
        button = page.locator("section:has(#g0-0) header button")
        button.press("Enter")
        assert page.locator("#g0-0-table").is_visible()
        assert not page.locator("#g0-0").is_visible()
        assert button.get_attribute("aria-expanded") == "true"
        page.select_option("#group", label="maths")
        page.wait_for_selector("#g2-0 .main-svg")
        assert page.locator("#g2-0-text").inner_text().startswith("Highest speed-up: autoregressive")
        assert page.evaluate("document.documentElement.scrollWidth") <= 390
        assert said == []
        browser.close()
