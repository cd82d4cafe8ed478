"""Links: the page shows the state in the link, whatever the tab showed before."""

from __future__ import annotations

import re
from typing import Any

import pytest
from ui.conftest import READY, PageOpener
from ui.fake_client import FakeWorkbench
from ui.test_page import short, state, wait_for_text

from workbench.ui.compare import CompareView
from workbench.ui.saved_runs import SavedRunsView
from workbench.ui.session import Session
from workbench.ui.vision import VisionSession


def in_browser(test: Any) -> Any:
    """Mark a test that needs chromium."""
    return pytest.mark.browser(pytest.mark.slow(test))


# -- Missing models ---------------------------------------------------------------------------------------------------


class UnknownTargetClient(FakeWorkbench):
    """A client on which only plain decoding runs with an unknown target, as for models without local files."""

    def methods(self, target: str | None = None, drafter: str | None = None) -> list[dict[str, Any]]:
        found = super().methods(target, drafter)
        if target != "synthetic-target":
            for method in found[1:]:
                method |= {"available": False, "reason": f"No draft model is chosen for {target}."}
        return found


@pytest.mark.parametrize("view", [Session, CompareView, VisionSession])
def test_an_unknown_target_is_reported_and_disables_no_method(view: Any) -> None:
    client = UnknownTargetClient()
    client.targets = lambda: [{"name": "synthetic-target", "pictures": True}]  # type: ignore[method-assign]
    known, unknown = view(client).catalogue({}), view(client).catalogue({"target": "no/such"})
    assert known["problem"] is None
    assert "'no/such'" in unknown["problem"]["message"]
    assert "synthetic-target" in unknown["problem"]["remedy"], "the remedy names available targets"
    assert [m["available"] for m in unknown["methods"]] == [m["available"] for m in known["methods"]]
    assert unknown["chosen"] == known["chosen"]


def test_a_text_only_target_is_refused_in_the_vision_tab() -> None:
    client = FakeWorkbench()
    client.targets = lambda: [{"name": "sees", "pictures": True}, {"name": "reads"}]  # type: ignore[method-assign]
    problem = VisionSession(client, SavedRunsView(allowed=True)).catalogue({"target": "reads"})["problem"]
    assert "'reads'" in problem["message"]
    assert problem["remedy"] == "Choose one of: sees. For another model, start the app with --target."
    assert "--target" not in VisionSession(client, SavedRunsView()).catalogue({"target": "reads"})["problem"]["remedy"]


# -- In the browser ---------------------------------------------------------------------------------------------------


@in_browser
def test_the_address_has_priority_over_the_tabs_last_run(fake_app: str, open_page: PageOpener) -> None:
    page = open_page(fake_app)
    method, prompt = page.locator("[data-what=method]"), page.locator("textarea")
    prompt.fill("A prompt of before")
    short(page, 16)
    page.click("[data-press=run]")
    state(page, "finished")
    # from the methods page
    page.goto(f"{fake_app}/methods")
    page.click("[data-method=draft-tree] summary")
    page.click("[data-method=draft-tree] a:text-is('Run it')")
    page.wait_for_selector(READY)
    state(page, "finished")
    assert method.input_value() == "draft-tree", "a link to a run starts that run"
    assert "Synthetic prompt: a fox" in page.inner_text(".wb-prompt"), "the old run is not shown"
    # a link to another method with the old run's settings, pasted into the same tab
    page.goto(f"{fake_app}/?method=oracle&prompt=A+prompt+of+before&alpha=0.6&seed=3")
    page.wait_for_selector(READY)
    assert [method.input_value(), prompt.input_value()] == ["oracle", "A prompt of before"]
    assert page.get_by_label("Seed").input_value() == "3"
    assert page.locator("[data-param=alpha] input[type=number]").input_value() == "0.6"
    wait_for_text(page, ".wb-note", "Settings loaded from the link. Press Run")
    assert page.locator(".wb-round").count() == 0, "a link to settings shows no recorded run"
    # without settings in the address the run is shown again; a reload keeps the run and later choices
    page.goto(fake_app)
    page.wait_for_selector(".wb[data-ready=true] .wb-prompt:has-text('a fox')")
    method.select_option("oracle")
    page.wait_for_url("**method=oracle**")
    assert "run=" not in page.url, "the settings in the panel differ from the run's"
    page.reload()
    page.wait_for_selector(".wb[data-ready=true] .wb-prompt:has-text('a fox')")
    assert method.input_value() == "oracle"


@in_browser
def test_an_unknown_target_in_a_link_is_an_error_and_the_method_is_kept(fake_app: str, open_page: PageOpener) -> None:
    page = open_page(f"{fake_app}/?target=no/such&method=draft-tree")
    wait_for_text(page, ".wb-alert.is-error", "no/such")
    assert page.locator("[data-what=method]").input_value() == "draft-tree"
    assert page.locator("[data-what=target]").input_value() == "synthetic-target"
    compare = open_page(f"{fake_app}/?tab=compare&target=no/such&lane=draft-tree", ready=f"#wb-compare {READY}")
    wait_for_text(compare, "#wb-compare .wb-alert.is-error", "no/such")


