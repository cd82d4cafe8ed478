"""Sweeps: one or two axes over anything that has a type, a comparison with plain decoding in every cell.

A sweep is plain data. `run` hands its cells to a crew, which measures them here (`here`), in processes
(`workbench.bench.workers`) or on a Ray cluster (`workbench.bench.on_ray`), and keeps each finished cell in a folder at
once. A cell is found again by its settings: a sweep that was killed goes on where it was, and one whose axes have grown
measures only what is new.
"""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import json
import time
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from workbench.bench.compare import REPEATS, Comparison, Plan
from workbench.bench.estimates import METRICS, estimates
from workbench.bench.lanes import Lane
from workbench.bench.prompts import BenchPrompt, groups_of, load_prompts
from workbench.core.errors import CapacityError, ParameterError, PromptError, UnknownNameError, WorkbenchError
from workbench.core.params import ParamSpec, params_of
from workbench.core.sampling import SamplingParams
from workbench.methods import registry
from workbench.trace.events import Trace
from workbench.trace.files import write_whole

CELLS = 400
"""The most cells of one sweep."""
WAITING, RUNNING, DONE, FAILED = "waiting", "running", "done", "failed"
OPTIONS = {
    "max_new_tokens": ParamSpec("max_new_tokens", "int", 64, 1, 4096, doc="length limit of every run, in tokens"),
    "seed": ParamSpec("seed", "int", 0, 0, 2**31, doc="seed of every run"),
}
"""Numbers that every method has besides its own and those of sampling."""
NAMES = ("method", "drafter", "target", "prompts")
"""Axes whose values are names: a method (with parameters, as a lane is written), a model, a group of prompts."""


@dataclass(frozen=True, slots=True)
class Axis:
    """What is varied: its name, and its values in their types."""

    name: str
    values: tuple[Any, ...]

    @classmethod
    def parse(cls, text: str, method: str | None = None) -> Axis:
        """Read `NAME=VALUE,VALUE,…`; values of numbers may be a range, `1..4`. Values are checked by the sweep.

        Raises:
            ParameterError: it is not written so.

        Example:
            >>> Axis.parse("depth=1..3")
            Axis(name='depth', values=('1', '2', '3'))
        """
        name, equals, rest = text.partition("=")
        separator = ";" if ";" in rest else ","  # a lane may hold commas itself
        values: list[str] = []
        for value in rest.split(separator):
            first, dots, last = value.strip().partition("..")
            if dots and first.lstrip("-").isdigit() and last.lstrip("-").isdigit():
                values += [str(i) for i in range(int(first), int(last) + 1)]
            elif value.strip():
                values.append(value.strip())
        if not equals or not name.strip() or not values:
            raise ParameterError(f"{text!r} is no axis.", "Write one as in depth=1,2,4 or depth=1..6.")
        return cls(name.strip(), tuple(values))


@runtime_checkable
class Host(Protocol):
    """A backend, or a client of one."""

    def comparing(self, prompts: Any, lanes: Any, **options: Any) -> Iterator[Any]:
        """See `workbench.client.Workbench.comparing`."""
        ...


@dataclass(frozen=True, slots=True)
class Cell:
    """One place of the grid: its index on each axis, and everything that is measured there."""

    at: tuple[int, ...]
    lane: Lane
    plan: Plan
    prompts: tuple[BenchPrompt, ...]

    @property
    def id(self) -> str:
        """The same for the same settings, whatever sweep they are in."""
        said = [self.lane.to_wire(), asdict(self.plan), [asdict(p) for p in self.prompts]]
        return hashlib.sha256(json.dumps(said, sort_keys=True).encode()).hexdigest()[:16]

    def measured(self, host: Host, user: str, stopped: Callable[[], bool]) -> Iterator[Any]:
        """The steps of its comparison with plain decoding."""
        lanes = [self.lane]
        settings = {name: getattr(self.plan, name) for name in self.plan.__dataclass_fields__}
        return host.comparing(list(self.prompts), lanes, user=user, stopped=stopped, **settings)


