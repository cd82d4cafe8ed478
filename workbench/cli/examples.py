"""Record the examples that the Compare and Sweep tabs show before the first measurement.

The examples are results of real runs with the initial settings of the tabs, so that the button Measure repeats them on
the user's machine.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

Progress = Callable[[int, int, str], None]
LANES, PRESETS, REPEATS, TOKENS = ("draft-model", "draft-tree", "prompt-lookup"), 2, 5, 64
"""Settings of the example comparison: initial settings of the Compare tab (`compare/choice.js`), with more repeats."""
AXES = {"depth": (1, 2, 4, 6), "temperature": (0.0, 0.7)}
SWEEP: dict[str, Any] = {"group": "stories", "limit": 4, "repeats": 3, "max_new_tokens": 48}
"""Settings of the example sweep: initial settings of the Sweep tab (`sweep/choice.js`), with more repeats."""


def compare(target: str, report: Progress) -> dict[str, Any]:
    """Measure the example comparison, and return it as JSON data in the format of the page."""
    from workbench.bench.prompts import BenchPrompt
    from workbench.client import Workbench
    from workbench.service.presets import message_in

    with Workbench(target=target) as bench:
        prompts = [
            BenchPrompt(p["title"], message_in(p["prompt"]) or p["prompt"], chat=message_in(p["prompt"]) is not None)
            for p in bench.presets()[:PRESETS]
        ]
        comparison = bench.compare(
            prompts, list(LANES), target=target, repeats=REPEATS, max_new_tokens=TOKENS,
            progress=lambda step: report(step.done, step.total, step.text),
        )  # fmt: skip
    if not comparison.complete:
        raise KeyboardInterrupt
    return comparison.to_wire()


def sweep(target: str, report: Progress) -> dict[str, Any]:
    """Measure the example sweep, and return it as JSON data, with labels of the measured quantities."""
    from workbench.bench.comparison_figures import METRICS, THEORY
    from workbench.bench.sweep import Sweep, backend_workers, run
    from workbench.client import Workbench

    with Workbench(target=target) as bench:
        bench.generate(
            "Once upon a time", "autoregressive", max_new_tokens=TOKENS
        )  # the first run of a process is slow
        last = None
        for last in run(Sweep.of(AXES, target=target, **SWEEP), backend_workers(bench)):
            report(last.done, last.total, last.text)
    if last is None or not last.complete:
        raise KeyboardInterrupt
    return last.to_wire(everything=True) | {"metrics": METRICS, "theory": THEORY}


EXAMPLES: dict[str, Callable[[str, Progress], dict[str, Any]]] = {"compare": compare, "sweep": sweep}
