"""Sweep tab: measure a grid of values of one or two settings, and show the results as a heat map while measuring."""

from __future__ import annotations

import atexit
import base64
import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import AsyncGenerator, Callable, Generator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import psutil

from workbench.client import Client, wire
from workbench.client.requests import Conditions, Models, SweepRequest
from workbench.core.errors import CapacityError, ParameterError, UnknownNameError, WorkbenchError
from workbench.server.access_control import is_user
from workbench.ui import space
from workbench.ui.files import PLOTLY
from workbench.ui.hosting import add_view
from workbench.ui.jobs import Jobs
from workbench.ui.session import Session
from workbench.views import recorded_runs

FILES = ("csv", "parquet")
CELLS = 100
"""Maximum number of cells of a sweep on a page."""
VISITORS = "workbench-sweeps-"
"""Prefix of the names of temporary folders for sweeps of users of other machines, before the process id."""
FOLDERS = 64
"""Maximum number of stored sweeps, which can be continued after a restart; the oldest are deleted."""


def add(client: Client) -> None:
    """Add the content of the Sweep tab. Call this inside the tab's `gr.Tab`."""
    view = SweepView(client)
    add_view("sweep", view.server_functions(), decode=view.decode, tab="sweep", elem_id="wb-sweep")


@cache
def folder() -> Path:
    """Return the folder of saved sweeps: `WORKBENCH_SWEEPS`, or by default a folder next to the saved runs.

    In a public app it is a temporary folder.
    """
    variable = os.environ.get("WORKBENCH_SWEEPS")
    if variable:
        return Path(variable)
    if space.detect().public:
        return visitors_folder()
    from workbench.trace.store import default_folder

    return default_folder().parent / "sweeps"


@cache
def visitors_folder() -> Path:
    """Return a temporary folder for sweeps of users of other machines; it is deleted when the app ends.

    Sweeps in this folder neither replace nor continue sweeps of the user of this machine. Temporary folders of apps
    that were killed are deleted by this function.
    """
    for old_folder in Path(tempfile.gettempdir()).glob(f"{VISITORS}*-*"):
        pid = old_folder.name.removeprefix(VISITORS).partition("-")[0]
        if pid.isdecimal() and old_folder.stat().st_uid == os.getuid() and not psutil.pid_exists(int(pid)):
            shutil.rmtree(old_folder, ignore_errors=True)
    path = tempfile.mkdtemp(prefix=f"{VISITORS}{os.getpid()}-")
    atexit.register(shutil.rmtree, path, ignore_errors=True)
    return Path(path)


@dataclass(slots=True)
class Job:
    """Sweep (measurements of a grid of settings) that a page has started or opened."""

    update: Any
    folder: Any


