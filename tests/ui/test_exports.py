"""The Export menu on the page, and the HTML replay opened from disk with the network cut."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from traces import HOSTILE, make_hostile_image_trace, make_hostile_trace
from ui.conftest import PageOpener
from ui.test_page import short, state

from workbench.trace import export
from workbench.views import recorded_runs
from workbench.views.replay import replay

pytestmark = [pytest.mark.browser, pytest.mark.slow]


@pytest.fixture
def from_disk(browser: Any) -> Iterator[Any]:
    """Return a function that opens a file offline; then check that no text ran, no request was sent, nothing failed."""
    problems: list[str] = []
    contexts = []

    def open_file(path: Path, allowed: str = "", **options: Any) -> Any:
        context = browser.new_context(**({"offline": True, "viewport": {"width": 1280, "height": 900}} | options))
        contexts.append(context)
        known = ("data:", "blob:", path.as_uri())
        page = context.new_page()
        page.on("console", lambda m: problems.append(m.text) if m.type == "error" and m.text != allowed else None)
        page.on("pageerror", lambda error: problems.append(str(error)))
        page.on("request", lambda r: problems.append(r.url) if not r.url.startswith(known) else None)
        page.on("dialog", lambda d: problems.append(d.message))
        page.goto(path.as_uri())
        page.wait_for_selector(".wb[data-ready=true]")
        return page

    yield open_file
    for context in contexts:
        assert [page.evaluate("window.hurt ?? null") for page in context.pages] == [None]
        context.close()
    assert problems == []


def files(page: Any, folder: Path, leave_out: str = "nothing") -> dict[str, Path]:
    """Press the buttons of the Export menu; return the files by button label."""
    page.get_by_role("button", name="export").first.click()
    page.wait_for_selector(".wb-exportview")
    buttons, saved = page.locator(".wb-export:enabled, .wb-exportview button"), {}
    for i in range(buttons.count()):
        button = buttons.nth(i)
        name = button.get_attribute("aria-label") or button.locator("b").inner_text()
        if name == "Keep" or re.search(leave_out, name):  # this button saves no file
            continue
        page.wait_for_timeout(300)  # Chromium 156 drops the eleventh download of a burst, faster than a user can click
        with page.expect_download() as download:
            button.click()
        saved[name] = folder / download.value.suggested_filename
        download.value.save_as(saved[name])
    assert len(set(saved.values())) == len(saved), "every file has its own name"
    for name, path in saved.items():
        words = re.sub(r" as (SVG|PNG)$|^(JSON Lines|Parquet)$", "", name)  # these two are recognised by their suffix
        assert words.replace(" ", "-") in path.name, "a file is named after its button"
    return saved


def test_a_replay_plays_from_disk_and_shows_hostile_texts_as_text(from_disk: Any, tmp_path: Path) -> None:
    path = tmp_path / "replay.html"
    path.write_text(replay(make_hostile_trace()), encoding="utf-8")
    page = from_disk(path)
    assert "RECORDED" in page.inner_text(".wb-head")
    assert page.locator("img, .wb-ribbon script, iframe").count() == 0
    assert HOSTILE[0] in page.inner_text(".wb-ribbon")
    assert page.locator(".wb-token").count() == len(make_hostile_trace().token_ids)
    page.click(".wb-token >> nth=0")
    page.wait_for_selector(".wb-where:has-text('round 1 of')")
    page.keyboard.press("]")
    page.wait_for_selector(".wb-where:has-text('round 2 of')")
    saved = files(page, tmp_path, leave_out="(?<!Tokens) as PNG")
    assert "Parquet" not in saved, "no server here"
    again = export.read_json_lines(saved["JSON Lines"].read_text(encoding="utf-8"))
    assert again == make_hostile_trace()
    for name, made in saved.items():
        if made.suffix == ".svg":
            root = ElementTree.parse(made).getroot()  # well-formed with any text
            assert not [e for e in root.iter() if e.tag.endswith(("script", "}img", "}iframe"))], name
            assert not [a for e in root.iter() for a in e.attrib if a.lower().startswith("on")], name
            assert "RECORDED" in "".join(root.itertext()), name
        if made.suffix == ".png":
            assert made.read_bytes().startswith(b"\x89PNG"), name
    swatches = re.findall(r"<i\b[^>]*>", saved["Node as SVG"].read_text(encoding="utf-8"))
    assert {mark for tag in swatches for mark in ("is-q", "is-p") if mark in tag} == {"is-q", "is-p"}, "a legend"
    for tag in swatches:
        width, height = (float(re.search(rf"[; \"]{side}: ?([\d.]+)px", tag)[1]) for side in ("width", "height"))  # type: ignore[index]
        assert min(width, height) > 0, tag
        assert "background-color: rgba(0, 0, 0, 0)" not in tag, "the image has the swatches of the card"
    second = from_disk(saved["HTML replay"])
    assert second.locator(".wb-token").count() == len(make_hostile_trace().token_ids)


def test_quotes_in_the_url_of_an_image_run_nothing_in_a_replay(from_disk: Any, tmp_path: Path) -> None:
    path = tmp_path / "replay.html"
    path.write_text(replay(make_hostile_image_trace()), encoding="utf-8")
    page = from_disk(path, allowed="Failed to load resource: net::ERR_INVALID_URL")
    page.wait_for_selector(".wb-token")
    assert page.locator("img, iframe, [onerror]").count() == 0
    assert page.locator("svg image").count() > 0, "the images are drawn"


def test_the_replay_of_a_simulation_is_labelled_as_such(from_disk: Any, tmp_path: Path) -> None:
    trace = make_hostile_trace()
    trace.header.simulation = True
    path = tmp_path / "replay.html"
    path.write_text(replay(trace), encoding="utf-8")
    page = from_disk(path, viewport={"width": 390, "height": 800}, color_scheme="dark")
    assert page.locator(".is-simulation").is_visible()
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    assert page.evaluate("document.body.classList.contains('dark')")


def test_every_export_of_the_page_can_be_read(
    fake_app: str, open_page: PageOpener, from_disk: Any, tmp_path: Path
) -> None:
    n_tokens = len(recorded_runs.read(recorded_runs.folder() / f"draft-model{recorded_runs.SUFFIX}").token_ids)
    page = open_page(f"{fake_app}/?recorded=draft-model", reduced_motion="reduce")
    page.wait_for_function(f"document.querySelectorAll('.wb-token').length === {n_tokens}")
    saved = files(page, tmp_path, leave_out="as SVG|(?<!clock) as PNG")
    trace = export.read(saved["JSON Lines"].read_bytes())
    assert export.read(saved["Parquet"].read_bytes()).to_wire() == trace.to_wire()
    made = json.loads(saved["Chrome trace"].read_text(encoding="utf-8"))
    spans = [e["name"] for e in made["traceEvents"] if e["ph"] == "X"]
    assert spans.count("verify") == sum(p.name == "verify" for r in trace.rounds for p in r.phases)
    assert saved["Wall clock as PNG"].read_bytes().startswith(b"\x89PNG")
    replayed = from_disk(saved["HTML replay"])
    assert replayed.locator(".wb-token").count() == len(trace.token_ids)
    for selector in (".wb-token", ".wb-node path"):  # the same colours as on the page
        seen = [p.evaluate(f"getComputedStyle(document.querySelector('{selector}')).fill + "
                           f"getComputedStyle(document.querySelector('{selector}')).backgroundColor")
                for p in (page, replayed)]  # fmt: skip
        assert seen[0] == seen[1]


def test_the_menu_works_by_keyboard_and_reports_if_there_is_nothing_to_export(
    fake_app: str, open_page: PageOpener
) -> None:
    page = open_page(fake_app)  # no recording plays, because none has this app's target
    press_json_lines(page)
    page.wait_for_selector(".wb-exportnote:has-text('Nothing to export yet')")
    page.keyboard.press("Escape")
    assert page.locator(".wb-exports").is_hidden()
    short(page, 16)
    page.click("[data-press=run]")
    state(page, "finished")
    with page.expect_download() as download:
        press_json_lines(page)
    page.wait_for_selector(f".wb-exportnote:has-text('Saved {download.value.suggested_filename}')")
    page.keyboard.press("Escape")
    assert page.locator(".wb-exports").is_hidden()


def press_json_lines(page: Any) -> None:
    """Open the Export menu and press its second item, by keys alone."""
    page.get_by_role("button", name="export").first.focus()
    page.keyboard.press("Enter")
    for name in ("Keep", "JSON Lines"):
        page.keyboard.press("Tab")
        assert page.evaluate("document.activeElement.firstChild.textContent") == name
    page.keyboard.press("Enter")


def test_a_recording_that_is_still_playing_is_saved_whole(fake_app: str, open_page: PageOpener, tmp_path: Path) -> None:
    page = open_page(f"{fake_app}/?recorded=autoregressive")
    assert page.locator(".wb-token").count() < 20, "it plays slowly"
    saved = files(page, tmp_path, leave_out="^(?!JSON Lines)")
    assert export.read(saved["JSON Lines"].read_bytes()) == recorded_runs.trace("autoregressive")


@pytest.mark.parametrize("width", [390, 700, 1280])
def test_the_menu_fits_the_screen(from_disk: Any, tmp_path: Path, width: int) -> None:
    path = tmp_path / "replay.html"
    path.write_text(replay(recorded_runs.trace("draft-model")), encoding="utf-8")
    page = from_disk(path, viewport={"width": width, "height": 800})
    page.get_by_role("button", name="export").first.click()
    page.wait_for_selector(".wb-exportview")
    page.wait_for_timeout(100)
    box = page.locator(".wb-exports").bounding_box()
    assert box["x"] >= 0
    assert box["x"] + box["width"] <= width
    assert box["y"] + box["height"] <= 800
