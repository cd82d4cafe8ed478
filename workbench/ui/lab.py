"""Lab tab: train heads on this machine, compare their training curves, and draft with the heads in the app."""

from __future__ import annotations

import atexit
import importlib.util
import threading
from collections.abc import Callable
from typing import Any

from workbench.client import Client, wire
from workbench.core.errors import MethodUnavailableError
from workbench.core.params import params_of
from workbench.service.lab.supervisor import Lab
from workbench.service.lab.training_requests import Budget, TrainingRequest, heads, methods_of
from workbench.ui.hosting import add_view
from workbench.ui.recorded_training import recorded_training
from workbench.ui.saved_runs import SavedRunsView

COMPARED = 8
"""Maximum number of training runs whose curves are drawn together with the curves of the opened run."""
NOT_HERE = (
    "Training starts processes on the server, so the Lab is disabled in public apps: Spaces, ZeroGPU, and apps "
    "started with --public. Start the workbench on your own machine (python app.py) and open the Lab there."
)
NOT_YOURS = (
    "Training starts processes on this server, so only the user of this machine may use the Lab. Open it on the "
    "machine that runs the app, or start the app with --api-key: everyone who has the key may then use the Lab."
)
NOT_INSTALLED = (
    "Training curves are saved as TensorBoard event files. Run pip install tensorboardX, then restart the app."
)


def add(client: Client, saved_runs: SavedRunsView) -> None:
    """Add the content of the Lab tab. Call this inside the tab's `gr.Tab`.

    Args:
        client: client that lists targets and loads the heads with which the app drafts.
        saved_runs: object that decides whether the current request may come from the user of this machine.
    """
    view = LabView(client, saved_runs)
    add_view("lab", view.server_functions(), tab="lab", elem_id="wb-lab")
    threading.Thread(target=view.promote_again, daemon=True).start()


class LabView:
    """Python functions that the Lab tab in the browser calls, for the training of heads.

    The browser sends no paths: it names training runs by ids, and targets by their names in the list.

    Args:
        client: a `workbench.client.Workbench`, or anything with the same methods.
        saved_runs: object that decides whether the current request may come from the user of this machine.
        lab: the lab (training runs in a folder); by default that of the user of this machine.
    """

    def __init__(self, client: Client, saved_runs: SavedRunsView, lab: Lab | None = None) -> None:
        self.client, self._saved_runs, self._lab = client, saved_runs, lab

    def server_functions(self) -> list[Callable[[dict[str, Any]], Any]]:
        """Return the Python functions that the Lab tab in the browser may call, by name."""
        return [
            self.offer,
            self.example,
            self.runs,
            self.train,
            self.stop_training,
            self.resume,
            self.promote,
            self.forget,
        ]

    def offer(self, request: dict[str, Any]) -> dict[str, Any]:
        """Return the data of the Lab tab's form.

        Key `barred`: reason why training is disabled (empty: it is enabled).
        """
        barred, fields = self.unavailable_reason(), ("name", "title", "available", "reason", "detail")
        rate = (lambda _: None) if barred else self._open().rate
        targets = [
            {key: target.get(key) for key in fields if key in target} | {"rate": rate(target["name"])}
            for target in self.client.targets()
            if target.get("kind") != "hub"
        ]
        return {
            "barred": barred,
            "heads": [
                {"name": kind, "title": title, "method": next(iter(methods_of(kind)), None)}
                for kind, title in heads().items()
            ],
            "targets": targets,
            "params": [spec.to_wire() for spec in params_of(Budget()).values()],
            "swaps": "heads" in self.client.capabilities,
        }

    def example(self, request: dict[str, Any]) -> dict[str, Any]:
        """Return the recorded training run that the Lab tab shows while it has no runs; empty if there is none."""
        return recorded_training()

    def unavailable_reason(self) -> str:
        """Return the reason why the Lab tab is disabled for the client of the current request; "" if it is enabled."""
        if not self._saved_runs.is_allowed:
            return NOT_YOURS if self._saved_runs.is_enabled else NOT_HERE
        return "" if importlib.util.find_spec("tensorboardX") else NOT_INSTALLED

    def runs(self, request: dict[str, Any]) -> dict[str, Any]:
        """Return summaries of all training runs, newest first, and details of those that the request names.

        Key `opened` of the request is the id of a training run to return in full; key `compared` is a list of ids of
        training runs whose curves to return.
        """
        lab, opened = self._open(), request.get("opened")
        requested = request.get("compared")
        compared = {str(name) for name in requested[:COMPARED]} if isinstance(requested, list) else set()
        summaries, opened_run, curves = [], None, {}
        for run in lab.runs():
            if run.id == opened:
                opened_run = run.details()
            if run.id in compared:
                curves[run.id] = run.curves()
            summaries.append({key: value for key, value in run.summary().items() if key != "curves"})
        return {"runs": summaries, "opened": opened_run, "compared": curves}

    def train(self, request: dict[str, Any]) -> dict[str, Any]:
        """Start a training run with the `head`, `target` and `options` of the request, and return its id."""
        names = [target["name"] for target in self.client.targets() if target.get("available", True)]
        options = request.get("options") or {}
        training_request = TrainingRequest.of(
            wire.check_text("head", request.get("head"), 100),
            wire.check_text("target", request.get("target"), 200),
            wire.check_params(options),
            names,
        )
        return {"id": self._open().start(training_request).id}

    def stop_training(self, request: dict[str, Any]) -> dict[str, Any]:
        """Signal a training run to save a checkpoint and end after its current step."""
        return {"id": self._open().stop(request.get("id")).id}

    def resume(self, request: dict[str, Any]) -> dict[str, Any]:
        """Continue a training run from its last checkpoint."""
        return {"id": self._open().resume(request.get("id")).id}

    def promote(self, request: dict[str, Any]) -> dict[str, Any]:
        """Draft with a training run's head in this app, even in running generations; with `on` False, stop that."""
        lab = self._open()
        if "heads" not in self.client.capabilities:
            raise MethodUnavailableError("This backend cannot load new heads.", "Start the backend with --head FOLDER.")
        run = lab.run(request.get("id"))
        result = lab.promote(run.id, self.client.prefer_heads, request.get("on") is not False)
        return result | {"method": next(iter(methods_of(run.record["head"])), None), "target": run.record["target"]}

    def promote_again(self) -> None:
        """Draft again with the heads of the Lab tab that the app used when it last ended."""
        if self._saved_runs.is_enabled and "heads" in self.client.capabilities:
            (self._lab or Lab()).restore_promotions(self.client.prefer_heads)

    def forget(self, request: dict[str, Any]) -> dict[str, Any]:
        """Delete a training run; the app stops drafting with its head."""
        options = {"prefer_heads": self.client.prefer_heads} if "heads" in self.client.capabilities else {}
        self._open().delete(request.get("id"), **options)
        return {}

    def _open(self) -> Lab:
        """Return the `Lab` object, which manages the training runs.

        Raises:
            MethodUnavailableError: the Lab tab is disabled for this caller.
        """
        if reason := self.unavailable_reason():
            message, _, remedy = reason.partition(": ")
            raise MethodUnavailableError(f"{message}.", remedy)
        if self._lab is None:
            self._lab = Lab()
            atexit.register(self._lab.close)
        return self._lab
