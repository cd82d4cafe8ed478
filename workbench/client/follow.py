"""Stream the new rounds of a run to a viewer, at a display's rate, until the run ends."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator
from typing import Any

from workbench.client import wire
from workbench.client.handle import RunHandle

UPDATES_PER_SECOND = 15.0
"""Update rate of a run with a pace, or not running, so that each of its rounds arrives alone."""
AT_FULL_SPEED = 10.0
"""Update rate of a run at full speed, per second. Motion looks continuous from about ten updates per second on. An
update takes some milliseconds from the cores that decode, and ten or more in a browser on the same machine; therefore
measure runs that nobody watches."""
SIGN_OF_LIFE_S = 0.5
"""Maximum time between messages, in seconds: Gradio notices a disconnected client only when it sends a message."""


async def follow(run: RunHandle, *, seen: int = 0) -> AsyncGenerator[dict[str, Any], None]:
    """Yield updates of a run while it runs. The engine never waits for this; it polls the recorded rounds.

    Args:
        run: run to follow.
        seen: number of rounds that the viewer has.

    Yields:
        Answers of `Run.since`, scrubbed for clients: the new rounds, and the header only if it changed. `{}` is a
        keep-alive message.
    """
    last, header, sent = None, None, time.monotonic()
    while True:
        news = wire.news(run.since(seen))
        now = {name: value for name, value in news.items() if name not in ("rounds", "seq")}
        if news["rounds"] or now != last:
            yield news | {"header": news["header"] if news["header"] != header else None}
            sent = time.monotonic()
        elif time.monotonic() - sent >= SIGN_OF_LIFE_S:
            yield {}
            sent = time.monotonic()
        last, header = now, news["header"]
        seen += len(news["rounds"])
        if news["state"] in wire.ENDED and seen >= news["seq"]:
            return
        is_fast = news["state"] == "running" and not news.get("pace")
        await asyncio.sleep(1 / (AT_FULL_SPEED if is_fast else UPDATES_PER_SECOND))
