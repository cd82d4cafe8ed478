"""Host overhead of drafting: time of `propose` and `observe` of drafters without a net of their own, by context length.

For `rest`, which drafts from a datastore, also by the size of the datastore. No model runs: the text of a round is from
this project's own texts, and the target's top tokens are random. So the times hold for any target. Drafters that run
layers of the target are not measured.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from workbench.bench.markdown import format_value, markdown_table
from workbench.bench.simulated_rounds import SimulatedSequence, stub_models
from workbench.bench.study import BEGIN, Rows, Study, in_turn
from workbench.engine.datastore import Card, Datastore, dtype_of, n_ids, tokenizer_hash
from workbench.engine.datastore_builder import NEXT_TEXT, OWN_TEXTS, encode_text, sort_suffixes
from workbench.models.machine import describe, machine_facts

CONTEXTS = (250, 500, 1000, 2000, 4000, 8000)
STORES = (10_000, 100_000, 1_000_000)
"""Sizes, in tokens, of the datastore from which the method `rest` retrieves drafts."""
ROUNDS, WARM_UP_ROUNDS = 200, 20
"""Number of measured rounds per drafter and context length, and number of warm-up rounds before them."""
MAX_ROUND_S, REFERENCE_CONTEXT = 1.5e-3, 2000
"""Largest acceptable host overhead of drafting, in seconds per round, and context length in tokens for this limit."""
BOARD = "host.json"
NAMES = (
    "prompt-lookup", "suffix", "aggressive", "stand", "adaptive-trigram", "token-recycling", "lookahead-trie", "rest",
    "lookahead", "jacobi",
)  # fmt: skip
GROWS = {
    "prompt-lookup": "one dictionary look-up",
    "suffix": "one scan of an int32 array of at most 65,536 tokens",
    "aggressive": "a scan of the prompt from the position where the output began to differ from it",
    "stand": "look-ups in a dictionary of at most 16,384 contexts",
    "adaptive-trigram": "look-ups in a dictionary of at most 16,384 token pairs",
    "token-recycling": "one look-up per node of the draft",
    "lookahead-trie": "a search of the nodes below one node of a trie of at most 65,536 nodes",
    "rest": "bisections, whose time grows with the logarithm of the datastore's size and not with the context",
    "lookahead": "one look-up in a dictionary of at most 16,384 n-grams",
    "jacobi": "one guessed token per position of the draft",
}
"""Part of each drafter's work per round that may grow with the context length, according to the drafter's code."""


@lru_cache(maxsize=1)
def _read(tokenizer: Any) -> list[int]:
    """Return the token ids of the project's own texts, from which drafting is simulated."""
    return encode_text(tokenizer, OWN_TEXTS.read_text(encoding="utf-8").replace(NEXT_TEXT, "\n"))


