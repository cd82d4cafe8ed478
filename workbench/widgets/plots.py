"""Show Plotly figures in a notebook without a network, and without a copy of Plotly in every output.

The output contains the figure's data, for front ends that can draw the figure, and an SVG image of it for all others.
JupyterLab draws it with the extension in the plotly package, and VS Code with its own extension. GitHub, nbconvert and
Colab show the SVG. None of them loads anything from the network.
"""

from __future__ import annotations

import base64
from typing import Any

import numpy as np

from workbench.widgets import drawing

PLOTLY = "application/vnd.plotly.v1+json"
QUIET = {"displaylogo": False, "responsive": True, "showLink": False}


class Figure:
    """Plotly figure in a notebook's output. The attribute `plot` is the Plotly figure."""

    def __init__(self, plot: Any) -> None:
        self.plot = plot

    def snapshot(self) -> str:
        """Return the Plotly figure as an SVG image in plain HTML, with its first values in a table."""
        return drawing.picture(self.plot)

    def _repr_mimebundle_(self, **_: Any) -> dict[str, Any]:
        data = {**plain(self.plot.to_plotly_json()), "config": QUIET}
        return {PLOTLY: data, "text/html": self.snapshot(), "text/plain": drawing.title(self.plot) or "Figure"}


def plain(value: Any) -> Any:
    """Return a value of a Plotly figure as JSON data, with arrays as lists.

    Not every version of Plotly can read packed arrays.
    """
    if isinstance(value, dict) and {"dtype", "bdata"} <= set(value):
        return plain(_unpacked(**value))
    if isinstance(value, dict):
        return {name: plain(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    if isinstance(value, np.ndarray | np.generic):
        return plain(value.tolist())
    if isinstance(value, float) and not np.isfinite(value):
        return None
    return value if isinstance(value, str | int | float | bool | None) else str(value)


def _unpacked(dtype: str, bdata: str, shape: str = "") -> np.ndarray:
    """Decode an array in Plotly's packed format: dtype, base64 data, and shape such as "2, 3" ("": one dimension)."""
    array = np.frombuffer(base64.b64decode(bdata), dtype.removesuffix("c"))
    return array.reshape([int(n) for n in str(shape).split(",")]) if shape else array


def figure(plot: Any) -> Figure:
    """Wrap a Plotly figure so that a notebook draws it without a network, and also saves it as SVG.

    Args:
        plot: a `plotly.graph_objects.Figure`.

    Raises:
        TypeError: `plot` is not a Plotly figure.
    """
    if not hasattr(plot, "to_plotly_json") or not hasattr(plot, "layout"):
        raise TypeError(f"{type(plot).__name__} is not a Plotly figure. Pass a plotly.graph_objects.Figure.")
    return Figure(plot)
