"""Calls from the pages to the store of saved runs on this machine. A public app saves no runs of its visitors."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from workbench.client import wire
from workbench.core.errors import ParameterError, UnknownNameError, WorkbenchError
from workbench.decoders.declarations import DRAFTERS
from workbench.methods import method_info
from workbench.server.access_control import is_user
from workbench.trace.events import Trace
from workbench.trace.ids import is_id
from workbench.views import recorded_runs

if TYPE_CHECKING:
    from workbench.trace.store import RunStore

PAGE = 12
"""Number of saved runs per page of the gallery."""
COLUMNS = (
    "created", "method", "target", "drafter", "device", "dtype", "temperature", "seed", "prompt", "max_new_tokens",
    "tokens", "rounds", "tau", "acceptance_rate", "tokens_per_second",
)  # fmt: skip
"""Columns of the table of saved runs that come from the store's index."""
MOST_ROWS = 1000
"""Maximum number of saved runs in the table of runs; it shows the newest ones."""
MOST_COMPARED = 200
"""Maximum number of saved runs in each of two groups that are compared."""
MAX_TEXT = 2000
"""Maximum number of characters of a search text, of all tags of a run, or of a note."""


def without_unused_drafter(entry: dict[str, Any]) -> dict[str, Any]:
    """Return a gallery entry without the draft model's name if none of the run's methods drafts with a draft model.

    A trace names the draft model that was loaded with the target, even if the method did not use it.
    """
    try:
        needed = any(DRAFTERS & set(method_info.get(name).needs) for name in entry["methods"] or [entry["method"]])
    except UnknownNameError:  # the needs of a method from another package are unknown
        return entry
    return entry if needed else entry | {"drafter": None}