@dataclass(frozen=True, slots=True)
class Sweep:
    """What is measured.

    Attributes:
        axes: one or two.
        method: registry name, where no axis varies it.
        params: of method and sampling, those that no axis varies. A method on an axis takes those that it has.
        target: by default the backend's.
        drafter: by default the one that belongs to the target.
        prompts: texts, where no axis varies them.
        group: bundled prompts of these groups, where no axis varies them; with neither, those of "stories".
        limit: at most so many prompts of each group.
        max_new_tokens: length limit of every run.
        seed: of every run.
        repeats: repetitions of each prompt in a cell, interleaved with plain decoding.
    """

    axes: tuple[Axis, ...]
    method: str = "draft-model"
    params: Mapping[str, Any] = field(default_factory=dict)
    target: str | None = None
    drafter: str | None = None
    prompts: tuple[str, ...] = ()
    group: tuple[str, ...] = ()
    limit: int = 2
    max_new_tokens: int = 64
    seed: int = 0
    repeats: int = 2

    @classmethod
    def of(cls, axes: Mapping[str, Sequence[Any]] | Sequence[Axis | str], **settings: Any) -> Sweep:
        """A checked sweep.

        Args:
            axes: values by name, or lines of text as `Axis.parse` reads them.
            settings: the other attributes.

        Raises:
            WorkbenchError: an axis, a value or a setting is wrong.
        """
        if isinstance(axes, Mapping):
            given = [Axis(name, tuple(values)) for name, values in axes.items()]
        else:
            given = [Axis.parse(axis) if isinstance(axis, str) else axis for axis in axes]
        for name in ("prompts", "group"):
            value = settings.get(name) or ()
            settings[name] = (value,) if isinstance(value, str) else tuple(value)
        return cls(tuple(given), **settings).checked()

    def checked(self) -> Sweep:
        """The same sweep with the values of its axes in their types.

        Raises:
            WorkbenchError: with what to do.
        """
        names = [axis.name for axis in self.axes]
        if not 1 <= len(names) <= 2 or len(set(names)) < len(names):
            raise ParameterError(f"{len(names)} axes cannot be swept.", "Give one, or two different ones.")
        if not 1 <= self.repeats <= REPEATS:
            raise ParameterError(f"repeats={self.repeats} is out of range.", f"Use 1 to {REPEATS}.")
        made = replace(
            self, axes=tuple(Axis(a.name, tuple(self._value(a.name, v) for v in a.values)) for a in self.axes)
        )
        for axis in made.axes:
            if not axis.values or len(set(axis.values)) < len(axis.values):
                raise ParameterError(f"The values of {axis.name} are none, or one is there twice.", "Give each once.")
        if (count := len(list(itertools.product(*(axis.values for axis in made.axes))))) > CELLS:
            raise CapacityError(f"This sweep has {count} cells; {CELLS} is the limit.", "Give fewer values.")
        made.cells()  # raises what is wrong with any of them
        return made

    def _value(self, name: str, value: Any) -> Any:
        """A value of an axis in its type."""
        if name == "method":
            return str(Lane.of(value))
        if name in NAMES:
            return str(value)
        return self._spec(name).parse(value)

    def _methods(self) -> list[str]:
        axis = next((a for a in self.axes if a.name == "method"), None)
        return [self.method] if axis is None else [str(v).partition(":")[0] for v in axis.values]

    def _spec(self, name: str) -> ParamSpec:
        """What is known about a parameter.

        Raises:
            UnknownNameError: neither the methods nor sampling have one of that name.
        """
        specs = {**OPTIONS, **params_of(SamplingParams())}
        for method in self._methods():
            specs |= registry.get(method).params
        if name not in specs:
            raise UnknownNameError.of("axis", name, [*NAMES, *specs])
        return specs[name]

    def cells(self) -> list[Cell]:
        """All cells, in the order in which they are measured: along the last axis first.

        Raises:
            WorkbenchError: a setting is wrong.
        """
        return [self._cell(at) for at in itertools.product(*(range(len(axis.values)) for axis in self.axes))]

    def _cell(self, at: tuple[int, ...]) -> Cell:
        varied = {axis.name: axis.values[i] for axis, i in zip(self.axes, at, strict=True)}
        numbers = {name: varied.get(name, getattr(self, name)) for name in OPTIONS}
        base = Lane.of(varied.get("method", self.method))
        own, shared = registry.get(base.method).params, params_of(SamplingParams())
        wanted = {**self.params, **{n: v for n, v in varied.items() if n not in NAMES and n not in OPTIONS}}
        for name in wanted:
            self._spec(name)  # some method, or sampling, has it
        mine = {**base.params, **{n: v for n, v in wanted.items() if n in own}}
        sampling = {n: shared[n].parse(v) for n, v in wanted.items() if n in shared and n not in own}
        drafter = varied.get("drafter", base.drafter or self.drafter)
        plan = Plan(
            varied.get("target", self.target), numbers["max_new_tokens"], numbers["seed"], sampling, (), self.repeats
        )
        return Cell(at, Lane(base.method, mine, drafter).checked(), plan, self._prompts(varied.get("prompts")))

    def _prompts(self, group: str | None) -> tuple[BenchPrompt, ...]:
        if group is None and self.prompts:
            return tuple(BenchPrompt(f"prompt {i + 1}", text) for i, text in enumerate(self.prompts))
        groups = [group] if group is not None else list(self.group) or ["stories"]
        bundled = load_prompts()
        for name in groups:
            if name not in groups_of(bundled):
                raise UnknownNameError.of("group of prompts", name, groups_of(bundled))
        found = [[p for p in bundled if p.group == name][: self.limit] for name in groups]
        if not any(found):
            raise PromptError("There is no prompt to measure on.", "Use a limit of 1 or more.")
        return tuple(itertools.chain.from_iterable(found))

    def to_wire(self) -> dict[str, Any]:
        """Plain JSON."""
        return asdict(self) | {
            "axes": {axis.name: list(axis.values) for axis in self.axes},
            "params": dict(self.params),
        }

    @classmethod
    def from_wire(cls, data: Mapping[str, Any]) -> Sweep:
        """The inverse of `to_wire`.

        Raises:
            WorkbenchError: an axis, a value or a setting is wrong.
        """
        known = {name: data[name] for name in cls.__dataclass_fields__ if name in data and name != "axes"}
        return cls.of(data["axes"], **known)

    def _settings(self) -> dict[str, Any]:
        """What is not the default."""
        usual = Sweep(self.axes).to_wire()
        return {name: value for name, value in self.to_wire().items() if value != usual[name]}

    def code(self) -> str:
        """Python that measures the same."""
        axes = ", ".join(f"{json.dumps(a.name)}: {list(a.values)!r}" for a in self.axes)
        rest = "".join(f", {name}={list(v) if isinstance(v, tuple) else v!r}" for name, v in self._settings().items())
        return (
            "from workbench.bench.sweep import Sweep, run\nfrom workbench.bench.workers import processes\n\n"
            f"sweep = Sweep.of({{{axes}}}{rest})\n"
            'for update in run(sweep, processes(1), folder="sweep"):\n'
            "    print(update.done, update.total, update.text)\n"
            "print(update.rows())\n"
        )

    def command(self) -> str:
        """A command line that measures the same."""
        import shlex

        words = ["workbench", "sweep"]
        for axis in self.axes:
            separator = ";" if any("," in str(v) for v in axis.values) else ","
            words += ["--axis", f"{axis.name}={separator.join(map(str, axis.values))}"]
        for name, value in self._settings().items():
            option = f"--{name.replace('_', '-')}"
            if name == "params":
                words += itertools.chain.from_iterable(("--set", f"{n}={v}") for n, v in value.items())
            elif name in ("prompts", "group"):
                words += itertools.chain.from_iterable(("--prompt" if name == "prompts" else option, v) for v in value)
            else:
                words += [option, str(value)]
        return shlex.join(words)


