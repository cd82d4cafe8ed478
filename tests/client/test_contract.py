"""One contract for all clients: with the same models, each gives the same results for the same calls."""

from __future__ import annotations

import inspect
import itertools
from collections.abc import Iterator
from typing import Any

import pytest
import serving
from ui.fake_client import FakeWorkbench
from ui.fake_vision import FakeVision

from workbench.client import Client, RunHandle, Workbench
from workbench.client.calls import calls_of
from workbench.client.remote import RemoteBackend
from workbench.core.errors import MethodUnavailableError, PromptError, UnknownNameError, WorkbenchError
from workbench.models.names import known_targets
from workbench.service import Backend, zerogpu
from workbench.service.limits import Limits
from workbench.ui.lazy_client import LazyClient

REAL = ("backend", "workbench", "app", "zerogpu")
FAKES = {"fake": FakeWorkbench, "fake vision": FakeVision}
MEMBERS = [name for name in vars(Client) if not name.startswith("_")]
CALLS = {call.name: call for call in calls_of(Client)}
ASKED: dict[str, Any] = {"max_new_tokens": 12, "seed": 3, "params": {"temperature": 0.8}}


def zero() -> zerogpu.ZeroGpuBackend:
    """Return ZeroGPU's client over the bundled text models; outside a Space its decorator does nothing."""
    spaces = pytest.importorskip("spaces")
    with pytest.MonkeyPatch.context() as patch:
        text = [entry for entry in known_targets() if entry[0] == "text-target"]
        patch.setattr(zerogpu, "known_targets", lambda: iter(text))
        return zerogpu.ZeroGpuBackend(spaces.GPU, False, ["text-drafter"], device="cpu", dtype="float64")


@pytest.fixture(scope="module", params=[*REAL, *FAKES])
def client(request: pytest.FixtureRequest) -> Iterator[Client]:
    app = serving.app()
    if request.param == "backend":  # the app's own, which is not closed here
        yield app.bench._backend
        return
    if request.param == "workbench":  # as for a page that was served before the backend started
        later = LazyClient()
        later.make(lambda: app.bench)
        yield later.client
        return
    made = {"app": lambda: Workbench(app.url), "zerogpu": zero, **FAKES}[request.param]()
    yield made
    made.close()


@pytest.fixture
def pictures(client: Client) -> dict[str, Any]:
    """Return the arguments that this client's runs need besides a prompt."""
    return {"images": ["data:image/png;base64,"]} if isinstance(client, FakeVision) else {}


@pytest.mark.parametrize("kind", [Workbench, Backend, RemoteBackend, zerogpu.ZeroGpuBackend, FakeWorkbench, FakeVision])
def test_every_method_of_the_protocol_is_implemented_with_its_signature(kind: type) -> None:
    assert len(MEMBERS) > 25
    for name in MEMBERS:
        wanted = vars(Client)[name]
        if name != "limits" and inspect.getattr_static(kind, name) is wanted:  # answered by `_dispatch`
            assert kind is Workbench or (kind is RemoteBackend and CALLS[name].endpoint), (
                f"{name} is the protocol's own"
            )
        if not inspect.isfunction(wanted):
            continue
        takes = inspect.signature(getattr(kind, name)).parameters
        anything = any(p.kind is p.VAR_KEYWORD for p in takes.values())
        assert anything or set(inspect.signature(wanted).parameters) <= set(takes), name


def test_lists_of_models_methods_and_presets_have_the_same_form(client: Client) -> None:
    assert isinstance(client, Client | LazyClient)
    targets, methods = client.targets(), client.methods()
    for entries, keys in (
        (targets, {"name", "title", "kind", "detail"}),
        (client.drafters(), {"name", "title", "available", "reason", "detail"}),
        (methods, {"name", "title", "promise", "source", "params", "available", "reason"}),
        (client.sampling_params(), {"name", "kind", "default", "ge", "le", "doc"}),
        (client.presets(), {"name", "title", "prompt"}),
    ):
        assert entries
        assert all(keys <= set(entry) for entry in entries)
    assert client.drafters(targets[0]["name"]) == client.drafters()
    assert all(method["available"] == (not method["reason"]) for method in methods)
    assert all(set(said) == {"title", "formula"} for said in client.definitions().values())
    assert isinstance(client.limits, Limits)
    assert isinstance(client.device_label(), str)
    assert client.device_label(targets[0]["name"]) == client.device_label()
    assert client.health()["status"] == "ok"
    assert {"models", "rows"} <= set(client.health())
    assert "# HELP" in client.metrics_text()
    assert client.ready is True
    assert isinstance(client.hub_only, bool)
    client.admit_request("local")
    client.admit_request("local", counted=False)
    client.preload()
    client.load()
    assert all({"name", "role", "bytes", "dtype", "device", "runs", "idle_s"} <= set(m) for m in client.loaded_models())


