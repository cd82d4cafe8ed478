"""Notebook widgets that show recorded traces."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import anywidget
import ipywidgets
import traitlets
from IPython.display import display as publish

from workbench.trace.events import Trace
from workbench.widgets import snapshot
from workbench.widgets.sources import Sources, get_sources

PARTS = ("round", "node", "token", "patch", "trace")
"""Names of the elements of a trace that can be selected in a widget.

The value of each is an index from 0; `node` may also be "target", the token that the target generated itself.
"""


VIEW = "application/vnd.jupyter.widget-view+json"


class Widget(anywidget.AnyWidget):
    """Base class of the notebook widgets: the app's JavaScript draws them, and the output has a plain HTML snapshot."""

    _esm = Path(__file__).with_name("boot.js").read_text(encoding="utf-8")
    _sources = traitlets.Instance(Sources).tag(sync=True, **ipywidgets.widget_serialization)
    _own = traitlets.Unicode().tag(sync=True)
    kind = traitlets.Unicode("stage").tag(sync=True)

    def __init__(self, **traits: Any) -> None:
        identity = uuid.uuid4().hex
        super().__init__(_own=identity, model_id=identity, **traits)

    def snapshot(self) -> str:
        """Return the widget as plain HTML, which the notebook stores."""
        raise NotImplementedError

    def _repr_mimebundle_(self, **kwargs: Any) -> Any:
        return with_snapshot(super()._repr_mimebundle_(**kwargs), self.snapshot())

    def _ipython_display_(self) -> None:
        display_with_snapshot(super()._repr_mimebundle_(), self.snapshot(), self._own)


class View(Widget):
    """Notebook widget that shows one or several traces.

    Attributes:
        selection: selected element, synchronised between Python and the browser: `round`, and `token`, `node`, `patch`
            or `trace`, as indices from 0; `{}`: nothing is selected.
    """

    selection = traitlets.Dict().tag(sync=True)
    _given = traitlets.Dict().tag(sync=True)

    def __init__(self, kind: str, trace_data: dict[str, Any], draw: Callable[[View], str], **traits: Any) -> None:
        self._trace_data, self._draw = trace_data, draw
        sources = get_sources("vision" if kind in ("vision", "live") else "live")
        super().__init__(kind=kind, _given=_to_wire(trace_data), _sources=sources, **traits)

    @property
    def trace(self) -> Any:
        """Return the trace that is shown; set the property to show another one."""
        return self._trace_data.get("trace")

    @trace.setter
    def trace(self, trace: Trace) -> None:
        self._trace_data = self._trace_data | {"trace": trace, "beside": None}
        with self.hold_sync():
            self._given, self.selection = _to_wire(self._trace_data), {}

    def snapshot(self) -> str:
        return snapshot.wrap(self._draw(self))

    @traitlets.validate("selection")
    def _selected(self, proposal: Any) -> dict[str, Any]:
        return check_selection(proposal["value"])


def check_selection(selection: dict[str, Any]) -> dict[str, Any]:
    """Check the selection of a widget, and return it without the entries that are None.

    Raises:
        TraitError: the selected element does not exist, or a value is not an integer of at least 0.
    """
    parts = {name: value for name, value in selection.items() if value is not None}
    for name, value in parts.items():
        if name == "on" and value in ("run", "beside"):
            continue
        words = ("target", "-1") if name == "node" else ()
        number = isinstance(value, int) and not isinstance(value, bool) and value >= (-1 if name == "node" else 0)
        if name not in PARTS or not (number or value in words):
            raise traitlets.TraitError(f"{name}={value!r} cannot be selected. Use {', '.join(PARTS)} from 0 up.")
    return parts


def _to_wire(given: dict[str, Any]) -> dict[str, Any]:
    def plain(value: Any) -> Any:
        return value.to_wire() if isinstance(value, Trace) else value

    return {
        name: [plain(item) for item in value] if isinstance(value, list) else plain(value)
        for name, value in given.items()
    }


def with_snapshot(bundle: Any, html: str) -> Any:
    """Add an HTML snapshot to the mime bundle of a widget.

    A notebook front end shows the widget if it can, otherwise the snapshot.
    """
    if bundle is None:
        return {"text/html": html}
    data, metadata = bundle if isinstance(bundle, tuple) else (bundle, {})
    return {**data, "text/html": html}, metadata


SNAPSHOT_CLASS = "wb-still"
"""CSS class of a widget's snapshot, which is a separate notebook output after the widget.

The script `boot.js` hides the snapshot if the widget is drawn.
"""


PLACEHOLDER = "<!-- the picture of this widget is the next output -->"


