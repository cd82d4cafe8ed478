"""`workbench generate` on the bundled models."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest

from workbench.cli.stream import TokenPrinter, wants_colour
from workbench.trace.events import Emitted, Nodes, Round, Trace

from .conftest import Command

SHORT = ("--max-new-tokens", "12", "--device", "cpu")


def test_json_is_one_object_with_text_ids_and_metrics(workbench: Command) -> None:
    result = workbench(
        "generate", "Once upon a time", "--method", "prompt-lookup", "--set", "depth=3", "--json", *SHORT
    )
    assert result.status == 0
    data = result.json
    assert {"text", "token_ids", "method", "parameters", "metrics"} <= set(data)
    assert data["method"] == "prompt-lookup"
    assert data["parameters"]["depth"] == 3
    assert len(data["token_ids"]) == data["metrics"]["tokens"] <= 12
    assert {"tau", "acceptance_rate", "rounds", "tokens", "seconds", "tokens_per_second"} <= set(data["metrics"])
    assert data["text"]


def test_a_method_changes_nothing_but_the_way(workbench: Command) -> None:
    texts = [
        workbench("generate", "The cat sat", "--method", m, "--dtype", "float64", "--json", *SHORT).json["token_ids"]
        for m in ("autoregressive", "draft-model")
    ]
    assert texts[0] == texts[1]


def test_text_goes_to_standard_output_and_figures_to_standard_error(workbench: Command) -> None:
    result = workbench("generate", "Once upon a time", "--method", "autoregressive", *SHORT)
    plain = workbench("generate", "Once upon a time", "--method", "autoregressive", "--json", *SHORT)
    assert result.out == plain.json["text"] + "\n"
    assert "tokens/s" in result.err
    assert "τ 1.00" in result.err


def test_a_trace_is_written_as_json_lines_and_reads_back(workbench: Command, tmp_path: Path) -> None:
    file = tmp_path / "trace.jsonl"
    data = workbench("generate", "Once upon a time", "--trace", str(file), "--json", *SHORT).json
    events = [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]
    kinds = [event.pop("event") for event in events]
    assert kinds == ["header", *["round"] * data["metrics"]["rounds"], "footer"]
    trace = Trace.from_wire({"header": events[0], "rounds": events[1:-1], "footer": events[-1]})
    assert trace.token_ids == data["token_ids"]


def test_a_prompt_comes_from_a_file_or_from_standard_input(
    workbench: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "prompt.txt"
    file.write_text("Once upon a time")
    wanted = workbench("generate", "Once upon a time", "--json", *SHORT).json["token_ids"]
    assert workbench("generate", "--prompt-file", str(file), "--json", *SHORT).json["token_ids"] == wanted
    monkeypatch.setattr("sys.stdin", io.StringIO("Once upon a time"))
    assert workbench("generate", "-", "--json", *SHORT).json["token_ids"] == wanted


def test_a_message_is_put_into_the_chat_format(workbench: Command) -> None:
    data = workbench("generate", "--chat", "What is 2 + 3?", "--json", *SHORT).json
    assert data["prompt"].startswith("<|user|>What is 2 + 3?<|assistant|>")


def test_sampling_is_reproduced_by_its_seed(workbench: Command) -> None:
    options = ("--temperature", "1", "--top-k", "50", "--top-p", "0.95", "--json", *SHORT)
    first, again, other = (
        workbench("generate", "Once upon a time", "--seed", seed, *options).json["token_ids"] for seed in "778"
    )
    assert first == again != other


def round_of(text: str, kind: str, drafted: int) -> Round:
    nodes = Nodes(tokens=[1] * drafted)
    return Round(0, "draft-model", {}, nodes, [], None, None, [Emitted(1, text, 0, len(text), kind, None, 0, 1.0)])


def test_colours_mark_tokens_and_keep_the_text() -> None:
    out = io.StringIO()
    printer = TokenPrinter(coloured=True, stream=out)
    printer.show(round_of("yes\n", "accepted", 2))
    printer.show(round_of("no", "corrected", 2))
    printer.show(round_of("plain", "bonus", 0))
    assert "\x1b[4;38;2;31;35;40;48;2;217;236;252myes\x1b[0m\n" in out.getvalue()
    assert out.getvalue().endswith("\x1b[0mplain")


def test_no_colour_without_a_terminal_or_against_the_users_wish(monkeypatch: pytest.MonkeyPatch) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("NO_COLOR", raising=False)
    assert wants_colour(Terminal())
    assert not wants_colour(io.StringIO())
    monkeypatch.setenv("NO_COLOR", "1")
    assert not wants_colour(Terminal())
    out = io.StringIO()
    TokenPrinter(stream=out).show(round_of("yes", "accepted", 2))
    assert out.getvalue() == "yes"