class SweepView:
    """Python functions that the Sweep tab in the browser calls. They use a `Client`."""

    def __init__(self, client: Client) -> None:
        self.client = client
        self._session = Session(client)
        self._jobs: Jobs[Job] = Jobs()

    def server_functions(self) -> list[Callable[[dict[str, Any]], Any]]:
        """Return the Python functions that the Sweep tab in the browser may call, by name."""
        return [self.catalogue, self.stop, self.trace, self.table, self.kept, self.open, self.example]

    def catalogue(self, request: dict[str, Any]) -> dict[str, Any]:
        """Return the data of the Sweep tab's side panel."""
        from workbench.bench.comparison_figures import METRICS, THEORY
        from workbench.bench.grid import OPTIONS
        from workbench.bench.prompts import groups_of, load_prompts

        data: dict[str, Any] = {
            "groups": groups_of(load_prompts()),
            "options": [spec.to_wire() for spec in OPTIONS.values()],
        }
        data |= {
            "metrics": METRICS,
            "theory": THEORY,
            "plotly": PLOTLY,
            "most": CELLS,
            "numbers": SweepRequest.numbers(),
        }
        return self._session.catalogue(request) | data

    def example(self, request: dict[str, Any]) -> dict[str, Any]:
        """Return a recorded sweep (key `made`), which the Sweep tab shows before the first measurement.

        It is empty if there is no recording. The sweep's Python code and command line are regenerated, because modules
        may have been renamed since the recording.
        """
        from workbench.bench.grid import Sweep

        recording = recorded_runs.example("sweep")
        if recording:
            sweep = Sweep.from_wire(recording["sweep"])
            recording |= {"code": sweep.code(), "command": sweep.command()}
        return {"made": recording, "plotly": PLOTLY}

    def stop(self, request: dict[str, Any]) -> dict[str, Any]:
        """End a running sweep; finished cells remain available."""
        self._jobs.stop(request.get("job"))
        return {}

    def trace(self, request: dict[str, Any]) -> dict[str, Any]:
        """Return the trace of one cell of a sweep, for display in the Live view."""
        job = self._jobs.get(request.get("job"))
        result = job.update.results.get(request.get("cell"))
        trace = None if result is None else job.folder.trace(result)
        if trace is None:
            raise UnknownNameError("No trace is stored for this cell.", "Choose a measured cell.")
        return trace.to_wire()

    def table(self, request: dict[str, Any]) -> dict[str, Any]:
        """Return the table of a sweep, one row per cell, as a CSV or Parquet file in base64."""
        from workbench.bench.tables import as_bytes

        kind = request.get("kind")
        if kind not in FILES:
            raise WorkbenchError("This file format is not supported.", f"Use {' or '.join(FILES)}.")
        return {"data": base64.b64encode(as_bytes(self._jobs.get(request.get("job")).update.rows(), kind)).decode()}

    def kept(self, request: dict[str, Any]) -> dict[str, Any]:
        """List the saved sweeps, newest first, with one entry per sweep and set of conditions.

        Each entry has id, title, method, target, done and total (numbers of cells), date, on (device, dtype, machine),
        and writing. Users of other machines get an empty list: see `workbench.server.access_control`.
        """
        from workbench.bench.sweepfolder import SweepFolder

        lines = []
        for path in folder().glob("*/sweep.json") if is_user() else ():
            saved = SweepFolder(path.parent)
            writing = saved.is_locked
            lines += [{**line, "writing": writing} for line in lines_of(saved)]
        return {"kept": sorted(lines, key=lambda line: line["date"], reverse=True)}

    def open(self, request: dict[str, Any]) -> dict[str, Any]:
        """Open a saved sweep: return all cells, and the id of a job under which traces and tables can be requested."""
        from workbench.bench.sweep import load_updates
        from workbench.bench.sweepfolder import SweepFolder

        name, _, number = wire.check_text("id", request.get("id")).partition("/")
        if not is_user() or name not in {
            path.parent.name for path in folder().glob("*/sweep.json")
        }:  # a name never becomes a path
            raise UnknownNameError("This sweep is no longer stored here.", "Run the sweep again.")
        saved = SweepFolder(folder() / name)
        updates = load_updates(saved)
        if not number.isdecimal() or int(number) >= len(updates):
            raise UnknownNameError("This sweep is no longer stored here.", "Run the sweep again.")
        update = updates[int(number)]
        job = self._jobs.add(Job(update, saved))
        return {"job": job, "sweep": scrubbed(update.to_wire(everything=True))}

    def decode(
        self, request: dict[str, Any], user: str = "local", is_from_user: bool = True
    ) -> AsyncGenerator[dict[str, Any], None]:
        """Measure a sweep, and yield messages: the first one has all cells, each later one the changed cells.

        Args:
            request: `axes` (a list of {name, values}), the settings of a `workbench.bench.grid.Sweep`, `channel` (the
                page's name for the measurement), and `anew` (true: measure again; the earlier results are kept).
            user: key of the runs' user, for limits and for fair scheduling among users.
            is_from_user: whether the request may come from the user of this machine; sweeps of other users are saved in
                another folder.
        """

        def begin(job: str, stopped: Callable[[], bool]) -> Generator[dict[str, Any], None, None]:
            sweep = self._parse_sweep(request)
            return self._messages(job, sweep, request.get("anew") is True, is_from_user, user, stopped)

        return self._jobs.follow(begin, str(request.get("channel", "")))

    def _parse_sweep(self, request: dict[str, Any]) -> Any:
        """Check the values in a request for a sweep, and return the sweep."""
        from workbench.bench.grid import Sweep

        axes = request.get("axes")
        if not isinstance(axes, list) or not all(isinstance(axis, dict) for axis in axes):
            raise ParameterError(
                "The axes are not a list.", 'Give a list, as in [{"name": "depth", "values": [1, 2]}].'
            )
        axis_values = {wire.check_text("An axis", axis.get("name")): self._values(axis) for axis in axes}
        models = Models.options(self.client, request)
        group = wire.check_names("group", request["group"]) if request.get("group") else ()
        checked = SweepRequest.options(self.client, request)
        numbers = {name: value for name, value in checked.items() if name in request}
        sweep = Sweep.of(
            axis_values,
            method=wire.check_text("method", request.get("method", "draft-model")),
            params=wire.check_params(request.get("params")),
            **models,
            group=group,
            **numbers,
        )
        if (count := len(sweep.cells())) > CELLS:
            raise CapacityError(
                f"This sweep has {count} cells; the limit here is {CELLS}.", "Use workbench sweep for more cells."
            )
        return sweep

    def _values(self, axis: dict[str, Any]) -> list[Any]:
        """Check and return the values of a sweep's axis. Model names must be listed by this app, or be Hub ids."""
        from workbench.bench.lanes import Lane

        name, values = axis.get("name"), axis.get("values")
        if not isinstance(values, list) or not 0 < len(values) <= CELLS:
            raise ParameterError(f"The values of {str(name)[:40]} are not a list.", f"Give 1 to {CELLS}.")
        if name == "method":
            return [str(Lane.of(Conditions.options(self.client, {"lane": value})["lane"])) for value in values]
        if name in Models.model_fields:
            return [Models.options(self.client, {name: value})[name] for value in values]
        return list(wire.check_params({f"value {i}": value for i, value in enumerate(values)}).values())

    def _messages(
        self, job: str, sweep: Any, anew: bool, is_from_user: bool, user: str, stopped: Callable[[], bool]
    ) -> Generator[dict[str, Any], None, None]:
        from workbench.bench.sweep import backend_workers, run
        from workbench.bench.sweepfolder import SweepFolder, delete_oldest

        target_folder = sweep_folder(
            sweep, anew, folder() if is_from_user else visitors_folder()
        )  # may create a folder; runs only once a reader requests the first message
        delete_oldest(target_folder.parent, FOLDERS)
        is_first, last_progress = True, None
        for update in run(sweep, backend_workers(self.client, user), target_folder, stopped):
            self._jobs.keep(job, Job(update, SweepFolder(target_folder)))
            progress = (update.done, update.text, update.note)
            yield (
                {"sweep": scrubbed(update.to_wire(everything=is_first or update.last))}
                if progress != last_progress or update.last
                else {}
            )
            is_first, last_progress = False, progress