def display_with_snapshot(bundle: Any, html: str, number: str) -> None:
    """Display a widget, and after it the snapshot as a separate output, which is hidden once the widget is drawn.

    In a common mime bundle the snapshot would be lost: nbconvert, and JupyterLab after a restart of the kernel, choose
    the widget from the bundle, although they cannot draw it, and ignore the snapshot.

    Args:
        bundle: mime bundle of the widget.
        html: snapshot of the widget.
        number: id that distinguishes this widget's snapshot from others.
    """
    data, metadata = bundle if isinstance(bundle, tuple) else (bundle or {}, {})
    if live := {kind: value for kind, value in data.items() if kind == VIEW}:
        publish(live | {"text/html": PLACEHOLDER}, metadata=metadata, raw=True)
    if html:
        still = f'<div class="{SNAPSHOT_CLASS} {SNAPSHOT_CLASS}-{number}">{html}</div>'
        publish({"text/html": still, "text/plain": data.get("text/plain", "")}, raw=True)


def stage(trace: Trace, other: Trace | None = None) -> View:
    """Show the whole Live view of a trace. `other` is a trace of plain decoding of the same prompt, for comparison."""
    return View("stage", {"trace": trace, "beside": other}, lambda v: snapshot.stage(v.trace, v._trace_data["beside"]))


def ribbon(trace: Trace) -> View:
    """Show a trace's text with the status of each token, grouped by round."""
    return View("tokens", {"trace": trace, "beside": None}, lambda view: snapshot.ribbon(view.trace))


def tree(trace: Trace, round: int = 0) -> View:
    """Show the draft tree of a round, and the details of the selected node. `round` is an index from 0."""

    def draw(view: View) -> str:
        return snapshot.tree(view.trace, view.selection.get("round", 0))

    return View("tree", {"trace": trace, "beside": None}, draw, selection={"round": round})


def curves(trace: Trace) -> View:
    """Show curves of a trace: acceptance rate and speed over time, by position, and by round."""
    return View("curves", {"trace": trace, "beside": None}, lambda view: snapshot.curves(view.trace))


def lane(traces: Trace | Sequence[Trace], names: Sequence[str] | None = None) -> View:
    """Show the time per phase (draft, verify, …) of one or several traces on a common time axis.

    Args:
        traces: one trace, or several.
        names: names of the traces; by default their methods.

    Raises:
        ValueError: there is no trace, or the numbers of names and traces differ.
    """
    if isinstance(traces, Trace):
        return View("clock", {"trace": traces, "beside": None}, lambda view: snapshot.lane([view.trace], names))
    trace_list = list(traces)
    if not trace_list or (names is not None and len(names) != len(trace_list)):
        raise ValueError(
            "Give one name for each trace, and at least one trace. "
            f"There are {len(trace_list)} traces and the names {names!r}."
        )
    lane_names = [str(name) for name in names] if names is not None else [t.header.method for t in trace_list]
    rows = [
        {"name": name, "rounds": [_times(r) for r in t.rounds]} for name, t in zip(lane_names, trace_list, strict=True)
    ]
    return View("lanes", {"traces": rows}, lambda view: snapshot.lane(trace_list, lane_names))


def _times(round: Any) -> dict[str, Any]:
    """Return the fields of a round that the time axis shows; other fields are not sent to the browser."""
    wire = round.to_wire()
    names = ("index", "started_s", "seconds", "draft_s", "verify_s", "waited_s", "overhead_s", "phases")
    return {name: wire[name] for name in names} | {"emitted": [e["kind"] for e in wire["emitted"]]}


def vision(trace: Trace, other: Trace | None = None) -> View:
    """Show the image data that target and drafter get, and the text. `other` is a trace with another drafter."""
    return View(
        "vision", {"trace": trace, "beside": other}, lambda v: snapshot.vision(v.trace, v._trace_data["beside"])
    )


def link(*views: Any) -> list[Any]:
    """Synchronise the selections of several widgets. Return the links; the method `unlink` of a link ends it."""
    first, *others = views
    first.selection = next((view.selection for view in views if view.selection), {})
    return [traitlets.link((first, "selection"), (other, "selection")) for other in others]


class Show(ipywidgets.VBox):
    """Notebook widget that shows several widgets one below the other, with their snapshots."""

    def __init__(self, children: Sequence[Any]) -> None:
        self._own = uuid.uuid4().hex
        # This style hides the snapshot while the box is drawn; it disappears together with the box.
        hiding_style = ipywidgets.HTML(f"<style>.{SNAPSHOT_CLASS}-{self._own} {{ display: none }}</style>")
        hiding_style.layout.display = "none"
        super().__init__([*children, hiding_style])

    def snapshot(self) -> str:
        """Return the HTML of the widgets' snapshots, one below the other; controls have no snapshot."""
        return "".join(child.snapshot() for child in self.children if hasattr(child, "snapshot"))

    def _repr_mimebundle_(self, **kwargs: Any) -> Any:
        bundle, html = super()._repr_mimebundle_(**kwargs), self.snapshot()
        return with_snapshot(bundle, html) if html else bundle

    def _ipython_display_(self) -> None:
        display_with_snapshot(super()._repr_mimebundle_(), self.snapshot(), self._own)


def show(*widgets: Any) -> Show:
    """Return a widget that shows several widgets, one below the other, as one output."""
    return Show(list(widgets))
