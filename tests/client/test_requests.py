"""Requests are pydantic models: invalid fields give readable errors, and endpoints accept the models' fields."""

from __future__ import annotations

from typing import Any

import pytest
from ui.fake_client import FakeWorkbench

from workbench.client.requests import ChangeRequest, ComparisonRequest, Control, Generation
from workbench.core.errors import ModelError, ParameterError, PromptError, WorkbenchError


@pytest.mark.parametrize(
    ("asked", "kind", "message"),
    [
        ({"prompt": 3}, PromptError, "neither text nor token ids"),
        ({"max_new_tokens": 2.7}, ParameterError, "max_new_tokens is not a whole number from 1 to 1000000"),
        ({"seed": "3"}, ParameterError, "seed is not a whole number from 0"),
        ({"params": [1]}, ParameterError, "params is not an object"),
        ({"stop": {"a": 1}}, ParameterError, "stop is not a list of names"),
        ({"method": 3}, ParameterError, "method is not text"),
        ({"images": ["/etc/passwd"]}, PromptError, "not a data-URL"),
        ({"target": "../x"}, ModelError, "is not the name of a model"),
    ],
)
def test_an_invalid_field_gives_a_readable_error(
    asked: dict[str, Any], kind: type[WorkbenchError], message: str
) -> None:
    with pytest.raises(kind, match=message) as refused:
        Generation.options(FakeWorkbench(), {"prompt": "Once"} | asked)
    assert refused.value.remedy


def test_missing_and_null_fields_have_their_defaults() -> None:
    wanted = {"prompt": "Once", "method": "draft-model", "params": {}, "target": None, "drafter": None, "seed": 0,
              "max_new_tokens": 128, "stop": (), "paused": False, "images": (), "pace": 0.0, "memory": None,
              "keeps": False}  # fmt: skip
    assert Generation.options(FakeWorkbench(), {"prompt": "Once"}) == wanted
    assert Generation.options(FakeWorkbench(), {"prompt": "Once", **dict.fromkeys(Generation.model_fields)} | {
        "prompt": "Once", "unheard-of": 1}) == wanted  # fmt: skip
    with pytest.raises(ParameterError, match="repeats is not a whole number from 1"):
        ComparisonRequest.options(FakeWorkbench(), {"prompts": "Once", "lanes": ["autoregressive"], "repeats": 0})
    with pytest.raises(ParameterError, match="not a list of lanes"):
        ComparisonRequest.options(FakeWorkbench(), {"prompts": "Once"})


@pytest.mark.parametrize(
    ("asked", "kind", "message"),
    [
        ({"run": None}, ParameterError, "run is not text"),
        ({"method": 3}, ParameterError, "method is not text"),
        ({"params": {"depth": [4]}}, ParameterError, "depth is a list"),
        ({"drafter": "../x"}, ModelError, "is not the name of a model"),
        ({"images": ["/etc/passwd"]}, PromptError, "not a data-URL"),
        ({"sees": 1}, ParameterError, "sees is not text"),
    ],
)
def test_an_invalid_change_gives_a_readable_error(
    asked: dict[str, Any], kind: type[WorkbenchError], message: str
) -> None:
    with pytest.raises(kind, match=message) as refused:
        ChangeRequest.options(FakeWorkbench(), {"run": "x"} | asked)
    assert refused.value.remedy


def test_a_change_affects_only_the_fields_it_names() -> None:
    as_it_is = {"run": "x", "method": None, "params": {}, "drafter": None, "images": (), "sees": "both", "pace": None}
    assert ChangeRequest.options(FakeWorkbench(), {"run": "x", "method": "", "pace": None}) == as_it_is
    assert ChangeRequest.options(FakeWorkbench(), {"run": "x", "pace": 0}) == as_it_is | {"pace": 0}
    with pytest.raises(ParameterError, match="The requested action does not exist"):
        Control.options(FakeWorkbench(), {"run": "x", "action": "close"})


def test_models_are_listed_once_and_only_if_a_request_names_one() -> None:
    asked: list[str] = []

    class Listing(FakeWorkbench):
        def targets(self) -> list[dict[str, Any]]:
            asked.append("targets")
            return super().targets()

    ChangeRequest.options(Listing(), {"run": "x", "params": {"depth": 3}})
    assert asked == []
    name = FakeWorkbench().targets()[0]["name"]
    asked.clear()
    Generation.options(Listing(), {"prompt": "Once", "method": "draft-model", "target": name, "drafter": "none"})
    assert asked == ["targets"]
