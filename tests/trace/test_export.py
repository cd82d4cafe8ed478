"""Trace files: they can be read here and by other programs; damaged ones are refused with a reason."""

from __future__ import annotations

import io
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from hypothesis import HealthCheck, given, settings
from traces import FIXTURES, make_hostile_trace, traces

import workbench
from workbench.core.errors import WorkbenchError
from workbench.core.panics import PanicError, convert_panics, suppress_panic_output
from workbench.core.rules import RATIO
from workbench.trace import export, metrics
from workbench.trace.events import SCHEMA_VERSION, Trace
from workbench.trace.export import read_wire
from workbench.trace.images import PNG_URL
from workbench.views import recorded_runs

RELAXED = settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.too_slow])


@pytest.fixture(scope="module")
def trace() -> Trace:
    return recorded_runs.read(recorded_runs.folder() / f"switch{recorded_runs.SUFFIX}")


@RELAXED
@given(traces())
def test_any_trace_round_trip_through_json_lines(trace: Trace) -> None:
    text = export.to_json_lines(trace)
    n_events = len(trace.rounds) + 2 + (trace.attribution is not None)
    assert text.count("\n") == n_events, "one line per event for all texts"
    assert export.read(text.encode()).to_wire() == trace.to_wire()


@RELAXED
@given(traces())
def test_any_trace_round_trip_through_parquet(trace: Trace) -> None:
    assert export.read(export.to_parquet(trace)) == trace


def test_hostile_texts_are_unchanged() -> None:
    trace = make_hostile_trace()
    assert export.read_json_lines(export.to_json_lines(trace)) == trace
    assert export.read_parquet(export.to_parquet(trace)) == trace


def test_parquet_file_opens_as_one_table(trace: Trace) -> None:
    table = pl.read_parquet(io.BytesIO(export.to_parquet(trace)))
    assert table.height == len(trace.rounds)
    tokens = table.select("round", "tokens").explode("tokens").unnest("tokens")
    assert tokens["token"].to_list() == trace.token_ids
    nodes = table.select("nodes").explode("nodes").unnest("nodes").drop_nulls("node")
    assert nodes.height == metrics.count_drafted(trace.rounds)


def broken(trace: Trace, change: Any) -> bytes:
    lines = [json.loads(line) for line in export.to_json_lines(trace).splitlines()]
    change(lines)
    return "\n".join(json.dumps(line) for line in lines).encode()


# The tests' type checker reports wrong kinds first, hence "damaged" for them.
CASES: list[tuple[str, Any, str]] = [
    ("newer", lambda lines: lines[0].update(schema=SCHEMA_VERSION + 1), "Update the workbench"),
    ("no header", lambda lines: lines.pop(0), "no header"),
    (
        "unknown event",
        lambda lines: lines[1].update(event="party"),
        "Line 2 of the trace file has the unknown event kind 'party'",
    ),
    ("a list", lambda lines: lines.insert(1, [1, 2]), "Line 2 of the file is not an event"),
    ("missing field", lambda lines: lines[1].pop("nodes"), "nodes"),
    ("unknown field", lambda lines: lines[0].update(surprise=1), "surprise"),
    ("a round missing", lambda lines: lines.pop(2), "round 2"),
    ("short column", lambda lines: lines[1]["nodes"]["p"].pop(), "differ in length"),
    ("a text for a column", lambda lines: lines[1]["nodes"].update(p="x"), "damaged"),
    ("a short column of rules", lambda lines: lines[1]["nodes"]["rule"].pop(), "differ in length"),
    ("a text for an input", lambda lines: lines[1]["nodes"].update(inputs={"r": ["x"] * 12}), "damaged"),
    ("inputs that are none", lambda lines: lines[1]["nodes"].update(inputs=[]), "damaged"),
    ("a rule without a name", lambda lines: lines[1]["nodes"]["rule"].__setitem__(0, 1), "damaged"),
    ("an empty rule", lambda lines: lines[0].update(rules={"ratio": {"name": "ratio"}}), "damaged"),
    ("a rule that is no text", lambda lines: lines[0].update(rules={"x": {**RATIO.to_wire(), "title": 1}}), "damaged"),
    ("child before parent", lambda lines: lines[1]["nodes"]["parents"].__setitem__(0, 3), "before its parent"),
    ("a number for a text", lambda lines: lines[1]["nodes"]["text"].__setitem__(0, 3), "damaged"),
    ("a text for a number", lambda lines: lines[1].update(seconds="long"), "damaged"),
    ("unknown status", lambda lines: lines[1]["nodes"]["status"].__setitem__(0, "maybe"), "unknown status"),
    ("path too far", lambda lines: lines[1].update(path=[99]), "names a node that does not exist"),
    ("nested parents", lambda lines: lines[1]["nodes"]["parents"].__setitem__(0, [0]), "damaged"),
    ("rounds null", lambda lines: lines[1].update(emitted=None), "damaged"),
]


@pytest.mark.parametrize(("change", "said"), [case[1:] for case in CASES], ids=[case[0] for case in CASES])
def test_damaged_file_is_refused_with_a_reason(trace: Trace, change: Any, said: str) -> None:
    with pytest.raises(WorkbenchError, match=said):
        export.read(broken(trace, change))


