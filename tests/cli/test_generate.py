"""`workbench generate` on the bundled models."""

from __future__ import annotations

import io
import json
import re
import threading
from pathlib import Path

import pytest

from workbench.cli import output
from workbench.cli.loading import LoadingProgress
from workbench.cli.stream import Marks, TokenPrinter
from workbench.client import Workbench
from workbench.core.errors import WorkbenchError
from workbench.trace.events import Round, Trace
from workbench.trace.nodes import Nodes
from workbench.trace.store import RunStore
from workbench.trace.tokens import EmittedToken

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


def test_a_method_does_not_change_the_text(workbench: Command) -> None:
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


@pytest.mark.parametrize(
    ("method", "verifier", "temperature", "says"),
    [
        (
            "draft-model",
            "lenient",
            "0.8",
            r"with verifier=lenient, grower=chain, .*\(total variation distance 0\.\d+ per token\)",
        ),
        ("draft-model", "lossless", "0.8", ""),
        ("draft-model", "lenient", "0", ""),  # at temperature 0 it is greedy matching, without distribution error
        ("draft-tree-sampled", "k-seq", "0.8", "with verifier=k-seq, grower=rsd-s, .* distribution$"),
        ("draft-tree-sampled", "k-seq", "0", ""),  # greedy text is the target's
        ("draft-tree-sampled", "typical", "0.8", "distance at most 0"),
    ],
)
def test_text_that_may_deviate_from_the_targets_distribution_is_reported_with_its_error(
    method: str, verifier: str, temperature: str, says: str, workbench: Command
) -> None:
    asked = ("generate", "Once upon a time", "--method", method, *SHORT)
    err = workbench(*asked, "--set", f"verifier={verifier}", "--temperature", temperature).err
    found = [line for line in err.splitlines() if "the text may not follow the target's distribution" in line]
    assert len(found) == bool(says)
    assert not says or re.search(says, found[0])


def test_a_trace_is_written_as_json_lines_and_can_be_read_back(workbench: Command, tmp_path: Path) -> None:
    file = tmp_path / "trace.jsonl"
    data = workbench("generate", "Once upon a time", "--trace", str(file), "--json", *SHORT).json
    events = [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]
    kinds = [event.pop("event") for event in events]
    assert kinds == ["header", *["round"] * data["metrics"]["rounds"], "footer"]
    trace = Trace.from_wire({"header": events[0], "rounds": events[1:-1], "footer": events[-1]})
    assert trace.token_ids == data["token_ids"]


