"""Convert a trace to Polars frames and back without loss, for run stores, statistics and Parquet files.

Only modules for storage and export import Polars; the engine records traces without it.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any

import polars as pl

from workbench.trace.events import SCHEMA_VERSION, Change, Footer, Header, Phase, Round, Trace
from workbench.trace.nodes import Nodes, Probe, TopTokens, TreeExplanationRecord
from workbench.trace.tokens import EmittedToken, TentativeTokenRecord

Schema = dict[str, Any]  # column → polars type

_STRINGS, _INTS, _FLOATS = pl.List(pl.String), pl.List(pl.Int64), pl.List(pl.Float64)

RUN: Schema = {
    "target": pl.String, "drafter": pl.String, "method": pl.String, "params": pl.String, "promise": pl.String,
    "seed": pl.String, "prompt": pl.String, "prompt_tokens": _INTS, "prompt_text": _STRINGS,
    "max_new_tokens": pl.Int64, "dtype": pl.String, "device": pl.String, "created": pl.String, "hardware": pl.String,
    "prefill_s": pl.Float64, "schema": pl.Int64, "workbench": pl.String, "simulation": pl.Boolean,
    "reason": pl.String, "text": pl.String, "seconds": pl.Float64, "error": pl.String, "warnings": _STRINGS,
    "pictures": pl.String, "attribution": pl.String, "rules": pl.String,
}  # fmt: skip
"""Columns of the table that stores a trace's header and footer in one row. `params`, `pictures`, `attribution` and
`rules` are JSON; `seed` is a string of decimal digits, because it may be any integer."""

ROUNDS: Schema = {
    "round": pl.Int64, "method": pl.String, "params": pl.String, "path": _INTS, "bonus": pl.Int64,
    "bonus_kind": pl.String, "started_s": pl.Float64, "seconds": pl.Float64, "draft_s": pl.Float64,
    "verify_s": pl.Float64, "overhead_s": pl.Float64, "waited_s": pl.Float64,
    "shared": pl.String, "draft_forwards": pl.Int64, "target_forwards": pl.Int64,
    "changes": pl.String, "signals": pl.String, "notes": _STRINGS,
    "n_top_p": pl.Int64, "n_top_q": pl.Int64, "n_entropy": pl.Int64,
    "vision": pl.String, "revoked": pl.String, "placed": pl.String, "probes": pl.String,
    "grown": pl.String, "ranking": pl.String,
}  # fmt: skip
"""Columns of the table that stores a trace's rounds, one per row. `params`, `changes`, `signals`, `shared`, `vision`,
`revoked`, `placed`, `probes`, `grown` and `ranking` are JSON. The columns `n_top_p`, `n_top_q` and `n_entropy` hold the
numbers of entries in the round's fields `top_p`, `top_q` and `entropy`."""

NODES: Schema = {
    "round": pl.Int64, "node": pl.Int64, "token": pl.Int64, "parent": pl.Int64, "depth": pl.Int64,
    "position": pl.Int64, "text": pl.String, "p": pl.Float64, "q": pl.Float64, "accept": pl.Float64, "u": pl.Float64,
    "status": pl.String, "source": pl.String, "rule": pl.String, "inputs": pl.String,
}  # fmt: skip
"""Columns of the table that stores a trace's drafted nodes, one per row. `parent` −1 is the last committed token.
`inputs` is JSON; null if the acceptance rules of the round have no inputs."""

PLACES: Schema = {
    "round": pl.Int64, "node": pl.Int64, "entropy": pl.Float64,
    "p_tokens": _INTS, "p_text": _STRINGS, "p_prob": _FLOATS, "q_tokens": _INTS, "q_text": _STRINGS, "q_prob": _FLOATS,
}  # fmt: skip
"""Columns of the table that stores a trace's tree positions, one per row (`node` −1 is the root): the target's entropy,
and the most likely next tokens of target (p) and drafter (q)."""

TOKENS: Schema = {
    "round": pl.Int64, "k": pl.Int64, "token": pl.Int64, "text": pl.String, "start": pl.Int64, "end": pl.Int64,
    "kind": pl.String, "node": pl.Int64, "position": pl.Int64, "p": pl.Float64,
}  # fmt: skip
"""Columns of the table that stores a trace's committed tokens, one per row; `k` is a token's index in its round."""

PHASES: Schema = {
    "round": pl.Int64, "name": pl.String, "start_s": pl.Float64, "end_s": pl.Float64, "lane": pl.String,
}  # fmt: skip
"""Columns of the table that stores the phases of a trace's rounds, one per row. Times are in seconds since the end of
prefill."""

LATER = ("vision", "rule", "inputs", "waited_s", "shared", "revoked", "placed", "probes", "grown", "ranking")
"""Names of columns that are missing in traces of older schema versions."""
_NODE_FIELDS = {"token": "tokens", "parent": "parents", **{n: n for n in list(NODES)[4:] if n != "inputs"}}
_PARTS = {"nodes": NODES, "places": PLACES, "tokens": TOKENS, "phases": PHASES}


