"""The Live view with synthetic rounds in a browser: examples, links, branches, files, long runs, wide trees."""

from __future__ import annotations

import json
import re
import sys
from contextlib import closing
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit
from xml.etree import ElementTree

import pytest
from ui.conftest import READY, PageOpener, free_port, serve, wait_until_drawn
from ui.test_page import ROUNDS, WATCH, count, long, short, state, stop, wait_for_text, wait_rounds
from views.synthetic import trace

pytestmark = [pytest.mark.browser, pytest.mark.slow]

TEXT = "[...document.querySelectorAll('.wb-token')].map((e) => e.textContent).join('')"
PUSH = """async ({ rounds }) => {
  const run = sessionStorage.getItem('wb-run');
  const frame = () => new Promise((done) => requestAnimationFrame(done));
  for (let i = 0; i < rounds.length; i += 12) {
    const part = rounds.slice(i, i + 12);
    window.workbenchBus({ run, rounds: part, seq: part.at(-1).index + 1 });
    await frame();
  }
  await frame();
  await frame();
}"""


def upload(page: Any, name: str, data: dict[str, Any] | str) -> None:
    text = data if isinstance(data, str) else json.dumps(data)
    page.set_input_files("input[type=file]", {"name": name, "mimeType": "application/json", "buffer": text.encode()})


DRAWN = "[...document.querySelectorAll('.wb-tree .wb-node')].filter((e) => e.getAttribute('display') !== 'none')"


def wide_tree(n_rounds: int) -> dict[str, Any]:
    """Return rounds with 136 nodes: 8 children of the root, 8 of each of those, and 8 of eight of these."""
    return trace("draft-tree", {"depth": 3, "width": 8, "temperature": 0.7}, n_rounds, seed=4)


def test_a_recording_plays_and_the_first_run_replaces_it(fake_app: str, open_page: PageOpener) -> None:
    page = open_page(f"{fake_app}/?recorded=draft-tree")
    wait_for_text(page, ".wb-badge", "RECORDED")
    page.wait_for_function("Number(document.querySelector('.wb-where').textContent.split(' of ')[1]) > 2")
    assert page.inner_text("[data-figure=speedup] .wb-value") == "—"
    page.click("[data-press=run]")
    wait_for_text(page, ".wb-badge", "LIVE")
    state(page, "finished")
    assert page.evaluate(ROUNDS) == list(range(count(page))), "no round of the recording is left"
    assert page.locator(".wb-token").count() == 56, "the panel had the recording's settings"


def test_the_recording_plays_while_the_backend_is_starting(open_page: PageOpener, tmp_path: Path) -> None:
    port, gate = free_port(), tmp_path / "gate"
    serving = serve([sys.executable, "tests/ui/serve_fake.py", str(port), "0.05", str(gate)], port, tmp_path / "log")
    with closing(serving):
        page = open_page(next(serving), ready=".wb-token")
        wait_for_text(page, ".wb-badge", "RECORDED")
        assert page.locator("[data-press=run]").count() == 0, "no Run button without a backend"
        assert not page.query_selector(READY)
        gate.touch()
        page.wait_for_selector(READY)
        page.wait_for_selector(".wb-ribbon.is-empty")
        wait_for_text(page, ".wb-badge", "LIVE")  # the recording has another target than this app
        assert page.is_enabled("[data-press=run]")


def test_reduced_motion_shows_a_complete_recording(fake_app: str, open_page: PageOpener) -> None:
    page = open_page(f"{fake_app}/?recorded=draft-tree", reduced_motion="reduce")
    page.wait_for_selector(".wb-token")
    assert page.evaluate(ROUNDS) == list(range(count(page)))
    wait_for_text(page, ".wb-card-ribbon h3 em", "finished")


