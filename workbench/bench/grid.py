"""Definition of a sweep as plain data: one or two axes over any typed setting, and the cells of the grid.

`workbench.bench.sweep` measures the cells, `workbench.bench.sweepfolder` stores the results.
"""

from __future__ import annotations

import hashlib
import itertools
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from workbench.bench.bounds import CELLS, REPEATS, TOKENS
from workbench.bench.comparison import Plan
from workbench.bench.lanes import Lane
from workbench.bench.prompts import BenchPrompt, groups_of, load_prompts
from workbench.core.errors import CapacityError, ParameterError, PromptError, UnknownNameError
from workbench.core.params import ParamSpec
from workbench.methods import method_info

OPTIONS = {
    "max_new_tokens": ParamSpec("max_new_tokens", "int", 64, 1, TOKENS, doc="length limit of every run, in tokens"),
    "seed": ParamSpec("seed", "int", 0, 0, 2**31, doc="seed of every run"),
}
"""Numeric settings of every method that a sweep can vary, besides parameters of methods and of sampling."""
NAMES = ("method", "drafter", "target", "prompts")
"""Settings of a sweep whose values are names: a method with parameters (text of a `Lane`), a model, a prompt group."""


@dataclass(frozen=True, slots=True)
class Axis:
    """A setting that a sweep varies: its name, and its typed values."""

    name: str
    values: tuple[Any, ...]

    @classmethod
    def parse(cls, text: str, method: str | None = None) -> Axis:
        """Parse an axis of a sweep, `NAME=VALUE,VALUE,…`; whole numbers may be a range, `1..4`.

        The sweep checks the values later.

        Raises:
            ParameterError: the text has another format.

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
            elif dots and (first.lstrip("-").isdigit() or last.lstrip("-").isdigit()):
                raise ParameterError(
                    f"{value.strip()!r} is not a range of whole numbers.",
                    f"Write a range as in {name.strip()}=1..6 (first..last).",
                )
            elif value.strip():
                values.append(value.strip())
        if not equals or not name.strip() or not values:
            raise ParameterError(
                f"{text!r} is not an axis of a sweep.", "Write an axis as in depth=1,2,4 or depth=1..6."
            )
        return cls(name.strip(), tuple(values))


@runtime_checkable
class SweepBackend(Protocol):
    """Protocol of a backend, or of a client of a backend, that measures sweeps."""

    def stream_comparison(self, *args: Any, **options: Any) -> Iterator[Any]:
        """Compare lanes (methods with settings) on prompts; yield the progress step by step."""
        ...

    def conditions(self, lane: Any, target: str | None = None) -> dict[str, Any] | None:
        """Return the conditions under which a method is measured, such as device, dtypes, machine and weights."""
        ...


@dataclass(frozen=True, slots=True)
class Cell:
    """One cell of a sweep: its index on each axis, and the method, plan and prompts that are measured for it."""

    at: tuple[int, ...]
    lane: Lane
    plan: Plan
    prompts: tuple[BenchPrompt, ...]

    @property
    def id(self) -> str:
        """Return the id of the cell's settings, which is equal in all sweeps and under all measuring conditions."""
        plan = {name: value for name, value in asdict(self.plan).items() if name != "images"}  # a sweep has no images
        content = [self.lane.to_wire(), plan, [asdict(p) for p in self.prompts]]
        return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:16]

    def measure(self, backend: SweepBackend, user: str, stopped: Callable[[], bool]) -> Iterator[Any]:
        """Compare the method of a sweep's cell with plain decoding; yield the comparison's progress and results."""
        lanes = [self.lane]
        settings = {name: getattr(self.plan, name) for name in self.plan.__dataclass_fields__}
        return backend.stream_comparison(list(self.prompts), lanes, user=user, stopped=stopped, **settings)


