"""Render a trace as plain HTML for a notebook's output: readable without a kernel, JavaScript and styles.

GitHub removes styles from the outputs of notebooks. So the status of each token is shown in three ways: by an HTML
element that needs no style (`u`, `b`, `i`, `s`), by a glyph, and by colours where styles are kept.
"""

from __future__ import annotations

import html
import re
from collections.abc import Sequence
from typing import Any

from workbench.trace import metrics
from workbench.trace.events import Round, Trace
from workbench.trace.images import is_png_url
from workbench.trace.nodes import ACCEPTED, DISCARDED, REJECTED
from workbench.trace.tokens import BONUS, CORRECTED, PLAIN, EmittedToken
from workbench.views.palette import palette

ROUNDS, NODES, PROMPT_CHARS = 400, 32, 300
"""Maximum numbers of rounds, nodes and prompt characters in a snapshot, which is stored in the notebook."""
ELEMENTS = {ACCEPTED: "u", CORRECTED: "b", BONUS: "i", REJECTED: "s", DISCARDED: "small"}
LINES = {
    ACCEPTED: "text-decoration:none;border-bottom:3px solid",
    CORRECTED: "border-bottom:4px double",
    BONUS: "border-bottom:3px dashed",
    REJECTED: "border-bottom:2px dotted",
    DISCARDED: "border-bottom:1px dotted",
}
BLOCKS = "▁▂▃▄▅▆▇█"
_REPEATED = re.compile(r"(<\|[^|<>]{1,30}\|>)\1+")
_HIDDEN = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069]")


def escape(text: Any) -> str:
    """Escape a model's text for HTML, so that it has no tags, control characters or direction marks."""
    return html.escape(_HIDDEN.sub("\ufffd", str(text)), quote=True)


def escape_visible(text: str) -> str:
    """Escape a text for HTML as `escape` does, and replace line breaks and tabs by visible characters."""
    return escape(text.replace("\n", "⏎").replace("\t", "⇥")) or "·"


def mark(text: str, status: str) -> str:
    """Return the HTML of a token, with an element, a glyph and colours that show the token's status.

    Tokens of plain decoding have none of these.

    Args:
        text: text of the token.
        status: "accepted", "rejected", "discarded", "corrected", "bonus" or "plain".
    """
    if status == PLAIN:
        return escape_visible(text)
    entry = palette()["statuses"][status]
    colours = entry["light"]
    style = f"color:#1f2328;background:{colours['tint']};{LINES[status]} {colours['stroke']}"
    tag = ELEMENTS[status]
    glyph = (
        "" if status == ACCEPTED else f"<sup>{entry['glyph'].replace('＋', '+')}</sup>"
    )  # few fonts have the full-width plus
    return f'<{tag} style="{style}">{escape_visible(text)}</{tag}>{glyph}'


def legend() -> str:
    """Return the HTML of a legend that shows every token status in its style."""
    statuses = (ACCEPTED, CORRECTED, BONUS, REJECTED, DISCARDED)
    return "<small>" + " · ".join(mark(status, status) for status in statuses) + "</small>"


def token_text(round: Round, emitted: EmittedToken) -> str:
    """Return the text of a committed token; for a token without text (such as EOS), its name if it is known."""
    if emitted.text:
        return emitted.text
    for top in round.top_p:
        if emitted.token in top.tokens:
            return top.text[top.tokens.index(emitted.token)]
    return ""


def ribbon(trace: Trace) -> str:
    """Return the text of a trace as HTML with the status of each token, and rejected drafts in brackets."""
    parts = []
    for r in trace.rounds[:ROUNDS]:
        line = "".join(mark(token_text(r, e), e.kind) + ("<br>" if e.text.endswith("\n") else "") for e in r.emitted)
        rejected = [i for i, status in enumerate(r.nodes.status) if status == REJECTED]
        ghosts = " ".join(mark(r.nodes.text[i], REJECTED) for i in rejected[:3])
        n_more = f" +{len(rejected) - 3}" if len(rejected) > 3 else ""
        parts.append(line + (f" <small>[{ghosts}{n_more}]</small>" if rejected else "") + "<wbr>│<wbr>")
    cut_note = f" … {len(trace.rounds) - ROUNDS} more rounds" if len(trace.rounds) > ROUNDS else ""
    return f"<p>{escape(_prompt(trace))}{''.join(parts)}{cut_note}</p><p>{legend()} <small>· │ ends a round</small></p>"


