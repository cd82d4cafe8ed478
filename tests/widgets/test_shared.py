"""One run shown in the app and in a notebook at once, both with the app's backend."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest
from ui.conftest import PageOpener, browser, fake_app, fake_app_runs, open_page  # noqa: F401  (fixtures)
from ui.test_page import count, state

pytest.importorskip("anywidget")
pytestmark = [pytest.mark.browser, pytest.mark.slow]


def wait_until(holds: Callable[[], Any]) -> Any:
    end = time.monotonic() + 120
    while not (found := holds()):
        assert time.monotonic() < end, "the condition did not become true in time"
        time.sleep(0.05)
    return found


def test_one_run_is_shown_and_controlled_from_both(fake_app: str, open_page: PageOpener) -> None:  # noqa: F811
    from workbench.client import Workbench
    from workbench.widgets import app_link, live

    with Workbench(fake_app) as wb:
        run = wb.start("Once upon a time", max_new_tokens=120, paused=True)
        widget, sent = live(run), []
        widget.send = lambda content, buffers=None: sent.append(content)
        page = open_page(app_link(base=fake_app, run=run.id).url)
        widget._on_message(widget, {"id": "1", "call": "control", "payload": {"run": run.id, "action": "step"}}, [])
        page.wait_for_selector(".wb-token")  # the notebook stepped, the app shows it
        wait_until(lambda: any(m.get("news", {}).get("rounds") for m in sent))
        assert count(page) == 1
        page.click("[data-press=stop]:enabled")  # stopped in the app, shown in the notebook
        state(page, "cancelled")
        wait_until(lambda: run.state == "cancelled")
        wait_until(lambda: sent[-1].get("news", {}).get("state") == "cancelled")
