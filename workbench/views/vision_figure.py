"""Figure of the vision suite: τ against the vision tokens that the drafter reads."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def figure(rows: Mapping[str, Mapping[str, Any]], group: str) -> Any:
    """Return a Plotly figure of τ against vision tokens, with a line per compressor and a point per other drafter.

    Args:
        rows: rows of the suite by name (`vision_suite.run_suite`).
        group: group of questions.
    """
    import plotly.graph_objects as go

    lines: dict[str, list[Mapping[str, Any]]] = {}
    for name, row in rows.items():
        if group in row["groups"]:
            lines.setdefault(row["line"] or name, []).append(row)
    plot = go.Figure()
    for label, points in lines.items():
        points = sorted(points, key=_tokens)
        taus = [row["groups"][group]["tau"] for row in points]
        bounds = [(t["value"] if t[side] is None else t[side]) for side in ("high", "low") for t in taus]
        high, low = bounds[: len(taus)], bounds[len(taus) :]
        plot.add_scatter(
            x=[_tokens(row) for row in points],
            y=[t["value"] for t in taus],
            error_y={
                "array": [h - t["value"] for h, t in zip(high, taus, strict=True)],
                "arrayminus": [t["value"] - b for b, t in zip(low, taus, strict=True)],
            },
            mode="lines+markers" if len(points) > 1 else "markers",
            name=label,
        )
    plot.update_layout(
        xaxis_title="vision tokens that the drafter reads (of 64)",
        yaxis_title=f"τ, {group} (tokens per target pass)",
        template="plotly_white",
    )
    return plot


def _tokens(row: Mapping[str, Any]) -> float:
    return row["vision_tokens"]["value"]
