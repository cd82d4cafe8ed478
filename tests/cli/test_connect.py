"""`--connect`: the same commands against a running app."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import serving

from workbench.client.keys import CONNECT_KEY, KEY
from workbench.server.access_control import AccessControl
from workbench.ui import build, space

from .conftest import Command

SECRET = "a key of some length"
SHORT = ("--max-new-tokens", "12")


def test_generate_uses_the_running_app(workbench: Command) -> None:
    app = serving.app()
    options = ("Once upon a time", "--method", "prompt-lookup", "--set", "depth=3", *SHORT)
    data = workbench("generate", *options, "--connect", app.url, "--json").json
    wanted = app.bench.generate("Once upon a time", "prompt-lookup", params={"depth": 3}, max_new_tokens=12)
    assert (data["token_ids"], data["dtype"]) == (wanted.token_ids, "float64")
    assert data["parameters"]["depth"] == 3
    assert workbench("generate", *options, "--connect", app.url).out == wanted.text + "\n"


def test_chat_uses_the_chat_template_of_the_apps_model(workbench: Command) -> None:
    data = workbench("generate", "--chat", "What is 2 + 3?", "--connect", serving.app().url, "--json", *SHORT).json
    assert data["prompt"] == "<|user|>What is 2 + 3?<|assistant|>"


def test_methods_lists_the_apps_methods(workbench: Command) -> None:
    rows = workbench("methods", "--connect", serving.app().url, "--drafter", "none", "--json").json
    by_name = {row["name"]: row for row in rows}
    assert by_name["prompt-lookup"]["available"]
    assert by_name["draft-model"]["reason"]
    assert by_name["draft-model"]["parameters"]


def test_a_refusal_of_the_app_is_one_line(workbench: Command) -> None:
    for more, words in (
        (("--method", "promt-lookup"), "Did you mean 'prompt-lookup'"),
        (("--set", "depth=99"), "range"),
    ):
        result = workbench("generate", "Hello", "--connect", serving.app().url, *more)
        assert (result.status, result.out) == (2, "")
        assert words in result.err
        assert len(result.err.strip().splitlines()) == 1


def test_an_address_without_server_is_reported(workbench: Command) -> None:
    url = f"http://127.0.0.1:{serving.free_port()}"
    result = workbench("generate", "Hello", "--connect", url)
    assert result.status == 1
    assert f"No server answers at {url}" in result.err


def test_options_that_the_app_decides_are_refused(workbench: Command) -> None:
    result = workbench("generate", "Hello", "--connect", "http://x", "--dtype", "float64")
    assert (result.status, "--dtype" in result.err) == (2, True)
    result = workbench("bench", "--connect", "http://x")
    assert (result.status, "run it on the server itself" in result.err) == (2, True)


@pytest.fixture(scope="module")
def locked() -> Iterator[str]:
    """The same app behind a key."""
    demo, port = build(serving.app().bench), serving.free_port()
    demo.launch(server_port=port, quiet=True, **space.launch_options(serving.app().bench, AccessControl(key=SECRET)))
    yield f"http://127.0.0.1:{port}"
    demo.close()


@pytest.mark.parametrize(
    "command",
    [
        ("generate", "Once", "--method", "autoregressive", "--max-new-tokens", "3"),
        ("compare", "Once", "--lane", "autoregressive", "--repeats", "1", "--max-new-tokens", "3"),
        ("sweep", "--axis", "depth=2", "--method", "prompt-lookup", "--prompt", "Once", "--max-new-tokens", "3"),
        ("methods",),
    ],
    ids=lambda command: command[0],
)
def test_commands_send_the_key_to_a_server_that_requires_one(
    workbench: Command, locked: str, monkeypatch: pytest.MonkeyPatch, command: tuple[str, ...]
) -> None:
    for name in (KEY, CONNECT_KEY):
        monkeypatch.delenv(name, raising=False)
    command = (*command, "--connect", locked)
    result = workbench(*command)
    assert (result.status, result.out) == (1, "")
    assert "needs an API key. Give --api-key" in result.err
    assert KEY in result.err, "the error names the variable to set"
    result = workbench(*command, "--api-key", "another")
    assert result.status == 1
    assert "needs an API key, and the given key is wrong." in result.err
    assert "another" not in result.err
    assert workbench(*command, "--api-key", SECRET).status == 0
    monkeypatch.setenv(KEY, SECRET)
    assert workbench(*command).status == 0


def test_an_unused_empty_or_invalid_key_is_refused(workbench: Command) -> None:
    for command in (("generate", "x"), ("compare", "x"), ("sweep", "--axis", "depth=2"), ("methods",)):
        result = workbench(*command, "--api-key", SECRET)
        assert (result.status, "give its address with --connect" in result.err, SECRET in result.err) == (
            2,
            True,
            False,
        )
        result = workbench(*command, "--connect", "http://x", "--api-key", " ")
        assert (result.status, "the API key is empty" in result.err) == (2, True)
    result = workbench("methods", "--connect", "http://x", "--api-key", "schlüssel")
    assert "characters that cannot be sent" in result.err