@dataclass(frozen=True, slots=True)
class Result:
    """What a cell has come to.

    Attributes:
        id: of the cell.
        state: waiting, running, done or failed.
        text: where it is while it runs.
        figures: by metric: value, low, high (95 %), n; None where there is nothing to divide by.
        error: why it failed.
        seconds: how long it took.
        run: id of the run that is kept as its trace, in the sweep's store.
        worker: who measured it.
        machine: what it was measured on.
    """

    id: str
    state: str = WAITING
    text: str = ""
    figures: dict[str, Any] = field(default_factory=dict)
    error: str = ""
    seconds: float = 0.0
    run: str | None = None
    worker: str = ""
    machine: dict[str, Any] = field(default_factory=dict)

    def to_wire(self) -> dict[str, Any]:
        """Plain JSON."""
        return asdict(self)


def result_of(cell: Cell, made: Comparison, seconds: float, worker: str) -> tuple[Result, Trace | None]:
    """What a comparison says of a cell, with the trace to show for it: of the first prompt, the lane's."""
    lane = next((m for m in made.lanes if m.lane == cell.lane), made.lanes[-1])
    plain = made.reference
    problem = lane.error or ("" if plain is not None or lane.lane.is_plain else "Plain decoding failed.")
    state = FAILED if problem or not lane.samples else DONE
    result = Result(cell.id, state, "", estimates(lane, plain), problem, round(seconds, 3), None, worker, made.machine)
    return result, lane.traces.get(0)


