"""Recommend a method: measure a user's prompts in the background and find the fastest method for them."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Generator
from typing import Any

from workbench.client import Client, wire
from workbench.client.requests import RecommendationRequest
from workbench.core.errors import PromptError
from workbench.ui.jobs import Jobs
from workbench.ui.saved_runs import SavedRunsView

LAST = 6
"""Default number of saved runs whose prompts are used to recommend a method."""
MAX_CHARS = 200_000
"""Maximum number of characters of all prompts together in a request for a recommendation."""


class RecommendationView:
    """Python functions for the section of the Methods page that recommends a method.

    Args:
        client: client that runs the measurement.
        saved_runs: saved runs whose prompts may be measured.
    """

    def __init__(self, client: Client, saved_runs: SavedRunsView) -> None:
        self.client, self._saved_runs = client, saved_runs
        self._jobs: Jobs[Any] = Jobs()

    def server_functions(self) -> list[Callable[[dict[str, Any]], Any]]:
        """Return the Python functions that the Methods page in the browser may call, by name."""
        return [self.asking, self.stop]

    def asking(self, request: dict[str, Any]) -> dict[str, Any]:
        """Return the data of the recommendation form: targets, limits, and whether saved runs may be used."""
        return {
            "targets": self.client.targets(),
            "numbers": RecommendationRequest.numbers(),
            "offered": "recommending" in self.client.capabilities,
            "keeps": self._saved_runs.is_allowed,
            "last": LAST,
            "chars": MAX_CHARS,
        }

    def stop(self, request: dict[str, Any]) -> dict[str, Any]:
        """End the measurement for a recommendation; the results so far are reported."""
        self._jobs.stop(request.get("job"))
        return {}

    def decode(
        self, request: dict[str, Any], user: str = "local", is_from_user: bool = True
    ) -> AsyncGenerator[dict[str, Any], None]:
        """Measure which method is fastest on the user's prompts, and yield messages with the progress.

        Each message has `advice`, a `workbench.bench.advice.Advice` as plain data.

        Args:
            request: `target`, `seconds`, `channel` (the page's name for the measurement), and either `text`, the
                prompts that the user typed or pasted, or `last`, the number of saved runs whose prompts to measure.
            user: key of the runs' user, for limits and for fair scheduling among users.
            is_from_user: whether the request may come from the user of this machine, whose runs are saved.
        """

        def begin(_: str, stopped: Callable[[], bool]) -> Generator[dict[str, Any], None, None]:
            return self._messages(request, user, is_from_user, stopped)

        return self._jobs.follow(begin, str(request.get("channel", "")))

    def _messages(
        self, request: dict[str, Any], user: str, is_from_user: bool, stopped: Callable[[], bool]
    ) -> Generator[dict[str, Any], None, None]:
        options = RecommendationRequest.options(self.client, {**request, "prompts": [""]})
        target = options["target"] or self.client.targets()[0]["name"]
        options |= {"prompts": self._prompts(request, target, is_from_user), "target": target}
        last_advice = None
        for advice in self.client.stream_recommendation(**options, user=user, stopped=stopped):
            if advice != last_advice:
                result = advice.found and advice.found | {
                    "failed": {name: wire.scrub(reason) for name, reason in advice.found["failed"].items()}
                }
                yield {"advice": advice.to_wire() | {"waiting": wire.scrub(advice.waiting), "found": result}}
            else:
                yield {}
            last_advice = advice

    def _prompts(self, request: dict[str, Any], target: str, is_from_user: bool) -> list[Any]:
        from workbench.bench.prompts import read_prompts

        if request.get("last"):
            return self._saved_runs.prompts(target, wire.check_integer("last", request["last"], 1, 32), is_from_user)
        text = request.get("text") or ""
        if not isinstance(text, str) or "\0" in text:
            raise PromptError(
                "This file is not text.",
                "Choose a text file: one prompt per line, or JSON Lines with a `prompt` field.",
            )
        if len(text) > MAX_CHARS:
            raise PromptError(f"The prompts have {len(text):,} characters.", f"Use at most {MAX_CHARS:,} characters.")
        return list(read_prompts(text))
