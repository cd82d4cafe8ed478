"""Gallery, Methods and Learn in a browser: complete, correct layout at every width, no serious axe findings."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, urlsplit

import pytest
from traces import HOSTILE, make_hostile_trace
from ui.conftest import PageOpener

from workbench.bench.measured_speeds import measured_speeds
from workbench.decoders.declarations import DRAFTERS
from workbench.methods import registry
from workbench.methods.method_info import MethodInfo
from workbench.trace import export, metrics
from workbench.trace.metrics import DEFINITIONS
from workbench.ui import gallery, learn, methods_page, verifiers
from workbench.ui.saved_runs import SavedRunsView, without_unused_drafter
from workbench.views import recorded_runs, tour


def in_browser(test: Any) -> Any:
    """Mark a test that needs chromium."""
    return pytest.mark.browser(pytest.mark.slow(test))


# -- Content of the pages ---------------------------------------------------------------------------------------------


def test_each_method_has_an_idea_of_two_to_five_sentences_and_a_rule() -> None:
    for card in methods_page.catalogue():
        sentences = [s for s in re.split(r"(?<=[a-z.0-9])\. ", card["idea"].rstrip(".")) if s]
        assert 2 <= len(sentences) <= 5, card["name"]
        assert card["formula"], card["name"]
        assert card["source"]["url"].startswith("https://"), card["name"]


def test_a_method_without_description_uses_its_drafters_docstring() -> None:
    import dataclasses

    method = registry.get("prompt-lookup")
    idea = MethodInfo.of(dataclasses.replace(method, idea="")).idea
    first_paragraph = (type(method.drafter).__doc__ or "").split("\n\n")[0]
    assert idea.split() == first_paragraph.split() != []


class TwoTargets:
    """A client with a target on which one method cannot run."""

    def targets(self) -> list[dict[str, Any]]:
        return [{"name": "a"}, {"name": "b"}]

    def drafters(self, target: str) -> list[dict[str, Any]]:
        return [{"name": "small", "available": target == "a"}]

    def methods(self, target: str, drafter: str) -> list[dict[str, Any]]:
        missing = "" if drafter == "small" else f"No draft model is chosen for {target}."
        plain = {"name": "plain", "title": "Plain", "available": True, "reason": ""}
        return [plain, {"name": "draft", "title": "Draft", "available": not missing, "reason": missing}]


def test_the_matrix_shows_the_reason_instead_of_a_tick() -> None:
    found = methods_page.compatibility(TwoTargets())
    assert [(c["target"], c["drafter"]) for c in found["columns"]] == [("a", "small"), ("a", None), ("b", None)]
    assert [row["reasons"] for row in found["rows"]] == [
        ["", "", ""],
        ["", "No draft model is chosen for a.", "No draft model is chosen for b."],
    ]


def test_the_gallery_names_a_draft_model_only_for_methods_that_use_it() -> None:
    shown = {entry["name"]: without_unused_drafter(entry) for entry in recorded_runs.index()}
    assert any(
        trace.header.drafter for trace in map(recorded_runs.trace, shown) if trace.header.method == "prompt-lookup"
    )
    for entry in shown.values():
        needs = [need for name in entry["methods"] for need in registry.get(name).needs]
        assert (entry["drafter"] is not None) is bool(DRAFTERS & set(needs)), entry["name"]
    foreign = {"method": "my-own", "methods": ["my-own"], "drafter": "small"}
    assert without_unused_drafter(foreign) == foreign


def test_the_tour_leaves_out_steps_without_recording(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert [step["name"] for step in learn.tour_steps()] == list(tour.STEPS)
    json.dumps(learn.tour_steps())
    monkeypatch.setenv("WORKBENCH_RECORDED", str(tmp_path))
    assert learn.tour_steps() == []
    recorded_runs.write(tmp_path / f"oracle{recorded_runs.SUFFIX}", made_before := recorded_runs.read(ORACLE))
    assert [step["name"] for step in learn.tour_steps()] == ["what-it-buys"]
    assert made_before.header.simulation


ORACLE = recorded_runs.folder() / f"oracle{recorded_runs.SUFFIX}"


# -- In the browser ---------------------------------------------------------------------------------------------------


def serious(page: Any, within: str = ".wb") -> list[str]:
    """Return axe's serious findings in a part of a page. A scan of all of /methods takes four seconds."""
    from axe_playwright_python.sync_playwright import Axe

    found = Axe().run(page, context=within, options={"resultTypes": ["violations"]}).response["violations"]
    return [
        f"{v['id']}: {n['target']} {n['failureSummary'][:200]}"
        for v in found
        if v["impact"] in ("serious", "critical")
        for n in v["nodes"]
    ]


