"""Draw Plotly figures as small SVGs: lines, points, bars and heat maps, for outputs in which no JavaScript runs.

Only some types of Plotly's traces are drawn. The SVG names traces of other types, and the table below it has their
values.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np

from workbench.widgets.snapshot import escape

WIDTH, HEIGHT = 680, 360
LEFT, RIGHT, TOP, BOTTOM = 62, 20, 40, 52
POINTS, ROWS = 240, 8
COLOURS = ("#1189EC", "#A0871F", "#602E71", "#761706", "#006C54", "#59616B")
INK, MUTE, LINE = "#1F2328", "#59616B", "#E1E4E9"
DRAWN = ("scatter", "scattergl", "bar", "histogram", "heatmap")
DASHES = {"dash": "7 4", "dot": "2 3", "dashdot": "7 3 2 3", "longdash": "11 4"}


@dataclass(frozen=True, slots=True)
class Axis:
    """Axis of a figure, which maps values to pixels. A categorical axis has its values in `names`."""

    low: float
    high: float
    start: float
    end: float
    log: bool = False
    names: tuple[str, ...] = ()

    def at(self, value: Any) -> float:
        """Return the position of a value on the axis in pixels; NaN if the value is not on the axis."""
        number = float(self.names.index(str(value))) if self.names else _number(value)
        if self.log:
            number = math.log10(number) if number > 0 else math.nan
        return self.start + (number - self.low) / ((self.high - self.low) or 1) * (self.end - self.start)

    def ticks(self) -> list[tuple[float, str]]:
        """Return the ticks of the axis as pairs (position in pixels, label)."""
        if self.names:
            step = max(1, len(self.names) // 12)
            return [(self.at(name), name[:14]) for name in self.names[::step]]
        if self.log:
            exponents = range(math.ceil(self.low - 1e-9), math.floor(self.high + 1e-9) + 1)
            return [(self.at(10.0**k), f"{10.0**k:g}") for k in exponents]
        return [(self.at(value), f"{value:g}") for value in nice(self.low, self.high)]


def nice(low: float, high: float, about: int = 5) -> list[float]:
    """Return round numbers between `low` and `high` for the ticks of an axis, approximately `about` of them."""
    raw = (high - low) / about or 1.0
    power = 10.0 ** math.floor(math.log10(raw))
    step = power * next(s for s in (1, 2, 5, 10) if s * power >= raw - 1e-12)
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return [float(f"{k * step:.10g}") for k in range(first, last + 1)]


def _number(value: Any) -> float:
    try:
        return float(value)
    except (TypeError, ValueError):
        return math.nan


def title(plot: Any) -> str:
    """Return the title of a Plotly figure, without HTML tags."""
    return plain(plot.layout.title.text)


def plain(text: Any) -> str:
    """Return a text of a Plotly figure without its HTML tags."""
    return re.sub(r"</?(?:b|i|br|sup|sub|span)\b[^<>]*>", " ", str(text or "")).strip()


def picture(plot: Any) -> str:
    """Draw a Plotly figure as SVG, with its first values in a collapsed table below it, and return the HTML.

    Texts are escaped, and the HTML has no scripts.
    """
    traces = [trace for trace in plot.data if trace.visible in (None, True)]
    parts: dict[tuple[str, str], list[Any]] = {}
    for trace in traces:
        if trace.type in DRAWN:
            parts.setdefault((trace.xaxis or "x", trace.yaxis or "y"), []).append(trace)
    heads = [str(note.text) for note in plot.layout.annotations if len(parts) > 1 and note.xref == "paper"]
    heads = heads if len(heads) == len(parts) else [title(plot), *[""] * len(parts)]
    figures = "".join(
        _axes_svg(plot, name, traces_of_part, head)
        for (name, traces_of_part), head in zip(parts.items(), heads, strict=False)
    )
    if not figures:
        figures = f"<p><b>{escape(title(plot) or 'Figure')}</b></p>"
    omitted = [_name(trace, i) for i, trace in enumerate(traces) if trace.type not in DRAWN]
    note_html = f"<p>Not in this drawing: {escape(', '.join(omitted))}.</p>" if omitted else ""
    return f'<div class="wb-snapshot">{figures}{note_html}{table(traces)}</div>'


def _axes_svg(plot: Any, axes: tuple[str, str], traces: Sequence[Any], head: str) -> str:
    """Return the SVG of the traces on one pair of axes.

    Args:
        plot: the Plotly figure.
        axes: names of the two axes, such as ("x", "y2").
        traces: traces on these axes.
        head: title of this pair of axes.
    """
    x_layout, y_layout = (plot.layout[f"{name[0]}axis{name[1:]}"] for name in axes)
    heat = next((trace for trace in traces if trace.type == "heatmap"), None)
    body = _heat(heat, y_layout) if heat is not None else _flat(plot, traces, axes, x_layout, y_layout)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" role="img" '
        f'aria-label="{escape(head or title(plot) or "Figure")}" style="max-width:100%;height:auto;background:#fff" '
        f'font-family="sans-serif" font-size="12" fill="{INK}">'
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="#fff"/>'
        f'<text x="{LEFT}" y="18" font-size="14" font-weight="600">{escape(plain(head))}</text>'
        f"{body}{_titles(x_layout, y_layout)}</svg>"
    )


def _name(trace: Any, i: int) -> str:
    return str(trace.name or f"{trace.type} {i + 1}")


def table(traces: Sequence[Any]) -> str:
    """Return the first values of each trace of a Plotly figure as a collapsed HTML table."""
    rows = []
    for i, trace in enumerate(traces):
        if trace.type not in DRAWN or trace.type == "heatmap":
            continue
        pairs = [f"{_short(a)}: {_short(b)}" for a, b in zip(*_points(trace, ROWS), strict=False)]
        rows.append(f"<tr><th>{escape(_name(trace, i))}</th><td>{escape(' · '.join(pairs))}</td></tr>")
    return f"<details><summary>Values</summary><table>{''.join(rows)}</table></details>" if rows else ""


def _short(value: Any) -> str:
    number = _number(value)
    return f"{number:.4g}" if math.isfinite(number) else str(value)


def _points(trace: Any, most: int) -> tuple[list[Any], list[Any]]:
    """Return the values of a Plotly trace along both axes; for a histogram, those of its bars.

    If there are more than `most` values, some are left out at regular intervals.
    """
    if trace.type == "histogram":
        values = np.asarray([_number(v) for v in (trace.x if trace.x is not None else trace.y)], dtype=float)
        counts, edges = np.histogram(values[np.isfinite(values)], bins=trace.nbinsx or "auto")
        return list((edges[:-1] + edges[1:]) / 2), list(counts)
    y = list(trace.y) if trace.y is not None else []
    x = list(trace.x) if trace.x is not None else list(range(len(y)))
    step = max(1, math.ceil(len(y) / most))
    return x[::step], y[::step]


# -- lines, points and bars --------------------------------------------------------------------------------------


def _flat(plot: Any, traces: Sequence[Any], axes: tuple[str, str], along: Any, up: Any) -> str:
    points = [_points(trace, POINTS) for trace in traces]
    bars = [trace.type in ("bar", "histogram") for trace in traces]
    lines = [shape for shape in plot.layout.shapes if shape.type == "line" and _is_on_axes(shape, axes)]
    levels = [_number(v) for s in lines for v in (s.y0, s.y1) if (s.yref or "y") == axes[1]]
    ends_x, ends_y = (
        [_intervals(trace, name, values[k]) for trace, values in zip(traces, points, strict=True)]
        for k, name in enumerate(("error_x", "error_y"))
    )
    reach_x, reach_y = (
        [v for pairs_of_trace in intervals for pair in pairs_of_trace for v in pair] for intervals in (ends_x, ends_y)
    )
    all_y = [*(v for _, y in points for v in y), *levels, *reach_y, *([0] if any(bars) else [])]
    x = _axis([*(v for xs, _ in points for v in xs), *reach_x], LEFT, WIDTH - RIGHT, along, any(bars))
    y = _axis(all_y, HEIGHT - BOTTOM, TOP, up, False)
    colours = plot.layout.colorway or plot.layout.template.layout.colorway or COLOURS
    parts = [_frame(x, y)]
    n_bars = sum(bars)
    for i, (trace, (xs, ys)) in enumerate(zip(traces, points, strict=True)):
        colour = _colour(trace, colours[i % len(colours)])
        if bars[i]:
            parts.append(_bars(xs, ys, x, y, colour, sum(bars[:i]), n_bars))
        else:
            parts.append(_line(trace, xs, ys, x, y, colour))
        ink = INK if bars[i] else colour
        parts.append(
            _error_bars(
                [(x.at(a), y.at(low), x.at(a), y.at(high)) for a, (low, high) in zip(xs, ends_y[i], strict=False)], ink
            )
        )
        parts.append(
            _error_bars(
                [(x.at(low), y.at(b), x.at(high), y.at(b)) for b, (low, high) in zip(ys, ends_x[i], strict=False)], ink
            )
        )
    parts += [_shape(shape, x, y) for shape in lines]
    parts += [_note(note, x, y) for note in plot.layout.annotations if _is_on_axes(note, axes) and note.text]
    if len(traces) > 1:
        names = [(_name(t, i), _colour(t, colours[i % len(colours)])) for i, t in enumerate(traces)]
        parts.append(_legend(names))
    return "".join(parts)


def _intervals(trace: Any, name: str, values: Sequence[Any]) -> list[tuple[float, float]]:
    """Return the lower and upper end of each point's error bar, as values on the axis; empty if there are none.

    Args:
        trace: a trace of Plotly.
        name: "error_x" or "error_y".
        values: values of the trace along that axis, from `_points`.
    """
    error = getattr(trace, name, None) if trace.type != "histogram" else None
    if error is None or error.visible is False:
        return []
    if error.array is not None:  # `type` may be missing if there is an array
        up = list(error.array)
        down = list(error.arrayminus) if error.arrayminus is not None and error.symmetric is not True else up
        step = max(1, math.ceil(len(up) / POINTS))
        up, down = up[::step], down[::step]
    elif error.value is not None:
        minus = error.value if error.valueminus is None or error.symmetric is not False else error.valueminus
        shares = [abs(_number(v)) / 100 if error.type == "percent" else 1.0 for v in values]
        up, down = ([share * size for share in shares] for size in (error.value, minus))
    else:
        return []
    middle = [_number(v) for v in values]
    return [(v - _number(a), v + _number(b)) for v, a, b in zip(middle, down, up, strict=False)]


def _error_bars(lines: Sequence[tuple[float, float, float, float]], colour: str) -> str:
    """Return the SVG of error bars (x0, y0, x1, y1) in pixels, each with a short cap at both ends."""
    path = []
    for x0, y0, x1, y1 in lines:
        if not all(math.isfinite(v) for v in (x0, y0, x1, y1)):
            continue
        a, b = (4, 0) if x0 == x1 else (0, 4)
        path.append(f"M{x0:.1f} {y0:.1f}L{x1:.1f} {y1:.1f}")
        path += [f"M{x - a:.1f} {y - b:.1f}L{x + a:.1f} {y + b:.1f}" for x, y in ((x0, y0), (x1, y1))]
    if not path:
        return ""
    return f'<path class="interval" d="{"".join(path)}" fill="none" stroke="{colour}" stroke-width="1.5"/>'


def _axis(values: Sequence[Any], start: float, end: float, given: Any, padded: bool) -> Axis:
    numbers = [n for v in values if math.isfinite(n := _number(v))]
    if len(numbers) < len(values) / 2:  # fewer than half are numbers: the axis is categorical
        names = tuple(dict.fromkeys(str(v) for v in values))
        return Axis(-0.5, len(names) - 0.5, start, end, names=names)
    log = given.type == "log"
    if log:
        numbers = [math.log10(n) for n in numbers if n > 0]
    low, high = (min(numbers), max(numbers)) if numbers else (0.0, 1.0)
    if given.range:
        low, high = (_number(v) for v in given.range)
    else:
        margin = (high - low) * 0.05 or 0.5
        half_bar = (high - low) / max(1, len(set(numbers)) - 1) / 2 if padded else 0.0
        starts_at_zero = low == 0 and not padded
        low, high = low - (0 if starts_at_zero else max(margin, half_bar)), high + max(margin, half_bar)
    return Axis(low, high, start, end, log=log)


def _frame(x: Axis, y: Axis) -> str:
    parts = []
    for at, text in y.ticks():
        if min(y.start, y.end) - 1 <= at <= max(y.start, y.end) + 1:
            parts.append(f'<line x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{at:.1f}" y2="{at:.1f}" stroke="{LINE}"/>')
            parts.append(f'<text x="{LEFT - 7}" y="{at + 4:.1f}" text-anchor="end" fill="{MUTE}">{escape(text)}</text>')
    for at, text in x.ticks():
        if LEFT - 1 <= at <= WIDTH - RIGHT + 1:
            middle = f'<text x="{at:.1f}" y="{HEIGHT - BOTTOM + 17}" text-anchor="middle" fill="{MUTE}">'
            parts.append(f"{middle}{escape(text)}</text>")
    return "".join(parts)


def _titles(x: Any, y: Any) -> str:
    parts = []
    x_title, y_title = (escape(plain(axis.title.text)) for axis in (x, y))
    parts.append(f'<text x="{(LEFT + WIDTH - RIGHT) / 2}" y="{HEIGHT - 12}" text-anchor="middle">{x_title}</text>')
    rotation = f'transform="rotate(-90 14 {(TOP + HEIGHT - BOTTOM) / 2})"'
    parts.append(f'<text x="14" y="{(TOP + HEIGHT - BOTTOM) / 2}" text-anchor="middle" {rotation}>{y_title}</text>')
    return "".join(parts)


def _line(trace: Any, xs: Sequence[Any], ys: Sequence[Any], x: Axis, y: Axis, colour: str) -> str:
    places = [(x.at(a), y.at(b)) for a, b in zip(xs, ys, strict=False)]
    mode = trace.mode or ("lines+markers" if len(places) < 20 else "lines")
    out = ""
    if "lines" in mode:
        path, pen = [], "M"
        for a, b in places:
            if not (math.isfinite(a) and math.isfinite(b)):
                pen = "M"
                continue
            path.append(f"{pen}{a:.1f} {b:.1f}")
            pen = "L"
        dash = DASHES.get(str(trace.line.dash or ""), "")
        out += f'<path d="{"".join(path)}" fill="none" stroke="{colour}" stroke-width="2" stroke-dasharray="{dash}"/>'
    if "markers" in mode:
        dots = (
            f'<circle cx="{a:.1f}" cy="{b:.1f}" r="3"/>' for a, b in places if math.isfinite(a) and math.isfinite(b)
        )
        out += f'<g fill="{colour}">{"".join(dots)}</g>'
    return out


def _bars(xs: Sequence[Any], ys: Sequence[Any], x: Axis, y: Axis, colour: str, i: int, n: int) -> str:
    places = sorted(x.at(a) for a in xs)
    spacing = min((b - a for a, b in pairwise(places) if b > a), default=x.end - x.start)
    width = max(1.0, 0.8 * spacing / n)
    zero, out = y.at(0) if not y.log else y.start, []
    for a, b in zip(xs, ys, strict=False):
        top, x_left = y.at(b), x.at(a) - width * n / 2 + width * i
        if math.isfinite(top) and math.isfinite(x_left):
            size = f'y="{min(top, zero):.1f}" width="{width:.1f}" height="{abs(zero - top):.1f}"'
            out.append(f'<rect x="{x_left:.1f}" {size}/>')
    return f'<g fill="{colour}">{"".join(out)}</g>'


def _is_on_axes(drawn: Any, axes: tuple[str, str]) -> bool:
    """Return whether a Plotly shape or annotation has a coordinate on one of a pair of axes."""
    refs = ((drawn.xref or "x").split(" ")[0], (drawn.yref or "y").split(" ")[0])
    return (refs[0] == axes[0] or refs[1] == axes[1]) and all(
        r in (a, "paper") for r, a in zip(refs, axes, strict=True)
    )


def _position(value: Any, ref: str | None, axis: Axis) -> float:
    """Return the position of a value on an axis in pixels.

    `ref` is Plotly's `xref` or `yref`, by which the value may be a fraction of the axis.
    """
    share = bool(ref) and ("domain" in str(ref) or ref == "paper")
    return axis.start + _number(value) * (axis.end - axis.start) if share else axis.at(value)


def _shape(shape: Any, x: Axis, y: Axis) -> str:
    x0, x1 = (_position(v, shape.xref, x) for v in (shape.x0, shape.x1))
    y0, y1 = (_position(v, shape.yref, y) for v in (shape.y0, shape.y1))
    if not all(math.isfinite(v) for v in (x0, x1, y0, y1)):
        return ""
    ends = f'x1="{x0:.1f}" y1="{y0:.1f}" x2="{x1:.1f}" y2="{y1:.1f}"'
    return f'<line {ends} stroke="{MUTE}" stroke-width="1.5" stroke-dasharray="5 4"/>'


def _note(note: Any, x: Axis, y: Axis) -> str:
    at = _position(note.x, note.xref, x), _position(note.y, note.yref, y)
    if not all(math.isfinite(v) for v in at):
        return ""
    anchor = "end" if at[0] > WIDTH * 0.7 else "start"
    place = f'x="{at[0] + (4 if anchor == "start" else -4):.1f}" y="{max(at[1], TOP + 12) - 4:.1f}"'
    return f'<text {place} text-anchor="{anchor}" fill="{MUTE}">{escape(plain(note.text))}</text>'


def _colour(trace: Any, default: str) -> str:
    """Return the colour of a Plotly trace if it is a single name or code, else the default colour."""
    for part in (getattr(trace, "line", None), getattr(trace, "marker", None)):
        colour = getattr(part, "color", None)
        if isinstance(colour, str) and colour.strip("#").replace(",", "").replace("(", "").replace(")", "").isalnum():
            return escape(colour)
    return escape(default)


def _legend(names: Sequence[tuple[str, str]]) -> str:
    out, at = [], float(LEFT)
    for name, colour in names[:8]:
        short = name if len(name) <= 28 else name[:27] + "…"
        out.append(f'<rect x="{at:.0f}" y="26" width="11" height="8" fill="{colour}"/>')
        out.append(f'<text x="{at + 15:.0f}" y="34" fill="{MUTE}">{escape(short)}</text>')
        at += 30 + 6.6 * len(short)
    return "".join(out)


# -- heat maps ---------------------------------------------------------------------------------------------------


def _heat(trace: Any, up: Any) -> str:
    z = np.asarray([[_number(v) for v in row] for row in trace.z], dtype=float)[:60, :60]
    rows, columns = z.shape
    finite = z[np.isfinite(z)]
    low, high = (float(finite.min()), float(finite.max())) if finite.size else (0.0, 1.0)
    cell_width, cell_height = (WIDTH - LEFT - RIGHT) / columns, (HEIGHT - TOP - BOTTOM) / rows
    is_reversed = up.autorange == "reversed"
    has_labels = cell_width > 30 and cell_height > 14
    out = []
    for i in range(rows):
        top = TOP + cell_height * (i if is_reversed else rows - 1 - i)
        for j in range(columns):
            if not math.isfinite(z[i, j]):
                continue
            share = (z[i, j] - low) / ((high - low) or 1)
            place = f'x="{LEFT + cell_width * j:.1f}" y="{top:.1f}" width="{cell_width:.1f}" height="{cell_height:.1f}"'
            out.append(f'<rect {place} fill="{_shade(share)}"/>')
            if has_labels:
                middle = (
                    f'x="{LEFT + cell_width * (j + 0.5):.1f}" y="{top + cell_height / 2 + 4:.1f}" text-anchor="middle"'
                )
                out.append(f'<text {middle} fill="{"#fff" if share > 0.55 else INK}">{z[i, j]:.3g}</text>')

    def names(given: Any, n: int) -> list[str]:
        return [str(v)[:14] for v in given] if given is not None else [str(i) for i in range(n)]

    def label(x: float, y: float, anchor: str, text: str) -> str:
        return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" fill="{MUTE}">{escape(text)}</text>'

    for j, name in list(enumerate(names(trace.x, columns)))[: columns : max(1, columns // 14)]:
        out.append(label(LEFT + cell_width * (j + 0.5), HEIGHT - BOTTOM + 17, "middle", name))
    for i, name in list(enumerate(names(trace.y, rows)))[: rows : max(1, rows // 14)]:
        at = TOP + cell_height * ((i if is_reversed else rows - 1 - i) + 0.5)
        out.append(label(LEFT - 7, at + 4, "end", name))
    return "".join(out)


def _shade(share: float) -> str:
    """Return a colour between white (value 0) and the blue of accepted tokens (value 1)."""
    ends = ((255, 255, 255), (10, 84, 150))
    mixed = (round(a + (b - a) * share) for a, b in zip(*ends, strict=True))
    return "#" + "".join(f"{value:02x}" for value in mixed)
