"""Static output in plain HTML: safe with any text, complete, small, readable without styles."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from typing import Any

import pytest
from hypothesis import given, settings
from traces import HOSTILE, make_hostile_trace, traces

from workbench.trace.events import Trace
from workbench.views import recorded_runs
from workbench.widgets import drawing, snapshot

TAGS = {
    *("div", "p", "table", "thead", "tbody", "tr", "th", "td", "u", "b", "i", "s", "small", "sup", "br", "wbr", "ul"),
    *("li", "details", "summary", "img", "pre", "svg", "rect", "line", "text", "path", "g", "circle"),
}
ATTRIBUTES = {"class", "style", "src", "width", "height"}


class Reader(HTMLParser):
    """Collects the elements and the text that a browser would find."""

    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.tags: list[tuple[str, dict[str, Any]]] = []
        self.text = ""

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.text += data


def read(html: str) -> Reader:
    reader = Reader()
    reader.feed(html)
    reader.close()
    return reader


def every(trace: Trace) -> str:
    parts = [snapshot.stage(trace), snapshot.vision(trace), snapshot.lane([trace, trace]), snapshot.tree(trace, 99)]
    return snapshot.wrap("".join(parts))


def safe(html: str) -> Reader:
    found = read(html)
    assert {tag for tag, _ in found.tags} <= TAGS
    for tag, attributes in found.tags:
        assert set(attributes) <= ATTRIBUTES, (tag, attributes)
        assert attributes.get("src", "data:image/png;base64,").startswith("data:image/png;base64,")
    assert not re.search("[\x00-\x08\x0b-\x1f\u202a-\u202e]", html)
    return found


def test_hostile_texts_stay_text() -> None:
    trace = make_hostile_trace()
    found = safe(every(trace))
    for text in HOSTILE[:3]:
        assert text in found.text, "shown as it is, and harmless"


@settings(max_examples=25, deadline=None)
@given(traces())
def test_no_trace_breaks_the_static_output(trace: Trace) -> None:
    safe(snapshot.wrap(snapshot.ribbon(trace) + snapshot.tree(trace) + snapshot.key_figures([trace])))


def test_static_output_has_every_token_with_its_status_without_styles() -> None:
    trace = recorded_runs.trace("draft-tree")
    bare = re.sub(r' style="[^"]*"', "", snapshot.ribbon(trace))
    elements = {"accepted": "u", "corrected": "b", "bonus": "i"}
    for r in trace.rounds:
        for e in r.emitted:
            tag = elements[e.kind]
            assert f"<{tag}>{snapshot.escape_visible(snapshot.token_text(r, e))}</{tag}>" in bare
    assert "<s>" in bare
    assert "↻" in bare


def test_the_figures_equal_the_traces() -> None:
    from workbench.trace import metrics

    trace = recorded_runs.trace("draft-tree")
    table = read(snapshot.key_figures([trace], ["mine"])).text
    figures = metrics.summary(trace)
    assert "mine" in table
    assert f"{figures['tau']:.2f}" in table
    assert f"{figures['acceptance_rate']:.0%}" in table


def test_a_tree_is_nested_like_the_draft() -> None:
    trace = recorded_runs.trace("draft-tree")
    html = snapshot.tree(trace, 0)
    n = trace.rounds[0].nodes
    depth = max(
        len(re.findall("<ul>", html[: m.end()])) - len(re.findall("</ul>", html[: m.end()]))
        for m in re.finditer("<li>", html)
    )
    own = 1 if len(trace.rounds[0].path) == max(n.depth) else 0
    assert depth == max(n.depth) + own


@pytest.mark.parametrize("name", recorded_runs.names())
def test_static_output_is_small(name: str) -> None:
    trace = recorded_runs.trace(name)
    # A replay file with the modules has half a megabyte; the static output of the largest recording has a tenth of it.
    assert len(snapshot.stage(trace)) < 60_000 + sum(len(p.url) for p in trace.header.pictures)


def test_long_traces_are_truncated_with_a_note() -> None:
    trace = recorded_runs.trace("autoregressive")
    long = Trace(trace.header, trace.rounds * 20, trace.footer)
    assert "more rounds" in snapshot.ribbon(long)
    assert len(snapshot.ribbon(long)) < 150_000


# -- figures ---------------------------------------------------------------------------------------------------------


def test_plotly_figures_become_safe_svg() -> None:
    go = pytest.importorskip("plotly.graph_objects")
    bad = HOSTILE[0]
    plots = [
        go.Figure(
            [go.Scatter(x=[1, 2, 3], y=[1, None, float("nan")], name=bad)], layout={"title": bad, "xaxis_title": bad}
        ),
        go.Figure([go.Bar(x=[bad, "b"], y=[1, 2]), go.Bar(x=[bad, "b"], y=[2, 1], name="q")]),
        go.Figure(go.Heatmap(z=[[1, 2], [3, float("nan")]], x=[bad, "b"])),
        go.Figure(go.Pie(values=[1, 2])),
        go.Figure(go.Scatter(x=[1], y=[1], line={"color": "red"}, marker={"color": ["red"]})),
        go.Figure(),
    ]
    plots[0].add_hline(y=2, annotation_text=bad)
    for plot in plots:
        found = read(drawing.picture(plot))
        assert {tag for tag, _ in found.tags} <= TAGS
        for _, attributes in found.tags:
            assert not any(name.startswith("on") or name in ("href", "src") for name in attributes)
    assert "pie" in drawing.picture(plots[3]), "an unsupported chart type is named"


def test_a_line_goes_through_its_points_and_bars_start_at_zero() -> None:
    go = pytest.importorskip("plotly.graph_objects")
    line = drawing.picture(go.Figure(go.Scatter(x=[0, 1, 2], y=[0, 10, 5], mode="lines")))
    path = re.search(r'<path d="M([\d.]+) ([\d.]+)L([\d.]+) ([\d.]+)L([\d.]+) ([\d.]+)"', line)
    assert path
    x0, y0, x1, y1, x2, y2 = map(float, path.groups())
    assert x0 < x1 < x2
    assert y1 < y2 < y0, "larger values have smaller pixel coordinates"
    assert (y0 - y2) / (y0 - y1) == pytest.approx(0.5, abs=0.01)
    bars = drawing.picture(go.Figure(go.Bar(x=["a", "b"], y=[1, 3])))
    ends = [
        float(y) + float(h)
        for y, h in re.findall(r'<rect x="[\d.]+" y="([\d.]+)" width="[\d.]+" height="([\d.]+)"/>', bars)
    ]
    assert len(ends) == 2
    assert ends[0] == pytest.approx(ends[1])


INTERVAL = re.compile(r'<path class="interval" d="M([\d.]+) ([\d.]+)L([\d.]+) ([\d.]+)M')


@pytest.mark.parametrize("kind", ["scatter", "bar"])
@pytest.mark.parametrize(
    ("error", "ends"),
    [
        ({"type": "data", "array": [2, 2]}, (8, 12)),
        ({"type": "data", "symmetric": False, "array": [1, 1], "arrayminus": [3, 3]}, (7, 11)),
        ({"type": "percent", "value": 50}, (5, 15)),
        ({"type": "constant", "value": 4, "valueminus": 1, "symmetric": False}, (9, 14)),
    ],
)
def test_intervals_of_points_and_bars_are_drawn(kind: str, error: dict[str, Any], ends: tuple[int, int]) -> None:
    """Lesson 03 discusses the oracle's 95 % intervals, so they must be visible without a kernel."""
    go = pytest.importorskip("plotly.graph_objects")
    axis = {"range": [0, 20]}
    x = [1.0, 2.0]
    layout = {"xaxis": {"range": [0, 3]}, "yaxis": axis}
    plot = go.Figure([{"type": kind, "x": x, "y": [10, 10], "error_y": error}], layout)
    x0, y0, x1, y1 = map(float, INTERVAL.search(drawing.picture(plot)).groups())  # type: ignore[union-attr]
    per_unit = (drawing.HEIGHT - drawing.BOTTOM - drawing.TOP) / 20
    assert x0 == x1
    assert [(drawing.HEIGHT - drawing.BOTTOM - v) / per_unit for v in (y0, y1)] == pytest.approx(ends, abs=0.02)


def test_intervals_along_x_are_drawn_completely() -> None:
    go = pytest.importorskip("plotly.graph_objects")
    plot = go.Figure(go.Scatter(x=[1.0, 2.0], y=["a", "b"], error_x={"array": [5, 0.5]}))
    x0, y0, x1, y1 = map(float, INTERVAL.search(drawing.picture(plot)).groups())  # type: ignore[union-attr]
    assert y0 == y1
    assert drawing.LEFT <= x0 < x1 <= drawing.WIDTH - drawing.RIGHT
    hidden = go.Figure(go.Scatter(x=[1.0], y=[1.0], error_y={"array": [1], "visible": False}))
    assert "interval" not in drawing.picture(hidden)


@pytest.mark.parametrize(("low", "high"), [(0, 1), (0.001, 0.0042), (-3, 1200), (5, 5)])
def test_ticks_are_round_and_inside(low: float, high: float) -> None:
    ticks = drawing.nice(low, high)
    assert all(low - 1e-9 <= t <= high + 1e-9 for t in ticks)
    assert low == high or 3 <= len(ticks) <= 12