@pytest.mark.smoke
@in_browser
@pytest.mark.parametrize(("width", "scheme"), [pytest.param(1280, "light", marks=pytest.mark.on_demand), (390, "dark")])
def test_every_page_at_every_width(fake_app: str, open_page: PageOpener, width: int, scheme: str) -> None:
    for path in ("gallery", "methods", "learn", "verifiers"):
        page = open_page(f"{fake_app}/{path}", viewport={"width": width, "height": 900}, color_scheme=scheme)
        if path == "methods":
            page.wait_for_selector(".wb[data-drawn=true]")
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth"), f"{path} scrolls sideways"
        assert page.locator("h1:visible").count() == 1
        assert page.title().endswith("Speculative Decoding Workbench")
        assert serious(page) == [], path
        page.context.close()


@in_browser
def test_no_page_is_out_of_reach_at_1024_pixels(fake_app: str, open_page: PageOpener) -> None:
    page = open_page(fake_app, viewport={"width": 1024, "height": 768})
    for tab in ("Compare", "Sweep"):
        page.get_by_role("link", name=tab, exact=True).first.click()
        page.wait_for_selector(f"#wb-{tab.lower()} .wb-nav a")
        for width in (1024, 910, 1200):
            page.set_viewport_size({"width": width, "height": 768})
            last = page.locator(f"#wb-{tab.lower()} .wb-nav a").last.bounding_box() or {}
            assert last["x"] + last["width"] <= width, f"{tab} at {width}"
            cut = f"(() => {{ const nav = document.querySelector('#wb-{tab.lower()} .wb-nav'); "
            assert not page.evaluate(cut + "return nav.scrollWidth > nav.clientWidth + 1; })()"), f"{tab} at {width}"
            assert page.evaluate("document.documentElement.scrollWidth <= innerWidth"), f"{tab} at {width}"


@in_browser
def test_the_gallery_shows_every_recording_and_opens_forks_and_saves(
    fake_app: str, open_page: PageOpener, tmp_path: Path
) -> None:
    page = open_page(f"{fake_app}/gallery")
    assert page.locator(".wb-runcard h2").all_inner_texts() == recorded_runs.names()
    card = page.locator(".wb-runcard", has_text="draft-tree-sampled")
    trace = recorded_runs.trace("draft-tree-sampled")
    assert f"{metrics.tau(trace.rounds):.2f}" in card.inner_text()
    assert "RECORDED" in card.inner_text()
    assert page.locator(".wb-runcard", has_text="oracle").locator(".is-simulation").count() == 1
    with page.expect_download() as download:
        card.get_by_role("button", name="Download").click()
    download.value.save_as(tmp_path / "saved.jsonl")
    assert export.read((tmp_path / "saved.jsonl").read_bytes()) == trace
    fork = card.get_by_role("link", name="Fork").get_attribute("href")
    assert "method=draft-tree-sampled" in fork
    assert "temperature=0.8" in fork
    card.get_by_role("link", name="Open").click()
    page.wait_for_selector(".wb[data-ready=true] .wb-token")
    assert "RECORDED" in page.inner_text(".wb-head")


@in_browser
def test_the_methods_page_shows_all_the_registry_has(fake_app: str, open_page: PageOpener) -> None:
    page = open_page(f"{fake_app}/methods")
    page.wait_for_selector(".wb[data-drawn=true]")
    assert page.locator(".wb-method").count() == len(registry.names())
    for method in registry.methods():
        card = page.locator(f"[data-method='{method.name}']")
        card.locator("summary").first.click()
        card.locator("figure svg").wait_for()
        text = card.text_content()
        assert all(part in text for part in (method.title, method.idea, method.formula, method.promise.value))
        assert card.locator(".wb-params tbody tr").count() == len(method.params)
        drawn = card.locator("figure svg .wb-node").count()
        assert drawn > (method.is_speculative), "a drawing of the method's draft, or of the text without one"
        link = card.get_by_role("link", name=f"Run {method.title}").get_attribute("href")
        wanted = {"tab": "vision"} if "pictures" in method.needs else {"run": "new"}
        assert dict(parse_qsl(urlsplit(link).query)).items() >= {"method": method.name, **wanted}.items()
    for title, meaning in DEFINITIONS.values():
        assert title in (page.text_content("#figures") or "")
        assert meaning in (page.text_content("#figures") or "")
    assert page.locator(".wb-matrix tbody tr").count() > 0