def _prompt(trace: Trace) -> str:
    prompt = "".join(trace.header.prompt_text) or trace.header.prompt
    prompt = _REPEATED.sub(lambda m: f"{m[1]} × {len(m[0]) // len(m[1])} ", prompt)  # the image placeholder tokens
    return prompt if len(prompt) <= PROMPT_CHARS else "… " + prompt[-PROMPT_CHARS:]


def tree(trace: Trace, index: int = 0) -> str:
    """Return the draft tree of a round as a nested HTML list of nodes, each with p, q and its status."""
    if not trace.rounds:
        return "<p>No round was recorded.</p>"
    r = trace.rounds[max(0, min(index, len(trace.rounds) - 1))]
    shown_nodes = set(range(min(NODES, len(r.nodes))))
    children: dict[int, list[int]] = {}
    for i in sorted(shown_nodes, key=lambda i: (i not in r.path, i)):
        children.setdefault(r.nodes.parents[i], []).append(i)
    token = None if r.bonus_kind is None else next((e for e in reversed(r.emitted) if e.node is None), None)
    last_accepted = r.path[-1] if r.path else -1

    def below(parent: int) -> str:
        items = [_node(r, i) + below(i) for i in children.get(parent, [])]
        if token is not None and parent == last_accepted:
            items.insert(
                0,
                f"{mark(token_text(r, token), token.kind)} {token.kind} by the target, p = {token.p:.2f}",
            )
        return "<ul>" + "".join(f"<li>{item}</li>" for item in items) + "</ul>" if items else ""

    more_nodes = f"<p>+{len(r.nodes) - NODES} nodes</p>" if len(r.nodes) > NODES else ""
    return f"<p><b>Draft tree of round {r.index + 1} of {len(trace.rounds)}</b></p>{below(-1)}{more_nodes}"


def _node(r: Round, i: int) -> str:
    n = r.nodes
    q = "" if n.q[i] is None else f", q = {n.q[i]:.2f}"
    u = "" if n.u[i] is None else f", u = {n.u[i]:.2f}"
    return f"{mark(n.text[i], n.status[i])} {escape(n.status[i])}, p = {n.p[i]:.2f}{q}{u}"


def key_figures(traces: Sequence[Trace], names: Sequence[str] | None = None) -> str:
    """Return an HTML table of the main measurements (τ, acceptance rate, …), with one row per trace."""
    heads = ("run", "tokens", "rounds", "mean accepted length τ", "acceptance rate", "tokens/s", "draft s", "verify s")
    rows = []
    for i, trace in enumerate(traces):
        f = metrics.summary(trace)
        name = names[i] if names is not None and i < len(names) else describe(trace)
        cells = [
            escape(name),
            str(f["tokens"]),
            str(f["rounds"]),
            _number(f["tau"], "{:.2f}"),
            _number(f["acceptance_rate"], "{:.0%}"),
            _number(f["tokens_per_second"], "{:.0f}"),
            f"{f['draft_seconds']:.3f}",
            f"{f['verify_seconds']:.3f}",
        ]
        rows.append("<tr>" + "".join(f"<td>{cell}</td>" for cell in cells) + "</tr>")
    head = "".join(f"<th>{name}</th>" for name in heads)
    return f"<table><thead><tr>{head}</tr></thead><tbody>{''.join(rows)}</tbody></table>"


def _number(value: float | None, form: str) -> str:
    return "–" if value is None else form.format(value)


def describe(trace: Trace) -> str:
    """Return the method and the models of a trace as one line of text."""
    h = trace.header
    return f"{h.method} · {h.target}" + (f" ← {h.drafter}" if h.drafter else "")