def test_a_failed_save_does_not_lose_the_text(
    workbench: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(self: RunStore, *_: object) -> str:
        raise WorkbenchError("The run cannot be kept: No space left on device.", "Free some.")

    monkeypatch.setattr(RunStore, "save", full)
    words = ("generate", "Once upon a time", *SHORT, "--keep", "--trace", str(tmp_path / "run.jsonl"))
    result = workbench(*words, "--json")
    assert result.status == 1
    assert result.json["text"]
    assert result.json["not_saved"] == ["The run cannot be kept: No space left on device. Free some."]
    assert (tmp_path / "run.jsonl").exists()
    plain_result = workbench(*words)
    assert plain_result.status == 1
    assert result.json["text"] in plain_result.out
    assert "No space left on device" in plain_result.err


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
    nodes, own = Nodes(tokens=[1] * drafted), None if kind == "accepted" else kind
    return Round(0, "draft-model", {}, nodes, [], None, own, [EmittedToken(1, text, 0, len(text), kind, None, 0, 1.0)])


class FakeTerminal(io.StringIO):
    """A stream that claims to be a terminal."""

    def isatty(self) -> bool:
        return True


def printed_tokens(marks: Marks, stream: io.StringIO) -> str:
    printer = TokenPrinter(marks, stream)
    printer.show(round_of(" yes\n", "accepted", 2))
    printer.show(round_of("no", "corrected", 2))
    printer.show(round_of(" so", "bonus", 2))
    printer.show(round_of("plain", "bonus", 0))
    return stream.getvalue()


def test_tokens_are_distinguished_by_colour_style_and_characters() -> None:
    text = printed_tokens(Marks.colour, io.StringIO())
    assert "\x1b[4;38;2;31;35;40;48;2;217;236;252m yes\x1b[0m\n" in text
    assert text.endswith("\x1b[0mplain")
    assert printed_tokens(Marks.style, io.StringIO()) == "\x1b[4m yes\x1b[0m\n\x1b[1mno\x1b[0m\x1b[3m so\x1b[0mplain"
    assert printed_tokens(Marks.text, io.StringIO()) == " _yes_\n*no* /so/plain"
    assert printed_tokens(Marks.none, io.StringIO()) == " yes\nno soplain"


def test_marks_follow_the_terminal_and_the_users_option(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("NO_COLOR", raising=False)
    assert Marks.auto.on(FakeTerminal()) is Marks.colour
    assert Marks.auto.on(io.StringIO()) is Marks.none
    assert Marks.text.on(io.StringIO()) is Marks.text
    monkeypatch.setenv("NO_COLOR", "1")
    assert Marks.auto.on(FakeTerminal()) is Marks.style
    monkeypatch.setenv("TERM", "dumb")
    assert Marks.auto.on(FakeTerminal()) is Marks.text


def test_the_prompt_is_echoed_on_a_terminal_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    terminal, pipe = FakeTerminal(), io.StringIO()
    for stream in (terminal, pipe):
        TokenPrinter(Marks.auto, stream).echo("Once \x1b[31m")
    assert terminal.getvalue() == "\x1b[2mOnce \u20391B\u203a[31m\x1b[0m"
    assert pipe.getvalue() == ""


def test_loading_progress_is_shown_on_a_terminal_and_erased(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    for level, stream in (
        (output.USUAL, FakeTerminal()),
        (output.USUAL, io.StringIO()),
        (output.QUIET, FakeTerminal()),
    ):
        monkeypatch.setattr("sys.stderr", stream)
        output.set_level(level == output.QUIET, level == output.VERBOSE)
        seen = threading.Event()

        def stage(seen: threading.Event = seen) -> str:
            seen.set()
            return "reading, 1.0 of 2.0 MB"

        with LoadingProgress("text-target, 27.7 MB", stage):
            if stream.isatty() and level == output.USUAL:
                assert seen.wait(120)
        said = stream.getvalue()
        if stream.isatty() and level == output.USUAL:
            assert "loading text-target, 27.7 MB: reading, 1.0 of 2.0 MB · 0 s" in said
            assert said.endswith("\r\x1b[2K")
        else:
            assert said == ""
    output.reset()


def test_a_chat_shows_the_loading_progress_of_its_models(monkeypatch: pytest.MonkeyPatch, workbench: Command) -> None:
    """It needs the target's chat template, so it first waits for the models; one of them may be converted first."""
    pipe, asked = io.StringIO(), threading.Event()
    monkeypatch.setattr("sys.stderr", pipe)
    monkeypatch.setattr(Workbench, "health", lambda self: {"loading": "" if asked.set() else "dequantising 40 %"})
    monkeypatch.setattr(Workbench, "chat_prompt", lambda self, messages, target: [1, 2] if asked.wait(120) else [])
    workbench("-v", "generate", "--chat", "Hello", "--method", "autoregressive", *SHORT)
    assert re.search(r"loading text-target.*: dequantising 40 % …", pipe.getvalue())


def test_verbose_reports_stages_sizes_and_times_in_a_pipe_too(monkeypatch: pytest.MonkeyPatch) -> None:
    pipe = io.StringIO()
    monkeypatch.setattr("sys.stderr", pipe)
    output.set_level(quiet=False, verbose=True)
    asked = threading.Event()
    with LoadingProgress("text-target, 27.7 MB", lambda: asked.set() or "building"):
        assert asked.wait(120)
    output.reset()
    first, last = pipe.getvalue().splitlines()
    assert first == "loading text-target, 27.7 MB: building …"
    assert re.fullmatch(r"loaded text-target, 27.7 MB in \d+\.\d s", last)


def test_quiet_prints_only_the_text(workbench: Command) -> None:
    result = workbench("-q", "generate", "Once upon a time", "--method", "autoregressive", *SHORT)
    assert (result.status, result.err) == (0, "")
    assert result.out


def test_without_a_draft_model_a_method_that_runs_is_chosen_and_named(workbench: Command) -> None:
    result = workbench("generate", "one two one two", "--target", "text-drafter", "--json", *SHORT)
    assert (result.status, result.json["method"]) == (0, "prompt-lookup")
    assert "Decoding with prompt-lookup; choose another method with --method or --drafter" in result.err


def test_a_drafters_state_is_saved_and_loaded_by_the_next_run(workbench: Command, tmp_path: Path) -> None:
    file = tmp_path / "fox.safetensors"
    ask = ("generate", "Once upon a time", "--method", "token-recycling", "--state", str(file), *SHORT)
    first = workbench(*ask, "--json")
    assert file.stat().st_size > 200
    again = workbench(*ask)
    assert again.out
    assert re.search(r"state: \d+ of at most [\d,]+ tokens; \d+ of \d+ lookups found a draft", again.err)
    more = workbench(*ask, "--json")
    assert more.json["token_ids"] == first.json["token_ids"]
    assert more.json["metrics"]["rounds"] < first.json["metrics"]["rounds"], "the loaded state drafts the text at once"


def test_a_state_that_does_not_fit_is_refused_and_its_file_is_unchanged(workbench: Command, tmp_path: Path) -> None:
    file = tmp_path / "state.safetensors"
    file.write_bytes(b"no state")
    result = workbench("generate", "Once", "--method", "suffix", "--state", str(file), *SHORT)
    assert result.status != 0
    assert "contains no drafter state" in result.err
    assert file.read_bytes() == b"no state"
