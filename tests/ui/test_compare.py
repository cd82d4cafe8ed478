"""The Compare tab with the bundled models in a browser: measure, race, pin, open, save, and compare texts."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from ui.conftest import PageOpener, wait_until_drawn

from workbench.views import recorded_runs

pytestmark = [pytest.mark.browser, pytest.mark.slow]

V = "#wb-compare "
READY = V + ".wb[data-ready=true]"
LINK = (
    "/?tab=compare&lane=draft-model%3Adepth%3D3&lane=medusa-typical%3Aepsilon%3D0&lane=eagle-vlm&prompts=&text=Once+upon+a+time"
    "&temperature=0.4&seed=3&repeats=1&max_new_tokens=12"
)
KEPT = """(view) => {
  window.removed = [];
  const isChart = (node) => node.classList?.contains("js-plotly-plot");
  const look = (all) => all.forEach((m) => window.removed.push(...[...m.removedNodes].filter(isChart)));
  for (const card of document.querySelectorAll(`${view} .wb-card`))
    new MutationObserver(look).observe(card, { childList: true, subtree: true });
  window.rows = [...document.querySelectorAll(`${view} .wb-racer`)];
}"""


def wait_until_measured(page: Any) -> None:
    page.wait_for_selector(V + ".wb-badge:has-text('MEASURED')", timeout=240_000)
    page.wait_for_selector(V + ".wb-racer")


def wait_for_text(page: Any, selector: str, text: str) -> None:
    page.locator(V + selector).filter(has_text=text).first.wait_for(state="attached")


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Return the folder of files that one test saves and others open."""
    return {"json": tmp_path_factory.mktemp("compare") / "made.json"}


def test_lanes_are_measured_raced_pinned_and_opened(
    real_app: str, open_page: PageOpener, saved: dict[str, Path]
) -> None:
    page = open_page(real_app + LINK, ready=READY)
    assert "16 runs" not in page.inner_text(V + ".wb-go")
    wait_for_text(page, ".wb-go", "8 runs")
    page.focus(V + ".wb-go")
    page.keyboard.press("Control+Enter")
    page.wait_for_selector(V + ".wb-measuring:visible")
    wait_until_measured(page)
    rows = page.locator(V + ".wb-compared tbody tr")
    assert rows.count() == 4
    failed = page.locator(V + "tr[data-lane='EagleVLM']")
    assert "left out" in failed.inner_text()
    assert "1.00" in page.inner_text(V + "tr[data-lane='Autoregressive'] .is-speedup")
    # the race has ended, or is moved to its end; the text is the recorded one
    page.keyboard.press("End")
    page.locator(V + ".wb-slider, " + V + "[aria-label='Elapsed time in the race']").focus()
    page.keyboard.press("End")
    wait_for_text(page, ".wb-racer[data-lane^='Draft model']", "12 of 12 tokens")
    page.evaluate(KEPT, V.strip())
    page.keyboard.press("Home")
    wait_for_text(page, ".wb-racer[data-lane^='Draft model']", "0 of 12 tokens")
    # the approximate method, and texts side by side
    typical = V + ".wb-verdict[data-lane^='Medusa, typical']"
    assert "approximate: not the target's distribution" in page.inner_text(typical)
    assert "first difference at token" not in page.inner_text(typical), (
        "no position is shown for sampled texts, because those of exact lanes diverge, too"
    )
    wait_for_text(page, ".wb-verdict[data-lane^='Draft model']", "same distribution, not same text")
    page.select_option(
        V + "[aria-label='Lane whose text is shown']", label=page.locator(V + "tr").nth(3).get_attribute("data-lane")
    )
    page.wait_for_selector(V + ".wb-texts ins, " + V + ".wb-texts del")
    # a pinned lane: every figure shows the difference from it
    page.click(V + "tr[data-lane^='Draft model'] button:has-text('pin')")
    wait_for_text(page, ".wb-card-table h3 em", "differences from Draft model (depth 3)")
    delta = page.inner_text(V + "tr[data-lane='Autoregressive'] .is-tau .wb-delta")
    assert delta.startswith("−")
    wait_for_text(page, ".wb-card-costs h3 em", "difference from Draft model")
    page.wait_for_selector(
        V + ".wb-card-costs .js-plotly-plot text:has-text('(+'), " + V + ".wb-card-costs text:has-text('(−')"
    )
    # numbers as tables
    page.click(V + ".wb-card-pays .wb-tool")
    page.wait_for_selector(V + ".wb-card-pays tbody tr")  # rows are written by the next frame
    assert page.locator(V + ".wb-card-pays tbody tr").count() == 2
    names = [page.locator(f"{V}{card} th").all_inner_texts() for card in (".wb-compared", ".wb-card-pays")]
    assert "acceptance rate" in names[0]
    assert "accepted / tested, counted per depth and round" in names[1], "another quantity has another name"
    wait_for_text(page, ".wb-card-pays .wb-summary", "acceptance")
    page.click(V + ".wb-card-pays .wb-tool")
    wait_until_drawn(page)
    assert page.evaluate("window.removed.length") == 0, "charts were updated, not mounted again"
    assert page.evaluate("window.rows.every((row) => row.isConnected)")
    with page.expect_download() as download:
        page.click(V + "[title='Save this comparison']")
        page.click(V + "[data-kind=json]")
    download.value.save_as(saved["json"])
    made = json.loads(saved["json"].read_text())
    assert [lane["plain"] for lane in made["lanes"]] == [True, False, False, False]
    with page.expect_download() as download:
        page.click(V + "[data-kind=csv]")  # the menu stays open and says what it saved
    lines = Path(download.value.path()).read_text().splitlines()
    assert len(lines) == 1 + 3, "one row per run"
    # the run of a row opens in Live; the pin is kept on the page of a new measurement
    page.click(V + "tr[data-lane^='Draft model'] button:has-text('run')")
    page.wait_for_selector("#wb-page .wb-badge:has-text('RECORDED')")
    page.locator("#wb-page .wb-ribbon .wb-prompt").filter(has_text="Once upon a time").wait_for()
    assert page.locator("#wb-page .wb-ribbon .wb-token").count() == 12