def test_unavailable_actions_are_declared_and_refused_with_a_remedy(client: Client, pictures: dict[str, Any]) -> None:
    assert set(client.unavailable_actions()) <= {"pause", "step", "change", "pace", "memory"}
    assert client.capabilities <= {"estimate", "pairing", "recommending", "heads"}
    if "heads" not in client.capabilities:
        with pytest.raises(MethodUnavailableError):
            client.prefer_heads("anywhere")
    if "recommending" not in client.capabilities:
        with pytest.raises(MethodUnavailableError):
            client.stream_recommendation(["Once"])
    elif not isinstance(client, FakeWorkbench):
        said = list(client.stream_recommendation(["Once"], seconds=5, methods=["suffix"], max_new_tokens=4))
        assert [step.last for step in said] == [False] * (len(said) - 1) + [True]
        assert said[-1].found is not None
        found = said[-1].found  # on an overloaded machine a speed-up may be implausible and is refused by name
        assert [choice["method"] for choice in found["ranking"]] + found["refused"] == ["suffix"]
        assert said[-1].found["prompts"] == ["prompt 1"]
        with pytest.raises(PromptError, match="empty"):
            list(client.stream_recommendation(["Once", " "]))
    assert bool(client.estimate({"method": "draft-model", **ASKED})) == ("estimate" in client.capabilities)
    if "pairing" not in client.capabilities:
        with pytest.raises(MethodUnavailableError):
            client.stream_pairs("Once", "draft-model", {})
    else:
        said = client.stream_pairs("Once", "draft-model", {}, max_new_tokens=4, stopped=lambda: True)
        assert list(said)[-1].ended == "stopped" or isinstance(client, FakeWorkbench)
    if client.unavailable_actions():
        for barred in ({"paused": True}, {"pace": 5.0}):
            with pytest.raises(MethodUnavailableError) as refused:
                client.start("Once", **barred)
            assert refused.value.remedy in client.unavailable_actions().values()
        return
    run = client.start("Once", paused=True, max_new_tokens=8, **pictures)
    run.change(params={"temperature": 0.5}, pace=900.0)
    run.step()
    assert serving.wait_until(lambda: len(run.since(0)["rounds"]) == 1)
    run.resume()
    run.pause()
    run.cancel()
    assert serving.wait_until(lambda: run.ended)
    assert run.state in ("cancelled", "finished")


def test_a_run_can_be_followed_and_found_and_is_complete(client: Client, pictures: dict[str, Any]) -> None:
    run = client.start("Once upon a time", "draft-model", user="local", lease_s=30.0, **ASKED, **pictures)
    assert isinstance(run, RunHandle)
    rounds = list(run)
    trace = client.run(run.id).wait(30)
    assert [r.index for r in rounds] == list(range(len(trace.rounds)))
    news = run.since(1)
    assert [r["index"] for r in news["rounds"]] == [r.index for r in rounds[1:]]
    assert {"run", "state", "message", "header", "footer", "warnings", "queue", "loading", "pace"} <= set(news)
    assert (run.state, run.ended, run.message) == ("finished", True, "")
    assert run.explain_progress is None
    assert trace.footer.reason in ("length", "eos")


def test_invalid_requests_are_refused_with_the_same_errors(client: Client, pictures: dict[str, Any]) -> None:
    for ask, kind in (
        (lambda: client.start(" " if isinstance(client, FakeWorkbench) else ""), PromptError),
        (lambda: client.run("AAAAAAAAAAAAAAAA"), UnknownNameError),
        (lambda: client.unload("nobody's"), WorkbenchError),
        (lambda: list(client.stream_comparison("Once", ["no-such-method"])), WorkbenchError),
        (lambda: client.start("Once", **pictures).explain(), (PromptError, MethodUnavailableError)),
    ):
        if isinstance(client, FakeVision) and kind is not UnknownNameError:
            continue  # this client only runs and explains requests with images
        with pytest.raises(kind) as refused:
            ask()
        assert refused.value.message
        assert refused.value.remedy


def test_all_clients_give_equal_answers_for_equal_models() -> None:
    bench = serving.app().bench
    with Workbench(serving.app().url) as remote:
        lent = zero()
        every: list[Client] = [bench, bench._backend, remote, lent]
        for ask in (
            lambda c: c.sampling_params(),
            lambda c: c.definitions(),
            lambda c: [(m["name"], m["promise"], m["params"]) for m in c.methods("text-target", "text-drafter")],
            lambda c: [t for t in c.targets() if t["name"] == "text-target"],
            lambda c: [p for p in c.presets() if p["name"] == "story"],
            lambda c: c.chat_prompt([{"role": "user", "content": "What is 2 + 3?"}], "text-target"),
            lambda c: c.start(serving.STORY, "draft-tree", target="text-target", **ASKED).wait(60).token_ids,
        ):
            answers = [ask(each) for each in every]
            assert all(a == b for a, b in itertools.pairwise(answers)), answers
        lent.close()
