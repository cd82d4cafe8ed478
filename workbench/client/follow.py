"""How a run is followed by whoever shows it: what is new, at a display's pace, until it has ended."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator
from typing import Any

from workbench.client import wire
from workbench.client.handle import RunHandle

UPDATES_PER_SECOND = 15.0
"""Of a run that is held back, so that each of its rounds comes alone."""
AT_FULL_SPEED = 10.0
"""What people see as one movement needs ten a second or more. An update takes some milliseconds from the cores that
decode, and ten or more in a browser on the same machine: whoever measures looks at a run that nobody watches."""
SIGN_OF_LIFE_S = 0.5
"""Something is said at least this often: Gradio notices that nobody listens any more only when something is said."""


async def follow(run: RunHandle, *, seen: int = 0) -> AsyncGenerator[dict[str, Any], None]:
    """What a run does, as it does it. The engine never waits for this: it is asked for what it has recorded.

    Args:
        run: to be followed.
        seen: how many rounds are known already.

    Yields:
        what `Run.since` answers, made fit for strangers: rounds that are new, and the header only when it changed.
        `{}` is a sign of life.
    """
    said, header, spoken = None, None, time.monotonic()
    while True:
        news = wire.news(run.since(seen))
        now = {name: value for name, value in news.items() if name not in ("rounds", "seq")}
        if news["rounds"] or now != said:
            yield news | {"header": news["header"] if news["header"] != header else None}
            spoken = time.monotonic()
        elif time.monotonic() - spoken >= SIGN_OF_LIFE_S:
            yield {}
            spoken = time.monotonic()
        said, header = now, news["header"]
        seen += len(news["rounds"])
        if news["state"] in wire.ENDED and seen >= news["seq"]:
            return
        is_fast = news["state"] == "running" and not news.get("pace")
        await asyncio.sleep(1 / (AT_FULL_SPEED if is_fast else UPDATES_PER_SECOND))
