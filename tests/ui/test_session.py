"""The page's session with the backend, without browser and without Gradio."""

from __future__ import annotations

import asyncio
import base64
import json
import time
from collections.abc import Coroutine
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from ui.fake_client import FakeWorkbench

from workbench.client.follow import follow
from workbench.core.errors import PromptError
from workbench.ui.hosting import answer_in_json, as_text, return_errors
from workbench.ui.session import BASELINE, GRACE_S, Session


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
        "method": "draft-model",
        "params": {"depth": 3},
        "max_new_tokens": 24,
    } | more


def wait(work: Coroutine[Any, Any, Any]) -> Any:
    """Run in a separate thread: Playwright's synchronous API keeps an event loop in the main one."""
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(asyncio.run, work).result(timeout=60)


def run_all(session: Session, wanted: dict[str, Any]) -> list[dict[str, Any]]:
    async def collect() -> list[dict[str, Any]]:
        return [message async for message in session.decode(wanted)]

    return wait(collect())


def test_an_unknown_target_is_reported_and_disables_no_method(session: Session) -> None:
    there, asked = session.catalogue({}), session.catalogue({"target": "nope"})
    assert there["problem"] is None
    assert "'nope'" in asked["problem"]["message"]
    assert asked["chosen"] == there["chosen"]
    assert asked["methods"] == there["methods"]


def test_the_catalogue_has_all_data_of_the_panel(session: Session) -> None:
    made = session.catalogue({})
    assert {m["name"] for m in made["methods"]} >= {"draft-model", BASELINE, made["chosen"]["method"]}
    assert made["chosen"]["drafter"] == "synthetic-drafter", "the first usable drafter"
    assert made["definitions"]["tau"][1]
    json.dumps(made)


@pytest.mark.parametrize(
    ("method", "kept"), [("omnidraft", True), ("draft-model", False), ("no-such-method", False), (None, False)]
)
def test_a_drafter_with_a_different_vocabulary_stays_selected_only_for_a_method_that_translates(
    method: str | None, kept: bool, session: Session
) -> None:
    chosen = session.catalogue({"drafter": "other", "method": method})["chosen"]["drafter"]
    assert chosen == ("other" if kept else "synthetic-drafter")


def test_the_page_gets_data_and_errors_as_json(session: Session) -> None:
    answer = answer_in_json(return_errors(session.catalogue))({})
    assert answer.media_type == "application/json"
    assert json.loads(answer.body) == json.loads(json.dumps(session.catalogue({})))
    assert "no run" in json.loads(answer_in_json(return_errors(session.control))({"run": "x"}).body)["error"]["message"]


