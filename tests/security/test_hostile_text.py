"""Hostile model output and hostile tokenizer pieces in every interface that needs no browser."""

from __future__ import annotations

import io
import json
import re

from security.hostile_model import PIECES

from workbench.cli.stream import Marks, TokenPrinter
from workbench.trace import export
from workbench.trace.events import Trace
from workbench.ui.hosting import as_text
from workbench.views.replay import replay

MARKUP = [piece for piece in PIECES if "<" in piece]
OURS = re.compile(r"\x1b\[[0-9;]*m")  # the colours that the command line itself writes
CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_hostile_text_survives_serialisation_unchanged_and_inert(hostile_trace: Trace) -> None:
    wire = hostile_trace.to_wire()
    sent = as_text(wire)
    assert json.loads(sent) == json.loads(json.dumps(wire))
    assert "<" not in sent


def test_exports_contain_hostile_text_as_data(hostile_trace: Trace) -> None:
    lines = export.to_json_lines(hostile_trace)
    assert export.read_json_lines(lines).text == hostile_trace.text
    assert export.read_parquet(export.to_parquet(hostile_trace)).text == hostile_trace.text


def test_the_replay_file_contains_no_markup_from_the_model(hostile_trace: Trace) -> None:
    html = replay(hostile_trace)
    for piece in MARKUP:
        assert piece not in html
    assert html.count("</script>") == replay(Trace(hostile_trace.header)).count("</script>")


def test_a_terminal_gets_no_control_characters_from_the_model(hostile_trace: Trace) -> None:
    for marks in Marks:
        screen = Terminal()
        printer = TokenPrinter(marks, screen)
        for record in hostile_trace.rounds:
            printer.show(record)
        printer.end()
        styled = marks.on(screen) in (Marks.colour, Marks.style)
        left = OURS.sub("", screen.getvalue()) if styled else screen.getvalue()
        assert "a plain word" in left
        assert not CONTROL.findall(left), marks
