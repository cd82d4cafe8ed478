"""What a request means where it says little."""

from __future__ import annotations

from typing import Any

import pytest

from workbench.client import wire


class Server:
    """A client that lists methods with the reasons why they cannot run."""

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
    found = wire.start_options(server, {"prompt": "Once", "target": "small", **asked})
    assert found["method"] == wanted
