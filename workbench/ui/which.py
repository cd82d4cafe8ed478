"""Which for me: a user's prompts measured in the background, and which method is fastest on them."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Generator
from typing import Any

from workbench.client import Client, wire
from workbench.client.requests import Recommending
from workbench.core.errors import PromptError
from workbench.ui.jobs import Jobs
from workbench.ui.keptruns import KeptRuns

LAST = 6
"""Prompts of kept runs that are asked again where nobody says how many."""
MAX_CHARS = 200_000
"""Of the prompts in whole."""


class WhichView:
    """What the view asks, as plain functions over the client.

    Args:
        client: measures.
        kept: runs whose prompts may be asked again.
    """

    def __init__(self, client: Client, kept: KeptRuns) -> None:
        self.client, self._kept = client, kept
        self._jobs: Jobs[Any] = Jobs()

    def answers(self) -> list[Callable[[dict[str, Any]], Any]]:
        """What the view may call by name."""
        return [self.asking, self.stop]

    def asking(self, request: dict[str, Any]) -> dict[str, Any]:
        """What the form is made from: targets, limits of numbers and text, whether kept runs may be asked."""
        return {
            "targets": self.client.targets(),
            "numbers": Recommending.numbers(),
            "offered": "recommending" in self.client.offers,
            "keeps": self._kept.allowed,
            "last": LAST,
            "chars": MAX_CHARS,
        }

    def stop(self, request: dict[str, Any]) -> dict[str, Any]:
        """End a measurement; what was measured is told."""
        self._jobs.stop(request.get("job"))
        return {}

    def decode(
        self, request: dict[str, Any], user: str = "local", mine: bool = True
    ) -> AsyncGenerator[dict[str, Any], None]:
        """Measure; each message has `advice`, a `workbench.bench.advice.Advice` as plain data.

        Args:
            request: `target`, `seconds`, `channel`, and either `text`, what was written or pasted, or `last`: how many
                kept runs' prompts to ask again.
            user: whose runs they are, for limits and fairness.
            mine: it may come from this machine's user, whose runs are kept.
        """

        def begin(_: str, stopped: Callable[[], bool]) -> Generator[dict[str, Any], None, None]:
            return self._messages(request, user, mine, stopped)

        return self._jobs.follow(begin, str(request.get("channel", "")))

    def _messages(
        self, request: dict[str, Any], user: str, mine: bool, stopped: Callable[[], bool]
    ) -> Generator[dict[str, Any], None, None]:
        options = Recommending.options(self.client, {**request, "prompts": [""]})
        target = options["target"] or self.client.targets()[0]["name"]
        options |= {"prompts": self._prompts(request, target, mine), "target": target}
        said = None
        for advice in self.client.recommending(**options, user=user, stopped=stopped):
            if advice != said:
                found = advice.found and advice.found | {
                    "failed": {name: wire.scrub(why) for name, why in advice.found["failed"].items()}
                }
                yield {"advice": advice.to_wire() | {"waiting": wire.scrub(advice.waiting), "found": found}}
            else:
                yield {}
            said = advice

    def _prompts(self, request: dict[str, Any], target: str, mine: bool) -> list[Any]:
        from workbench.bench.prompts import read_prompts

        if request.get("last"):
            return self._kept.prompts(target, wire.whole("last", request["last"], 1, 32), mine)
        text = request.get("text") or ""
        if not isinstance(text, str) or "\0" in text:
            raise PromptError("This is not text.", "Give a file of text: a prompt a line, or JSON lines with `prompt`.")
        if len(text) > MAX_CHARS:
            raise PromptError(f"The prompts have {len(text):,} characters.", f"At most {MAX_CHARS:,} are measured.")
        return list(read_prompts(text))
