"""Stream the new rounds of a run to a viewer until the run ends."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator
from typing import Any

from workbench.client import wire
from workbench.client.handle import RunHandle

UPDATES_PER_SECOND = 15.0
"""Updates per second sent to a viewer of a run that is paused or slowed down, so that rounds arrive one by one."""
AT_FULL_SPEED = 10.0
"""Updates per second sent to a viewer of a run at full speed.

Motion looks continuous from about ten updates per second. An update takes some milliseconds of the cores that decode,
and ten or more in a browser on the same machine. Therefore measure only runs that no page follows.
"""
KEEP_ALIVE_S = 0.5
"""Maximum time between messages, in seconds: Gradio notices a disconnected client only when it sends a message."""


async def follow(run: RunHandle, *, n_rounds_seen: int = 0) -> AsyncGenerator[dict[str, Any], None]:
    """Yield updates of a run until it ends, for a page or another viewer.

    The function polls `Run.since` for new rounds, 10 to 15 times per second. The engine never waits for a viewer. If
    the run has a display rate, the engine delays its rounds, with or without viewers.

    Args:
        run: run to follow.
        n_rounds_seen: number of rounds that the viewer already has.

    Yields:
        Answers of `Run.since` without paths and access tokens in messages: the new rounds, and the header only if it
        changed. `{}` is a keep-alive message.
    """
    last_status, header, sent_at = None, None, time.monotonic()
    while True:
        update = wire.scrub_update(run.since(n_rounds_seen))
        status = {name: value for name, value in update.items() if name not in ("rounds", "seq")}
        if update["rounds"] or status != last_status:
            yield update | {"header": update["header"] if update["header"] != header else None}
            sent_at = time.monotonic()
        elif time.monotonic() - sent_at >= KEEP_ALIVE_S:
            yield {}
            sent_at = time.monotonic()
        last_status, header = status, update["header"]
        n_rounds_seen += len(update["rounds"])
        if update["state"] in wire.ENDED and n_rounds_seen >= update["seq"]:
            return
        is_fast = update["state"] == "running" and not update.get("pace")
        await asyncio.sleep(1 / (AT_FULL_SPEED if is_fast else UPDATES_PER_SECOND))
