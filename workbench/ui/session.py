"""What the page asks of the backend, as plain functions over the client. Knows no Gradio; tests call it directly.

Everything that comes from the browser is checked here: a run is reached only by its unguessable id, and a wrong
value is answered with the message and the remedy of the error, never with a traceback.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Callable
from typing import Any

from workbench.core.errors import WorkbenchError
from workbench.trace.metrics import DEFINITIONS

logger = logging.getLogger(__name__)

BASELINE = "autoregressive"
DEFAULT_METHOD = "draft-model"
DEFAULT_TOKENS = 128
UPDATES_PER_SECOND = 15
ENDED = frozenset({"finished", "cancelled", "error"})
ACTIONS = frozenset({"pause", "resume", "step", "cancel"})


def error_of(problem: Exception) -> dict[str, Any]:
    """An error as the page shows it: what was wrong, what to do."""
    if isinstance(problem, WorkbenchError):
        return {"error": {"message": problem.message, "remedy": problem.remedy}}
    logger.exception("unexpected error", exc_info=problem)
    return {
        "error": {
            "message": f"Unexpected error: {type(problem).__name__}: {problem}",
            "remedy": "The log of the app has the details. The backend goes on serving.",
        }
    }


class Session:
    """The calls of one page over a client. Holds no run: the browser names the run it means."""

    def __init__(self, client: Any) -> None:
        self.client = client

    def _safely(self, work: Callable[[], dict[str, Any]]) -> dict[str, Any]:
        try:
            return work()
        except Exception as problem:
            return error_of(problem)

    def catalogue(self, request: dict[str, Any]) -> dict[str, Any]:
        """Everything the side panel is made from, for a target and a drafter (None: the first that can be used)."""

        def work() -> dict[str, Any]:
            targets = self.client.targets()
            target = request.get("target") or _first(targets)
            drafters = self.client.drafters(target)
            drafter = request.get("drafter")
            if not any(d["name"] == drafter and d.get("available", True) for d in drafters):
                drafter = _first(drafters)
            return {
                "targets": targets,
                "drafters": drafters,
                "methods": self.client.methods(target, drafter),
                "sampling": self.client.sampling_params(),
                "presets": self.client.presets(),
                "device": self.client.device_label(),
                "definitions": {name: list(pair) for name, pair in DEFINITIONS.items()},
                "baseline": BASELINE,
                "chosen": {
                    "target": target,
                    "drafter": drafter,
                    "method": DEFAULT_METHOD,
                    "max_new_tokens": DEFAULT_TOKENS,
                },
            }

        return self._safely(work)

    def control(self, request: dict[str, Any]) -> dict[str, Any]:
        """Pause, resume, step or cancel a run."""

        def work() -> dict[str, Any]:
            action = request.get("action")
            if action not in ACTIONS:
                raise WorkbenchError(f"There is no action {action!r}.", f"Use one of {', '.join(sorted(ACTIONS))}.")
            getattr(self.client.run(str(request.get("run"))), action)()
            return {}

        return self._safely(work)

    def change(self, request: dict[str, Any]) -> dict[str, Any]:
        """Another method, drafter or other parameters from the next round on."""

        def work() -> dict[str, Any]:
            run = self.client.run(str(request.get("run")))
            wanted = {name: request[name] for name in ("method", "params", "drafter") if request.get(name)}
            run.change(**wanted)
            return {}

        return self._safely(work)

    def fetch_trace(self, request: dict[str, Any]) -> dict[str, Any]:
        """The rounds of a run from an index on: fills a gap, or everything after a reload."""
        return self._safely(
            lambda: self.client.run(str(request.get("run"))).since(max(0, int(request.get("from") or 0)))
        )

    async def decode(self, request: dict[str, Any]) -> AsyncGenerator[dict[str, Any], None]:
        """Start a run and yield what is new, at the display's pace. Closing the generator frees the run.

        The engine never waits for this loop: it asks for what has been recorded since the last time.
        """
        channel = {"channel": str(request.get("channel", ""))}
        try:
            run = await asyncio.to_thread(self._start, request)
        except Exception as problem:
            yield channel | error_of(problem)
            return
        try:
            seen, said, knows_header = 0, None, False
            while True:
                news = await asyncio.to_thread(run.since, seen)
                now = (news["state"], news["message"], news["header"] is not None, tuple(news["warnings"]))
                if news["rounds"] or now != said:
                    yield channel | news | ({"header": None} if knows_header else {})
                said, knows_header = now, news["header"] is not None
                seen += len(news["rounds"])
                if news["state"] in ENDED and seen >= news["seq"]:
                    return
                await asyncio.sleep(1 / UPDATES_PER_SECOND)
        finally:
            run.cancel()

    def _start(self, request: dict[str, Any]) -> Any:
        return self.client.start(
            str(request.get("prompt") or ""),
            method=str(request.get("method")),
            params=dict(request.get("params") or {}),
            target=request.get("target"),
            drafter=request.get("drafter"),
            max_new_tokens=int(request.get("max_new_tokens") or DEFAULT_TOKENS),
            seed=int(request.get("seed") or 0),
            paused=bool(request.get("paused")),
        )


def _first(entries: list[dict[str, Any]]) -> str | None:
    return next((entry["name"] for entry in entries if entry.get("available", True)), None)
