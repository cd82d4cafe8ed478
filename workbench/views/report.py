"""Render a bench report as one HTML file that opens from disk: Plotly figures, each with a table and a sentence.

Plotly's library is inlined. The file loads no other files: its content security policy forbids that.
"""

from __future__ import annotations

import html
import re
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from workbench.trace.speedup import FASTER, SLOWER, Estimate
from workbench.views.palette import css_variables
from workbench.views.replay import embed

Row = dict[str, Any]
Plot = dict[str, Any]  # {"data": [...], "layout": {...}}, the arguments of Plotly.newPlot; colours are CSS variables

ALL, PLAIN = "all prompts", "autoregressive"
SPEED = "call_speedup_vs_autoregressive"
"""Key in a bench report of the speed-up of whole calls (with prefill), the only one that every engine reports."""
KINDS = {
    "workbench": ("the workbench", "var(--wb-accepted)", "circle"),
    "hugging-face": ("Hugging Face", "var(--wb-overhead)", "diamond"),
    "llama.cpp": ("llama.cpp", "var(--wb-vision)", "square"),
}
"""Label, colour and marker of each inference engine in the plots of a bench report."""
LINES = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")
"""Colours of lines in the plots: Okabe and Ito's, distinguishable with every kind of colour vision.

Dashes and markers differ, too.
"""
DASHES, MARKERS = ("solid", "dash", "dot"), ("circle", "square", "diamond", "triangle-up", "x", "cross", "star")
_HEIGHT, _PER_ROW = 96, 30


@dataclass(frozen=True, slots=True)
class Panel:
    """Figure of a bench report: title, explanation, plot, and its data as a table whose first row is the header."""

    title: str
    sentence: str
    plot: Plot
    table: list[list[str]]


def page(report: dict[str, Any]) -> str:
    """Return the text of a bench report as an HTML file.

    Args:
        report: the report as JSON data, from `BenchReport.to_wire()`.
    """
    from plotly.offline import get_plotlyjs

    groups: dict[str, list[Row]] = {ALL: report["rows"], **report["groups"]}
    panels_of_group = {name: panels(rows) for name, rows in groups.items() if rows}
    overall = [speedup_heat_map(report["groups"])] if len(report["groups"]) > 1 else []
    views = [
        f'<div class="group" data-group="{i}"{"" if i == 0 else " hidden"}>{_sections(group_panels, f"g{i}")}</div>'
        for i, group_panels in enumerate(panels_of_group.values())
    ]
    options = "".join(f'<option value="{i}">{html.escape(name)}</option>' for i, name in enumerate(panels_of_group))
    plots = {
        f"g{i}-{k}": p.plot
        for i, group_panels in enumerate(panels_of_group.values())
        for k, p in enumerate(group_panels)
    }
    plots |= {f"whole-{k}": p.plot for k, p in enumerate(overall)}
    template = Path(__file__).with_name("report.html").read_text(encoding="utf-8")
    suite = report["settings"].get("suite") or "prompts"
    parts = {
        "STYLE": css_variables(":root", ":root[data-theme=dark]"),
        "TITLE": html.escape(f"Bench: {suite} on {report['settings'].get('target')}"),
        "FACTS": _facts(report),
        "WHOLE": _sections(overall, "whole"),
        "OPTIONS": options,
        "PANELS": "".join(views),
        "PLOTLY": get_plotlyjs(),
        "PLOTS": embed(plots),
    }
    return re.sub(f"%({'|'.join(parts)})%", lambda found: parts[found[1]], template)


def panels(rows: Sequence[Row]) -> list[Panel]:
    """Return the figures (plots) of a bench report for one group of prompts; figures without data are left out."""
    makers: list[Callable[[Sequence[Row]], Panel | None]] = [speed, tau, positions, cost, memory]
    return [panel for maker in makers if (panel := maker(rows)) is not None]


