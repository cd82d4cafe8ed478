"""Compare tab: two to four methods are measured one at a time on the device, then replayed together as a race."""

from __future__ import annotations

import base64
from collections.abc import AsyncGenerator, Callable, Generator, Iterator
from typing import Any

from workbench.bench import bounds
from workbench.client import Client, wire
from workbench.client.requests import ComparisonRequest
from workbench.core.errors import UnknownNameError, WorkbenchError
from workbench.ui.files import PLOTLY
from workbench.ui.hosting import add_view
from workbench.ui.jobs import Jobs
from workbench.ui.session import Session
from workbench.views import recorded_runs, scenes

FILES = ("csv", "parquet")


def add(client: Client) -> None:
    """Add the content of the Compare tab. Call this inside the tab's `gr.Tab`."""
    view = CompareView(client)
    add_view("compare", view.server_functions(), decode=view.decode, tab="compare", elem_id="wb-compare")


class CompareView:
    """Python functions that the Compare tab in the browser calls. They use a `Client`."""

    def __init__(self, client: Client) -> None:
        self.client = client
        self._session = Session(client)
        self._jobs: Jobs[Any] = Jobs()

    def server_functions(self) -> list[Callable[[dict[str, Any]], Any]]:
        """Return the Python functions that the Compare tab in the browser may call, by name."""
        return [self.catalogue, self.stop, self.trace, self.table, self.example]

    def catalogue(self, request: dict[str, Any]) -> dict[str, Any]:
        """Return the data of the Compare tab's side panel, the bundled images, and the URL of the plotting library."""
        data: dict[str, Any] = self._session.catalogue(request) | {"plotly": PLOTLY}
        data |= {"numbers": ComparisonRequest.numbers(), "lanes": bounds.LANES}
        has_images = any(target.get("pictures") for target in data["targets"])
        return data | {"scenes": scenes.gallery() if has_images else [], "questions": scenes.questions()}

    def example(self, request: dict[str, Any]) -> dict[str, Any]:
        """Return a recorded comparison (key `made`), which the Compare tab shows before the first measurement.

        It is empty if there is no recording. Key `plotly`: URL of the plotting library.
        """
        return {"made": recorded_runs.example("compare"), "plotly": PLOTLY}

    def stop(self, request: dict[str, Any]) -> dict[str, Any]:
        """End a running comparison; its results so far remain available."""
        self._jobs.stop(request.get("job"))
        return {}

    def trace(self, request: dict[str, Any]) -> dict[str, Any]:
        """Return the trace of a compared method on a prompt, for display in the Live view."""
        comparison = self._jobs.get(request.get("job"))
        lane = next((lane for lane in comparison.lanes if lane.name == request.get("lane")), None)
        prompt = wire.check_integer("prompt", request.get("prompt") or 0)
        if lane is None or prompt not in lane.traces:
            raise UnknownNameError(
                "The comparison has no run of this lane and prompt.", "Choose a lane that was measured on this prompt."
            )
        return lane.traces[prompt].to_wire()

    def table(self, request: dict[str, Any]) -> dict[str, Any]:
        """Return the table of a comparison, one row per run, as a CSV or Parquet file in base64."""
        from workbench.bench.tables import as_bytes  # Polars, which few visits need

        kind = request.get("kind")
        if kind not in FILES:
            raise WorkbenchError("This file format is not supported.", f"Use {' or '.join(FILES)}.")
        rows = self._jobs.get(request.get("job")).rows()
        return {"data": base64.b64encode(as_bytes(rows, kind)).decode("ascii")}

    def decode(self, request: dict[str, Any], user: str = "local") -> AsyncGenerator[dict[str, Any], None]:
        """Compare methods, and yield messages whose key `step` is a `workbench.bench.compare.Step` as plain data."""

        def begin(job: str, stopped: Callable[[], bool]) -> Generator[dict[str, Any], None, None]:
            options = ComparisonRequest.options(self.client, request)
            steps = self.client.stream_comparison(**options, user=user, stopped=stopped)
            return self._messages(job, steps)

        return self._jobs.follow(begin, str(request.get("channel", "")))

    def _messages(self, job: str, steps: Iterator[Any]) -> Generator[dict[str, Any], None, None]:
        last_progress = None
        for step in steps:
            if step.comparison is not None:
                self._jobs.keep(job, step.comparison)
            progress = (step.done, step.text, step.waiting)
            yield {"step": step.to_wire()} if progress != last_progress or step.comparison is not None else {}
            last_progress = progress