def test_a_link_restores_the_controls_elsewhere_and_run_gives_the_same_text(
    fake_app: str, open_page: PageOpener
) -> None:
    one = open_page(fake_app)
    one.select_option("[data-what=method]", "draft-tree")
    one.locator("[data-param=width] input[type=number]").fill("2")
    short(one, 40)
    one.get_by_label("Seed").fill("11")
    one.fill("textarea", "A prompt & more = <b>ü</b>?")
    one.keyboard.press("Control+Enter")
    state(one, "finished")
    one.click(".wb-round[data-round='2'] .wb-token")
    one.wait_for_function("location.search.includes('round=3')")
    link = one.url
    asked = parse_qs(urlsplit(link).query)
    assert (asked["method"], asked["width"], asked["seed"]) == (["draft-tree"], ["2"], ["11"])
    two = open_page(link + "&depth=99&nonsense=1&drafter=other")
    assert two.input_value("[data-what=method]") == "draft-tree"
    assert two.input_value("[data-param=width] input[type=number]") == "2"
    assert two.input_value("textarea") == "A prompt & more = <b>ü</b>?"
    note = two.inner_text(".wb-alert.is-note")
    for problem in ("depth=99", "nonsense=1", "another tokenizer"):
        assert problem in note
    two.wait_for_function("document.querySelector('.wb-where').textContent.startsWith('round 3 ')")
    wait_for_text(two, ".wb-card-ribbon h3 em", "pinned")
    assert two.evaluate(TEXT) == one.evaluate(TEXT), "the run itself"
    two.click("[data-press=run]")
    state(two, "finished")
    two.wait_for_function(f"{TEXT} === {json.dumps(one.evaluate(TEXT))}")
    two.context.grant_permissions(["clipboard-read", "clipboard-write"])
    two.get_by_text("copy link").click()
    wait_for_text(two, ".wb-note", "clipboard")
    assert "width=2" in two.evaluate("navigator.clipboard.readText()")


def test_continuing_from_a_rejected_token_starts_a_branch_that_names_its_origin(
    fake_app: str, open_page: PageOpener
) -> None:
    page = open_page(fake_app)
    short(page, 30)
    page.click("[data-press=run]")
    state(page, "finished")
    ghost = page.locator(".wb-ghost.is-rejected").first
    word, at = ghost.inner_text().strip(), int(ghost.get_attribute("data-round") or 0)
    ghost.click()
    wait_until_drawn(page)
    before = page.evaluate(TEXT)
    go_on = page.locator(".wb-bar.is-own .wb-from")
    assert go_on.inner_text() == "continue", "the button has a text label"
    assert "start a new run from here" in (go_on.get_attribute("title") or "")
    size = go_on.bounding_box() or {}
    assert min(size["width"], size["height"]) >= 24
    go_on.click()
    wait_for_text(page, ".wb-origin", f"branched at round {at + 1}")
    state(page, "finished")
    assert word in page.inner_text(".wb-origin")
    assert page.inner_text(".wb-prompt").rstrip().endswith(word), "the prompt ends with the chosen token"
    assert "ids=" in page.evaluate("location.search") or page.wait_for_function("location.search.includes('ids=')")
    branch = page.evaluate(TEXT)
    page.reload()
    wait_for_text(page, ".wb-origin", f"branched at round {at + 1}")
    page.get_by_text("show the original run").click()
    page.wait_for_function(f"{TEXT} === {json.dumps(before)}")
    assert not page.is_visible(".wb-branch"), "the panel has the original run's prompt"
    page.get_by_text("show the branch").click()
    page.wait_for_function(f"{TEXT} === {json.dumps(branch)}")
    page.wait_for_selector(".wb-branch:visible")
    page.get_by_text("use the prompt text instead").click()
    page.wait_for_selector(".wb-branch", state="hidden")


