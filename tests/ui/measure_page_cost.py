"""Measure the cost of an open page: `python tests/ui/measure_page_cost.py [pairs]`, on a quiet machine, three minutes.

Serves the app in this process and repeats the same generations, alternating between a browser that shows them
and one that shows an empty page. Prints the ratio of tokens per second within each pair, then the median with its
quartiles. The first pair warms up.
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
DONE = "sessionStorage.getItem('wb-run') && document.querySelector('.wb-badge[data-state=finished]')"
READY = ".wb[data-ready=true]"


def alone(client: Any, page: Page, url: str) -> list[Any]:
    """Generate without a page that shows the runs."""
    page.goto("about:blank")
    time.sleep(0.5)
    return [client.start(PROMPT, params={"temperature": 0.0}, **SETTINGS).wait() for _ in range(RUNS)]


def watched(client: Any, page: Page, url: str) -> list[Any]:
    """Generate the same runs, started and followed by the page."""
    page.goto(url)
    page.wait_for_selector(READY)
    page.wait_for_timeout(1500)
    traces = []
    for _ in range(RUNS):
        page.evaluate("sessionStorage.removeItem('wb-run')")
        page.click("[data-press=run]")
        page.wait_for_function(DONE, polling=100)  # polling in every frame would make the page draw every frame
        traces.append(client.run(page.evaluate("sessionStorage.getItem('wb-run')")).trace)
    return traces


def speed(traces: list[Any]) -> float:
    """Tokens per second over all rounds."""
    return sum(len(t.token_ids) for t in traces) / sum(r.seconds for t in traces for r in t.rounds)


def main(pairs: int = 10, port: int = 8165) -> None:
    """Print the paired ratio with its quartiles."""
    from workbench.client import Workbench
    from workbench.ui import LAUNCH, build

    client = Workbench()
    client.load()
    build(client).launch(server_port=port, quiet=True, prevent_thread_lock=True, **LAUNCH)
    asked = {**SETTINGS, "temperature": 0, "pace": 0, "prompt": PROMPT}  # not slowed down for display
    query = "&".join(f"{name}={value}" for name, value in asked.items())
    url = f"http://127.0.0.1:{port}/?{query}"
    ratios = []
    with sync_playwright() as play:
        browser = play.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox", "--disable-gpu"])
        page = browser.new_page(viewport={"width": 1280, "height": 900}, reduced_motion="reduce")  # no recording plays
        for i in range(pairs + 1):
            sides = [watched, alone] if i % 2 else [alone, watched]  # alternate, so that drift favours neither side
            made = {side: side(client, page, url) for side in sides}
            assert all(t.token_ids == made[alone][0].token_ids for traces in made.values() for t in traces), "one text"
            if i:
                ratios.append(speed(made[watched]) / speed(made[alone]))
                print(
                    f"pair {i}: {speed(made[watched]):.1f} / {speed(made[alone]):.1f} tokens/s = {ratios[-1]:.3f}",
                    flush=True,
                )
        browser.close()
    low, middle, high = statistics.quantiles(ratios, n=4, method="inclusive")
    print(f"with / without a page: median {middle:.3f} (quartiles {low:.3f}–{high:.3f}, n = {len(ratios)})")
    client.close()


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
