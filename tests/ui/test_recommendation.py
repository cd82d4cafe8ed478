"""Recommend a method: calls of the client, refusals with a message, and the page in a browser."""

from __future__ import annotations

import asyncio
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from ui.conftest import PageOpener
from ui.fake_client import FakeWorkbench
from ui.test_pages import in_browser, serious

from workbench.bench.prompts import BenchPrompt
from workbench.core.errors import PromptError
from workbench.ui.recommendation import MAX_CHARS, RecommendationView
from workbench.ui.saved_runs import SavedRunsView


class RecordingClient(FakeWorkbench):
    """Records the requested measurements."""

    def stream_recommendation(self, prompts: Any, **options: Any) -> Any:
        self.prompts, self.options = prompts, options
        return super().stream_recommendation(prompts, **options)


def collect_messages(view: RecommendationView, mine: bool = True, **request: Any) -> list[dict[str, Any]]:
    async def collect() -> list[dict[str, Any]]:
        return [message async for message in view.decode({"channel": "c", **request}, is_from_user=mine)]

    return asyncio.run(collect())


@pytest.fixture
def client() -> RecordingClient:
    return RecordingClient(pace=0.0)


@pytest.fixture
def view(client: RecordingClient) -> RecommendationView:
    return RecommendationView(client, SavedRunsView(True))


def test_lines_are_messages_and_json_lines_are_prompts(view: RecommendationView, client: RecordingClient) -> None:
    messages = collect_messages(view, text=" Why?\n\nTell me a story.\n", seconds=20)
    assert client.prompts == [
        BenchPrompt("line 1", "Why?", chat=True),
        BenchPrompt("line 3", "Tell me a story.", chat=True),
    ]
    assert client.options["seconds"] == 20
    assert client.options["target"] == "synthetic-target"
    assert messages[0] == {"channel": "c", "job": messages[0]["job"]}
    last = messages[-1]["advice"]
    assert last["last"]
    assert last["found"]["best"] == "draft-tree"
    assert any(m["advice"]["waiting"] for m in messages[1:])
    collect_messages(view, text='{"prompt": "def f():", "name": "mine"}')
    assert client.prompts == [BenchPrompt("mine", "def f():")]


@pytest.mark.parametrize(
    ("request_", "says"),
    [
        ({"text": " \n"}, "There is no prompt."),
        ({"text": "a\0b"}, "This file is not text."),
        ({"text": 3}, "This file is not text."),
        ({"text": "a" * (MAX_CHARS + 1)}, "200,001 characters"),
        ({"text": '{"prompt": 3}'}, "Line 1 of the text"),
        ({"text": "too long"}, "prompt 1: it has 9,000 tokens"),
        ({"text": "a", "seconds": 1}, "seconds"),
        ({"text": "a", "target": "../etc"}, "not the name of a model"),
    ],
)
def test_invalid_requests_are_refused_and_nothing_is_measured(
    view: RecommendationView, request_: dict[str, Any], says: str
) -> None:
    messages = collect_messages(view, **request_)
    assert says in messages[-1]["error"]["message"]
    assert messages[-1]["error"]["remedy"]
    assert not any("advice" in message and message["advice"]["found"] for message in messages)