# -- crews ------------------------------------------------------------------------------------------------------------

BEGIN, STEP, END = "begin", "step", "end"
Event = tuple[str, Cell, Any]
"""What a crew reports: a cell begins, is somewhere (a text), or ends (a `Result` and a trace, as a pair)."""


@runtime_checkable
class Crew(Protocol):
    """Whoever measures cells."""

    def __call__(self, cells: Sequence[Cell], stopped: Callable[[], bool]) -> Iterator[Event]:
        """Measure all cells, reporting as they go; ends early once `stopped` says yes."""
        ...


def measure_cell(
    host: Host, cell: Cell, stopped: Callable[[], bool], user: str = "local", worker: str = ""
) -> Iterator[Event]:
    """Measure one cell on a backend."""
    begun, made = time.monotonic(), None
    yield BEGIN, cell, ""
    try:
        for step in cell.measured(host, user, stopped):
            made = step.comparison or made
            yield STEP, cell, step.waiting or f"{step.done} of {step.total} runs · {step.text}"
    except WorkbenchError as error:
        yield END, cell, (Result(cell.id, FAILED, error=str(error), worker=worker), None)
        return
    if made is not None and made.complete:
        yield END, cell, result_of(cell, made, time.monotonic() - begun, worker)


def here(host: Host, user: str = "local") -> Crew:
    """A crew of one backend, cell by cell; each run has its device to itself."""

    def crew(cells: Sequence[Cell], stopped: Callable[[], bool]) -> Iterator[Event]:
        for cell in cells:
            if stopped():
                return
            yield from measure_cell(host, cell, stopped, user, "this backend")

    return crew


# -- running ----------------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class Update:
    """Where a sweep is. The same object grows from update to update.

    Attributes:
        sweep: what is measured.
        results: by the cell's id.
        kept: cells that were there before, from an earlier run.
        text: what goes on.
        changed: ids of the cells that changed since the last update.
        left_s: seconds to go, from the cells so far; None before one is done.
        last: nothing comes after it.
    """

    sweep: Sweep
    cells: list[Cell]
    results: dict[str, Result]
    kept: int = 0
    text: str = ""
    changed: list[str] = field(default_factory=list)
    left_s: float | None = None
    last: bool = False

    @property
    def total(self) -> int:
        """All cells."""
        return len(self.cells)

    @property
    def done(self) -> int:
        """Cells that are done or failed."""
        return sum(self.results[cell.id].state in (DONE, FAILED) for cell in self.cells)

    @property
    def complete(self) -> bool:
        """Whether every cell was measured."""
        return self.done == self.total

    def at(self, *values: Any) -> Result:
        """The result at these values of the axes.

        Raises:
            KeyError: there is no such cell.
        """
        for cell in self.cells:
            if tuple(axis.values[i] for axis, i in zip(self.sweep.axes, cell.at, strict=True)) == values:
                return self.results[cell.id]
        raise KeyError(values)

    def rows(self) -> list[dict[str, Any]]:
        """One row a cell that is done or failed: its place, its settings and its figures."""
        found = []
        for cell in self.cells:
            result = self.results[cell.id]
            if result.state not in (DONE, FAILED):
                continue
            row: dict[str, Any] = {a.name: a.values[i] for a, i in zip(self.sweep.axes, cell.at, strict=True)}
            row |= {"setting": str(cell.lane), "state": result.state, "error": result.error, "seconds": result.seconds}
            for name in METRICS:
                for part, value in (result.figures.get(name) or dict.fromkeys(("value", "low", "high", "n"))).items():
                    row[name if part == "value" else f"{name}_{part}"] = value
            found.append(row)
        return found

    def to_wire(self, everything: bool = False) -> dict[str, Any]:
        """Plain JSON; `everything`: all cells instead of those that changed."""
        wanted = set(self.changed)
        cells = [c for c in self.cells if everything or c.id in wanted]
        found: dict[str, Any] = {
            "done": self.done, "total": self.total, "kept": self.kept, "text": self.text, "left_s": self.left_s,
            "last": self.last, "complete": self.complete,
            "cells": [{"at": c.at, "setting": str(c.lane), **self.results[c.id].to_wire()} for c in cells],
        }  # fmt: skip
        if everything:
            found |= {"sweep": self.sweep.to_wire(), "code": self.sweep.code(), "command": self.sweep.command()}
        return found


