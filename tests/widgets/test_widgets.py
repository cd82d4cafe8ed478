"""Widgets without a browser: their state, calls to a run, messages, and stored output."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
import traitlets
from traces import make_hostile_trace

from workbench.client.remoterun import RemoteRun
from workbench.core.errors import ParameterError, UnknownNameError, WorkbenchError
from workbench.trace import metrics
from workbench.trace.events import Trace
from workbench.views import modules, recorded_runs

anywidget = pytest.importorskip("anywidget")
from workbench import widgets as w  # noqa: E402
from workbench.site.page import to_page  # noqa: E402
from workbench.widgets import snapshot, sources  # noqa: E402

HTML, VIEW = "text/html", "application/vnd.jupyter.widget-view+json"
SAMPLING = [
    {"name": "temperature", "kind": "float", "default": 0.0, "ge": 0.0, "le": 5.0, "choices": None, "doc": ""},
    {"name": "top_k", "kind": "int", "default": 0, "ge": 0, "le": None, "choices": None, "doc": ""},
]
SETTLED = {"promise": "exact", "teaches": "", "source": {}, "needs": [], "available": True, "reason": ""}
METHODS = [
    {"name": "draft-model", "title": "Draft model", **SETTLED, "params": [
        {"name": "depth", "kind": "int", "default": 4, "ge": 1, "le": 12, "choices": None},
        {"name": "policy", "kind": "choice", "default": "fixed", "choices": ["fixed", "planned"]},
    ]},
    {"name": "plain", "title": "Plain", **SETTLED, "params": []},
]  # fmt: skip


class FakeRun:
    """A run that adds rounds only when `record` is called."""

    def __init__(self, trace: Trace) -> None:
        self.id, self.whole, self.n, self.calls = "run-1", trace, 0, []
        self.state, self.trace = "running", Trace(trace.header, [])

    @property
    def ended(self) -> bool:
        return self.state in ("finished", "cancelled")

    def record(self, n: int = 1) -> None:
        self.n += n
        self.trace.rounds = self.whole.rounds[: self.n]
        if self.n >= len(self.whole.rounds):
            self.state = "finished"

    def since(self, n: int) -> dict[str, Any]:
        rounds = self.trace.rounds[n:]
        return {
            "run": self.id, "state": self.state, "message": "", "header": self.trace.header.to_wire(),
            "rounds": [r.to_wire() for r in rounds], "seq": n + len(rounds),
            "footer": self.whole.footer.to_wire() if self.ended else None, "warnings": [],
        }  # fmt: skip

    def change(self, **wanted: Any) -> None:
        self.calls.append(("change", wanted))

    def cancel(self) -> None:
        self.calls.append(("cancel", {}))
        self.state = "cancelled"

    def __getattr__(self, name: str) -> Any:
        if name in ("pause", "resume", "step"):
            return lambda: self.calls.append((name, {}))
        raise AttributeError(name)


class FakeClient:
    """The part of a `Workbench` that widgets use."""

    capabilities, hub_only = frozenset[str](), False

    def unavailable_actions(self) -> dict[str, str]:
        return {}

    def targets(self) -> list[dict[str, Any]]:
        return [{"name": "text-target", "title": "text-target"}]

    def drafters(self, target: str | None = None) -> list[dict[str, Any]]:
        return [{"name": "text-drafter", "title": "text-drafter", "available": True}]

    def methods(self, target: str | None = None, drafter: str | None = None) -> list[dict[str, Any]]:
        return METHODS

    def sampling_params(self) -> list[dict[str, Any]]:
        return SAMPLING

    def presets(self) -> list[dict[str, Any]]:
        return []

    def device_label(self, target: str | None = None) -> str:
        return "CPU"


@pytest.fixture
def trace() -> Trace:
    return recorded_runs.trace("draft-tree")


def wait_until(holds: Callable[[], Any], seconds: float = 20) -> Any:
    end = time.monotonic() + seconds
    while not (found := holds()):
        assert time.monotonic() < end, "the condition did not become true in time"
        time.sleep(0.01)
    return found


def bundle(widget: Any) -> dict[str, Any]:
    made = widget._repr_mimebundle_()
    return made[0] if isinstance(made, tuple) else made


def every(trace: Trace) -> Iterator[Any]:
    yield from (w.stage(trace), w.stage(trace, trace), w.ribbon(trace), w.tree(trace, 2), w.curves(trace))
    yield from (w.lane(trace), w.lane([trace, trace], ["a", "b"]), w.vision(recorded_runs.trace("specvlm"), trace))
    yield w.show(w.ribbon(trace), w.tree(trace))
    yield w.panel(FakeClient(), depth=3)
    yield w.bench()


# -- stored output ----------------------------------------------------------------------------------------------------


def test_every_output_contains_the_widget_and_a_static_version(trace: Trace) -> None:
    for widget in every(trace):
        stored = bundle(widget)
        assert stored[VIEW]["model_id"]
        assert len(stored[HTML]) > 100


def test_a_plain_nbconvert_export_shows_the_static_versions(trace: Trace, monkeypatch: pytest.MonkeyPatch) -> None:
    """If an output has both a widget and HTML, nbconvert by default takes the widget and shows nothing."""
    nbconvert, nbformat = pytest.importorskip("nbconvert"), pytest.importorskip("nbformat.v4")
    outputs: list[Any] = []
    published = "workbench.widgets.view.publish"
    monkeypatch.setattr(published, lambda data, **_: outputs.append(nbformat.new_output("display_data", data=data)))
    cells = []
    for widget in every(trace):
        widget._ipython_display_()
        assert [VIEW in output.data for output in outputs] == [True, False]
        cells.append(nbformat.new_code_cell("widget", outputs=list(outputs)))
        outputs.clear()
    state = {cell.outputs[0].data[VIEW]["model_id"]: {} for cell in cells}  # as stored when a notebook is run
    kept = {"application/vnd.jupyter.widget-state+json": {"state": state, "version_major": 2, "version_minor": 0}}
    book = nbformat.new_notebook(cells=cells, metadata={"widgets": kept})
    page, _ = nbconvert.HTMLExporter().from_notebook_node(book)
    assert page.count('class="wb-still wb-still-') == len(cells)
    assert page.count('class="wb-snapshot"') >= len(cells)
    assert "run the notebook" not in to_page(book).body, "the site shows no note about controls"


def test_hostile_texts_are_escaped_in_every_output() -> None:
    trace = make_hostile_trace()
    for widget in (w.stage(trace), w.ribbon(trace), w.tree(trace), w.lane([trace], ["<img src=x onerror=1>"])):
        assert "<img" not in bundle(widget)[HTML]
        assert "<script" not in bundle(widget)[HTML]


def test_the_sent_state_equals_the_trace_and_modules_are_sent_once(trace: Trace) -> None:
    first, second = w.stage(trace), w.ribbon(trace)
    assert Trace.from_wire(json.loads(json.dumps(first._given))["trace"]) == trace
    assert first._sources is second._sources
    own = json.dumps({name: value for name, value in first.get_state().items() if name != "_given"}, default=str)
    assert len(own) < 10_000, "a widget contains the loader, not the modules"
    assert modules.inline_modules("notebook/live") == first._sources.module
    assert "vision/page" not in modules.dependency_order("notebook/live")
    assert modules.inline_modules("notebook/vision") == w.vision(recorded_runs.trace("specvlm"))._sources.module


def test_lanes_contain_times_and_no_text(trace: Trace) -> None:
    rows = w.lane([trace, trace], ["a", "b"])._given["traces"]
    assert [row["name"] for row in rows] == ["a", "b"]
    assert "text" not in json.dumps(rows)
    with pytest.raises(ValueError, match="one name for each"):
        w.lane([trace], ["a", "b"])


def test_another_trace_replaces_the_first(trace: Trace) -> None:
    view = w.ribbon(trace)
    view.selection = {"round": 1}
    other = recorded_runs.trace("prompt-lookup")
    view.trace = other
    assert view.trace is other
    assert view._given["trace"]["header"]["method"] == other.header.method
    assert view.selection == {}
    assert snapshot.escape(other.header.prompt_text[1]) in view.snapshot()


def test_styles_for_narrow_windows_use_the_width_of_the_output() -> None:
    style = sources.texts("vision")["style"]
    assert "@container wb (max-width: 900px)" in style
    assert "@media (max-width" not in style


# -- selection -------------------------------------------------------------------------------------------------------


def test_linked_widgets_share_one_selection_and_keep_an_existing_one(trace: Trace) -> None:
    a, b, c = w.ribbon(trace), w.tree(trace, 2), w.curves(trace)
    w.link(a, b, c)
    assert a.selection == b.selection == c.selection == {"round": 2}
    c.selection = {"round": 1, "token": 0, "node": None}
    assert a.selection == b.selection == {"round": 1, "token": 0}


@pytest.mark.parametrize("wrong", [{"round": -1}, {"round": "x"}, {"what": 1}, {"round": True}, {"node": "x"}])
def test_invalid_selections_are_refused(trace: Trace, wrong: dict[str, Any]) -> None:
    view = w.ribbon(trace)
    with pytest.raises(traitlets.TraitError, match="cannot be selected"):
        view.selection = wrong
    assert view.selection == {}


# -- panel -----------------------------------------------------------------------------------------------------------


def test_a_panel_has_all_values_and_returns_arguments_of_start() -> None:
    panel = w.panel(FakeClient(), "draft-model", depth=3)
    assert panel.values == {"method": "draft-model", "depth": 3, "policy": "fixed", "temperature": 0.0, "top_k": 0}
    assert panel.settings == {
        "method": "draft-model",
        "params": {"depth": 3, "policy": "fixed", "temperature": 0.0, "top_k": 0},
    }
    panel.values = {"method": "plain"}
    assert panel.values == {"method": "plain", "temperature": 0.0, "top_k": 0}


@pytest.mark.parametrize(
    ("wrong", "kind"),
    [
        ({"method": "nope"}, UnknownNameError),
        ({"method": "draft-model", "width": 3}, UnknownNameError),
        ({"method": "draft-model", "depth": 99}, ParameterError),
        ({"method": "draft-model", "depth": 2.5}, ParameterError),
        ({"method": "draft-model", "policy": "x"}, ParameterError),
        ({"method": "draft-model", "temperature": "hot"}, ParameterError),
    ],
)
def test_a_panel_refuses_unknown_names_and_values(wrong: dict[str, Any], kind: type[Exception]) -> None:
    panel = w.panel(FakeClient(), "draft-model")
    before = panel.values
    with pytest.raises(kind):
        panel.values = wrong
    assert panel.values == before


def test_a_panel_sends_only_changed_values_to_a_run(trace: Trace) -> None:
    run, panel = FakeRun(trace), w.panel(FakeClient(), "draft-model")
    panel.control(run)
    panel.values = panel.values | {"depth": 7}
    assert run.calls == [("change", {"method": None, "params": {"depth": 7}})]
    panel.values = {"method": "plain"}
    assert run.calls[-1][1]["method"] == "plain"
    run.cancel()
    panel.values = {"method": "draft-model"}
    assert run.calls[-1][0] == "cancel", "an ended run gets no changes"


def test_a_panel_shows_a_runs_refusal(trace: Trace) -> None:
    run, panel = FakeRun(trace), w.panel(FakeClient(), "draft-model")

    def refuse(**_: Any) -> None:
        raise WorkbenchError("No.", "Do something else.")

    run.change = refuse  # pyright: ignore[reportAttributeAccessIssue]
    panel.control(run).values = panel.values | {"depth": 7}
    assert "Do something else" in panel.problem


# -- live ------------------------------------------------------------------------------------------------------------


class Wire:
    """Records a widget's messages and sends calls like a browser."""

    def __init__(self, live: Any) -> None:
        self.live, self.sent = live, []
        live.send = lambda content, buffers=None: self.sent.append(content)

    def ask(self, call: str, **payload: Any) -> Any:
        self.live._on_message(self.live, {"id": call, "call": call, "payload": payload}, [])
        return wait_until(lambda: [m for m in self.sent if m.get("id") == call])[-1]["answer"]

    def rounds(self) -> list[list[int]]:
        return [[r["index"] for r in m["news"]["rounds"]] for m in self.sent if m.get("news", {}).get("rounds")]