def press(page: Any, selector: str) -> None:
    """Click an element that may be outside the visible part of its scroll area."""
    page.locator(selector).first.dispatch_event("click")


@in_browser
def test_the_tour_is_completed_by_its_actions(fake_app: str, open_page: PageOpener) -> None:
    page = open_page(f"{fake_app}/learn")
    names = list(tour.STEPS)
    done = ".wb-steps [data-done=true]"
    page.click(".wb-question .wb-button >> nth=0")
    page.wait_for_selector(".wb-why")
    press(page, ".wb-lesson .wb-round[data-round='0']")
    page.wait_for_timeout(300)
    assert page.locator(done).count() == 0, (
        "selecting a round does not complete the step, which asks for a rejected draft"
    )
    for i, name in enumerate(names):
        make, needed = tour.STEPS[name]
        step = make(*map(recorded_runs.trace, needed))
        page.wait_for_selector(f".wb-lessonhead h2:has-text('{i + 1}. ')")
        assert step.see.split(":")[0] in page.inner_text(".wb-lessontext")
        if step.dials:
            page.locator("#wb-dial-a").fill("0.8")
            page.locator("#wb-dial-k").fill("12")
            assert page.locator(done).count() == i, "still faster than plain decoding"
            page.locator("#wb-dial-c").fill("1")
        elif step.rounds and "lane" in step.cards:
            # Move to the slowest round in either direction by keyboard: the lane is a drawing without buttons.
            for way in ["Next round"] * 60 + ["Previous round"] * 120:
                if page.locator(done).count() > i:
                    break
                page.click(f".wb-lesson button[aria-label='{way}']")
        elif step.rounds:
            press(page, f".wb-lesson .wb-round[data-round='{step.rounds[0]}']")
        else:
            r, node = step.places[0]
            press(page, f".wb-lesson .wb-round[data-round='{r}']")
            page.wait_for_selector(f".wb-card-tree h3:has-text('round {r + 1}')")
            press(page, f".wb-card-tree .wb-node[data-node='{node}']")
        page.wait_for_function(f"document.querySelectorAll('{done}').length === {i + 1}")
        assert "Done" in page.inner_text(".wb-task")
        if i + 1 < len(names):
            page.click("text=Next step")
    page.reload()
    page.wait_for_selector(".wb[data-ready=true]")
    assert page.locator(done).count() == len(names), "remembered"
    page.click("text=Start over")
    page.wait_for_function(f"document.querySelectorAll('{done}').length === 0")


@in_browser
def test_hostile_names_and_texts_stay_text_on_every_page(fake_app: str, open_page: PageOpener) -> None:
    """Each page is drawn a second time with a backend whose texts are all hostile."""
    trace = make_hostile_trace()
    entry = recorded_runs.describe(HOSTILE[0], trace)
    source = {"title": HOSTILE[0], "authors": HOSTILE[1], "year": 1, "url": "javascript:window.hurt=1", "where": ""}
    words = {"name": HOSTILE[0] + HOSTILE[4], "title": HOSTILE[1], "idea": HOSTILE[0], "formula": HOSTILE[1]}
    card = methods_page.catalogue()[1] | words | {"source": source}
    matrix = {"columns": [{"target": HOSTILE[0], "drafter": HOSTILE[1]}], "rows": []}
    matrix["rows"] = [{"name": "x", "title": HOSTILE[0], "reasons": [HOSTILE[1]]}]
    step = tour.to_wire("round", tour.read_a_round(recorded_runs.trace("draft-model")))
    answers = {
        "recordings": [entry], "recording": trace.to_wire(), "matrix": matrix,
        "methods": {"methods": [card], "definitions": [], "recordings": [words["name"]]},
        "steps": [step | {"title": HOSTILE[0], "see": HOSTILE[1], "choices": HOSTILE[:3], "recording": HOSTILE[0]}],
    }  # fmt: skip
    for path, module in (("gallery", "gallery"), ("methods", "methodcards"), ("learn", "learn")):
        page = open_page(f"{fake_app}/{path}")
        text = page.evaluate(DRAWN_WITH, [module, answers])
        assert HOSTILE[0] in text, module
        page.wait_for_timeout(300)
        assert page.evaluate("window.hurt ?? null") is None, module
        assert page.locator(".wb img, .wb script, .wb iframe, a[href^=javascript]").count() == 0, module
        page.context.close()