def run(
    sweep: Sweep, crew: Crew, folder: Path | str | None = None, stopped: Callable[[], bool] = lambda: False
) -> Iterator[Update]:
    """Measure a sweep. Closing the iterator, or Ctrl-C, ends it; finished cells stay.

    Args:
        sweep: what is measured.
        crew: who measures.
        folder: where finished cells and their traces are kept, and looked for first; None: nowhere.
        stopped: asked often; once it says yes, the last update comes.

    Yields:
        one growing `Update`, whenever something changed.

    Raises:
        WorkbenchError: the folder cannot be used, or the crew cannot work.
    """
    kept = None if folder is None else Kept(Path(folder))
    cells = sweep.cells()
    results = {cell.id: Result(cell.id) for cell in cells}
    if kept is not None:
        kept.begin(sweep)
        results |= {id_: found for id_ in results if (found := kept.load(id_)) is not None and found.state == DONE}
    update = Update(sweep, cells, results, sum(r.state == DONE for r in results.values()), changed=list(results))
    update.text = f"{update.kept} of {update.total} cells were there already" if update.kept else "starting"
    yield update
    waiting = [cell for cell in {cell.id: cell for cell in cells}.values() if results[cell.id].state == WAITING]
    begun, ended, n_waiting = time.monotonic(), 0, len(waiting)
    with contextlib.suppress(KeyboardInterrupt), contextlib.closing(_events(crew, waiting, stopped)) as events:
        for kind, cell, said in events:
            if kind == END:
                result, trace = said
                results[cell.id] = result if kept is None else kept.save(result, trace, cell)
                ended += 1
                update.left_s = (time.monotonic() - begun) / ended * (n_waiting - ended)
            else:
                results[cell.id] = replace(results[cell.id], state=RUNNING, text=said)
            update.text, update.changed = f"{cell.lane.title}: {said}" if kind == STEP else update.text, [cell.id]
            yield update
    for id_, result in results.items():
        if result.state == RUNNING:
            results[id_] = Result(id_)
    update.text, update.changed = "done" if update.complete else "stopped", list(results)
    update.last, update.left_s = True, None
    yield update


def _events(crew: Crew, cells: Sequence[Cell], stopped: Callable[[], bool]) -> Generator[Event, None, None]:
    """The events of a crew as a generator, which can be closed."""
    yield from crew(cells, stopped)


class Kept:
    """The folder of a sweep: `sweep.json`, a file a finished cell, and their traces as a `RunStore`.

    Raises:
        WorkbenchError: the folder cannot be written.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def begin(self, sweep: Sweep) -> None:
        """Make the folder and say what it is for."""
        try:
            (self.folder / "cells").mkdir(parents=True, exist_ok=True)
            write_whole(self.folder / "sweep.json", json.dumps(sweep.to_wire(), ensure_ascii=False, indent=2).encode())
        except OSError as error:
            raise WorkbenchError(
                f"{self.folder} cannot be written: {error.strerror}.", "Choose another folder."
            ) from None

    def load(self, cell: str) -> Result | None:
        """A finished cell; None where there is none that can be read."""
        try:
            return Result(**json.loads((self.folder / "cells" / f"{cell}.json").read_text(encoding="utf-8")))
        except (OSError, ValueError, TypeError):
            return None

    def save(self, result: Result, trace: Trace | None, cell: Cell) -> Result:
        """Keep a finished cell: its trace first, so that a cell that is there has one."""
        if trace is not None:
            from workbench.trace.store import RunStore  # brings Polars

            result = replace(
                result, run=RunStore(self.folder).save(trace, tags=["sweep", cell.id], note=cell.lane.title)
            )
        path = self.folder / "cells" / f"{result.id}.json"
        try:
            write_whole(path, json.dumps(result.to_wire(), ensure_ascii=False).encode())
        except OSError as error:
            raise WorkbenchError(
                f"{path} cannot be written: {error.strerror}.", "Make room, or choose another folder."
            ) from None
        return result

    def trace(self, result: Result) -> Trace | None:
        """The trace of a finished cell."""
        from workbench.trace.store import RunStore

        return None if result.run is None else RunStore(self.folder).load(result.run)

    @property
    def sweep(self) -> Sweep:
        """The sweep that was last begun in this folder.

        Raises:
            WorkbenchError: there is none.
        """
        try:
            return Sweep.from_wire(json.loads((self.folder / "sweep.json").read_text(encoding="utf-8")))
        except (OSError, ValueError, KeyError) as error:
            raise WorkbenchError(f"{self.folder} holds no sweep.", "Give the folder of one, or axes.") from error
