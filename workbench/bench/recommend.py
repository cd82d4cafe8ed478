"""Which method for these prompts, on this target, on this machine: measured within a time budget, and said in words.

All methods that run on the target take turns on the prompts, pass by pass. After a pass those leave whose interval lies
below that of the best, so that the time left goes to those that may still be the fastest.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import count

from workbench.bench.contenders import EngineContender
from workbench.bench.recommendation import Choice, Recommendation
from workbench.bench.rows import BASELINE
from workbench.bench.sample import Sample
from workbench.bench.statistics import Totals, rates
from workbench.bench.turns import order, turns
from workbench.core.errors import PromptError, WorkbenchError
from workbench.core.sampling import SamplingParams
from workbench.engine import Configured, Engine, Models, Promise
from workbench.engine.machine import machine_facts
from workbench.methods import registry
from workbench.trace.speedup import speedup

WARM_UP = 12
"""Tokens that each method writes before anything is measured."""
KNOWN_BY = 3
"""Tokens that have stood before, for the one behind them to count as repeated."""

Told = Callable[[float, int, str], None]
"""Called before each run with seconds spent, runs done, and what runs now."""


@dataclass(frozen=True, slots=True)
class Asked:
    """A prompt: its name, and its token ids."""

    name: str
    ids: list[int]


def candidates(models: Models, names: Sequence[str] = ()) -> list[Configured]:
    """Methods that run on these models and keep the target's law; where a policy plans by measured costs, with that.

    Args:
        models: the target, and what drafts for it.
        names: those alone; all by default.

    Raises:
        UnknownNameError: there is no such method.
    """
    wanted = [registry.get(name) for name in names] or registry.methods()
    found = []
    for method in wanted:
        if method.name == BASELINE or method.promise is not Promise.EXACT or models.why_not(method.needs):
            continue
        if "pictures" in method.needs or "sight" in method.needs:
            continue
        policy = method.params.get("policy")
        found.append(method.with_params(**({"policy": "planned"} if policy and "planned" in policy.choices else {})))
    return found


def recommend(
    models: Models,
    prompts: Sequence[Asked],
    seconds: float,
    *,
    methods: Sequence[Configured] = (),
    max_new_tokens: int = 64,
    told: Told = lambda *_: None,
    stopped: Callable[[], bool] = lambda: False,
    now: Callable[[], float] = time.monotonic,
) -> Recommendation:
    """Measure until the time is up, Ctrl-C, or one method is left, and rank.

    The time is looked at between runs, so that the last one may go over it. What was measured counts whenever it ends.

    Args:
        models: the target, and what drafts for it.
        prompts: the user's own.
        seconds: the budget, warm-up included.
        methods: what is measured beside plain decoding; by default all `candidates`.
        max_new_tokens: length limit of every run.
        told: hears of every run.
        stopped: asked between runs; once it says yes, what was measured is the result.
        now: a clock, in seconds.

    Raises:
        PromptError: there is no prompt.
        WorkbenchError: no method runs on this target.
    """
    if not prompts:
        raise PromptError("There is no prompt to measure on.", "Give --prompts FILE, or keep runs and give --last N.")
    chosen = list(methods) or candidates(models)
    if not chosen:
        raise WorkbenchError(
            "No method that drafts runs on this target.", "See `workbench methods` for what is missing."
        )
    engine, begun = Engine(models, record=False), now()
    lanes = [EngineContender(engine, c, SamplingParams(temperature=0.0), max_new_tokens)
             for c in (registry.get(BASELINE).with_params(), *chosen)]  # fmt: skip
    samples: dict[str, list[Sample]] = {lane.name: [] for lane in lanes}
    left, failed, passes, done, complete = dict[str, int](), dict[str, str](), 0, 0, True

    def over() -> bool:
        return now() - begun >= seconds or stopped()

    def run(lane: EngineContender, prompt: int, repeat: int | None, what: str) -> None:
        nonlocal done
        told(now() - begun, done, f"{what} · {lane.name}")
        if lane.name in failed:
            return
        if repeat is None:
            lane = replace(lane, max_new_tokens=min(WARM_UP, max_new_tokens))
        try:
            sample = lane.run(prompts[prompt].ids, prompt=prompt, repeat=repeat or 0)
        except WorkbenchError as error:
            failed[lane.name] = str(error)
            samples[lane.name].clear()
            return
        done += 1
        if repeat is not None:
            samples[lane.name].append(sample)

    try:
        for lane in lanes:
            if not over():
                run(lane, 0, None, "warm-up")
        alive = lanes
        for passes in count(1):
            for prompt, _, lane in turns(order(alive, passes - 1), len(prompts), 1):
                if over():
                    break
                run(lane, prompt, passes - 1, f"prompt {prompt + 1}/{len(prompts)}")
            if over():
                complete = not stopped()
                break
            alive = [lane for lane in alive if lane.name not in failed]
            for lane in _hopeless(alive, samples):
                left[lane.name] = passes
            alive = [lane for lane in alive if lane.name not in left]
            if len(alive) <= 2:
                break
    except KeyboardInterrupt:
        complete = False
    plain = samples[BASELINE]
    ranking = [_choice(lane, samples[lane.name], plain, left.get(lane.name, 0)) for lane in lanes[1:]]
    ranking = [choice for choice in ranking if choice.speedup is not None]
    ranking.sort(key=lambda choice: -choice.speedup.value if choice.speedup else 0.0)
    seen = sorted({s.prompt for s in plain})
    return Recommendation(
        models.target_name, [prompts[i].name for i in seen], ranking, _repeats(prompts, plain), now() - begun, passes,
        complete, machine_facts(), failed,
    )  # fmt: skip


def _hopeless(alive: Sequence[EngineContender], samples: dict[str, list[Sample]]) -> list[EngineContender]:
    """Those whose interval ends below where the best one's begins; never plain decoding, which all are divided by."""
    plain = rates(samples[BASELINE])
    found = {lane.name: speedup(rates(samples[lane.name]), plain) for lane in alive if lane.name != BASELINE}
    lows = [estimate.low for estimate in found.values() if estimate is not None and estimate.low is not None]
    best = max(lows, default=0.0)
    return [lane for lane in alive if (e := found.get(lane.name)) is not None and e.high is not None and e.high < best]