class SavedRunsView:
    """Python functions about saved runs that the pages call. `workbench runs` uses the same store of runs.

    Args:
        allowed: whether the user of this machine may use the store of saved runs here. Other visitors that reach the
            page over the network without a key may not: see `workbench.server.access_control`. A refused call explains
            why.
    """

    def __init__(self, allowed: bool = False) -> None:
        self._allowed = allowed

    @property
    def is_allowed(self) -> bool:
        """Return whether the current request may use the store of saved runs."""
        return self._allowed and is_user()

    @property
    def is_enabled(self) -> bool:
        """Return whether the user of this machine may use the store of saved runs, whoever sent the current request."""
        return self._allowed

    def keep(self, request: dict[str, Any]) -> dict[str, Any]:
        """Save a trace from the browser, with its measured speed of plain decoding; return the saved run's id."""
        from workbench.trace import export  # Polars, which few visits need
        from workbench.trace.speedup import Baseline

        store = self._store()  # refuses other users before their data is read
        trace_data, baseline = request.get("trace"), Baseline.from_wire(request.get("baseline"))
        trace = export.read_wire(trace_data if isinstance(trace_data, dict) else {})
        return {"id": store.save(trace, baseline=baseline)}

    def kept(self, request: dict[str, Any]) -> dict[str, Any]:
        """Return the saved runs that match a search, newest first.

        `search` has words, #tags and conditions such as tau>=2; `first` is the number of runs to skip.

        The answer has: whether runs are saved here at all, the number of matching runs, one page of them, and the files
        that could not be read.
        """
        if not self.is_allowed:
            return {"allowed": False}
        words, tags, conditions = parse(_text(request, "search"))
        first = wire.check_integer("first", request.get("first") or 0)
        store = self._store()
        matches = store.find(text=words, tags=tags, where=conditions).select("id", "tags", "note").collect()
        runs, problems = [], [f"{name}: {reason}" for name, reason in sorted(store.problems.items())]
        for row in matches.slice(first, PAGE).to_dicts():
            try:
                runs.append(without_unused_drafter(recorded_runs.describe(row["id"], store.load(row["id"]))) | row)
            except WorkbenchError as problem:  # noqa: PERF203  # a damaged file hides no other run
                problems.append(f"{row['id']}: {problem}")
        return {"allowed": True, "total": len(matches), "page": PAGE, "runs": runs, "problems": problems}

    def table(self, request: dict[str, Any]) -> dict[str, Any]:
        """Return the table of runs: saved runs, newest first, then the recorded runs of the gallery.

        The answer has `rows`, one per run, and `total`, the number of saved runs, of which `rows` has at most
        `MOST_ROWS`.
        """
        rows, total = self._saved_rows() if self.is_allowed else ([], 0)
        return {"rows": rows + _recorded_rows(), "total": total}

    def _saved_rows(self) -> tuple[list[dict[str, Any]], int]:
        store = self._store()
        saved = store.find().select("id", *COLUMNS, "tags", "note").collect()
        rows: list[dict[str, Any]] = []
        for row in saved.head(MOST_ROWS).to_dicts():
            try:
                baseline = store.baseline(row["id"])
            except (WorkbenchError, OSError):  # deleted or damaged since it was listed
                baseline = None
            estimate = baseline.estimate if baseline else None
            rows.append(
                {name: row[name] for name in COLUMNS}
                | {"name": row["id"], "source": "kept", "tags": row["tags"], "note": row["note"]}
                | {"created": row["created"].isoformat(), "speedup": estimate.to_wire() if estimate else None}
            )
        return rows, len(saved)

    def significance(self, request: dict[str, Any]) -> dict[str, Any]:
        """Return the differences between two groups of saved runs in speed and acceptance, with confidence intervals.

        Keys `first` and `second` of the request are lists of names of runs. For the result see
        `workbench.bench.run_comparison.compare_runs`.
        """
        groups: list[list[Trace]] = []
        for side in ("first", "second"):
            names = request.get(side)
            if not isinstance(names, list) or not 0 < len(names) <= MOST_COMPARED:
                raise ParameterError(f"A group needs 1 to {MOST_COMPARED} runs.", "Select other runs.")
            groups.append([Trace.from_wire(self.recording(wire.check_text("name", name))) for name in names])
        from workbench.bench.run_comparison import compare_runs  # imports SciPy: only when needed

        return compare_runs(*groups)

    def prompts(self, target: str, last: int, is_from_user: bool) -> list[tuple[str, list[int]]]:
        """Return the prompts of a target's newest saved runs as (run id, token ids), each prompt once.

        Args:
            target: name of the target.
            last: maximum number of runs.
            is_from_user: whether the request may come from the user of this machine; calls in Gradio's queue must pass
                it.

        Raises:
            WorkbenchError: the target has no saved runs, or the client may not use the saved runs of this machine.
        """
        if not is_from_user:
            raise WorkbenchError("This app saves runs only for the user of this machine.", "Type prompts instead.")
        self._store()
        from workbench.bench.recommend import saved_run_prompts  # imports PyTorch: only when needed

        return [(prompt.name, prompt.ids) for prompt in saved_run_prompts(target, last)]

    def mark(self, request: dict[str, Any]) -> dict[str, Any]:
        """Replace the tags (comma-separated) and the note of a saved run; return the tags, sorted."""
        store, run = self._store(), _text(request, "id")
        new_tags = {tag.strip() for tag in _text(request, "tags").split(",") if tag.strip()}
        tags = store.tag(run, add=new_tags, remove=set(store.entry(run)["tags"]) - new_tags)
        store.note(run, _text(request, "note"))
        return {"tags": tags}

    def forget(self, request: dict[str, Any]) -> dict[str, Any]:
        """Delete a saved run."""
        self._store().delete(_text(request, "id"))
        return {}

    def recording(self, name: str) -> dict[str, Any]:
        """Return the trace of a saved run by its id, or of a recorded run in the gallery by its name.

        Key `baseline` has the measured speed of plain decoding, if it was saved.

        Raises:
            WorkbenchError: there is no run with this name, or runs are not saved here.
        """
        if is_id(name):
            store = self._store()
            if not store.has(name):
                raise UnknownNameError(f"No run {name} is saved on this machine.", "The Gallery lists all saved runs.")
            baseline = store.baseline(name)
            return store.load(name).to_wire() | ({"baseline": baseline.to_wire()} if baseline else {})
        return recorded_runs.load(name)

    def _store(self) -> RunStore:
        if not self.is_allowed:
            if self._allowed:
                raise WorkbenchError(
                    "This app saves runs only for the user of this machine.",
                    "Save the run as a file: export ▾. With --api-key, an app saves runs for all users of the key.",
                )
            raise WorkbenchError("A public app does not save runs.", "Save the run as a file: export ▾.")
        from workbench.trace.store import RunStore

        return RunStore()


def _recorded_rows() -> list[dict[str, Any]]:
    """Return a row of the table of runs for each recorded run in the gallery."""
    rows: list[dict[str, Any]] = []
    for entry in recorded_runs.index():
        baseline, figures = recorded_runs.baseline(entry["name"]), entry["figures"]
        estimate = baseline.estimate if baseline else None
        row = entry | figures | {"temperature": entry["params"].get("temperature"), "seed": str(entry["seed"])}
        rows.append(
            {name: row.get(name) for name in COLUMNS}
            | {"name": entry["name"], "source": "recorded", "tags": [], "note": ""}
            | {"speedup": estimate.to_wire() if estimate else None}
        )
    return rows


def parse(search: str) -> tuple[str, list[str], list[str]]:
    """Split the search text for saved runs into words, tags and conditions.

    Example:
        >>> parse("fox #story tau>=2")
        ('fox', ['story'], ['tau>=2'])
    """
    words: list[str] = []
    tags: list[str] = []
    conditions: list[str] = []
    for part in search.split():
        if part.startswith("#") and len(part) > 1:
            tags.append(part[1:])
        else:
            (conditions if any(sign in part for sign in "<>=") else words).append(part)
    return " ".join(words), tags, conditions


def _text(request: dict[str, Any], name: str) -> str:
    return wire.check_text(name, request.get(name) or "", MAX_TEXT)