def curves(trace: Trace) -> str:
    """Return HTML with the acceptance rate by depth, and the accepted tokens per round as block characters."""
    depths = metrics.acceptance_by_depth(trace.rounds)
    rows = "".join(f"<tr><td>{d}</td><td>{k / t:.2f}</td><td>{t}</td></tr>" for d, t, k in depths if t)
    table = (
        "<table><thead><tr><th>depth</th><th>accepted, if all earlier drafts were</th><th>tested</th></tr></thead>"
        f"<tbody>{rows}</tbody></table>"
    )
    return f"<p>Accepted drafts, round by round: {spark([len(r.path) for r in trace.rounds])}</p>" + (
        table if rows else ""
    )


def spark(values: Sequence[float]) -> str:
    """Return numbers as a line of block characters (a sparkline), scaled from 0 to the largest number."""
    top = max([*values, 1e-9])
    return "".join(BLOCKS[round((len(BLOCKS) - 1) * max(0.0, v) / top)] for v in values[:ROUNDS])


def lane(traces: Sequence[Trace], names: Sequence[str] | None = None) -> str:
    """Return HTML with each trace's time per phase as a bar of characters on a common time axis.

    The main measurements of each trace follow.
    """
    seconds = [metrics.decode_seconds(t.rounds) for t in traces]
    longest = max([*seconds, 1e-9])
    lines = []
    for i, (trace, total) in enumerate(zip(traces, seconds, strict=True)):
        name = names[i] if names is not None and i < len(names) else trace.header.method
        figures = metrics.summary(trace)
        shares = [figures[f"{part}_seconds"] for part in ("draft", "verify", "overhead")]
        bar = "".join(char * round(60 * share / longest) for char, share in zip("▒█░", shares, strict=True))
        lines.append(f"{escape(name)[:40]:<24} {bar} {total:.2f} s")
    return f"<pre>{chr(10).join(lines)}\n▒ draft  █ verify  ░ overhead</pre>" + key_figures(traces, names)


def stage(trace: Trace, other: Trace | None = None) -> str:
    """Return the HTML of the whole Live view of a trace: measurements, text, tree of one round, and curves.

    The collapsed tree is that of the most instructive round (`instructive_round`).
    """
    traces = [trace] if other is None else [trace, other]
    pictures = "".join(image_html(p.url, p.width, p.height) for p in trace.header.pictures)
    tree_html = f"<details><summary>Draft tree</summary>{tree(trace, instructive_round(trace))}</details>"
    return pictures + key_figures(traces) + ribbon(trace) + tree_html + curves(trace)


def instructive_round(trace: Trace) -> int:
    """Return the index of the first round of a trace with both accepted and rejected drafts; else 0."""
    candidates = (r.index for r in trace.rounds if r.path and REJECTED in r.nodes.status)
    return next(candidates, 0)


def image_html(url: str, width: int, height: int) -> str:
    """Return the HTML of a trace's image; "" if the trace does not contain the image data. Downloads nothing."""
    if not is_png_url(url):
        return ""
    return (
        f'<p><img src="{url}" width="{min(width, 320)}" height="{round(height * min(width, 320) / max(width, 1))}"></p>'
    )


def vision(trace: Trace, other: Trace | None = None) -> str:
    """Return HTML with a trace's image, the number of vision tokens that the drafter gets, and the text."""
    round_vision = next((r.vision for r in trace.rounds if r.vision), {})
    n_tokens = {name: round_vision.get(key) for name, key in (("target", "n_target"), ("drafter", "n_drafter"))}
    words = ", ".join(f"{name}: {n} vision tokens" for name, n in n_tokens.items() if n is not None)
    texts = ribbon(trace) + (f"<p>{escape(describe(other))}</p>{ribbon(other)}" if other is not None else "")
    traces = [trace] if other is None else [trace, other]
    pictures = "".join(image_html(p.url, p.width, p.height) for p in trace.header.pictures)
    return f"{pictures}<p>{escape(words)}</p>{key_figures(traces)}{texts}"


def wrap(inner: str) -> str:
    """Wrap the HTML of a widget's snapshot in the element that is stored in the notebook."""
    return f'<div class="wb-snapshot" style="line-height:1.9;max-width:60em">{inner}</div>'