def test_the_device_label_is_that_of_the_chosen_target(session: Session, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another target may have another dtype."""
    monkeypatch.setattr(session.client, "device_label", lambda target: f"device of {target}")
    assert session.catalogue({"target": "synthetic-target"})["device"] == "device of synthetic-target"


def test_a_run_arrives_completely_and_in_order(session: Session) -> None:
    messages = run_all(session, request())
    assert [r["index"] for m in messages for r in m["rounds"]] == list(range(messages[-1]["seq"]))
    assert messages[-1]["footer"]["reason"] == "length"
    assert all(m["channel"] == "c" for m in messages)
    assert sum(m.get("header") is not None for m in messages) == 1, "the header is sent once"


def test_a_bad_prompt_is_answered_with_a_remedy(session: Session) -> None:
    (only,) = run_all(session, request(prompt=" "))
    assert only["error"]["message"] == "The prompt is empty."
    assert only["error"]["remedy"]


async def leave(session: Session) -> str:
    """Close a page during a run."""
    stream = session.decode(request(max_new_tokens=5000))
    first = await anext(stream)
    await stream.aclose()
    return first["run"]


def test_a_closed_page_ends_its_run_after_a_grace_period_with_the_reason_in_the_trace(client: FakeWorkbench) -> None:
    run = client.run(wait(leave(Session(client, grace_s=0.3))))
    until = time.monotonic() + 20
    while run.footer is None and time.monotonic() < until:
        time.sleep(0.02)  # polled by nobody
    assert (run.state, (run.footer or {})["reason"]) == ("cancelled", "lease")


def test_a_page_that_returns_in_time_continues_with_its_run(session: Session, client: FakeWorkbench) -> None:
    run = client.run(wait(leave(session)))
    assert run.lease_s == GRACE_S >= 5, "the lease must outlast a reload of some seconds"
    had = session.fetch_trace({"run": run.id, "from": 0})
    assert had["state"] != "cancelled"

    async def again() -> list[dict[str, Any]]:
        stream, heard = session.decode({"channel": "anew", "follow": run.id, "from": had["seq"]}), []
        async for message in stream:
            heard.append(message)
            if len([r for m in heard for r in m.get("rounds", [])]) > 3:
                session.control({"run": run.id, "action": "cancel"})
        return heard

    heard = wait(again())
    assert heard[-1]["state"] == "cancelled", "the run can still be controlled"
    assert {message["channel"] for message in heard} == {"anew"}
    found = [r["index"] for message in heard for r in message.get("rounds", [])]
    assert found == list(range(had["seq"], heard[-1]["seq"])), "only rounds that the page lacks are sent"


def test_of_two_pages_that_follow_a_run_one_may_leave(session: Session, client: FakeWorkbench) -> None:
    async def both() -> str:
        one = session.decode(request(max_new_tokens=5000))
        run = (await anext(one))["run"]
        two = session.decode({"channel": "b", "follow": run})
        assert (await anext(two))["run"] == run
        await one.aclose()
        assert (await anext(two))["channel"] == "b"
        await two.aclose()
        return run

    run = client.run(wait(both()))
    assert not run.stopped
    run.cancel()


@pytest.mark.parametrize(
    "wrong", [{"follow": "no-such-run"}, {"follow": 3}, {"follow": ""}, {"follow": "x", "from": -1}]
)
def test_an_unknown_run_cannot_be_followed(session: Session, wrong: dict[str, Any]) -> None:
    (only,) = run_all(session, wrong | {"channel": "c"})
    assert only["error"]["message"]
    assert only["channel"] == "c"


def test_two_pages_are_independent(session: Session) -> None:
    async def both() -> list[list[dict[str, Any]]]:
        async def one(seed: int) -> list[dict[str, Any]]:
            return [m async for m in session.decode(request(seed=seed, channel=str(seed)))]

        return list(await asyncio.gather(one(1), one(2)))

    a, b = wait(both())
    assert a[-1]["run"] != b[-1]["run"]
    assert {m["channel"] for m in a} == {"1"}


def test_pairs_that_were_measured_for_a_run_are_shown_to_other_viewers(session: Session) -> None:
    run = run_all(session, request())[0]["run"]
    assert "baseline" not in session.fetch_trace({"run": run, "from": 0})
    run_all(session, request(max_new_tokens=12))
    for _ in range(2):  # the fake client's first measurement ends only when it is stopped
        session.client.measured.append(24)  # type: ignore[attr-defined]
    run_all(session, request(pairs=True, run=run))
    found = session.fetch_trace({"run": run, "from": 0})["baseline"]
    assert found == {"tokens_per_second": 100.0, "ratios": [1.5] * 8}


def test_an_unknown_run_or_action_gives_a_message(session: Session, client: FakeWorkbench) -> None:
    run = client.start("Hello", paused=True)
    assert "no run" in return_errors(session.control)({"run": "x", "action": "pause"})["error"]["message"]
    assert (
        "requested action does not exist"
        in return_errors(session.control)({"run": run.id, "action": "__init__"})["error"]["message"]
    )
    assert return_errors(session.fetch_trace)({"run": None, "from": "x"})["error"]["remedy"]
    assert return_errors(session.change)({"run": "x", "params": {}})["error"]["message"]
    run.cancel()


def test_a_gap_is_filled_from_the_run(session: Session) -> None:
    messages = run_all(session, request())
    answer = session.fetch_trace({"run": messages[-1]["run"], "from": 2})
    assert [r["index"] for r in answer["rounds"]] == list(range(2, answer["seq"]))


def test_model_text_is_sent_without_html_tags() -> None:
    text = as_text({"rounds": [{"text": "<script>alert(1)</script>"}]})
    assert "<" not in text
    assert json.loads(text)["rounds"][0]["text"] == "<script>alert(1)</script>"


def test_a_run_may_start_from_token_ids(session: Session) -> None:
    messages = run_all(session, request(prompt_tokens=[3, 1, 4]))
    header = next(m["header"] for m in messages if m.get("header"))
    assert header["prompt_tokens"] == [3, 1, 4]


@pytest.mark.parametrize("wrong", [[1, -1], [1.5], ["1"], {"a": 1}, [True]])
def test_token_ids_are_checked(session: Session, wrong: Any) -> None:
    (only,) = run_all(session, request(prompt_tokens=wrong))
    assert "token ids" in only["error"]["message"]


def test_queue_and_loading_states_are_sent_as_they_change(session: Session, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(follow, "__defaults__", (60.0,))  # the message rate on a machine with many cores
    loads = [m["loading"]["done"] for m in run_all(session, request(prompt="downloading")) if m.get("loading")]
    assert len(loads) > 2
    assert loads == sorted(loads)
    places = [m["queue"]["position"] for m in run_all(session, request(prompt="queued")) if m.get("queue")]
    assert places == [2, 1]


def test_a_silent_run_still_sends_keep_alive_messages(client: FakeWorkbench) -> None:
    async def listen() -> list[dict[str, Any]]:
        stream = Session(client).decode(request(paused=True))
        heard: list[dict[str, Any]] = []
        async for message in stream:
            heard.append(message)
            if len(heard) >= 5:
                break
        await stream.aclose()
        return heard

    heard = wait(listen())
    assert heard[-1].keys() == {"channel", "run"}, "a message without news keeps the connection open"


def test_recordings_are_found_by_name_only(session: Session) -> None:
    assert session.recorded({"name": "draft-tree"})["rounds"]
    for name in ("../secret", "", None, "nothing"):
        assert "no recording" in return_errors(session.recorded)({"name": name})["error"]["message"]


def test_parquet_of_a_run_and_of_a_trace_from_the_browser(session: Session) -> None:
    run = run_all(session, request())[-1]["run"]
    assert "error" in return_errors(session.export_parquet)({"run": "x"})
    assert "error" in return_errors(session.export_parquet)({"trace": {"header": {}}})
    held = session.recorded({"name": "prompt-lookup"})
    made = session.export_parquet({"trace": held})
    assert base64.b64decode(made["data"])[:4] == b"PAR1"
    assert run


def test_unavailable_actions_and_cost_estimates_reach_the_page() -> None:
    class Elsewhere(FakeWorkbench):
        def unavailable_actions(self) -> dict[str, str]:
            return {"pause": "not here"}

        def estimate(self, request: dict[str, Any]) -> str:
            return f"{request['max_new_tokens']} s"

    session = Session(Elsewhere())
    assert session.catalogue({})["barred"] == {"pause": "not here"}
    assert session.estimate({"max_new_tokens": 8}) == {"text": "8 s"}
    assert Session(FakeWorkbench()).catalogue({})["barred"] == {}


def test_a_target_without_a_draft_model_starts_with_a_method_that_needs_none() -> None:
    """The same choice as on the command line and in servers, not the first of the list, which drafts nothing."""

    class Alone(FakeWorkbench):
        def methods(self, target: str | None = None, drafter: str | None = None) -> list[dict[str, Any]]:
            off = {"available": False, "reason": "There is no draft model."}
            found = [m | (off if m["name"] == "draft-model" else {}) for m in super().methods(target, drafter)]
            return [*found, found[0] | {"name": "prompt-lookup", "available": True, "reason": ""}]

    assert Session(FakeWorkbench()).catalogue({})["chosen"]["method"] == "draft-model"
    assert Session(Alone()).catalogue({})["chosen"]["method"] == "prompt-lookup"


class OtherSourceClient(FakeWorkbench):
    """A client whose target is not bundled, with its own chat template or none."""

    ids: list[int] | None = None

    def targets(self) -> list[dict[str, Any]]:
        return [entry | {"kind": "hub"} for entry in super().targets()]

    def chat_prompt(self, messages: list[dict[str, Any]], target: str | None = None) -> list[int]:
        assert (messages, target) == ([{"role": "user", "content": "Hi <b>"}], "synthetic-target")
        if self.ids is None:
            raise PromptError("This target has no chat template.", "Give a plain prompt instead.")
        return self.ids


def resolved_prompt(client: FakeWorkbench, prompt: str | list[int]) -> Any:
    return Session(client)._options(request(prompt=prompt, target="synthetic-target"))["prompt"]


def test_a_message_is_formatted_with_the_chat_template_of_a_third_party_target() -> None:
    client, message = OtherSourceClient(), "<|user|>Hi <b><|assistant|>"
    assert resolved_prompt(client, message) == "Hi <b>", "without a chat template: plain text without special tokens"
    client.ids = [5, 6]
    assert resolved_prompt(client, message) == [5, 6]
    assert resolved_prompt(client, "Hi <b>") == "Hi <b>", "text that is not a message is unchanged"
    assert resolved_prompt(client, [7, 8]) == [7, 8]


def test_a_message_to_a_bundled_target_is_sent_unchanged_and_an_empty_one_is_refused(client: FakeWorkbench) -> None:
    assert resolved_prompt(client, "<|user|>Hi <b><|assistant|>") == "<|user|>Hi <b><|assistant|>"
    with pytest.raises(PromptError, match="empty"):
        resolved_prompt(client, "<|user|> <|assistant|>")
