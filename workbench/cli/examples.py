"""The recorded examples of Compare and Sweep: what these tabs show before anybody has measured. Made by real runs.

They measure what the tabs begin with, so that Measure does the same again on the machine at hand.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

Progress = Callable[[int, int, str], None]
LANES, PRESETS, REPEATS, TOKENS = ("draft-model", "draft-tree", "prompt-lookup"), 2, 5, 64
"""As `views/js/compare/choice.js` begins, with more repeats: the intervals are tighter than after a first look."""
AXES = {"depth": (1, 2, 4, 6), "temperature": (0.0, 0.7)}
SWEEP: dict[str, Any] = {"group": "stories", "limit": 4, "repeats": 3, "max_new_tokens": 48}
"""As `views/js/sweep/choice.js` begins, with more prompts and repeats."""


def compare(target: str, say: Progress) -> dict[str, Any]:
    """A whole comparison, as the page shows it."""
    from workbench.bench.prompts import BenchPrompt
    from workbench.client import Workbench
    from workbench.service.presets import message_in

    with Workbench(target=target) as bench:
        prompts = [
            BenchPrompt(p["title"], message_in(p["prompt"]) or p["prompt"], chat=message_in(p["prompt"]) is not None)
            for p in bench.presets()[:PRESETS]
        ]
        found = bench.compare(
            prompts, list(LANES), target=target, repeats=REPEATS, max_new_tokens=TOKENS,
            progress=lambda step: say(step.done, step.total, step.text),
        )  # fmt: skip
    if not found.complete:
        raise KeyboardInterrupt
    return found.to_wire()


def sweep(target: str, say: Progress) -> dict[str, Any]:
    """A whole sweep, with the words of its figures: the page may show it before anything else is there."""
    from workbench.bench.estimates import METRICS, THEORY
    from workbench.bench.sweep import Sweep, here, run
    from workbench.client import Workbench

    with Workbench(target=target) as bench:
        bench.generate(
            "Once upon a time", "autoregressive", max_new_tokens=TOKENS
        )  # the first run of a process is slow
        last = None
        for last in run(Sweep.of(AXES, target=target, **SWEEP), here(bench)):
            say(last.done, last.total, last.text)
    if last is None or not last.complete:
        raise KeyboardInterrupt
    return last.to_wire(everything=True) | {"metrics": METRICS, "theory": THEORY}


EXAMPLES: dict[str, Callable[[str, Progress], dict[str, Any]]] = {"compare": compare, "sweep": sweep}
