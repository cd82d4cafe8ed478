"""Runs kept on this machine: what the pages do with the run store. A public app keeps nothing for its visitors."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from workbench.client import wire
from workbench.core.errors import UnknownNameError, WorkbenchError
from workbench.engine.declarations import DRAFTERS
from workbench.methods import known
from workbench.server.door import is_user
from workbench.trace.ids import is_id
from workbench.views import recorded

if TYPE_CHECKING:
    from workbench.trace.store import RunStore

PAGE = 12
"""Runs that the gallery shows at once."""
MAX_TEXT = 2000
"""Characters of a search, of all tags, or of a note."""


def drafted_by(entry: dict[str, Any]) -> dict[str, Any]:
    """An entry of the gallery that names the draft model only where one of its methods drafts with it.

    A trace names what was loaded beside the target, whether or not its method asked for it.
    """
    try:
        needed = any(DRAFTERS & set(known.get(name).needs) for name in entry["methods"] or [entry["method"]])
    except UnknownNameError:  # a method from elsewhere: nothing is known against it
        return entry
    return entry if needed else entry | {"drafter": None}


class KeptRuns:
    """The calls of the pages about kept runs. Runs that are kept are shared with `workbench runs`.

    Args:
        allowed: whether this machine's user may use its store here. Who else reaches the page over the network, and
            needs no key for it, may not: see `workbench.server.door`. Every call says why.
    """

    def __init__(self, allowed: bool = False) -> None:
        self._allowed = allowed

    @property
    def allowed(self) -> bool:
        """Whether the request that is being answered may use the store."""
        return self._allowed and is_user()

    @property
    def offered(self) -> bool:
        """Whether this machine's user may use the store, whoever asks."""
        return self._allowed

    def keep(self, request: dict[str, Any]) -> dict[str, Any]:
        """Keep a trace that the browser holds, with the `baseline` that was measured beside it; answers its id."""
        from workbench.trace import export  # Polars, which few visits need
        from workbench.trace.speedup import Baseline

        store = self._store()  # refuses other users before their data is read
        held, baseline = request.get("trace"), Baseline.from_wire(request.get("baseline"))
        trace = export.read_wire(held if isinstance(held, dict) else {})
        return {"id": store.save(trace, baseline=baseline)}

    def kept(self, request: dict[str, Any]) -> dict[str, Any]:
        """Kept runs, newest first. `search`: words, #tags, conditions such as tau>=2; `first`: how many to leave out.

        Answers whether runs are kept here at all, how many were found, a page of them, and files that cannot be read.
        """
        if not self.allowed:
            return {"allowed": False}
        words, tags, where = parse(_text(request, "search"))
        first = wire.whole("first", request.get("first") or 0)
        store = self._store()
        found = store.find(text=words, tags=tags, where=where).select("id", "tags", "note").collect()
        runs, problems = [], [f"{name}: {why}" for name, why in sorted(store.problems.items())]
        for row in found.slice(first, PAGE).to_dicts():
            try:
                runs.append(drafted_by(recorded.describe(row["id"], store.load(row["id"]))) | row)
            except WorkbenchError as problem:  # noqa: PERF203  # a damaged file hides no other run
                problems.append(f"{row['id']}: {problem}")
        return {"allowed": True, "total": len(found), "page": PAGE, "runs": runs, "problems": problems}

    def prompts(self, target: str, last: int, mine: bool) -> list[tuple[str, list[int]]]:
        """Prompts of the newest kept runs of a target, each once: the run's id, and its token ids.

        Args:
            target: its name.
            last: how many at most.
            mine: whether who asks may be this machine's user; what is answered from a queue has to say.

        Raises:
            WorkbenchError: there are none, or runs are not kept here for who asks.
        """
        if not mine:
            raise WorkbenchError("Runs are kept here for this machine's user only.", "Write prompts, one a line.")
        self._store()
        from workbench.bench.recommend import of_kept_runs  # imports PyTorch: not before somebody asks

        return [(asked.name, asked.ids) for asked in of_kept_runs(target, last)]

    def mark(self, request: dict[str, Any]) -> dict[str, Any]:
        """Replace a run's tags (commas between them) and its note; answers the tags, in order."""
        store, run = self._store(), _text(request, "id")
        wanted = {tag.strip() for tag in _text(request, "tags").split(",") if tag.strip()}
        tags = store.tag(run, add=wanted, remove=set(store.entry(run)["tags"]) - wanted)
        store.note(run, _text(request, "note"))
        return {"tags": tags}

    def forget(self, request: dict[str, Any]) -> dict[str, Any]:
        """Delete a run."""
        self._store().delete(_text(request, "id"))
        return {}

    def recording(self, name: str) -> dict[str, Any]:
        """A trace by its name: a kept run's id, with its `baseline` if one was kept, or a recording of the gallery.

        Raises:
            WorkbenchError: there is none, or runs are not kept here.
        """
        if is_id(name):
            store = self._store()
            if not store.has(name):
                raise UnknownNameError(
                    f"No run {name} is kept on this machine.", "It may have been deleted. The Gallery lists what is."
                )
            baseline = store.baseline(name)
            return store.load(name).to_wire() | ({"baseline": baseline.to_wire()} if baseline else {})
        return recorded.load(name)

    def _store(self) -> RunStore:
        if not self.allowed:
            if self._allowed:
                raise WorkbenchError(
                    "Runs are kept here for this machine's user only.",
                    "Save the run as a file: export ▾. An app started with --api-key keeps runs for all who have it.",
                )
            raise WorkbenchError("A public app keeps no runs.", "Save the run as a file: export ▾.")
        from workbench.trace.store import RunStore

        return RunStore()


def parse(search: str) -> tuple[str, list[str], list[str]]:
    """Words, tags and conditions of a search.

    Example:
        >>> parse("fox #story tau>=2")
        ('fox', ['story'], ['tau>=2'])
    """
    words: list[str] = []
    tags: list[str] = []
    where: list[str] = []
    for part in search.split():
        if part.startswith("#") and len(part) > 1:
            tags.append(part[1:])
        else:
            (where if any(sign in part for sign in "<>=") else words).append(part)
    return " ".join(words), tags, where


def _text(request: dict[str, Any], name: str) -> str:
    return wire.text(name, request.get(name) or "", MAX_TEXT)
