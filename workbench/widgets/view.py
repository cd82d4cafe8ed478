"""Widgets that show traces that were recorded."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import anywidget
import ipywidgets
import traitlets

from workbench.trace.events import Trace
from workbench.widgets import snapshot


class View(anywidget.AnyWidget):
    """A view of one trace or several. `selection` is what is pinned, in both directions.

    Attributes:
        selection: `round`, and `token`, `node` or `patch`, from 0, as in a trace; `{}` while nothing is pinned.
    """

    selection = traitlets.Dict().tag(sync=True)
    _esm = "export default { render({ model, el }) { el.textContent = 'workbench ' + model.get('kind'); } };"

    kind = traitlets.Unicode("stage").tag(sync=True)

    def __init__(self, kind: str, traces: Sequence[Trace], draw: Callable[[], str], **traits: Any) -> None:
        self._traces, self._draw = list(traces), draw
        super().__init__(kind=kind, **traits)

    @property
    def trace(self) -> Trace:
        """The trace that is shown; set it to show another one."""
        return self._traces[0]

    @trace.setter
    def trace(self, trace: Trace) -> None:
        self._traces[0] = trace

    def snapshot(self) -> str:
        """The view as plain HTML, as it is stored in the notebook."""
        return snapshot.wrap(self._draw())

    def _repr_mimebundle_(self, **kwargs: Any) -> Any:
        return with_snapshot(super()._repr_mimebundle_(**kwargs), self.snapshot())


def with_snapshot(bundle: Any, html: str) -> Any:
    """A widget's mime bundle with the picture beside the view: who cannot show the one shows the other."""
    if bundle is None:
        return {"text/html": html}
    data, metadata = bundle if isinstance(bundle, tuple) else (bundle, {})
    return {**data, "text/html": html}, metadata


def stage(trace: Trace, beside: Trace | None = None) -> View:
    """The whole Live view of a trace; `beside`: the trace of plain decoding it is compared with."""
    traces = [trace] if beside is None else [trace, beside]
    view = View("stage", traces, lambda: snapshot.stage(*view._traces))
    return view


def ribbon(trace: Trace) -> View:
    """The text by status, grouped by round."""
    view = View("tokens", [trace], lambda: snapshot.ribbon(view.trace))
    return view


def tree(trace: Trace, round: int = 0) -> View:
    """The draft tree of a round, and the card of the selected node."""
    view = View("tree", [trace], lambda: snapshot.tree(view.trace, view.selection.get("round", round)))
    view.selection = {"round": round}
    return view


def curves(trace: Trace) -> View:
    """Acceptance and speed over time, by position, and by round."""
    view = View("curves", [trace], lambda: snapshot.curves(view.trace))
    return view


def lane(traces: Sequence[Trace], names: Sequence[str] | None = None) -> View:
    """Where the time went, trace by trace, on one clock."""
    view = View("clock", list(traces), lambda: snapshot.lane(view._traces, names))
    return view


def vision(trace: Trace, beside: Trace | None = None) -> View:
    """What target and drafter see of the picture, and the text; `beside`: another drafter's trace of it."""
    traces = [trace] if beside is None else [trace, beside]
    view = View("vision", traces, lambda: snapshot.vision(*view._traces))
    return view


def link(*views: Any) -> list[Any]:
    """One selection for several widgets: what one pins, all pin. Returns the links, to `unlink` them."""
    first, *others = views
    return [traitlets.link((first, "selection"), (other, "selection")) for other in others]


class Show(ipywidgets.VBox):
    """Widgets below each other, with their pictures."""

    def _repr_mimebundle_(self, **kwargs: Any) -> Any:
        bundle = super()._repr_mimebundle_(**kwargs)
        pictures = [child.snapshot() for child in self.children if hasattr(child, "snapshot")]
        return with_snapshot(bundle, "".join(pictures)) if pictures else bundle


def show(*widgets: Any) -> Show:
    """Widgets below each other, as one output."""
    return Show(list(widgets))