DRAWN_WITH = """async ([module, answers]) => {
  const asked = performance.getEntriesByType("resource").find((r) => r.name.endsWith(`/bundle/${module}.js`));
  const { mount } = await import(asked.name);
  const el = document.body.appendChild(Object.assign(document.createElement("div"), { className: "wb wb-page" }));
  await mount(el, { host: { base: "", call: async (name) => answers[name], theme() {} } });
  for (const each of el.querySelectorAll("details")) each.open = true;
  await new Promise((done) => setTimeout(done, 200));
  return el.textContent;
}"""


def test_pages_use_the_client_only_to_ask_which_methods_run() -> None:
    """Gallery and tour work before the backend starts: their `add` does not use the client."""
    import gradio as gr

    with gr.Blocks() as demo:
        gr.HTML("main")
    gallery.add(demo, SavedRunsView())
    learn.add(demo)
    methods_page.add(demo, None)
    verifiers.add(demo)
    assert [page[0] for page in demo.pages] == ["", "gallery", "learn", "methods", "verifiers"]


@in_browser
def test_each_page_has_one_skip_link_past_its_header(fake_app: str, open_page: PageOpener) -> None:
    page = open_page(fake_app)
    for path in (
        "gallery",
        "methods",
        "learn",
        "verifiers",
        "?tab=compare",
        "?tab=sweep",
        "?tab=lab",
        "?tab=vision",
        "",
    ):
        page.goto(f"{fake_app}/{path}")
        skip = page.locator(".wb:visible .wb-skip")
        skip.first.wait_for(state="attached")
        assert skip.count() == 1, path
        skip.focus()
        page.keyboard.press("Enter")
        assert page.evaluate("document.activeElement.matches('.wb-stage, .wb-pagemain')"), path


def test_the_map_has_only_measured_speeds_and_every_method() -> None:
    found = methods_page.measured({})
    assert {method["name"] for method in found["methods"]} == set(registry.names())
    assert {method["group"] for method in found["methods"]} <= {name for name, _ in found["groups"]}
    for target in found["targets"]:
        assert target["speeds"] == {name: each.to_wire() for name, each in measured_speeds(target["name"]).items()}
    assert found["targets"][0]["name"] == "text-target"
    parts = {method["name"]: method["part"] for method in found["methods"]}
    assert (parts["eagle-3"], parts["draft-model"], parts["prompt-lookup"]) == ("head", "draft model", "nothing")
    json.dumps(found)


@in_browser
def test_the_map_is_filtered_by_its_switches_and_opens_a_method_by_keyboard(
    fake_app: str, open_page: PageOpener
) -> None:
    page = open_page(f"{fake_app}/methods")
    page.wait_for_selector(".wb-map .wb-dot")
    speeds = measured_speeds("text-target")
    assert page.locator(".wb-map .wb-dot").count() == len(speeds)
    page.click(".wb-mapkey:has-text('Trained heads')")
    faint = page.locator(".wb-map .wb-dot.is-faint")
    heads = {m["name"] for m in methods_page.catalogue() if m["group"] == "Trained heads"}
    assert faint.count() == len(heads & set(speeds))
    assert page.locator(".wb-method:visible").count() == len(registry.names()) - len(heads)
    page.click(".wb-mapkey:has-text('Trained heads')")
    page.click(".wb-maptargets button:has-text('smollm2')")
    assert page.locator(".wb-map .wb-dot").count() == len(measured_speeds("smollm2"))
    page.locator(".wb-map .wb-dot[tabindex='0']").focus()
    page.keyboard.press("ArrowRight")
    name = page.evaluate("document.activeElement.dataset.dot")
    assert page.locator(".wb-mapcard").get_attribute("data-method") == name
    page.keyboard.press("Enter")
    assert page.locator(f"[data-method='{name}'].wb-method details").first.get_attribute("open") is not None
    assert page.url.endswith(f"#{name}")


@in_browser
def test_on_a_phone_the_pages_are_in_a_menu(fake_app: str, open_page: PageOpener) -> None:
    page = open_page(f"{fake_app}/gallery", viewport={"width": 390, "height": 800})
    link, menu = page.locator(".wb-nav a").last, page.locator(".wb-navmenu")
    assert not link.is_visible()
    assert menu.get_attribute("aria-expanded") == "false"
    menu.click()
    assert page.locator(".wb-nav a:visible").count() == page.locator(".wb-nav a").count()
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    page.locator(".wb-nav a").first.focus()
    page.keyboard.press("Escape")
    assert not link.is_visible()
    page.set_viewport_size({"width": 1024, "height": 800})
    assert link.is_visible()
    assert not menu.is_visible()