@pytest.fixture
def run(trace: Trace) -> Iterator[FakeRun]:
    run = FakeRun(trace)
    yield run
    run.state = "finished"  # ends the thread


def test_a_thread_follows_the_run_without_blocking_the_kernel(run: FakeRun) -> None:
    live = w.live(run, FakeClient())
    wire = Wire(live)
    assert run.state != "finished", "showing a run in progress does not wait for its end"
    names = [t.name for t in threading.enumerate()]
    assert any(name.startswith("workbench-widget-run-1") for name in names)
    run.record(2)
    wait_until(wire.rounds)
    run.record(100)
    wait_until(lambda: len(run.whole.rounds) - 1 in wire.rounds()[-1])
    wait_until(lambda: not [t for t in threading.enumerate() if t.name.startswith("workbench-widget-run-1")])
    assert live.trace.rounds == run.whole.rounds


def test_all_rounds_are_sent_until_a_view_exists_and_then_only_new_ones(run: FakeRun) -> None:
    wire = Wire(w.live(run, FakeClient()))
    run.record(2)
    wait_until(lambda: wire.rounds() and wire.rounds()[-1] == [0, 1])
    run.record(1)
    wait_until(lambda: wire.rounds()[-1] == [0, 1, 2])  # messages sent before the view exists are lost
    assert len(wire.ask("fetch_trace", run=run.id, **{"from": 0})["rounds"]) == 3
    run.record(1)
    wait_until(lambda: wire.rounds()[-1] == [3])


