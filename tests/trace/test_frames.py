"""A trace as tables and back, without loss."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace

import polars as pl
import pytest
from hypothesis import HealthCheck, given, settings
from traces import traces

from workbench.trace import frames, metrics
from workbench.trace.events import SCHEMA_VERSION, Trace
from workbench.views import recorded_runs

RELAXED = settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])


@RELAXED
@given(traces())
def test_any_trace_round_trip_through_frames(trace: Trace) -> None:
    tables = frames.to_frames(trace)
    assert frames.from_frames(tables) == trace
    assert frames.from_frames(frames.flatten(tables.run, frames.nest(tables))) == trace


@pytest.mark.parametrize("name", recorded_runs.names())
def test_tables_contain_the_counts_of_the_figures(name: str) -> None:
    trace = recorded_runs.read(recorded_runs.folder() / f"{name}{recorded_runs.SUFFIX}")
    tables = frames.to_frames(trace)
    assert frames.from_frames(tables) == trace
    tested = tables.nodes.filter(pl.col("status") != "discarded").height
    accepted = tables.nodes.filter(pl.col("status") == "accepted").height
    assert (tested, accepted) == (metrics.count_tested(trace.rounds), metrics.count_accepted(trace.rounds))
    assert tables.tokens.height / tables.rounds.height == metrics.tau(trace.rounds)
    assert tables.tokens.sort("position")["token"].to_list() == trace.token_ids
    ends = tables.rounds["started_s"] + tables.rounds["seconds"]
    assert ends.max() == pytest.approx(metrics.summary(trace)["seconds"])
    assert "".join(tables.tokens["text"]) == trace.text


@pytest.mark.parametrize("rounds", [0, 1])
def test_every_column_has_its_type_even_without_rows(rounds: int) -> None:
    trace = recorded_runs.read(recorded_runs.folder() / f"draft-tree{recorded_runs.SUFFIX}")
    tables = frames.to_frames(Trace(trace.header, trace.rounds[:rounds], trace.footer))
    for name in ("run", "rounds", "nodes", "places", "tokens", "phases"):
        assert dict(getattr(tables, name).schema) == getattr(frames, name.upper()), name


def test_two_runs_and_newer_schemas_are_refused_with_a_reason() -> None:
    tables = frames.to_frames(recorded_runs.read(recorded_runs.folder() / f"draft-model{recorded_runs.SUFFIX}"))
    with pytest.raises(ValueError, match="2 runs"):
        frames.from_frames(replace(tables, run=pl.concat([tables.run, tables.run])))
    newer = tables.run.with_columns(schema=pl.lit(SCHEMA_VERSION + 1, pl.Int64))
    with pytest.raises(ValueError, match="reads schemas up to"):
        frames.from_frames(replace(tables, run=newer))


@pytest.mark.slow
def test_engine_needs_no_polars() -> None:
    code = (
        "import sys; sys.modules['polars'] = None; import workbench.engine, workbench.methods.registry as r; r.names()"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)