def test_the_last_runs_are_only_for_this_machines_user(
    view: RecommendationView, client: RecordingClient, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WORKBENCH_RUNS", str(tmp_path))
    assert "no saved run of synthetic-target" in collect_messages(view, last=3)[-1]["error"]["message"]
    run = client.start("Once", max_new_tokens=3)
    run.wait()
    assert run.trace is not None
    kept = SavedRunsView(True).keep({"trace": run.trace.to_wire()})["id"]
    monkeypatch.setattr("workbench.bench.recommend.saved_run_prompts", lambda target, last: [_Run(kept, [1, 2])])
    collect_messages(view, last=3)
    assert client.prompts == [(kept, [1, 2])]
    assert "user of this machine" in collect_messages(view, mine=False, last=3)[-1]["error"]["message"]
    public = RecommendationView(client, SavedRunsView(False))
    assert not public.asking({})["keeps"]
    assert "does not save runs" in collect_messages(public, last=3)[-1]["error"]["message"]


class _Run:
    def __init__(self, name: str, ids: list[int]) -> None:
        self.name, self.ids = name, ids


def test_a_stop_returns_the_measurements_so_far(client: RecordingClient) -> None:
    client.pace = 0.02
    view = RecommendationView(client, SavedRunsView())

    async def stopped() -> dict[str, Any]:
        last: dict[str, Any] = {}
        async for message in view.decode({"channel": "c", "text": "Why?"}):
            last = message
            if message.get("advice", {}).get("done") == 4:
                view.stop({"job": message["job"]})
        return last

    advice = asyncio.run(stopped())["advice"]
    assert (advice["text"], advice["last"]) == ("stopped", True)
    assert advice["done"] < 30
    assert not advice["found"]["complete"]


class EndlessClient(FakeWorkbench):
    """Measures until it is stopped."""

    def __init__(self) -> None:
        super().__init__(pace=0.0)
        self.begun, self.stopped = threading.Event(), threading.Event()

    def stream_recommendation(self, prompts: Any, *, stopped: Any, **options: Any) -> Any:
        self.begun.set()
        deadline = time.monotonic() + 5
        while not stopped() and time.monotonic() < deadline:
            time.sleep(0.01)
        if stopped():
            self.stopped.set()
        yield from ()


def test_a_closed_page_ends_its_measurement() -> None:
    """Also during a run, when the server waits for the next message of a page that is gone."""
    client = EndlessClient()

    async def left() -> None:
        follow = RecommendationView(client, SavedRunsView()).decode({"channel": "c", "text": "Why?"})
        await anext(follow)
        waiting = asyncio.ensure_future(anext(follow))
        await asyncio.to_thread(client.begun.wait, 10)
        waiting.cancel()
        await asyncio.wait([waiting])

    asyncio.run(left())
    assert client.stopped.is_set()


def test_a_refusal_of_the_client_reaches_the_page(view: RecommendationView, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any, **__: Any) -> Any:
        raise PromptError("Nothing there.", "Ask elsewhere.")

    monkeypatch.setattr(RecordingClient, "stream_recommendation", refuse)
    assert collect_messages(view, text="a")[-1]["error"]["message"] == "Nothing there."


# -- In the browser ---------------------------------------------------------------------------------------------------


@in_browser
@pytest.mark.parametrize(("width", "scheme"), [(1440, "light"), pytest.param(390, "dark", marks=pytest.mark.on_demand)])
def test_prompts_are_measured_stopped_and_answered(
    fake_app: str, open_page: PageOpener, width: int, scheme: str, tmp_path: Path
) -> None:
    page = open_page(f"{fake_app}/methods", viewport={"width": width, "height": 900}, color_scheme=scheme)
    page.wait_for_selector(".wb[data-drawn=true]")
    page.get_by_role("button", name="Recommend a method").focus()
    page.keyboard.press("Enter")
    form = page.locator(".wb-whichform")
    form.wait_for()
    page.wait_for_function("document.activeElement.id === 'wb-which-target'")

    page.get_by_role("button", name="Measure").click()
    assert "There is no prompt." in page.locator(".wb-which [role=alert]").inner_text()

    (tmp_path / "picture.txt").write_bytes(b"\x89PNG\xff\x00")
    page.set_input_files("#wb-which-file", tmp_path / "picture.txt")
    page.get_by_text("This file is not text.").wait_for()
    (tmp_path / "mine.txt").write_text("Why does it rain?\nTell me a story.\n")
    page.set_input_files("#wb-which-file", tmp_path / "mine.txt")
    page.wait_for_function("document.getElementById('wb-which-text').value.startsWith('Why')")
    assert page.locator(".wb-which [role=alert]").count() == 0

    page.get_by_role("button", name="Measure").press("Enter")
    page.locator(".wb-whichsaid", has_text="waiting: another run is using the device").wait_for()
    assert page.get_by_role("button", name="Measure").is_disabled()
    page.get_by_role("button", name="Stop").click()
    page.locator(".wb-whichsaid", has_text="Stopped after").wait_for()
    assert page.locator(".wb-ranking li").count() == 2

    page.get_by_role("button", name="Measure").click()
    page.locator(".wb-whichsaid", has_text="Measured: 30 runs").wait_for()
    answer = page.locator(".wb-whichanswer").inner_text()
    assert answer.startswith("Draft tree: 1.80×: faster")
    assert page.locator(".wb-ranking li").first.inner_text().startswith("Draft tree")
    assert "dropped after pass 1" in page.locator(".wb-ranking li").nth(1).inner_text()
    assert "workbench generate --target synthetic-target" in page.locator(".wb-whichfound").inner_text()
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth"), "it scrolls sideways"
    assert serious(page, ".wb-which") == []

    page.fill("#wb-which-text", "This one is too long")
    page.get_by_role("button", name="Measure").click()
    page.get_by_text("the context holds 1,024").wait_for()
    assert page.locator(".wb-whichanswer").inner_text() == answer, "the last recommendation stays visible"
    assert page.input_value("#wb-which-text") == "This one is too long"
    page.get_by_role("link", name="Open Draft tree in Live").click()
    page.wait_for_selector(".wb[data-ready=true] :is(.wb-go, [data-near=run]):visible")
    assert "method=draft-tree" in page.url
    assert "width=3" in page.url


@pytest.mark.smoke
@in_browser
def test_the_table_of_kinds_marks_the_fastest_of_each(fake_app: str, open_page: PageOpener) -> None:
    from workbench.bench import workload_board

    page = open_page(f"{fake_app}/methods#which")
    page.wait_for_selector(".wb-worktable")
    for target in workload_board.targets():
        page.locator(".wb-worktargets").get_by_role("button", name=target["target"]).click()
        assert page.locator(".wb-worktable tbody tr").count() == len(target["methods"])
        best = [name for name in target["best"].values() if name]
        assert page.locator(".wb-worktable .is-best").count() == len(best)
        titles = {m["method"]: m["title"] for m in target["methods"]}
        shown_titles = page.locator(".wb-workbest dd").all_inner_texts()
        assert [text for text in shown_titles if not text.startswith("plain")] == [titles[name] for name in best]