def sweep_folder(sweep: Any, anew: bool, parent: Path | None = None) -> Path:
    """Return the newest existing folder of a sweep; with `anew`, a new folder beside it.

    `parent`: the folder of all sweeps; None: the folder of the user of this machine.
    """
    from workbench.bench.sweepfolder import generations, next_generation

    target_folder = (parent or folder()) / hashlib.sha256(
        json.dumps(sweep.to_wire(), sort_keys=True).encode()
    ).hexdigest()[:20]
    return next_generation(target_folder) if anew else next(reversed(generations(target_folder)), target_folder)


def lines_of(place: Any) -> list[dict[str, Any]]:
    """Return the entries for a sweep's folder in the list of saved sweeps, one per set of conditions.

    The result is empty if the folder cannot be read.

    Conditions are machine, software and models. In an entry, a setting that varies along an axis of the sweep is empty.
    """
    from workbench.bench.sweep import load_updates

    try:
        updates = load_updates(place)
    except WorkbenchError:
        return []
    lines = []
    for i, update in enumerate(updates):
        axes = [axis.name for axis in update.sweep.axes]
        fixed = {name: "" if name in axes else getattr(update.sweep, name) for name in ("method", "target")}
        line = {"id": f"{place.folder.name}/{i}", "title": " × ".join(axes), "done": update.done, "total": update.total}
        lines.append(line | fixed | update.latest_measurement)
    return lines


def scrubbed(update: dict[str, Any]) -> dict[str, Any]:
    """Remove paths and access tokens from the error messages of a sweep's cells."""
    for cell in update["cells"]:
        cell["error"] = wire.scrub(cell["error"])
    return update