def _choice(lane: EngineContender, mine: Sequence[Sample], plain: Sequence[Sample], left: int) -> Choice:
    """What a lane's runs say beside those plain runs that they share prompt and pass with."""
    both = {(s.prompt, s.repeat) for s in mine} & {(s.prompt, s.repeat) for s in plain}
    own, beside = (Totals.of(s for s in side if (s.prompt, s.repeat) in both) for side in (mine, plain))
    rounds, plain_rounds = own.ms_per_round("decode"), beside.ms_per_round("decode")
    values, specs = lane.configured.values, lane.configured.method.params
    return Choice(
        lane.configured.name, lane.title,
        {name: value for name, value in values.items() if value != specs[name].default},
        speedup(rates(mine), rates(plain)), own.tau, own.acceptance_rate,
        rounds / plain_rounds if rounds and plain_rounds else None,
        own.ms_per_round("draft"), own.ms_per_round("verify"), left,
    )  # fmt: skip


def _repeats(prompts: Sequence[Asked], plain: Iterable[Sample]) -> float | None:
    """The share of written tokens that stood behind the same `KNOWN_BY` tokens when these came last."""
    first = {s.prompt: s.token_ids for s in reversed(list(plain))}
    hits = n = 0
    for prompt, written in first.items():
        text, seen = [*prompts[prompt].ids, *written], dict[tuple[int, ...], int]()
        for i in range(KNOWN_BY, len(text)):
            before = tuple(text[i - KNOWN_BY : i])
            if i >= len(prompts[prompt].ids):
                hits, n = hits + (seen.get(before) == text[i]), n + 1
            seen[before] = text[i]
    return hits / n if n else None