def test_buttons_and_sliders_reach_the_run(run: FakeRun) -> None:
    wire = Wire(w.live(run, FakeClient()))
    assert wire.ask("control", run=run.id, action="pause") == {}
    assert wire.ask("change", run=run.id, params={"depth": 7}) == {}
    assert wire.ask("control", run=run.id, action="cancel") == {}
    assert [name for name, _ in run.calls] == ["pause", "change", "cancel"]
    assert run.calls[1][1]["params"] == {"depth": 7}


def test_a_view_gets_the_statistics_for_researchers(run: FakeRun) -> None:
    wire = Wire(w.live(run, FakeClient()))
    run.record(100)
    found = wire.ask("research", trace=run.whole.to_wire(), live=True)
    assert found["drafted"] == metrics.count_drafted(run.whole.rounds) > 0
    assert sum(row["accepted"] for row in found["by_kind"]) == metrics.count_accepted(run.whole.rounds)
    assert found["roofline"]["passes"], "the trace is one of the bundled target"


def test_a_widget_accepts_only_its_own_run_and_public_actions(run: FakeRun) -> None:
    wire = Wire(w.live(run, FakeClient()))
    assert "was not started by this widget" in wire.ask("control", run="another", action="cancel")["error"]["message"]
    assert "requested action does not exist" in wire.ask("control", run=run.id, action="__init__")["error"]["message"]
    live = wire.live
    live._on_message(live, {"id": "x", "call": "_follow", "payload": {}}, [])
    assert not [m for m in wire.sent if m.get("id") == "x"], "only public calls are answered"
    assert run.calls == []


