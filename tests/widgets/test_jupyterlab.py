"""Each widget once in a real JupyterLab in a real browser: one Lab, one notebook, one kernel for all tests here."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import subprocess
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from ui.conftest import ROOT, browser, free_port, is_external, models_folder  # noqa: F401  (`browser` is a fixture)

PlaywrightTimeout = pytest.importorskip("playwright.sync_api").TimeoutError
pytest.importorskip("jupyterlab")
pytest.importorskip("anywidget")
pytestmark = [pytest.mark.browser, pytest.mark.slow, pytest.mark.timeout(1800)]

LONG = 180_000
"""Longest wait in milliseconds: a slow shared machine must not fail a test."""
TOKEN = "test"
CELLS = [
    # A thread in the kernel runs files of the notebook's folder, so that tests reach the kernel without the page.
    f"""
import json, sys, threading, time, traceback
from pathlib import Path
sys.path[:0] = [{str(ROOT)!r}, {str(ROOT / "tests")!r}]
def obey():
    n = 0
    while True:
        asked = Path(f"ask-{{n}}.py")
        if not asked.exists():
            time.sleep(0.05)
            continue
        try:
            said = eval(asked.read_text(), globals())
        except Exception:
            said = traceback.format_exc()
        Path("answer.part").write_text(json.dumps(said, default=str))
        Path("answer.part").rename(f"answer-{{n}}.json")
        n += 1
if "listener" not in globals():  # the cell may run twice
    listener = threading.Thread(target=obey, daemon=True)
    listener.start()
""",
    """
from workbench import widgets as w
from workbench.views import recorded_runs
trace, plain = recorded_runs.trace("draft-tree"), recorded_runs.trace("autoregressive")
stage = w.stage(trace, plain); stage
""",
    "text = w.ribbon(trace)\ndrawn = w.tree(trace, 2)\nlinks = w.link(text, drawn)\nw.show(text, drawn)",
    "curves = w.curves(trace); curves",
    "clock = w.lane(trace); clock",
    'lanes = w.lane([trace, plain], ["draft tree", "plain"]); lanes',
    'seeing = w.vision(recorded_runs.trace("specvlm"), recorded_runs.trace("vlm-text-only")); seeing',
    "from traces import make_hostile_trace\nhurtful = w.ribbon(make_hostile_trace()); hurtful",
    """
import plotly.graph_objects as go
w.figure(go.Figure(go.Scatter(x=[1, 2, 3], y=[1, 4, 9]), layout={"title": "Squares"}))
""",
    """
from workbench import Workbench
wb = Workbench(device="cpu")
panel = w.panel(wb, "draft-model", depth=3); panel
""",
    """