def text_tokens(tokenizer: Any, n: int) -> list[int]:
    """Return `n` token ids of the project's texts, repeated as needed."""
    ids = _read(tokenizer)
    return (ids * (n // len(ids) + 1))[:n]


def store_of_size(tokenizer: Any, n: int, seed: int = 0) -> Datastore:
    """Return a datastore of `n` tokens: random 32-token spans of the project's texts, as repetitive as a large one."""
    ids, random = np.array(text_tokens(tokenizer, 40_000)), np.random.default_rng(seed)
    starts = random.integers(0, len(ids) - 32, n // 32 + 1)
    vocabulary = n_ids(tokenizer)
    tokens = ids[(starts[:, None] + np.arange(32)).ravel()][: n - 1].astype(dtype_of(vocabulary))
    tokens = np.append(tokens, np.array([vocabulary], dtype_of(vocabulary)))
    card = Card(len(tokens), vocabulary, tokenizer_hash(tokenizer), "", texts=[("drawn", 0)])
    return Datastore(card, tokens, sort_suffixes(tokens))


def measure(name: str, tokenizer: Any, context: int, store: Datastore, rounds: int = ROUNDS) -> dict[str, Any]:
    """Measure the seconds per round that a drafter spends in `propose` and `observe`.

    Args:
        name: registry name of the method.
        tokenizer: tokenizer of the texts.
        context: context length before the first round, in tokens.
        store: datastore of methods that draft from one.
        rounds: number of timed rounds.

    Returns:
        `median` and `p95` (95 % quantile) of the sum of both times, `propose` and `observe` (their medians), and
        `drafted` (tokens per round).
    """
    from workbench.methods import registry

    models = stub_models(n_ids(tokenizer), tokenizer)
    models.shared["datastore"] = store
    text = text_tokens(tokenizer, context + 40 * (rounds + WARM_UP_ROUNDS))
    reader = SimulatedSequence.of(registry.get(name).with_params(), models, text, context)
    spent, drafted = list[tuple[float, float]](), 0
    for i in range(rounds + WARM_UP_ROUNDS):
        reader.plan()
        begin = time.perf_counter()
        tree = reader.propose()
        proposed = time.perf_counter()
        outcome = reader.verify(tree)
        verified = time.perf_counter()
        reader.observe(outcome)
        if i >= WARM_UP_ROUNDS:
            spent.append((proposed - begin, time.perf_counter() - verified))
            drafted += len(tree)
    totals = sorted(a + b for a, b in spent)
    return {
        "median": statistics.median(totals),
        "p95": totals[math.ceil(0.95 * len(totals)) - 1],
        "propose": statistics.median(a for a, _ in spent),
        "observe": statistics.median(b for _, b in spent),
        "drafted": drafted / len(spent),
    }


def run_suite(
    tokenizer: Any,
    earlier: dict[str, Any] | None = None,
    save: Callable[[dict[str, Any]], None] = lambda report: None,
    progress: Callable[[str], None] = lambda words: None,
    contexts: Sequence[int] = CONTEXTS,
    stores: Sequence[int] = STORES,
    rounds: int = ROUNDS,
) -> dict[str, Any]:
    """Measure all drafters at all context lengths, and `rest` with all datastore sizes.

    Args:
        tokenizer: tokenizer of the texts.
        earlier: an earlier report; its rows are not measured again if machine, rounds and vocabulary are the same.
        save: function that is called with the report after every measurement; an interrupted suite can continue.
        progress: function that is called with the name of the current measurement.
        contexts: context lengths, in tokens.
        stores: datastore sizes, in tokens.
        rounds: number of timed rounds per measurement.

    Returns:
        Plain JSON: `rows` (results of `measure` by "NAME at CONTEXT" or "rest in STORE"), `rounds`, `vocabulary`,
        `machine`.
    """
    facts = machine_facts()
    report: dict[str, Any] = {"rows": {}, "rounds": rounds, "vocabulary": n_ids(tokenizer), "machine": facts}
    if earlier and all(earlier.get(key) == report[key] for key in ("rounds", "vocabulary")) and _same(earlier, report):
        report["rows"] = dict(earlier["rows"])
    cases = {f"{name} at {n}": (name, n, 0) for name in NAMES for n in contexts}
    cases |= {f"rest in {size}": ("rest", REFERENCE_CONTEXT, size) for size in stores}
    small_store = lru_cache(maxsize=1)(lambda: store_of_size(tokenizer, min(stores)))

    def measure_case(key: str) -> dict[str, Any]:
        name, context, size = cases[key]
        return measure(name, tokenizer, context, store_of_size(tokenizer, size) if size else small_store(), rounds)

    def save_row(key: str, row: dict[str, Any]) -> None:
        report["rows"][key] = row
        save(report)

    study = Study[str, Any](list(cases), in_turn(measure_case), Rows(str, dict(report["rows"]), save_row))
    for kind, key, _ in study.run():
        if kind == BEGIN:
            progress(key)
    return report


def _same(one: dict[str, Any], other: dict[str, Any]) -> bool:
    """Return whether two reports of host overhead are from the same machine, regardless of date and load."""
    facts = [{k: v for k, v in r.get("machine", {}).items() if k not in ("date", "load")} for r in (one, other)]
    return facts[0] == facts[1]


def growth(report: dict[str, Any], name: str) -> float | None:
    """Return the ratio of a drafter's median times per round at the longest and at the shortest context.

    The result is None if the drafter was not measured.
    """
    rows = report["rows"].items()
    medians = sorted((int(key.rpartition(" ")[2]), row["median"]) for key, row in rows if f"{name} at " in key)
    return medians[-1][1] / medians[0][1] if len(medians) > 1 else None


def table(report: dict[str, Any]) -> str:
    """Return a Markdown table of the time per round in ms, with a row per drafter and a column per context length.

    The values are medians; for a context of 2,000 tokens there is also a column with the 95 % quantile.
    """
    contexts = sorted({int(key.rpartition(" ")[2]) for key in report["rows"] if " at " in key})
    rows = [{"name": name} for name in NAMES if f"{name} at {contexts[0]}" in report["rows"]]

    def cell(context: int, what: str = "median") -> Callable[[dict[str, Any]], str]:
        def words(row: dict[str, Any]) -> str:
            entry = report["rows"].get(f"{row['name']} at {context}")
            return format_value(entry and 1e3 * entry[what], ".3f")

        return words

    columns: dict[str, Callable[[dict[str, Any]], Any]] = {"drafter": lambda row: f"`{row['name']}`"}
    columns |= {f"{context:,}, ms": cell(context) for context in contexts}
    if REFERENCE_CONTEXT in contexts:
        columns[f"95th percentile at {REFERENCE_CONTEXT:,}, ms"] = cell(REFERENCE_CONTEXT, "p95")
    columns["longest / shortest"] = lambda row: format_value(growth(report, row["name"]), ".1f")
    columns["grows with"] = lambda row: GROWS[row["name"]]
    return markdown_table(columns, rows, ("drafter", "grows with"))


def stores_table(report: dict[str, Any]) -> str:
    """Return a Markdown table of the time per round of `rest` in ms (median and 95 % quantile) by datastore size."""
    rows = [
        {"size": int(key.rpartition(" ")[2]), **row}
        for key, row in report["rows"].items()
        if key.startswith("rest in ")
    ]
    columns: dict[str, Callable[[dict[str, Any]], Any]] = {
        "store, tokens": lambda row: f"{row['size']:,}",
        "median, ms": lambda row: format_value(1e3 * row["median"], ".3f"),
        "95th percentile, ms": lambda row: format_value(1e3 * row["p95"], ".3f"),
    }
    return markdown_table(columns, sorted(rows, key=lambda row: row["size"]))


def plot(report: dict[str, Any]) -> str:
    """Return an SVG plot of the drafters' median time per round against the context length, both axes logarithmic."""
    lines: dict[str, list[tuple[int, float]]] = {}
    for key, row in report["rows"].items():
        name, at, size = key.rpartition(" at ")
        if at:
            lines.setdefault(name, []).append((int(size), 1e3 * row["median"]))
    points = [point for line in lines.values() for point in line]
    left, right, top, bottom = 60, 560, 20, 300
    x0, x1 = (
        math.log(min(x for x, _ in points)),
        math.log(max(max(x for x, _ in points), min(x for x, _ in points) + 1)),
    )
    y0, y1 = math.log(0.005), math.log(max(10.0, *(y for _, y in points)))

    def x(value: float) -> float:
        return left + (right - left) * (math.log(value) - x0) / (x1 - x0)

    def y(value: float) -> float:
        return bottom - (bottom - top) * (math.log(max(value, 0.005)) - y0) / (y1 - y0)

    parts = [
        '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 740 340" font-family="sans-serif" font-size="11" '
        'role="img" aria-label="Host milliseconds of a round by context, for each drafter">',
        '<rect width="740" height="340" fill="#fff"/>',
    ]
    parts += [
        f'<line x1="{left}" x2="{right}" y1="{y(ms):.1f}" y2="{y(ms):.1f}" stroke="#ddd"/>'
        f'<text x="{left - 6}" y="{y(ms) + 4:.1f}" text-anchor="end">{ms:g} ms</text>'
        for ms in (0.01, 0.1, 1, 10)
    ]
    limit = 1e3 * MAX_ROUND_S
    parts.append(
        f'<line x1="{left}" x2="{right}" y1="{y(limit):.1f}" y2="{y(limit):.1f}" stroke="#c00" stroke-dasharray="5 3"/>'
    )
    parts += [
        f'<text x="{x(size):.1f}" y="{bottom + 16}" text-anchor="middle">{size:,}</text>'
        for size in sorted({size for size, _ in points})
    ]
    parts.append(f'<text x="{(left + right) / 2}" y="{bottom + 32}" text-anchor="middle">tokens of context</text>')
    ends, hues = sorted((y(sorted(line)[-1][1]), name) for name, line in lines.items()), {}
    at = -math.inf
    for i, (end, name) in enumerate(ends):
        at = max(end, at + 13)
        hues[name] = f"hsl({360 * i // max(1, len(ends))} 65% 38%)"
        parts.append(f'<text x="{right + 8}" y="{at + 4:.1f}" fill="{hues[name]}">{name}</text>')
    for name, line in lines.items():
        coordinates = " ".join(f"{x(size):.1f},{y(ms):.1f}" for size, ms in sorted(line))
        parts.append(f'<polyline points="{coordinates}" fill="none" stroke="{hues[name]}" stroke-width="1.6"/>')
    return "\n".join([*parts, "</svg>", ""])


def page(report: dict[str, Any]) -> str:
    """Return the board of host overhead as Markdown: table, plot, machine, and drafters slower than `MAX_ROUND_S`."""
    slow = [
        f"`{key.split(' ')[0]}` ({1e3 * row['median']:.2f} ms)"
        for key, row in report["rows"].items()
        if key.endswith(f" at {REFERENCE_CONTEXT}") and row["median"] > MAX_ROUND_S
    ]
    return "\n".join(
        [
            "# Host overhead of drafting",
            "",
            "Milliseconds per round that each drafter without a model, with its default parameters, takes to "
            "propose a draft and to process the round's result, by tokens of context: the median of "
            f"{report['rounds']} rounds. No model runs; the text is the source text of this project, in a "
            f"vocabulary of {report['vocabulary']:,} tokens. Drafters that run layers of the target are left "
            "out, since a run already measures their time in each round. `rasd` does the same look-up as "
            "`rest`. Made by "
            f"`workbench bench --suite host --out assets/boards/{BOARD}`, which continues after an interruption; "
            "`workbench docs` writes this page.",
            "",
            f"Measured on {describe(report['machine'])}.",
            f"More than {1e3 * MAX_ROUND_S:g} ms at {REFERENCE_CONTEXT:,} tokens of context: {', '.join(slow)}."
            if slow
            else f"No drafter takes more than {1e3 * MAX_ROUND_S:g} ms at {REFERENCE_CONTEXT:,} tokens of context "
            "(the dashed line).",
            "",
            table(report),
            "",
            f"![Host overhead in milliseconds by context length]({Path(BOARD).stem}.svg)",
            "",
            f"Host overhead of `rest` at {REFERENCE_CONTEXT:,} tokens of context, by the size of its datastore, "
            f"which is in memory:",
            "",
            stores_table(report),
            "",
        ]
    )
