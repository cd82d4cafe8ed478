"""`--connect`: the same commands against a running app."""

from __future__ import annotations

import serving

from .conftest import Command

SHORT = ("--max-new-tokens", "12")


def test_generate_asks_the_running_app(workbench: Command) -> None:
    app = serving.app()
    options = ("Once upon a time", "--method", "prompt-lookup", "--set", "depth=3", *SHORT)
    data = workbench("generate", *options, "--connect", app.url, "--json").json
    wanted = app.bench.generate("Once upon a time", "prompt-lookup", params={"depth": 3}, max_new_tokens=12)
    assert (data["token_ids"], data["dtype"]) == (wanted.token_ids, "float64")
    assert data["parameters"]["depth"] == 3
    assert workbench("generate", *options, "--connect", app.url).out == wanted.text + "\n"


def test_chat_takes_the_format_of_the_apps_model(workbench: Command) -> None:
    data = workbench("generate", "--chat", "What is 2 + 3?", "--connect", serving.app().url, "--json", *SHORT).json
    assert data["prompt"] == "<|user|>What is 2 + 3?<|assistant|>"


def test_methods_are_those_of_the_app(workbench: Command) -> None:
    rows = workbench("methods", "--connect", serving.app().url, "--drafter", "none", "--json").json
    by_name = {row["name"]: row for row in rows}
    assert by_name["prompt-lookup"]["available"]
    assert by_name["draft-model"]["reason"]
    assert by_name["draft-model"]["parameters"]


def test_what_the_app_refuses_is_one_line(workbench: Command) -> None:
    for more, words in (
        (("--method", "promt-lookup"), "Did you mean 'prompt-lookup'"),
        (("--set", "depth=99"), "range"),
    ):
        result = workbench("generate", "Hello", "--connect", serving.app().url, *more)
        assert (result.status, result.out) == (2, "")
        assert words in result.err
        assert len(result.err.strip().splitlines()) == 1


def test_nobody_at_the_address(workbench: Command) -> None:
    url = f"http://127.0.0.1:{serving.free_port()}"
    result = workbench("generate", "Hello", "--connect", url)
    assert result.status == 1
    assert f"Nobody answers at {url}" in result.err


def test_what_the_app_decides_is_not_asked_for(workbench: Command) -> None:
    result = workbench("generate", "Hello", "--connect", "http://x", "--dtype", "float64")
    assert (result.status, "--dtype" in result.err) == (2, True)
    result = workbench("bench", "--connect", "http://x")
    assert (result.status, "run it there" in result.err) == (2, True)
