"""The key that a client sends to each server: this machine's own key never leaves it."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import Any

import gradio_client
import pytest

from workbench import Workbench
from workbench.cli.loading import connect_to_app
from workbench.client.keys import CONNECT_KEY, KEY, key_for
from workbench.core.errors import WorkbenchError

LOCAL_SERVERS = ["http://localhost:7860", "http://127.0.0.1:7860/", "https://[::1]:7860", "http://LOCALHOST"]
REMOTE_SERVERS = ["https://lab.example.org", "https://10.0.0.7:7860", "https://localhost.example.org",
             "https://owner-space.hf.space.example.org", "https://localhost@example.org",
             "https://localhost:80@example.org"]  # fmt: skip
SPACES = ["owner/space", "https://owner-space.hf.space", "https://Owner-Space.HF.space:443/x",
          "https://huggingface.co/spaces/owner/space"]  # fmt: skip


@pytest.mark.parametrize("url", LOCAL_SERVERS)
def test_a_server_of_this_machine_gets_the_machines_key(url: str) -> None:
    assert key_for(url, env={KEY: "mine"}) == "mine"
    assert key_for(url, env={KEY: "mine", CONNECT_KEY: "theirs"}) == "mine"
    assert key_for(url, env={KEY: " ", CONNECT_KEY: "theirs"}) == "theirs"
    assert key_for(url, "given", env={KEY: "mine"}) == "given"
    assert key_for(url, env={}) is None


@pytest.mark.parametrize("url", REMOTE_SERVERS)
def test_other_machines_get_only_the_key_meant_for_them(url: str) -> None:
    assert key_for(url, env={KEY: "mine"}) is None
    assert key_for(url, env={KEY: "mine", CONNECT_KEY: "theirs"}) == "theirs"
    assert key_for(url, "given", env={KEY: "mine"}) == "given"


@pytest.mark.parametrize("url", SPACES)
def test_a_space_gets_only_an_explicit_key(url: str) -> None:
    assert key_for(url, env={KEY: "mine", CONNECT_KEY: "theirs"}) is None
    assert key_for(url, "given", env={KEY: "mine", CONNECT_KEY: "theirs"}) == "given"


def test_sending_a_key_unencrypted_to_another_machine_gives_a_warning() -> None:
    with pytest.warns(UserWarning, match=r"is sent to lab\.example\.org unencrypted"):
        assert key_for("http://lab.example.org:7860", "given", env={}) == "given"
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert key_for("http://lab.example.org", env={KEY: "mine"}) is None


@pytest.fixture
def sent_headers(monkeypatch: pytest.MonkeyPatch) -> list[Mapping[str, str]]:
    """Return the headers of each client; the requests are not sent."""
    heard: list[Mapping[str, str]] = []

    def client(url: str, *, headers: Mapping[str, str], **_: Any) -> Any:
        heard.append(headers)
        raise OSError("Nobody there.")

    monkeypatch.setattr(gradio_client, "Client", client)
    monkeypatch.setenv(KEY, "mine")
    return heard


def test_client_and_command_line_send_the_same_key(
    sent_headers: list[Mapping[str, str]], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for url in ("http://localhost:7860", "https://lab.example.org"):
        with pytest.raises(WorkbenchError):
            Workbench(url)
    monkeypatch.setenv(CONNECT_KEY, "theirs")
    with pytest.raises(WorkbenchError):
        connect_to_app("http://lab.example.org")
    assert [headers.get("x-api-key") for headers in sent_headers] == ["mine", None, "theirs"]
    assert capsys.readouterr().err.startswith("warning: The API key is sent to lab.example.org unencrypted")
