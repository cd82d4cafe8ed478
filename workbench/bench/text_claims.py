"""The papers' claims about the text methods, and what measures them on the bundled pair.

Figures are the papers' own as the method cards give them (`recalled` where the paper was not read again). Measurements
run greedily on the bundled prompts unless the claim is about sampling, on whatever machine runs them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

import numpy as np

from workbench.bench.bootstrap import bounds, interval
from workbench.bench.claims import Claim, Measured, of_speedup
from workbench.bench.contenders import EngineContender
from workbench.bench.prompts import load_prompts
from workbench.bench.runner import measure
from workbench.core.sampling import SamplingParams
from workbench.engine import Engine, Models, Request, load_models
from workbench.methods import registry
from workbench.trace import metrics, theory
from workbench.trace.events import Trace
from workbench.trace.speedup import speedup

ALL = ("stories", "chat", "code", "maths", "copy", "json", "lists")
TOKENS, REPEATS = 64, 3


@lru_cache(maxsize=1)
def _models() -> Models:
    return load_models("text-target", "text-drafter", "cpu")


def _prompts(groups: Sequence[str]) -> list[list[int]]:
    found = [p for p in load_prompts() if p.group in groups]
    return [p.encode(_models().tokenizer) for p in found]


def speed(method: str, groups: Sequence[str] = ALL, **params: Any) -> Callable[[], Measured]:
    """Measures the speed-up over plain decoding; see `workbench.trace.speedup`."""

    def run() -> Measured:
        engine, prompts = Engine(_models()), _prompts(groups)
        pair = [
            EngineContender(engine, registry.get(name).with_params(**given), SamplingParams(), TOKENS)
            for name, given in (("autoregressive", {}), (method, params))
        ]
        samples, _ = measure(pair, prompts, REPEATS)
        mine, plain = (
            {(s.prompt, s.repeat): s.decode_rate for s in samples if s.contender == c.name} for c in pair[::-1]
        )
        return of_speedup(speedup(mine, plain), f"{_setting(groups)}, greedy")

    return run


def tau(method: str, groups: Sequence[str] = ALL, **params: Any) -> Callable[[], Measured]:
    """Measures τ: tokens emitted / target passes of each prompt, mean over prompts."""

    def run() -> Measured:
        found = [metrics.tau(t.rounds) or 0.0 for t in _traces(method, groups, SamplingParams(), params)]
        return Measured(*interval(found, np.mean), len(found), f"{_setting(groups)}, greedy; mean over prompts")

    return run


def tau_ratio(
    method: str, params: dict[str, Any], other: str, other_params: dict[str, Any], temperature: float
) -> Callable[[], Measured]:
    """Measures τ of one method / τ of another on the same prompts and seeds, geometric mean over prompts."""

    def run() -> Measured:
        sampling = SamplingParams(temperature=temperature)
        mine, theirs = (_traces(m, ALL, sampling, p) for m, p in ((method, params), (other, other_params)))
        logs = [
            np.log((metrics.tau(a.rounds) or 1) / (metrics.tau(b.rounds) or 1))
            for a, b in zip(mine, theirs, strict=True)
        ]
        value, low, high = (float(np.exp(x)) for x in interval(logs, np.mean))
        return Measured(value, low, high, len(logs), f"{_setting(ALL)}, temperature {temperature}; geometric mean")

    return run


def tau_over_closed_form(method: str, **params: Any) -> Callable[[], Measured]:
    """Measures τ / E[τ] of equation 1 at the acceptance rate of each prompt, over the rounds of all prompts."""

    def run() -> Measured:
        emitted, expected = [], []
        for t in _traces(method, ALL, SamplingParams(), params):
            drafting = [r for r in t.rounds if len(r.nodes)]
            rate = params.get("acceptance", metrics.acceptance_rate(t.rounds))
            if rate is not None and drafting:
                emitted.append(metrics.emitted(drafting))
                expected.append(sum(theory.expected_tau(rate, max(r.nodes.depth)) for r in drafting))
        both = np.array(emitted), np.array(expected)
        low, high = bounds(lambda a, b, axis=-1: a.sum(axis) / b.sum(axis), *both)
        value, n = float(both[0].sum() / both[1].sum()), len(emitted)
        return Measured(value, low, high, n, f"{_setting(ALL)}, greedy; over all rounds")

    return run


def _traces(method: str, groups: Sequence[str], sampling: SamplingParams, params: dict[str, Any]) -> list[Trace]:
    engine, configured = Engine(_models(), record=False), registry.get(method).with_params(**params)
    return [
        engine.generate(Request(ids, configured, sampling, max_new_tokens=TOKENS, seed=seed))  # or all would draw alike
        for seed, ids in enumerate(_prompts(groups))
    ]


def _setting(groups: Sequence[str]) -> str:
    which = "all bundled prompts" if tuple(groups) == ALL else f"bundled prompts: {', '.join(groups)}"
    return f"text-target with its own drafter and heads, float32, {which}, at most {TOKENS} tokens"


LEVIATHAN = "Leviathan et al. 2023, arXiv:2211.17192"
CLAIMS: tuple[Claim, ...] = (
    Claim(
        "autoregressive", "tokens a target pass (τ)", "any model: by definition", 1.0, 1.0,
        "definition of plain decoding", tau("autoregressive", ("stories", "chat")), tolerance=0.0,
    ),
    Claim(
        "draft-model", "speed-up over plain decoding", "T5-XXL 11B with a T5 drafter, translation and summaries",
        2.0, 3.0, f"{LEVIATHAN}, abstract (recalled)", speed("draft-model"), timed=True,
    ),
    Claim(
        "draft-model", "τ / E[τ] of equation 1 at the measured acceptance", "any pair with acceptances alike",
        1.0, 1.0, f"{LEVIATHAN}, equation 1", tau_over_closed_form("draft-model"), key="equation-1", tolerance=0.1,
    ),
    Claim(
        "draft-tree", "speed-up over plain decoding",
        "EAGLE-2: a trained head on Vicuna, LLaMA-2-chat and LLaMA-3-instruct; here a separate draft model",
        3.05, 4.26, "Li et al. 2024, arXiv:2406.16858, abstract", speed("draft-tree"), timed=True,
    ),
    Claim(
        "draft-tree", "speed / speed of a static tree with the same drafter", "EAGLE-2 against EAGLE-1", 1.2, 1.4,
        "Li et al. 2024, arXiv:2406.16858, abstract", None, key="over-static",
        lacks="a method that verifies a static tree of the same drafter",
    ),
    Claim(
        "draft-tree-sampled", "τ / τ of a chain with the same target budget (12 nodes)",
        "LLaMA-2 7B to 70B with a 115M drafter, OPT", None, None,
        "Jeon et al. 2024, arXiv:2402.14160, “best at fixed budget” (recalled; no single figure)",
        tau_ratio("draft-tree-sampled", {"depth": 4, "width": 3}, "draft-model", {"depth": 12}, 1.0), key="main",
    ),
    Claim(
        "draft-tree-sampled", "τ / τ of a chain with the same draft length (4)",
        "LLaMA-2 7B to 70B with a 115M drafter, OPT", None, None,
        "Jeon et al. 2024, arXiv:2402.14160, “best at fixed length” (recalled; no single figure)",
        tau_ratio("draft-tree-sampled", {"depth": 4, "width": 3}, "draft-model", {"depth": 4}, 1.0), key="length",
    ),
    Claim(
        "prompt-lookup", "speed-up over plain decoding on texts grounded in their input",
        "summaries and questions about documents, Mistral 7B and others", 2.0, 4.0,
        "Saxena 2023, README of prompt-lookup-decoding (recalled)", speed("prompt-lookup", ("copy",)), timed=True,
    ),
    Claim(
        "token-recycling", "speed-up over plain decoding", "Vicuna 7B to 33B, Spec-Bench", 2.0, 2.0,
        "Luo et al. 2024, arXiv:2408.08696, abstract (“about 2×”)", speed("token-recycling"), timed=True,
    ),
    Claim(
        "token-recycling", "tokens a target pass (τ), tree of 80 nodes", "Vicuna-7B greedy, Spec-Bench", 2.73, 2.73,
        "Spec-Bench leaderboard", tau("token-recycling", nodes=80, depth=6), key="spec-bench",
    ),
    Claim(
        "lookahead-trie", "speed-up over plain decoding where the text repeats its prompt",
        "retrieval-augmented service at Alipay", 2.66, 6.26,
        "Zhao et al. 2024, arXiv:2312.12728, abstract (recalled)", speed("lookahead-trie", ("copy",)), timed=True,
    ),
    Claim(
        "early-exit", "speed-up over plain decoding",
        "Llama models trained with layer dropout and early-exit loss; summaries 2.16, coding 1.82, parsing 2.0",
        1.82, 2.16, "Elhoushi et al. 2024, arXiv:2404.16710, abstract (recalled)", speed("early-exit"), timed=True,
    ),
    Claim(
        "medusa", "speed-up over plain decoding", "Medusa-1 on Vicuna 7B to 33B", 2.2, 3.6,
        "Cai et al. 2024, arXiv:2401.10774, abstract (over 2.2; README: 2.2 to 3.6; recalled)", speed("medusa"),
        timed=True,
    ),
    Claim(
        "medusa-typical", "τ / τ of exact sampling with the same heads, temperature 0.8",
        "Vicuna, temperature 0.7 and above", None, None, "Cai et al. 2024, arXiv:2401.10774, §2.3.1 (no single figure)",
        tau_ratio("medusa-typical", {}, "medusa", {}, 0.8),
    ),
    Claim(
        "oracle", "τ / (1 − a⁵)/(1 − a) with the dial at a = 0.8 and drafts of 4", "a closed form", 1.0, 1.0,
        f"{LEVIATHAN}, equation 1", tau_over_closed_form("oracle", acceptance=0.8, depth=4), tolerance=0.05,
    ),
)  # fmt: skip
