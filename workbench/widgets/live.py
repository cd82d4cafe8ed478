"""Show a running generation in a notebook. A thread follows the run, so that the kernel stays free."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Any

import traitlets

from workbench.client import Client, RunHandle, wire
from workbench.client.follow import follow
from workbench.core.errors import UnknownNameError, WorkbenchError
from workbench.core.panics import convert_panics
from workbench.ui.session import Session
from workbench.widgets import snapshot
from workbench.widgets.view import View

SLOW = ("explain", "export_parquet", "catalogue", "memory")
"""Names of slow calls from the browser. A thread answers them, so that the Stop button does not wait for them."""


class Live(View):
    """Notebook widget with the whole Live view of a running generation.

    A selection in the browser sets `selection`, and moving a slider changes the run.

    Attributes:
        run: handle of the displayed run; the Run button of the view starts another run and replaces the handle.
    """

    run_id = traitlets.Unicode().tag(sync=True)
    _catalogue = traitlets.Dict().tag(sync=True)

    def __init__(self, run: RunHandle, client: Client) -> None:
        self.run = run
        self._calls = WidgetSession(client, {run.id: run})
        self._answers = {answer.__name__: answer for answer in self._calls.server_functions()}
        self._is_ready = threading.Event()
        catalogue = self._calls.catalogue({})
        super().__init__("live", {}, _snapshot_html, run_id=run.id, _catalogue=catalogue)
        self.on_msg(self._on_message)
        self._follow(run, {})

    @property
    def trace(self) -> Any:
        """Return the trace of the run so far; None before the first round."""
        return self.run.trace

    def wait(self, timeout: float | None = None) -> Any:
        """Wait for the end of the run and return its trace, as `RunHandle.wait` does."""
        return self.run.wait(timeout)

    # -- to the browser ------------------------------------------------------------------------------------------

    def _follow(self, run: RunHandle, channel: dict[str, str]) -> None:
        name = f"workbench-widget-{run.id[:6]}"
        threading.Thread(target=lambda: asyncio.run(self._send_updates(run, channel)), name=name, daemon=True).start()

    async def _send_updates(self, run: RunHandle, channel: dict[str, str]) -> None:
        async for update in follow(run):
            if self.comm is None:
                return  # the widget is closed
            # Until the view reports that it is ready, send all rounds each time: messages before that are lost.
            message = update if self._is_ready.is_set() or not update else wire.scrub_update(run.since(0))
            if message:
                self.send({"news": channel | message})

    # -- from the browser ----------------------------------------------------------------------------------------

    def _on_message(self, _: Any, content: dict[str, Any], __: Any) -> None:
        self._is_ready.set()
        if "decode" in content:
            self._run_in_thread(lambda: self._decode(content["decode"]))
        elif content.get("call") in self._answers:
            answer = self._answers[content["call"]]
            if content["call"] in SLOW:
                self._run_in_thread(lambda: self._answer(content, answer))
            else:
                self._answer(content, answer)

    def _run_in_thread(self, work: Callable[[], None]) -> None:
        threading.Thread(target=work, name="workbench-widget-call", daemon=True).start()

    def _answer(self, content: dict[str, Any], answer: Callable[[dict[str, Any]], Any]) -> None:
        self.send({"id": content.get("id"), "answer": return_errors(lambda: answer(content.get("payload") or {}))})

    def _decode(self, request: dict[str, Any]) -> None:
        channel = {"channel": str(request.get("channel", ""))}
        started = return_errors(lambda: self._calls.begin(request))
        if isinstance(started, dict):
            self.send({"news": channel | started})
            return
        self.run = started
        self._follow(started, channel)


class WidgetSession(Session):
    """Session that answers the calls of a widget's view, for the runs of this widget only."""

    def __init__(self, client: Client, runs: dict[str, RunHandle]) -> None:
        super().__init__(client)
        self.runs = runs

    def server_functions(self) -> list[Callable[[dict[str, Any]], dict[str, Any]]]:
        """Return the Python functions that the widget in the browser may call, by name."""
        return [
            self.catalogue,
            self.control,
            self.change,
            self.fetch_trace,
            self.export_parquet,
            self.research,
            self.explain,
            self.memory,
        ]

    def explain(self, request: dict[str, Any]) -> dict[str, Any]:
        """Return the attribution of a run's text to regions of its image."""
        return {"attribution": self._run(request).explain()}

    def begin(self, request: dict[str, Any]) -> RunHandle:
        """Start another run with the settings in the side panel of the view."""
        run = self.client.start(**self._options(request) | self._keeping())
        self.runs[run.id] = run
        return run

    def _run(self, request: dict[str, Any]) -> RunHandle:
        run = self.runs.get(wire.check_text("run", request.get("run")))
        if run is None:
            raise UnknownNameError("The requested run was not started by this widget.", "Run the cell again.")
        return run


def return_errors(answer: Callable[[], Any]) -> Any:
    """Call `answer` and return its result; if it raises an error, return the error's message and remedy."""
    try:
        with convert_panics():
            return answer()
    except Exception as problem:
        return {"error": wire.error_to_wire(problem)}


def _snapshot_html(view: Any) -> str:
    trace = view.trace
    if trace is None or not trace.rounds:
        return "<p>The run had no rounds when this output was saved.</p>"
    return snapshot.vision(trace) if trace.header.pictures else snapshot.stage(trace)


def live(run: RunHandle, wb: Client | None = None) -> Live:
    """Show the Live view of a running generation in a notebook. Its buttons and parameters control the run.

    The snapshot stored in the notebook's output shows the rounds that were finished when the widget was displayed.
    Display the widget again after the run's end for a complete snapshot. `app_link(run=run.id)` opens the run in the
    app, if the app generates it.

    Args:
        run: result of `wb.start(…)` or `wb.run(id)`, in a private backend or in a running app.
        wb: the `Workbench` that the run came from; needed only if the run has no reference to it.

    Raises:
        WorkbenchError: `wb` is needed and missing.
    """
    client = wb or getattr(run, "_host", None) or getattr(run, "_connection", None)
    if client is None:
        raise WorkbenchError(
            "The backend of this run is unknown.", "Pass the backend as the second argument: live(run, wb)."
        )
    return Live(run, client)
