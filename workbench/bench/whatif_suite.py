"""Errors of what-if predictions: compare each prediction of `workbench.trace.whatif` with the run that it predicts.

The pairs of predicted and measured values are saved, prompt by prompt; errors are computed from them for display.
Values of τ are counts from greedy runs and do not depend on the machine. Speeds do: each predicted and measured speed
is relative to the speed of the prompt's recorded run, measured just before.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from workbench.bench.conditions import conditions_of_models
from workbench.bench.prompts import BenchPrompt
from workbench.bench.study import BEGIN, JsonLines, Study, in_turn
from workbench.bench.whatif_errors import PREDICTIONS, TIMED
from workbench.core.sampling import SamplingParams
from workbench.engine import Engine, Models, Request
from workbench.methods import registry
from workbench.trace import metrics, theory, whatif
from workbench.trace.events import Trace

DEPTH, WIDE_DEPTH, TOKENS = 5, 3, 48
"""Draft length of the recorded runs, depth of the draft trees, and length of a run in tokens."""
CHAINS: Mapping[str, Mapping[str, Any]] = {
    "draft-model": {"policy": "fixed"},
    "eagle-2": {"policy": "fixed", "grower": "chain"},
}
"""Methods whose runs are recorded for predictions: a draft model, and EAGLE, whose accuracy falls with depth."""
TREE: Mapping[str, Any] = {"policy": "fixed", "grower": "rsd-c", "branching": "2-2-2", "depth": WIDE_DEPTH, "nodes": 14}
"""Setting of `draft-tree` with two siblings at every position, whose τ is predicted."""
Progress = Callable[[int, int, str], None]
"""Type of a function that is called with number of finished prompts, number of all prompts, and the prompt's name."""


@dataclass(frozen=True, slots=True)
class PromptRuns:
    """A prompt with the engine that runs methods on it greedily, to check what-if predictions (of other settings)."""

    engine: Engine
    ids: list[int]
    tokens: int

    def run(self, method: str, ids: Sequence[int] | None = None, tokens: int = 0, **params: Any) -> Trace:
        """Run a method greedily on the prompt, or on the token ids `ids`, and return the trace.

        The trace has the drafter's most probable tokens, which `whatif.estimate_widths` reads.
        """
        configured = registry.get(method).with_params(**params)
        sampling = SamplingParams(temperature=0.0)
        limit = tokens or self.tokens
        return self.engine.generate(Request(list(ids or self.ids), configured, sampling=sampling, max_new_tokens=limit))


def measure(
    models: Models,
    prompts: Sequence[BenchPrompt],
    tokens: int = TOKENS,
    progress: Progress = lambda *_: None,
    timed: bool | None = None,
    resume: Path | None = None,
) -> dict[str, dict[str, Any]]:
    """Compute the what-if predictions for every prompt, and measure the runs that they predict.

    Args:
        models: a target with a draft model and EAGLE's layer.
        prompts: prompts; those that do not fit the context are skipped.
        tokens: length of every run.
        progress: function that is called before each prompt.
        timed: True: only predictions of speeds (`TIMED`), for an idle machine; False: all other predictions; None: all.
        resume: file of predictions by prompt, JSON Lines, from which the same measurement continues.

    Returns:
        A row for each prediction, with its `pairs`: `prompt`, `of` (the setting), `predicted`, `measured`.
    """
    keys = [key for key in PREDICTIONS if timed is None or (key in TIMED) is timed]
    engine = Engine(models)

    def predict(number: int) -> list[tuple[str, str, float, float]]:
        ids = prompts[number].encode(models.tokenizer)
        if len(ids) + tokens > models.target.context:
            return []
        return list(predictions_for_prompt(PromptRuns(engine, ids, tokens), keys))

    settings = {"keys": keys, "tokens": tokens, "prompts": [prompt.prompt for prompt in prompts]}
    store = None if resume is None else JsonLines(resume, conditions_of_models(models) | settings, list, list)
    study = Study[int, Any](range(len(prompts)), in_turn(predict), store)
    for kind, number, _ in study.run():
        if kind == BEGIN:
            progress(number, len(prompts), prompts[number].name)
    rows = {key: [] for key in keys}
    for number, prompt in enumerate(prompts):
        for key, setting, predicted, measured in study.results[number]:
            rows[key].append({"prompt": prompt.name, "of": setting, "predicted": predicted, "measured": measured})
    facts = {"target": models.target_name, "drafter": models.drafter_name, "tokens": tokens}
    return {key: {"predicts": PREDICTIONS[key], **facts, "pairs": pairs} for key, pairs in rows.items()}