@dataclass(frozen=True, slots=True)
class Frames:
    """Tables of a trace, as Polars frames.

    Attributes:
        run: one row with header and footer (columns: `RUN`).
        rounds: one row per round (columns: `ROUNDS`).
        nodes: one row per drafted node (columns: `NODES`).
        places: one row per recorded tree position, with the most likely next tokens (columns: `PLACES`).
        tokens: one row per committed token (columns: `TOKENS`).
        phases: one row per phase of a round (columns: `PHASES`).
    """

    run: pl.DataFrame
    rounds: pl.DataFrame
    nodes: pl.DataFrame
    places: pl.DataFrame
    tokens: pl.DataFrame
    phases: pl.DataFrame


def to_frames(trace: Trace) -> Frames:
    """Convert a trace to tables (Polars frames)."""
    header, footer = trace.header.to_wire(), trace.footer.to_wire()
    run = {**header, **footer, "params": json.dumps(header["params"]), "seed": str(header["seed"])}
    run |= {"pictures": json.dumps(header["pictures"]), "attribution": json.dumps(trace.attribution)}
    run["rules"] = json.dumps(header["rules"])
    return Frames(
        run=_frame([run], RUN),
        rounds=_frame([_round_row(r) for r in trace.rounds], ROUNDS),
        nodes=_frame([row for r in trace.rounds for row in _node_rows(r)], NODES),
        places=_frame([row for r in trace.rounds for row in _place_rows(r)], PLACES),
        tokens=_frame(
            [{"round": r.index, "k": k, **_slots(e)} for r in trace.rounds for k, e in enumerate(r.emitted)],
            TOKENS,
        ),
        phases=_frame([{"round": r.index, **_slots(p)} for r in trace.rounds for p in r.phases], PHASES),
    )


def from_frames(frames: Frames) -> Trace:
    """Convert the tables of `to_frames` back to a trace.

    Raises:
        ValueError: there is not exactly one run, or its schema is newer than this version supports.
    """
    run = frames.run.row(0, named=True) if frames.run.height == 1 else {}
    if not run:
        raise ValueError(f"The data frames contain {frames.run.height} runs, but exactly one run is needed.")
    if run["schema"] > SCHEMA_VERSION:
        raise ValueError(
            f"This trace has schema version {run['schema']}; this version of the workbench reads "
            f"schemas up to {SCHEMA_VERSION}."
        )
    run |= {"params": json.loads(run["params"]), "seed": int(run["seed"])}
    run |= {"pictures": json.loads(run["pictures"] or "[]"), "attribution": json.loads(run["attribution"] or "null")}
    run["rules"] = json.loads(run["rules"] or "{}")
    header = Header.from_wire({name: run[name] for name in Header.__dataclass_fields__})
    footer = Footer(**{name: run[name] for name in Footer.__dataclass_fields__})
    nodes, places = _by_round(frames.nodes), _by_round(frames.places)
    tokens, phases = _by_round(frames.tokens), _by_round(frames.phases)
    rounds = [
        _round(row, *(table.get(row["round"], []) for table in (nodes, places, tokens, phases)))
        for row in frames.rounds.iter_rows(named=True)
    ]
    return Trace(header, rounds, footer, run["attribution"])


def nest(frames: Frames) -> pl.DataFrame:
    """Join a trace's tables into one table with a row per round; rows of other tables become lists of structs."""
    nested = frames.rounds
    for name in _PARTS:
        table: pl.DataFrame = getattr(frames, name)
        lists = table.group_by("round", maintain_order=True).agg(pl.struct(pl.exclude("round")).alias(name))
        nested = nested.join(lists, on="round", how="left", maintain_order="left")
    return nested


def flatten(run: pl.DataFrame, nested: pl.DataFrame) -> Frames:
    """Split the single table that `nest` returns into the tables of a trace again.

    Args:
        run: table of one row with the trace's header and footer.
        nested: output of `nest`.
    """

    def part(name: str, schema: Schema) -> pl.DataFrame:
        table = nested.select("round", pl.col(name)).drop_nulls(name).explode(name).unnest(name)
        return _add_later_columns(table, schema).select(pl.col(column).cast(kind) for column, kind in schema.items())

    rounds = _add_later_columns(nested, ROUNDS).select(list(ROUNDS))
    return Frames(run, rounds, **{name: part(name, schema) for name, schema in _PARTS.items()})


def _add_later_columns(table: pl.DataFrame, schema: Schema) -> pl.DataFrame:
    """Add to a table of an old trace the columns of later schema versions, filled with null."""
    return table.with_columns(pl.lit(None, schema[n]).alias(n) for n in LATER if n in schema and n not in table.columns)


def _frame(rows: list[dict[str, Any]], schema: Schema) -> pl.DataFrame:
    return pl.DataFrame({name: [row[name] for row in rows] for name in schema}, schema=schema)


