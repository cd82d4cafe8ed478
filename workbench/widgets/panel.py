"""Controls for a method's parameters in a notebook, generated from the method registry as in the app."""

from __future__ import annotations

from typing import Any

import traitlets

from workbench.client import Client
from workbench.core.errors import ParameterError, UnknownNameError, WorkbenchError
from workbench.core.params import ParamSpec
from workbench.widgets import snapshot
from workbench.widgets.sources import get_sources
from workbench.widgets.view import Widget


class Panel(Widget):
    """Notebook widget with controls for the parameters of a method.

    Attributes:
        values: current values, `{"method": …, name: value}`. The attribute can be set; omitted parameters get their
            defaults.
        problem: error message of the controlled run about the latest change; empty if the change succeeded.
    """

    values = traitlets.Dict().tag(sync=True)
    problem = traitlets.Unicode()
    _methods = traitlets.List().tag(sync=True)
    _sampling = traitlets.List().tag(sync=True)

    def __init__(self, methods: list[dict[str, Any]], sampling: list[dict[str, Any]], values: dict[str, Any]) -> None:
        super().__init__(
            kind="panel",
            _sources=get_sources(),
            _methods=methods,
            _sampling=sampling,
            values=complete(methods, sampling, values),
        )

    @property
    def settings(self) -> dict[str, Any]:
        """Return the panel's values as keyword arguments for `wb.start(prompt, **panel.settings)`."""
        return {"method": self.values["method"], "params": {n: v for n, v in self.values.items() if n != "method"}}

    def control(self, run: Any) -> Panel:
        """Apply every change of the controls to a run, from its next round on.

        Args:
            run: a run, or the widget that `live` returned.
        """

        def change(news: Any) -> None:
            handle = getattr(run, "run", run)
            before, after = news["old"] or {}, news["new"]
            params = {n: v for n, v in after.items() if n != "method" and before.get(n) != v}
            method = after["method"] if before.get("method") != after["method"] else None
            if handle.ended or not (params or method):
                return
            try:
                handle.change(method=method, params=params)
                self.problem = ""
            except WorkbenchError as problem:
                self.problem = str(problem)

        self.observe(change, "values")
        return self

    def snapshot(self) -> str:
        rows = "".join(
            f"<tr><th>{snapshot.escape(name)}</th><td>{snapshot.escape(value)}</td></tr>"
            for name, value in self.values.items()
        )
        return snapshot.wrap(f"<table>{rows}</table>")

    @traitlets.validate("values")
    def _complete(self, proposal: Any) -> dict[str, Any]:
        return complete(self._methods, self._sampling, proposal["value"])


def complete(methods: list[dict[str, Any]], sampling: list[dict[str, Any]], values: dict[str, Any]) -> dict[str, Any]:
    """Return the values of all parameters of a method and of sampling; defaults for those not in `values`.

    Args:
        methods: descriptions from `Workbench.methods`.
        sampling: descriptions from `Workbench.sampling_params`.
        values: `method` and any of its parameters.

    Raises:
        UnknownNameError: the method or a parameter does not exist.
        ParameterError: a value is outside its range.
    """
    by_name = {m["name"]: m for m in methods}
    name = values.get("method")
    if name not in by_name:
        raise UnknownNameError.of("method", str(name), list(by_name))
    specs = {p["name"]: p for p in [*by_name[name]["params"], *sampling]}
    for param in values:
        if param != "method" and param not in specs:
            raise UnknownNameError.of("parameter", param, list(specs))
    chosen = {p: fit(spec, values[p]) if p in values else spec["default"] for p, spec in specs.items()}
    return {"method": name} | chosen


def fit(spec: dict[str, Any], value: Any) -> Any:
    """Check a value of a parameter, and return it converted to the parameter's type.

    Raises:
        ParameterError: the value is invalid.
    """
    declared = ParamSpec.from_wire(spec)
    if isinstance(value, str) and declared.kind != "choice":  # text is for command lines and addresses
        raise ParameterError(f"{declared.name} is {value!r}, a string.", f"Give a value of type {declared.kind}.")
    return declared.parse(value)


def panel(wb: Client, method: str = "draft-model", **params: Any) -> Panel:
    """Return a notebook widget with controls for the parameters of a method and of sampling.

    Args:
        wb: the `Workbench` that describes the methods.
        method: name of the method.
        params: initial values of parameters; other parameters have their defaults.

    Raises:
        UnknownNameError: the method or a parameter does not exist.
        ParameterError: a value is outside its range.

    Example:
        >>> panel = w.panel(wb, "draft-model", depth=3)                       # doctest: +SKIP
        >>> run = wb.start("Once upon a time", **panel.settings)              # doctest: +SKIP
        >>> panel.control(run)                                                # doctest: +SKIP
    """
    return Panel(wb.methods(), wb.sampling_params(), {"method": method} | params)