def predictions_for_prompt(runs: PromptRuns, keys: Collection[str]) -> Iterator[tuple[str, str, float, float]]:
    """Yield (key, setting, predicted value, measured value) of the predictions `keys` for one prompt."""
    for prediction in _of_chains(runs):
        if prediction[0] in keys:
            yield prediction
    if "width" in keys:
        narrow, wide = runs.run("draft-model", depth=WIDE_DEPTH, policy="fixed"), runs.run("draft-tree", **TREE)
        predicted = whatif.estimate_widths(narrow.rounds, 2)[1].tau
        yield "width", "draft-model → draft-tree", predicted, metrics.tau(wide.rounds) or 1.0
    if "combination" in keys:
        yield "combination", "draft-model, prompt-lookup", *_combination(runs)


def _of_chains(runs: PromptRuns) -> Iterator[tuple[str, str, float, float]]:
    plain = runs.run("autoregressive")
    for method, params in CHAINS.items():
        recorded = runs.run(method, depth=DEPTH, **params)
        base = _speed(recorded)
        lengths, rates = whatif.predict_draft_lengths(recorded, plain), whatif.predict_tau(recorded.rounds)
        budget = whatif.time_breakdown(recorded, plain)
        lengths_without_plain = whatif.predict_draft_lengths(recorded)  # without the plain run, for users who have none
        yield "plain", method, lengths_without_plain.fixed[0].relative, _speed(plain) / base
        if budget.predicted_speedup and budget.measured:
            yield "formula", method, budget.predicted_speedup, budget.measured
        for k in range(1, DEPTH):
            real = runs.run(method, depth=k, **params)
            tau, setting = metrics.tau(real.rounds) or 1.0, f"{method}, K = {k}"
            yield "lengths", setting, lengths.fixed[k].tau, tau
            yield "speeds", setting, lengths.fixed[k].relative, _speed(real) / base
            yield "by-position", setting, theory.tau_by_position(rates["rates"][:k]), tau
            if rates["rate"] is not None:
                yield "iid", setting, theory.expected_tau(rates["rate"], k), tau


def _combination(runs: PromptRuns) -> tuple[float, float]:
    """Return predicted and measured τ of a combination of two drafters: each round uses the drafter that emits more.

    The prediction uses one run of each drafter. The measurement runs both drafters from the beginning of each round.
    """
    drafters = {"draft-model": {"depth": WIDE_DEPTH, "policy": "fixed"}, "prompt-lookup": {"depth": WIDE_DEPTH}}
    first, second = (runs.run(method, **params) for method, params in drafters.items())
    predicted = whatif.combine(first, second)
    text, position, n = first.token_ids[: predicted.tokens], 0, 0
    while position < len(text):  # a new run from here, of which the first round counts
        rounds = [
            runs.run(method, [*runs.ids, *text[:position]], WIDE_DEPTH + 2, **params).rounds[0]
            for method, params in drafters.items()
        ]
        position, n = position + max(len(r.emitted) for r in rounds), n + 1
    return predicted.tau, len(text) / n


def _speed(trace: Trace) -> float:
    return metrics.tokens_per_second(trace.rounds) or 0.0