@dataclass(frozen=True, slots=True)
class Sweep:
    """Definition of a sweep: one or two varied settings, and the settings that all cells share.

    Attributes:
        axes: the one or two varied settings.
        method: registry name, if no axis varies it.
        params: parameters of method and sampling that no axis varies. If an axis varies the method, each method uses
            the parameters that it has.
        target: name of the target; by default the target of the backend.
        drafter: name of the draft model; by default the one that belongs to the target.
        prompts: texts, if no axis varies them.
        group: groups of bundled prompts, if no axis varies them; without prompts and group, "stories".
        limit: largest number of prompts per group.
        max_new_tokens: length limit of every run.
        seed: seed of every run.
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
        """Return a sweep with checked axes and settings.

        Args:
            axes: values by name, or lines of text in the format of `Axis.parse`.
            settings: values of the sweep's other attributes.

        Raises:
            WorkbenchError: an axis, a value or a setting is wrong.
        """
        if isinstance(axes, Mapping):
            parsed = [Axis(name, tuple(values)) for name, values in axes.items()]
        else:
            parsed = [Axis.parse(axis) if isinstance(axis, str) else axis for axis in axes]
        for name in ("prompts", "group"):
            value = settings.get(name) or ()
            settings[name] = (value,) if isinstance(value, str) else tuple(value)
        return cls(tuple(parsed), **settings).checked()

    def checked(self) -> Sweep:
        """Return this sweep with checked axis values, converted to the types of their settings.

        Raises:
            WorkbenchError: a setting is wrong; the error says what to do.
        """
        names = [axis.name for axis in self.axes]
        if not 1 <= len(names) <= 2 or len(set(names)) < len(names):
            raise ParameterError(
                f"Cannot sweep the axes: {', '.join(names) or 'none'}.", "Give one axis, or two different axes."
            )
        if not 1 <= self.repeats <= REPEATS:
            raise ParameterError(f"The number of repeats, {self.repeats}, is out of range.", f"Use 1 to {REPEATS}.")
        sweep = replace(
            self, axes=tuple(Axis(a.name, tuple(self._value(a.name, v) for v in a.values)) for a in self.axes)
        )
        for axis in sweep.axes:
            if not axis.values or len(set(axis.values)) < len(axis.values):
                raise ParameterError(
                    f"The axis {axis.name} has no values, or has a value twice.", "Give each value once."
                )
        if (count := len(list(itertools.product(*(axis.values for axis in sweep.axes))))) > CELLS:
            raise CapacityError(
                f"This sweep would have {count} cells (combinations of values); the limit is {CELLS}.",
                "Give fewer values.",
            )
        sweep.cells()  # raises errors of any cell
        return sweep

    def _value(self, name: str, value: Any) -> Any:
        """Return a value on the axis `name` of a sweep, converted to the type of that setting."""
        if name == "method":
            return str(Lane.of(value))
        if name in NAMES:
            return str(value)
        return self._spec(name).parse(value)

    def _methods(self) -> list[str]:
        axis = next((a for a in self.axes if a.name == "method"), None)
        return [self.method] if axis is None else [str(v).partition(":")[0] for v in axis.values]

    def _spec(self, name: str) -> ParamSpec:
        """Return the specification of the parameter `name` of a method or of sampling.

        Raises:
            UnknownNameError: neither a method nor sampling has a parameter of that name.
        """
        specs = {**OPTIONS, **method_info.sampling()}
        for method in self._methods():
            specs |= method_info.get(method).params
        if name not in specs:
            raise UnknownNameError.of("axis", name, [*NAMES, *specs])
        return specs[name]

    def cells(self) -> list[Cell]:
        """Return all cells of the sweep in measuring order: the last axis varies fastest.

        Raises:
            WorkbenchError: a setting is wrong.
        """
        return [self._cell(at) for at in itertools.product(*(range(len(axis.values)) for axis in self.axes))]

    def _cell(self, at: tuple[int, ...]) -> Cell:
        varied = {axis.name: axis.values[i] for axis, i in zip(self.axes, at, strict=True)}
        options = {name: varied.get(name, getattr(self, name)) for name in OPTIONS}
        base = Lane.of(varied.get("method", self.method))
        method_specs, sampling_specs = method_info.get(base.method).params, method_info.sampling()
        params = {**self.params, **{n: v for n, v in varied.items() if n not in NAMES and n not in OPTIONS}}
        for name in params:
            self._spec(name)  # some method, or sampling, has it
        method_params = {**base.params, **{n: v for n, v in params.items() if n in method_specs}}
        sampling = {
            n: sampling_specs[n].parse(v) for n, v in params.items() if n in sampling_specs and n not in method_specs
        }
        drafter = varied.get("drafter", base.drafter or self.drafter)
        plan = Plan(
            varied.get("target", self.target), options["max_new_tokens"], options["seed"], sampling, (), self.repeats
        )
        return Cell(at, Lane(base.method, method_params, drafter).checked(), plan, self._prompts(varied.get("prompts")))

    def _prompts(self, group: str | None) -> tuple[BenchPrompt, ...]:
        if group is None and self.prompts:
            return tuple(BenchPrompt(f"prompt {i + 1}", text) for i, text in enumerate(self.prompts))
        groups = [group] if group is not None else list(self.group) or ["stories"]
        bundled = load_prompts()
        for name in groups:
            if name not in groups_of(bundled):
                raise UnknownNameError.of("group of prompts", name, groups_of(bundled))
        selected = [[p for p in bundled if p.group == name][: self.limit] for name in groups]
        if not any(selected):
            raise PromptError("The sweep has no prompt to measure on.", "Set limit to 1 or more.")
        return tuple(itertools.chain.from_iterable(selected))

    def to_wire(self) -> dict[str, Any]:
        """Return the definition of the sweep as plain JSON."""
        return asdict(self) | {
            "axes": {axis.name: list(axis.values) for axis in self.axes},
            "params": dict(self.params),
        }

    @classmethod
    def from_wire(cls, data: Mapping[str, Any]) -> Sweep:
        """Return the sweep that plain JSON data from `to_wire` defines.

        Raises:
            WorkbenchError: an axis, a value or a setting is wrong.
        """
        settings = {name: data[name] for name in cls.__dataclass_fields__ if name in data and name != "axes"}
        return cls.of(data["axes"], **settings)

    def _settings(self) -> dict[str, Any]:
        """Return the non-default settings of the sweep."""
        defaults = Sweep(self.axes).to_wire()
        return {name: value for name, value in self.to_wire().items() if value != defaults[name]}

    def code(self) -> str:
        """Return Python code that measures this sweep."""
        axes = ", ".join(f"{json.dumps(a.name)}: {list(a.values)!r}" for a in self.axes)
        rest = "".join(f", {name}={list(v) if isinstance(v, tuple) else v!r}" for name, v in self._settings().items())
        return (
            "from workbench.bench.sweep import Sweep, run\nfrom workbench.service.workers import processes\n\n"
            f"sweep = Sweep.of({{{axes}}}{rest})\n"
            'if __name__ == "__main__":  # the worker process imports this file, too\n'
            '    for update in run(sweep, processes(1), folder="sweep"):\n'
            "        print(update.done, update.total, update.text)\n"
            "    print(update.rows())\n"
        )

    def command(self, out: Path | None = None) -> str:
        """Return a command line that measures this sweep; with `out`, it resumes the sweep in that folder."""
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
        return shlex.join(words + ([] if out is None else ["--out", str(out)]))
