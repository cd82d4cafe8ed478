"""Addresses of saved runs: `/r/ID` reopens one, `/r/ONE+OTHER` compares two."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from starlette.responses import JSONResponse
from starlette.testclient import TestClient
from ui.conftest import PageOpener
from ui.test_page import short, state, wait_for_text

from workbench.core.errors import WorkbenchError
from workbench.trace.metrics import summary
from workbench.trace.store import RunStore
from workbench.ui import LAUNCH, pair
from workbench.ui.addresses import BASE, Addresses, rewrite_run_path
from workbench.ui.saved_runs import SavedRunsView
from workbench.views import recorded_runs

RUN = "20261122-180000-0a1b2c3d"


def in_browser(test: Any) -> Any:
    """Mark a test that needs chromium."""
    return pytest.mark.browser(pytest.mark.slow(test))


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RunStore:
    monkeypatch.setenv("WORKBENCH_RUNS", str(tmp_path / "runs"))
    return RunStore()


# -- Routing ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("path", "root", "page"),
    [
        (f"/r/{RUN}", "", "/"),
        (f"/r/{RUN}+{RUN}", "", "/"),
        ("/r/<script>", "", "/"),
        (f"/app/r/{RUN}", "/app", "/app/"),
        (f"/r/{RUN}", "/app", "/"),  # a proxy that removes its prefix
        ("/r", "", "/r"),
        ("/r/", "", "/r/"),
        (f"/r/{RUN}/", "", f"/r/{RUN}/"),
        ("/r/../gradio_api/info", "", "/r/../gradio_api/info"),
        ("/r/x/y", "", "/r/x/y"),
        ("/gradio_api/r/x", "", "/gradio_api/r/x"),
    ],
)
def test_only_addresses_of_runs_are_rewritten_to_the_page(path: str, root: str, page: str) -> None:
    scope = rewrite_run_path({"type": "http", "path": path, "root_path": root})
    assert scope["path"] == page
    assert (BASE in scope) == (page != path), "rewritten paths set the page's base"


def test_only_get_and_head_requests_are_rewritten() -> None:
    seen: list[Any] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        seen.append(scope["path"])

    for method in ("GET", "HEAD", "POST"):
        asyncio.run(Addresses(app)({"type": "http", "method": method, "path": f"/r/{RUN}"}, None, None))
    assert seen == ["/", "/", f"/r/{RUN}"]
    kinds = [middleware.cls for middleware in LAUNCH["app_kwargs"]["middleware"]]
    assert kinds.index(Addresses) == 0, "later middleware gets the rewritten path"


@pytest.mark.parametrize("path", ["/nowhere", "/app/<b>", "/r/", "/gallery/x"])
def test_an_unknown_address_returns_a_page_to_browsers_and_json_to_programs(path: str) -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        answer = JSONResponse({"detail": "Not Found"}, 404) if scope["path"] == path else JSONResponse({})
        await answer(scope, receive, send)

    client = TestClient(Addresses(app))
    page = client.get(path, headers={"accept": "text/html,application/xhtml+xml,*/*;q=0.8"})
    assert (page.status_code, page.headers["content-type"]) == (404, "text/html; charset=utf-8")
    assert "There is no page at this address." in page.text
    assert '<a href="/gallery">' in page.text
    assert client.head(path, headers={"accept": "text/html"}).content == b""
    assert client.get(path, headers={"accept": "*/*"}).json() == {"detail": "Not Found"}
    assert client.get("/there", headers={"accept": "text/html"}).json() == {}, "existing routes are not changed"


# -- Opening a run ----------------------------------------------------------------------------------------------------


def test_a_run_opens_by_its_id_in_any_later_process(store: RunStore) -> None:
    trace = recorded_runs.trace("switch")
    made = store.save(trace)
    found = pair.load_run(SavedRunsView(allowed=True), {"name": made})
    assert found["trace"] == trace.to_wire(), "the rounds are included, not only the settings"
    assert found["figures"] == {name: summary(trace)[name] for name in pair.FIGURES}
    assert found["definitions"]["tau"][1]
    assert pair.load_run(SavedRunsView(allowed=True), {"name": "draft-tree"})["trace"] == recorded_runs.load(
        "draft-tree"
    )


def test_a_missing_run_is_named_and_a_public_app_reports_that_it_saves_none(store: RunStore) -> None:
    made = store.save(recorded_runs.trace("switch"))
    with pytest.raises(WorkbenchError, match="A public app does not save runs"):
        pair.load_run(SavedRunsView(), {"name": made})
    store.delete(made)
    with pytest.raises(WorkbenchError, match=f"No run {made} is saved on this machine"):
        pair.load_run(SavedRunsView(allowed=True), {"name": made})


@pytest.mark.parametrize("name", ["../../etc/passwd", f"../runs/{RUN}", "", None, 3, "x" * 300, f"{RUN}\n", "a\0b"])
def test_hostile_names_open_nothing(store: RunStore, name: Any) -> None:
    for kept in (SavedRunsView(), SavedRunsView(allowed=True)):
        with pytest.raises(WorkbenchError):
            pair.load_run(kept, {"name": name})


# -- In the browser ---------------------------------------------------------------------------------------------------

TEXT = "[...document.querySelectorAll('#wb-page .wb-ribbon .wb-token')].map((e) => e.textContent).join('')"


def keep(page: Any) -> str:
    """Run, save, and return the id in the address bar."""
    page.click("[data-press=run]")
    state(page, "finished")
    page.get_by_role("button", name="export ▾").click()
    page.get_by_role("button", name="Keep").click()
    page.wait_for_url("**/r/2*")
    return page.url.partition("/r/")[2].partition("?")[0]


@in_browser
def test_a_saved_run_has_an_address_and_two_runs_share_one(fake_app: str, open_page: PageOpener) -> None:
    page = open_page(fake_app)
    short(page, 24)
    page.locator("[data-what=method]").select_option("draft-tree")
    one = keep(page)
    text = page.evaluate(TEXT)
    page.get_by_label("Seed").fill("5")
    page.keyboard.press("Tab")
    other = keep(page)
    assert one != other
    # the run itself, at a selected token, in another browser
    again = open_page(f"{fake_app}/r/{one}?round=2&token=0")
    again.wait_for_function(f"text => {TEXT} === text", arg=text)
    wait_for_text(again, ".wb-card-tree h3", "round 2")
    wait_for_text(again, ".wb-badge", "RECORDED")
    assert again.locator("[data-what=method]").input_value() == "draft-tree", "with its settings"
    again.click(".wb-round[data-round='0'] .wb-token")
    again.wait_for_url(f"**/r/{one}?round=1&token=0*")
    again.get_by_role("navigation", name="Pages").first.get_by_text("Compare").click()
    again.wait_for_url(f"{fake_app}/?tab=compare")
    again.go_back()
    again.wait_for_url(f"**/r/{one}?round=1*")
    # the gallery pins one run to compare it with the other
    page.goto(f"{fake_app}/gallery#kept")
    page.get_by_role("button", name=f"Pin {one}").click()
    page.get_by_role("link", name=f"Compare with {one}").first.click()
    page.wait_for_url(f"**/r/{one}+*")
    page.wait_for_selector("#wb-pair .wb[data-drawn=true]")
    pick = "[...document.querySelectorAll('#wb-pair .wb-pairtext')].map((e) => [...e.querySelectorAll('.wb-token')]"
    pick += ".findIndex((t) => t.classList.contains('is-shown'))).join()"
    page.locator("#wb-pair .wb-pairtext").nth(1).locator(".wb-token").nth(7).click()
    page.wait_for_function(f"{pick} === '7,7'")
    assert "side=2" in page.url
    page.keyboard.press("ArrowLeft")
    page.locator("#wb-pair .wb-pairtext").nth(1).press("ArrowLeft")
    page.wait_for_function(f"{pick} === '6,6' || {pick} === '5,5'")
    seen = page.inner_text("#wb-pair")
    assert "seed" in seen
    assert "settings are the same" in seen
    assert page.locator("#wb-pair .wb-lanebox.is-shown").count() == 2
    link = page.url
    page.reload()
    page.wait_for_selector("#wb-pair .wb[data-drawn=true]")
    assert page.url == link
    # unknown and hostile names have a clear page
    for run in (one, other):
        page.goto(f"{fake_app}/gallery#kept")
        page.get_by_role("button", name=f"Delete {run}").click()
        page.get_by_role("button", name=f"Delete {run}").click()
        page.wait_for_function(f"!document.body.textContent.includes('{run}')")
    page.goto(f"{fake_app}/r/{one}")
    wait_for_text(page, ".wb-alert.is-error", f"No run {one} is saved on this machine")
    page.goto(f"{fake_app}/r/{one}+%3Cimg%20src=x%3E")
    page.locator("#wb-pair .wb-alert:has-text('<img src=x>')").wait_for()
    assert page.locator("#wb-pair img").count() == 0