def speed(rows: Sequence[Row]) -> Panel | None:
    """Plot the speed-up of each method with its confidence interval, the best method on top."""
    ordered = sorted((r for r in rows if r[SPEED]), key=lambda r: r[SPEED]["value"])
    if not ordered:
        return None
    data = []
    for kind, (words, colour, marker) in KINDS.items():
        rows_of_kind = [r for r in ordered if r["kind"] == kind]
        if rows_of_kind:
            values = [r[SPEED] for r in rows_of_kind]
            data.append(
                {
                    "type": "scatter",
                    "mode": "markers",
                    "name": words,
                    "y": [_name(r) for r in rows_of_kind],
                    "x": [v["value"] for v in values],
                    "error_x": {
                        "type": "data",
                        "symmetric": False,
                        "array": [(v["high"] or v["value"]) - v["value"] for v in values],
                        "arrayminus": [v["value"] - (v["low"] or v["value"]) for v in values],
                        "color": colour,
                    },
                    "marker": {"color": colour, "symbol": marker, "size": 10},
                    "customdata": [_between(v) for v in values],
                    "hovertemplate": "%{y}: %{x:.2f}× %{customdata}<extra></extra>",
                }
            )
    line = {"type": "line", "x0": 1, "x1": 1, "yref": "paper", "y0": 0, "y1": 1}
    line["line"] = {"color": "var(--wb-mute)", "dash": "dot"}
    layout = _layout(
        "speed-up over plain decoding, whole calls with prefill", len(ordered), [_name(r) for r in ordered]
    )
    best, methods = ordered[-1], [r for r in ordered if r["kind"] == "workbench" and r["method"] != PLAIN]
    verdicts = Counter(Estimate(**r[SPEED]).verdict for r in methods)
    sentence = (
        f"Highest speed-up: {best['method']}, {Estimate(**best[SPEED]).sentence}. Of {len(methods)} methods of the "
        f"workbench {verdicts[FASTER]} are faster than plain decoding and {verdicts[SLOWER]} slower; for the others "
        "there is no significant difference. Whole calls with prefill; geometric means over prompts; "
        "bars are 95 % confidence intervals."
    )
    table = [
        [
            "method",
            "× plain, whole call",
            "95 % from",
            "to",
            "verdict",
            "tokens/s, whole call",
            "× plain, decoding",
            "prompts",
        ]
    ]
    for row in reversed(ordered):
        numbers = [_number(row[SPEED][part]) for part in ("value", "low", "high")]
        verdict = "reference" if row["method"] == PLAIN else Estimate(**row[SPEED]).verdict
        decoding = row["speedup_vs_autoregressive"]
        further = [_number(row["call_tokens_per_second"]), _number(decoding and decoding["value"]), str(row["prompts"])]
        table.append([row["method"], *numbers, verdict, *further])
    return Panel("Speed-up", sentence, {"data": data, "layout": layout | {"shapes": [line]}}, table)


def tau(rows: Sequence[Row]) -> Panel | None:
    """Plot τ, the mean number of tokens per verification, of each method."""
    ordered = sorted((r for r in rows if r["tau"]), key=lambda r: r["tau"])
    if not ordered:
        return None
    data = [
        _bars([r for r in ordered if r["kind"] == kind], words, colour, "tau", "τ")
        for kind, (words, colour, _) in KINDS.items()
        if any(r["kind"] == kind for r in ordered)
    ]
    layout = _layout("tokens per verification", len(ordered), [_name(r) for r in ordered])
    best = ordered[-1]
    sentence = f"τ is highest for {best['method']}: {best['tau']:.2f} tokens per verification; plain decoding has 1."
    table = [["method", "τ", "accepted / tested", "prompts"]]
    table += [[r["method"], *map(_number, (r["tau"], r["acceptance_rate"])), str(r["prompts"])] for r in ordered[::-1]]
    return Panel("Mean accepted length τ", sentence, {"data": data, "layout": layout | {"barmode": "stack"}}, table)


