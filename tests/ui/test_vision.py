"""The Vision tab in a browser: most tests with synthetic runs, one with the bundled model."""

from __future__ import annotations

import base64
import io
import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from PIL import Image
from ui.conftest import ROOT, PageOpener, free_port, models_folder, serve, wait_until_drawn
from ui.fake_vision import FakeVision, finished_trace

from workbench.trace.events import Trace
from workbench.views.replay import replay

pytestmark = [pytest.mark.browser, pytest.mark.slow]

V = "#wb-vision "
DONE = f"['finished', 'error'].includes(document.querySelector('{V}.wb-badge').dataset.state)"
MARKS = f"[...document.querySelectorAll('{V}.wb-card-curve .wb-change')].filter((e) => e.checkVisibility())"


@pytest.fixture(scope="module")
def vision_app(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Run the page with synthetic runs with images."""
    port, log = free_port(), tmp_path_factory.mktemp("vision") / "log"
    yield from serve([sys.executable, "tests/ui/serve_vision.py", str(port), "0.05"], port, log)


def png(colour: str = "red", size: tuple[int, int] = (32, 48)) -> bytes:
    out = io.BytesIO()
    Image.new("RGB", size, colour).save(out, "PNG")
    return out.getvalue()


def visit(open_page: PageOpener, app: str, query: str = "", **options: Any) -> Any:
    """Open the tab. The Live view is hidden on the same page."""
    page = open_page(f"{app}/?tab=vision{query}", ready=f"{V}.wb[data-ready=true]", **options)
    page.wait_for_selector(f"{V}.wb-card-picture image", state="attached")
    return page


def wait_for_text(page: Any, selector: str, text: str) -> None:
    page.locator(V + selector).first.filter(has_text=text).wait_for(state="attached")


def run(page: Any) -> None:
    page.click(
        f"{V}[data-press=run]:visible, {V}[data-near=run]:visible"
    )  # narrow pages have one Run button, in the bar
    page.wait_for_function(f"document.querySelector('{V}.wb-badge').dataset.from === 'live'")
    page.wait_for_function(DONE)
    page.wait_for_function(f"!document.querySelector('{V}[data-figure=grounded] .wb-value').textContent.includes('—')")


def at(page: Any, card: str, column: int, row: int) -> tuple[float, float]:
    drawing = page.locator(f"{V}.wb-card-{card} .wb-vis svg")
    drawing.scroll_into_view_if_needed()
    box = drawing.bounding_box()
    return box["x"] + box["width"] * (column + 0.5) / 8, box["y"] + box["height"] * (row + 0.5) / 8


def stroke(page: Any, *patches: tuple[int, int]) -> None:
    page.mouse.move(*at(page, "picture", *patches[0]))
    page.mouse.down()
    for patch in patches[1:]:
        page.mouse.move(*at(page, "picture", *patch))
    page.mouse.up()


def step(page: Any, n: int) -> None:
    page.click(f"{V}[data-press=step]")
    page.wait_for_function(f"Number(document.querySelector('{V}.wb-where').textContent.split(' of ')[1]) >= {n}")


@pytest.mark.smoke
def test_the_tab_is_loaded_when_it_is_opened(vision_app: str, open_page: PageOpener) -> None:
    page = open_page(vision_app)
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    others = "performance.getEntriesByType('resource').every((e) => !/vision\\.(js|css)/.test(e.name))"
    assert page.evaluate(others)
    page.get_by_role("link", name="Vision", exact=True).click()
    page.wait_for_selector(f"{V}.wb[data-ready=true]")
    assert any("bundle/vision.js" in url for url in asked)
    assert "tab=vision" in page.url


def test_drafters_with_and_without_image_side_by_side(vision_app: str, open_page: PageOpener) -> None:
    page = visit(open_page, vision_app)
    rows = page.locator(f"{V}.wb-runs tbody tr")
    recorded = rows.count()
    run(page)
    captions = [page.locator(f"{V}.wb-caption").nth(i) for i in (0, 1)]
    page.wait_for_function(
        f"(() => {{ const [a, b] = [...document.querySelectorAll('{V}.wb-caption')].map((e) => "
        "[...e.querySelectorAll('.wb-token')].map((t) => t.innerText).join('')); return a && a === b; })()"
    )  # wait until the slower one is drawn to its end, too
    words = [c.locator(".wb-token").all_inner_texts() for c in captions]
    assert "".join(words[0]) == "".join(words[1]), "both are exact"
    assert captions[1].locator(".wb-ghost.is-rejected").count() > captions[0].locator(".wb-ghost.is-rejected").count()
    assert page.locator(V + "img[src='x']").count() == 0, "token text must not become HTML"
    assert page.evaluate("window.hurt") is None
    grounded = captions[0].locator(".wb-token.is-grounded").all_inner_texts()
    assert {" red", " circle"} <= set(grounded)
    assert " the" not in grounded
    wait_for_text(page, "[data-figure=grounded] small", "vs")
    wait_for_text(page, "[data-figure=speedup] .wb-formula small", "two runs share the engine")
    wait_for_text(page, ".wb-headline .wb-facts-line", "falls by 0.2 or more when the image is blanked")
    lines = page.locator(f"{V}.wb-headlinerow").all_inner_texts()
    assert len(lines) == 2, "one line per run"
    figure = page.inner_text(f"{V}[data-figure=grounded] .wb-value")
    assert re.search(rf"picture words {figure} accepted \(\d+/\d+ tested\), other words \d+ %", lines[0])
    # The timeline counts the rounds of the run whose word is selected.
    captions[1].locator(".wb-token").last.click()
    first, second = (
        1 + max(c.locator(".wb-token").evaluate_all("(all) => all.map((e) => +e.dataset.round)")) for c in captions
    )
    assert second > first
    wait_for_text(page, ".wb-where", f"round {second} of {second}")
    wait_for_text(page, ".wb-card-card em", f"round {second}")
    page.set_viewport_size({"width": 1024, "height": 768})
    wait_until_drawn(page)
    box = page.locator(f"{V}.wb-card-drafter .wb-picturebox").bounding_box() or {}
    assert box["y"] + box["height"] <= 768, "the drafter's input is in the first screen"
    page.set_viewport_size({"width": 1440, "height": 900})
    wait_until_drawn(page)
    for part in (".wb-card-picture .wb-vis", ".wb-caption .wb-token", ".wb-card-tree .wb-node.is-root"):
        box = page.locator(V + part).first.bounding_box() or {}
        assert box["y"] + box["height"] <= 850, f"{part} is in the first screen, above the timeline"
    page.set_viewport_size({"width": 1440, "height": 1100})
    wait_until_drawn(page)
    # A word, then its patches; a patch, then its words.
    captions[0].locator(".wb-token:has-text('red')").first.click()
    wait_for_text(page, ".wb-card-target em", "for “red”")
    hot = page.locator(f"{V}.wb-card-target .wb-patchheat").evaluate_all(
        "(all) => all.map((e) => +e.getAttribute('opacity'))"
    )
    assert hot.index(max(hot)) == 18
    page.mouse.move(*at(page, "target", 2, 2))
    wait_for_text(page, ".wb-pointed", "Row 3, column 3")
    wait_for_text(page, ".wb-pointed", "red")
    assert " red" in captions[0].locator(".wb-token.is-leaning").all_inner_texts()
    # The same by keyboard.
    page.focus(f"{V}.wb-card-picture .wb-vis")
    page.keyboard.press("PageUp")
    page.keyboard.press("ArrowRight")
    wait_for_text(page, ".wb-pointed", "Row 1, column 2")
    # The input of the drafter without image, when one of its words is selected.
    captions[1].locator(".wb-token").nth(3).click()
    wait_for_text(page, ".wb-card-drafter em", "no vision tokens")
    captions[1].locator(".wb-ghost.is-rejected").first.click()
    wait_for_text(page, ".wb-card-card h3 em", "rejected")
    assert rows.count() == recorded + 2


def test_an_object_is_painted_over_during_a_run_and_the_change_is_marked(
    vision_app: str, open_page: PageOpener
) -> None:
    page = visit(open_page, vision_app, "&max_new_tokens=90")
    step(page, 1)
    page.click(f"{V}[data-value=hide]")
    stroke(page, (5, 5), (6, 5), (6, 6), (5, 6))
    assert page.evaluate(f"{MARKS}.length") == 0, "nothing changes before the next round"
    before = page.get_attribute(f"{V}.wb-card-picture image", "href")
    step(page, 2)
    page.wait_for_function(f"{MARKS}.length === 1")
    assert "image changed" in page.inner_text(f"{V}.wb-card-curve")
    assert page.locator(f"{V}.wb-round[data-round='1'][data-change='image changed']").count() >= 1
    after = page.get_attribute(f"{V}.wb-card-picture image", "href")
    assert after != before
    hidden = Image.open(io.BytesIO(base64.b64decode((after or "").partition(",")[2]))).convert("RGB")
    assert hidden.getpixel((46, 50)) == (244, 241, 234), "painted with the image's background"
    # Only the drafter's image is changed, by keyboard; the target's image stays.
    page.click(f"{V}[data-value=drafter]")
    page.focus(f"{V}.wb-card-picture .wb-vis")
    for key in ("PageUp", "ArrowRight", "ArrowRight", "ArrowDown", "ArrowDown", "Enter"):
        page.keyboard.press(key)
    step(page, 3)
    page.wait_for_function(f"{MARKS}.length === 2")
    assert "drafter's image" in page.inner_text(f"{V}.wb-card-curve")
    assert page.get_attribute(f"{V}.wb-card-picture image", "href") == after
    assert page.get_attribute(f"{V}.wb-card-drafter image", "href") != after
    # Another image of the gallery is selected, for both again.
    page.click(f"{V}[data-value=both]")
    page.click(f"{V}[data-scene=three]")
    step(page, 4)
    page.wait_for_function(f"{MARKS}.length === 3")
    assert page.get_attribute(f"{V}.wb-card-picture image", "href") not in (before, after)
    page.click(f"{V}[data-press=stop]")
    page.wait_for_selector(f"{V}.wb-badge[data-state=cancelled]")


def test_images_come_from_the_pad_a_file_and_the_clipboard(vision_app: str, open_page: PageOpener) -> None:
    page = visit(open_page, vision_app)
    page.click(f"{V}[data-value=draw]")
    page.focus(f"{V}.wb-pad")
    for key in ("ArrowLeft", "ArrowUp", "Enter", "Enter", "u"):
        page.keyboard.press(key)
    wait_for_text(page, ".wb-padsaid", "A sketch: large red circle at the middle.")
    page.click(f"{V}.wb-paddialog .wb-go")
    wait_until_drawn(page)
    assert page.input_value(f"{V}.wb-picking input[type=text]") == "A sketch: large red circle at the middle."
    sketch = page.get_attribute(f"{V}.wb-card-picture image", "href")
    files = page.locator(f"{V}.wb-picking input[type=file]")
    files.set_input_files({"name": "notes.txt", "mimeType": "text/plain", "buffer": b"hello"})
    wait_for_text(page, ".wb-alert.is-error", "Use PNG, JPEG, WebP or GIF")
    files.set_input_files({"name": "broken.png", "mimeType": "image/png", "buffer": b"\x89PNG no"})
    page.wait_for_selector(f"{V}.wb-alert:has-text('broken.png cannot be opened')")
    assert page.get_attribute(f"{V}.wb-card-picture image", "href") == sketch, "nothing is lost"
    files.set_input_files({"name": "a.png", "mimeType": "image/png", "buffer": png()})
    page.wait_for_function(
        f"document.querySelector('{V}.wb-card-picture image').getAttribute('href') !== {json.dumps(sketch)}"
    )
    upload = page.get_attribute(f"{V}.wb-card-picture image", "href")
    page.evaluate(
        """async (url) => {
          const held = new DataTransfer();
          held.items.add(new File([await (await fetch(url)).blob()], "pasted.png", { type: "image/png" }));
          const event = new ClipboardEvent("paste", { clipboardData: held, bubbles: true });
          document.querySelector("#wb-vision .wb-stage").dispatchEvent(event);
        }""",
        "data:image/png;base64," + base64.b64encode(png("blue")).decode(),
    )
    page.wait_for_function(
        f"document.querySelector('{V}.wb-card-picture image').getAttribute('href') !== {json.dumps(upload)}"
    )
    run(page)
    wait_for_text(page, ".wb-badge", "LIVE")


def test_a_link_and_a_file_restore_the_same_view(vision_app: str, open_page: PageOpener, tmp_path: Path) -> None:
    page = visit(open_page, vision_app)
    page.click(f"{V}[data-scene=three]")
    page.select_option(f"{V}[data-param=compressor] select", "pool")
    page.fill(f"{V}textarea", "How many <b>shapes</b>?")
    run(page)
    wait_for_text(page, ".wb-card-drafter em", "16 blocks of 64 patches")
    page.wait_for_function("location.search.includes('scene=three') && location.search.includes('compressor=pool')")
    link = page.url
    page.click(f"{V}[title='Save this run']")
    with page.expect_download() as saved:
        page.locator(f"{V}.wb-export:has-text('JSON Lines')").click()
    saved.value.save_as(tmp_path / "run.jsonl")
    other = visit(open_page, vision_app, link.partition("tab=vision")[2] + "&scene=nowhere&nonsense=1")
    assert other.input_value(f"{V}textarea") == "How many <b>shapes</b>?"
    assert other.get_attribute(f"{V}[data-scene=three]", "aria-pressed") == "true"
    wait_for_text(other, ".wb-alert.is-note", "nonsense=1")
    other.locator(f"{V}.wb-head input[type=file]").set_input_files(tmp_path / "run.jsonl")
    wait_for_text(other, ".wb-badge", "IMPORTED")
    wait_for_text(other, ".wb-card-drafter em", "16 blocks of 64 patches")
    assert other.inner_text(f"{V}[data-figure=grounded] .wb-value") == page.inner_text(
        f"{V}[data-figure=grounded] .wb-value"
    )
    other.locator(f"{V}.wb-token:has-text('blue')").first.click()
    wait_for_text(other, ".wb-card-target em", "for “blue”")


def test_a_link_has_priority_over_the_tabs_run_and_a_reload_shows_that_run(
    vision_app: str, open_page: PageOpener
) -> None:
    open_page.allowed += ["signal is aborted", "AbortError", "Connection errored out"]  # from the page that was left
    page = visit(open_page, vision_app, "&prompt=Describe.&scene=three")
    wait_for_text(page, ".wb-note", "loaded from the link")
    run(page)
    page.reload()
    page.wait_for_selector(f"{V}.wb-caption .wb-token")
    assert page.input_value(f"{V}textarea") == "Describe."
    assert page.get_attribute(f"{V}[data-scene=three]", "aria-pressed") == "true"
    assert "loaded from the link" not in page.inner_text(f"{V}.wb-note")
    other = [
        s
        for s in page.locator(f"{V}[data-scene]").evaluate_all("all => all.map((e) => e.dataset.scene)")
        if s != "three"
    ]
    page.goto(f"{vision_app}/?tab=vision&prompt=How+many&scene={other[0]}&method=vlm-text-only")
    wait_for_text(page, ".wb-note", "loaded from the link")
    assert page.input_value(f"{V}textarea") == "How many"
    assert page.get_attribute(f"{V}[data-scene={other[0]}]", "aria-pressed") == "true"
    assert page.input_value(f"{V}[data-what=method]") == "vlm-text-only"
    assert page.locator(f"{V}.wb-caption .wb-token").count() == 0


def test_a_reload_keeps_both_runs_and_an_image_without_run(vision_app: str, open_page: PageOpener) -> None:
    open_page.allowed += ["signal is aborted", "AbortError", "Connection errored out"]  # from the page that was left
    page = visit(open_page, vision_app)
    page.select_option(f"{V}[data-what=beside]", "draft-model")
    page.click(f"{V}[data-press=step]")
    page.wait_for_selector(f"{V}.wb-badge[data-state=paused]")
    page.wait_for_selector(f"{V}[aria-label='Caption, second drafter'] .wb-token")
    page.reload()
    page.wait_for_selector(f"{V}.wb[data-ready=true] .wb-badge[data-state=paused]")
    assert page.input_value(f"{V}[data-what=beside]") == "draft-model"
    page.click(f"{V}[data-press=pause]")
    page.wait_for_selector(f"{V}.wb-badge[data-state=finished]")
    texts = (
        "[...document.querySelectorAll('#wb-vision .wb-caption')].map((e) => e.querySelectorAll('.wb-token').length)"
    )
    page.wait_for_function(f"({texts}).join() === '26,26'")
    # an image without a run, painted over
    upload = {"name": "own.png", "mimeType": "image/png", "buffer": png("green", (48, 48))}
    picture = f"document.querySelector('{V}.wb-card-picture image').getAttribute('href')"
    before = page.evaluate(picture)
    page.locator(f"{V}.wb-picking input[type=file]").set_input_files(upload)
    page.wait_for_function(f"{picture} !== {json.dumps(before)}")
    own = page.evaluate(picture)
    page.select_option(f"{V}[data-what=beside]", "")
    page.wait_for_url("**beside=none**")
    page.reload()
    page.wait_for_selector(f"{V}.wb[data-ready=true]")
    page.wait_for_function(f"{picture} === {json.dumps(own)}")
    assert page.input_value(f"{V}[data-what=beside]") == ""


def test_a_wide_image_gets_margins_and_a_fast_stroke_has_no_gaps(vision_app: str, open_page: PageOpener) -> None:
    page = visit(open_page, vision_app)
    given = page.get_attribute(f"{V}.wb-card-picture image", "href")
    wide = {"name": "wide.png", "mimeType": "image/png", "buffer": png("red", (60, 20))}
    page.locator(f"{V}.wb-picking input[type=file]").set_input_files(wide)
    page.wait_for_function(
        f"document.querySelector('{V}.wb-card-picture image').getAttribute('href') !== {json.dumps(given)}"
    )
    href = page.get_attribute(f"{V}.wb-card-picture image", "href") or ""
    assert Image.open(io.BytesIO(base64.b64decode(href.partition(",")[2]))).size == (60, 60)
    assert "with margins, because this target needs square images" in page.inner_text(f"{V}.wb-picking")
    page.click(f"{V}[data-value=hide]")
    stroke(page, (1, 2), (6, 2))
    wait_for_text(page, ".wb-stage", "6 patches painted")


def test_an_exported_run_shows_the_tab_without_an_app(open_page: PageOpener, tmp_path: Path) -> None:
    trace = Trace.from_wire(finished_trace(FakeVision(pace=0.0), "specvlm"))
    (tmp_path / "run.html").write_text(replay(trace))
    open_page.allowed.append("asked file:")
    page = open_page(f"file://{tmp_path}/run.html", ready=".wb-vision[data-ready=true]")
    page.locator(".wb-token.is-grounded:has-text('circle')").first.click()
    page.locator(".wb-card-target em", has_text="for “circle”").wait_for()
    assert "16 patches kept, 48 dropped" in page.inner_text(".wb-card-drafter")
    assert page.inner_text("[data-figure=grounded] .wb-value").endswith("%")
    page.evaluate("""() => {
      const note = document.querySelector(".wb-card-target em");
      window.lit = [];
      new MutationObserver(() => window.lit.push(note.textContent)).observe(note, { childList: true, subtree: true });
    }""")
    page.keyboard.press("Home")
    page.click(".wb-scrub [aria-label='Play at the recorded speed']")
    for label in ("❚❚", "▶"):  # it plays, then it has ended
        page.locator(f".wb-scrub [aria-label='Play at the recorded speed']:text-is('{label}')").wait_for()
    words = re.findall(r"\w+", "".join(e.text for r in trace.rounds for e in r.emitted))
    lit = [text.split("“")[1].split("”")[0] for text in page.evaluate("window.lit") if "“" in text]
    assert set(words) <= set(lit), "the patches of every word light up in a playback"
    assert page.evaluate("window.hurt") is None


def test_on_a_phone_results_and_images_come_before_the_panel(vision_app: str, open_page: PageOpener) -> None:
    page = visit(open_page, vision_app, viewport={"width": 390, "height": 844})
    wait_until_drawn(page)
    parts = (".wb-headline", ".wb-card-picture .wb-vis", ".wb-card-ribbon", ".wb-side", ".wb-figures")
    boxes = [page.locator(V + part).first.bounding_box() or {} for part in parts]
    assert [box["y"] for box in boxes] == sorted(box["y"] for box in boxes)
    assert boxes[1]["y"] + boxes[1]["height"] < 844, "the image is in the first screen"


@pytest.mark.parametrize(("width", "scheme"), [(1280, "light"), (390, "dark")])
def test_axe_finds_nothing_serious_and_every_control_is_large_enough(
    vision_app: str, open_page: PageOpener, width: int, scheme: str
) -> None:
    axe = pytest.importorskip("axe_playwright_python.sync_playwright").Axe()
    page = visit(open_page, vision_app, viewport={"width": width, "height": 900}, color_scheme=scheme)
    page.evaluate(f"document.querySelector('{V}.wb-settings').open = true")
    run(page)
    page.locator(f"{V}.wb-ghost.is-rejected").first.click()
    wait_until_drawn(page)
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    for where in (".wb", ".wb-paddialog"):
        if where == ".wb-paddialog":
            page.click(f"{V}[data-value=draw]")
        found = axe.run(page, context=V + where, options={"resultTypes": ["violations"]}).response["violations"]
        grave = [
            (v["id"], n["html"][:160]) for v in found if v["impact"] in ("serious", "critical") for n in v["nodes"]
        ]
        assert grave == []
        small = page.evaluate(f"""['button', 'select', 'input', 'textarea', 'a[href]', 'summary']
          .flatMap((tag) => [...document.querySelectorAll(`{V}{where} ${{tag}}`)])
          .filter((e) => e.checkVisibility())
          .map((e) => [e, (e.labels?.[0] ?? e).getBoundingClientRect(), e.getBoundingClientRect()])
          .filter(([, label, box]) => Math.max(box.height, label.height) < 24 || Math.max(box.width, label.width) < 24)
          .map(([e, , box]) => `${{e.outerHTML.slice(0, 90)}} ${{box.width}}x${{box.height}}`)""")
        assert small == []


# -- The bundled model ------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def image_reading_app(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Run `python app.py` with the bundled vision-language model."""
    folder = models_folder()
    if folder is None or not (folder / "vision-target" / "config.json").is_file():
        pytest.skip("needs the bundled vision-target")
    port, log = free_port(), tmp_path_factory.mktemp("seeing") / "log"
    yield from serve(
        [sys.executable, str(ROOT / "app.py"), "--port", str(port)], port, log, WORKBENCH_MODELS=str(folder)
    )


def test_draw_a_scene_ask_and_paint_over_an_object(image_reading_app: str, open_page: PageOpener) -> None:
    page = visit(open_page, image_reading_app)
    assert page.input_value(f"{V}[data-what=besideDrafter]") == "vision-text-drafter", (
        "as in the recording that is shown"
    )
    page.click(f"{V}[data-value=draw]")
    page.locator(f"{V}.wb-pad").click(position={"x": 70, "y": 70})
    page.click(f"{V}[data-pad=colour] [data-value=blue]")
    page.click(f"{V}[data-pad=tool] [data-value=square]")
    page.locator(f"{V}.wb-pad").click(position={"x": 300, "y": 300})
    page.click(f"{V}.wb-paddialog .wb-go")
    page.fill(f"{V}textarea", "Describe the picture.")
    page.select_option(f"{V}[data-what=beside]", "vlm-text-only")
    run(page)
    caption = page.locator(f"{V}.wb-caption").first.locator(".wb-token")
    text = "".join(caption.all_inner_texts())
    assert text == "".join(page.locator(f"{V}.wb-caption").nth(1).locator(".wb-token").all_inner_texts())
    assert "red" in text
    assert "blue" in text
    assert page.locator(f"{V}.wb-caption").first.locator(".wb-token.is-grounded").count() > 0
    # Run again, and paint over the square before its word is reached.
    step(page, 1)
    page.click(f"{V}[data-value=hide]")
    stroke(page, *[(column, row) for row in (4, 5, 6, 7) for column in (4, 5, 6, 7)])
    page.click(f"{V}[data-press=pause]")
    page.wait_for_function(DONE)
    page.wait_for_function(f"{MARKS}.length >= 1")
    changed = "".join(caption.all_inner_texts())
    assert "red" in changed
    assert "blue" not in changed