def _slots(item: Any) -> dict[str, Any]:
    return {name: getattr(item, name) for name in item.__dataclass_fields__}


def _round_row(r: Round) -> dict[str, Any]:
    return {
        **{name: getattr(r, name) for name in ROUNDS if name in Round.__dataclass_fields__},
        "round": r.index,
        "params": json.dumps(r.params),
        "changes": json.dumps([_slots(c) for c in r.changes]),
        "signals": json.dumps(r.signals),
        "vision": json.dumps(r.vision),
        "shared": json.dumps(r.shared),
        "revoked": json.dumps(r.revoked),
        "placed": json.dumps([_slots(p) for p in r.placed]),
        "probes": json.dumps([_slots(p) for p in r.probes]),
        "grown": None if r.grown is None else json.dumps(_slots(r.grown)),
        "ranking": json.dumps([top and _slots(top) for top in r.ranking]),
        "n_top_p": len(r.top_p),
        "n_top_q": len(r.top_q),
        "n_entropy": len(r.entropy),
    }


def _node_rows(r: Round) -> list[dict[str, Any]]:
    columns = {name: getattr(r.nodes, field) for name, field in _NODE_FIELDS.items()}
    inputs = [{name: values[i] for name, values in r.nodes.inputs.items()} for i in range(len(r.nodes))]
    columns["inputs"] = [json.dumps(node_inputs) if node_inputs else None for node_inputs in inputs]
    return [
        {"round": r.index, "node": i, **{name: column[i] for name, column in columns.items()}}
        for i in range(len(r.nodes))
    ]


def _place_rows(r: Round) -> list[dict[str, Any]]:
    return [
        {"round": r.index, "node": i - 1, "entropy": entropy, **_top("p", p), **_top("q", q)}
        for i, (entropy, p, q) in enumerate(zip_longest(r.entropy, r.top_p, r.top_q))
    ]


def _top(prefix: str, top: TopTokens | None) -> dict[str, Any]:
    return {f"{prefix}_{name}": getattr(top, name, None) for name in ("tokens", "text", "prob")}


def _by_round(table: pl.DataFrame) -> dict[int, list[dict[str, Any]]]:
    """Group the rows of a table of a trace by the number of their round; keep their order."""
    rounds: dict[int, list[dict[str, Any]]] = {}
    for row in table.iter_rows(named=True):
        rounds.setdefault(row.pop("round"), []).append(row)
    return rounds


def _round(
    row: dict[str, Any],
    nodes: list[dict[str, Any]],
    places: list[dict[str, Any]],
    tokens: list[dict[str, Any]],
    phases: list[dict[str, Any]],
) -> Round:
    top_p, top_q = [_read_top(p, "p") for p in places], [_read_top(p, "q") for p in places]
    node_inputs = [json.loads(n["inputs"] or "{}") for n in nodes]
    inputs = {name: [values[name] for values in node_inputs] for name in (node_inputs[0] if node_inputs else ())}
    return Round(
        index=row["round"],
        nodes=Nodes(**{field: [n[name] for n in nodes] for name, field in _NODE_FIELDS.items()}, inputs=inputs),
        emitted=[EmittedToken(**{name: t[name] for name in EmittedToken.__dataclass_fields__}) for t in tokens],
        top_p=[top for top in top_p[: row["n_top_p"]] if top is not None],
        top_q=top_q[: row["n_top_q"]],
        entropy=[p["entropy"] for p in places[: row["n_entropy"]]],
        phases=[Phase(**p) for p in phases],
        params=json.loads(row["params"]),
        changes=[Change(**c) for c in json.loads(row["changes"])],
        signals=json.loads(row["signals"]),
        vision=json.loads(row["vision"] or "{}"),
        shared=json.loads(row["shared"] or "{}"),
        revoked=json.loads(row["revoked"] or "[]"),
        placed=[TentativeTokenRecord(**p) for p in json.loads(row["placed"] or "[]")],
        probes=[Probe(**p) for p in json.loads(row["probes"] or "[]")],
        waited_s=row["waited_s"] or 0.0,
        grown=TreeExplanationRecord(**json.loads(row["grown"])) if row["grown"] else None,
        ranking=[TopTokens(**top) if top else None for top in json.loads(row["ranking"] or "[]")],
        **{name: row[name] for name in ROUNDS if name in _PLAIN},
    )


def _read_top(place: dict[str, Any], prefix: str) -> TopTokens | None:
    tokens = place[f"{prefix}_tokens"]
    return None if tokens is None else TopTokens(tokens, place[f"{prefix}_text"], place[f"{prefix}_prob"])


_PLAIN = set(Round.__dataclass_fields__) - {
    "params",
    "changes",
    "signals",
    "vision",
    "shared",
    "waited_s",
    "revoked",
    "placed",
    "grown",
    "ranking",
    "probes",
}