run = wb.start("Once upon a time there was a small dragon", "draft-model", max_new_tokens=120, paused=True)
live = w.live(run); live
""",
    "print('all', 'done')",
]
KINDS = ["stage", "tokens", "tree", "curves", "clock", "lanes", "vision", "panel", "live"]


class Lab:
    """A JupyterLab page with the notebook, and access to its kernel."""

    def __init__(self, page: Any, folder: Path) -> None:
        self.page, self.folder, self.asked = page, folder, 0

    def kernel(self, expression: str) -> Any:
        """Return the value of an expression in the kernel."""
        part, n = self.folder / "ask.part", self.asked
        part.write_text(expression)
        part.rename(self.folder / f"ask-{n}.py")
        self.asked += 1
        answer = self.folder / f"answer-{n}.json"
        wait_until(answer.exists, f"the kernel to answer {expression}")
        return json.loads(answer.read_text())

    def see(self, kind: str, part: str = "") -> Any:
        """Return a part of the widget of this kind, scrolled into view."""
        found = self.page.locator(f".wb-widget[data-kind={kind}][data-ready=true]").first
        found.scroll_into_view_if_needed()
        return found.locator(part) if part else found


def wait_until(holds: Callable[[], Any], what: str) -> Any:
    end = time.monotonic() + LONG / 1000
    while not (found := holds()):
        assert time.monotonic() < end, f"waited too long for {what}"
        time.sleep(0.05)
    return found


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, Path]]:
    """Run JupyterLab with its own settings on a folder with the notebook."""
    home = tmp_path_factory.mktemp("lab")
    folder, settings, port = home / "notebooks", home / "settings" / "@jupyterlab", free_port()
    folder.mkdir()
    for name, values in {
        "notebook-extension/tracker": {"windowingMode": "none"},  # outputs out of sight stay in the page
        "apputils-extension/notification": {"fetchNews": "false", "checkForUpdates": False},
    }.items():
        path = settings / f"{name}.jupyterlab-settings"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(values))
    (folder / "widgets.ipynb").write_text(json.dumps(notebook()))
    from workbench.cli.lab import command

    own = {f"JUPYTER_{name}_DIR": str(home / name.lower()) for name in ("CONFIG", "DATA", "RUNTIME")}
    own |= {f"JUPYTERLAB_{name}_DIR": str(home / name.lower()) for name in ("SETTINGS", "WORKSPACES")}
    models = models_folder()
    own |= {"WORKBENCH_MODELS": str(models)} if models else {}
    more = [
        "--allow-root",
        f"--IdentityProvider.token={TOKEN}",
        "--ServerApp.port_retries=0",
        "--expose-app-in-browser",
    ]
    with (home / "log").open("w") as log:
        asked = [*command(folder, "widgets", port, browser=False), *more]
        process = subprocess.Popen(asked, cwd=home, stdout=log, stderr=subprocess.STDOUT, env={**os.environ, **own})
        try:
            url = f"http://127.0.0.1:{port}"
            wait_until(lambda: process.poll() is not None or answers(f"{url}/api"), "JupyterLab to start")
            assert process.poll() is None, (home / "log").read_text()
            yield url, folder
        finally:
            process.terminate()  # its kernels end with it
            process.wait(timeout=60)


def answers(url: str) -> bool:
    try:
        urllib.request.urlopen(url, timeout=5).close()
        return True
    except OSError:
        return False


def notebook() -> dict[str, Any]:
    empty = {"cell_type": "code", "metadata": {}, "outputs": [], "execution_count": None}
    cells = [{**empty, "id": f"cell-{i}", "source": text.strip()} for i, text in enumerate(CELLS)]
    kernel = {"name": "python3", "display_name": "Python 3", "language": "python"}
    return {"nbformat": 4, "nbformat_minor": 5, "metadata": {"kernelspec": kernel}, "cells": cells}


@pytest.fixture(scope="module")
def lab(server: tuple[str, Path], browser: Any) -> Iterator[Lab]:  # noqa: F811
    """Yield the executed notebook. At the end check that no request left this machine and no widget failed.

    Each try has a folder and a kernel of its own, so that a rerun does not meet the outputs of the try that failed.
    """
    url, home = server
    folder = Path(tempfile.mkdtemp(prefix="try-", dir=home))
    shutil.copy(home / "widgets.ipynb", folder)
    context = browser.new_context(viewport={"width": 1500, "height": 1100})
    context.set_default_timeout(LONG)
    page, problems = context.new_page(), []
    page.on("request", lambda r: problems.append(f"asked {r.url}") if is_external(r.url) else None)
    # On a busy machine anywidget takes longer than two seconds; `boot.js` ensures that nothing is lost.
    page.on("pageerror", lambda e: None if "Failed to initialize model" in str(e) else problems.append(str(e)))
    page.goto(f"{url}/lab/tree/{folder.name}/widgets.ipynb?token={TOKEN}")
    page.wait_for_selector(".jp-Notebook-ExecutionIndicator[data-status=idle]")
    page.locator(".jp-NotebookPanel .jp-Cell .jp-InputArea-editor").first.click()
    # Use the command, not the menu: the menu closes if the kernel's state changes while it opens.
    page.wait_for_function("window.jupyterapp.commands.isEnabled('notebook:run-all-cells')")
    # Not `[*]`: JupyterLab shows it for a request that a kernel loses because it is not yet connected.
    executed = page.locator(".jp-InputPrompt", has_text=re.compile(r"\[\d+\]")).first
    end = time.monotonic() + LONG / 1000
    while not executed.is_visible():
        assert time.monotonic() < end, "no cell was executed"
        page.evaluate("() => void window.jupyterapp.commands.execute('notebook:run-all-cells')")
        with contextlib.suppress(PlaywrightTimeout):
            executed.wait_for(timeout=20_000)
    error = page.locator("[data-mime-type='application/vnd.jupyter.error']").first
    page.get_by_text("all done", exact=True).or_(error).first.wait_for()
    assert not error.is_visible(), error.inner_text()  # the cells after a failed one do not run
    yield Lab(page, folder)
    context.close()
    assert not problems


def test_every_widget_is_drawn_and_no_cell_failed(lab: Lab) -> None:
    assert lab.page.locator(".jp-RenderedText[data-mime-type='application/vnd.jupyter.stderr']").all_inner_texts() == []
    assert lab.page.locator("[data-mime-type='application/vnd.jupyter.error']").all_inner_texts() == []
    for kind in KINDS:
        assert lab.see(kind).bounding_box()["height"] > 60, kind
    assert lab.see("stage", ".wb-figure b").first.inner_text().endswith("×"), "compared with the other trace"
    assert lab.see("tokens", ".wb-token").count() == lab.kernel("len(trace.token_ids)")
    assert lab.see("vision", ".wb-vis").count() >= 3
    assert lab.see("lanes", "text").all_text_contents().count("plain") == 1


def test_modules_are_sent_once_and_then_cached(lab: Lab) -> None:
    assert (
        lab.kernel(
            "len([x for x in __import__('ipywidgets').Widget.widgets.values() if type(x).__name__ == 'Sources'])"
        )
        == 2
    )
    asked = lab.page.evaluate("performance.getEntriesByType('resource').map((e) => e.name)")
    assert not [url for url in asked if is_external(url)]


def test_a_click_arrives_in_python_and_in_the_linked_widget(lab: Lab) -> None:
    assert lab.kernel("drawn.selection") == lab.kernel("text.selection") == {"round": 2}
    lab.see("tokens", "[data-round='5'][data-token='1']").click()
    wait_until(lambda: lab.kernel("text.selection").get("round") == 5, "the click")
    assert lab.kernel("text.selection")["token"] == 1
    assert lab.kernel("drawn.selection == text.selection")
    lab.see("tree", ".wb-card-tree h3").get_by_text("round 6").wait_for()


def test_a_token_pinned_in_python_is_shown(lab: Lab) -> None:
    lab.kernel("text.set_trait('selection', {'round': 7, 'token': 0})")
    lab.see("tokens", "[data-round='7'][data-token='0'].is-shown").wait_for()
    lab.see("tree", ".wb-card-tree h3").get_by_text("round 8").wait_for()


def test_another_trace_is_drawn(lab: Lab) -> None:
    lab.kernel("setattr(curves, 'trace', plain)")
    lab.see("curves", ".wb-card-histogram em").get_by_text("n = 56").wait_for()
    lab.see("lanes", "[data-trace='1'][data-round='3']").click(force=True)
    wait_until(lambda: lab.kernel("lanes.selection") == {"trace": 1, "round": 3}, "the click")


def test_a_slider_of_the_panel_arrives_in_python_and_back(lab: Lab) -> None:
    slider = lab.see("panel", "[data-param=depth] input[type=range]")
    slider.focus()
    slider.press("ArrowRight")
    wait_until(lambda: lab.kernel("panel.values['depth']") == 4, "the slider")
    lab.kernel("panel.set_trait('values', {'method': 'draft-tree', 'width': 2})")
    lab.see("panel", "[data-param=width] input[type=number]").wait_for()
    assert lab.see("panel", "[data-param=width] input[type=number]").input_value() == "2"


def test_hostile_texts_are_shown_as_text(lab: Lab) -> None:
    assert lab.page.evaluate("window.hurt === undefined")
    assert lab.page.locator(".wb-widget img[src=x]").count() == 0


def test_a_figure_of_plotly_is_drawn_without_a_network(lab: Lab) -> None:
    drawn = lab.page.locator(".jp-RenderedPlotly .plot-container").first
    drawn.scroll_into_view_if_needed()
    drawn.get_by_text("Squares").wait_for()


def test_widgets_follow_jupyters_theme(lab: Lab) -> None:
    dark = ".wb-widget[data-kind=tokens].dark"
    assert lab.page.locator(dark).count() == 0
    lab.page.evaluate("document.body.dataset.jpThemeLight = 'false'")  # as Lab does when another theme is selected
    lab.page.wait_for_selector(dark, state="attached")
    lab.page.evaluate("document.body.dataset.jpThemeLight = 'true'")
    lab.page.wait_for_selector(dark, state="detached")


@pytest.mark.skipif(models_folder() is None, reason="no bundled models")
def test_a_run_is_stepped_changed_and_stopped_from_the_notebook(lab: Lab) -> None:
    live, rounds = lab.see("live"), lambda: lab.kernel("len(run.trace.rounds) if run.trace else 0")
    wait_until(lambda: lab.kernel("run.state") == "paused", "the models")
    live.locator("[data-press=step]:enabled").click()
    live.locator(".wb-token").first.wait_for()
    wait_until(lambda: rounds() == 1 and lab.kernel("run.state") == "paused", "one round")
    slider = live.locator("[data-param=depth] input[type=range]")
    slider.focus()
    slider.press("ArrowRight")
    wait_until(lambda: lab.kernel("'depth=5' in repr(run.planned)"), "the slider")
    live.locator("[data-press=step]:enabled").click()
    wait_until(lambda: rounds() == 2, "another round")
    assert lab.kernel("run.trace.rounds[1].params['depth']") == 5
    live.locator(".wb-token[data-round='0']").first.click()
    wait_until(lambda: lab.kernel("live.selection").get("round") == 0, "the click")
    live.locator("[data-press=stop]:enabled").click()
    wait_until(lambda: lab.kernel("run.state") == "cancelled", "the end")
    live.locator(".wb-card-ribbon em").get_by_text("cancelled").wait_for()