def positions(rows: Sequence[Row]) -> Panel | None:
    """Plot the conditional acceptance rate by depth in the draft, one line per method."""
    recorded = [r for r in rows if r["acceptance_by_position"]]
    if not recorded:
        return None
    data, table = [], [["method", "depth", "accepted", "tested", "accepted / tested"]]
    for i, row in enumerate(recorded):
        by_depth = row["acceptance_by_position"]
        data.append(
            {
                "type": "scatter",
                "mode": "lines+markers",
                "name": _name(row),
                "x": [depth for depth, _, _ in by_depth],
                "y": [accepted / tested for _, tested, accepted in by_depth],
                "customdata": [tested for _, tested, _ in by_depth],
                "hovertemplate": "depth %{x}: %{y:.0%} of %{customdata} tested<extra>%{fullData.name}</extra>",
                "line": {"color": LINES[i % len(LINES)], "dash": DASHES[i // len(LINES) % len(DASHES)]},
                "marker": {"symbol": MARKERS[i % len(MARKERS)], "size": 7},
            }
        )
        table += [
            [row["method"], str(depth), str(accepted), str(tested), f"{accepted / tested:.2f}"]
            for depth, tested, accepted in by_depth
        ]
    layout = {
        "xaxis": {"title": {"text": "depth in the draft tree"}, "dtick": 1},
        "yaxis": {"title": {"text": "accepted / tested"}, "range": [0, 1.02], "tickformat": ".0%"},
        "height": 420,
        "margin": {"l": 56, "r": 12, "t": 12, "b": 48},
        "legend": {"orientation": "h", "y": -0.22},
    }
    first = max(recorded, key=lambda r: r["acceptance_by_position"][0][2] / r["acceptance_by_position"][0][1])
    depth, tested, accepted = first["acceptance_by_position"][0]
    sentence = (
        f"At depth {depth}, drafts of {first['method']} are accepted most often: in {accepted / tested:.0%} of "
        f"{tested} rounds. "
        "A round counts at a depth if all its earlier drafts were accepted."
    )
    return Panel("Acceptance rate by draft position", sentence, {"data": data, "layout": layout}, table)


def cost(rows: Sequence[Row]) -> Panel | None:
    """Plot the time of a round, divided into draft, verification and overhead, as one bar per method."""
    recorded = [r for r in rows if r["verify_ms_per_round"] is not None][::-1]
    if not recorded:
        return None
    parts = {
        "draft_ms_per_round": ("draft", "var(--wb-draft)"),
        "verify_ms_per_round": ("verify", "var(--wb-verify)"),
        "overhead_ms_per_round": ("overhead", "var(--wb-overhead)"),
    }
    data = [_bars(recorded, words, colour, name, "ms") for name, (words, colour) in parts.items()]
    layout = _layout("milliseconds per round", len(recorded), [_name(r) for r in recorded])
    top = max(recorded, key=lambda r: r["overhead_share"] or 0)
    sentence = (
        f"Overhead takes the largest share of the time with {top['method']}: {top['overhead_share'] or 0:.0%} of "
        f"decoding, {top['overhead_ms_per_round']:.2f} ms per round."
    )
    table = [["method", *(f"{words}, ms" for words, _ in parts.values()), "overhead"]]
    table += [
        [r["method"], *(_number(r[name]) for name in parts), _percent(r["overhead_share"])] for r in recorded[::-1]
    ]
    return Panel("Time of one round", sentence, {"data": data, "layout": layout | {"barmode": "stack"}}, table)


def memory(rows: Sequence[Row]) -> Panel | None:
    """Plot the size of each method's weights, and the largest increase of memory during its runs."""
    recorded = [r for r in rows if r["weights_mib"] is not None][::-1]
    if not recorded:
        return None
    data = [
        _bars(recorded, "weights", "var(--wb-verify)", "weights_mib", "MiB"),
        _bars(recorded, "largest memory growth in a run", "var(--wb-draft)", "growth_mib", "MiB"),
    ]
    layout = _layout("MiB", len(recorded), [_name(r) for r in recorded])
    top = max(recorded, key=lambda r: r["weights_mib"])
    sentence = (
        f"The method with the most model weights is {top['method']}: {top['weights_mib']:.0f} MiB of weights. Packed "
        "copies of weights are not included; buffers that were reused from earlier runs do not count as memory growth."
    )
    table = [["method", "weights, MiB", "largest memory growth in a run, MiB"]]
    table += [[r["method"], _number(r["weights_mib"]), _number(r["growth_mib"])] for r in recorded[::-1]]
    return Panel("Memory", sentence, {"data": data, "layout": layout | {"barmode": "stack"}}, table)


def speedup_heat_map(groups: dict[str, list[Row]]) -> Panel:
    """Plot the speed-up of every method in every group of prompts, as a heat map."""
    names = list(groups)
    methods = list(dict.fromkeys(row["method"] for rows in groups.values() for row in rows))
    cells = {(g, r["method"]): r[SPEED] for g, rows in groups.items() for r in rows}
    values = [[(cells.get((g, m)) or {}).get("value") for g in names] for m in methods]
    numbers = [v for line in values for v in line if v is not None]
    widest = max((abs(v - 1) for v in numbers), default=1) or 1
    data = {
        "type": "heatmap",
        "x": [html.escape(g) for g in names],
        "y": [html.escape(m) for m in methods],
        "z": values,
        "zmin": 1 - widest,
        "zmax": 1 + widest,
        "text": [["" if v is None else f"{v:.2f}" for v in line] for line in values],
        "texttemplate": "%{text}",
        "hovertemplate": "%{y} on %{x}: %{z:.2f}× plain decoding<extra></extra>",
        "colorscale": [[0, "var(--wb-overhead)"], [0.5, "var(--wb-bg)"], [1, "var(--wb-accepted)"]],
        "showscale": False,
        "xgap": 2,
        "ygap": 2,
    }
    layout = {
        "height": _HEIGHT + _PER_ROW * len(methods),
        "margin": {"l": 8, "r": 8, "t": 8, "b": 40},
        "yaxis": {"automargin": True, "autorange": "reversed"},
        "xaxis": {"automargin": True},
    }
    (group, method), best = max(
        ((at, v) for at, v in cells.items() if v), key=lambda x: x[1]["value"], default=(("",) * 2, None)
    )
    sentence = (
        "" if best is None else f"The largest speed-up is that of {method} on {group}, {Estimate(**best).sentence}."
    )
    table = [["method", *names]]
    table += [[m, *(_number(v) for v in line)] for m, line in zip(methods, values, strict=True)]
    return Panel("Speed-up by group of prompts", sentence, {"data": [data], "layout": layout}, table)


def _bars(rows: Sequence[Row], words: str, colour: str, figure: str, unit: str) -> dict[str, Any]:
    return {
        "type": "bar",
        "orientation": "h",
        "name": words,
        "y": [_name(r) for r in rows],
        "x": [r[figure] for r in rows],
        "marker": {"color": colour},
        "hovertemplate": f"%{{y}}, {words}: %{{x:.2f}} {unit}<extra></extra>",
    }


def _layout(title: str, rows: int, order: list[str]) -> dict[str, Any]:
    return {
        "height": _HEIGHT + _PER_ROW * rows,
        "margin": {"l": 8, "r": 12, "t": 36, "b": 44},
        "xaxis": {"title": {"text": title}, "rangemode": "tozero", "automargin": True},
        "yaxis": {"automargin": True, "categoryorder": "array", "categoryarray": order},
        "legend": {"orientation": "h", "y": 1.0, "yanchor": "bottom", "traceorder": "normal"},
        "bargap": 0.35,
    }


def _sections(found: Sequence[Panel], key: str) -> str:
    return "".join(_section(panel, f"{key}-{i}") for i, panel in enumerate(found))


def _section(panel: Panel, name: str) -> str:
    head, *rows = ("".join(f"<td>{html.escape(cell)}</td>" for cell in row) for row in panel.table)
    head = head.replace("<td>", '<th scope="col">').replace("</td>", "</th>")
    body = "".join(f"<tr>{row}</tr>" for row in rows)
    sentence = html.escape(panel.sentence)
    return (
        f'<section><header><h2 id="{name}-title">{html.escape(panel.title)}</h2>'
        f'<button type="button" aria-expanded="false" aria-controls="{name}-table">Table</button></header>'
        f'<p id="{name}-text">{sentence}</p>'
        f'<div class="plot" id="{name}" role="group" aria-labelledby="{name}-title" aria-describedby="{name}-text">'
        "</div>"
        f'<div class="scroll" id="{name}-table" tabindex="0" role="region" '
        f'aria-label="{html.escape(panel.title)}: table" hidden>'
        f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div></section>"
    )


def _facts(report: dict[str, Any]) -> str:
    facts = {
        key: value for key, value in {**report["settings"], **report["machine"]}.items() if value not in (None, "")
    }
    items = [
        f"<div><dt>{html.escape(key)}</dt><dd>{html.escape(str(value))}</dd></div>" for key, value in facts.items()
    ]
    notes = [] if report["complete"] else ["The run was stopped before the end."]
    for key, n in report["left_out"].items():
        group, _, reason = key.partition(", ")
        notes.append(f"Prompts left out of the group {group}: {n} ({reason}).")
    notes += [f"{r['method']}: {w}" for r in report["rows"] for w in r["warnings"]]
    return f"<dl>{''.join(items)}</dl>" + "".join(f'<p class="note">{html.escape(note)}</p>' for note in notes)


def _name(row: Row) -> str:
    """Return a method's name with HTML escaped, because Plotly interprets some HTML."""
    return html.escape(row["method"])


def _between(value: dict[str, Any]) -> str:
    return "" if value["low"] is None else f" [{value['low']:.2f}–{value['high']:.2f}]"


def _number(value: float | None) -> str:
    return "–" if value is None else f"{value:.2f}"


def _percent(value: float | None) -> str:
    return "–" if value is None else f"{value:.0%}"
