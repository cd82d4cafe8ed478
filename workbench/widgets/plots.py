"""Plotly figures in a notebook, without a network."""

from __future__ import annotations

from typing import Any

from workbench.widgets.snapshot import escape


class Figure:
    """A plotly figure, displayable offline."""

    def __init__(self, plot: Any) -> None:
        self.plot = plot

    def _repr_html_(self) -> str:
        title = self.plot.layout.title.text or "Figure"
        return f"<p>{escape(title)}</p>"


def figure(plot: Any) -> Figure:
    """A plotly figure, shown without a network, with a picture of it stored in the notebook.

    Args:
        plot: a `plotly.graph_objects.Figure`.
    """
    return Figure(plot)