@pytest.mark.parametrize(
    "data", [b"", b"\xff\xfe\x00", b"hello", b"{}", b"[" * 100_000, b"PAR1", b"PAR1" + bytes(64) + b"PAR1", b"null\n"]
)
def test_other_data_is_refused_with_a_reason(data: bytes) -> None:
    with pytest.raises(WorkbenchError) as caught:
        export.read(data)
    assert caught.value.remedy


def test_another_parquet_file_is_refused_with_a_reason() -> None:
    out = io.BytesIO()
    pl.DataFrame({"a": [1]}).write_parquet(out)
    with pytest.raises(WorkbenchError, match="not a trace of the workbench"):
        export.read(out.getvalue())


def test_too_large_file_is_not_parsed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(export, "MAX_BYTES", 8)
    with pytest.raises(WorkbenchError, match="the limit is"):
        export.read(b"x" * 9)


def test_truncated_file_gives_its_readable_rounds(trace: Trace) -> None:
    lines = export.to_json_lines(trace).splitlines()
    cut = export.read_json_lines("\n".join(lines[:5]))
    assert cut.rounds == trace.rounds[:4]
    assert cut.footer.reason == ""
    assert cut.footer.warnings == [export.INCOMPLETE]
    assert export.read(export.to_parquet(cut)).footer.warnings == [export.INCOMPLETE], "the note remains after saving"
    assert export.read_json_lines(export.to_json_lines(trace)).footer.warnings == trace.footer.warnings


# -- Mutants ----------------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("step", [7, pytest.param(1, marks=pytest.mark.on_demand)])
def test_trace_with_one_wrong_field_is_refused_or_breaks_no_reader(step: int) -> None:
    """Every 7th mutant covers all fields: a field has 15 mutants, one or two of which are tried."""
    program = [sys.executable, str(Path(__file__).with_name("mutants.py")), str(step)]
    env = {**os.environ, "PYTHONPATH": str(Path(workbench.__file__).parents[1])}
    report = json.loads(subprocess.run(program, capture_output=True, text=True, check=True, env=env).stdout)
    assert report["tried"] > 2000 // step
    assert report["refused"] > report["tried"] // 2
    assert report["broke"] == {}


def test_values_of_real_traces_are_not_refused(trace: Trace) -> None:
    for name in recorded_runs.names():
        export.check_trace(recorded_runs.trace(name))
    wire = json.loads(json.dumps(trace.to_wire()))
    wire["header"]["seed"] = 10**30
    wire["rounds"][0]["signals"] = {"entropy": 0}
    assert export.read_wire(wire).header.seed == 10**30


WRONG: dict[str, Any] = {
    "no header": lambda wire: wire.pop("header"),
    "a header that is a list": lambda wire: wire.update(header=[1]),
    "a field too many": lambda wire: wire["header"].update(zzz=1),
    "a field too few": lambda wire: wire["header"].pop("method"),
    "rounds that are a number": lambda wire: wire.update(rounds=3),
    "a round that is a text": lambda wire: wire["rounds"].__setitem__(0, "x"),
    "nodes too few": lambda wire: wire["rounds"][0]["nodes"].pop("p"),
    "a footer that is null": lambda wire: wire.update(footer=None),
    "a schema that is a text": lambda wire: wire["header"].update(schema="x"),
}


@pytest.mark.parametrize("what", WRONG)
def test_error_for_a_damaged_trace_contains_no_python_message(what: str) -> None:
    wire = json.loads((FIXTURES / "tree.json").read_text())
    WRONG[what](wire)
    with pytest.raises(WorkbenchError) as refused:
        read_wire(wire)
    message = str(refused.value)
    assert "damaged" in message
    assert not re.search(r"__init__|object is not|argument|attribute|'str'|'int'|NoneType|[A-Z]\w+Error", message), (
        message
    )


@pytest.mark.parametrize("end", ['"><img src=x onerror=alert(1)>', "'", " ", "\n", "#x", "\u212a"])
def test_image_url_with_text_after_its_data_is_refused(end: str) -> None:
    wire = json.loads((FIXTURES / "tree.json").read_text())
    picture = {"width": 8, "height": 8, "rows": 1, "cols": 1, "start": 0, "end": 1}
    wire["header"]["pictures"] = [picture | {"url": PNG_URL + "AAAA"}]
    assert read_wire(wire).header.pictures[0].url == PNG_URL + "AAAA"
    wire["header"]["pictures"] = [picture | {"url": PNG_URL + "AAAA" + end}]
    with pytest.raises(WorkbenchError, match="an image in its header"):
        read_wire(wire)


def test_panic_of_the_parquet_reader_prints_no_backtrace(capfd: pytest.CaptureFixture[str]) -> None:
    """Lines that others write meanwhile are kept."""

    def panic() -> None:
        with convert_panics(), suppress_panic_output():
            os.write(2, b"a line of the log\n")
            os.write(2, b"\nthread '<unnamed>' panicked at crates/x.rs:1:2:\nindex\nstack backtrace:\n   0: x\n")
            raise type("PanicException", (BaseException,), {})("index")

    with pytest.raises(PanicError):
        panic()
    assert capfd.readouterr().err == "a line of the log\n"
    with suppress_panic_output():
        os.write(2, b"another\n")
    assert capfd.readouterr().err == "another\n"