def test_one_click_opens_a_branch_beside_its_original_run(fake_app: str, open_page: PageOpener) -> None:
    """The button may move between press and release: the lines above it change at the end of a run."""
    page = open_page(fake_app)
    short(page, 30)
    page.click("[data-press=run]")
    state(page, "finished")
    page.locator(".wb-ghost.is-rejected").first.click()
    page.click(".wb-bar.is-own .wb-from")
    beside = page.locator(".wb-beside")
    beside.wait_for()
    page.wait_for_timeout(700)  # the page has scrolled to the node card
    beside.scroll_into_view_if_needed()
    box = beside.bounding_box() or {}
    page.mouse.move(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
    page.mouse.down()
    page.evaluate("document.querySelector('.wb-origin').style.marginTop = '60px'")
    page.mouse.up()
    page.wait_for_selector("[data-drawn=true] .wb-pairhead")
    assert "tab=pair" in page.url
    heads = page.locator(".wb-pairhead").all_inner_texts()
    assert [text in head for text, head in zip(("original run", "branch at round"), heads, strict=True)] == [True] * 2


def test_a_branch_of_a_run_in_progress_stops_it_first(fake_app: str, open_page: PageOpener) -> None:
    page = open_page(fake_app)
    long(page)
    page.click("[data-press=run]")
    page.locator(".wb-ghost.is-rejected").first.click()
    page.click(".wb-bar.is-own .wb-from")
    wait_for_text(page, ".wb-origin", "branched at round")
    wait_rounds(page, 2)
    stop(page)


def test_a_change_of_sampling_during_a_run_invalidates_the_baseline(fake_app: str, open_page: PageOpener) -> None:
    page = open_page(fake_app)
    short(page, 60)
    page.click("[data-press=baseline]")
    page.wait_for_selector("[data-press=baseline]:has-text('✓')")
    page.click("[data-press=step]")
    wait_rounds(page, 1)
    wait_for_text(page, "[data-figure=speedup] .wb-value", "×")
    page.locator("[data-param=temperature] input[type=number]").fill("0.9")
    page.keyboard.press("Tab")
    page.wait_for_timeout(300)
    page.click("[data-press=pause]")
    state(page, "finished")
    assert page.inner_text("[data-figure=speedup] .wb-value") == "—"
    wait_for_text(page, "[data-figure=speedup] .wb-label", "baseline invalid")
    wait_for_text(page, ".wb-lane svg", "baseline invalid: temperature 0.70 → 0.90 at round 2")


COPIED = """() => {
  const range = document.createRange(), held = new DataTransfer();
  range.selectNodeContents(document.querySelector('.wb-ribbon'));
  getSelection().removeAllRanges();
  getSelection().addRange(range);
  const event = new ClipboardEvent('copy', { clipboardData: held, bubbles: true, cancelable: true });
  document.querySelector('.wb-ribbon').dispatchEvent(event);
  return held.getData('text/plain');
}"""


def test_the_copied_text_is_the_generated_text(fake_app: str, open_page: PageOpener) -> None:
    page = open_page(fake_app, permissions=["clipboard-read", "clipboard-write"])
    short(page, 40)
    page.click("[data-press=run]")
    state(page, "finished")
    prompt, text = page.inner_text(".wb-prompt"), page.evaluate(TEXT).replace("⏎", "\n").replace("·", "")
    assert page.locator(".wb-ghost").count() > 0, "rejected drafts are not copied"
    assert page.evaluate(COPIED) == prompt + text
    page.click(".wb-card-ribbon button:has-text('copy text')")
    wait_for_text(page, ".wb-card-ribbon h3", "copied")
    assert page.evaluate("navigator.clipboard.readText()") == text


def test_lost_messages_are_requested_again(fake_app: str, open_page: PageOpener) -> None:
    page = open_page(fake_app)
    page.evaluate("""() => {
      const hear = window.workbenchBus;
      let n = 0;
      window.dropped = 0;
      window.workbenchBus = (m) => (n++ % 3 === 1 && m.rounds?.length ? (window.dropped += 1) : hear(m));
    }""")
    page.click("[data-press=run]")
    state(page, "finished")
    assert page.evaluate("window.dropped") >= 1
    page.wait_for_function(
        f"({ROUNDS}).length === Number(document.querySelector('.wb-where').textContent.split(' of ')[1])"
    )
    assert page.evaluate(ROUNDS) == list(range(count(page)))
    assert page.locator(".wb-token").count() == 128


def test_a_silent_app_is_reported_and_the_gap_is_filled_later(fake_app: str, open_page: PageOpener) -> None:
    page = open_page(fake_app)
    open_page.allowed += ["AbortError", "Connection errored out", "Failed to fetch", "net::ERR", "network error"]
    long(page)
    page.click("[data-press=run]")
    wait_rounds(page, 3)
    page.context.set_offline(True)
    page.evaluate(
        "window.workbenchBus = ((hear) => (m) => window.deaf || hear(m))(window.workbenchBus); window.deaf = true"
    )
    state(page, "lost")
    wait_for_text(page, ".wb-card-ribbon h3 em", "reconnecting")
    had = count(page)
    page.context.set_offline(False)
    page.wait_for_selector(".wb-badge:not([data-state=lost])")
    page.wait_for_function(f"Number(document.querySelector('.wb-where').textContent.split(' of ')[1]) > {had}")
    wait_for_text(page, ".wb-alerts", "were filled in")
    assert page.evaluate(ROUNDS) == list(range(len(page.evaluate(ROUNDS))))
    page.evaluate("window.deaf = false")
    if page.is_enabled("[data-press=stop]"):
        page.click("[data-press=stop]")


@pytest.mark.unchecked
def test_two_thousand_tokens_are_only_ever_appended(fake_app: str, open_page: PageOpener) -> None:
    page = open_page(fake_app)
    long(page)
    page.click("[data-press=step]")
    wait_rounds(page, 1)
    page.evaluate(WATCH)
    rounds = trace("draft-model", {"depth": 4, "temperature": 0.7}, 912, seed=6)["rounds"]
    page.evaluate(PUSH, {"rounds": rounds[1:900]})
    n_tokens = page.locator(".wb-token").count()
    assert n_tokens > 2000
    assert page.evaluate(ROUNDS) == list(range(900))
    assert page.evaluate("window.removed") == []
    assert page.evaluate("window.kept.every((e) => e.isConnected)")
    skipped = page.evaluate("""[...document.querySelectorAll('.wb-chunk')]
      .filter((e) => !e.firstElementChild.checkVisibility({ contentVisibilityAuto: true })).length""")
    assert skipped > 5, "chunks out of view are not laid out"
    page.locator(".wb-ribbon").evaluate("(e) => { e.scrollTop = 0; }")
    page.wait_for_selector(".wb-scrub .wb-badge:visible")
    page.evaluate(PUSH, {"rounds": rounds[900:]})
    assert page.locator(".wb-ribbon").evaluate("(e) => e.scrollTop") == 0, (
        "the view does not scroll if the reader has scrolled back"
    )
    page.keyboard.press("Escape")
    page.click(".wb-scrub .wb-badge")
    end = "(e) => e.scrollTop + e.clientHeight > e.scrollHeight - 40"
    page.wait_for_function(f"({end})(document.querySelector('.wb-ribbon'))")
    stop(page)


COLLISIONS = """() => {
  const shown = (e) => e.checkVisibility() && !e.closest('[display=none]') && (e.textContent || e.tagName === 'rect');
  const parts = document.querySelectorAll('.wb-tree .wb-node > text, .wb-tree .wb-fold > rect:first-child');
  const words = [...parts].filter(shown);
  const boxes = words.map((e) => [e.textContent, e.getBBox()]);
  const hit = (a, b) => Math.max(a.x, b.x) < Math.min(a.x + a.width, b.x + b.width) - 1
    && Math.max(a.y, b.y) + 3 < Math.min(a.y + a.height, b.y + b.height) - 3;
  const met = ([one, a], i) => boxes.slice(i + 1).filter(([, b]) => hit(a, b)).map(([two]) => `${one} / ${two}`);
  return boxes.flatMap(met);
}"""


def exported(page: Any, name: str) -> ElementTree.Element:
    """Return a drawing from the Export menu."""
    page.get_by_role("button", name="export").first.click()
    with page.expect_download() as download:
        page.get_by_label(name).click()
    page.keyboard.press("Escape")
    return ElementTree.parse(download.value.path()).getroot()


def test_a_tree_of_136_nodes_folds_unfolds_and_is_drawn_in_place(fake_app: str, open_page: PageOpener) -> None:
    page = open_page(fake_app)
    upload(page, "wide.json", wide_tree(12))
    wait_for_text(page, ".wb-badge", "IMPORTED")
    nodes = page.locator(".wb-tree .wb-node:visible")
    assert nodes.count() < 66, "untested nodes are folded"
    page.focus(".wb-ribbon")
    page.keyboard.press("Home")
    page.evaluate(WATCH)
    for _ in range(11):
        page.keyboard.press("]")
    page.wait_for_function("document.querySelector('.wb-where').textContent.startsWith('round 12 ')")
    assert page.evaluate("window.removed") == []
    assert page.evaluate("document.documentElement.scrollWidth") <= 1440, "the tree scrolls inside its own region"
    few = nodes.count()
    for mode in ("levels", "spine"):
        page.click(f"[data-mode={mode}]")
        wait_until_drawn(page)
        assert page.evaluate(COLLISIONS) == [], "labels must not overlap in this page's fonts"
    page.click("text=unfold all")
    page.wait_for_function(f"{DRAWN}.length === 138")
    top = "document.querySelector('.wb-tree .wb-still .is-root').getBoundingClientRect().top"
    before = page.evaluate(top)
    page.evaluate("document.querySelector('.wb-tree').scrollTop = 600")
    page.wait_for_function("!document.querySelector('.wb-still').getAttribute('transform').endsWith(' 0)')")
    assert abs(page.evaluate(top) - before) < 2, "the accepted path stays visible"
    picture = exported(page, "Draft tree as SVG")
    assert not [e for e in picture.iter() if "translate(0 6" in e.get("transform", "")], (
        "an exported drawing is not scrolled"
    )
    words = [e for e in picture.iter() if e.tag.endswith("}text") and e.get("x") and "wb-code" in e.get("class", "")]
    assert len(words) >= 138, "all nodes are exported, though most are out of view"
    assert all(e.get("textLength") for e in words if e.text), "text width is fixed for other fonts"
    page.click("text='fit'")
    wait_until_drawn(page)
    assert "100 %" not in page.inner_text(".wb-zooms")
    page.click(".wb-zooms button >> nth=2")
    page.locator(".wb-cut input").fill("0.4")
    wait_for_text(page, ".wb-card-tree h3 em", "hidden")
    page.wait_for_function(f"{DRAWN}.length < 138")
    page.locator(".wb-cut input").fill("0")
    page.click(".wb-treebar button:text-is('fold')")
    page.wait_for_function(f"{DRAWN}.length === {few}")
    page.click("[data-mode=mask]")
    page.wait_for_selector(".wb-mask svg")
    assert page.locator(".wb-maskrow:visible").count() == 136
    page.locator(".wb-maskrow[data-node='20']").hover()
    page.wait_for_selector(".wb-maskrow.is-chosen[data-node='20']")
    assert page.locator(".wb-maskrow.is-ancestor").count() == 1
    page.focus(".wb-mask")
    page.keyboard.press("m")
    page.wait_for_selector(".wb-treelist li li")
    assert "accepted" in page.inner_text(".wb-treelist")
    page.click(".wb-treelist [data-node='100']")
    page.click("[data-mode=spine]")
    page.wait_for_selector(".wb-tree .wb-node.is-chosen[data-node='100']:visible")


def test_the_kv_cache_of_a_round_shows_which_positions_are_kept(fake_app: str, open_page: PageOpener) -> None:
    page = open_page(fake_app)
    wide = wide_tree(3)
    upload(page, "wide.json", wide)
    wait_for_text(page, ".wb-badge", "IMPORTED")
    page.click("[data-mode=cache]")
    page.wait_for_selector(".wb-cache [role=option]")
    n = len(wide["rounds"][-1]["nodes"]["parents"])
    assert page.locator(".wb-cache [role=option]:not(.is-next)").count() == n + 1, "the root and every node"
    assert page.locator(".wb-cachestrip.is-small").count() == 2, "many entries are drawn without text"
    upload(page, "run.json", trace("draft-model", {"depth": 4}, 12, seed=3))
    page.wait_for_function("!document.querySelector('.wb-cachestrip.is-small')")
    before, written, kept = map(int, re.findall(r"(\d+) (?:positions? before|written|positions? kept)",
                                                page.inner_text(".wb-cachenote.is-counts")))  # fmt: skip
    cells = page.locator(".wb-cache [role=option]:not(.is-next)")
    assert written == cells.count()
    assert kept - before == cells.count() - page.locator(".wb-cache .is-dropped").count()
    page.mouse.move(2, 2)  # a cell under the pointer would be selected
    page.focus(".wb-cache")
    page.keyboard.press("Home")
    page.wait_for_selector(".wb-cache [role=option].is-root.is-chosen")
    for node in ("0", "1"):
        page.keyboard.press("ArrowRight")
        page.wait_for_selector(f".wb-cache [role=option].is-chosen[data-node='{node}'][aria-selected=true]")
    active = page.get_attribute(".wb-cache", "aria-activedescendant")
    assert page.locator(f"#{active}").get_attribute("data-node") == "1"
    wait_for_text(page, ".wb-card-card h3", "at depth 2")
    page.locator(".wb-cache [role=option][data-node='0']").hover()
    wait_for_text(page, ".wb-card-card h3", "at depth 1")


def test_a_fold_opens_and_closes_by_key_and_by_click(fake_app: str, open_page: PageOpener) -> None:
    page = open_page(fake_app)
    upload(page, "wide.json", wide_tree(3))
    wait_for_text(page, ".wb-badge", "IMPORTED")
    page.focus(".wb-tree")
    page.keyboard.press("ArrowLeft")
    wait_until_drawn(page)
    few = page.evaluate(f"{DRAWN}.length")
    pill = page.locator(".wb-fold[data-fold]:visible").first
    chosen = page.get_attribute(".wb-tree", "aria-activedescendant")
    pill.click()
    page.wait_for_function(f"{DRAWN}.length > {few}")
    assert page.get_attribute(".wb-tree", "aria-activedescendant") == chosen, "the count of folded nodes is not a node"
    page.locator(".wb-fold[data-fold]:visible:has-text('−')").first.click()
    page.wait_for_function(f"{DRAWN}.length === {few}")
    for _ in range(12):
        page.keyboard.press("ArrowLeft")
    page.wait_for_selector(".wb-node.is-root.is-chosen")
    page.keyboard.press("Enter")
    page.wait_for_function(f"{DRAWN}.length > {few}")
    page.keyboard.press("Escape")
    page.wait_for_function(f"{DRAWN}.length === {few}")
    page.wait_for_selector(".wb-node.is-root.is-chosen")
    page.keyboard.press("+")
    wait_for_text(page, ".wb-zooms", "125 %")
    page.dispatch_event(".wb-tree", "wheel", {"ctrlKey": False, "deltaY": -100})
    page.dispatch_event(".wb-tree", "wheel", {"ctrlKey": True, "deltaY": -100})
    wait_for_text(page, ".wb-zooms", "156 %")
    beside = page.evaluate("document.querySelector('.wb-tree').clientWidth")
    page.click(".wb-zooms >> text='wide'")
    page.wait_for_function(f"document.querySelector('.wb-tree').clientWidth > {1.4 * beside}")


def test_a_file_is_checked_before_it_is_shown(fake_app: str, open_page: PageOpener) -> None:
    page = open_page(f"{fake_app}/?recorded=draft-tree")
    good = json.loads((Path(__file__).parents[1] / "fixtures" / "wire" / "switch.json").read_text())
    newer = good | {"header": good["header"] | {"schema": 99}}
    upload(page, "newer.json", newer)
    wait_for_text(page, ".wb-alert.is-error", "schema 99")
    wait_for_text(page, ".wb-badge", "RECORDED")
    upload(page, "notes.txt", "hello")
    page.wait_for_selector(".wb-alert:has-text('notes.txt')")
    upload(page, "older.json", good | {"header": good["header"] | {"schema": 0}})
    wait_for_text(page, ".wb-badge", "IMPORTED")
    page.wait_for_selector(".wb-alert.is-warning:has-text('older schema')")
    page.wait_for_selector(".wb-change text:text-is('depth 2 → 5')")
    rounds = [r | {"method": "draft-tree"} if i > 5 else r for i, r in enumerate(good["rounds"])]
    upload(page, "switched.json", good | {"rounds": rounds})
    page.wait_for_selector(".wb-bymethod tr.is-whole")
    for part in (".wb-bymethod tbody tr:not(.is-whole)", ".wb-methodchip:visible", ".wb-card-curve .wb-method"):
        assert page.locator(part).count() == 2, f"{part}: one per method"
    assert page.locator(".wb-round[data-round='7']").first.get_attribute("data-slot") == "b"
    page.click(".wb-bymethod tr:nth-child(2) button")
    wait_for_text(page, ".wb-card-histogram em", f"rounds 7–{len(rounds)}")
    wait_for_text(page, ".wb-card-tree h3", f"round {len(rounds)}: Draft tree")
    lines = [{"event": "header", **good["header"]}, *({"event": "round", **r} for r in good["rounds"])]
    upload(page, "cut.jsonl", "\n".join(map(json.dumps, lines))[:-700])
    page.wait_for_selector(".wb-alert.is-warning:has-text('truncated')")
    hostile = json.loads(json.dumps(good).replace(" fox", "<img src=x onerror=document.title=1>"))
    upload(page, "hostile.json", hostile)
    page.wait_for_selector(".wb-token:has-text('onerror')")
    for mode in ("mask", "list", "cache", "levels", "spine"):
        page.click(f"[data-mode={mode}]")
    assert page.locator(".wb img").count() == 0
    assert page.title() == "Speculative Decoding Workbench"


def test_playing_moves_through_the_rounds_and_can_be_paused(fake_app: str, open_page: PageOpener) -> None:
    page = open_page(fake_app)
    upload(page, "run.json", trace("draft-model", {"depth": 4, "temperature": 0.7}, 30, seed=1))
    wait_for_text(page, ".wb-badge", "IMPORTED")
    page.focus(".wb-ribbon")
    page.keyboard.press(" ")
    wait_for_text(page, "[aria-label^='Play at']", "❚❚")
    page.wait_for_function("/^round [3-9] /.test(document.querySelector('.wb-where').textContent)")
    page.keyboard.press(" ")
    wait_for_text(page, "[aria-label^='Play at']", "▶")
    there = page.inner_text(".wb-where")
    page.wait_for_timeout(400)
    assert page.inner_text(".wb-where") == there
    page.get_by_text("jump to the end").click()
    page.wait_for_function("document.querySelector('.wb-where').textContent.startsWith('round 30 ')")


def test_the_keyboard_alone_is_enough(fake_app: str, open_page: PageOpener) -> None:
    page = open_page(fake_app)
    short(page, 40)
    page.focus("textarea")
    page.keyboard.press("Control+Enter")
    state(page, "finished")
    page.focus(".wb-ribbon")
    for key, wanted in (("1", ".wb-figure[data-figure=speedup]"), ("3", ".wb-tree"), ("2", ".wb-ribbon")):
        page.keyboard.press(key)
        wait_until_drawn(page)
        assert page.evaluate(f"document.activeElement.matches({wanted!r})"), key
    page.keyboard.press("Home")
    page.keyboard.press("}")
    page.keyboard.press("}")
    wait_for_text(page, ".wb-card-lane h3 em", "rounds 1–3:")
    wait_for_text(page, ".wb-card-histogram h3 em", "rounds 1–3")
    page.keyboard.press("Escape")
    page.keyboard.press("ArrowLeft")
    page.keyboard.press("p")
    wait_for_text(page, ".wb-card-ribbon h3 em", "pinned")
    page.keyboard.press("1")
    page.keyboard.press("Enter")
    wait_until_drawn(page)
    assert page.get_attribute(".wb-figure[data-figure=speedup]", "aria-expanded") == "true"
    page.keyboard.press("Escape")
    wait_until_drawn(page)
    assert page.get_attribute(".wb-figure[data-figure=speedup]", "aria-expanded") == "false"
    page.keyboard.press("?")
    page.wait_for_selector("dialog[open]")
    page.keyboard.press("Escape")
    page.focus(".wb-ribbon")
    page.keyboard.press("m")
    page.wait_for_selector("[data-mode=levels][aria-pressed=true]")


def test_controls_without_effect_are_disabled_with_a_reason(fake_app: str, open_page: PageOpener) -> None:
    page = open_page(fake_app)
    threshold = page.locator("[data-param=threshold]")
    assert "policy is confidence" in threshold.inner_text()
    assert threshold.locator("input[type=number]").is_disabled()
    page.locator("[data-param=policy] select").select_option("confidence")
    page.wait_for_selector("[data-param=threshold] input[type=number]:enabled")
    page.locator("[data-param=temperature] input[type=number]").fill("0")
    page.keyboard.press("Tab")
    page.locator(".wb-moresampling summary").click()
    wait_until_drawn(page)
    assert "temperature is above 0" in page.inner_text("[data-param=top_k]")


def test_the_embedded_view_has_only_the_stage_or_one_part(fake_app: str, open_page: PageOpener) -> None:
    page = open_page(
        f"{fake_app}/?recorded=draft-tree&round=2&embed=1&view=tree", viewport={"width": 700, "height": 500}
    )
    page.wait_for_selector(".wb-node")
    assert page.is_hidden(".wb-side")
    assert page.is_hidden(".wb-ribbon")
    wait_for_text(page, ".wb-badge", "RECORDED")
    wait_for_text(page, ".wb-card-tree h3", "round 2")
    assert page.evaluate("document.documentElement.scrollWidth") <= 700


def test_roles_are_shown_for_special_tokens_of_a_chat(fake_app: str, open_page: PageOpener) -> None:
    page = open_page(f"{fake_app}/?recorded=draft-tree&round=1")
    page.wait_for_selector(".wb-prompt .wb-role")
    roles = page.locator(".wb-prompt .wb-role").evaluate_all("all => all.map((x) => x.dataset.role)")
    assert roles == ["user", "assistant"]
    assert "assistant" in (page.locator("[role=tree]").text_content() or ""), "the first committed word"
    assert not re.search(r"<\|(user|assistant)\|>", page.inner_text("body"))
    box, chat = page.locator("textarea"), page.get_by_label("chat message")
    page.goto(f"{fake_app}/?prompt=%3C%7Cuser%7C%3EWhat+is+2%3F%3C%7Cassistant%7C%3E")
    page.wait_for_selector(READY)
    assert (box.input_value(), chat.is_checked()) == ("What is 2?", True), "an older link opens as a message"
    chat.uncheck()
    box.fill("Once")
    page.click("[data-press=run]")
    page.wait_for_selector(".wb-prompt:has-text('Once')")
    assert "prompt=Once" in page.url
    assert page.locator(".wb-prompt .wb-role").count() == 0
