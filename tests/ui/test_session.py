"""What the page asks of the backend, without a browser and without Gradio."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Coroutine
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from ui.fake_client import FakeWorkbench

from workbench.ui.page import as_text
from workbench.ui.session import BASELINE, DEFAULT_METHOD, Session


@pytest.fixture
def client() -> FakeWorkbench:
    return FakeWorkbench(pace=0.005)


@pytest.fixture
def session(client: FakeWorkbench) -> Session:
    return Session(client)


def request(**more: Any) -> dict[str, Any]:
    return {
        "channel": "c",
        "prompt": "Hello",
        "method": DEFAULT_METHOD,
        "params": {"depth": 3},
        "max_new_tokens": 24,
    } | more


def wait(work: Coroutine[Any, Any, Any]) -> Any:
    """Run in a thread of its own: Playwright's synchronous API keeps a loop in the main one."""
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(asyncio.run, work).result(timeout=60)


def run_all(session: Session, wanted: dict[str, Any]) -> list[dict[str, Any]]:
    async def collect() -> list[dict[str, Any]]:
        return [message async for message in session.decode(wanted)]

    return wait(collect())


def test_the_catalogue_has_everything_the_panel_is_made_from(session: Session) -> None:
    made = session.catalogue({})
    assert {m["name"] for m in made["methods"]} >= {DEFAULT_METHOD, BASELINE, made["chosen"]["method"]}
    assert made["chosen"]["drafter"] == "synthetic-drafter", "the first one that can be used"
    assert made["definitions"]["tau"][1]
    json.dumps(made)


def test_a_run_arrives_whole_and_in_order(session: Session) -> None:
    messages = run_all(session, request())
    assert [r["index"] for m in messages for r in m["rounds"]] == list(range(messages[-1]["seq"]))
    assert messages[-1]["footer"]["reason"] == "length"
    assert all(m["channel"] == "c" for m in messages)
    assert sum(m.get("header") is not None for m in messages) == 1, "the header is sent once"


def test_a_bad_prompt_is_answered_with_a_remedy(session: Session) -> None:
    (only,) = run_all(session, request(prompt=" "))
    assert only["error"]["message"] == "The prompt is empty."
    assert only["error"]["remedy"]


def test_closing_the_page_frees_the_run(session: Session, client: FakeWorkbench) -> None:
    async def leave() -> str:
        stream = session.decode(request(max_new_tokens=5000))
        first = await anext(stream)
        await stream.aclose()
        return first["run"]

    run = client.run(wait(leave()))
    assert run.stopped


def test_two_pages_do_not_see_each_other(session: Session) -> None:
    async def both() -> list[list[dict[str, Any]]]:
        async def one(seed: int) -> list[dict[str, Any]]:
            return [m async for m in session.decode(request(seed=seed, channel=str(seed)))]

        return list(await asyncio.gather(one(1), one(2)))

    a, b = wait(both())
    assert a[-1]["run"] != b[-1]["run"]
    assert {m["channel"] for m in a} == {"1"}


def test_an_unknown_run_or_action_is_a_message_not_a_crash(session: Session) -> None:
    assert "no run" in session.control({"run": "x", "action": "pause"})["error"]["message"]
    assert "no action" in session.control({"run": "x", "action": "__init__"})["error"]["message"]
    assert "error" in session.fetch_trace({"run": None, "from": "x"})
    assert "error" in session.change({"run": "x", "params": {}})


def test_a_gap_is_filled_from_the_run(session: Session) -> None:
    messages = run_all(session, request())
    answer = session.fetch_trace({"run": messages[-1]["run"], "from": 2})
    assert [r["index"] for r in answer["rounds"]] == list(range(2, answer["seq"]))


def test_model_text_cannot_become_a_tag_on_its_way() -> None:
    text = as_text({"rounds": [{"text": "<script>alert(1)</script>"}]})
    assert "<" not in text
    assert json.loads(text)["rounds"][0]["text"] == "<script>alert(1)</script>"