def test_a_saved_comparison_opens_at_every_width_and_in_the_dark(
    real_app: str, open_page: PageOpener, saved: dict[str, Path]
) -> None:
    if not saved["json"].exists():
        pytest.skip("needs the comparison that the first test saves")
    axe = pytest.importorskip("axe_playwright_python.sync_playwright").Axe()
    for width, scheme in ((390, "dark"), (1280, "light")):
        page = open_page(real_app + "/?tab=compare", ready=READY, viewport={"width": width, "height": 900})
        wait_for_text(page, ".wb-banner", "RECORDED example, measured on")
        page.wait_for_function("document.querySelectorAll('#wb-compare .wb-racer').length === 4")  # a finished race
        if scheme == "dark":
            page.click(V + "[title='Light or dark']")
        page.set_input_files(V + "input[type=file]", saved["json"])
        wait_for_text(page, ".wb-badge", "IMPORTED")
        page.wait_for_selector(V + ".wb-card-pays .wb-seriesline[d^=M]")
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        found = axe.run(page, context=V + ".wb", options={"resultTypes": ["violations"]}).response["violations"]
        assert not [
            (v["id"], [n["target"] for n in v["nodes"]]) for v in found if v["impact"] in ("serious", "critical")
        ]
        page.set_input_files(
            V + "input[type=file]", {"name": "x.json", "mimeType": "application/json", "buffer": b"[1]"}
        )
        wait_for_text(page, ".wb-alert", "not a comparison")


def test_a_stopped_comparison_keeps_its_measurements(real_app: str, open_page: PageOpener) -> None:
    link = "/?tab=compare&lane=draft-model&prompts=story&repeats=20&max_new_tokens=48&nonsense=1"
    page = open_page(real_app + link, ready=READY)
    wait_for_text(page, ".wb-alert", "nonsense=1: unknown")
    assert page.locator(V + ".wb-racer").count() == 0, "a link to settings shows no recorded example"
    page.click(V + ".wb-go")
    page.wait_for_selector(V + ".wb-nowrow.is-now:has-text('of at most')", timeout=240_000)
    assert not page.is_visible(V + ".wb-banner")
    page.wait_for_selector(V + ".wb-measuring:visible ~ .wb-card-race:visible .wb-racer", timeout=240_000)
    wait_for_text(page, ".wb-nowrow[data-lane='Draft model']", "of 20")
    found = page.locator(V + ".wb-compared .is-interval").filter(
        has_text=re.compile(r"one run|\d")
    )  # or more runs by then
    found.first.wait_for(timeout=240_000)
    page.click(V + "button:has-text('Stop')")
    wait_until_measured(page)
    wait_for_text(page, ".wb-foot", "Stopped before the end")
    wait_for_text(page, ".wb-verdict[data-lane='Draft model']", "identical")
    assert "lane=draft-model" in page.url


