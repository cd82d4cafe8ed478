"""Defaults of requests, names of models, and errors sent to clients."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from workbench.client import wire
from workbench.client.requests import Generation
from workbench.core.errors import ModelError, ParameterError


class Server:
    """A client whose list of methods has the reasons why some cannot run."""

    hub_only = False

    def __init__(self, **reasons: str) -> None:
        self.reasons = reasons

    def targets(self) -> list[dict[str, Any]]:
        return [{"name": "small"}]

    def drafters(self) -> list[dict[str, Any]]:
        return []

    def methods(self, target: str | None, drafter: str | None) -> list[dict[str, Any]]:
        assert (target, drafter) == ("small", None)
        return [{"name": name.replace("_", "-"), "reason": reason} for name, reason in self.reasons.items()]


@pytest.mark.parametrize(
    ("server", "asked", "wanted"),
    [
        (Server(draft_model="", prompt_lookup=""), {}, "draft-model"),
        (Server(draft_model="No draft model is chosen.", prompt_lookup=""), {}, "prompt-lookup"),
        (Server(draft_model="No draft model is chosen."), {"method": "draft-model"}, "draft-model"),
    ],
)
def test_a_request_without_a_method_gets_one_that_runs(server: Server, asked: dict[str, Any], wanted: str) -> None:
    found = Generation.options(server, {"prompt": "Once", "target": "small", **asked})
    assert found["method"] == wanted


@pytest.mark.parametrize("value", [2.7, -1, True, "3", None, 2**63, float("nan"), float("inf")])
def test_values_that_are_not_whole_numbers_are_refused(value: Any) -> None:
    with pytest.raises(ParameterError, match="whole number from 0"):
        wire.check_integer("max_new_tokens", value)
    assert wire.check_integer("max_new_tokens", 3.0) == 3


def test_a_folder_of_the_server_is_accepted_only_if_it_is_listed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "models" / "hers").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    for place in ("models/hers", "models/x.gguf", "models/X.GGUF"):
        with pytest.raises(ModelError, match="not the name of a model"):
            wire.model_name("target", place, ["small"])
        assert wire.model_name("target", place, [place]) == place
    assert wire.model_name("target", "owner/name", []) == "owner/name"
    assert wire.model_name("target", "models/hers", [], hub_only=True) == "models/hers", "it can only be a Hub id"
    with pytest.raises(ModelError, match="not the name of a model"):
        wire.model_name("target", "models/x.gguf", [], hub_only=True)


def test_an_error_contains_no_path_and_no_secret() -> None:
    wire_error = wire.error_to_wire(
        ModelError("No /root/models/it/config.json for hf_abcdefghij.", "Look in C:\\it\\is")
    )
    assert wire_error == {"kind": "ModelError", "message": "No … for ….", "remedy": "Look in …"}
