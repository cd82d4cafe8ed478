"""Toys from files outside the package in the app's page: selected, run, drawn, cancelled, saved and replayed."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import model_helpers
import pytest
from ui.conftest import PageOpener, browser, free_port, models_folder, open_page, serve
from ui.test_page import count, long, short, state, stop, wait_for_text, wait_rounds

from workbench.methods import OWN_METHODS

__all__ = ["browser", "open_page"]

pytestmark = [pytest.mark.browser, pytest.mark.slow]

HERE = Path(__file__).parent
TEXT = "[...document.querySelectorAll('.wb-token')].map((e) => e.textContent).join('')"
TOYS = {
    "mask-filling": "Mask filling (a toy)",
    "step-judge": "Judging whole steps (a toy)",
    "amusd": "AMUSD",
    "beam-search": "Beam search",
}
"""Methods with decoders or verifiers of their own, by title. Toys have a file here; the others are in the registry."""
CARDS = {
    "mask-filling": "mask-filling",
    "step-judge": "Lenient acceptance",
    "amusd": "p over q",
    "beam-search": "beam-search",
}
"""Text on the card: the rule of an accepted node, or the method where a round has no nodes."""
UNDRAFTED = ("mask-filling", "beam-search")


@pytest.fixture(scope="module")
def toy_app(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """`python app.py` over the bundled models, with the toys among its methods."""
    folder = models_folder()
    if folder is None:
        pytest.skip("needs the bundled models: assets/models is empty")
    port, place = free_port(), tmp_path_factory.mktemp("toys")
    files = os.pathsep.join(str(path) for name in TOYS if (path := HERE / f"{name.replace('-', '_')}.py").exists())
    env = {"WORKBENCH_MODELS": str(folder), "WORKBENCH_RUNS": str(place / "runs"), OWN_METHODS: files}
    yield from serve([sys.executable, "app.py", "--port", str(port)], port, place / "log", **env)


def choose(page: Any, name: str) -> None:
    """Select a method by its title in the list, and full speed, as a visitor does."""
    page.locator("[data-what=method]").select_option(label=TOYS[name])
    page.get_by_label("Show at").select_option("0")
    wait_for_text(page, ".wb-promise", "approximate" if name in ("step-judge", "beam-search") else "exact")


@pytest.mark.parametrize("name", model_helpers.mark_on_demand_unless(("mask-filling", "beam-search"), TOYS))
def test_toy_can_be_selected_run_saved_and_replayed(toy_app: str, open_page: PageOpener, name: str) -> None:
    page = open_page(toy_app)
    choose(page, name)
    short(page, 24)
    page.click("[data-press=run]")
    state(page, "finished")
    wait_for_text(page, ".wb-card-ribbon h3 em", "24 of 24 tokens")
    assert page.locator(".wb-token").count() == 24
    wait_for_text(page, ".wb-card-tree h3", f": {TOYS[name]}")
    if name not in UNDRAFTED:
        page.locator(".wb-token.is-accepted").last.click()
    wait_for_text(page, ".wb-card-card", CARDS[name])
    check_drawing(page, name)
    text, rounds = page.evaluate(TEXT), count(page)

    page.get_by_role("button", name="export ▾").click()
    page.get_by_role("button", name="Keep").click()
    page.get_by_role("link", name="see all kept runs").click()
    page.wait_for_selector(".wb-kept .wb-runcard")
    page.locator(".wb-kept .wb-runcard", has_text=name).get_by_role("link", name="Open").click()
    page.wait_for_selector(".wb[data-ready=true] .wb-token")
    page.wait_for_function(f"text => {TEXT} === text", arg=text)
    assert count(page) == rounds
    check_drawing(page, name)


def check_drawing(page: Any, name: str) -> None:
    """Check the page for a toy: positions without a tree, a lane for the drafter, or accepted drafts."""
    if name in UNDRAFTED:
        assert "the target fills positions" in page.text_content(".wb-card-tree")
        assert "plain decoding" not in page.text_content(".wb-card-tree")
        assert page.locator(".wb-token.is-accepted").count() == 0, "nothing was drafted"
    else:
        assert page.locator(".wb-token.is-accepted").count() > 0
    if name == "amusd":
        lanes = page.locator(".wb-lane").text_content()
        assert "device" in lanes
        assert "drafter" in lanes


@pytest.mark.parametrize("name", model_helpers.mark_on_demand_unless(("amusd",), TOYS))
def test_toy_is_cancelled_and_another_method_runs_after_it(toy_app: str, open_page: PageOpener, name: str) -> None:
    page = open_page(toy_app)
    choose(page, name)
    page.get_by_label("Show at").select_option("8")  # at full speed the run may end before Stop
    long(page)
    page.click("[data-press=run]")
    wait_rounds(page, 3)
    stop(page)
    wait_for_text(page, ".wb-card-ribbon h3 em", "cancelled")
    page.wait_for_selector(".wb-token")  # the page draws once per frame
    assert page.locator(".wb-token").count() < 4000
    page.select_option("[data-what=method]", "draft-model")
    short(page, 12)
    page.click("[data-press=run]")
    state(page, "finished")
    assert page.locator(".wb-token").count() == 12
