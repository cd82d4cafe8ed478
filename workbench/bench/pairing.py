"""Pairs of runs in the background: the method, then plain decoding, again and again, until its speed-up is known.

A baseline that was measured once beside one run decides nothing. Here both are run anew, each alone on the device, with
one prompt, seed and settings, in changing order; after each pair the interval is told, and it ends when that says
enough. Whoever else starts a run goes first: the pair under way is thrown away and begun again when the device is
free.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol, runtime_checkable

from workbench.bench.hosted import WARM_UP_TOKENS, Hosted, StopError
from workbench.bench.hosted import Host as Hosting
from workbench.bench.lanes import BASELINE
from workbench.bench.turns import order
from workbench.core.params import params_of
from workbench.core.sampling import SamplingParams
from workbench.trace.metrics import tokens_per_second
from workbench.trace.speedup import Estimate, estimate

MOST, LONGEST_S, CLOSE = 12, 60.0, 0.05
"""When enough is enough: so many pairs, so many seconds of measuring, an interval within so much of its middle."""
FEWEST = 3
"""Pairs before which nothing is decided."""
LOOKS_CONFIDENCE = 0.99
"""Of the interval that ends the measuring because it leaves 1. Who looks after each of twelve pairs and stops at the
first interval that does would be wrong far more often than one time in twenty; at 99 % a look, it is one time in twenty
over all (Pocock 1977, doi:10.1093/biomet/64.2.191, table 1)."""


@runtime_checkable
class Host(Hosting, Protocol):
    """A backend that knows who else uses it."""

    def others_run(self, besides: Any = None) -> bool:
        """Whether somebody's run goes on that is not one of these measurements."""
        ...


@dataclass(frozen=True, slots=True)
class Pairs:
    """How far it is.

    Attributes:
        ratios: speed-up of each pair that is done.
        text: what goes on, for people.
        waiting: it stands still: another run has the device, or its user has used up what a minute has.
        ended: why it has ended; empty while it goes on.
    """

    ratios: tuple[float, ...] = ()
    text: str = ""
    waiting: bool = False
    ended: str = ""

    @property
    def estimate(self) -> Estimate | None:
        """Speed-up over all pairs, of this prompt only."""
        return estimate({0: self.ratios})

    def to_wire(self) -> dict[str, Any]:
        """Plain JSON."""
        found = self.estimate
        return {
            "ratios": list(self.ratios), "estimate": found and found.to_wire(), "text": self.text, "most": MOST,
            "waiting": self.waiting, "ended": self.ended,
        }  # fmt: skip


def enough(ratios: Sequence[float], seconds: float) -> str:
    """Why no further pair is needed, in words; empty while one is.

    Args:
        ratios: of the pairs so far.
        seconds: of measuring, waiting left out.
    """
    found = estimate({0: ratios}, LOOKS_CONFIDENCE) if len(ratios) >= FEWEST else None
    if found is not None and found.low is not None and found.high is not None:
        if found.low > 1 or found.high < 1:
            return "the interval lies on one side of 1×"
        shown = estimate({0: ratios})
        if shown is not None and shown.high is not None and shown.high / shown.value <= 1 + CLOSE:
            return f"it is known to {CLOSE:.0%}"
    if len(ratios) >= MOST:
        return f"{MOST} pairs"
    return f"{LONGEST_S:.0f} s of measuring" if seconds >= LONGEST_S else ""


def measure_pairs(
    host: Host,
    prompt: str | list[int],
    method: str,
    params: dict[str, Any],
    *,
    target: str | None = None,
    drafter: str | None = None,
    max_new_tokens: int = 128,
    seed: int = 0,
    stop: Sequence[str] = (),
    images: Sequence[Any] = (),
    user: str = "local",
    stopped: Callable[[], bool] = lambda: False,
) -> Iterator[Pairs]:
    """Measure, pair by pair. Closing the iterator ends what runs.

    Args:
        host: the backend.
        prompt: what both continue, with the settings behind it; the plain run takes those of sampling.
        method: registry name.
        params: of the method and of sampling.
        target: by default the backend's.
        drafter: of the method.
        max_new_tokens: length limit of every run.
        seed: of every run, so that all pairs do the same work.
        stop: strings that end a text.
        images: pictures of the prompt.
        user: opaque key for limits and fairness.
        stopped: asked often; once it says yes, the last news come.

    Yields:
        what there is so far; the last one says why it ended.

    Raises:
        WorkbenchError: a run cannot be made.
    """
    shared = {"target": target, "seed": seed, "stop": tuple(stop), "user": user}
    shared |= {"images": images} if images else {}
    sampling = {name: value for name, value in params.items() if name in params_of(SamplingParams())}
    asked = {
        "method": {"method": method, "params": params, "drafter": drafter, **shared},
        "plain": {"method": BASELINE, "params": sampling, **shared},
    }
    ratios: list[float] = []
    seconds, why = 0.0, ""
    try:
        for side in asked.values():
            yield from _run(host, prompt, side, min(max_new_tokens, WARM_UP_TOKENS), stopped, Pairs(text="warming up"))
        while not why:
            done: dict[str, tuple[float, float] | None] = {}
            text = f"pair {len(ratios) + 1}"
            for side in order(list(asked), len(ratios)):
                now = Pairs(tuple(ratios), text)
                done[side] = yield from _run(host, prompt, asked[side], max_new_tokens, stopped, now)
                if done[side] is None:
                    break
            mine, plain = done.get("method"), done.get("plain")
            if mine is None or plain is None:
                continue
            if not (mine[0] and plain[0]):
                why = "a run emitted no tokens"
                continue
            ratios.append(mine[0] / plain[0])
            seconds += mine[1] + plain[1]
            why = enough(ratios, seconds)
            yield Pairs(tuple(ratios), text)
    except StopError:
        why = "stopped"
    yield Pairs(tuple(ratios), "", False, why)


def _run(
    host: Host,
    prompt: str | list[int],
    asked: dict[str, Any],
    max_new_tokens: int,
    stopped: Callable[[], bool],
    now: Pairs,
) -> Generator[Pairs, None, tuple[float, float] | None]:
    """One run, once the device is free. Returns None where somebody else came in between.

    Returns:
        its tokens per second, and the seconds it took; waiting before it, for the device or for its models left out.
    """
    yield now
    start = partial(host.start, prompt, alone=True, max_new_tokens=max_new_tokens, **asked)
    run = Hosted(host, start, stopped, host.others_run)
    with contextlib.closing(run.follow()) as following:
        for waits in following:
            yield Pairs(now.ratios, waits or now.text, run.run is None)
    return None if run.trace is None else (tokens_per_second(run.trace.rounds) or 0.0, run.seconds)
