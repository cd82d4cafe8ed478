"""Files of the pages are served by name; no page reveals their folder."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import httpx
import pytest
from starlette.applications import Starlette
from starlette.responses import PlainTextResponse
from starlette.routing import Route
from ui.fake_client import FakeWorkbench

from workbench.ui import build
from workbench.ui.files import PLOTLY, Files, bundle, files
from workbench.ui.session import Session
from workbench.views import modules, recorded_runs, replay

ROOT = Path(__file__).resolve().parents[2]


def ask(path: str, verb: str = "GET", **scope: Any) -> httpx.Response:
    other = Route("/{path:path}", lambda _: PlainTextResponse("the page"), methods=["GET", "POST"])

    async def once() -> httpx.Response:
        transport = httpx.ASGITransport(Files(Starlette(routes=[other])), **scope)
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as http:
            return await http.request(verb, httpx.URL("http://localhost").copy_with(raw_path=path.encode()))

    return asyncio.run(once())


@pytest.mark.parametrize(("name", "kind"), [("js/live/page.js", "text/javascript"), ("stage.css", "text/css"),
                                            (PLOTLY, "text/javascript")])  # fmt: skip
def test_a_file_is_served_under_its_name_below_any_path(name: str, kind: str) -> None:
    answer = ask(f"/workbench/{name}")
    content = files()[name].read_bytes()
    if name.startswith("js/"):
        content = modules.delivered_text("live/page").encode()
    assert (answer.content, answer.headers["content-type"].partition(";")[0]) == (content, kind)
    assert ask(f"/workbench/{modules.fingerprint()}/{name}").content == answer.content
    assert ask(f"/app/workbench/{name}", root_path="/app").content == answer.content
    assert ask(f"/workbench/{name}", "HEAD").headers["content-length"] == str(len(answer.content))
    assert ask(f"/workbench/{name}", "POST").text == "the page"


@pytest.mark.parametrize("name", ["", "js", "js/", "js/live/view.test.js", "host.js", "/etc/passwd",
                                  "js/..%2f..%2fui%2fhost.js", str(ROOT / "workbench/views/stage.css")])  # fmt: skip
def test_an_unknown_file_name_is_not_used_as_a_path(name: str) -> None:
    assert ask(f"/workbench/{name}").status_code == 404


def test_a_module_of_another_version_is_not_found() -> None:
    """Modules import each other, and modules of two versions do not work together."""
    answer = ask("/workbench/000000000000/js/live/page.js")
    assert answer.status_code == 404
    assert "reload the page" in answer.text


@pytest.mark.parametrize("view", modules.ENTRIES)
def test_a_page_and_all_that_it_imports_are_one_file(view: str) -> None:
    name = bundle(view)
    answer = ask(f"/workbench/{modules.fingerprint()}/{name}")
    assert answer.text == modules.inline_modules(modules.ENTRIES[view])
    assert "export const mount = " in answer.text
    assert "immutable" in answer.headers["cache-control"]
    assert "cache-control" not in ask(f"/workbench/{name}").headers, "an address without a version can change"


@pytest.mark.parametrize("view", ["live", "vision"])
def test_the_modules_of_a_replay_are_one_file(view: str) -> None:
    assert ask(f"/workbench/{modules.fingerprint()}/replay/{view}.json").json() == replay.sources(view)


def test_no_page_and_no_answer_reveals_the_folder() -> None:
    demo = build(FakeWorkbench())
    page_text = json.dumps(demo.get_config_file(), default=str)
    page_text += json.dumps(Session(FakeWorkbench()).whatif({"trace": recorded_runs.load("draft-model")}), default=str)
    assert "bundle/live.js" in page_text
    assert str(ROOT) not in page_text
    assert "site-packages" not in page_text
