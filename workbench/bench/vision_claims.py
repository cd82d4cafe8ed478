"""The papers' claims about drafting with pictures, and what measures them on the bundled vision-language models.

Figures are the papers' own as the method cards give them. τ is measured greedily on captions of held-out scenes; every
drafter drafts the same number of levels. A ratio of two settings is taken scene by scene.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache

import numpy as np

from workbench.bench import vision_suite
from workbench.bench.bootstrap import interval
from workbench.bench.claims import Claim, Measured, of_speedup
from workbench.bench.vision_suite import DEPTH, Asked
from workbench.engine import Engine, Models
from workbench.engine.models import load_models
from workbench.methods import registry
from workbench.trace import metrics
from workbench.trace.events import Trace
from workbench.trace.speedup import speedup

SCENES, TIMED, REPEATS = 20, 12, 3


@lru_cache(maxsize=1)
def _models() -> Models:
    return load_models(vision_suite.TARGET, None, "cpu")


@lru_cache(maxsize=1)
def _captions() -> list[Asked]:
    return [one for one in vision_suite.questions(SCENES, 0) if one.kind == "caption"]


@lru_cache(maxsize=32)
def _traces(name: str) -> list[Trace]:
    setting = next(s for s in vision_suite.settings() if s.name == name)
    return vision_suite.traces_of(setting, _models(), _captions())


def _taus(name: str) -> list[float]:
    return [metrics.tau(trace.rounds) or 0.0 for trace in _traces(name)]


def _note(scenes: int = SCENES, over: str = "; mean over scenes") -> str:
    return f"vision-target, {scenes} captions of held-out scenes, greedy, {DEPTH} levels{over}"


def tau(name: str) -> Callable[[], Measured]:
    """Measures τ of a setting."""
    return lambda: Measured(*interval(_taus(name), np.mean), SCENES, _note())


def tau_ratio(name: str, other: str) -> Callable[[], Measured]:
    """Measures τ of a setting over τ of another, scene by scene."""

    def run() -> Measured:
        ratios = [a / b for a, b in zip(_taus(name), _taus(other), strict=True)]
        return Measured(*interval(ratios, np.mean), SCENES, f"{_note()}; {name} over {other}")

    return run


def facts_gap() -> Measured:
    """Acceptance of the blind drafter on other words less that on words that state facts of the picture."""
    gaps = []
    for trace in _traces("text-only"):
        kinds = metrics.acceptance_by_kind(trace, vision_suite.FACTS)
        (tested, good), (tested_other, good_other) = kinds["fact"], kinds[metrics.OTHER]
        if tested and tested_other:
            gaps.append(good_other / tested_other - good / tested)
    return Measured(*interval(gaps, np.mean), len(gaps), _note())


def per_offset() -> Measured:
    """FLASH: how much likelier the first token of a block is to be right than the third, both tested."""
    kept: dict[int, list[int]] = {}
    for trace in _traces("FLASH"):
        for depth, tested, accepted in metrics.acceptance_by_depth(trace.rounds):
            kept.setdefault(depth, [0, 0])
            kept[depth][0] += tested
            kept[depth][1] += accepted
    ratio = (kept[1][1] / kept[1][0]) / (kept[3][1] / kept[3][0])
    return Measured(ratio, ratio, ratio, SCENES, f"{_note()}; all rounds together")


def speed(name: str) -> Callable[[], Measured]:
    """Measures the speed-up over plain decoding; see `workbench.trace.speedup`. A scene is a prompt."""

    def run() -> Measured:
        setting = next(s for s in vision_suite.settings() if s.name == name)
        method = registry.get(setting.method).with_params(depth=DEPTH, **setting.params)
        plain = registry.get("autoregressive").with_params()
        models, rates = _models(), ({}, {})  # of plain decoding, and of the method
        engine = Engine(models, record=False)
        for scene, one in enumerate(_captions()[:TIMED]):
            for repeat in range(REPEATS):
                for side, configured in zip(rates, (plain, method), strict=True):
                    trace = engine.generate(vision_suite.request(models, one, configured))
                    side[scene, repeat] = metrics.summary(trace)["tokens_per_second"] or 0.0
        return of_speedup(speedup(rates[1], rates[0]), _note(TIMED, ", decoding only"))

    return run


SPECVLM = "Huang et al. 2025, arXiv:2509.11815"
CLAIMS = [
    Claim(
        "vlm-text-only", "acceptance on other words less acceptance on words that state facts of the picture",
        "LLaVA-7B with a text-only drafter of 115M", None, None,
        "Gagrani et al. 2024, arXiv:2404.08856, §4 (recalled)", facts_gap, neutral=0.0,
    ),
    Claim(
        "vlm-draft", "τ over that of the text-only drafter", "Qwen2.5-VL and Gemma 3, drafter of the family", 1.3, 1.3,
        "Ganesan et al. 2025, arXiv:2505.10526, abstract: up to + 30 %",
        tau_ratio("draft model, chain", "text-only"),
    ),
    Claim(
        "vlm-draft", "τ of the dynamic tree over that of the chain", "LLaVA-1.5-7B, drafters of 68M and 160M", None,
        None, "Huo et al. 2025, arXiv:2509.11961 (direction)", tau_ratio("draft model, tree", "draft model, chain"),
        key="tree",
    ),
    Claim(
        "eagle-vlm", "mean accepted length τ", "LLaVA-1.5-7B, greedy, one epoch, tree of 60 nodes", 3.59, 3.59,
        f"{SPECVLM}, main table", tau("EagleVLM"),
    ),
    Claim(
        "msd", "τ over that of a drafter fed everything", "LLaVA-1.5, Qwen2-VL", None, None,
        "Lin et al. 2025, arXiv:2505.14260, §4.3 (direction)", tau_ratio("MSD", "EagleVLM"),
    ),
    Claim(
        "msd", "speed-up over plain decoding", "LLaVA-1.5-7B, greedy", 2.29, 2.29,
        "Lin et al. 2025, arXiv:2505.14260, abstract: up to 2.29×", speed("MSD"), key="speed", timed=True,
    ),
    Claim(
        "specvlm", "τ over EagleVLM's", "LLaVA-1.5-7B, greedy, one epoch: 3.67 against 3.59", 1.02, 1.02,
        f"{SPECVLM}, main table", tau_ratio("SpecVLM, gate", "EagleVLM"),
    ),
    Claim(
        "specvlm", "τ with 1 of 16 vision tokens over τ with all, pruned at random",
        "ablation: pruning and pooling bear 20×", 1.0, 1.0, f"{SPECVLM}, ablation of ratios",
        tau_ratio("SpecVLM, prune 16×", "SpecVLM, all"), key="prune",
    ),
    Claim(
        "specvlm", "τ with 1 of 16 vision tokens over τ with all, pooled", "ablation: pruning and pooling bear 20×",
        1.0, 1.0, f"{SPECVLM}, ablation of ratios", tau_ratio("SpecVLM, pool 16×", "SpecVLM, all"), key="pool",
    ),
    Claim(
        "specvlm", "speed-up over plain decoding", "LLaVA-1.5-7B, greedy, one epoch", 2.11, 2.11,
        f"{SPECVLM}, main table", speed("SpecVLM, gate"), key="speed", timed=True,
    ),
    Claim(
        "flash", "speed-up over plain decoding", "video captioning", 2.68, 2.68,
        "Wang et al. 2025, arXiv:2505.12728, abstract: up to 2.68×", speed("FLASH"), timed=True,
    ),
    Claim(
        "flash", "acceptance of a block's first token over that of its third", "semi-autoregressive head, k = 5", None,
        None, "Wang et al. 2025, arXiv:2505.12728, §3.2 (direction)", per_offset, key="offset",
    ),
]  # fmt: skip