def test_a_silent_app_is_reported_and_a_reload_shows_the_measurements(real_app: str, open_page: PageOpener) -> None:
    link = "/?tab=compare&lane=draft-model&prompts=story&repeats=1&max_new_tokens=8"
    page = open_page(real_app + link, ready=READY)
    wait_for_text(page, ".wb-intro dt", "Break-even acceptance rate")
    page.click(V + ".wb-go")
    wait_until_measured(page)
    assert not page.is_visible(V + ".wb-intro")
    figure = page.inner_text(V + "tr[data-lane='Draft model'] .is-speedup")
    page.reload()
    page.wait_for_selector(V + ".wb-badge:has-text('MEASURED')")
    assert page.inner_text(V + "tr[data-lane='Draft model'] .is-speedup") == figure
    page.fill(V + "input[data-number=repeats], " + V + ".wb-pair input >> nth=0", "20")
    page.keyboard.press("Tab")
    page.click(V + ".wb-go")
    page.wait_for_selector(V + ".wb-measuring:has-text('of')")
    page.wait_for_function("document.querySelector('#wb-compare .wb-measuring progress').value > 0")
    page.evaluate("window.workbenchBus = () => {}")
    page.wait_for_selector(V + ".wb-badge:has-text('NO ANSWER')", timeout=60_000)
    wait_for_text(page, ".wb-measuring", "check that it is still running")
    page.click(V + "button:has-text('Stop')")
    wait_for_text(page, ".wb-alert.is-error", "was stopped")
    assert page.is_enabled(V + ".wb-go")


def test_lanes_may_differ_only_in_the_verifier_and_inexact_ones_give_the_reason(
    real_app: str, open_page: PageOpener
) -> None:
    lanes = [f"draft-tree-sampled:grower=rsd-c,verifier={name}" for name in ("lossless", "independent")]
    asked = "&".join(f"lane={quote(lane)}" for lane in lanes)
    page = open_page(f"{real_app}/?tab=compare&{asked}&text=Once&temperature=1&repeats=1&max_new_tokens=8", ready=READY)
    panel = page.locator(V + ".wb-lanecard").last
    panel.locator("summary").first.click()
    greyed = panel.locator("[data-param=grower] .wb-greyed")
    assert "rsd-c is not exact with these settings" in greyed.locator("summary").inner_text()
    greyed.locator("summary").click()
    assert "its output differs from p by TV 0.10" in greyed.locator("li").first.inner_text()
    assert panel.locator("[data-param=grower] option[value=dyspec]").evaluate("(option) => option.disabled")
    assert not panel.locator("[data-param=grower] option[value=specinfer]").evaluate("(option) => option.disabled")
    page.click(V + ".wb-go")
    wait_until_measured(page)
    exact, unsound = (page.locator(V + ".wb-verdict").nth(i).inner_text() for i in (1, 2))
    assert "same distribution, not same text" in exact
    assert "verifier independent" in unsound
    assert "approximate: not the target's distribution" in unsound
    assert "drawn without replacement" in unsound


def test_a_typed_prompt_is_a_message_unless_it_is_to_be_continued(real_app: str, open_page: PageOpener) -> None:
    """As in Live: a chat model answers a message, but continues plain text. Prompts in older links are plain text."""
    page = open_page(real_app + "/?tab=compare&prompts=&text=Say+hi", ready=READY)
    words, said = page.locator(V + "textarea"), page.locator(V + ".wb-chat input")
    command = page.locator(V + ".wb-command")
    assert not said.is_checked()
    said.check()
    command.filter(has_text="--chat 'Say hi'").wait_for(state="attached")
    words.fill("Say hello")
    command.filter(has_text="--chat 'Say hello'").wait_for(state="attached")
    said.uncheck()
    command.filter(has_not_text="--chat").filter(has_text="'Say hello'").wait_for(state="attached")
    said.check()
    page.wait_for_function("location.search.includes('user')")
    page.reload()
    page.wait_for_selector(READY)
    assert words.input_value() == "Say hello", "the address contains the message without special tokens"
    assert said.is_checked()
    fresh = open_page(real_app + "/?tab=compare", ready=READY)
    assert fresh.locator(V + ".wb-chat input").is_checked()


@pytest.mark.smoke
def test_every_lane_keeps_its_verdict_when_lanes_are_added(fake_app: str, open_page: PageOpener) -> None:
    """Regression: the line below the verdicts became the row of the next lane and lost its text."""
    page = open_page(f"{fake_app}/?tab=compare&lane=draft-tree", ready=READY)
    assert page.is_hidden(V + ".wb-banner"), "a link to settings shows no recorded example"
    made = recorded_runs.example("compare")
    for n in (2, len(made["lanes"])):
        some = json.dumps(made | {"lanes": made["lanes"][:n]}).encode()
        file = {"name": f"{n}.json", "mimeType": "application/json", "buffer": some}
        page.set_input_files(V + "input[type=file]", file)  # type: ignore[arg-type]
        page.wait_for_function(f"document.querySelectorAll('#wb-compare .wb-verdict').length === {n}")
    verdicts = page.locator(V + ".wb-verdict > span").all_inner_texts()
    assert all(text.strip() for text in verdicts), verdicts
    assert page.locator(V + ".wb-verdictnote").count() == 1
    raced = [lane["race"][0]["speedup"] for lane in made["lanes"] if not lane["plain"]]
    shown = page.locator(V + ".wb-raceratio > b").all_inner_texts()
    assert shown[1:] == [f"{value:.2f}×" for value in raced], "next to a race: the speed-up of the replayed run"
