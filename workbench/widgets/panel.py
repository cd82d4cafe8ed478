"""The parameters of a method as controls, made from the registry."""

from __future__ import annotations

from typing import Any

import anywidget
import traitlets

from workbench.widgets import snapshot
from workbench.widgets.view import with_snapshot


class Panel(anywidget.AnyWidget):
    """Controls for a method's parameters. `values` is what they hold: `{"method": …, name: value}`; it can be set."""

    values = traitlets.Dict().tag(sync=True)
    _esm = "export default { render({ model, el }) { el.textContent = JSON.stringify(model.get('values')); } };"

    def snapshot(self) -> str:
        """The values as a table."""
        rows = "".join(
            f"<tr><th>{snapshot.escape(name)}</th><td>{snapshot.escape(value)}</td></tr>"
            for name, value in self.values.items()
        )
        return snapshot.wrap(f"<table>{rows}</table>")

    def _repr_mimebundle_(self, **kwargs: Any) -> Any:
        return with_snapshot(super()._repr_mimebundle_(**kwargs), self.snapshot())


def panel(wb: Any, method: str = "draft-model", **params: Any) -> Panel:
    """Controls for the parameters of a method and of sampling.

    Args:
        wb: the `Workbench` whose registry is asked.
        method: registry name.
        params: values to begin with; the others have their defaults.
    """
    described = next(m for m in wb.methods() if m["name"] == method)
    specs = [*described["params"], *wb.sampling_params()]
    return Panel(values={"method": method} | {p["name"]: params.get(p["name"], p["default"]) for p in specs})
