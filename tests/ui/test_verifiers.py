"""The verifier bench in a browser: bars moved by pointer and keys, sampled rounds, address, exports, link of a node."""

from __future__ import annotations

import csv
import json
import re
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from traces import FIXTURES
from ui.conftest import PageOpener, wait_until_drawn
from ui.test_live import upload

from workbench.trace import theory

pytestmark = [pytest.mark.browser, pytest.mark.slow]


def bar(page: Any, name: str) -> Any:
    return page.get_by_role("slider", name=name, exact=True)


def values(page: Any, probs: str) -> list[float]:
    bars = page.locator(f".wb-probbar.is-{probs}:visible")
    return [float(bars.nth(i).get_attribute("aria-valuenow")) for i in range(bars.count())]


def test_a_bar_moves_by_key_and_by_pointer_and_the_figures_follow(fake_app: str, open_page: PageOpener) -> None:
    page = open_page(f"{fake_app}/verifiers")
    before = page.locator(".wb-card-accept").inner_text()
    bar(page, "p of school").focus()
    page.keyboard.press("PageDown")
    wait_until_drawn(page)
    assert values(page, "p") == pytest.approx([0.4, 0.36, 0.18, 0.06], abs=1e-3)
    assert page.evaluate("document.activeElement.getAttribute('aria-label')") == "p of school"
    assert "by hand" in page.locator(".wb-side").inner_text()
    said = page.locator(".wb-curves svg").first.get_attribute("aria-label")
    p, q = values(page, "p"), values(page, "q")
    bound = re.search(r"bound, independent ([.\d]+)", said)
    assert bound
    assert float(bound[1]) == pytest.approx(theory.optimal_acceptance(p, q, 3), abs=2e-3)
    assert page.locator(".wb-card-accept").inner_text() != before
    box = page.locator(".wb-probbar.is-q .wb-grip").nth(1).bounding_box()
    page.mouse.move(box["x"] + box["width"] / 2, box["y"] + 3)
    page.mouse.down()
    page.mouse.move(box["x"] + box["width"] / 2, box["y"] + 73, steps=4)
    page.mouse.up()
    wait_until_drawn(page)
    assert values(page, "q")[1] < 0.3
    assert sum(values(page, "q")) == pytest.approx(1, abs=3e-3)


def test_sampled_rounds_follow_p_and_a_link_samples_them_again(fake_app: str, open_page: PageOpener) -> None:
    page = open_page(f"{fake_app}/verifiers")
    page.get_by_role("button", name="Sample 10,000 rounds").click()
    page.get_by_role("button", name="Sample one round").click()
    page.wait_for_selector(".wb-card-drawn :text('10,001 rounds: TV from p 0.0')")
    said = page.locator(".wb-card-drawn p").inner_text()
    page.wait_for_url("**n=10001**")
    again = open_page(page.url)
    assert again.locator(".wb-card-drawn p").inner_text() == said
    page.get_by_role("button", name="Reset").click()
    page.wait_for_selector(".wb-card-drawn :text('No rounds sampled yet')")
    page.get_by_role("button", name="K-SEQ, not exact for these drafts").click()
    page.wait_for_selector(".wb-side .is-unsound:has-text('would differ from p by TV 0.0')")
    page.get_by_role("button", name="independent", exact=True).click()
    wait_until_drawn(page)
    assert page.locator(".is-unsound:visible").count() == 0


def test_an_invalid_address_is_reported_and_the_example_shown(fake_app: str, open_page: PageOpener) -> None:
    page = open_page(f"{fake_app}/verifiers?p=.5,.5&q=1&k=99&w=%3Cimg%20src=x%20onerror=alert(1)%3E")
    alerts = page.locator(".wb-alert").all_inner_texts()
    assert any("q=1: give 2 to 6 non-negative numbers" in text for text in alerts)
    assert any("k=99" in text for text in alerts)
    assert values(page, "p") == pytest.approx([0.5, 0.3, 0.15, 0.05])
    hostile = open_page(f"{fake_app}/verifiers?p=.5,.5&q=.2,.8&w=%3Cimg%20src=x%20onerror=alert(1)%3E&w=b")
    assert hostile.locator(".wb img").count() == 0
    assert "<img src=x" in bar(hostile, "p of <img src=x onerror=alert(1)>").get_attribute("aria-label")


def test_the_bench_is_exported_as_data_and_as_images(fake_app: str, open_page: PageOpener, tmp_path: Path) -> None:
    page = open_page(f"{fake_app}/verifiers")
    saved = {}
    page.get_by_role("button", name="export").click()
    for name in ("JSON", "CSV", "Acceptance rate of k drafts as SVG", "p and q of one position as PNG"):
        with page.expect_download() as download:
            page.locator(".wb-exports").get_by_role("button", name=name).click()
        saved[name] = tmp_path / download.value.suggested_filename
        download.value.save_as(saved[name])
    data = json.loads(saved["JSON"].read_text())
    assert data["acceptance"]["recursive/without"][1] == pytest.approx(0.656845, abs=1e-6)
    assert data["p"] == pytest.approx([0.5, 0.3, 0.15, 0.05])
    rows = list(csv.reader(saved["CSV"].read_text().splitlines()))
    assert ["k-seq", "independent", "0.600000", "0.658443"] in [row[:4] for row in rows]
    drawing = ElementTree.parse(saved["Acceptance rate of k drafts as SVG"]).getroot()
    assert "COMPUTED" in "".join(drawing.itertext())
    assert saved["p and q of one position as PNG"].read_bytes()[:4] == b"\x89PNG"


def test_a_node_of_a_run_opens_in_the_bench(fake_app: str, open_page: PageOpener) -> None:
    page = open_page(fake_app)
    trace = json.loads((FIXTURES / "chain.json").read_text())
    upload(page, "chain.json", trace)
    page.locator(".wb-ghost.is-rejected").first.click()
    link = page.locator(".wb-tobench")
    link.wait_for()
    with page.context.expect_page() as opened:
        link.click()
    bench = opened.value
    bench.wait_for_selector(".wb[data-ready=true]")
    assert "node “" in bench.locator(".wb-side").inner_text()
    assert "all others" in bench.locator(".wb-pq").inner_text()
    assert sum(values(bench, "p")) == pytest.approx(1, abs=3e-3)
    assert "upper estimate" in bench.locator(".wb-card-pq").inner_text()
