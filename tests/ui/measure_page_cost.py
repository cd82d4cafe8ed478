"""Measure the cost of an open page: `python tests/ui/measure_page_cost.py [repeats]`, on a quiet machine, five minutes.

Serves the app in this process and repeats the same generations, alternating between a browser that shows them, one
that receives them without drawing, and one that shows an empty page. Prints the ratios of tokens per second to those
of the empty page, then their medians with quartiles. The first round of the three warms up. The ratio without drawing
is the cost of the backend's messages and of the page's own state; the rest is the browser's drawing.
"""

from __future__ import annotations

import shutil
import statistics
import sys
import time
from typing import Any

from playwright.sync_api import Page, sync_playwright

PROMPT = "<|user|>Write a story about Mia and Tom. Put a red kite in it.<|assistant|>"
SETTINGS: dict[str, Any] = {"method": "draft-model", "max_new_tokens": 192, "seed": 0}
RUNS = 4
"""Runs on each side of a pair."""
STARTED = "sessionStorage.getItem('wb-run')"
DONE = f"{STARTED} && document.querySelector('.wb-badge[data-state=finished]')"
NO_BASELINE = "localStorage.setItem('wb-autobaseline', 'off')"
"""Script that turns the automatic baseline off: its runs would compete with the measured ones."""
READY = ".wb[data-ready=true]"


def alone(client: Any, page: Page, url: str) -> list[Any]:
    """Generate without a page that shows the runs."""
    page.goto("about:blank")
    time.sleep(0.5)
    return [client.start(PROMPT, params={"temperature": 0.0}, **SETTINGS).wait() for _ in range(RUNS)]


def undrawn(client: Any, page: Page, url: str) -> list[Any]:
    """Generate the same runs, started and followed by a page that never gets a frame to draw."""
    return watched(client, page, url, draws=False)


def watched(client: Any, page: Page, url: str, *, draws: bool = True) -> list[Any]:
    """Generate the same runs, started and followed by the page."""
    page.goto(url)
    page.wait_for_selector(READY)
    page.wait_for_timeout(1500)
    traces = []
    if not draws:
        page.evaluate("window.requestAnimationFrame = () => 0")
    for _ in range(RUNS):
        page.evaluate("sessionStorage.removeItem('wb-run')")
        page.click("[data-press=run]")
        page.wait_for_function(DONE if draws else STARTED, polling=100)  # each frame would make the page draw in each
        traces.append(client.run(page.evaluate("sessionStorage.getItem('wb-run')")).wait())
        page.wait_for_timeout(300)  # the page gets the run's last message
    return traces


def speed(traces: list[Any]) -> float:
    """Tokens per second over all rounds."""
    return sum(len(t.token_ids) for t in traces) / sum(r.seconds for t in traces for r in t.rounds)


def main(repeats: int = 10, port: int = 8165) -> None:
    """Print the paired ratios with their quartiles."""
    from workbench.client import Workbench
    from workbench.ui import LAUNCH, build

    client = Workbench()
    client.load()
    build(client).launch(server_port=port, quiet=True, prevent_thread_lock=True, **LAUNCH)
    asked = {**SETTINGS, "temperature": 0, "pace": 0, "prompt": PROMPT}  # not slowed down for display
    query = "&".join(f"{name}={value}" for name, value in asked.items())
    url = f"http://127.0.0.1:{port}/?{query}"
    ratios: dict[str, list[float]] = {"undrawn": [], "watched": []}
    sides = [alone, undrawn, watched]
    with sync_playwright() as play:
        browser = play.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox", "--disable-gpu"])
        page = browser.new_page(viewport={"width": 1280, "height": 900}, reduced_motion="reduce")  # no recording plays
        page.add_init_script(NO_BASELINE)
        for i in range(repeats + 1):
            order = sides[i % 3 :] + sides[: i % 3]  # rotate, so that drift favours no side
            made = {side.__name__: side(client, page, url) for side in order}
            assert all(t.token_ids == made["alone"][0].token_ids for traces in made.values() for t in traces), (
                "one text"
            )
            speeds = {name: speed(traces) for name, traces in made.items()}
            if i:
                for name, values in ratios.items():
                    values.append(speeds[name] / speeds["alone"])
                print(f"{i}:", *(f"{name} {value:.1f} tokens/s" for name, value in speeds.items()), flush=True)
        browser.close()
    for name, values in ratios.items():
        low, middle, high = statistics.quantiles(values, n=4, method="inclusive")
        print(f"{name} / alone: median {middle:.3f} (quartiles {low:.3f}–{high:.3f}, n = {len(values)})")
    client.close()


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