@in_browser
def test_a_link_to_a_run_shows_it_or_generates_it_again(fake_app: str, open_page: PageOpener) -> None:
    page = open_page(fake_app)
    page.fill("textarea", "A prompt of one")
    short(page, 16)
    page.click("[data-press=run]")
    state(page, "finished")
    page.wait_for_url("**run=**seed=0**")
    link, text = page.url, page.inner_text(".wb-ribbon")
    other = open_page(link)
    wait_for_text(other, ".wb-card-ribbon h3 em", "finished")
    assert other.inner_text(".wb-ribbon") == text
    assert other.input_value("textarea") == "A prompt of one", "the panel has the run's settings"
    assert "loaded from the link" not in other.inner_text(".wb-note")
    gone = open_page(re.sub(r"run=[\w-]+", "run=of-an-app-that-ended", link))
    wait_for_text(gone, ".wb-note", "decoded again")
    wait_for_text(gone, ".wb-card-ribbon h3 em", "finished")
    assert gone.inner_text(".wb-ribbon") == text, "the same seed gives the same text"
    nothing = open_page(f"{fake_app}/?run=of-an-app-that-ended")
    wait_for_text(nothing, ".wb-alert.is-error", "There is no run")


@in_browser
def test_anchor_links_stay_on_their_page(fake_app: str, open_page: PageOpener) -> None:
    page = open_page(f"{fake_app}/methods")
    page.wait_for_selector(".wb[data-drawn=true]")
    away = page.evaluate("""[...document.querySelectorAll('.wb a[href]')].map((a) => new URL(a.href))
      .filter((url) => url.hash && url.pathname !== '/methods').map(String)""")
    assert away == []
    page.locator(".wb-contents a[href$='#medusa']").click()
    page.wait_for_url("**/methods#medusa")
    page.wait_for_function("Math.abs(document.getElementById('medusa').getBoundingClientRect().top) < innerHeight / 2")
    assert page.locator(".wb-method").count() > 1, "the page was not loaded again"
    assert page.locator("#medusa").get_by_role("link", name="Run Medusa").is_visible(), "the linked method is open"
    there = open_page(f"{fake_app}/methods#eagle-2")
    assert there.evaluate("document.querySelector('#eagle-2 > details').open"), (
        "a card opens before the boards are loaded"
    )
    there = open_page(f"{fake_app}/methods#claims")
    there.wait_for_selector("#claims .wb-board")


AGREES = """() => {
  const asked = new URLSearchParams(location.search), of = (css) => document.querySelector(`#wb-page ${css}`).value;
  return asked.get("prompt") === of("textarea") && asked.get("method") === of("[data-what=method]")
    && asked.get("depth") === of("[data-param=depth] input[type=number]");
}"""


@in_browser
def test_form_and_address_agree_after_undo_and_history_steps(fake_app: str, open_page: PageOpener) -> None:
    page = open_page(fake_app)
    view = page.locator("#wb-page")
    prompt, depth = view.locator("textarea"), view.locator("[data-param=depth] input[type=number]")
    depth.fill("7")
    depth.press("Tab")
    page.wait_for_function("location.search.includes('depth=7')")
    depth.click()
    page.keyboard.press("Control+z")
    page.wait_for_function("location.search.includes('depth=4')")  # immediately, not only when the field loses focus
    assert depth.input_value() == "4"
    prompt.click()
    page.keyboard.press("Control+a")
    page.keyboard.type("Another one")
    page.wait_for_function("location.search.includes('Another+one')")
    page.keyboard.press("Control+z")
    page.wait_for_function("!location.search.includes('Another+one')")
    page.wait_for_function(AGREES)
    # another tab, then a step back to Live's earlier state
    prompt.fill("Before")
    page.wait_for_function("location.search.includes('Before')")
    nav = page.get_by_role("navigation", name="Pages").locator("visible=true").first
    nav.get_by_text("Compare").click()
    page.wait_for_selector(f"#wb-compare {READY}")
    page.get_by_role("navigation", name="Pages").locator("visible=true").first.get_by_text("Live").click()
    prompt.fill("After")
    view.locator("[data-what=method]").select_option("draft-tree")
    page.wait_for_function("location.search.includes('After')")
    page.go_back()
    page.wait_for_selector(f"#wb-compare {READY} >> visible=true")
    page.go_back()
    page.wait_for_function("document.querySelector('#wb-page textarea').value === 'Before'")
    page.wait_for_function(AGREES)
    page.go_forward()
    page.go_forward()
    page.wait_for_function("document.querySelector('#wb-page textarea').value === 'After'")
    page.wait_for_function(AGREES)