class HubClient(FakeClient):
    """A client whose target is not bundled and has its own chat template."""

    def __init__(self, run: FakeRun) -> None:
        self.run, self.started = run, list[dict[str, Any]]()

    def targets(self) -> list[dict[str, Any]]:
        return [{"name": "owner/name", "title": "owner/name", "kind": "hub"}]

    def chat_prompt(self, messages: list[dict[str, Any]], target: str | None = None) -> list[int]:
        assert (messages, target) == ([{"role": "user", "content": "Hi"}], "owner/name")
        return [5, 6]

    def start(self, **options: Any) -> FakeRun:
        self.started.append(options)
        return self.run


def test_the_run_button_formats_a_message_with_the_targets_own_chat_template(run: FakeRun) -> None:
    client: Any = HubClient(run)
    live = w.live(run, client)
    request = {"prompt": "<|user|>Hi<|assistant|>", "target": "owner/name", "method": "draft-model"}
    live._on_message(live, {"decode": request}, [])
    wait_until(lambda: client.started)
    assert client.started[0]["prompt"] == [5, 6]


def test_a_live_output_stores_the_rounds_so_far(run: FakeRun) -> None:
    live = w.live(run, FakeClient())
    assert "had no rounds" in live.snapshot()
    run.record(3)
    assert "τ" in live.snapshot()


def test_a_remote_run_has_its_backend() -> None:
    client: Any = FakeClient()
    base_message = {"header": None, "rounds": [], "footer": None, "seq": 0}
    first = {"run": "run-1", "state": "cancelled", "message": "", **base_message}
    live = w.live(RemoteRun(client, iter([first])))
    assert live._calls.client is client


def test_a_run_without_a_known_backend_is_refused(run: FakeRun) -> None:
    with pytest.raises(WorkbenchError, match="live\\(run, wb\\)"):
        w.live(run)


# -- links and figures -----------------------------------------------------------------------------------------------


def test_a_link_contains_the_settings_in_the_apps_format(trace: Trace) -> None:
    link = w.app_link(trace, pin={"round": 2, "token": 1}, view="tree")
    asked = {name: value[0] for name, value in parse_qs(urlsplit(link.url).query).items()}
    assert link.url.startswith("http://localhost:7860/?")
    for name in ("target", "drafter", "method", "prompt"):
        assert asked[name] == getattr(trace.header, name)
    assert (asked["depth"], asked["round"], asked["token"], asked["view"]) == (
        str(trace.header.params["depth"]),
        "3",
        "1",
        "tree",
    )


def test_a_link_is_safe_in_html_and_uses_http_only() -> None:
    html = w.app_link(make_hostile_trace(), '"><script>')._repr_html_()
    assert "<script" not in html
    assert html.count("<") == 2
    with pytest.raises(ValueError, match="not the address"):
        w.app_link(make_hostile_trace(), base="javascript:alert(1)")


def test_a_figure_is_small_plain_json_with_a_static_version() -> None:
    go, np = pytest.importorskip("plotly.graph_objects"), pytest.importorskip("numpy")
    stored = w.figure(
        go.Figure(go.Scatter(x=np.arange(50), y=np.arange(50.0)), layout={"title": "T"})
    )._repr_mimebundle_()
    text = json.dumps(stored, allow_nan=False)
    assert len(text) < 40_000, "no copy of Plotly"
    assert "bdata" not in text
    assert "<svg" in stored[HTML]
    assert stored["application/vnd.plotly.v1+json"]["data"][0]["x"][:3] == [0, 1, 2]
    with pytest.raises(TypeError, match="Plotly figure"):
        w.figure("not one")
